//! Processes for loads and benchmarks: forked without a runtime, bound to their parent's life, pinned, and able to
//! count their own resource use.
//!
//! The counts in [`Usage`] come from the kernel, and the process reads them itself. They are the truth for checks of
//! podperf's numbers.

#![expect(unsafe_code, reason = "fork, getrusage and pre_exec have no safe form")]

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};
use serde::{Deserialize, Serialize};

/// Writes a program. Another process does it: a thread of this one may fork while the file is open for writing, and no
/// program can run while its copy of the open file lives (`ETXTBSY`).
pub fn install(mut content: impl io::Read, to: &Path) -> Result<()> {
    let mut install = Command::new("install");
    let mut child = install.args(["-m", "755", "/dev/stdin"]).arg(to).stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    io::copy(&mut content, &mut stdin)?;
    drop(stdin);
    let status = child.wait()?;
    ensure!(status.success(), "failed to write `{}`: {status}", to.display());
    Ok(())
}

/// The kernel's counts for one process, or for a part of its life.
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
    /// Returns the counts of the calling process since its fork. A wait time of zero means a kernel without
    /// `schedstat`.
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

    /// Returns the counts between `earlier` and this.
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
    /// Forks a child, which dies with the caller. The child runs `body`, reports an error on stderr, and exits without
    /// running the parent's destructors.
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

    /// Returns the child's process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the CPU time that the child has used until now, even while it runs on another CPU.
    pub fn cpu_ns(&self) -> Result<u64> {
        cpu_ns_of(self.pid)
    }

    /// Waits for the end of the child. Returns an error if the child failed.
    pub fn wait(self) -> Result<()> {
        match waitpid(self.pid, None).context("failed to wait for a child")? {
            WaitStatus::Exited(_, 0) => Ok(()),
            other => bail!("a child ended badly: {other:?}"),
        }
    }
}

/// Leaves the process at once: without destructors and exit handlers, whose work would change the counts.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any status and does not return.
    unsafe { libc::_exit(code) }
}

/// Makes the calling process die with its parent, even if the parent ends before the request takes effect.
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

/// Makes a command's process die with the thread that spawns it.
pub fn bind_to_parent(command: &mut Command) -> &mut Command {
    // SAFETY: the closure makes one async-signal-safe system call.
    unsafe { command.pre_exec(|| prctl::set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from)) }
}

/// Makes the kernel refuse one system call (`libc::SYS_*`) to a command's process, as a seccomp profile does.
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

/// Sends a signal to a child, and kills the child if it does not end in time.
pub fn end(child: &mut std::process::Child, by: Signal, deadline: Duration) {
    if !matches!(child.try_wait(), Ok(None)) {
        // The child's pid may already belong to another process.
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

/// Pins the calling process to one CPU.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu).with_context(|| format!("cpu {cpu} is beyond what the C library knows"))?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("failed to pin to cpu {cpu}"))
}

/// Sets the nice value of the calling thread and of the threads that it starts from now on.
pub fn renice(nice: i32) -> Result<()> {
    // SAFETY: it takes numbers and touches no memory; 0 is the calling thread.
    let set = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    Errno::result(set).context("failed to set the priority").map(drop)
}

/// Returns the CPU time of any process whose clock may be read.
pub fn cpu_ns_of(pid: Pid) -> Result<u64> {
    clock_ns(ClockId::pid_cpu_clock_id(pid).context("failed to find a process's cpu clock")?)
}

/// Returns the time of `CLOCK_MONOTONIC`.
pub fn monotonic_ns() -> Result<u64> {
    clock_ns(ClockId::CLOCK_MONOTONIC)
}

/// Returns the CPU time of the calling thread.
pub fn thread_cpu_ns() -> Result<u64> {
    clock_ns(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Sends one value as JSON through a pipe. [`receive`] reads the other end.
pub fn send<T: Serialize>(pipe: OwnedFd, value: &T) -> Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    fs::File::from(pipe).write_all(&line).context("failed to report to the parent")
}

/// Returns all values that were sent before the last writer closed the pipe.
pub fn receive<T: for<'de> Deserialize<'de>>(pipe: OwnedFd) -> Result<Vec<T>> {
    let mut text = String::new();
    fs::File::from(pipe).read_to_string(&mut text).context("failed to hear from a child")?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Burns `amount` of the caller's own CPU time, independent of other load on the CPU, nearly all of it in user space.
pub fn burn(amount: Duration) -> Result<()> {
    /// The number of steps between two reads of the clock: about 100 us.
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

/// Runs `body`, and returns its wall time in nanoseconds without the time in which this process waited for a CPU.
pub fn wall_without_queue_ns(body: impl FnOnce() -> Result<()>) -> Result<u64> {
    let (before, start) = (Usage::of_self()?, Instant::now());
    body()?;
    let (wall, usage) = (start.elapsed(), Usage::of_self()?.since(before));
    Ok(nanos(wall).saturating_sub(usage.wait_ns))
}

/// Returns a duration in whole nanoseconds, of at most 584 years.
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

/// Converts one of the kernel's counts, which are C longs that are never negative.
fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Returns the second field of `schedstat`. The first field, the time on a CPU, is from the last tick, but `cpu_ns` is
/// current.
fn waited_ns() -> u64 {
    let text = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Returns the time since boot in which this machine's CPUs wanted to run and the host ran something else. The
/// scheduler subtracts this time from a task's time; a clock does not.
pub fn stolen() -> Result<Duration> {
    /// The length of a tick: `USER_HZ` is 100 on all machines of podperf.
    const TICK: Duration = Duration::from_millis(10);
    let stat = fs::read_to_string("/proc/stat").context("failed to read `/proc/stat`")?;
    let ticks = stat.lines().next().and_then(|all| all.split_whitespace().nth(8)).context("no stolen time")?;
    Ok(TICK * ticks.parse()?)
}
