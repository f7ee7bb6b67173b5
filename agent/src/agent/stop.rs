//! How the agent ends: its threads, and what they still have.

use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tracing::{info, warn};

use super::Agent;
use crate::{checkpoint::Keeper, export::push::Push, kernel::Pins, pods::DaemonSet};

/// Of the time that the agent has to stop, what the last push of metrics gets.
const LAST_PUSH: Duration = Duration::from_secs(1);

/// The threads of a running agent.
#[derive(Debug)]
pub struct Threads {
    pub(super) collector: JoinHandle<()>,
    pub(super) symbolizer: Option<JoinHandle<()>>,
    pub(super) push: Option<Push>,
    /// No other agent may have them before this one has ended.
    pub(super) pins: Option<(Pins, Keeper)>,
    /// `None` where none is named.
    pub(super) daemon_set: Option<DaemonSet>,
}
/// Ends the threads and sends what they still have, until `deadline`. The HTTP server must have ended.
pub async fn stop(agent: Arc<Agent>, threads: Threads, deadline: Instant) {
    let Threads { collector, symbolizer, push, pins, daemon_set } = threads;
    let going = tokio::spawn(async move {
        match daemon_set {
            Some(daemon_set) => daemon_set.is_going().await,
            None => false,
        }
    });
    // It needs the collector for its last reading.
    if let Some(push) = push {
        push.shutdown(LAST_PUSH).await;
    }
    agent.reader.stop();
    let joined = tokio::task::spawn_blocking(move || {
        let symbolizer = symbolizer.map(JoinHandle::join);
        [Some(collector.join()), symbolizer].into_iter().flatten().all(|result| result.is_ok())
    });
    match tokio::time::timeout_at(deadline.into(), joined).await {
        Ok(Ok(true)) => {}
        Ok(_) => warn!("a thread panicked"),
        Err(_) => warn!("the last profile was not done in time"),
    }
    // The symbolizer held the other reference; if it hangs, so does the exporter's last profile.
    if let Some(exporter) = Arc::into_inner(agent).and_then(|agent| agent.exporter) {
        exporter.shutdown(deadline.saturating_duration_since(Instant::now())).await;
    }
    // The collector has ended: nobody needs them any more.
    if let Some((pins, keeper)) = pins
        && matches!(tokio::time::timeout_at(deadline.into(), going).await, Ok(Ok(true)))
    {
        match pins.remove_all().and_then(|_| keeper.forget()) {
            Ok(_) => info!("the DaemonSet is being deleted: unpinned"),
            Err(error) => warn!(%error, "failed to unpin (run `podperf unpin` on this node)"),
        }
    }
}
