//! Asks debuginfod servers for debug files: `GET URL/buildid/ID/debuginfo`
//! (<https://sourceware.org/elfutils/Debuginfod.html>).
//!
//! The servers are asked one after the other. A server that does not answer rests for a time that grows. No redirect is
//! followed: a server must not choose the address that the agent asks. All of an answer but its status is a stranger's.
//! Messages have the server without the path of its address, because the path may be a password.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{
    HeaderValue, Request, StatusCode, Uri, Version,
    header::{PROXY_AUTHORIZATION, USER_AGENT},
    uri::Authority,
};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::time::timeout;

use super::cache::Partial;
use crate::transport::{
    backoff::Backoff,
    http::{Client, NoAnswer, connector_through},
    proxy::Proxy,
    tls::{Tls, TlsSources},
};

/// The longest time for a TCP connection.
const TO_CONNECT: Duration = Duration::from_secs(10);
/// The longest time for the head of an answer. A server may first have to unpack a package.
const TO_ANSWER: Duration = Duration::from_secs(90);
/// The longest time for the body of an answer.
const TO_SEND: Duration = Duration::from_secs(300);
/// The shortest and the longest rest of a server that does not answer.
const FIRST_REST: Duration = Duration::from_secs(15);
const LONGEST_REST: Duration = Duration::from_secs(1800);
/// The client reads the body itself, in pieces.
const NO_BODY: usize = 0;
/// The first bytes of each debug file. The page of a captive portal has others.
const MAGIC: &[u8] = b"\x7fELF";
const AGENT: &str = concat!("podperf/", env!("CARGO_PKG_VERSION"));

/// The reasons why a text is no address of a server. The messages do not repeat it, because it may contain a password.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// It is no URL with a scheme of HTTP and a host.
    #[error("an address needs `http://` or `https://`, and a host (write it as in `https://debuginfod.example.net`)")]
    Syntax,
    /// It contains a user name or a query.
    #[error("an address has a user name or a query in it (write it as in `https://debuginfod.example.net`)")]
    Secret,
}

/// Returns the address of a server, if the text is one.
///
/// # Errors
///
/// When the text has no scheme of `http` or `https`, no host, or more than a path behind the host.
pub fn parse(text: &str) -> Result<Uri, UrlError> {
    if text.contains(['@', '?', '#']) {
        return Err(UrlError::Secret);
    }
    let uri: Uri = text.parse().ok().ok_or(UrlError::Syntax)?;
    let is_port = |text: &str| text.parse::<u16>().is_ok_and(|port| port > 0);
    let is_server = uri.authority().is_some_and(|authority| {
        let port = &authority.as_str()[authority.host().len()..];
        !authority.host().is_empty() && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
    });
    let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
    if is_server && is_known { Ok(uri) } else { Err(UrlError::Syntax) }
}

/// The servers, in the configured order.
#[derive(Debug)]
pub(super) struct Servers(Vec<Server>);

#[derive(Debug)]
struct Server {
    /// The address without a slash at its end.
    address: String,
    /// The scheme, the host and the port, for messages.
    origin: String,
    client: Client,
    /// The login for a proxy that reads the requests.
    login: Option<HeaderValue>,
    backoff: Backoff,
    rests_until: Instant,
}

/// The result of asking the servers for a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The file was written.
    Found {
        /// Its size.
        bytes: u64,
        /// The server that sent it, for messages.
        server: String,
    },
    /// All servers answered, and none has the file.
    NotFound,
    /// The file is larger than the limit.
    TooLarge,
    /// A server did not answer as it should, or the file could not be written.
    Failed {
        /// The reason, with the server.
        reason: String,
        /// Set if no server has said anything about the file.
        is_open: bool,
    },
}

/// The answer of one server.
enum Answer {
    Found(u64),
    NotFound,
    TooLarge,
    /// The server answers, but has no whole debug file for this request.
    Refused(String),
    /// The server takes too long to answer.
    Slow(String),
    /// There is no answer, or the server asks for a pause.
    Silent(String),
    /// The file could not be written.
    Unwritten(std::io::Error),
}

impl Servers {
    /// Makes the clients. `variable` returns an environment variable by its name: they name the proxies. No connection
    /// is opened before the first request.
    pub(super) fn new(urls: &[String], variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Self> {
        urls.iter().map(|url| Server::new(url, &variable)).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Returns the time until the first server may be asked.
    pub(super) fn rest(&self, now: Instant) -> Duration {
        self.0.iter().map(|server| server.rests_until.saturating_duration_since(now)).min().unwrap_or_default()
    }

    /// Returns the servers, for messages.
    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|server| format!("`{}`", server.origin)).collect();
        names.join(", ")
    }

    /// Asks the servers that do not rest for a file of at most `max_bytes`, until one of them sends it.
    pub(super) async fn ask(&mut self, build_id: &str, file: &mut Partial, max_bytes: u64) -> Asked {
        let (mut problem, mut is_open) = (None, true);
        for server in &mut self.0 {
            let told = |text: String| Some(format!("`{}`: {text}", server.origin));
            if server.rests_until > Instant::now() {
                problem = problem.or_else(|| told("did not answer lately".into()));
                continue;
            }
            let answer = server.ask(build_id, file, max_bytes).await;
            match &answer {
                Answer::Slow(_) | Answer::Silent(_) => server.rests_until = Instant::now() + server.backoff.next(),
                _ => server.backoff.reset(),
            }
            match answer {
                Answer::Found(bytes) => return Asked::Found { bytes, server: server.origin.clone() },
                Answer::TooLarge => return Asked::TooLarge,
                Answer::Unwritten(error) => {
                    let reason = format!("failed to write a debug file: {error}");
                    return Asked::Failed { reason, is_open: false };
                }
                Answer::NotFound => is_open = false,
                Answer::Refused(text) | Answer::Slow(text) => (problem, is_open) = (told(text), false),
                Answer::Silent(text) => problem = told(text),
            }
        }
        problem.map_or(Asked::NotFound, |reason| Asked::Failed { reason, is_open })
    }
}

impl Server {
    fn new(url: &str, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Self> {
        let uri = parse(url)?;
        let sources = TlsSources { without_roots: "install them, or set SSL_CERT_FILE", ..TlsSources::default() };
        let tls = (uri.scheme_str() == Some("https")).then(|| Tls::new(sources)).transpose()?;
        let proxy = Proxy::of(&uri, variable)?;
        let authority = uri.authority().map(Authority::as_str).unwrap_or_default();
        let connector = connector_through(proxy.as_ref(), tls.as_ref(), Version::HTTP_11, Some(TO_CONNECT), None)?;
        Ok(Self {
            address: url.trim_end_matches('/').to_owned(),
            origin: format!("{}://{authority}", uri.scheme_str().unwrap_or_default()),
            client: Client::new(connector, NO_BODY),
            login: proxy.as_ref().filter(|_| tls.is_none()).and_then(Proxy::login).cloned(),
            backoff: Backoff::new(FIRST_REST, LONGEST_REST),
            rests_until: Instant::now(),
        })
    }

    async fn ask(&self, build_id: &str, file: &mut Partial, max_bytes: u64) -> Answer {
        if let Err(error) = file.empty() {
            return Answer::Unwritten(error);
        }
        let mut request = Request::get(format!("{}/buildid/{build_id}/debuginfo", self.address));
        request = request.header(USER_AGENT, AGENT);
        if let Some(login) = &self.login {
            request = request.header(PROXY_AUTHORIZATION, login.clone());
        }
        let request = match request.body(Bytes::new()) {
            Ok(request) => request,
            Err(error) => return Answer::Refused(error.to_string()),
        };
        let answer = match timeout(TO_ANSWER, self.client.begin(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Answer::Silent(NoAnswer::Failed(error).to_string()),
            Err(_) => return Answer::Slow(NoAnswer::Silence.to_string()),
        };
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::GONE => return Answer::NotFound,
            status @ (StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT) => return Answer::Silent(format!("it answers {status}")),
            status if status.is_redirection() => {
                return Answer::Refused(format!("it answers {status} (name the server that this leads to)"));
            }
            status => return Answer::Refused(format!("it answers {status}")),
        }
        let mut body = answer.into_body();
        if body.size_hint().lower() > max_bytes {
            return Answer::TooLarge;
        }
        let write = async {
            let (mut bytes, mut head) = (0, Vec::<u8>::with_capacity(MAGIC.len()));
            let no_file = || Answer::Refused("it sends something else than a debug file".into());
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else { return Answer::Refused("the answer breaks off".into()) };
                let Some(data) = frame.data_ref() else { continue };
                bytes += data.len() as u64;
                if let Err(error) = file.append(data) {
                    return Answer::Unwritten(error);
                }
                head.extend(data.iter().take(MAGIC.len() - head.len()));
                if !MAGIC.starts_with(&head) {
                    return no_file();
                }
                if bytes > max_bytes {
                    return Answer::TooLarge;
                }
            }
            if head == MAGIC { Answer::Found(bytes) } else { no_file() }
        };
        let written = timeout(TO_SEND, write).await;
        written.unwrap_or_else(|_| Answer::Refused(format!("no whole file within {} s", TO_SEND.as_secs())))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use super::*;
    use crate::stacks::debuginfod::cache::Cache;

    #[test]
    fn an_address_has_a_scheme_and_a_host_and_no_secret() {
        for good in ["https://debuginfod.example.net", "http://127.0.0.1:8002/", "https://[fd00::1]/debian/"] {
            assert_eq!(parse(good).unwrap().to_string().trim_end_matches('/'), good.trim_end_matches('/'));
        }
        for bad in ["", "debuginfod.example.net", "/x", "ftp://x", "http://", "http://a b", "http://x:0"] {
            assert!(matches!(parse(bad), Err(UrlError::Syntax)), "{bad}");
        }
        for secret in ["https://user:secret@x", "https://x/?key=secret"] {
            let error = parse(secret).unwrap_err();
            assert!(matches!(error, UrlError::Secret) && !error.to_string().contains("secret"), "{error}");
        }
    }

    /// Asks these servers for a file of at most 1000 bytes. Returns the result and the number of received bytes.
    fn ask(servers: &mut Servers) -> (Asked, u64) {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(&directory.path().join("cache"), 1 << 20).unwrap();
        let mut file = cache.begin("00").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let asked = runtime.block_on(servers.ask("00", &mut file, 1000));
        (asked, file.received())
    }

    /// Starts a server that sends these bytes to each client, and returns its address.
    fn server(answer: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, answer) = (listener.local_addr().unwrap(), answer.to_vec());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut request) = (stream.unwrap(), Vec::new());
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.extend(byte);
                }
                stream.write_all(&answer).ok();
            }
        });
        format!("http://{address}")
    }

    fn answer(headers: &str, body: &[u8]) -> Vec<u8> {
        [format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{headers}\r\n").as_bytes(), body].concat()
    }

    #[test]
    fn a_page_instead_of_a_file_is_refused_and_the_next_server_is_asked() {
        for page in [&b"<html>sign in"[..], b"\x7fEL", b""] {
            let urls = [server(&answer("", page)), server(&answer("", b"\x7fELF and more"))];
            let mut servers = Servers::new(&urls, |_| None).unwrap();
            let found = Asked::Found { bytes: 13, server: urls[1].clone() };
            assert_eq!(ask(&mut servers).0, found, "{page:?}");
            let mut servers = Servers::new(&urls[..1], |_| None).unwrap();
            let Asked::Failed { reason, is_open: false } = ask(&mut servers).0 else { panic!("{page:?}") };
            assert!(reason.ends_with("it sends something else than a debug file"), "{reason}");
        }
    }

    #[test]
    fn a_file_that_breaks_off_or_is_too_large_lets_no_server_rest_and_its_bytes_count() {
        let torn = answer("content-length: 900\r\n", b"\x7fELF and more");
        let mut servers = Servers::new(&[server(&torn)], |_| None).unwrap();
        let (asked, received) = ask(&mut servers);
        assert!(matches!(asked, Asked::Failed { is_open: false, .. }), "{asked:?}");
        assert_eq!((received, servers.rest(Instant::now())), (13, Duration::ZERO));
        let large = answer("", &[MAGIC, &[7; 2000]].concat());
        let mut servers = Servers::new(&[server(&large)], |_| None).unwrap();
        let (asked, received) = ask(&mut servers);
        assert!(asked == Asked::TooLarge && received > 1000, "{asked:?} and {received}");
        assert_eq!(servers.rest(Instant::now()), Duration::ZERO);
    }

    #[test]
    fn no_message_has_the_path_of_an_address() {
        let mut servers = Servers::new(&["http://127.0.0.1:1/secret".into()], |_| None).unwrap();
        let Asked::Failed { reason, .. } = ask(&mut servers).0 else { panic!() };
        assert!(reason.starts_with("`http://127.0.0.1:1`: ") && !reason.contains("secret"), "{reason}");
        assert_eq!(servers.names(), "`http://127.0.0.1:1`");
        let error = parse("htps://debuginfod.example.net/secret").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn a_server_without_an_answer_rests_longer_each_time() {
        let mut servers = Servers::new(&["http://127.0.0.1:1".into()], |_| None).unwrap();
        for least in [FIRST_REST, 2 * FIRST_REST, 4 * FIRST_REST] {
            let Asked::Failed { reason, is_open } = ask(&mut servers).0 else { panic!() };
            assert!(is_open && reason.starts_with("`http://127.0.0.1:1`: Connection refused"), "{reason}");
            let rest = servers.rest(Instant::now());
            assert!(rest > least - Duration::from_secs(1) && rest <= 2 * least, "{rest:?} and {least:?}");
            let Asked::Failed { reason, .. } = ask(&mut servers).0 else { panic!() };
            assert!(reason.ends_with("did not answer lately"), "{reason}");
            servers.0[0].rests_until = Instant::now();
        }
    }
}
