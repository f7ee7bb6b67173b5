//! Requests to any HTTP server on loopback. HTTP/1.0, so that a body is never in chunks.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result};

const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// The status code, the headers and the body.
pub fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Result<(u16, String, Vec<u8>)> {
    ask(address, &format!("GET {path}"), headers, "")
}

/// `POST` of JSON: the status code and the body, which is text.
pub fn post_json(address: SocketAddr, path: &str, json: &str) -> Result<(u16, String)> {
    let length = json.len().to_string();
    let headers = [("Content-Type", "application/json"), ("Content-Length", &length)];
    let (status, _, body) = ask(address, &format!("POST {path}"), &headers, json)?;
    Ok((status, String::from_utf8(body)?))
}

fn ask(address: SocketAddr, request: &str, headers: &[(&str, &str)], content: &str) -> Result<(u16, String, Vec<u8>)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
    write!(stream, "{request} HTTP/1.0\r\nHost: {address}\r\n")?;
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    write!(stream, "\r\n{content}")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").context("no end of the headers")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
    Ok((status, head, answer.split_off(end + 4)))
}

/// The status code and the body, which is text.
pub fn get_text(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let (status, _, body) = get(address, path, &[])?;
    Ok((status, String::from_utf8(body)?))
}

/// A loopback address whose port is free at this moment.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?)
}
