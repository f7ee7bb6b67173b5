//! The HTTP server. A request passes the listener's limits (`connections`), TLS (`tls`) and the gate (`gate`: body,
//! token, rate, CPU time), and is answered by `routes`.
//!
//! The server runs on the thread `podperf-http`, and drawings on another one. Both count as the CPU time of answering,
//! which has a limit of its own (`budget`).

mod budget;
mod connections;
mod expiry;
mod gate;
pub mod pages;
mod patient;
mod peers;
mod rate;
mod rendered;
mod routes;
mod running;
mod tls;
mod unread;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context;
use axum::{Router, body::Body};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, timeout},
};
use tokio_rustls::TlsAcceptor;
use tower_service::Service;
use tracing::warn;

use crate::config::{Limits, TlsFiles};
use crate::{
    agent::Agent,
    kernel::clock::monotonic,
    telemetry::heartbeat::{self, Pulse},
};
use budget::Budget;
use connections::{Connections, Slot};
use gate::{Admitted, Gate};
use patient::Patient;
use peers::Peer;
use rate::Bucket;
use rendered::Rendered;
use routes::Shown;
pub use running::Running;
use tls::Certificate;

/// The period at which certificate files are read again.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The number of heartbeats without a connection after which the cost of answering is read only at each tenth
/// heartbeat.
const LOOKS_WHEN_QUIET: u32 = 10;
/// The pause between two new connections while the server is over its limit of CPU time: handshakes cost CPU time, too.
const BETWEEN_CONNECTIONS: Duration = Duration::from_millis(20);
/// The pause before a refusal is sent while the server is over its limit: refusals cost CPU time, too.
const BEFORE_REFUSING: Duration = Duration::from_secs(1);
/// The maximum size of the request line and the headers of a request.
const HEADER_BYTES: usize = 16 * 1024;
/// The pause after an error of the listener itself, such as no free file descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// A server that listens on its address and has read its certificate, but answers no request yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    tls: Option<Certificate>,
    limits: Limits,
    address: SocketAddr,
}

/// Binds the address of the server, and reads its certificate.
///
/// # Errors
///
/// When the address is in use, not of this machine, or not allowed, or the certificate cannot be used.
pub async fn bind(listen: SocketAddr, tls: Option<TlsFiles>, limits: Limits) -> anyhow::Result<Bound> {
    let tls = tls.map(Certificate::read).transpose()?;
    let listener = TcpListener::bind(listen).await.with_context(|| {
        format!("failed to listen on `{listen}` (is the port in use? set `listen` or `--listen ADDR:PORT`)")
    })?;
    let address = listener.local_addr().unwrap_or(listen);
    Ok(Bound { listener, tls, limits, address })
}

impl Bound {
    /// Returns the address of the server as a URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.address)
    }

    /// Answers requests until `stop` resolves. Then it accepts no new connections, and returns when the last request is
    /// answered. Dropping the future closes all connections.
    async fn serve(mut self, agent: Arc<Agent>, stop: impl Future<Output = ()>) {
        let counts = Arc::clone(agent.server());
        let budget = Arc::new(Budget::new(self.limits.max_percent, agent.cpus()));
        let gate = Gate::new(self.limits, Arc::clone(&budget), agent.access().cloned(), Arc::clone(&counts));
        let gate = Arc::new(gate);
        let open = Connections::new(self.limits.connections, Arc::clone(&counts));
        let pulse = Arc::new(Mutex::new(Pulse::new(agent.heartbeats())));
        let shown = Shown { rendered: Rendered::default(), pulse };
        let router = routes::router(Arc::clone(&agent), &shown);
        let (stopping, stopped) = watch::channel(());
        let mut tasks = JoinSet::new();
        let (mut failing, mut quiet) = (false, 0_u32);
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut beats = tokio::time::interval(heartbeat::LOOK_EVERY);
        beats.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut stop = std::pin::pin!(stop);
        // An accepted connection that waits for a place. The server accepts no other one meanwhile.
        let mut held: Option<(TcpStream, IpAddr)> = None;
        let mut again = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        loop {
            tokio::select! {
                () = &mut stop => break,
                _ = tasks.join_next(), if !tasks.is_empty() => continue,
                _ = looks.tick() => {
                    if let Some(tls) = &mut self.tls {
                        tls.refresh();
                        counts.certificate_ends(tls.ends());
                    }
                    continue;
                }
                _ = beats.tick() => {
                    shown.pulse.lock().unwrap_or_else(PoisonError::into_inner).look(monotonic());
                    shown.rendered.drop_old();
                    quiet = if tasks.is_empty() { quiet.wrapping_add(1) } else { 0 };
                    if quiet >= LOOKS_WHEN_QUIET && quiet % LOOKS_WHEN_QUIET != 0 {
                        continue;
                    }
                    let (share, state, says) = budget.look(monotonic(), agent.answering().total());
                    counts.takes(share);
                    agent.set_state("server", state, &says);
                    continue;
                }
                () = &mut again, if held.is_some() => {}
                accepted = self.listener.accept(), if held.is_none() => match accepted {
                    Ok((stream, from)) => {
                        (failing, quiet) = (false, 0);
                        held = Some((stream, from.ip()));
                    }
                    Err(error) if is_of_the_connection(&error) => continue,
                    Err(error) => {
                        if !std::mem::replace(&mut failing, true) {
                            warn!(%error, "failed to take connections (is a limit of the agent reached?)");
                        }
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                },
            }
            let Some((stream, from)) = held.take() else { continue };
            match open.enter(Peer::of(from)) {
                Ok(slot) => {
                    let one = One { router: router.clone(), gate: Arc::clone(&gate), limits: self.limits, from };
                    let tls = self.tls.as_ref().map(|tls| TlsAcceptor::from(tls.config()));
                    tasks.spawn(one.serve(stream, tls, slot, stopped.clone()));
                    if budget.is_spent() {
                        tokio::time::sleep(BETWEEN_CONNECTIONS).await;
                    } else {
                        // Many connections may arrive at once: each accepted one gets its turn.
                        tokio::task::yield_now().await;
                    }
                }
                Err(wait) => {
                    held = Some((stream, from));
                    again.as_mut().reset(tokio::time::Instant::now() + wait);
                }
            }
        }
        drop((self.listener, stopping, held));
        while tasks.join_next().await.is_some() {}
    }
}

/// One connection, from the handshake to its end.
struct One {
    router: Router,
    gate: Arc<Gate>,
    limits: Limits,
    from: IpAddr,
}

impl One {
    async fn serve(self, stream: TcpStream, tls: Option<TlsAcceptor>, slot: Slot, stopped: watch::Receiver<()>) {
        // Nagle's algorithm would only delay answers, which are written at once.
        stream.set_nodelay(true).ok();
        let stream = Patient::new(stream);
        let slot = Arc::new(slot);
        let closed = Arc::clone(&slot);
        let whole = async move {
            match tls {
                Some(tls) => {
                    if let Ok(Ok(stream)) = timeout(self.limits.header_timeout, tls.accept(stream)).await {
                        self.exchange(stream, slot, stopped).await;
                    }
                }
                None => self.exchange(stream, slot, stopped).await,
            }
        };
        tokio::select! {
            () = whole => {}
            () = closed.closed() => {}
        }
    }

    async fn exchange(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        slot: Arc<Slot>,
        mut stopped: watch::Receiver<()>,
    ) {
        let Self { router, gate, limits, from } = self;
        let pace = gate.pace();
        let service = service_fn(move |request: Request<Incoming>| {
            let (router, gate, pace, slot) = (router.clone(), Arc::clone(&gate), Arc::clone(&pace), Arc::clone(&slot));
            answer(request, from, router, gate, pace, slot)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            // An error here is one of the client or of the network.
            _ = connection.as_mut() => return,
            _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
        }
        connection.await.ok();
    }
}

/// The address that sent a request.
#[derive(Clone, Copy, Debug)]
struct Source(IpAddr);

async fn answer(
    mut request: Request<Incoming>,
    from: IpAddr,
    mut router: Router,
    gate: Arc<Gate>,
    pace: Arc<Bucket>,
    slot: Arc<Slot>,
) -> Result<axum::response::Response, std::convert::Infallible> {
    pace.wait().await;
    let busy = slot.busy();
    let response = match gate.admit(&request, from).await {
        Ok(admitted) => {
            if admitted == Admitted::ByToken {
                slot.admitted();
            }
            request.extensions_mut().insert(Source(from));
            let Ok(response) = router.call(request.map(Body::new)).await;
            drop(busy);
            response
        }
        Err(refused) => {
            // From here on the agent waits for the next request of this connection, and may close it.
            drop(busy);
            if gate.is_spent() {
                tokio::time::sleep(BEFORE_REFUSING).await;
            }
            refused
        }
    };
    gate.answered(response.status());
    Ok(response)
}

/// Returns whether an error is one of a single connection. The next `accept` may succeed.
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
