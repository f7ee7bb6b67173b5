//! Health probes from the agent's own container, by a socket that no network reaches.
//!
//! A probe over the network shares the listener with everybody who reaches the port: who floods it from the kubelet's own
//! address, as pods with the node's network can, would have the agent killed. The socket's name is abstract, so that it
//! needs no directory; it belongs to the network namespace, and has the port of the server. Only processes of the agent's
//! user are answered.

use std::{
    io,
    os::{linux::net::SocketAddrExt as _, unix::net as unix},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::unistd::geteuid;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::timeout,
};
use tower_service::Service as _;

use super::PAUSE;

/// The longest time for one probe.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest number of simultaneous probes.
const PLACES: usize = 8;

/// Returns the address of the socket for a server on this port.
///
/// # Errors
///
/// Never on Linux, where each short name is good.
pub fn address(port: u16) -> io::Result<unix::SocketAddr> {
    unix::SocketAddr::from_abstract_name(format!("podperf-{port}"))
}

/// Binds the socket.
///
/// # Errors
///
/// When another process has the name.
pub(super) fn bind(port: u16) -> io::Result<unix::UnixListener> {
    let listener = unix::UnixListener::bind_addr(&address(port)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers probes, for as long as the future is polled.
pub(super) async fn serve(listener: UnixListener, router: Router) {
    let places = Arc::new(Semaphore::new(PLACES));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        if let Ok(place) = Arc::clone(&places).try_acquire_owned()
            && is_own(&stream)
        {
            let router = router.clone();
            tokio::spawn(async move {
                answer(stream, router).await;
                drop(place);
            });
        }
    }
}

fn is_own(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == geteuid().as_raw())
}

async fn answer(stream: UnixStream, router: Router) {
    let service = service_fn(move |request: Request<Incoming>| router.clone().call(request.map(Body::new)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    timeout(PATIENCE, connection).await.ok();
}
