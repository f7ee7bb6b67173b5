//! TCP connections to a server, through its proxy if it has one.

use std::{
    error::Error,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use http::{Uri, uri::Scheme};
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector, proxy::Tunnel},
    rt::TokioIo,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tower_service::Service;

use super::{allowance::Allowance, proxy::Proxy};

type BoxError = Box<dyn Error + Send + Sync>;

/// The way to a server.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    way: Way,
    /// The limit on what the server may send; `None` for no limit.
    allowance: Option<Allowance>,
}

#[derive(Clone, Debug)]
enum Way {
    Direct(HttpConnector),
    /// To a proxy that gets the requests and sends them on.
    Forwarded(HttpConnector, Uri),
    /// To a proxy that connects to the server and sends bytes on.
    Tunneled(Tunnel<HttpConnector>),
}

impl Route {
    /// A proxy that `forwards` reads the requests, so they are HTTP/1.1 without TLS.
    pub(super) fn new(tcp: HttpConnector, proxy: Option<&Proxy>, forwards: bool, allowance: Option<Allowance>) -> Self {
        let way = match proxy {
            None => Way::Direct(tcp),
            Some(proxy) if forwards => Way::Forwarded(tcp, proxy.address().clone()),
            Some(proxy) => {
                let tunnel = Tunnel::new(proxy.address().clone(), tcp);
                Way::Tunneled(match proxy.login() {
                    Some(login) => tunnel.with_auth(login.clone()),
                    None => tunnel,
                })
            }
        };
        Self { way, allowance }
    }
}

impl Service<Uri> for Route {
    type Response = TokioIo<Stream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Stream>, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match &mut self.way {
            Way::Direct(tcp) | Way::Forwarded(tcp, _) => tcp.poll_ready(cx).map_err(BoxError::from),
            Way::Tunneled(tunnel) => tunnel.poll_ready(cx).map_err(BoxError::from),
        }
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let allowance = self.allowance.clone();
        match &mut self.way {
            Way::Direct(tcp) => Box::pin(stream(tcp.call(server), false, allowance)),
            Way::Forwarded(tcp, proxy) => Box::pin(stream(tcp.call(proxy.clone()), true, allowance)),
            Way::Tunneled(tunnel) => {
                let server = with_port(&server).unwrap_or(server);
                Box::pin(stream(tunnel.call(server), false, allowance))
            }
        }
    }
}

async fn stream<E: Into<BoxError>>(
    connecting: impl Future<Output = Result<TokioIo<TcpStream>, E>>,
    is_forwarded: bool,
    allowance: Option<Allowance>,
) -> Result<TokioIo<Stream>, BoxError> {
    let tcp = connecting.await.map_err(Into::into)?.into_inner();
    Ok(TokioIo::new(Stream { tcp, is_forwarded, allowance }))
}

/// Returns the address with the port of `http` if it has none: a tunnel would lead to that of `https`.
fn with_port(server: &Uri) -> Option<Uri> {
    if server.port().is_some() || server.scheme() != Some(&Scheme::HTTP) {
        return None;
    }
    let authority = format!("{}:80", server.authority()?);
    Uri::builder().scheme(Scheme::HTTP).authority(authority).path_and_query("/").build().ok()
}

/// A connection that knows whether a proxy reads the requests, which then name the server. It fails when its allowance
/// is spent.
#[derive(Debug)]
pub(crate) struct Stream {
    tcp: TcpStream,
    is_forwarded: bool,
    allowance: Option<Allowance>,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.tcp.connected().proxy(self.is_forwarded)
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.allowance.as_ref().map_or(Ok(()), Allowance::check)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.tcp).poll_read(cx, buffer);
        if let Some(allowance) = &self.allowance {
            allowance.spend(buffer.filled().len() - before);
        }
        read
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(cx, slices)
    }
}
