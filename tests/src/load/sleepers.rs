//! A process that waits, with a user stack of known names.
//!
//! An instruction in this file makes the system call. So the innermost frame of a wait is `podperf_wait_inner` and not
//! the C library, which has no frame pointers, and the stack is whole.

#![expect(unsafe_code, reason = "the system call must come from a named frame")]

use std::arch::asm;
use std::hint::black_box;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::cpu::set_scheduler;
use crate::cgroup;
use crate::process::{self, Usage};

/// `podperf-load sleepers`.
#[derive(Args, Clone, Debug)]
pub struct SleepersArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Number of waits
    #[arg(long, default_value_t = 50)]
    pub waits: u32,
    /// Length of each wait
    #[arg(long, default_value_t = 20)]
    pub millis: u64,
    /// Wait in state D, for a child, as in vfork; the child sleeps in state S
    #[arg(long)]
    pub uninterruptible: bool,
    /// Wait with a frame pointer to this text, as code without frame pointers may: at most seven bytes
    #[arg(long)]
    pub planted: Option<String>,
    /// Begin once this file is there
    #[arg(long)]
    pub after: Option<PathBuf>,
    /// Wait that many calls deep
    #[arg(long, default_value_t = 0)]
    pub depth: u32,
    /// Run under SCHED_FIFO, so that no other task preempts it: then there is one kind of wait
    #[arg(long)]
    pub fifo: bool,
    /// CPU to stay on
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Nice value, up to 19
    #[arg(long)]
    pub nice: Option<i32>,
    /// Say `ready` on stderr before the first wait and `done` after the last, and wait for a line on stdin each time
    #[arg(long)]
    pub wait: bool,
    /// After the report, block until stdin ends
    #[arg(long)]
    pub hold: bool,
}

/// The sleeper's measurements of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SleepersReport {
    /// Number of waits.
    pub waits: u32,
    /// Wall time from before each wait to after it, summed.
    pub waited_ns: u64,
    /// The part of `waited_ns` in waits that took at least ten times the requested time.
    pub late_ns: u64,
    /// The counts charged to the process in the waits.
    pub usage: Usage,
}

impl SleepersReport {
    /// Returns the time that the process was blocked in its waits. The wall clock also counts time in which it was
    /// queued for a CPU.
    #[must_use]
    pub const fn blocked(&self) -> Duration {
        Duration::from_nanos(self.waited_ns.saturating_sub(self.usage.wait_ns))
    }
}

/// Makes the given number of waits.
pub fn run(args: &SleepersArgs) -> Result<SleepersReport> {
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    if let Some(cpu) = args.cpu {
        process::pin(cpu)?;
    }
    if let Some(nice) = args.nice {
        process::renice(nice)?;
    }
    if args.fifo {
        set_scheduler("SCHED_FIFO", libc::SCHED_FIFO, 1)?;
    }
    while args.after.as_ref().is_some_and(|file| !file.exists()) {
        thread::sleep(Duration::from_millis(10));
    }
    if args.wait {
        super::pause("ready")?;
    }
    let length = Duration::from_millis(args.millis);
    let before = Usage::of_self()?;
    let (mut waited, mut late) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..args.waits {
        let start = Instant::now();
        let child = match &args.planted {
            Some(text) => sleep_over(text, length)?,
            None if args.uninterruptible => wait_for_child(length)?,
            None => podperf_recurse(args.depth, length)?,
        };
        let took = start.elapsed();
        waited += took;
        if took >= 10 * length {
            late += took;
        }
        if let Some(child) = child {
            waitpid(child, None).context("failed to wait for a child")?;
        }
    }
    let usage = Usage::of_self()?.since(before);
    if args.wait {
        super::pause("done")?;
    }
    let (waited_ns, late_ns) = (process::nanos(waited), process::nanos(late));
    Ok(SleepersReport { waits: args.waits, waited_ns, late_ns, usage })
}

/// The kernel's `struct __kernel_timespec` on 64-bit machines.
#[repr(C)]
struct Timespec {
    seconds: u64,
    nanoseconds: u64,
}

/// Sleeps after `depth` further calls. Its symbol is its name.
#[inline(never)]
#[unsafe(no_mangle)]
fn podperf_recurse(depth: u32, length: Duration) -> Result<Option<Pid>> {
    // black_box after the call keeps this frame on the stack: no tail call.
    black_box(match depth {
        0 => sleep(length),
        _ => podperf_recurse(black_box(depth - 1), length),
    })
}

/// Sleeps in the frames with known names.
pub(super) fn sleep(length: Duration) -> Result<Option<Pid>> {
    let time = Timespec { seconds: length.as_secs(), nanoseconds: u64::from(length.subsec_nanos()) };
    // SAFETY: nanosleep reads one timespec, which outlives the call, and
    // writes nothing when the second argument is null.
    let result = unsafe { podperf_wait_outer(libc::SYS_nanosleep, (&raw const time).addr(), 0) };
    match result {
        0 => Ok(None),
        _ => bail!("failed to sleep: {}", error_of(result)),
    }
}

/// Sleeps with a frame pointer that points to data: a walk takes the text for a return address.
fn sleep_over(text: &str, length: Duration) -> Result<Option<Pid>> {
    let mut word = [0; 8];
    ensure!(text.len() < word.len(), "the text has more than seven bytes");
    word[..text.len()].copy_from_slice(text.as_bytes());
    let time = Timespec { seconds: length.as_secs(), nanoseconds: u64::from(length.subsec_nanos()) };
    // The frame pointer of the caller, and the return address.
    let planted = [0, u64::from_le_bytes(word)];
    let result: i64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: nanosleep reads one timespec, which outlives the call. The instruction overwrites rcx and r11; the frame
    // pointer is put back.
    unsafe {
        asm!(
            "push rbp",
            "mov rbp, {planted}",
            "syscall",
            "pop rbp",
            planted = in(reg) planted.as_ptr(),
            inlateout("rax") libc::SYS_nanosleep => result,
            in("rdi") &raw const time,
            in("rsi") 0_usize,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: nanosleep reads one timespec, which outlives the call. The frame pointer is put back.
    unsafe {
        asm!(
            "mov x9, x29",
            "mov x29, {planted}",
            "svc 0",
            "mov x29, x9",
            planted = in(reg) planted.as_ptr(),
            in("x8") libc::SYS_nanosleep,
            inlateout("x0") &raw const time => result,
            in("x1") 0_usize,
            out("x9") _,
        );
    }
    match result {
        0 => Ok(None),
        _ => bail!("failed to sleep: {}", error_of(result)),
    }
}

/// Forks with `CLONE_VFORK`: the parent waits, killable but uninterruptible, until the child is gone. Memory is not
/// shared, so unlike in vfork(2) the child cannot damage the parent's stack.
fn wait_for_child(length: Duration) -> Result<Option<Pid>> {
    let flags = usize::try_from(libc::CLONE_VFORK | libc::SIGCHLD)?;
    // SAFETY: clone without CLONE_VM and with no stack is a fork; the kernel ignores the other arguments with these
    // flags. This process has one thread.
    match unsafe { podperf_wait_outer(libc::SYS_clone, flags, 0) } {
        0 => process::exit_now(i32::from(sleep(length).is_err())),
        error if error < 0 => bail!("failed to fork: {}", error_of(error)),
        child => Ok(Some(Pid::from_raw(i32::try_from(child)?))),
    }
}

fn error_of(result: i64) -> std::io::Error {
    std::io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::EINVAL))
}

/// The outermost known frame of a wait.
///
/// # Safety
///
/// The caller must meet the conditions of [`podperf_wait_inner`].
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn podperf_wait_outer(number: i64, first: usize, second: usize) -> i64 {
    // SAFETY: the caller meets the same conditions.
    // black_box after the call keeps this frame on the stack: no tail call.
    black_box(unsafe { podperf_wait_middle(number, first, second) })
}

/// The known frame in the middle.
///
/// # Safety
///
/// The caller must meet the conditions of [`podperf_wait_inner`].
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn podperf_wait_middle(number: i64, first: usize, second: usize) -> i64 {
    // SAFETY: the caller meets the same conditions.
    black_box(unsafe { podperf_wait_inner(number, first, second) })
}

/// Makes one system call with two arguments. This is the frame that waits.
///
/// # Safety
///
/// The arguments must be valid for the system call `number`, which must not write to memory that Rust assumes
/// unchanged.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn podperf_wait_inner(number: i64, first: usize, second: usize) -> i64 {
    let result: i64;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller guarantees a valid call; the instruction itself overwrites rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") 0_usize,
            in("r10") 0_usize,
            in("r8") 0_usize,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller guarantees a valid call; only x0 is overwritten.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first => result,
            in("x1") second,
            in("x2") 0_usize,
            in("x3") 0_usize,
            in("x4") 0_usize,
        );
    }
    black_box(result)
}
