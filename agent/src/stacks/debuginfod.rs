//! Debug files from debuginfod servers, for the names of stripped files. Off unless servers are configured.
//!
//! The thread for files looks into the cache, and reads a debug file as it reads any other stranger's file. It has no
//! sockets and writes nothing. So the symbolizer notes which files it used and which ones are missing, and the thread
//! `podperf-fetch` asks the servers (`worker`). The files that have arrived are used from the next window on. Only
//! these two threads touch the disk of the cache, which may hang.

mod cache;
mod queue;
mod servers;
mod worker;

use std::{
    collections::HashSet,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc as std_mpsc,
    },
    thread,
    time::Duration,
};

use anyhow::Context as _;
use tokio::{runtime, sync::mpsc};

use self::{cache::Cache, queue::Queue, servers::Servers, worker::Worker};
use super::files::open_inside;
use crate::model::status::{State, Status};
pub use servers::{UrlError, parse as parse_url};

/// The part's name at `/status`.
const PART: &str = "debuginfod";
const THREAD: &str = "podperf-fetch";
/// The directory below the configured one. The agent closes it to other users.
const DIRECTORY: &str = "debuginfod";
/// The most notes that wait for the thread.
const NOTES: usize = 1024;
/// The longest wait for the cache at the start of the agent.
const TO_OPEN: Duration = Duration::from_secs(2);

/// The settings of debuginfod.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The addresses of the servers, at least one.
    pub urls: Vec<String>,
    /// The directory above that of the cache.
    pub cache_dir: PathBuf,
    /// The largest size of the cache, in bytes.
    pub max_cache: u64,
    /// True to ask for the debug files of pods' files, too.
    pub pods: bool,
}

/// The outcome of a debug file that names needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    /// A server sent the file.
    Found,
    /// No server has the file.
    NotFound,
    /// The file takes more than a quarter of the cache.
    TooLarge,
    /// A server did not answer, or the file could not be written.
    Failed,
    /// A file in the cache has another build id, or no symbols.
    Unusable,
    /// Too many files waited, so nobody was asked.
    NotAsked,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; 6] =
        [Self::Found, Self::NotFound, Self::TooLarge, Self::Failed, Self::Unusable, Self::NotAsked];

    /// Returns the label value in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The counts of debug files. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct FetchCounts(Arc<([AtomicU64; Outcome::ALL.len()], AtomicU64)>);

/// The current counts of debug files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchStats {
    /// The files, in the order of [`Outcome::ALL`].
    pub outcomes: [u64; Outcome::ALL.len()],
    /// The size of the cache, in bytes.
    pub cache_bytes: u64,
}

impl FetchCounts {
    /// Returns the current counts.
    #[must_use]
    pub fn stats(&self) -> FetchStats {
        let (outcomes, bytes) = &*self.0;
        FetchStats {
            outcomes: outcomes.each_ref().map(|count| count.load(Ordering::Relaxed)),
            cache_bytes: bytes.load(Ordering::Relaxed),
        }
    }

    fn count(&self, outcome: Outcome) {
        self.0.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn set_cache_bytes(&self, bytes: u64) {
        self.0.1.store(bytes, Ordering::Relaxed);
    }
}

/// The part that a debug file had in a lookup of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DebugFile {
    /// All names were found elsewhere, or the cache cannot be read.
    #[default]
    NotNeeded,
    /// Its names were used.
    Used,
    /// The file in the cache has another build id, or no symbols.
    Unusable,
    /// Names are missing, and so is the file.
    Missing,
}

/// A note about a debug file for the thread that asks the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// The pod or the row of cgroups whose names were looked up.
    pub(super) owner: String,
    pub(super) build_id: String,
    /// Anything but `NotNeeded`.
    pub(super) debug_file: DebugFile,
}

/// The cache as the thread for files sees it.
#[derive(Clone, Debug)]
pub(super) struct DebugFiles {
    directory: Arc<Path>,
    pods: bool,
}

impl DebugFiles {
    /// Opens the debug file of a build id. The caller must check the file's own build id.
    pub(super) fn open(&self, build_id: &str) -> io::Result<File> {
        open_inside(&self.directory, &cache::name_of(build_id))
    }

    /// Returns whether pods' files may be asked for.
    pub(super) const fn are_for_pods(&self) -> bool {
        self.pods
    }

    #[cfg(test)]
    pub(super) fn in_directory(directory: &Path, pods: bool) -> Self {
        Self { directory: directory.into(), pods }
    }
}

/// The symbolizer's end of the way to the servers.
#[derive(Debug)]
pub struct Fetcher {
    files: DebugFiles,
    /// Set when the thread has found that the cache is the agent's own.
    is_open: Arc<AtomicBool>,
    notes: mpsc::Sender<Note>,
    arrived: std_mpsc::Receiver<String>,
    counts: FetchCounts,
}

impl Fetcher {
    /// Returns the cache; `None` if it cannot be used.
    pub(super) fn files(&self) -> Option<DebugFiles> {
        self.is_open.load(Ordering::Acquire).then(|| self.files.clone())
    }

    /// Sends a note. It is dropped if too many wait. Must not be called on a thread for files: the wake-up of the other
    /// thread needs a descriptor of this process.
    pub(super) fn tell(&self, note: Note) {
        let is_missing = note.debug_file == DebugFile::Missing;
        if self.notes.try_send(note).is_err() && is_missing {
            self.counts.count(Outcome::NotAsked);
        }
    }

    /// Returns the build ids whose debug files have changed since the last call.
    pub(super) fn arrived(&self) -> HashSet<String> {
        self.arrived.try_iter().collect()
    }

    /// Returns a fetcher without a thread, and the notes that it sends.
    #[cfg(test)]
    pub(super) fn of_channel(files: DebugFiles) -> (Self, mpsc::Receiver<Note>) {
        let ((notes, noted), (_, arrived)) = (mpsc::channel(NOTES), std_mpsc::channel());
        let (is_open, counts) = (Arc::new(AtomicBool::new(true)), FetchCounts::default());
        (Self { files, is_open, notes, arrived, counts }, noted)
    }
}

/// Starts the thread, which opens the cache, and ends when the fetcher is dropped. If this fails, the part `debuginfod`
/// has the reason.
#[must_use]
pub fn start(settings: Settings, status: Status) -> (Option<Fetcher>, FetchCounts) {
    let counts = FetchCounts::default();
    match begin(settings, status.clone(), counts.clone()) {
        Ok(fetcher) => (Some(fetcher), counts),
        Err(error) => {
            status.set(PART, State::Failed, format!("{error:#}"));
            (None, counts)
        }
    }
}

fn begin(settings: Settings, status: Status, counts: FetchCounts) -> anyhow::Result<Fetcher> {
    let Settings { urls, cache_dir, max_cache, pods } = settings;
    let servers = Servers::new(&urls, |name| std::env::var(name).ok())?;
    let directory = cache_dir.join(DIRECTORY);
    let files = DebugFiles { directory: directory.as_path().into(), pods };
    let (notes, noted) = mpsc::channel(NOTES);
    let (send_arrived, arrived) = std_mpsc::channel();
    let is_open = Arc::<AtomicBool>::default();
    let fetcher = Fetcher { files, is_open: Arc::clone(&is_open), notes, arrived, counts: counts.clone() };
    let (answer, answered) = std_mpsc::channel::<()>();
    let (path, told) = (directory.clone(), status.clone());
    let run = move || match open(&path, max_cache) {
        Ok((cache, runtime)) => {
            let queue = Queue::new(cache.max_file());
            let worker = Worker::new(servers, queue, cache, counts, send_arrived, told);
            is_open.store(true, Ordering::Release);
            drop(answer);
            runtime.block_on(worker.run(noted));
            // A lookup of a server's address may hang.
            runtime.shutdown_background();
        }
        Err(error) => told.set(PART, State::Failed, format!("{error:#}")),
    };
    thread::Builder::new().name(THREAD.into()).spawn(run).context("failed to start the thread")?;
    // The thread drops its end once it has the cache, or a reason.
    if answered.recv_timeout(TO_OPEN) == Err(std_mpsc::RecvTimeoutError::Timeout) {
        status.set(PART, State::Failed, format!("the disk of `{}` does not answer", directory.display()));
    }
    Ok(fetcher)
}

/// Opens the cache, and makes the runtime for the requests.
fn open(directory: &Path, max_cache: u64) -> anyhow::Result<(Cache, runtime::Runtime)> {
    let cache = Cache::open(directory, max_cache).with_context(|| {
        let name = directory.display();
        format!("failed to use `{name}` (make it writable for the agent alone, or set `stacks.debuginfod.cacheDir`)")
    })?;
    let runtime = runtime::Builder::new_current_thread().enable_all().thread_name(THREAD).build();
    Ok((cache, runtime.context("failed to start the runtime")?))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    /// Starts the part with a cache in this directory. Returns whether files are read from there, and the part's state.
    fn started(cache_dir: &Path) -> (bool, State, String) {
        let (urls, status) = (vec!["http://127.0.0.1:1".into()], Status::default());
        let settings = Settings { urls, cache_dir: cache_dir.to_owned(), max_cache: 1 << 20, pods: false };
        let (fetcher, _) = start(settings, status.clone());
        let part = status.parts().remove(0);
        (fetcher.is_some_and(|fetcher| fetcher.files().is_some()), part.state, part.detail)
    }

    #[test]
    fn a_cache_that_others_may_write_to_is_not_read() {
        let top = tempfile::tempdir().unwrap();
        let (is_read, state, _) = started(top.path());
        assert!(is_read && state == State::Healthy);
        let directory = top.path().join("others");
        fs::create_dir_all(directory.join(DIRECTORY)).unwrap();
        fs::set_permissions(directory.join(DIRECTORY), fs::Permissions::from_mode(0o777)).unwrap();
        let (is_read, state, says) = started(&directory);
        assert!(!is_read && state == State::Failed && says.contains("other users may write to it"), "{says}");
    }
}
