//! The handle that sends requests to the collector's thread.

use std::{
    io,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant, SystemTime},
};

use thiserror::Error;
use tokio::sync::oneshot;
use tracing::warn;

use super::{Observation, scrapers::Scrapers};
use crate::{
    attribution::{RowRules, Scrapes, Subject},
    filter::{Filter, Full},
    limits::max_memory::MaxMemory,
    model::{facts::Facts, ids::CgroupId, slot::Slot},
    pods::{Pending, PodChange},
};

/// The reason why a reading failed.
#[derive(Clone, Debug, Error)]
pub enum ReadError {
    /// A map could not be read.
    #[error("failed to read the kernel's maps: {0}")]
    Kernel(Arc<io::Error>),
    /// The collector has stopped.
    #[error("the collector has stopped (see the log)")]
    Stopped,
}

pub(super) enum Request {
    Read {
        purpose: Purpose,
        /// An HTTP request pays for the reading.
        charged: bool,
        reply: oneshot::Sender<Result<Arc<Observation>, ReadError>>,
    },
    Cut(oneshot::Sender<Option<SystemTime>>),
    Filter(Box<Filter>, FilterReply),
    Unfilter(Slot),
    Subjects(oneshot::Sender<Vec<(CgroupId, Subject)>>),
    Rules(Box<RowRules>, oneshot::Sender<()>),
    MaxMemory(MaxMemory),
    /// Changes of pods are waiting.
    Pods,
    Unwound(Vec<(Subject, Facts)>),
    Stop,
}

/// A filter that samples are matched against while this value lives.
#[derive(Debug)]
pub struct ActiveFilter {
    slot: Slot,
    requests: mpsc::Sender<Request>,
}

/// The way back to the client that asks for a filter.
#[derive(Debug)]
pub(super) struct FilterReply {
    reply: oneshot::Sender<Result<(ActiveFilter, Option<SystemTime>), Full>>,
    requests: mpsc::Sender<Request>,
}

/// The use of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The counts are shown, but not exported.
    Look,
    /// An export of all metrics. Exports count for ended rows: these rows stay until two readings were exported.
    Export,
    /// A scrape by Prometheus or a compatible client at this address. A scrape is also an export, and new series first
    /// show zero.
    Scrape(IpAddr),
}

/// The sender of requests to the collector; cheap to clone.
#[derive(Clone, Debug)]
pub struct Reader {
    requests: mpsc::Sender<Request>,
    pods: Changes,
    latest: Latest,
}

/// The last reading, which is returned for a time without waking the collector. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Latest {
    known: Arc<Mutex<Known>>,
    returned_for: Duration,
}

#[derive(Debug, Default)]
struct Known {
    published: Option<Published>,
    scrapers: Scrapers,
}

#[derive(Debug)]
struct Published {
    at: Instant,
    observation: Arc<Observation>,
    exported: bool,
    scraped: bool,
}

/// Marks the first export and the first scrape of a reading.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FirstUse {
    pub(super) export: bool,
    pub(super) scrape: bool,
}

/// Changes of pods that wait for the collector.
pub(super) type Changes = Arc<Mutex<Pending>>;

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read { .. } => "Read",
            Self::Cut(_) => "Cut",
            Self::Filter(..) => "Filter",
            Self::Unfilter(_) => "Unfilter",
            Self::Subjects(_) => "Subjects",
            Self::Rules(..) => "Rules",
            Self::MaxMemory(_) => "MaxMemory",
            Self::Pods => "Pods",
            Self::Unwound(_) => "Unwound",
            Self::Stop => "Stop",
        })
    }
}

impl ActiveFilter {
    /// Returns the slot of the filter.
    #[must_use]
    pub const fn slot(&self) -> Slot {
        self.slot
    }
}

impl Drop for ActiveFilter {
    fn drop(&mut self) {
        // The collector may have stopped.
        self.requests.send(Request::Unfilter(self.slot)).ok();
    }
}

impl FilterReply {
    /// Gives the filter to the client. If the client goes away, now or before it takes the answer, the filter is
    /// dropped with the answer.
    pub(super) fn give(self, slot: Slot, began: Option<SystemTime>) {
        self.reply.send(Ok((ActiveFilter { slot, requests: self.requests }, began))).ok();
    }

    /// Tells the client that there is no room.
    pub(super) fn refuse(self, full: Full) {
        // The client may have gone.
        self.reply.send(Err(full)).ok();
    }
}

impl Latest {
    /// Returns a place without a reading. Each reading in it is returned for `returned_for`.
    pub(super) fn new(returned_for: Duration) -> Self {
        Self { known: Arc::default(), returned_for }
    }

    pub(super) fn publish(&self, at: Instant, observation: &Arc<Observation>) {
        let published = Published { at, observation: Arc::clone(observation), exported: false, scraped: false };
        self.lock().published = Some(published);
    }

    /// Notes the use of the reading; returns which uses are the first of their kind.
    pub(super) fn export(&self, purpose: Purpose) -> FirstUse {
        let mut known = self.lock();
        let Some(published) = &mut known.published else { return FirstUse::default() };
        FirstUse {
            export: purpose.exports() && !std::mem::replace(&mut published.exported, true),
            scrape: purpose.scrapes() && !std::mem::replace(&mut published.scraped, true),
        }
    }

    /// Returns the intervals of the known scrapers.
    pub(super) fn scrapes(&self) -> Scrapes {
        self.lock().scrapers.scrapes(Instant::now())
    }

    /// Returns the reading if it is younger than `returned_for`. Returns `None` for the first export and the first scrape
    /// of a reading, because the collector must count them.
    fn get(&self, purpose: Purpose) -> Option<Arc<Observation>> {
        let mut known = self.lock();
        if let Purpose::Scrape(address) = purpose {
            known.scrapers.note(address, Instant::now());
        }
        let published = known.published.as_ref().filter(|published| published.at.elapsed() < self.returned_for)?;
        let new = (purpose.exports() && !published.exported) || (purpose.scrapes() && !published.scraped);
        (!new).then(|| Arc::clone(&published.observation))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Purpose {
    const fn exports(self) -> bool {
        !matches!(self, Self::Look)
    }

    const fn scrapes(self) -> bool {
        matches!(self, Self::Scrape(_))
    }
}

impl Reader {
    pub(super) const fn new(requests: mpsc::Sender<Request>, pods: Changes, latest: Latest) -> Self {
        Self { requests, pods, latest }
    }

    /// Returns whether there is a reading of at most this age.
    #[must_use]
    pub fn has_read_within(&self, age: Duration) -> bool {
        self.latest.lock().published.as_ref().is_some_and(|published| published.at.elapsed() < age)
    }

    /// Returns the last reading, however old it is; `None` before the first one.
    #[must_use]
    pub fn last(&self) -> Option<Arc<Observation>> {
        self.latest.lock().published.as_ref().map(|published| Arc::clone(&published.observation))
    }

    /// Returns a reading for an HTTP request: the last one if it is less than a second old, otherwise a new one.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be read, or the collector has stopped.
    pub async fn read(&self, purpose: Purpose) -> Result<Arc<Observation>, ReadError> {
        self.ask(purpose, true).await
    }

    /// Reads as [`Reader::read`] does, but for the agent itself: the account of readers is not charged.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be read, or the collector has stopped.
    pub async fn read_for_itself(&self, purpose: Purpose) -> Result<Arc<Observation>, ReadError> {
        self.ask(purpose, false).await
    }

    async fn ask(&self, purpose: Purpose, charged: bool) -> Result<Arc<Observation>, ReadError> {
        if let Some(observation) = self.latest.get(purpose) {
            return Ok(observation);
        }
        let (reply, answer) = oneshot::channel();
        let request = Request::Read { purpose, charged, reply };
        self.requests.send(request).map_err(|mpsc::SendError(_)| ReadError::Stopped)?;
        answer.await.unwrap_or(Err(ReadError::Stopped))
    }

    /// Ends the current profile window and returns its start time, which identifies it. Returns `None` if the window
    /// could not be sent to the symbolizer, or if no profiles are made. Windows are cut at most once a second: a
    /// request waits for the end of that second.
    ///
    /// # Errors
    ///
    /// When the collector has stopped.
    pub async fn cut(&self) -> Result<Option<SystemTime>, ReadError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Cut(reply)).map_err(|mpsc::SendError(_)| ReadError::Stopped)?;
        answer.await.map_err(|oneshot::error::RecvError { .. }| ReadError::Stopped)
    }

    /// Cuts the window as [`Reader::cut`] does, and applies one more filter to later samples, until the returned filter
    /// is dropped.
    ///
    /// # Errors
    ///
    /// When the collector has stopped. The inner error is returned if there is no room for the filter.
    pub async fn add_filter(
        &self,
        filter: Filter,
    ) -> Result<Result<(ActiveFilter, Option<SystemTime>), Full>, ReadError> {
        let (reply, answer) = oneshot::channel();
        let reply = FilterReply { reply, requests: self.requests.clone() };
        self.requests
            .send(Request::Filter(Box::new(filter), reply))
            .map_err(|mpsc::SendError(_)| ReadError::Stopped)?;
        answer.await.map_err(|oneshot::error::RecvError { .. }| ReadError::Stopped)
    }

    /// Returns all living cgroups, each with the subject that a profile would give its samples.
    ///
    /// # Errors
    ///
    /// When the collector has stopped.
    pub async fn subjects(&self) -> Result<Vec<(CgroupId, Subject)>, ReadError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Request::Subjects(reply)).map_err(|mpsc::SendError(_)| ReadError::Stopped)?;
        answer.await.map_err(|oneshot::error::RecvError { .. }| ReadError::Stopped)
    }

    /// Changes the rules for rows: they apply from the next reading on, and existing rows keep their counts.
    ///
    /// # Errors
    ///
    /// When the collector has stopped.
    pub async fn set_rules(&self, rules: RowRules) -> Result<(), ReadError> {
        let (reply, answer) = oneshot::channel();
        let request = Request::Rules(Box::new(rules), reply);
        self.requests.send(request).map_err(|mpsc::SendError(_)| ReadError::Stopped)?;
        answer.await.map_err(|oneshot::error::RecvError { .. }| ReadError::Stopped)
    }

    /// Sets the largest amount of memory for podperf, from the next reading on.
    pub fn set_max_memory(&self, max: MaxMemory) {
        self.requests.send(Request::MaxMemory(max)).ok();
    }

    /// Sends a change of a pod. The number of waiting changes is bounded, see [`Pending`].
    pub fn send_pod(&self, change: PodChange) {
        let (first, lost) = self.pods.lock().unwrap_or_else(PoisonError::into_inner).push(change);
        if first {
            self.requests.send(Request::Pods).ok();
        }
        if lost > 0 {
            warn!(pods = lost, "more pods came and went than can wait for a reading: their counts may find no name");
        }
    }

    /// Sends how far the walks of a window's stacks came.
    pub fn send_unwound(&self, times: Vec<(Subject, Facts)>) {
        self.requests.send(Request::Unwound(times)).ok();
    }

    /// Requests that the collector sends its last profile and stops.
    pub fn stop(&self) {
        self.requests.send(Request::Stop).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn the_last_reading_costs_no_other_one() {
        let (requests, received) = mpsc::channel();
        let reader = Reader::new(requests, Changes::default(), Latest::new(Duration::ZERO));
        assert!(reader.last().is_none() && received.try_recv().is_err());
    }

    /// A leaked filter would take one of four slots until the agent ends.
    #[test]
    fn a_filter_goes_with_its_client_whenever_the_client_goes() {
        const SLOT: Slot = Slot(3);
        let (requests, received) = mpsc::channel();
        let reader = Reader::new(requests, Changes::default(), Latest::new(Duration::ZERO));
        let is_removed = || matches!(received.try_recv(), Ok(Request::Unfilter(SLOT)));
        let ask = || {
            let mut asks = Box::pin(reader.add_filter(Filter::default()));
            assert!(asks.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            let Ok(Request::Filter(_, reply)) = received.try_recv() else { panic!("no request for a filter") };
            (asks, reply)
        };

        let (asks, reply) = ask();
        drop(asks);
        reply.give(SLOT, None);
        assert!(is_removed(), "the client went before the answer");

        let (asks, reply) = ask();
        reply.give(SLOT, None);
        drop(asks);
        assert!(is_removed(), "the client went before it took the answer");

        let (mut asks, reply) = ask();
        reply.give(SLOT, None);
        let Poll::Ready(Ok(Ok((filter, None)))) = asks.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("no filter")
        };
        drop(asks);
        assert!(filter.slot() == SLOT && received.try_recv().is_err(), "it goes on");
        drop(filter);
        assert!(is_removed(), "the recording has ended");
    }
}
