//! The task that sends profiles: one window at a time, over one connection, with retries.
//!
//! Each failure of a receiver ends in a counter and in one of two states. Only the change of state is logged.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    Cause, EndpointError, Health,
    attempt::Signal,
    failure::{Failure, LINE_CHARS},
    request,
    sender::Sender,
    settings::{Settings, Shape},
};
use crate::{stacks::profile::Profile, transport::backoff::Backoff};

/// The limits on retries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    /// The shortest wait before the second attempt. It doubles with each further attempt.
    pub(super) first: Duration,
    /// The longest wait between two attempts, unless the receiver asks for a longer one.
    pub(super) most: Duration,
    /// The time for all attempts, counted from when the window was queued. Each window is tried once, however old it
    /// is.
    pub(super) max_age: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            most: Duration::from_secs(30),
            // Long enough for a rolling restart of the receiver.
            max_age: Duration::from_secs(120),
        }
    }
}

/// The counters that the task and [`super::Exporter`] update.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) exports: AtomicU64,
    failures: [AtomicU64; Cause::ALL.len()],
    pub(super) lost: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) rejected_profiles: AtomicU64,
    /// Number of windows that are queued or being sent.
    pub(super) unsent: AtomicU64,
}

impl Counters {
    pub(super) fn failures(&self, cause: Cause) -> u64 {
        self.failures[cause as usize].load(Ordering::Relaxed)
    }
}

/// A window in the queue, with the time when it was queued.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) profile: Arc<Profile>,
    pub(super) since: Instant,
}

#[derive(Debug)]
pub(super) struct Worker {
    sender: Sender,
    shape: Arc<Shape>,
    node_name: Arc<str>,
    retry: Retry,
    counters: Arc<Counters>,
    health: watch::Sender<Health>,
    stopped: watch::Receiver<bool>,
}

impl Worker {
    pub(super) fn new(
        settings: Settings,
        node_name: String,
        retry: Retry,
        counters: Arc<Counters>,
        health: watch::Sender<Health>,
        stopped: watch::Receiver<bool>,
    ) -> Result<Self, EndpointError> {
        let sender = Sender::new(&settings)?;
        let shape = Arc::new(settings.shape);
        Ok(Self { sender, shape, node_name: node_name.into(), retry, counters, health, stopped })
    }

    pub(super) async fn run(mut self, mut windows: mpsc::Receiver<Queued>) {
        while let Some(window) = windows.recv().await {
            let expires = window.since + self.retry.max_age;
            let (profile, shape, node_name) = (window.profile, Arc::clone(&self.shape), Arc::clone(&self.node_name));
            // Building a request hashes megabytes of symbol names, so it must not run on a thread that serves sockets.
            match tokio::task::spawn_blocking(move || request::requests(&profile, &shape, &node_name)).await {
                Ok(requests) => self.deliver(requests, expires).await,
                Err(err) => self.degrade(format!("failed to build the request: {err}")),
            }
            self.counters.unsent.fetch_sub(1, Ordering::Relaxed);
        }
    }

    async fn deliver(&mut self, requests: Vec<ExportProfilesServiceRequest>, expires: Instant) {
        let mut whole = !requests.is_empty();
        let mut requests = requests.into_iter();
        while let Some(request) = requests.next() {
            match self.persist(request, expires).await {
                Delivery::Accepted => {}
                Delivery::Partial => whole = false,
                Delivery::Refused => {
                    whole = false;
                    self.counters.lost.fetch_add(1, Ordering::Relaxed);
                }
                Delivery::Expired => {
                    // The remaining requests are as old, and the receiver does not answer.
                    let lost = 1 + u64::try_from(requests.len()).unwrap_or(u64::MAX);
                    self.counters.lost.fetch_add(lost, Ordering::Relaxed);
                    return;
                }
            }
        }
        if whole {
            self.recover();
        }
    }

    /// Sends one request until the receiver accepts it, rejects it for good, or it is too old.
    async fn persist(&mut self, request: ExportProfilesServiceRequest, expires: Instant) -> Delivery {
        let request = Signal::Profiles(request);
        let mut backoff = Backoff::new(self.retry.first, self.retry.most);
        loop {
            let failure = match self.attempt(&request).await {
                Ok(delivery) => return delivery,
                Err(failure) => failure,
            };
            self.counters.failures[failure.cause as usize].fetch_add(1, Ordering::Relaxed);
            self.degrade(failure.text);
            let Some(at_least) = failure.retry else {
                return Delivery::Refused;
            };
            let wait = backoff.next().max(at_least);
            if Instant::now().checked_add(wait).is_none_or(|next| next > expires) {
                return Delivery::Expired;
            }
            self.rest(wait).await;
        }
    }

    /// Waits before a retry. A shutdown cuts the wait short; after it, no wait is longer than the first one.
    async fn rest(&mut self, wait: Duration) {
        if *self.stopped.borrow_and_update() {
            tokio::time::sleep(wait.min(self.retry.first)).await;
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            changed = self.stopped.changed() => if changed.is_err() {
                // The handle was dropped without a shutdown, so the wait goes on.
                tokio::time::sleep(wait).await;
            }
        }
    }

    async fn attempt(&mut self, request: &Signal) -> Result<Delivery, Failure> {
        let accepted = self.sender.send(request).await?;
        self.counters.exports.fetch_add(1, Ordering::Relaxed);
        if accepted.message.is_empty() {
            return Ok(Delivery::Accepted);
        }
        self.counters.rejected_profiles.fetch_add(accepted.rejected, Ordering::Relaxed);
        self.degrade(accepted.message);
        Ok(Delivery::Partial)
    }

    fn degrade(&self, error: String) {
        let error = one_line(&error);
        let since = match &*self.health.borrow() {
            Health::Degraded { since, .. } => Some(*since),
            Health::Healthy => None,
        };
        if since.is_none() {
            let endpoint = self.sender.uri();
            tracing::warn!(%endpoint, %error, state = "degraded", "failed to export profiles");
        }
        self.health.send_replace(Health::Degraded { since: since.unwrap_or_else(SystemTime::now), error });
    }

    fn recover(&self) {
        // Windows arrive, but will not arrive once the old certificate has expired.
        if let Some(problem) = self.sender.problem() {
            self.degrade(problem.to_owned());
            return;
        }
        if self.health.send_replace(Health::Healthy) != Health::Healthy {
            tracing::info!(endpoint = %self.sender.uri(), state = "healthy", "exporting profiles again");
        }
    }
}

/// The result of a request.
enum Delivery {
    Accepted,
    /// Accepted, except for some of its profiles.
    Partial,
    /// Rejected for good.
    Refused,
    /// Not accepted in time.
    Expired,
}

/// Makes one line of at most [`LINE_CHARS`], for the log and the status page. The receiver chooses the text, also the
/// characters that end a line or turn the direction of what follows.
pub(in crate::export) fn one_line(text: &str) -> String {
    let is_mark = |c| matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || is_mark(c) { ' ' } else { c }).take(LINE_CHARS).collect()
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
