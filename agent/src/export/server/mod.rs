//! The HTTP server. A request comes through the listener's limits (`connections`), TLS (`tls`) and the gate (`gate`: how
//! fast, with what, and who) to what answers it (`routes`).

mod connections;
mod counts;
mod expiry;
mod gate;
mod rate;
mod routes;
mod tls;

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

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

use crate::agent::Agent;
use connections::{Connections, Slot};
pub use counts::{Refusal, ServerCounts, ServerStats};
use gate::Gate;
use rate::Bucket;
use tls::Certificate;
pub use tls::ServerTlsError;

/// How soon certificates that were replaced are used.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// After an error that is the listener's own, such as no file descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// What those who ask may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open at a time.
    pub connections: usize,
    /// From all together; 0 for as many as they like.
    pub requests_per_second: u32,
    /// Of a request's line and headers.
    pub header_bytes: usize,
    /// For them to arrive, and for a TLS handshake.
    pub header_timeout: Duration,
}

/// `server.tls:`
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, and those between it and the authority.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// A server that has its address and its certificate, and answers nobody yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    tls: Option<Certificate>,
    limits: Limits,
    address: SocketAddr,
}

/// Takes the address that the server is to listen on, and reads its certificate.
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
    /// Where it listens, as a URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.address)
    }

    /// Answers until `stop` resolves; then takes no new connections, and ends when the last request is answered. Dropped,
    /// it breaks off.
    pub async fn serve(mut self, agent: Arc<Agent>, stop: impl Future<Output = ()> + Send + 'static) {
        let counts = Arc::clone(agent.server());
        let gate = Arc::new(Gate::new(self.limits, agent.access().cloned(), Arc::clone(&counts)));
        let open = Connections::new(self.limits.connections, Arc::clone(&counts));
        let router = routes::router(agent);
        let (stopping, stopped) = watch::channel(());
        let mut tasks = JoinSet::new();
        let mut failing = false;
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                _ = tasks.join_next(), if !tasks.is_empty() => {}
                _ = looks.tick() => {
                    if let Some(tls) = &mut self.tls {
                        tls.refresh();
                        counts.certificate_ends(tls.ends());
                    }
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        failing = false;
                        let Some(slot) = open.enter() else { continue };
                        let one = One { router: router.clone(), gate: Arc::clone(&gate), limits: self.limits };
                        let tls = self.tls.as_ref().map(|tls| TlsAcceptor::from(tls.config()));
                        tasks.spawn(one.serve(stream, tls, slot, stopped.clone()));
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
        drop((self.listener, stopping));
        while tasks.join_next().await.is_some() {}
    }
}

/// One connection, from the handshake to its end.
struct One {
    router: Router,
    gate: Arc<Gate>,
    limits: Limits,
}

impl One {
    async fn serve(self, stream: TcpStream, tls: Option<TlsAcceptor>, slot: Slot, stopped: watch::Receiver<()>) {
        // It would only delay answers, which are written at once.
        stream.set_nodelay(true).ok();
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
        let Self { router, gate, limits } = self;
        let pace = gate.pace();
        let service = service_fn(move |request: Request<Incoming>| {
            let (router, gate, pace, slot) = (router.clone(), Arc::clone(&gate), Arc::clone(&pace), Arc::clone(&slot));
            answer(request, router, gate, pace, slot)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(limits.header_bytes)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            // What breaks is the other side's.
            _ = connection.as_mut() => return,
            _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
        }
        connection.await.ok();
    }
}

async fn answer(
    request: Request<Incoming>,
    mut router: Router,
    gate: Arc<Gate>,
    pace: Arc<Bucket>,
    slot: Arc<Slot>,
) -> Result<axum::response::Response, std::convert::Infallible> {
    pace.wait().await;
    let _busy = slot.busy();
    let response = match gate.admit(&request).await {
        Ok(()) => {
            let Ok(response) = router.call(request.map(Body::new)).await;
            response
        }
        Err(refused) => refused,
    };
    gate.answered(response.status());
    Ok(response)
}

/// The next one may be well.
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
