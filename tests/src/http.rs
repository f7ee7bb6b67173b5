//! Requests to any HTTP server on loopback, in HTTP/1.0, so that a body is never in chunks.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    ops::Range,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::deadline::Timed;

pub(crate) const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// A status code, headers and a body.
pub type Answer = (u16, String, Vec<u8>);

/// Sends `GET`, and returns the status code, the headers and the body.
pub fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Result<Answer> {
    ask(address, &format!("GET {path}"), headers, "")
}

/// Sends `GET` like [`get`], to a server that may take this long.
pub fn get_within(deadline: Duration, address: SocketAddr, path: &str) -> Result<Answer> {
    let mut stream = Timed::new(TcpStream::connect(address)?, deadline);
    exchange(&mut stream, address, &format!("GET {path}"), &[], "")
}

/// Sends `POST` with JSON, and returns the status code and the text of the body.
pub fn post_json(address: SocketAddr, path: &str, json: &str) -> Result<(u16, String)> {
    let length = json.len().to_string();
    let headers = [("Content-Type", "application/json"), ("Content-Length", &length)];
    let (status, _, body) = ask(address, &format!("POST {path}"), &headers, json)?;
    Ok((status, String::from_utf8(body)?))
}

/// Sends any request without TLS: `METHOD PATH`, more headers and content.
pub fn ask(address: SocketAddr, request: &str, headers: &[(&str, &str)], content: &str) -> Result<Answer> {
    let mut stream = Timed::new(TcpStream::connect(address)?, ANSWER_DEADLINE);
    exchange(&mut stream, address, request, headers, content)
}

/// Connects from this loopback address.
pub fn connect_from(source: IpAddr, address: SocketAddr) -> Result<Timed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let connected = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(source, 0))?;
        socket.connect(address).await?.into_std()
    });
    let stream = connected.with_context(|| format!("failed to connect from {source}"))?;
    stream.set_nonblocking(false)?;
    Ok(Timed::new(stream, ANSWER_DEADLINE))
}

/// Sends one of several `GET` requests on a connection that stays open.
pub fn get_again(stream: &mut (impl Read + Write), path: &str, headers: &[(&str, &str)]) -> Result<Answer> {
    let mut request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    stream.write_all((request + "\r\n").as_bytes())?;
    stream.flush()?;
    let (mut answer, mut bytes) = (Vec::new(), vec![0; 65_536]);
    loop {
        if let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&answer[..end]).into_owned();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.context("no length")?.trim().parse()?;
            while answer.len() < end + 4 + length {
                let read = stream.read(&mut bytes)?;
                anyhow::ensure!(read > 0, "it was closed within an answer");
                answer.extend_from_slice(&bytes[..read]);
            }
            let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
            return Ok((status, head, answer.split_off(end + 4)));
        }
        let read = stream.read(&mut bytes)?;
        anyhow::ensure!(read > 0, "it was closed");
        answer.extend_from_slice(&bytes[..read]);
    }
}

/// Writes a request, and reads until the peer has closed the connection.
pub(crate) fn exchange(
    stream: &mut (impl Read + Write),
    address: SocketAddr,
    request: &str,
    headers: &[(&str, &str)],
    content: &str,
) -> Result<Answer> {
    let mut head = format!("{request} HTTP/1.0\r\nHost: {address}\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n{content}").as_bytes())?;
    stream.flush()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").context("no end of the headers")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
    Ok((status, head, answer.split_off(end + 4)))
}

/// Sends `GET`, and returns the status code and the text of the body.
pub fn get_text(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let (status, _, body) = get(address, path, &[])?;
    Ok((status, String::from_utf8(body)?))
}

/// Returns a loopback address whose port is free at this moment, and which nobody else gets: it is below the ports that
/// the kernel hands out, and each test program begins at another place.
pub fn free_address() -> Result<SocketAddr> {
    const PORTS: Range<u32> = 10_000..32_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(256);
    for _ in PORTS {
        let number = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(PORTS.start + number % (PORTS.end - PORTS.start))?;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return Ok(listener.local_addr()?);
        }
    }
    bail!("no free port in {PORTS:?}")
}
