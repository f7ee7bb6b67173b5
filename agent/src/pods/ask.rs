//! One request to a server, quietly and not for ever.

use std::time::Duration;

use kube::{Client, api::ListParams, core::Request};
use tokio::time::timeout;
use tracing::{Dispatch, instrument::WithSubscriber};

use super::{
    failure::{Failure, Server, position},
    raw::RawList,
};

/// kube logs each failed request as an error, and what it cannot parse in full. Failures are told by us, once.
pub(crate) async fn quietly<F: Future>(request: F) -> F::Output {
    request.with_subscriber(Dispatch::none()).await
}

/// The answer, if it comes in time.
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

/// A list of pods.
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
