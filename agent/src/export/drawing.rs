//! Makes one drawing at a time: one thread merges the windows of the last minutes, and writes recordings.
//!
//! Few requests may wait for a drawing; further requests are refused at once, with `Retry-After`. A client that goes
//! away frees its place. The memory that a drawing may take is compared with the memory limit before it begins, and is
//! returned to the system before the next one. The last drawing is kept, and sent again while the windows are the same.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc},
    thread,
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::flamegraph::Format;
use crate::{
    kernel::{memory::resident, return_free_memory},
    limits::memory::{GivenUp, Mebi},
    model::feature::Feature,
    recording::{RecordError, Selector, Side, Size, Windows},
    stacks::profile::Profile,
};

/// The largest number of requests that wait for a drawing, with the one that is being drawn.
const PLACES: usize = 4;
/// The most bytes that answers may take while they are being sent.
const MOST_UNREAD: usize = 16 << 20;
/// The bytes that any drawing may take: the widest frames, and their text twice while it grows.
const LEAST_BYTES: u64 = 24 << 20;
/// The bytes that a row of the start page takes in the tables beside the page, with its waits, and in the page: its
/// name is there six times, with its links and the pods that it waits for, and the text twice while it grows.
const LINE_BYTES: u64 = 2 << 10;
const ROW_BYTES: u64 = 8 << 10;
/// The bytes that a sample takes while it is drawn: a sum, a place in the tree and one in a list.
const SAMPLE_BYTES: u64 = 256;

/// A kind of drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Drawing {
    /// A flame graph as a page of the agent, with links.
    Page(Side),
    /// A flame graph as a file.
    File(Side, Format),
    /// A list of waits of at least this length.
    Waits(Duration),
    /// The start page of a reading.
    Overview {
        /// The number of the reading.
        reading: u64,
        /// The order and the choice of the rows.
        view: String,
        /// Number of rows of the reading.
        rows: usize,
        /// The largest number of rows in the page.
        most: usize,
    },
}

impl Drawing {
    /// Returns the number of bytes that the drawing may take, from windows of this size.
    fn needs(&self, size: Size) -> u64 {
        match self {
            // Windows are only added up.
            Self::Overview { rows, most, .. } => *rows as u64 * LINE_BYTES + *rows.min(most) as u64 * ROW_BYTES,
            _ => needs(size),
        }
    }
}

/// A kind of drawing and its subject: equal keys of equal windows are equal drawings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DrawingKey {
    pub(crate) what: Drawing,
    pub(crate) selector: Selector,
}

/// A drawing, and for a page the nonce of the script that may run in it.
#[derive(Debug, Default)]
pub(crate) struct Drawn {
    pub(crate) body: Vec<u8>,
    pub(crate) nonce: Option<String>,
}

/// A finished drawing. Its memory is freed when the last reader drops it.
#[derive(Clone, Debug)]
pub(crate) struct Answer(Arc<Drawn>);

/// The bytes of an answer.
struct Body(Arc<Drawn>);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.0.body
    }
}

impl Answer {
    pub(crate) fn body(&self) -> Bytes {
        Bytes::from_owner(Body(Arc::clone(&self.0)))
    }

    pub(crate) fn nonce(&self) -> Option<&str> {
        self.0.nonce.as_deref()
    }
}

/// Makes drawings. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct Drawer {
    places: Arc<Semaphore>,
    turn: Arc<Semaphore>,
    answers: Arc<Mutex<Answers>>,
    thread: Arc<Mutex<Option<mpsc::SyncSender<Job>>>>,
    given_up: GivenUp,
}

#[derive(Debug, Default)]
struct Answers {
    last: Option<(DrawingKey, u64, Answer)>,
    unread: Vec<Weak<Drawn>>,
}

struct Job {
    draw: Box<dyn FnOnce() -> Drawn + Send>,
    /// The key under which the drawing is kept, with the version of the windows; `None` if it is not kept.
    keep: Option<(DrawingKey, u64)>,
    answers: Arc<Mutex<Answers>>,
    reply: oneshot::Sender<Answer>,
    /// Dropped at the end of this drawing, even if the client has gone. The next drawing begins then.
    turn: OwnedSemaphorePermit,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("keep", &self.keep).finish_non_exhaustive()
    }
}

impl Drawer {
    /// Returns a drawer that has not started its thread. `given_up` limits the memory of drawings.
    pub(crate) fn new(given_up: GivenUp) -> Self {
        Self {
            places: Arc::new(Semaphore::new(PLACES)),
            turn: Arc::new(Semaphore::new(1)),
            answers: Arc::default(),
            thread: Arc::default(),
            given_up,
        }
    }

    /// Draws the windows of the last minutes, or returns the last drawing of them.
    pub(crate) async fn draw_windows(
        &self,
        windows: &Windows,
        key: DrawingKey,
        draw: impl FnOnce(&[Arc<Profile>]) -> Drawn + Send + 'static,
    ) -> Result<Answer, RecordError> {
        if let Some(kept) = self.cached(&key, windows.version().0) {
            return Ok(kept);
        }
        let _place = self.places.try_acquire().ok().ok_or(RecordError::Drawing)?;
        let turn = self.turn().await?;
        let (version, size) = windows.version();
        // The previous request may have asked for the same drawing.
        if let Some(kept) = self.cached(&key, version) {
            return Ok(kept);
        }
        self.reserve(key.what.needs(size))?;
        // The windows that are drawn may be newer than `version`, and never older.
        let windows = windows.clone();
        let draw = move || draw(&windows.recent());
        self.draw_now(turn, Some((key, version)), draw).await
    }

    /// Draws a recording. Its place is counted among recordings, not here.
    pub(crate) async fn draw(
        &self,
        size: Size,
        draw: impl FnOnce() -> Drawn + Send + 'static,
    ) -> Result<Answer, RecordError> {
        let turn = self.turn().await?;
        self.reserve(needs(size))?;
        self.draw_now(turn, None, draw).await
    }

    /// Returns whether there is room for a recording or a drawing of this size.
    ///
    /// # Errors
    ///
    /// When there is no room.
    pub(crate) fn has_room(&self, size: Size) -> Result<(), RecordError> {
        self.has_bytes(needs(size))
    }

    /// Returns whether the process may take so many bytes.
    ///
    /// # Errors
    ///
    /// When there is no room.
    pub(crate) fn has_bytes(&self, needs: u64) -> Result<(), RecordError> {
        if self.given_up.has_room(resident(), needs) {
            return Ok(());
        }
        Err(RecordError::Room { needs: Mebi(needs) })
    }

    /// Waits until no other drawing is in progress.
    async fn turn(&self) -> Result<OwnedSemaphorePermit, RecordError> {
        Arc::clone(&self.turn).acquire_owned().await.ok().ok_or(RecordError::Broken)
    }

    /// Drops the last drawing, and checks that there is room for a new one.
    fn reserve(&self, needs: u64) -> Result<(), RecordError> {
        {
            let mut answers = lock(&self.answers);
            answers.last = None;
            answers.unread.retain(|answer| answer.strong_count() > 0);
            let unread = answers.unread.iter().filter_map(Weak::upgrade).map(|answer| answer.body.len());
            if unread.sum::<usize>() > MOST_UNREAD {
                return Err(RecordError::Unread);
            }
        }
        self.has_bytes(needs)
    }

    async fn draw_now(
        &self,
        turn: OwnedSemaphorePermit,
        keep: Option<(DrawingKey, u64)>,
        draw: impl FnOnce() -> Drawn + Send + 'static,
    ) -> Result<Answer, RecordError> {
        let (reply, answer) = oneshot::channel();
        let keep = keep.filter(|_| !self.given_up.has(Feature::Caches));
        let job = Job { draw: Box::new(draw), keep, answers: Arc::clone(&self.answers), reply, turn };
        {
            let mut thread = lock(&self.thread);
            if thread.is_none() {
                *thread =
                    start().inspect_err(|error| tracing::warn!(%error, "failed to start the drawing thread")).ok();
            }
            // The channel has room for the one job whose turn it is.
            if thread.as_ref().is_none_or(|thread| thread.try_send(job).is_err()) {
                *thread = None;
                return Err(RecordError::Broken);
            }
        }
        answer.await.ok().ok_or(RecordError::Broken)
    }

    fn cached(&self, key: &DrawingKey, version: u64) -> Option<Answer> {
        let answers = lock(&self.answers);
        let last = answers.last.as_ref();
        last.filter(|(of, then, _)| of == key && *then == version).map(|(.., answer)| answer.clone())
    }
}

/// Starts the only drawing thread, so that drawings take memory in one arena of the allocator. The thread ends with the
/// last drawer.
fn start() -> io::Result<mpsc::SyncSender<Job>> {
    let (sender, jobs) = mpsc::sync_channel::<Job>(1);
    thread::Builder::new().name("podperf-draw".into()).spawn(move || {
        for Job { draw, keep, answers, reply, turn } in jobs {
            // A panic was logged already, and only this answer fails.
            let drawn = catch_unwind(AssertUnwindSafe(draw)).ok();
            if let Some(mut drawn) = drawn {
                drawn.body.shrink_to_fit();
                let answer = Answer(Arc::new(drawn));
                let mut answers = lock(&answers);
                answers.unread.push(Arc::downgrade(&answer.0));
                answers.last = keep.map(|(key, version)| (key, version, answer.clone()));
                drop(answers);
                reply.send(answer).ok();
            }
            return_free_memory();
            drop(turn);
        }
    })?;
    Ok(sender)
}

/// Returns the number of bytes that a drawing may take. Each stack and frame is in a table beside the windows.
fn needs(size: Size) -> u64 {
    LEAST_BYTES + size.samples as u64 * SAMPLE_BYTES + size.bytes as u64 / 2
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "drawing_tests.rs"]
mod tests;
