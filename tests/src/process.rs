//! Processes as loads and benchmarks need them: forked without a runtime,
//! bound to their parent's life, pinned, and asked for their own counts.
//!
//! The counts in [`Usage`] are the kernel's own, taken by the process itself;
//! they are the truth that podperf's numbers are held against.

#![expect(unsafe_code, reason = "fork, getrusage and pre_exec have no safe form")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};
use serde::{Deserialize, Serialize};

/// What the kernel has counted for one process, or for a stretch of its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// `CLOCK_PROCESS_CPUTIME_ID`: exact to the nanosecond.
    pub cpu_ns: u64,
    /// `ru_utime`, in steps of a microsecond.
    pub user_ns: u64,
    /// `ru_stime`, in steps of a microsecond.
    pub system_ns: u64,
    /// `ru_minflt`.
    pub minor_faults: u64,
    /// `ru_majflt`.
    pub major_faults: u64,
    /// `ru_nvcsw`.
    pub voluntary_switches: u64,
    /// `ru_nivcsw`.
    pub involuntary_switches: u64,
    /// Second field of `/proc/self/schedstat`: time runnable without a CPU.
    pub wait_ns: u64,
}

impl Usage {
    /// What has been counted for the calling process since it was forked.
    /// A wait time of zero means a kernel without `schedstat`.
    pub fn of_self() -> Result<Self> {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the pointer is to a whole rusage, which the call fills; all
        // zeroes is a valid rusage too.
        let usage = unsafe {
            if libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) != 0 {
                bail!("failed to call getrusage: {}", std::io::Error::last_os_error());
            }
            usage.assume_init()
        };
        Ok(Self {
            cpu_ns: clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID)?,
            user_ns: timeval_ns(usage.ru_utime),
            system_ns: timeval_ns(usage.ru_stime),
            minor_faults: count(usage.ru_minflt),
            major_faults: count(usage.ru_majflt),
            voluntary_switches: count(usage.ru_nvcsw),
            involuntary_switches: count(usage.ru_nivcsw),
            wait_ns: waited_ns(),
        })
    }

    /// What was counted between `earlier` and this.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            voluntary_switches: self.voluntary_switches.saturating_sub(earlier.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(earlier.involuntary_switches),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
        }
    }
}

/// A forked child that runs one closure and exits.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
}

impl Child {
    /// Forks; the child dies with the caller, runs `body`, reports an error on
    /// stderr, and exits without running the parent's destructors.
    ///
    /// The caller must have one thread only: the child may allocate.
    pub fn fork(body: impl FnOnce() -> Result<()>) -> Result<Self> {
        let parent = getpid();
        // SAFETY: the loads have one thread, so no lock is held by a thread
        // that the child lacks.
        match unsafe { fork() }.context("failed to fork")? {
            ForkResult::Parent { child } => Ok(Self { pid: child }),
            ForkResult::Child => {
                let outcome = die_with(parent).and_then(|()| body());
                if let Err(error) = &outcome {
                    let _ = writeln!(std::io::stderr(), "podperf-load: {error:#}");
                }
                exit_now(i32::from(outcome.is_err()))
            }
        }
    }

    /// The child's process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The CPU time that the child has used until now. Also true for a child
    /// that is running on another CPU at this moment.
    pub fn cpu_ns(&self) -> Result<u64> {
        cpu_ns_of(self.pid)
    }

    /// Waits for the end of the child; an error if that was not a success.
    pub fn wait(self) -> Result<()> {
        match waitpid(self.pid, None).context("failed to wait for a child")? {
            WaitStatus::Exited(_, 0) => Ok(()),
            other => bail!("a child ended badly: {other:?}"),
        }
    }
}

/// Leaves the process at once: no destructors, no exit handlers, and so no
/// work that would blur what was just counted.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any status and does not return.
    unsafe { libc::_exit(code) }
}

/// Makes the calling process die with its parent, even if the parent is gone
/// before the request is heard.
pub fn die_with_parent() -> Result<()> {
    die_with(getppid())
}

fn die_with(parent: Pid) -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("failed to set the parent death signal")?;
    if getppid() != parent {
        bail!("the parent is gone");
    }
    Ok(())
}

/// Lets a command's process die with the thread that spawns it.
pub fn bind_to_parent(command: &mut Command) -> &mut Command {
    // SAFETY: the closure makes one async-signal-safe system call.
    unsafe { command.pre_exec(|| prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from)) }
}

/// Lets the kernel refuse one system call (`libc::SYS_*`) to a command's process, as a seccomp profile does.
pub fn refuse_call(command: &mut Command, call: libc::c_long) -> &mut Command {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const JUMP_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let code = |code: u32| u16::try_from(code).unwrap_or(u16::MAX);
    let step = |of, jt, k| libc::sock_filter { code: code(of), jt, jf: 0, k };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    let mut filter = [
        // The call's number is the first field of `struct seccomp_data`.
        step(LOAD, 0, 0),
        step(JUMP_EQUAL, 1, u32::try_from(call).unwrap_or(u32::MAX)),
        step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, refused),
    ];
    let install = move || {
        let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
        // SAFETY: the program and its four steps outlive the call, which copies them.
        let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes one async-signal-safe system call.
    unsafe { command.pre_exec(install) }
}

/// Asks a child to end by a signal, and kills it if it does not in time.
pub fn end(child: &mut std::process::Child, by: Signal, deadline: Duration) {
    if !matches!(child.try_wait(), Ok(None)) {
        // Its pid may be another's by now.
        return;
    }
    let asked = i32::try_from(child.id()).is_ok_and(|pid| kill(Pid::from_raw(pid), by).is_ok());
    let start = Instant::now();
    while asked && start.elapsed() < deadline && matches!(child.try_wait(), Ok(None)) {
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().ok();
    child.wait().ok();
}

/// Ties the calling process to one CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).with_context(|| format!("cpu {cpu} is beyond what the C library knows"))?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("failed to pin to cpu {cpu}"))
}

/// The CPU time of any process that may be looked at.
pub fn cpu_ns_of(pid: Pid) -> Result<u64> {
    clock_ns(ClockId::pid_cpu_clock_id(pid).context("failed to find a process's cpu clock")?)
}

/// `CLOCK_MONOTONIC`.
pub fn monotonic_ns() -> Result<u64> {
    clock_ns(ClockId::CLOCK_MONOTONIC)
}

/// Sends one value as JSON through a pipe; the other end is [`receive`].
pub fn send<T: Serialize>(pipe: OwnedFd, value: &T) -> Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    fs::File::from(pipe).write_all(&line).context("failed to report to the parent")
}

/// All values that were sent before the last writer was gone.
pub fn receive<T: for<'de> Deserialize<'de>>(pipe: OwnedFd) -> Result<Vec<T>> {
    let mut text = String::new();
    fs::File::from(pipe).read_to_string(&mut text).context("failed to hear from a child")?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Burns `amount` of the caller's own CPU time, whatever else runs on the CPU,
/// nearly all of it in user space.
pub fn burn(amount: Duration) -> Result<()> {
    /// About 100 us between two looks at the clock.
    const STEPS_PER_LOOK: u64 = 100_000;
    let end = clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID)? + nanos(amount);
    let mut state = 1_u64;
    while clock_ns(ClockId::CLOCK_PROCESS_CPUTIME_ID)? < end {
        for step in 0..STEPS_PER_LOOK {
            state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005) ^ step);
        }
    }
    Ok(())
}

/// A duration in whole nanoseconds; 584 years are enough.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn clock_ns(clock: ClockId) -> Result<u64> {
    let now = clock_gettime(clock).with_context(|| format!("failed to read clock {clock}"))?;
    Ok(nanos(Duration::from(now)))
}

fn timeval_ns(time: libc::timeval) -> u64 {
    count(time.tv_sec) * 1_000_000_000 + count(time.tv_usec) * 1_000
}

/// The kernel's counts are C longs that are never negative.
fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// The first field, the time on a CPU, is of the last tick: `cpu_ns` is of now.
fn waited_ns() -> u64 {
    let text = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Time that the host has given to others while this machine's CPUs wanted to run, since boot. The scheduler takes it off
/// a task's time; a clock does not.
pub fn stolen() -> Result<Duration> {
    /// `USER_HZ` is 100 wherever podperf runs.
    const TICK: Duration = Duration::from_millis(10);
    let stat = fs::read_to_string("/proc/stat").context("failed to read `/proc/stat`")?;
    let ticks = stat.lines().next().and_then(|all| all.split_whitespace().nth(8)).context("no stolen time")?;
    Ok(TICK * ticks.parse()?)
}
