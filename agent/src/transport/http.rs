//! An HTTP/1.1 client with a limit on the size of an answer, and the connector that it shares with gRPC. It
//! uses no proxy and follows no redirect.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Version, response::Parts};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, ResolveServerName};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};
use super::tls::{Tls, TlsError, without_trust};

/// The most bytes of status line and headers; hyper accepts no smaller limit.
const HEAD_BYTES: usize = 16 * 1024;

/// Makes connections, with TLS or without.
pub(crate) type Connector = HttpsConnector<HttpConnector>;

/// Returns the connector for one server. With `tls`, it makes only connections with TLS. `to_connect` is the longest
/// time for the TCP connection.
pub(crate) fn connector(
    tls: Option<&Tls>,
    version: Version,
    to_connect: Option<Duration>,
) -> Result<Connector, TlsError> {
    let mut tcp = HttpConnector::new();
    // The outer connector checks the scheme.
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(to_connect);
    let mut config = tls.map_or_else(without_trust, |tls| Ok(tls.config().clone()))?;
    if version == Version::HTTP_2 {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    let names: Arc<dyn ResolveServerName + Send + Sync> = match tls.and_then(Tls::server_name) {
        Some(name) => Arc::new(FixedServerNameResolver::new(name.clone())),
        None => Arc::new(DefaultServerNameResolver::default()),
    };
    Ok(HttpsConnector::new(tcp, config, tls.is_some(), names))
}

/// The connections to one server, kept open between requests.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    connections: legacy::Client<Connector, Full<Bytes>>,
    most_bytes: usize,
}

/// The head and the body of an answer.
pub(crate) type Answer = (Parts, Result<Bytes, BadBody>);

/// The reasons why the body of an answer was not read, although its head was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadBody {
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    #[error("the answer breaks off")]
    Broken,
}

impl Client {
    /// Makes a client that reads at most `most_bytes` of the body of an answer. The first request opens the connection.
    pub(crate) fn new(connector: Connector, most_bytes: usize) -> Self {
        let connections = legacy::Client::builder(TokioExecutor::new()).http1_max_buf_size(HEAD_BYTES).build(connector);
        Self { connections, most_bytes }
    }

    /// Sends a request, with no limit on the time.
    pub(crate) async fn send(&self, request: Request<Bytes>) -> Result<Answer, legacy::Error> {
        let (head, body) = self.connections.request(request.map(Full::new)).await?.into_parts();
        let body = match Limited::new(body, self.most_bytes).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(BadBody::TooLarge(self.most_bytes)),
            Err(_) => Err(BadBody::Broken),
        };
        Ok((head, body))
    }
}
