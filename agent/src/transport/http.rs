//! An HTTP/1.1 client with limits on the time and the size of an answer, and the connector that it shares with gRPC. It
//! follows no redirect, and uses only the proxy that it is given.

use std::{error::Error, io, iter::successors, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response, Version, response::Parts};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::{DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, ResolveServerName};
use hyper_util::{
    client::legacy::{
        self,
        connect::{HttpConnector, capture_connection},
    },
    rt::TokioExecutor,
};
use tokio::time::timeout;

use super::{
    allowance::Allowance,
    proxy::Proxy,
    route::Route,
    tls::{Tls, TlsError, without_trust},
};

/// The most bytes of status line and headers; hyper accepts no smaller limit.
const HEAD_BYTES: usize = 16 * 1024;

/// Makes connections, with TLS or without.
pub(crate) type Connector = HttpsConnector<Route>;

/// Returns the connector for one server. With `tls`, it makes only connections with TLS. `to_connect` is the longest
/// time for the TCP connection.
pub(crate) fn connector(
    tls: Option<&Tls>,
    version: Version,
    to_connect: Option<Duration>,
) -> Result<Connector, TlsError> {
    connector_through(None, tls, version, to_connect, None)
}

/// Returns the same connector for a server that may be behind a proxy, and may send as much as `allowance`.
pub(crate) fn connector_through(
    proxy: Option<&Proxy>,
    tls: Option<&Tls>,
    version: Version,
    to_connect: Option<Duration>,
    allowance: Option<Allowance>,
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
    let route = Route::new(tcp, proxy, tls.is_none() && version == Version::HTTP_11, allowance);
    Ok(HttpsConnector::new(route, config, tls.is_some(), names))
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

/// The reasons why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error("no connection within {} s", .0.as_secs())]
    Slow(Duration),
    #[error("no answer in time")]
    Silence,
    /// The innermost error names the cause; the outer ones are the client's layers.
    #[error("{}", causes(.0).last().unwrap_or(.0))]
    Failed(legacy::Error),
    #[error(transparent)]
    Body(#[from] BadBody),
}

impl NoAnswer {
    /// Returns whether TLS failed, for example because of an unexpected certificate. Then a server listens there.
    pub(crate) fn is_of_tls(&self) -> bool {
        matches!(self, Self::Failed(error) if causes(error).any(<dyn Error>::is::<rustls::Error>))
    }
}

/// Returns the error with its causes, the outermost first.
pub(crate) fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| match error.downcast_ref().and_then(io::Error::get_ref) {
        // `io::Error::source` skips the error that it wraps.
        Some(inner) => Some(inner),
        None => error.source(),
    })
}

impl Client {
    /// Makes a client that reads at most `most_bytes` of the body of an answer. The first request opens the connection.
    pub(crate) fn new(connector: Connector, most_bytes: usize) -> Self {
        let connections = legacy::Client::builder(TokioExecutor::new()).http1_max_buf_size(HEAD_BYTES).build(connector);
        Self { connections, most_bytes }
    }

    /// Sends a request, and returns the answer before its body is read, with no limit on the time and the size.
    pub(crate) async fn begin(&self, request: Request<Bytes>) -> Result<Response<Incoming>, legacy::Error> {
        self.connections.request(request.map(Full::new)).await
    }

    /// Sends a request, with no limit on the time.
    pub(crate) async fn send(&self, request: Request<Bytes>) -> Result<Answer, legacy::Error> {
        let (head, body) = self.begin(request).await?.into_parts();
        let body = match Limited::new(body, self.most_bytes).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(BadBody::TooLarge(self.most_bytes)),
            Err(_) => Err(BadBody::Broken),
        };
        Ok((head, body))
    }

    /// Sends a request, and returns the head and the body of the answer. `to_connect` is the longest time to connect, TLS
    /// included, and `patience` is the longest time for the answer after that.
    pub(crate) async fn ask(
        &self,
        mut request: Request<Bytes>,
        to_connect: Duration,
        patience: Duration,
    ) -> Result<(Parts, Bytes), NoAnswer> {
        let mut connection = capture_connection(&mut request);
        let connected = timeout(to_connect, async { drop(connection.wait_for_connection_metadata().await) });
        let mut answer = pin!(self.send(request));
        let answer = tokio::select! {
            answer = &mut answer => Ok(answer),
            connected = connected => match connected {
                Ok(()) => timeout(patience, answer).await,
                Err(_) => return Err(NoAnswer::Slow(to_connect)),
            },
        };
        let Ok(answer) = answer else { return Err(NoAnswer::Silence) };
        let (head, body) = answer.map_err(NoAnswer::Failed)?;
        Ok((head, body?))
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::{super::tls::TlsSources, *};

    /// Asks a server that reads a request and sends these bytes. The connection stays open.
    async fn ask(tls: Option<&Tls>, answer: &str) -> Result<(StatusCode, Bytes), NoAnswer> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let request = Request::get(format!("{scheme}://{}/", listener.local_addr().unwrap()));
        let client = Client::new(connector(tls, Version::HTTP_11, None).unwrap(), 8);
        let limit = Duration::from_secs(1);
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_buf(&mut Vec::new()).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            answer = client.ask(request.body(Bytes::new()).unwrap(), limit, limit) => answer.map(|(head, body)| (head.status, body)),
            () = server => unreachable!(),
        }
    }

    fn any_certificate() -> Tls {
        Tls::new(TlsSources { insecure_skip_verify: true, ..TlsSources::default() }).unwrap()
    }

    #[tokio::test]
    async fn an_answer_is_bounded_in_time_and_size() {
        let answer = ask(None, "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno").await.unwrap();
        assert_eq!(answer, (StatusCode::NOT_FOUND, Bytes::from("no")));
        let large = ask(None, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789").await.unwrap_err();
        assert_eq!(large.to_string(), "the answer has more than 8 bytes");
        let half = ask(None, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n1").await.unwrap_err();
        assert_eq!(half.to_string(), "no answer in time");
        let head = ask(None, &format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(HEAD_BYTES))).await.unwrap_err();
        assert!(matches!(head, NoAnswer::Failed(_)), "{head}");
    }

    #[tokio::test]
    async fn the_time_to_connect_includes_tls() {
        let slow = ask(Some(&any_certificate()), "").await.unwrap_err();
        assert_eq!((slow.to_string().as_str(), slow.is_of_tls()), ("no connection within 1 s", false));
    }

    #[tokio::test]
    async fn a_server_with_unexpected_tls_differs_from_no_server() {
        let plain = ask(Some(&any_certificate()), "HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap_err();
        assert!(plain.is_of_tls() && plain.to_string().starts_with("received corrupt message"), "{plain}");
        let client = Client::new(connector(None, Version::HTTP_11, None).unwrap(), 8);
        let request = Request::get("http://127.0.0.1:1/").body(Bytes::new()).unwrap();
        let nobody = client.ask(request, Duration::from_secs(1), Duration::from_secs(1)).await.unwrap_err();
        assert!(!nobody.is_of_tls() && nobody.to_string().starts_with("Connection refused"), "{nobody}");
    }
}
