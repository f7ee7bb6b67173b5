//! CPU time that the agent spends to answer its readers. The cost of the sensors is not part of it.
//!
//! The account adds up the CPU time of all threads with certain names, by the kernel's clock of each thread, and the
//! time that other threads charge, for example for a reading that a client requested.

use std::{
    collections::HashMap,
    fs, io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use nix::errno::Errno;

use super::clock::cpu_of_thread;

/// Prefixes of the names of the threads that answer: the threads of the HTTP server, the thread that draws, and the one
/// that reads source lines.
const NAMES: &[&str] = &["podperf-http", "podperf-draw", "podperf-lines"];

/// The account of answering time; all clones share one account.
#[derive(Clone, Debug)]
pub struct AnsweringTime {
    /// Prefixes of the names of the threads whose time is added up.
    names: &'static [&'static str],
    account: Arc<Mutex<Account>>,
}

#[derive(Debug, Default)]
struct Account {
    /// Living threads, each with its CPU time at the last look.
    living: HashMap<i32, Duration>,
    /// The CPU time of threads that have ended, up to the last look at each. No time is missing: the server's threads
    /// are idle for a minute before they end, and each reading looks at them.
    ended: Duration,
    charged: Duration,
}

impl Default for AnsweringTime {
    fn default() -> Self {
        Self::of(NAMES)
    }
}

impl AnsweringTime {
    fn of(names: &'static [&'static str]) -> Self {
        Self { names, account: Arc::default() }
    }

    /// Returns the time so far; it never falls.
    #[must_use]
    pub fn total(&self) -> Duration {
        let mut account = self.lock();
        // The times are read with the lock held: of two simultaneous calls, the later one then reads the later times.
        account.look(threads(Path::new("/proc/self/task"), self.names));
        account.total()
    }

    /// Adds CPU time that another thread spent for a reader.
    pub fn charge(&self, time: Duration) {
        self.lock().charged += time;
    }

    fn lock(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    /// Updates the account with the threads that live now. After a failed read the account stays unchanged, since a
    /// thread that was not seen may still live.
    fn look(&mut self, now: io::Result<HashMap<i32, Duration>>) {
        let Ok(now) = now else { return };
        for (thread, before) in std::mem::replace(&mut self.living, now) {
            // The thread has ended; its number may belong to another thread now.
            if self.living.get(&thread).is_none_or(|time| *time < before) {
                self.ended += before;
            }
        }
    }

    fn total(&self) -> Duration {
        self.living.values().sum::<Duration>() + self.ended + self.charged
    }
}

/// Returns the threads whose names begin with one of `names`, with their CPU times.
fn threads(tasks: &Path, names: &[&str]) -> io::Result<HashMap<i32, Duration>> {
    let mut threads = HashMap::new();
    for task in fs::read_dir(tasks)? {
        let task = task?;
        let name = match fs::read(task.path().join("comm")) {
            Ok(name) => name,
            Err(error) if has_ended(&error) => continue,
            Err(error) => return Err(error),
        };
        if names.iter().any(|start| name.starts_with(start.as_bytes()))
            && let Some(thread) = task.file_name().to_str().and_then(|number| number.parse().ok())
            && let Some(time) = cpu_of_thread(thread)
        {
            threads.insert(thread, time);
        }
    }
    Ok(threads)
}

/// Returns whether the error shows that the thread has ended.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::kernel::clock::thread_cpu;

    fn millis(times: &[(i32, u64)]) -> HashMap<i32, Duration> {
        times.iter().map(|(thread, time)| (*thread, Duration::from_millis(*time))).collect()
    }

    #[test]
    fn the_time_of_threads_that_ended_stays() {
        let mut account = Account::default();
        for (threads, total) in [
            (&[(1, 100)][..], 100),
            (&[(1, 150), (2, 30)], 180),
            (&[(2, 40)], 190),
            // A new thread has the number of a thread that has ended.
            (&[(2, 5)], 195),
            (&[], 195),
        ] {
            account.look(Ok(millis(threads)));
            assert_eq!(account.total(), Duration::from_millis(total), "{threads:?}");
        }
    }

    #[test]
    fn a_look_that_fails_counts_no_thread_twice() {
        let mut account = Account::default();
        account.look(Ok(millis(&[(1, 100)])));
        account.look(Err(Errno::EMFILE.into()));
        assert_eq!(account.total(), Duration::from_millis(100));
        account.look(Ok(millis(&[(1, 110)])));
        assert_eq!(account.total(), Duration::from_millis(110));
    }

    #[test]
    fn a_name_that_cannot_be_read_is_an_error_and_one_that_is_gone_is_none() {
        let tasks = tempfile::tempdir().unwrap();
        let task = tasks.path().join("1");
        fs::create_dir(&task).unwrap();
        assert_eq!(threads(tasks.path(), &[""]).unwrap(), HashMap::new());
        // A folder cannot be read as a file.
        fs::create_dir(task.join("comm")).unwrap();
        threads(tasks.path(), &[""]).unwrap_err();
        threads(&tasks.path().join("none"), &[""]).unwrap_err();
    }

    #[test]
    fn a_thread_is_counted_by_its_name() {
        // Other tests of this process draw, too.
        let account = AnsweringTime::of(&["podperf-test-an"]);
        let (spent, done) = (mpsc::channel(), mpsc::channel::<()>());
        let spin = |name: &str| {
            let spent = spent.0.clone();
            thread::Builder::new().name(name.to_owned()).spawn(move || {
                while thread_cpu() < Duration::from_millis(20) {}
                spent.send(thread_cpu()).unwrap();
                done.1.recv().ok();
            })
        };
        let drawing = spin("podperf-test-an").unwrap();
        let before = spent.1.recv().unwrap();
        let counted = account.total();
        assert!(counted >= before && counted < before + Duration::from_millis(20), "{counted:?} of {before:?}");
        drop(done.0);
        drawing.join().unwrap();
        assert!(account.total() >= counted);
        account.charge(Duration::from_secs(1));
        assert!(account.total() >= counted + Duration::from_secs(1));
    }
}
