//! Sends profiles to an OTLP receiver, over gRPC or HTTP.
//!
//! Windows come from [`crate::stacks`]; [`Exporter::take`] puts a window into a bounded queue and returns at once. A
//! window that finds no room in the queue, or is not accepted within the retry limit, is dropped and counted. So a
//! receiver that is down, slow or rejects requests costs neither time of the caller nor unbounded memory. This module
//! never reads cgroups or pods: a profile has the names of its subjects, and `resource` writes them in OTLP's words.

mod answer;
mod attempt;
mod client;
mod dictionary;
pub mod endpoint;
mod failure;
#[cfg(test)]
mod faults_tests;
mod http_failure;
mod link;
mod request;
mod resource;
#[cfg(test)]
mod rules;
mod secrets;
mod sender;
mod settings;
mod trial;

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};

use crate::{export::ProfileSink, stacks::profile::Profile};

pub use crate::transport::compression::Compression;
pub(super) use attempt::Signal;
pub(super) use client::one_line;
use client::{Counters, Queued, Retry, Worker};
pub use endpoint::EndpointError;
pub(super) use sender::Sender;
pub use settings::{Preset, Protocol, SampleAttribute, Settings, Shape, TlsSettings};
pub use trial::{try_metrics, try_profiles};

/// The results of the exports since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Requests that the receiver accepted. A window is one request, or more when it is large.
    pub exports: u64,
    /// Attempts that failed, by cause; each retry counts. Every cause has an entry, zeros included.
    pub failures: [(Cause, u64); Cause::ALL.len()],
    /// Requests that were dropped: rejected for good, or not accepted within the retry limit.
    pub lost: u64,
    /// Windows that [`Exporter::take`] dropped because the queue was full.
    pub dropped: u64,
    /// Profiles that the receiver rejected from requests that it accepted.
    pub rejected_profiles: u64,
    /// Windows in the queue, without the one that is being sent.
    pub queue_length: usize,
    /// The largest number of windows in the queue.
    pub queue_capacity: usize,
    /// The state for `/status`.
    pub health: Health,
}

/// The causes of failed attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// There is no connection, or the receiver asked for a later retry.
    Unavailable,
    /// No answer arrived within [`Settings::timeout`].
    Timeout,
    /// Rejected for good: not understood, not authorised, or not supported.
    Rejected,
    /// The request is over the receiver's size limit.
    TooLarge,
}

impl Cause {
    /// All causes, in the order of [`Stats::failures`].
    pub const ALL: [Self; 4] = [Self::Unavailable, Self::Timeout, Self::Rejected, Self::TooLarge];

    /// Returns the label value in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Rejected => "rejected",
            Self::TooLarge => "too_large",
        }
    }
}

/// The state of the exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The last window arrived whole, or there was none yet.
    Healthy,
    /// An export failed and no window has arrived whole since, or the current certificate files cannot be used.
    Degraded {
        /// The time of the first of these failures.
        since: SystemTime,
        /// The last error, in one line.
        error: String,
    },
}

/// A handle to the task that sends.
#[derive(Debug)]
pub struct Exporter {
    queue: mpsc::Sender<Queued>,
    counters: Arc<Counters>,
    health: watch::Receiver<Health>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Starts the task, which names this node in each request; the first window opens the connection. Must be called on
    /// a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// When the endpoint, a header, a certificate or the proxy cannot be used. A receiver that is down is not an error.
    pub fn new(settings: Settings, node_name: String) -> Result<Self, EndpointError> {
        Self::with_retry(settings, node_name, Retry::default())
    }

    fn with_retry(settings: Settings, node_name: String, retry: Retry) -> Result<Self, EndpointError> {
        let capacity = settings.queue.max(1);
        let (health_sender, health) = watch::channel(Health::Healthy);
        let (stop, stopped) = watch::channel(false);
        let counters = Arc::new(Counters::default());
        let worker = Worker::new(settings, node_name, retry, Arc::clone(&counters), health_sender, stopped)?;
        let (queue, windows) = mpsc::channel(capacity);
        let task = tokio::spawn(worker.run(windows));
        Ok(Self { queue, counters, health, stop, task })
    }

    /// Returns the results so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let queue_capacity = self.queue.max_capacity();
        Stats {
            exports: self.counters.exports.load(Ordering::Relaxed),
            failures: Cause::ALL.map(|cause| (cause, self.counters.failures(cause))),
            lost: self.counters.lost.load(Ordering::Relaxed),
            dropped: self.counters.dropped.load(Ordering::Relaxed),
            rejected_profiles: self.counters.rejected_profiles.load(Ordering::Relaxed),
            queue_length: queue_capacity - self.queue.capacity(),
            queue_capacity,
            health: self.health.borrow().clone(),
        }
    }

    /// Sends the queued windows, for at most `deadline`. The rest is dropped, and its number is logged.
    pub async fn shutdown(self, deadline: Duration) {
        let Self { queue, counters, stop, mut task, .. } = self;
        // A task that waits for a retry tries now. A task with an empty queue sees that the queue is closed, and ends.
        stop.send_replace(true);
        drop(queue);
        if tokio::time::timeout(deadline, &mut task).await.is_err() {
            task.abort();
            let windows = counters.unsent.load(Ordering::Relaxed);
            tracing::warn!(windows, "dropped profiles that were not sent before the shutdown deadline");
        }
    }
}

impl ProfileSink for Exporter {
    /// Queues one window, or drops and counts it when the queue is full. Never waits.
    fn take(&self, profile: &Arc<Profile>) {
        // Counted before the send: the task may have sent the window before the next line runs.
        self.counters.unsent.fetch_add(1, Ordering::Relaxed);
        let window = Queued { profile: Arc::clone(profile), since: Instant::now() };
        if self.queue.try_send(window).is_err() {
            self.counters.unsent.fetch_sub(1, Ordering::Relaxed);
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
