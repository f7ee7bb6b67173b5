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
        self.reserve(size)?;
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
        self.reserve(size)?;
        self.draw_now(turn, None, draw).await
    }

    /// Returns whether there is room for a recording or a drawing of this size.
    ///
    /// # Errors
    ///
    /// When there is no room.
    pub(crate) fn has_room(&self, size: Size) -> Result<(), RecordError> {
        let needs = needs(size);
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
    fn reserve(&self, size: Size) -> Result<(), RecordError> {
        {
            let mut answers = lock(&self.answers);
            answers.last = None;
            answers.unread.retain(|answer| answer.strong_count() > 0);
            let unread = answers.unread.iter().filter_map(Weak::upgrade).map(|answer| answer.body.len());
            if unread.sum::<usize>() > MOST_UNREAD {
                return Err(RecordError::Unread);
            }
        }
        self.has_room(size)
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
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn key(selector: &str) -> DrawingKey {
        DrawingKey { what: Drawing::Page(Side::OffCpu), selector: selector.parse().unwrap() }
    }

    fn drawn(length: usize) -> Drawn {
        Drawn { body: vec![b'x'; length], nonce: None }
    }

    /// Starts a drawing that lasts until the returned sender is dropped.
    async fn busy(drawer: &Drawer, windows: &Windows) -> (mpsc::Sender<()>, tokio::task::JoinHandle<()>) {
        let (end, ends) = mpsc::channel::<()>();
        let (begin, begun) = oneshot::channel();
        let (drawer, windows) = (drawer.clone(), windows.clone());
        let draw = move |_: &[Arc<Profile>]| {
            begin.send(()).ok();
            ends.recv().ok();
            drawn(1)
        };
        let task = tokio::spawn(async move {
            drawer.draw_windows(&windows, key("/busy"), draw).await.unwrap();
        });
        begun.await.unwrap();
        (end, task)
    }

    #[tokio::test]
    async fn one_is_drawn_few_wait_and_the_rest_is_refused_at_once() {
        let (drawer, windows) = (Drawer::new(GivenUp::default()), Windows::new(GivenUp::default()));
        let (end, first) = busy(&drawer, &windows).await;
        let (at_once, most_at_once) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut waiting = Vec::new();
        for number in 0..64 {
            let (drawer, windows) = (drawer.clone(), windows.clone());
            let (at_once, most) = (Arc::clone(&at_once), Arc::clone(&most_at_once));
            waiting.push(tokio::spawn(async move {
                let draw = move |_: &[Arc<Profile>]| {
                    most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(5));
                    at_once.fetch_sub(1, Ordering::SeqCst);
                    drawn(number)
                };
                drawer.draw_windows(&windows, key(&format!("/{number}")), draw).await.map(|answer| answer.body().len())
            }));
        }
        // The requests without a place are refused while the first drawing is still in progress.
        let refused = async {
            loop {
                tokio::task::yield_now().await;
                if waiting.iter().filter(|task| task.is_finished()).count() == 64 - (PLACES - 1) {
                    break;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), refused).await.unwrap();
        drop(end);
        first.await.unwrap();
        let mut answered = 0;
        for (number, task) in waiting.into_iter().enumerate() {
            match task.await.unwrap() {
                Ok(length) => {
                    assert_eq!(length, number);
                    answered += 1;
                }
                Err(error) => assert!(matches!(error, RecordError::Drawing), "{error}"),
            }
        }
        assert_eq!((answered, most_at_once.load(Ordering::SeqCst)), (PLACES - 1, 1));
    }

    #[tokio::test]
    async fn who_goes_away_frees_the_place() {
        let (drawer, windows) = (Drawer::new(GivenUp::default()), Windows::new(GivenUp::default()));
        let (end, first) = busy(&drawer, &windows).await;
        for round in 0..10 {
            let mut waiting = Vec::new();
            for number in 1..PLACES {
                let (drawer, windows) = (drawer.clone(), windows.clone());
                waiting.push(tokio::spawn(async move {
                    drawer.draw_windows(&windows, key(&format!("/{number}")), |_| drawn(1)).await.map(drop)
                }));
            }
            while drawer.places.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            let refused = drawer.draw_windows(&windows, key("/x"), |_| drawn(1)).await;
            assert!(matches!(refused, Err(RecordError::Drawing)), "{round}");
            for task in waiting {
                task.abort();
                task.await.unwrap_err();
            }
            assert_eq!(drawer.places.available_permits(), PLACES - 1);
        }
        // The client of the drawing in progress goes away, too. Its turn lasts until the drawing ends, but its place is
        // free.
        first.abort();
        first.await.unwrap_err();
        assert_eq!((drawer.places.available_permits(), drawer.turn.available_permits()), (PLACES, 0));
        drop(end);
        assert_eq!(drawer.draw_windows(&windows, key("/x"), |_| drawn(7)).await.unwrap().body().len(), 7);
    }

    #[tokio::test]
    async fn the_last_drawing_is_handed_out_again_while_the_windows_are_the_same() {
        let (drawer, windows) = (Drawer::new(GivenUp::default()), Windows::new(GivenUp::default()));
        let times = Arc::new(AtomicUsize::new(0));
        let draw = async |of: &str| {
            let times = Arc::clone(&times);
            let draw = move |_: &[Arc<Profile>]| drawn(times.fetch_add(1, Ordering::SeqCst) + 1);
            drawer.draw_windows(&windows, key(of), draw).await.unwrap().body().len()
        };
        assert_eq!([draw("/a").await, draw("/a").await, draw("/b").await, draw("/b").await], [1, 1, 2, 2]);
        assert_eq!(draw("/a").await, 3, "only the last one is kept");
        windows.publish(&Arc::default());
        assert_eq!([draw("/a").await, draw("/a").await], [4, 4]);
        drawer.given_up.set(1);
        windows.publish(&Arc::default());
        assert_eq!([draw("/a").await, draw("/a").await], [5, 6], "nothing is kept while caches are given up");
    }

    #[tokio::test]
    async fn answers_that_nobody_reads_are_bounded() {
        let (drawer, windows) = (Drawer::new(GivenUp::default()), Windows::new(GivenUp::default()));
        let draw = async |of: &str| drawer.draw_windows(&windows, key(of), |_| drawn(MOST_UNREAD / 2 + 1)).await;
        let held = [draw("/a").await.unwrap().body(), draw("/b").await.unwrap().body()];
        assert!(matches!(draw("/c").await, Err(RecordError::Unread)));
        drop(held);
        draw("/c").await.unwrap();
    }

    #[tokio::test]
    async fn without_room_nothing_is_begun() {
        let given_up = GivenUp::default();
        let (drawer, windows) = (Drawer::new(given_up.clone()), Windows::new(given_up.clone()));
        given_up.set_most_resident(resident() + LEAST_BYTES / 2);
        let begun = Arc::new(AtomicUsize::new(0));
        let draw = async || {
            let begun = Arc::clone(&begun);
            let draw = move |_: &[Arc<Profile>]| drawn(begun.fetch_add(1, Ordering::SeqCst));
            drawer.draw_windows(&windows, key("/a"), draw).await
        };
        let error = draw().await.unwrap_err().to_string();
        assert!(error.contains("takes up to 24 MiB") && error.contains("`overhead.maxMemory`"), "{error}");
        assert_eq!(begun.load(Ordering::SeqCst), 0);
        given_up.set_most_resident(u64::MAX);
        draw().await.unwrap();
    }

    #[tokio::test]
    async fn a_drawing_that_panics_is_one_answer() {
        let (drawer, windows) = (Drawer::new(GivenUp::default()), Windows::new(GivenUp::default()));
        let broken = drawer.draw_windows(&windows, key("/a"), |_| panic!("of this test")).await;
        assert!(matches!(broken, Err(RecordError::Broken)));
        assert_eq!(drawer.draw_windows(&windows, key("/a"), |_| drawn(7)).await.unwrap().body().len(), 7);
    }
}
