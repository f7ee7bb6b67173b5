//! The task that asks for debug files, one at a time, on a thread and a runtime of its own: it waits for the disk.

use std::{
    pin::pin,
    sync::mpsc as std_mpsc,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, time::timeout};

use super::{
    DebugFile, FetchCounts, Note, Outcome, PART,
    cache::{Cache, Origin, is_build_id},
    queue::{ABSENT_FOR, FAILED_FOR, Queue, Wanted},
    servers::{Asked, Servers},
};
use crate::{
    limits::memory::Mebi,
    model::status::{State, Status},
};

/// The longest time between two looks at the shares of owners, while files wait.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The same time while no file waits.
const IDLE: Duration = Duration::from_secs(3600);

/// The state of the task.
#[derive(Debug)]
pub(super) struct Worker {
    servers: Servers,
    known: Known,
    status: Status,
}

/// The files that are known, and those that are wanted.
#[derive(Debug)]
struct Known {
    queue: Queue,
    cache: Cache,
    counts: FetchCounts,
    arrived: std_mpsc::Sender<String>,
}

impl Worker {
    pub(super) fn new(
        servers: Servers,
        queue: Queue,
        cache: Cache,
        counts: FetchCounts,
        arrived: std_mpsc::Sender<String>,
        status: Status,
    ) -> Self {
        let this = Self { servers, known: Known { queue, cache, counts, arrived }, status };
        this.tell(None);
        this
    }

    /// Runs until the sender of notes is gone.
    pub(super) async fn run(mut self, mut notes: mpsc::Receiver<Note>) {
        loop {
            let now = Instant::now();
            let rest = self.servers.rest(now);
            let next = if rest.is_zero() { self.known.queue.next(now) } else { None };
            let goes_on = match next {
                Some(wanted) => self.fetch(wanted, &mut notes).await,
                None => {
                    let wait = if self.known.queue.is_empty() { IDLE } else { rest.max(LOOK_EVERY) };
                    match timeout(wait, notes.recv()).await {
                        Ok(Some(note)) => {
                            if let Some(problem) = self.known.take(note) {
                                self.tell(Some(problem));
                            }
                        }
                        Ok(None) => return,
                        Err(_) => {}
                    }
                    true
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Asks for one file, and takes notes meanwhile. Returns false if the sender of notes is gone.
    async fn fetch(&mut self, wanted: Wanted, notes: &mut mpsc::Receiver<Note>) -> bool {
        let Self { servers, known, .. } = self;
        let mut file = match known.cache.begin(&wanted.build_id) {
            Ok(file) => file,
            Err(error) => {
                known.queue.asked();
                let problem = known.failed(wanted, format!("failed to write a debug file: {error}"));
                self.tell(Some(problem));
                return true;
            }
        };
        let (max_file, began, mut noted) = (known.cache.max_file(), Instant::now(), None);
        let asked = {
            let mut asking = pin!(servers.ask(&wanted.build_id, &mut file, max_file));
            loop {
                tokio::select! {
                    asked = &mut asking => break asked,
                    note = notes.recv() => match note {
                        Some(note) => noted = known.take(note).or(noted),
                        None => return false,
                    },
                }
            }
        };
        known.queue.asked();
        known.queue.pay(&wanted.owner, file.received(), began.elapsed());
        let problem = match asked {
            Asked::Found { bytes, server } => {
                let origin = Origin { owner: wanted.owner.clone(), server };
                match known.cache.keep(&wanted.build_id, &file, bytes, origin) {
                    Ok(()) => {
                        known.counts.count(Outcome::Found);
                        known.announce(wanted.build_id);
                        None
                    }
                    Err(error) => Some(known.failed(wanted, format!("failed to write a debug file: {error}"))),
                }
            }
            Asked::NotFound => known.absent(wanted, Outcome::NotFound),
            Asked::TooLarge => known.absent(wanted, Outcome::TooLarge),
            Asked::Failed { reason, is_open: false } => Some(known.failed(wanted, reason)),
            Asked::Failed { reason, is_open: true } => {
                known.counts.count(Outcome::Failed);
                // All servers rest now, and then it is asked for again.
                known.queue.add(wanted, Instant::now());
                Some(reason)
            }
        };
        drop(file);
        self.tell(problem.or(noted));
        true
    }

    /// Sets the part's state, and the size of the cache.
    fn tell(&self, problem: Option<String>) {
        let cache = &self.known.cache;
        self.known.counts.set_cache_bytes(cache.bytes());
        match problem {
            None => {
                let (servers, files, bytes) = (self.servers.names(), cache.len(), Mebi(cache.bytes()));
                self.status.set(PART, State::Healthy, format!("{servers}; {files} files in the cache, {bytes}"));
            }
            Some(problem) => self.status.set(PART, State::Degraded, problem),
        }
    }
}

impl Known {
    /// Acts on a note of the symbolizer. Returns a problem that it shows.
    fn take(&mut self, note: Note) -> Option<String> {
        let Note { owner, build_id, debug_file } = note;
        if !is_build_id(&build_id) {
            return None;
        }
        match debug_file {
            DebugFile::NotNeeded => {}
            DebugFile::Used => self.cache.used(&build_id),
            // The file has arrived since the lookup.
            DebugFile::Missing if self.cache.has(&build_id) => self.announce(build_id),
            DebugFile::Missing => {
                if !self.queue.add(Wanted { owner, build_id }, Instant::now()) {
                    self.counts.count(Outcome::NotAsked);
                }
            }
            DebugFile::Unusable => return self.unusable(build_id),
        }
        None
    }

    /// Removes a file with another build id or without symbols. Returns the problem of the server that sent it.
    fn unusable(&mut self, build_id: String) -> Option<String> {
        let origin = match self.cache.remove(&build_id) {
            Ok(kept) => kept?.origin,
            Err(error) => {
                tracing::debug!(%error, build_id, "failed to remove a debug file");
                return None;
            }
        };
        self.counts.count(Outcome::Unusable);
        self.counts.set_cache_bytes(self.cache.bytes());
        let Some(Origin { server, .. }) = origin else {
            // An earlier agent may have left it damaged: it is looked up, and asked for, once more.
            self.announce(build_id);
            return None;
        };
        // The servers have no better one.
        self.queue.absent(build_id, ABSENT_FOR, Instant::now());
        Some(format!("a server sent a file of another build, or one without symbols: `{server}`"))
    }

    fn absent(&mut self, wanted: Wanted, outcome: Outcome) -> Option<String> {
        self.counts.count(outcome);
        self.queue.absent(wanted.build_id, ABSENT_FOR, Instant::now());
        None
    }

    /// Notes a failure of a file, and returns its reason.
    fn failed(&mut self, wanted: Wanted, reason: String) -> String {
        self.counts.count(Outcome::Failed);
        self.queue.absent(wanted.build_id, FAILED_FOR, Instant::now());
        reason
    }

    fn announce(&self, build_id: String) {
        // The symbolizer may have ended.
        self.arrived.send(build_id).ok();
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
