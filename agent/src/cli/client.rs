//! Requests to an agent, one connection each.

use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::{
    Method, Request, StatusCode, Uri,
    body::Bytes,
    header::{CONNECTION, HOST},
};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::{net::TcpStream, time::timeout};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(2);

/// Why there is no answer.
#[derive(Debug, Error)]
pub(super) enum ClientError {
    #[error("no connection within {} s", CONNECT.as_secs())]
    Slow,
    #[error("no answer in time")]
    NoAnswer,
    #[error(transparent)]
    Connect(#[from] std::io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
}

/// An agent's address.
#[derive(Clone, Debug)]
pub(super) struct Client {
    authority: String,
}

/// A URL that no agent can have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("bad agent `{0}` (such as `http://127.0.0.1:9799`)")]
pub(super) struct BadUrl(String);

impl Client {
    /// Of `http://HOST:PORT`, or `HOST:PORT`.
    pub(super) fn new(url: &str) -> Result<Self, BadUrl> {
        let bad = || BadUrl(url.to_owned());
        let whole = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let Ok(uri) = whole.parse::<Uri>() else { return Err(bad()) };
        let plain = uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/");
        let authority = uri.authority().filter(|authority| plain && authority.port_u16().is_some());
        Ok(Self { authority: authority.ok_or_else(bad)?.to_string() })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.authority)
    }

    /// One for each address that the host's name has now.
    pub(super) async fn each_address(&self) -> std::io::Result<Vec<Self>> {
        let mut addresses: Vec<_> = tokio::net::lookup_host(&self.authority).await?.collect();
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses.into_iter().map(|address| Self { authority: address.to_string() }).collect())
    }

    /// The status and the body of an answer.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let Ok(connected) = timeout(CONNECT, TcpStream::connect(&self.authority)).await else {
            return Err(ClientError::Slow);
        };
        let stream = connected?;
        let exchange = async {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            let request = Request::builder().method(method).uri(path).header(HOST, &self.authority);
            let request = request.header(CONNECTION, "close").body(Empty::<Bytes>::new())?;
            let answer = async {
                let answer = sender.send_request(request).await?;
                let status = answer.status();
                Ok::<_, hyper::Error>((status, answer.into_body().collect().await?.to_bytes()))
            };
            tokio::pin!(answer, connection);
            // The connection may end before the answer has been handed over, but not the other way round.
            let mut open = true;
            loop {
                tokio::select! {
                    answer = &mut answer => return Ok::<_, ClientError>(answer?),
                    ended = &mut connection, if open => { ended?; open = false; }
                }
            }
        };
        timeout(patience, exchange).await.unwrap_or(Err(ClientError::NoAnswer))
    }
}

/// `podperf VERSION on node NAME`, the first line of an agent's `/status`; of other programs nothing.
pub(super) fn introduction(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    text.lines().next().filter(|line| line.starts_with("podperf ")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_a_host_and_a_port() {
        for (url, expected) in [("http://127.0.0.1:9799", "127.0.0.1:9799"), ("node-1:80/", "node-1:80")] {
            assert_eq!(Client::new(url).unwrap().authority, expected);
        }
        for url in ["", "http://node-1", "https://node-1:9799", "http://node-1:9799/x", "a b:1"] {
            assert!(Client::new(url).unwrap_err().to_string().contains("http://127.0.0.1:9799"), "{url}");
        }
    }
}
