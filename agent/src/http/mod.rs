//! The HTTP server. A request passes the listener and its limits (`listening`, `connections`), TLS (`tls`) and the gate
//! (`gate`: body, token, rate, CPU time), is answered by `routes`, and gets the form that the client accepts (`accepts`).
//!
//! Probes from the agent's own container come by a socket of their own (`own`).
//!
//! The server runs on the thread `podperf-http`, and drawings on another one. Both count as the CPU time of answering,
//! which has a limit of its own (`budget`).

mod accepts;
mod budget;
mod connections;
mod expiry;
mod gate;
mod listening;
pub mod own;
pub mod pages;
mod patient;
mod peers;
mod queue;
mod rate;
mod rendered;
mod routes;
mod running;
mod tls;
mod unread;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::net as unix,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, body::Body};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener},
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
    telemetry::{
        heartbeat::{self, Pulse},
        http::Refusal,
    },
};
use accepts::Accepts;
use budget::Budget;
use connections::{AGAIN, Connections, Slot};
use gate::{Admitted, Gate, Here};
use listening::listen_on;
use patient::Patient;
use peers::Peer;
use queue::Queue;
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
/// The pause after so many connections were closed at once, while the server is over its limit of CPU time.
const AFTER_RESETS: Duration = Duration::from_millis(1);
const RESETS: u32 = 8;
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
    /// `None` if another process has its name.
    probes: Option<unix::UnixListener>,
    tls: Option<Certificate>,
    limits: Limits,
    address: SocketAddr,
}

/// Binds the address of the server, and reads its certificate.
///
/// # Errors
///
/// When the address is in use, not of this machine, or not allowed, or the certificate cannot be used.
pub fn bind(listen: SocketAddr, tls: Option<TlsFiles>, limits: Limits) -> anyhow::Result<Bound> {
    let tls = tls.map(Certificate::read).transpose()?;
    let listener = listen_on(listen).map_err(|error| {
        let says = format!("failed to listen on `{listen}` ({})", way_out(error.kind()));
        anyhow::Error::new(error).context(says)
    })?;
    let address = listener.local_addr().unwrap_or(listen);
    let probes = own::bind(address.port());
    let warned = |error: &io::Error| {
        warn!(%error, "failed to listen for `podperf healthcheck` (another agent with this port in the same network?)");
    };
    Ok(Bound { listener, probes: probes.inspect_err(warned).ok(), tls, limits, address })
}

/// Returns the way out of an error of a listener.
const fn way_out(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::AddrInUse => "the port is in use: set another one by `listen` or `--listen ADDR:PORT`",
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this machine has this address: set `listen` or `--listen ADDR:PORT`"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE: set another one by `listen` or `--listen ADDR:PORT`"
        }
        _ => "set `listen` or `--listen ADDR:PORT`",
    }
}

/// Closes a connection without the kernel's remembering it: floods would fill its tables.
fn reset(stream: TcpStream) {
    stream.set_zero_linger().ok();
    drop(stream);
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
        let is_open = self.tls.is_none() && agent.access().is_none();
        let here = (is_open && self.address.ip().to_canonical().is_loopback())
            .then(|| Here { node_name: agent.node_name.clone() });
        let gate = Gate::new(self.limits, Arc::clone(&budget), agent.access().cloned(), here, Arc::clone(&counts));
        let gate = Arc::new(gate);
        let open = Connections::new(self.limits.connections, Arc::clone(&counts));
        let pulse = Arc::new(Mutex::new(Pulse::new(agent.heartbeats())));
        let shown = Shown { rendered: Rendered::default(), pulse };
        let router = routes::router(Arc::clone(&agent), &shown);
        let own = self.probes.take().map(UnixListener::from_std).transpose().unwrap_or_default();
        let own = own.map(|listener| tokio::spawn(own::serve(listener, routes::probes(Arc::clone(&agent), &shown))));
        let (stopping, stopped) = watch::channel(());
        let mut tasks = JoinSet::new();
        let (mut failing, mut quiet, mut resets) = (false, 0_u32, 0_u32);
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut beats = tokio::time::interval(heartbeat::LOOK_EVERY);
        beats.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut stop = std::pin::pin!(stop);
        // Handshakes cost CPU time, too.
        let enter = |peer| if gate.is_spent() && !gate.may_connect(peer) { None } else { open.enter(peer) };
        let (limits, address) = (self.limits, self.address.ip().to_canonical());
        let begin = |tasks: &mut JoinSet<()>, tls: Option<&Certificate>, (stream, from), slot| {
            let source = Source::new(from, address);
            let one = One { router: router.clone(), gate: Arc::clone(&gate), limits, source };
            let tls = tls.map(|tls| TlsAcceptor::from(tls.config()));
            tasks.spawn(one.serve(stream, tls, slot, stopped.clone()));
        };
        // Connections that no other one can make room for.
        let mut waiting = Queue::<(TcpStream, IpAddr)>::default();
        let mut again = tokio::time::interval(AGAIN);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
                _ = again.tick(), if !waiting.is_empty() => {
                    for (slot, connection) in waiting.place(enter) {
                        begin(&mut tasks, self.tls.as_ref(), connection, slot);
                    }
                    continue;
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, from)) => {
                        (failing, quiet) = (false, 0);
                        // A listener of both families sees an IPv4 address as an IPv6 address.
                        let from = from.ip().to_canonical();
                        let peer = Peer::of(from);
                        let refused = if waiting.has_many(peer) {
                            Some(stream)
                        } else if let Some(slot) = enter(peer) {
                            begin(&mut tasks, self.tls.as_ref(), (stream, from), slot);
                            None
                        } else {
                            waiting.push(peer, (stream, from)).err().map(|(stream, _)| stream)
                        };
                        if let Some(stream) = refused {
                            counts.refused(Refusal::Connections);
                            reset(stream);
                            resets = resets.wrapping_add(1);
                        }
                        if resets % RESETS == RESETS - 1 && gate.is_spent() {
                            resets = 0;
                            tokio::time::sleep(AFTER_RESETS).await;
                        }
                        // Many connections may arrive at once: each accepted one gets its turn.
                        tokio::task::yield_now().await;
                        // While they arrive, `select!` would take up only half of those that have ended.
                        while tasks.try_join_next().is_some() {}
                    }
                    Err(error) if is_of_the_connection(&error) => {}
                    Err(error) => {
                        if !std::mem::replace(&mut failing, true) {
                            warn!(%error, "failed to take connections (is a limit of the agent reached?)");
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                },
            }
        }
        drop((self.listener, stopping, waiting));
        while tasks.join_next().await.is_some() {}
        own.inspect(tokio::task::JoinHandle::abort);
    }
}

/// One connection, from the handshake to its end.
struct One {
    router: Router,
    gate: Arc<Gate>,
    limits: Limits,
    source: Source,
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
        let Self { router, gate, limits, source } = self;
        let pace = gate.pace();
        let service = service_fn(move |request: Request<Incoming>| {
            let (router, gate, pace, slot) = (router.clone(), Arc::clone(&gate), Arc::clone(&pace), Arc::clone(&slot));
            answer(request, source, router, gate, pace, slot)
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

/// The sender of a request.
#[derive(Clone, Copy, Debug)]
struct Source {
    from: IpAddr,
    /// It is in the agent's own pod or on its machine.
    is_here: bool,
}

impl Source {
    /// `address` is that of the server. A server at one address does not listen on the loopback. Istio's sidecar hands
    /// on the connections of strangers from 127.0.0.6, so not all of 127.0.0.0/8 is here.
    fn new(from: IpAddr, address: IpAddr) -> Self {
        let is_here = from == Ipv4Addr::LOCALHOST || from == Ipv6Addr::LOCALHOST || from == address;
        Self { from, is_here }
    }
}

async fn answer(
    mut request: Request<Incoming>,
    source: Source,
    mut router: Router,
    gate: Arc<Gate>,
    pace: Arc<Bucket>,
    slot: Arc<Slot>,
) -> Result<axum::response::Response, std::convert::Infallible> {
    pace.wait().await;
    let busy = slot.busy();
    let accepts = Accepts::of(request.method(), request.headers());
    let response = match gate.admit(&request, source.from).await {
        Ok(admitted) => {
            if admitted == Admitted::ByToken {
                slot.admitted();
            }
            request.extensions_mut().insert(source);
            let Ok(response) = router.call(request.map(Body::new)).await;
            let response = accepts.apply(response).await;
            drop(busy);
            response
        }
        Err(refused) => {
            // From here on the agent waits for the next request of this connection, and may close it.
            drop(busy);
            if gate.is_spent() {
                tokio::time::sleep(BEFORE_REFUSING).await;
                refused
            } else {
                accepts.explain(refused).await
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_at_the_servers_own_address_is_here() {
        let is_here = |from: &str, at: &str| Source::new(from.parse().unwrap(), at.parse().unwrap()).is_here;
        assert!(is_here("127.0.0.1", "::") && is_here("::1", "::") && is_here("10.0.0.5", "10.0.0.5"));
        assert!(!is_here("10.0.0.6", "10.0.0.5") && !is_here("10.0.0.5", "::"));
        // The inbound addresses of Istio's sidecar.
        assert!(!is_here("127.0.0.6", "::") && !is_here("::6", "::"));
    }

    #[test]
    fn each_error_of_a_listener_has_its_own_way_out() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let says = |address: SocketAddr| {
            let limits = Limits {
                connections: 1,
                requests_per_second: 0,
                max_percent: 0.0,
                header_timeout: Duration::from_secs(1),
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _entered = runtime.enter();
            format!("{:#}", bind(address, None, limits).unwrap_err())
        };
        let in_use = says(taken.local_addr().unwrap());
        assert!(in_use.contains("(the port is in use: set another one"), "{in_use}");
        // The address is of a network for documents.
        let elsewhere = says("192.0.2.1:9799".parse().unwrap());
        assert!(elsewhere.contains("(no interface of this machine has this address"), "{elsewhere}");
    }
}
