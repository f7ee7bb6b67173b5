//! The account of a pod's threads. Each thread has its sleeps and its waits for work apart. It loses the rest of its time
//! off the CPU.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::{process, waited};

/// The time of a pod's threads, by their own account.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    /// Wall time of the thread that lived longest.
    pub wall_ns: u64,
    /// Time off the CPU that the threads lost, with their waits for a CPU, summed.
    pub lost_ns: u64,
    /// Time in which the threads had nothing to do, summed.
    pub idle_ns: u64,
}

/// The account of one thread.
pub(super) struct Account {
    began: Instant,
    on_cpu_ns: u64,
    idle: Duration,
}

impl Account {
    fn begin() -> Result<Self> {
        Ok(Self { began: Instant::now(), on_cpu_ns: process::thread_cpu_ns()?, idle: Duration::ZERO })
    }

    /// Waits with nothing to do. If the thread then waits for a CPU, it loses that time.
    pub(super) fn idle<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let queued = waited::own();
        let start = Instant::now();
        let result = wait();
        let took = start.elapsed();
        self.idle += took.saturating_sub(waited::own().saturating_sub(queued));
        result
    }

    fn end(self) -> Result<Waits> {
        let wall = self.began.elapsed();
        let on_cpu = Duration::from_nanos(process::thread_cpu_ns()?.saturating_sub(self.on_cpu_ns));
        let lost = wall.saturating_sub(on_cpu).saturating_sub(self.idle);
        Ok(Waits { wall_ns: process::nanos(wall), lost_ns: process::nanos(lost), idle_ns: process::nanos(self.idle) })
    }
}

impl Waits {
    /// Returns the number of threads that lost time, on average.
    #[must_use]
    pub fn lost(&self) -> f64 {
        self.threads(self.lost_ns)
    }

    /// Returns the number of threads that had nothing to do, on average.
    #[must_use]
    pub fn idle(&self) -> f64 {
        self.threads(self.idle_ns)
    }

    fn threads(&self, nanoseconds: u64) -> f64 {
        let seconds = |nanoseconds| Duration::from_nanos(nanoseconds).as_secs_f64();
        seconds(nanoseconds) / seconds(self.wall_ns).max(0.001)
    }
}

/// Runs the threads of a pod, and `meanwhile` beside them.
pub(super) fn run(
    count: u32,
    work: impl Fn(&mut Account) -> Result<()> + Sync,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<Waits> {
    let one = || -> Result<Waits> {
        let mut account = Account::begin()?;
        work(&mut account)?;
        account.end()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(one)).collect();
        meanwhile()?;
        let mut all = Waits::default();
        for thread in threads {
            let waits = thread.join().unwrap_or_else(|_| bail!("a thread panicked"))?;
            all.wall_ns = all.wall_ns.max(waits.wall_ns);
            all.lost_ns += waits.lost_ns;
            all.idle_ns += waits.idle_ns;
        }
        Ok(all)
    })
}
