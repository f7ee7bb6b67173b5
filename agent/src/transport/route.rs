//! TCP connections to a server, through its proxy if it has one.

use std::{
    error::Error,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use http::{Uri, uri::Scheme};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector, proxy::Tunnel},
    rt::TokioIo,
};
use tokio::net::TcpStream;
use tower_service::Service;

use super::proxy::Proxy;

type BoxError = Box<dyn Error + Send + Sync>;

/// The way to a server.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    Direct(HttpConnector),
    /// To a proxy that gets the requests and sends them on.
    Forwarded(HttpConnector, Uri),
    /// To a proxy that connects to the server and sends bytes on.
    Tunneled(Tunnel<HttpConnector>),
}

impl Route {
    /// A proxy that `forwards` reads the requests, so they are HTTP/1.1 without TLS.
    pub(super) fn new(tcp: HttpConnector, proxy: Option<&Proxy>, forwards: bool) -> Self {
        match proxy {
            None => Self::Direct(tcp),
            Some(proxy) if forwards => Self::Forwarded(tcp, proxy.address().clone()),
            Some(proxy) => {
                let tunnel = Tunnel::new(proxy.address().clone(), tcp);
                Self::Tunneled(match proxy.login() {
                    Some(login) => tunnel.with_auth(login.clone()),
                    None => tunnel,
                })
            }
        }
    }
}

impl Service<Uri> for Route {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(tcp) | Self::Forwarded(tcp, _) => tcp.poll_ready(cx).map_err(BoxError::from),
            Self::Tunneled(tunnel) => tunnel.poll_ready(cx).map_err(BoxError::from),
        }
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        match self {
            Self::Direct(tcp) => Box::pin(stream(tcp.call(server), false)),
            Self::Forwarded(tcp, proxy) => Box::pin(stream(tcp.call(proxy.clone()), true)),
            Self::Tunneled(tunnel) => {
                let server = with_port(&server).unwrap_or(server);
                Box::pin(stream(tunnel.call(server), false))
            }
        }
    }
}

async fn stream<E: Into<BoxError>>(
    connecting: impl Future<Output = Result<TokioIo<TcpStream>, E>>,
    is_forwarded: bool,
) -> Result<Stream, BoxError> {
    let tcp = connecting.await.map_err(Into::into)?;
    Ok(Stream { tcp, is_forwarded })
}

/// Returns the address with the port of `http` if it has none: a tunnel would lead to that of `https`.
fn with_port(server: &Uri) -> Option<Uri> {
    if server.port().is_some() || server.scheme() != Some(&Scheme::HTTP) {
        return None;
    }
    let authority = format!("{}:80", server.authority()?);
    Uri::builder().scheme(Scheme::HTTP).authority(authority).path_and_query("/").build().ok()
}

/// A connection that knows whether a proxy reads the requests, which then name the server.
#[derive(Debug)]
pub(crate) struct Stream {
    tcp: TokioIo<TcpStream>,
    is_forwarded: bool,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.tcp.connected().proxy(self.is_forwarded)
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<Result<(), io::Error>> {
        Pin::new(&mut self.tcp).poll_read(cx, buffer)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, io::Error>> {
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize, io::Error>> {
        Pin::new(&mut self.tcp).poll_write_vectored(cx, slices)
    }
}
