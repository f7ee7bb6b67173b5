//! Failures of receivers over HTTP and TLS, played by a server that sends the answers of a test.

use std::{
    fs,
    io::Read,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use opentelemetry_proto::tonic::{
    collector::profiles::v1development::{
        ExportProfilesPartialSuccess, ExportProfilesServiceRequest, ExportProfilesServiceResponse,
    },
    profiles::v1development::ResourceProfiles,
};
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    time::Instant,
};
use tokio_rustls::TlsAcceptor;

use super::{
    Cause, Compression, Preset, Protocol, Settings, Shape, TlsSettings,
    answer::Accepted,
    attempt::Signal,
    failure::{Failure, LINE_CHARS},
    sender::Sender,
};

const TIMEOUT: Duration = Duration::from_millis(400);
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// A request as it was received.
#[derive(Clone, Debug)]
struct Seen {
    head: String,
    body: Vec<u8>,
}

type Log = Arc<Mutex<Vec<Seen>>>;

/// Answers each request with the bytes that the test returns for its number. Connections are never closed.
async fn serve(
    tls: Option<ServerConfig>,
    answer: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static,
) -> (SocketAddr, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (log, answer) = (Log::default(), Arc::new(answer));
    let acceptor = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
    let seen = Arc::clone(&log);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, answer, seen) = (acceptor.clone(), Arc::clone(&answer), Arc::clone(&seen));
            tokio::spawn(async move {
                match acceptor {
                    // Some tests are about a handshake that fails.
                    Some(acceptor) => {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            play(stream, &*answer, &seen).await;
                        }
                    }
                    None => play(stream, &*answer, &seen).await,
                }
            });
        }
    });
    (address, log)
}

async fn play(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: &(dyn Fn(usize) -> Vec<u8> + Sync), log: &Log) {
    let mut bytes = Vec::new();
    loop {
        let seen = loop {
            if let Some(seen) = parse(&bytes) {
                break seen;
            }
            match stream.read_buf(&mut bytes).await {
                Ok(count) if count > 0 => {}
                _ => return,
            }
        };
        bytes.clear();
        let number = {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            log.push(seen);
            log.len() - 1
        };
        if stream.write_all(&answer(number)).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

fn parse(bytes: &[u8]) -> Option<Seen> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse::<usize>().ok()?;
    let body = bytes.get(end + 4..end + 4 + length)?.to_vec();
    Some(Seen { head, body })
}

fn seen(log: &Log) -> Vec<Seen> {
    log.lock().unwrap().clone()
}

fn answer(status: u16, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn settings(endpoint: String, compression: Compression) -> Settings {
    Settings {
        endpoint,
        protocol: Protocol::Http,
        path: "/v1development/profiles".to_owned(),
        compression,
        timeout: TIMEOUT,
        queue: 1,
        headers: vec![("x-tenant".to_owned(), "7".to_owned())],
        tls: TlsSettings::default(),
        shape: Shape { preset: Preset::Generic, sample_attributes: Vec::new(), resource: Vec::new() },
    }
}

fn plain(address: SocketAddr, compression: Compression) -> Sender {
    Sender::new(&settings(format!("http://{address}/base"), compression)).unwrap()
}

fn request() -> Signal {
    let resource = ResourceProfiles { schema_url: "x".repeat(1000), ..ResourceProfiles::default() };
    Signal::Profiles(ExportProfilesServiceRequest { resource_profiles: vec![resource], dictionary: None })
}

async fn send(sender: &mut Sender) -> Result<Accepted, Failure> {
    sender.send(&request()).await
}

#[tokio::test]
async fn a_receiver_that_sends_far_more_than_an_answer_is_cut_off_and_asked_again() {
    let (address, log) = serve(None, |request| match request {
        0 => ["HTTP/1.1 100 Continue\r\n\r\n".repeat(20_000).into_bytes(), OK.into()].concat(),
        _ => OK.into(),
    })
    .await;
    let mut sender = plain(address, Compression::None);
    let failure = send(&mut sender).await.unwrap_err();
    assert!(failure.retry.is_some() && failure.text.contains("far more than an answer"), "{failure:?}");
    for _ in 0..2 {
        assert_eq!(send(&mut sender).await.unwrap().message, "");
    }
    assert_eq!(seen(&log).len(), 3);
}

#[tokio::test]
async fn a_request_is_posted_to_its_path_with_its_headers_and_compressed_as_asked() {
    for compression in [Compression::Gzip, Compression::Zstd, Compression::None] {
        let (address, log) = serve(None, |_| OK.into()).await;
        assert_eq!(send(&mut plain(address, compression)).await.unwrap().message, "");
        let Seen { head, body } = seen(&log).remove(0);
        assert!(head.starts_with("POST /base/v1development/profiles HTTP/1.1\r\n"), "{head}");
        let version = "otlp-profiles-development-version: 1";
        for header in ["content-type: application/x-protobuf", "x-tenant: 7", "user-agent: podperf/", version] {
            assert!(head.contains(header), "no `{header}` in {head}");
        }
        let body = match compression {
            Compression::Gzip => {
                let mut plain = Vec::new();
                flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut plain).unwrap();
                plain
            }
            Compression::Zstd => zstd::decode_all(&body[..]).unwrap(),
            Compression::None => body,
        };
        assert_eq!(head.contains("content-encoding"), compression != Compression::None);
        let Signal::Profiles(sent) = request() else { panic!() };
        assert_eq!(ExportProfilesServiceRequest::decode(&body[..]).unwrap(), sent);
    }
}

#[tokio::test]
async fn a_receiver_that_reads_less_compression_gets_less_and_keeps_getting_that() {
    for status in [400, 415] {
        let (address, log) =
            serve(None, move |number| if number < 2 { answer(status, "", b"") } else { OK.into() }).await;
        let mut sender = plain(address, Compression::Zstd);
        send(&mut sender).await.unwrap();
        send(&mut sender).await.unwrap();
        let encodings: Vec<_> = seen(&log)
            .iter()
            .map(|seen| seen.head.lines().find_map(|line| line.strip_prefix("content-encoding: ")).map(str::to_owned))
            .collect();
        assert_eq!(encodings, [Some("zstd".to_owned()), Some("gzip".to_owned()), None, None]);
    }
}

#[tokio::test]
async fn a_request_that_is_refused_whatever_its_compression_leaves_that_as_it_was() {
    let (address, log) = serve(None, |_| answer(400, "content-type: text/plain\r\n", b"no dictionary")).await;
    let mut sender = plain(address, Compression::Gzip);
    let failure = send(&mut sender).await.unwrap_err();
    assert_eq!((failure.text.as_str(), failure.retry), ("HTTP 400: no dictionary", None));
    assert_eq!((sender.compression(), seen(&log).len()), (Compression::Gzip, 2));
}

#[tokio::test]
async fn what_a_receiver_refuses_is_told_with_its_wait_and_its_cause() {
    let (address, _) = serve(None, |number| match number {
        0 => answer(503, "retry-after: 7\r\n", b""),
        _ => answer(413, "", b""),
    })
    .await;
    let mut sender = plain(address, Compression::None);
    let busy = send(&mut sender).await.unwrap_err();
    assert_eq!((busy.cause, busy.retry), (Cause::Unavailable, Some(Duration::from_secs(7))));
    let large = send(&mut sender).await.unwrap_err();
    assert_eq!((large.cause, large.retry), (Cause::TooLarge, None));
}

#[tokio::test]
async fn profiles_that_were_rejected_out_of_a_request_are_counted() {
    let partial = ExportProfilesPartialSuccess { rejected_profiles: 3, error_message: "too old".to_owned() };
    let body = ExportProfilesServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    let (address, _) = serve(None, move |_| answer(200, "content-type: application/x-protobuf\r\n", &body)).await;
    let accepted = send(&mut plain(address, Compression::None)).await.unwrap();
    assert_eq!((accepted.rejected, accepted.message.as_str()), (3, "3 rejected: too old"));
}

#[tokio::test]
async fn of_an_answer_that_has_no_end_no_more_is_read_than_is_of_use() {
    let kind = "content-type: application/x-protobuf\r\n";
    let (address, _) = serve(None, move |_| answer(200, kind, &vec![b'x'; 1 << 20])).await;
    let accepted = send(&mut plain(address, Compression::None)).await.unwrap();
    assert_eq!((accepted.rejected, accepted.message.starts_with("accepted, but")), (0, true), "{accepted:?}");
    let (address, _) = serve(None, |_| format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(1 << 20)).into()).await;
    let failure = send(&mut plain(address, Compression::None)).await.unwrap_err();
    assert_eq!((failure.cause, failure.answered), (Cause::Unavailable, false), "{failure:?}");
}

#[tokio::test]
async fn a_connection_that_goes_silent_in_an_answer_is_given_up_and_the_next_is_another() {
    let (address, log) = serve(None, |number| match number {
        0 => b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal".to_vec(),
        1 => b"HTTP/1.1 200".to_vec(),
        _ => OK.into(),
    })
    .await;
    let mut sender = plain(address, Compression::None);
    for _ in 0..2 {
        let started = Instant::now();
        let failure = send(&mut sender).await.unwrap_err();
        assert_eq!((failure.cause, failure.text.as_str()), (Cause::Timeout, "no answer within 400ms"));
        assert!(started.elapsed() < TIMEOUT * 5);
    }
    send(&mut sender).await.unwrap();
    assert_eq!(seen(&log).len(), 3);
}

/// The first connection is accepted and never answers; later ones reach the receiver.
#[tokio::test]
async fn a_grpc_connection_that_goes_silent_is_given_up_and_the_next_is_another() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut silent, _) = listener.accept().await.unwrap();
        // An empty SETTINGS frame: the peer uses HTTP/2, but never answers.
        silent.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        let (mut second, _) = listener.accept().await.unwrap();
        second.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop((silent, second));
    });
    let settings = Settings { protocol: Protocol::Grpc, ..settings(format!("http://{address}"), Compression::None) };
    let mut sender = Sender::new(&settings).unwrap();
    assert_eq!(send(&mut sender).await.unwrap_err().cause, Cause::Timeout);
    let failure = send(&mut sender).await.unwrap_err();
    assert_eq!(failure.cause, Cause::Unavailable);
    assert!(failure.text.contains("(is it a receiver for HTTP?"), "{failure:?}");
}

#[tokio::test]
async fn a_receiver_for_grpc_is_told_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(stream);
    });
    let failure = send(&mut plain(address, Compression::None)).await.unwrap_err();
    assert!(failure.text.contains("(is it a receiver for gRPC?"), "{failure:?}");
}

/// A certificate authority with its files: `ca.crt`, and the files of [`Authority::write`].
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = TempDir::new().unwrap();
        fs::write(directory.path().join("ca.crt"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// Returns a certificate for `name`, and its key, both PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Replaces `tls.crt` and `tls.key` in a directory.
    fn write(&self, to: &Path) {
        let (certificate, key) = self.issue("podperf");
        fs::write(to.join("tls.crt"), certificate).unwrap();
        fs::write(to.join("tls.key"), key).unwrap();
    }

    /// Returns the configuration of a server for `name` that asks for certificates of `clients`.
    fn server(&self, name: &str, clients: Option<&Self>) -> ServerConfig {
        let (certificate, key) = self.issue(name);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(clients.issuer.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
            None => builder.with_no_client_auth(),
        };
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        builder.with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
    }
}

fn secure(address: SocketAddr, tls: TlsSettings) -> Sender {
    Sender::new(&Settings { tls, ..settings(format!("https://{address}"), Compression::None) }).unwrap()
}

#[tokio::test]
async fn a_receiver_is_believed_only_by_its_authority_and_name() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (address, _) = serve(Some(ours.server("collector.example", None)), |_| OK.into()).await;
    let by = |authority: &Authority| TlsSettings { ca_file: Some(authority.path("ca.crt")), ..TlsSettings::default() };
    let named = |tls: TlsSettings| TlsSettings { server_name: Some("collector.example".to_owned()), ..tls };

    send(&mut secure(address, named(by(&ours)))).await.unwrap();
    // Another authority of the same name, and a certificate that is not an authority.
    fs::write(ours.path("other.crt"), theirs.issue("other").0).unwrap();
    for ca_file in [theirs.path("ca.crt"), ours.path("other.crt")] {
        let tls = named(TlsSettings { ca_file: Some(ca_file), ..TlsSettings::default() });
        let stranger = send(&mut secure(address, tls)).await.unwrap_err();
        assert!(stranger.text.contains("(set `otlp.tls.caFile`"), "{stranger:?}");
    }
    let misnamed = send(&mut secure(address, by(&ours))).await.unwrap_err();
    assert!(misnamed.text.contains("(set `otlp.tls.serverName`"), "{misnamed:?}");
    assert_eq!((misnamed.cause, misnamed.retry), (Cause::Unavailable, Some(Duration::ZERO)));
    let anyone = TlsSettings { insecure_skip_verify: true, ..TlsSettings::default() };
    send(&mut secure(address, anyone)).await.unwrap();
}

#[tokio::test]
async fn a_receiver_without_tls_is_told_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(stream);
    });
    let anyone = TlsSettings { insecure_skip_verify: true, ..TlsSettings::default() };
    let failure = send(&mut secure(address, anyone)).await.unwrap_err();
    assert!(failure.text.contains("(write `http://` in `otlp.endpoint`"), "{failure:?}");
}

#[tokio::test]
async fn a_certificate_that_is_replaced_is_used_from_the_next_request_on() {
    let (server, old, new) = (Authority::new(), Authority::new(), Authority::new());
    let (address, log) = serve(Some(server.server("127.0.0.1", Some(&new))), |_| OK.into()).await;
    let files = TempDir::new().unwrap();
    old.write(files.path());
    let tls = TlsSettings {
        ca_file: Some(server.path("ca.crt")),
        cert_file: Some(files.path().join("tls.crt")),
        key_file: Some(files.path().join("tls.key")),
        ..TlsSettings::default()
    };
    let mut sender = secure(address, tls.clone());
    let failure = send(&mut sender).await.unwrap_err();
    assert_eq!((failure.cause, seen(&log).len()), (Cause::Unavailable, 0), "{failure:?}");

    fs::write(files.path().join("tls.key"), "half written").unwrap();
    assert!(send(&mut sender).await.is_err());
    assert!(sender.problem().unwrap().contains("`otlp.tls.keyFile`"));

    new.write(files.path());
    send(&mut sender).await.unwrap();
    assert_eq!((sender.problem(), seen(&log).len()), (None, 1));

    let nobody = send(&mut secure(address, TlsSettings { cert_file: None, key_file: None, ..tls })).await.unwrap_err();
    assert!(nobody.text.contains("(set `otlp.tls.certFile`"), "{nobody:?}");
}

#[path = "answer_tests.rs"]
mod answers;
#[path = "path_tests.rs"]
mod path;
#[path = "proxy_tests.rs"]
mod proxy;
