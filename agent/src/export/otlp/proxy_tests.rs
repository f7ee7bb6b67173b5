//! Receivers behind a proxy. No DNS knows the receiver's name, so only the proxy can reach it.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use tokio::net::TcpStream;

use super::{super::link::Link, *};

const RECEIVER: &str = "otlp.vendor.invalid";

fn behind(endpoint: String) -> Settings {
    Settings { timeout: Duration::from_secs(10), ..settings(endpoint, Compression::None) }
}

fn through(settings: &Settings, proxy: &str) -> Sender {
    let variable = |name: &str| ["HTTPS_PROXY", "http_proxy"].contains(&name).then(|| proxy.to_owned());
    Sender::over(Link::with_variables(settings, variable).unwrap(), settings).unwrap()
}

/// Answers the first request of each connection, and then connects it to the receiver, if there is one.
async fn serve_proxy(answer: &'static str, receiver: Option<SocketAddr>) -> (SocketAddr, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let log = Log::default();
    let asked = Arc::clone(&log);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut bytes = Vec::new();
            while !bytes.ends_with(b"\r\n\r\n") && client.read_buf(&mut bytes).await.unwrap_or(0) > 0 {}
            let head = String::from_utf8_lossy(&bytes).into_owned();
            asked.lock().unwrap().push(Seen { head, body: Vec::new() });
            client.write_all(answer.as_bytes()).await.unwrap();
            if let Some(receiver) = receiver {
                let mut server = TcpStream::connect(receiver).await.unwrap();
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
            }
        }
    });
    (address, log)
}

#[tokio::test]
async fn a_receiver_with_tls_is_reached_through_a_tunnel() {
    let authority = Authority::new();
    let (receiver, log) = serve(Some(authority.server(RECEIVER, None)), |_| OK.into()).await;
    let (proxy, asked) = serve_proxy("HTTP/1.1 200 Connection established\r\n\r\n", Some(receiver)).await;
    let tls = TlsSettings { ca_file: Some(authority.path("ca.crt")), ..TlsSettings::default() };
    let settings = Settings { tls, ..behind(format!("https://{RECEIVER}")) };
    send(&mut through(&settings, &format!("http://shop:p%40ss@{proxy}"))).await.unwrap();
    let asked = seen(&asked).remove(0).head;
    let login = format!("Proxy-Authorization: Basic {}\r\n", BASE64_STANDARD.encode("shop:p@ss"));
    assert!(asked.starts_with("CONNECT otlp.vendor.invalid:443 HTTP/1.1\r\n") && asked.contains(&login), "{asked}");
    let request = seen(&log).remove(0).head;
    assert!(request.starts_with("POST /v1development/profiles HTTP/1.1\r\n"), "{request}");
    assert!(!request.contains("authorization"), "{request}");
}

#[tokio::test]
async fn requests_without_tls_are_forwarded() {
    let (proxy, log) = serve(None, |_| OK.into()).await;
    let settings = behind(format!("http://{RECEIVER}:4318/base"));
    send(&mut through(&settings, &format!("shop:secret@{proxy}"))).await.unwrap();
    let head = seen(&log).remove(0).head;
    let url = "http://otlp.vendor.invalid:4318/base/v1development/profiles";
    assert!(head.starts_with(&format!("POST {url} HTTP/1.1\r\n")), "{head}");
    let login = format!("proxy-authorization: Basic {}", BASE64_STANDARD.encode("shop:secret"));
    assert!(head.contains("host: otlp.vendor.invalid:4318") && head.contains(&login), "{head}");
}

#[tokio::test]
async fn a_proxy_that_does_not_connect_is_named() {
    let settings = Settings { protocol: Protocol::Grpc, ..behind(format!("http://{RECEIVER}")) };
    for (answer, words) in [
        ("HTTP/1.1 403 Forbidden\r\n\r\n", "unsuccessful (let the proxy connect to the receiver, or list"),
        ("HTTP/1.1 407 Who?\r\n\r\n", "proxy authorization required (write the proxy's address with a user"),
    ] {
        let (proxy, asked) = serve_proxy(answer, None).await;
        let failure = send(&mut through(&settings, &proxy.to_string())).await.unwrap_err();
        assert!(failure.text.starts_with(&format!("through proxy `{proxy}` of `http_proxy`: ")), "{failure:?}");
        assert!(failure.text.contains(words) && failure.cause == Cause::Unavailable, "{failure:?}");
        let asked = seen(&asked).remove(0).head;
        assert!(asked.starts_with("CONNECT otlp.vendor.invalid:80 HTTP/1.1\r\n"), "{asked}");
    }
}
