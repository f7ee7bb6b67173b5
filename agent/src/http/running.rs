//! The server's thread and runtime. The CPU time of this thread is counted apart from the rest of the agent.

use std::{sync::Arc, thread, time::Duration};

use anyhow::Context as _;
use tokio::{net::TcpListener, runtime, sync::oneshot};

use super::Bound;
use crate::agent::Agent;

/// The thread's name. The account of the CPU time of answering finds threads by the beginning of their names.
const THREAD: &str = "podperf-http";
/// The name of the threads that draw or look up names for the server.
const BACKGROUND: &str = "podperf-http-bg";
/// Idle threads live for this time, which is longer than the time between two readings of their CPU time.
const KEEP: Duration = Duration::from_secs(60);

/// A running server. When it is dropped, open requests are cut off.
#[derive(Debug)]
pub struct Running {
    stop: Option<oneshot::Sender<()>>,
    break_off: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<()>,
}

impl Bound {
    /// Starts to answer requests.
    ///
    /// # Errors
    ///
    /// When the thread or its runtime cannot be started.
    pub fn start(self, agent: Arc<Agent>) -> anyhow::Result<Running> {
        let Self { listener, probes, tls, limits, address } = self;
        // A listener belongs to the runtime on which it was made.
        let listener = listener.into_std().context("failed to hand on the server's socket")?;
        let mut builder = runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().thread_name(BACKGROUND).thread_keep_alive(KEEP).build();
        let runtime = runtime.context("failed to start the server's runtime")?;
        let (stop, stopped) = oneshot::channel();
        let (break_off, broken_off) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let run = move || {
            runtime.block_on(async {
                let listener = match TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(error) => return tracing::error!(%error, "failed to take over the server's socket"),
                };
                let stop = async {
                    stopped.await.ok();
                };
                tokio::select! {
                    () = Self { listener, probes, tls, limits, address }.serve(agent, stop) => {}
                    _ = broken_off => {}
                }
            });
            // The shutdown also drops everything that the tasks of the runtime hold.
            runtime.shutdown_background();
            end.send(()).ok();
        };
        thread::Builder::new().name(THREAD.into()).spawn(run).context("failed to start the server's thread")?;
        Ok(Running { stop: Some(stop), break_off: Some(break_off), ended })
    }
}

impl Running {
    /// Resolves when the server has ended by itself.
    pub async fn ended(&mut self) {
        (&mut self.ended).await.ok();
    }

    /// Accepts no new connections, and waits at most `patience` for the last answer; then closes the remaining
    /// connections.
    pub async fn stop(mut self, patience: Duration) {
        self.stop.take();
        if tokio::time::timeout(patience, &mut self.ended).await.is_err() {
            self.break_off.take();
            self.ended.await.ok();
        }
    }
}
