//! One request to a server, without kube's logs and with a timeout.

use std::time::Duration;

use kube::{Client, api::ListParams, core::Request};
use tokio::time::timeout;
use tracing::{Dispatch, instrument::WithSubscriber};

use super::{
    raw_pod::RawList,
    request_failure::{Failure, Server, position},
};

/// Suppresses kube's log lines: kube logs each failed request as an error, and logs unparsable answers in full. The
/// agent logs failures itself, once.
pub(crate) async fn quietly<F: Future>(request: F) -> F::Output {
    request.with_subscriber(Dispatch::none()).await
}

/// Returns the answer, or an error after the timeout `patience`.
pub(super) async fn within<T>(
    patience: Duration,
    server: &Server,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, Failure> {
    match timeout(patience, request).await {
        Ok(answer) => answer.map_err(|error| server.failure(&error)),
        Err(_) => Err(server.silent(patience)),
    }
}

/// Requests a list of pods.
pub(super) async fn list(
    patience: Duration,
    server: &Server,
    client: &Client,
    pods: &Request,
    params: &ListParams,
) -> Result<RawList, Failure> {
    let request = pods.list(params).map_err(|error| server.failure(&kube::Error::BuildRequest(error)))?;
    let text = within(patience, server, quietly(client.request_text(request))).await?;
    let list: RawList = serde_json::from_str(&text).map_err(|error| server.garbled(position(&error)))?;
    if list.kind == "PodList" { Ok(list) } else { Err(server.garbled("not a list of pods")) }
}
