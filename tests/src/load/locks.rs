//! Two processes that wait for each other's locks, and waits that only look like waits for locks.

#![expect(unsafe_code, reason = "locks in memory that processes share have no safe form")]

use std::{
    fs::File,
    mem::MaybeUninit,
    num::NonZeroUsize,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    ptr::NonNull,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use nix::sys::{
    memfd::{MFdFlags, memfd_create},
    mman::{MapFlags, ProtFlags, mmap_anonymous},
};
use serde::{Deserialize, Serialize};

use crate::{
    cgroup,
    process::{self, Child, Usage},
};

/// The part of a write that holds the lock of a file after which the other process wants the lock. Before, the writer may
/// not have the lock yet.
const WRITTEN: Duration = Duration::from_millis(3);
/// The pause of a process that waits for the other one without a lock.
const PAUSE: Duration = Duration::from_micros(200);
/// The shortest time that counts as a wait. A lock that is free takes less.
const LEAST: Duration = Duration::from_millis(1);
/// Number of threads of [`LockKind::Crowd`].
const CROWD: u32 = 400;
/// Number of bytes of one write that holds the lock of a file.
const WRITE_BYTES: usize = 96 << 20;

/// `podperf-load locks`.
#[derive(Args, Clone, Debug)]
pub struct LocksArgs {
    /// The wait
    #[arg(long)]
    pub kind: LockKind,
    /// Cgroup of the process that waits
    #[arg(long)]
    pub cgroup: PathBuf,
    /// Cgroup of the process that holds the lock
    #[arg(long)]
    pub holder: Option<PathBuf>,
    /// Number of waits
    #[arg(long, default_value_t = 50)]
    pub waits: u32,
    /// Time for which the lock is held; for `inode` it is the time of a large write
    #[arg(long, default_value_t = 20)]
    pub millis: u64,
}

/// The ways to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LockKind {
    /// For a pthread mutex that two processes share
    Mutex,
    /// For such a mutex with priority inheritance
    Pi,
    /// For condition variables of Rust and of the C library; it is no wait for a lock
    Condition,
    /// For a word in the frame of the function that waits, as condition variables of musl do
    Frame,
    /// For the kernel's lock of a file, while the other process writes
    Inode,
    /// For the same lock, with no pause between the writes of both processes
    Storm,
    /// Many threads for the same lock, on the second CPU
    Crowd,
}

/// The truth about the waits.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct LocksReport {
    /// Number of waits; calls that found the lock free are not counted.
    pub waits: u32,
    /// Wall time from before each wait to after it, summed.
    pub waited_ns: u64,
    /// The part of `waited_ns` in which the process waited for a CPU.
    pub queued_ns: u64,
}

impl LocksReport {
    /// Returns the time in which the process was blocked.
    #[must_use]
    pub const fn blocked(&self) -> Duration {
        Duration::from_nanos(self.waited_ns.saturating_sub(self.queued_ns))
    }

    /// Returns the wall time of all waits.
    #[must_use]
    pub const fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_ns)
    }

    fn measure(&mut self, wait: impl FnOnce() -> Result<()>) -> Result<()> {
        let (start, before) = (Instant::now(), Usage::of_self()?.wait_ns);
        let begun = Instant::now();
        wait()?;
        let took = begun.elapsed();
        // The reads of the kernel's account are outside of the wait, but short beside it.
        self.queued_ns += Usage::of_self()?.wait_ns.saturating_sub(before);
        self.waited_ns += process::nanos(took);
        self.waits += u32::from(took >= LEAST);
        ensure!(start.elapsed() < Duration::from_secs(10), "a wait took {took:?}");
        Ok(())
    }
}

/// Memory that both processes share.
struct Shared {
    mutex: libc::pthread_mutex_t,
    /// Odd: the lock of this turn is held. Even: the turn is over.
    stage: AtomicU32,
    /// The number of waits that have begun.
    begun: AtomicU32,
}

impl Shared {
    fn wait_for(&self, stage: u32) {
        while self.stage.load(Ordering::Acquire) < stage {
            thread::sleep(PAUSE);
        }
    }

    fn lock(&self) -> Result<()> {
        // SAFETY: the mutex was initialized in memory that stays mapped and that both processes share.
        let result = unsafe { libc::pthread_mutex_lock((&raw const self.mutex).cast_mut()) };
        ensure!(result == 0, "failed to lock: error {result}");
        Ok(())
    }

    fn unlock(&self) -> Result<()> {
        // SAFETY: as for `lock`.
        let result = unsafe { libc::pthread_mutex_unlock((&raw const self.mutex).cast_mut()) };
        ensure!(result == 0, "failed to unlock: error {result}");
        Ok(())
    }
}

/// Makes all waits.
pub fn run(args: &LocksArgs) -> Result<LocksReport> {
    let length = Duration::from_millis(args.millis);
    match args.kind {
        LockKind::Condition | LockKind::Frame => {
            cgroup::join(&args.cgroup)?;
            let wait = if args.kind == LockKind::Frame { in_frame } else { on_conditions };
            let mut report = LocksReport::default();
            (0..args.waits).try_for_each(|_| report.measure(|| wait(length)))?;
            Ok(report)
        }
        LockKind::Mutex | LockKind::Pi => {
            let shared = shared(args.kind == LockKind::Pi)?;
            let hold = |turn: u32| {
                shared.lock()?;
                shared.stage.store(2 * turn + 1, Ordering::Release);
                while shared.begun.load(Ordering::Acquire) <= turn {
                    thread::sleep(PAUSE);
                }
                thread::sleep(length);
                shared.unlock()
            };
            two(args, shared, hold, || {
                shared.begun.fetch_add(1, Ordering::Release);
                shared.lock()?;
                shared.unlock()
            })
        }
        LockKind::Inode | LockKind::Storm | LockKind::Crowd => {
            // On one CPU the waiter sleeps: it does not spin, because the owner of the lock does not run.
            match args.kind {
                LockKind::Inode => process::pin(0)?,
                LockKind::Crowd => process::pin(1)?,
                _ => {}
            }
            let file = File::from(memfd_create(c"podperf-locks", MFdFlags::empty()).context("failed to make a file")?);
            let bytes = vec![1; if args.kind == LockKind::Storm { 1 << 16 } else { WRITE_BYTES }];
            match args.kind {
                LockKind::Storm => return storm(args, &file, &bytes),
                LockKind::Crowd => return crowd(args, &file, &bytes),
                _ => {}
            }
            let shared = shared(false)?;
            file.write_all_at(&bytes, 0)?;
            let hold = |turn: u32| {
                shared.stage.store(2 * turn + 1, Ordering::Release);
                Ok(file.write_all_at(&bytes, 0)?)
            };
            two(args, shared, hold, || Ok(file.write_all_at(&[2], 0)?))
        }
    }
}

/// Runs the process that holds and the process that waits, in turns.
fn two(
    args: &LocksArgs,
    shared: &Shared,
    hold: impl Fn(u32) -> Result<()>,
    wait: impl Fn() -> Result<()>,
) -> Result<LocksReport> {
    let holder = args.holder.clone().context("`--holder` is missing")?;
    let child = Child::fork(|| {
        cgroup::join(&holder)?;
        (0..args.waits).try_for_each(|turn| {
            hold(turn)?;
            shared.wait_for(2 * turn + 2);
            Ok(())
        })
    })?;
    cgroup::join(&args.cgroup)?;
    let mut report = LocksReport::default();
    for turn in 0..args.waits {
        shared.wait_for(2 * turn + 1);
        thread::sleep(if args.kind == LockKind::Inode { WRITTEN } else { PAUSE });
        report.measure(&wait)?;
        shared.stage.store(2 * turn + 2, Ordering::Release);
    }
    child.wait()?;
    Ok(report)
}

/// Makes both processes write as often as they can. The report has all writes, and not only those that waited.
fn storm(args: &LocksArgs, file: &File, bytes: &[u8]) -> Result<LocksReport> {
    let write = || (0..args.waits).try_for_each(|_| Ok(file.write_all_at(bytes, 0)?));
    let holder = args.holder.clone().context("`--holder` is missing")?;
    let child = Child::fork(|| cgroup::join(&holder).and_then(|()| write()))?;
    cgroup::join(&args.cgroup)?;
    let mut report = LocksReport::default();
    let start = Instant::now();
    write()?;
    report.waited_ns = process::nanos(start.elapsed());
    report.waits = args.waits;
    child.wait()?;
    Ok(report)
}

/// Makes many threads write as often as they can, while another process makes large writes. The report has the number of
/// threads.
fn crowd(args: &LocksArgs, file: &File, bytes: &[u8]) -> Result<LocksReport> {
    let holder = args.holder.clone().context("`--holder` is missing")?;
    let child = Child::fork(|| {
        cgroup::join(&holder)?;
        (0..args.waits).try_for_each(|_| Ok(file.write_all_at(bytes, 0)?))
    })?;
    cgroup::join(&args.cgroup)?;
    let is_over = AtomicU32::new(0);
    thread::scope(|scope| {
        let write = || -> Result<()> {
            while is_over.load(Ordering::Relaxed) == 0 {
                file.write_all_at(&[2], 0)?;
            }
            Ok(())
        };
        let writers: Vec<_> = (0..CROWD).map(|_| scope.spawn(write)).collect();
        let ended = child.wait();
        is_over.store(1, Ordering::Relaxed);
        writers.into_iter().try_for_each(|writer| writer.join().unwrap_or_else(|_| bail!("a writer panicked")))?;
        ended
    })?;
    Ok(LocksReport { waits: CROWD, ..LocksReport::default() })
}

/// Returns memory with a mutex, which processes that are forked later share.
fn shared(inherits: bool) -> Result<&'static Shared> {
    let length = NonZeroUsize::new(size_of::<Shared>()).context("an empty struct")?;
    let flags = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: the mapping is new, and nothing unmaps it.
    let memory: NonNull<Shared> =
        unsafe { mmap_anonymous(None, length, flags, MapFlags::MAP_SHARED) }.context("failed to map memory")?.cast();
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: the first call fills the attributes. The memory is zero, large enough, and aligned to a page.
    unsafe {
        libc::pthread_mutexattr_init(attributes.as_mut_ptr());
        libc::pthread_mutexattr_setpshared(attributes.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
        if inherits {
            libc::pthread_mutexattr_setprotocol(attributes.as_mut_ptr(), libc::PTHREAD_PRIO_INHERIT);
        }
        let result = libc::pthread_mutex_init(&raw mut (*memory.as_ptr()).mutex, attributes.as_ptr());
        ensure!(result == 0, "failed to make a mutex: error {result}");
        Ok(&*memory.as_ptr())
    }
}

/// Waits for a condition of Rust, whose counter is 2 when the wait begins, and for one of the C library.
fn on_conditions(length: Duration) -> Result<()> {
    let (condition, is_true) = (Condvar::new(), Mutex::new(false));
    condition.notify_one();
    condition.notify_one();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(length);
            *is_true.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = true;
            condition.notify_one();
        });
        let guard = is_true.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        drop(condition.wait_while(guard, |is_true| !*is_true));
    });
    let of_c = Box::new(OfC(libc::PTHREAD_MUTEX_INITIALIZER, libc::PTHREAD_COND_INITIALIZER, AtomicU32::new(0)));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(length);
            of_c.2.store(1, Ordering::Release);
            // SAFETY: the condition outlives both threads.
            unsafe { libc::pthread_cond_signal((&raw const of_c.1).cast_mut()) };
        });
        // SAFETY: the mutex and the condition outlive both threads.
        unsafe {
            libc::pthread_mutex_lock((&raw const of_c.0).cast_mut());
            while of_c.2.load(Ordering::Acquire) == 0 {
                libc::pthread_cond_wait((&raw const of_c.1).cast_mut(), (&raw const of_c.0).cast_mut());
            }
            libc::pthread_mutex_unlock((&raw const of_c.0).cast_mut());
        }
    });
    Ok(())
}

/// A mutex and a condition of the C library, and a word that says whether the condition is true.
struct OfC(libc::pthread_mutex_t, libc::pthread_cond_t, AtomicU32);

// SAFETY: both are made for several threads.
unsafe impl Sync for OfC {}

fn in_frame(length: Duration) -> Result<()> {
    let word = AtomicU32::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(length);
            word.store(0, Ordering::Release);
            futex(&word, libc::FUTEX_WAKE, 1);
        });
        while word.load(Ordering::Acquire) == 2 {
            futex(&word, libc::FUTEX_WAIT, 2);
        }
    });
    Ok(())
}

#[inline(always)]
fn futex(word: &AtomicU32, operation: i32, value: u32) {
    let nobody = std::ptr::null::<libc::timespec>();
    // SAFETY: the word outlives the call, and a missing timeout is allowed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG, value, nobody) };
}
