//! CPU time that the agent spends for its readers, apart from the cost of the sensors.
//!
//! It is the time of all threads with certain names, by the kernel's clock of each thread, and the time that other
//! threads charge, such as for readings that somebody asked for.

use std::{
    collections::HashMap,
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::clock::cpu_of_thread;

/// Beginnings of the names of threads that answer: those of the HTTP server, and the one that draws.
const NAMES: [&str; 2] = ["podperf-http", "podperf-draw"];

/// The account. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct AnsweringTime(Arc<Mutex<Account>>);

#[derive(Debug, Default)]
struct Account {
    /// Living threads, each with its time at the last look.
    living: HashMap<i32, Duration>,
    /// The time of threads that have ended, up to the last look at each. It is whole: the server's threads are idle
    /// for a minute before they end, and each reading looks at them.
    ended: Duration,
    charged: Duration,
}

impl AnsweringTime {
    /// Returns the time so far, which never falls.
    #[must_use]
    pub fn total(&self) -> Duration {
        let mut account = self.lock();
        // With the lock held: of two callers, the later one sees the later times.
        account.look(answering_threads());
        account.total()
    }

    /// Adds time that another thread spent for a reader.
    pub fn charge(&self, time: Duration) {
        self.lock().charged += time;
    }

    fn lock(&self) -> MutexGuard<'_, Account> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    fn look(&mut self, now: HashMap<i32, Duration>) {
        for (thread, before) in std::mem::replace(&mut self.living, now) {
            // The thread has ended, and its number may be another thread's.
            if self.living.get(&thread).is_none_or(|time| *time < before) {
                self.ended += before;
            }
        }
    }

    fn total(&self) -> Duration {
        self.living.values().sum::<Duration>() + self.ended + self.charged
    }
}

fn answering_threads() -> HashMap<i32, Duration> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads
        .filter_map(|thread| {
            let name = fs::read_to_string(thread.path().join("comm")).ok()?;
            let thread = thread.file_name().to_str()?.parse().ok()?;
            NAMES.iter().any(|start| name.starts_with(start)).then_some(())?;
            Some((thread, cpu_of_thread(thread)?))
        })
        .collect()
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
            // Another thread with the number of one that has ended.
            (&[(2, 5)], 195),
            (&[], 195),
        ] {
            account.look(millis(threads));
            assert_eq!(account.total(), Duration::from_millis(total), "{threads:?}");
        }
    }

    #[test]
    fn a_thread_is_counted_by_its_name() {
        let account = AnsweringTime::default();
        let (spent, done) = (mpsc::channel(), mpsc::channel::<()>());
        let spin = |name: &str| {
            let spent = spent.0.clone();
            thread::Builder::new().name(name.to_owned()).spawn(move || {
                while thread_cpu() < Duration::from_millis(20) {}
                spent.send(thread_cpu()).unwrap();
                done.1.recv().ok();
            })
        };
        let drawing = spin("podperf-draw").unwrap();
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
