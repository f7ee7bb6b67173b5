//! Sends the symbolizer's windows to pages and to the recordings in progress.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc},
    time::sleep,
};

use super::{Recent, Size};
use crate::{
    collector::{ActiveFilter, ReadError, Reader},
    filter::{Filter, Full},
    limits::memory::GivenUp,
    model::{feature::Feature, random::random},
    stacks::{LONGEST_NAMING, profile::Profile},
};

/// The largest number of recordings at a time: each recording adds up all windows.
const MOST_RECORDINGS: usize = 4;
/// The largest number of windows that wait for a recording; a recording takes each window at once.
const WAITING: usize = 16;
/// The longest wait for one window while the symbolizer is at work. At its start it reads the most, and on a busy node it
/// waits for a CPU besides.
pub(super) const ON_THE_WAY: Duration = LONGEST_NAMING.saturating_mul(2);
/// The time between two tries to cut a window.
const AGAIN: Duration = Duration::from_millis(200);
/// The largest number of windows that were cut and are in the symbolizer. Windows that end by themselves are not
/// counted.
const CUTS_ON_THE_WAY: usize = 2;

/// The hub of windows between the symbolizer and the readers. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct Windows {
    inner: Arc<Mutex<Inner>>,
    /// The permits for cuts; each is held while a cut window is in the symbolizer. The symbolizer's queue is short, and
    /// a window that finds no room in it is lost to all readers.
    cuts: Arc<Semaphore>,
    given_up: GivenUp,
}

#[derive(Debug, Default)]
struct Inner {
    recent: Recent,
    recordings: BTreeMap<String, (mpsc::Sender<Arc<Profile>>, Arc<Control>)>,
    /// The start times of windows that were cut and are in the symbolizer.
    on_the_way: Vec<(SystemTime, OwnedSemaphorePermit)>,
    closed: bool,
}

/// The handle by which other tasks watch and end a recording in progress.
#[derive(Debug)]
pub struct Control {
    began: OnceLock<Instant>,
    count: AtomicU64,
    ended: AtomicBool,
    end: Notify,
}

/// The place of a recording. Dropping it frees the place.
#[derive(Debug)]
pub struct Registration {
    pub(super) windows: mpsc::Receiver<Arc<Profile>>,
    pub(super) control: Arc<Control>,
    id: String,
    hub: Windows,
}

impl Windows {
    /// Returns a hub without windows. While `given_up` contains the caches, only the newest window is kept.
    #[must_use]
    pub fn new(given_up: GivenUp) -> Self {
        Self { inner: Arc::default(), cuts: Arc::new(Semaphore::new(CUTS_ON_THE_WAY)), given_up }
    }

    /// Sends a window to its readers. It never waits: a recording with a full queue misses this window. Without memory
    /// for recordings, the recordings in progress end with the samples so far.
    pub fn publish(&self, profile: &Arc<Profile>) {
        let mut inner = self.lock();
        inner.recent.push(Arc::clone(profile));
        if self.given_up.has(Feature::Caches) {
            inner.recent.forget();
        }
        if !self.has_memory() {
            inner.recordings.values().for_each(|(_, control)| control.end());
        }
        inner.on_the_way.retain(|(start, _)| Some(*start) != profile.start);
        for (sender, _) in inner.recordings.values() {
            // A recording with a full queue misses the window. It counts a loss only if this was its last window.
            sender.try_send(Arc::clone(profile)).ok();
        }
    }

    /// Returns whether there is memory for recordings and flame graphs.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        !self.given_up.has(Feature::Recordings)
    }

    /// Returns the windows of the last minutes, the oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Arc<Profile>> {
        self.lock().recent.windows()
    }

    /// Returns a number that changes with [`Self::recent`], and the size of these windows.
    #[must_use]
    pub fn version(&self) -> (u64, Size) {
        let inner = self.lock();
        (inner.recent.version(), inner.recent.size())
    }

    /// Adds a recording with an id that no other recording has. Returns `None` when there are too many recordings, the
    /// id is taken, or the agent is ending.
    #[must_use]
    pub fn enter(&self, id: Option<&str>) -> Option<Registration> {
        let mut inner = self.lock();
        // A request with this id ends the recording, so other readers must not guess it.
        let id = id.map_or_else(|| format!("{:016x}", random()), str::to_owned);
        if inner.closed || inner.recordings.len() >= MOST_RECORDINGS || inner.recordings.contains_key(&id) {
            return None;
        }
        let (sender, windows) = mpsc::channel(WAITING);
        let control = Arc::new(Control {
            began: OnceLock::new(),
            count: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            end: Notify::new(),
        });
        inner.recordings.insert(id.clone(), (sender, Arc::clone(&control)));
        Some(Registration { windows, control, id, hub: self.clone() })
    }

    /// Returns the recording with this id, if it is in progress.
    #[must_use]
    pub fn recording(&self, id: &str) -> Option<Arc<Control>> {
        self.lock().recordings.get(id).map(|(_, control)| Arc::clone(control))
    }

    /// Ends all recordings, and accepts no new ones. Each recording gets a last window; if that takes longer than `most`,
    /// it ends with the windows so far.
    pub async fn end(&self, most: Duration) {
        let controls: Vec<_> = {
            let mut inner = self.lock();
            inner.closed = true;
            inner.recordings.values().map(|(_, control)| Arc::clone(control)).collect()
        };
        controls.iter().for_each(|control| control.end());
        let deadline = Instant::now() + most;
        while !self.lock().recordings.is_empty() && Instant::now() < deadline {
            sleep(most / 100).await;
        }
        self.close();
    }

    /// Ends all recordings at once, with the windows so far, and accepts no new ones.
    fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.recordings.clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    /// Returns the time since the recording began; `None` before its start.
    #[must_use]
    pub fn elapsed(&self) -> Option<Duration> {
        self.began.get().map(Instant::elapsed)
    }

    /// Returns the number of waits or samples so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Ends the recording now, with the samples so far.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.end.notify_one();
    }

    pub(super) fn begin(&self) {
        self.began.get_or_init(Instant::now);
    }

    pub(super) fn set_count(&self, count: u64) {
        self.count.store(count, Ordering::Relaxed);
    }

    /// Resolves when the recording must end.
    pub(super) async fn wanted_to_end(&self) {
        while !self.ended.load(Ordering::Relaxed) {
            self.end.notified().await;
        }
    }
}

impl Registration {
    /// Cuts the current window, once there is a permit, and returns the start of that window. Returns `None` if the
    /// window was lost.
    pub(super) async fn cut(&self, reader: &Reader) -> Result<Option<SystemTime>, ReadError> {
        let permit = self.permit().await;
        let deadline = Instant::now() + ON_THE_WAY;
        let start = loop {
            let start = reader.cut().await?;
            if start.is_some() || Instant::now() > deadline {
                break start;
            }
            sleep(AGAIN).await;
        };
        self.on_the_way(start, permit);
        Ok(start)
    }

    /// Cuts the current window as [`Self::cut`] does, and from then on matches samples against this filter.
    pub(super) async fn begin(
        &self,
        reader: &Reader,
        filter: Filter,
    ) -> Result<Result<(ActiveFilter, Option<SystemTime>), Full>, ReadError> {
        let permit = self.permit().await;
        let deadline = Instant::now() + ON_THE_WAY;
        let begun = loop {
            let begun = reader.add_filter(filter.clone()).await?;
            if !matches!(begun, Ok((_, None))) || Instant::now() >= deadline {
                break begun;
            }
            // Others may use the slot meanwhile.
            drop(begun);
            sleep(AGAIN).await;
        };
        if let Ok((_, start)) = &begun {
            self.on_the_way(*start, permit);
        }
        Ok(begun)
    }

    /// Waits for a permit. It never returns `None`, since the semaphore is never closed.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.hub.cuts).acquire_owned().await.ok()
    }

    fn on_the_way(&self, start: Option<SystemTime>, permit: Option<OwnedSemaphorePermit>) {
        let (Some(start), Some(permit)) = (start, permit) else { return };
        let mut inner = self.hub.lock();
        // The window may already have arrived.
        if !inner.recent.windows().iter().any(|window| window.start == Some(start)) {
            inner.on_the_way.push((start, permit));
        }
    }

    /// Notes that the recording begins now.
    pub fn began(&self) {
        self.control.begin();
    }

    /// Sets the number of calls so far.
    pub fn set_count(&self, count: u64) {
        self.control.set_count(count);
    }

    /// Resolves when the recording must end, or when the agent ends. Windows that come meanwhile are dropped.
    pub async fn wanted_to_end(&mut self) {
        loop {
            tokio::select! {
                () = self.control.wanted_to_end() => return,
                window = self.windows.recv() => if window.is_none() {
                    return;
                },
            }
        }
    }

    /// Returns the handle that other tasks use.
    #[must_use]
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.hub.lock().recordings.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_few_and_free_again() {
        let windows = Windows::new(GivenUp::default());
        let mut registrations: Vec<_> = (0..MOST_RECORDINGS).map(|_| windows.enter(None).unwrap()).collect();
        assert!(windows.enter(None).is_none());
        registrations.pop();
        assert!(windows.enter(None).is_some());
    }

    #[test]
    fn an_id_that_no_client_chose_cannot_be_guessed() {
        let windows = Windows::new(GivenUp::default());
        let ids = [windows.enter(None).unwrap().id.clone(), windows.enter(None).unwrap().id.clone()];
        assert_ne!(ids[0], ids[1]);
        assert!(ids.iter().all(|id| id.len() == 16), "{ids:?}");
        // A counter would have the same first half.
        assert_ne!(ids[0][..8], ids[1][..8]);
    }

    #[test]
    fn an_id_is_one_recordings_while_it_is_in_progress() {
        let windows = Windows::new(GivenUp::default());
        let registration = windows.enter(Some("a")).unwrap();
        assert!(windows.enter(Some("a")).is_none() && windows.recording("a").is_some());
        drop(registration);
        assert!(windows.recording("a").is_none() && windows.enter(Some("a")).is_some());
    }

    #[test]
    fn a_window_reaches_pages_and_recordings_and_a_slow_one_holds_nobody_up() {
        let windows = Windows::new(GivenUp::default());
        let mut registration = windows.enter(None).unwrap();
        (0..2 * WAITING).for_each(|_| windows.publish(&Arc::default()));
        assert_eq!(std::iter::from_fn(|| registration.windows.try_recv().ok()).count(), WAITING);
        assert_eq!(windows.recent().len(), 2 * WAITING);
    }

    #[test]
    fn what_is_given_up_for_memory_is_not_kept_and_recordings_in_progress_end() {
        let given_up = GivenUp::default();
        let windows = Windows::new(given_up.clone());
        let mut registration = windows.enter(None).unwrap();
        (0..3).for_each(|_| windows.publish(&Arc::default()));
        given_up.set(1);
        windows.publish(&Arc::default());
        assert!(
            windows.recent().len() == 1 && windows.has_memory() && !registration.control.ended.load(Ordering::Relaxed)
        );
        given_up.set(2);
        windows.publish(&Arc::default());
        assert!(!windows.has_memory() && registration.control.ended.load(Ordering::Relaxed));
        assert_eq!(std::iter::from_fn(|| registration.windows.try_recv().ok()).count(), 5, "it lost what it had");
    }

    #[tokio::test]
    async fn recordings_of_an_ending_agent_get_their_last_window() {
        let windows = Windows::new(GivenUp::default());
        let mut registration = windows.enter(None).unwrap();
        let end = tokio::spawn({
            let windows = windows.clone();
            async move { windows.end(Duration::from_secs(20)).await }
        });
        registration.control.wanted_to_end().await;
        assert!(windows.enter(None).is_none());
        windows.publish(&Arc::default());
        assert!(registration.windows.recv().await.is_some());
        drop(registration);
        end.await.unwrap();
        // A recording that gets no window does not hold up the end.
        let windows = Windows::new(GivenUp::default());
        let mut registration = windows.enter(None).unwrap();
        windows.end(Duration::from_millis(10)).await;
        assert!(registration.windows.recv().await.is_none());
    }

    #[test]
    fn after_the_close_there_is_nothing_to_wait_for() {
        let windows = Windows::new(GivenUp::default());
        let mut registration = windows.enter(None).unwrap();
        windows.close();
        assert!(matches!(registration.windows.try_recv(), Err(mpsc::error::TryRecvError::Disconnected)));
        assert!(windows.enter(None).is_none());
    }
}
