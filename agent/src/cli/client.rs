//! Requests to an agent. Each request has its own connection.

use std::{io, path::PathBuf, time::Duration};

use clap::Args;
use hyper::{
    Method, Request, StatusCode, Uri, Version,
    body::Bytes,
    header::{AUTHORIZATION, CONNECTION, HeaderValue},
    http::response::Parts,
};
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::{net::TcpStream, time::timeout};

use super::overrides;
use crate::transport::{
    http::{self, Connector, NoAnswer, connector},
    tls::{Tls, TlsError, TlsSources},
};

/// The longest time to connect, TLS included.
const CONNECT: Duration = Duration::from_secs(2);
/// The maximum size of an answer, in bytes. An agent never has this much memory.
const ANSWER_BYTES: usize = 1 << 30;

/// The reasons why a request has no answer.
#[derive(Debug, Error)]
pub(super) enum ClientError {
    #[error(transparent)]
    Connect(#[from] io::Error),
    #[error(transparent)]
    Answer(#[from] NoAnswer),
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("bad server name `{0}` (a host name or an address)")]
    ServerName(String),
    #[error("failed to read token `{}`: {source} (set `--token-file FILE`)", path.display())]
    Token { path: PathBuf, source: io::Error },
    #[error("failed to use token `{}`: it is not one line of text", .0.display())]
    BadToken(PathBuf),
    #[error("a token would be sent in clear text (name the agent by `https://`)")]
    ClearText,
}

impl ClientError {
    /// Returns whether probably no agent listens at the address.
    pub(super) fn is_nobody(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Answer(answer) => !answer.is_of_tls(),
            _ => false,
        }
    }
}

/// Credentials for agents that do not answer everyone.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Login {
    /// The authorities of the agents' certificates, in PEM [default: the system's authorities].
    #[arg(long, value_name = "FILE", help_heading = overrides::CONNECTION)]
    ca_file: Option<PathBuf>,
    /// The name in the agents' certificates [default: the URL's host].
    #[arg(long, value_name = "NAME", help_heading = overrides::CONNECTION)]
    server_name: Option<String>,
    /// A bearer token for agents that ask for one; it is read again for each request.
    #[arg(long, value_name = "FILE", help_heading = overrides::CONNECTION)]
    token_file: Option<PathBuf>,
}

/// An agent's address.
#[derive(Clone, Debug)]
pub(super) struct Client {
    /// The host and port to connect to.
    authority: String,
    /// The name that the server's certificate must have; `None` without TLS.
    tls: Option<String>,
    login: Login,
}

/// A URL that no agent can have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("bad agent `{0}` (such as `http://127.0.0.1:9799` or `https://node-1:9799`)")]
pub(super) struct BadUrl(String);

impl Client {
    /// Parses `http://HOST:PORT`, `https://HOST:PORT`, or `HOST:PORT`.
    pub(super) fn new(url: &str) -> Result<Self, BadUrl> {
        let bad = || BadUrl(url.to_owned());
        let whole = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let Ok(uri) = whole.parse::<Uri>() else { return Err(bad()) };
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad()),
        };
        let authority = uri.authority().filter(|authority| authority.port_u16().is_some());
        let authority = authority.filter(|_| matches!(uri.path(), "" | "/")).ok_or_else(bad)?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        Ok(Self { authority: authority.to_string(), tls: is_tls.then_some(host), login: Login::default() })
    }

    /// Returns the same client with the options of a login.
    pub(super) fn with(&self, login: &Login) -> Self {
        Self { login: login.clone(), ..self.clone() }
    }

    pub(super) fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.authority)
    }

    /// Returns one client for each address that the host's name has now. Certificates must still have the host's name.
    pub(super) async fn each_address(&self) -> std::io::Result<Vec<Self>> {
        let mut addresses: Vec<_> = tokio::net::lookup_host(&self.authority).await?.collect();
        addresses.sort_unstable();
        addresses.dedup();
        Ok(addresses.into_iter().map(|address| Self { authority: address.to_string(), ..self.clone() }).collect())
    }

    /// Sends a request, and returns the status and the body of the answer.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let (head, body) = self.ask_for_all(method, path, patience).await?;
        Ok((head.status, body))
    }

    /// Does what [`Self::ask`] does, and returns the whole head of the answer.
    pub(super) async fn ask_for_all(
        &self,
        method: Method,
        path: &str,
        patience: Duration,
    ) -> Result<(Parts, Bytes), ClientError> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url()));
        if let Some(token) = self.token()? {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.header(CONNECTION, "close").body(Bytes::new())?;
        let connector = match self.connector() {
            Ok(connector) => connector,
            // Bad files matter only if a server listens: without one, `record` records alone.
            Err(error) => {
                let connect = timeout(CONNECT, TcpStream::connect(&self.authority)).await;
                return Err(connect.ok().ok_or(NoAnswer::Slow(CONNECT))?.map_or_else(Into::into, |_| error));
            }
        };
        Ok(http::Client::new(connector, ANSWER_BYTES).ask(request, CONNECT, patience).await?)
    }

    fn connector(&self) -> Result<Connector, ClientError> {
        let Some(host) = &self.tls else { return Ok(connector(None, Version::HTTP_11, None)?) };
        let name = self.login.server_name.as_ref().unwrap_or(host);
        let Ok(server_name) = ServerName::try_from(name.clone()) else {
            return Err(ClientError::ServerName(name.clone()));
        };
        let tls = Tls::new(TlsSources {
            ca: self.login.ca_file.clone().map(|path| ("--ca-file", path)),
            server_name: Some(server_name),
            without_roots: "set `--ca-file FILE`",
            ..TlsSources::default()
        })?;
        Ok(connector(Some(&tls), Version::HTTP_11, None)?)
    }

    fn token(&self) -> Result<Option<HeaderValue>, ClientError> {
        let Some(path) = &self.login.token_file else { return Ok(None) };
        if self.tls.is_none() {
            return Err(ClientError::ClearText);
        }
        let token = std::fs::read_to_string(path);
        let token = token.map_err(|source| ClientError::Token { path: path.clone(), source })?;
        let Ok(mut value) = HeaderValue::try_from(format!("Bearer {}", token.trim())) else {
            return Err(ClientError::BadToken(path.clone()));
        };
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// Returns the message of an agent that refuses the request; `None` for any other answer.
pub(super) fn refusal(status: StatusCode, body: &[u8]) -> Option<String> {
    let refused = matches!(
        status,
        StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
    );
    let text = String::from_utf8_lossy(body);
    let says = text.lines().next()?.strip_prefix("podperf: ").filter(|_| refused)?;
    let hint = if status == StatusCode::UNAUTHORIZED { " (set `--token-file FILE`)" } else { "" };
    Some(format!("the agent answers {}: {says}{hint}", status.as_u16()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_a_host_and_a_port() {
        for (url, expected) in [
            ("http://127.0.0.1:9799", ("127.0.0.1:9799", None)),
            ("node-1:80/", ("node-1:80", None)),
            ("https://node-1:9799", ("node-1:9799", Some("node-1"))),
            ("https://[::1]:9799", ("[::1]:9799", Some("::1"))),
        ] {
            let client = Client::new(url).unwrap();
            assert_eq!((client.authority.as_str(), client.tls.as_deref()), expected);
        }
        for url in ["", "http://node-1", "ftp://node-1:9799", "http://node-1:9799/x", "a b:1"] {
            assert!(Client::new(url).unwrap_err().to_string().contains("http://127.0.0.1:9799"), "{url}");
        }
    }

    #[test]
    fn a_token_goes_over_tls_only() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret\n").unwrap();
        let login = Login { token_file: Some(file.path().to_owned()), ..Login::default() };
        let client = |url| Client::new(url).unwrap().with(&login);
        assert!(matches!(client("http://127.0.0.1:1").token(), Err(ClientError::ClearText)));
        let token = client("https://127.0.0.1:1").token().unwrap().unwrap();
        assert_eq!((token.to_str().unwrap(), format!("{token:?}").contains("secret")), ("Bearer secret", false));
    }

    #[test]
    fn a_refusal_is_told_from_another_programs_answer() {
        let says = refusal(StatusCode::UNAUTHORIZED, b"podperf: a token is needed\n").unwrap();
        assert_eq!(says, "the agent answers 401: a token is needed (set `--token-file FILE`)");
        assert_eq!(refusal(StatusCode::OK, b"podperf: x"), None);
        assert_eq!(refusal(StatusCode::FORBIDDEN, b"<html>"), None);
    }
}
