//! End of the agent: its threads, and the data that they still hold.

use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tracing::{info, warn};

use super::Agent;
use crate::{checkpoint::Store, export::push::Push, kernel::Pins, pods::DaemonSet};

/// Time for the last push of metrics, out of the time that the agent has to stop.
const LAST_PUSH: Duration = Duration::from_secs(1);

/// The threads of a running agent.
#[derive(Debug)]
pub struct Threads {
    pub(super) collector: JoinHandle<()>,
    /// `None` if stacks are not copied.
    pub(super) unwinder: Option<JoinHandle<()>>,
    pub(super) symbolizer: Option<JoinHandle<()>>,
    pub(super) push: Option<Push>,
    /// Held until this agent has ended, so that no other agent uses the pins before.
    pub(super) pins: Option<(Pins, Store)>,
    /// `None` if the configuration names no DaemonSet.
    pub(super) daemon_set: Option<DaemonSet>,
}
/// Ends the threads and sends the data that they still hold, until `deadline`. The HTTP server must have ended before.
pub async fn stop(agent: Arc<Agent>, threads: Threads, deadline: Instant) {
    let Threads { collector, unwinder, symbolizer, push, pins, daemon_set } = threads;
    let going = tokio::spawn(async move {
        match daemon_set {
            Some(daemon_set) => daemon_set.is_going().await,
            None => false,
        }
    });
    // The push needs the collector for its last reading.
    if let Some(push) = push {
        push.shutdown(LAST_PUSH).await;
    }
    agent.reader.stop();
    let joined = tokio::task::spawn_blocking(move || {
        // The other threads end when the collector no longer sends to them.
        let collector = collector.join();
        let others = [unwinder, symbolizer].map(|thread| thread.map(JoinHandle::join));
        [Some(collector)].into_iter().chain(others).flatten().all(|result| result.is_ok())
    });
    match tokio::time::timeout_at(deadline.into(), joined).await {
        Ok(Ok(true)) => {}
        Ok(_) => warn!("a thread panicked"),
        Err(_) => warn!("the last profile was not done in time"),
    }
    // The symbolizer held the other reference of the exporter. If it hangs, the exporter's last profile is lost as well.
    let exporter = Arc::into_inner(agent).and_then(|agent| agent.exporter);
    if let Some(exporter) = exporter.and_then(Arc::into_inner) {
        exporter.shutdown(deadline.saturating_duration_since(Instant::now())).await;
    }
    // The collector has ended, so no thread needs the pins any more.
    if let Some((pins, store)) = pins
        && matches!(tokio::time::timeout_at(deadline.into(), going).await, Ok(Ok(true)))
    {
        match pins.remove_all().and_then(|_| store.forget()) {
            Ok(_) => info!("the DaemonSet is being deleted: unpinned"),
            Err(error) => warn!(%error, "failed to unpin (run `podperf unpin` on this node)"),
        }
    }
}
