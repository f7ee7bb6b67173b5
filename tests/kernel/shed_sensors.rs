//! The cap on the agent's CPU time gives up a sensor with programs of its own: they begin nothing new, and end what has
//! begun.

use std::{
    fs::{self, File},
    io::Write as _,
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    pty::openpty,
    sched::{CpuSet, sched_setaffinity},
    sys::signal::Signal,
    unistd::Pid,
};
use podperf_tests::{
    agent::{Agent, Metrics},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    load::locks::LocksReport,
    process::bind_to_parent,
    running::{Load, count, run, time},
    suite::{tell, within},
};

const CONTENTIONS: &str = "podperf_cgroup_kernel_lock_contentions_total";
const WAIT: &str = "podperf_cgroup_kernel_lock_wait_seconds_total";
const USER_WAITS: &str = "podperf_cgroup_user_lock_waits_total";
const MUTEX: [(&str, &str); 1] = [("lock", "mutex")];
const WRITE: [(&str, &str); 1] = [("lock", "rwsem_write")];
/// A cap that the agent always exceeds.
const TINY: f64 = 0.00001;
const NO_CAP: f64 = 0.0;
const DEADLINE: Duration = Duration::from_secs(60);
/// The CPU of a waiter whose mutex another task takes.
const CPU: usize = 0;
/// Number of attempts to take a mutex. On a busy machine, the other task may come too late.
const TRIES: usize = 8;

/// Two readers of a terminal. The first one holds a mutex of the kernel until a line comes, and the second one waits for
/// this mutex.
struct Terminal {
    keys: File,
    slave: OwnedFd,
    readers: [Child; 2],
}

impl Terminal {
    /// Begins a wait of a process in this cgroup.
    fn begin_wait(waiter: &TestCgroup) -> Result<Self> {
        let terminal = openpty(None, None).context("failed to open a terminal")?;
        let holder = reader(&terminal.slave)?;
        blocked_in(&holder, "wait_woken")?;
        let second = reader(&terminal.slave)?;
        waiter.add(second.id())?;
        // The kernel leaves the functions of mutexes out, and reports their caller.
        blocked_in(&second, "n_tty_read")?;
        Ok(Self { keys: terminal.master.into(), slave: terminal.slave, readers: [holder, second] })
    }

    /// Ends the wait: each reader gets a line, and ends.
    fn end_wait(mut self) -> Result<()> {
        self.keys.write_all(b"\n\n").context("failed to write to a terminal")?;
        self.readers.iter_mut().try_for_each(ended)
    }

    /// Lets a third reader take the mutex after the first one, and before the second one, which has to wait for a
    /// realtime task on [`CPU`]. Returns whether the third one was faster.
    fn steal(&mut self, realtime: &TestCgroup) -> Result<bool> {
        let mut only = CpuSet::new();
        only.set(CPU)?;
        sched_setaffinity(Pid::from_raw(i32::try_from(self.readers[1].id())?), &only)?;
        let path = realtime.path().display();
        let before = realtime.cpu_usage()?;
        let burner = Load::start(&format!("fifo --seconds 0.8 --cpu {CPU} --cgroup {path}"))?;
        within(DEADLINE, "the realtime task has the CPU", || {
            Ok((realtime.cpu_usage()? - before > Duration::from_millis(20)).then_some(()))
        })?;
        self.keys.write_all(b"\n").context("failed to write to a terminal")?;
        ended(&mut self.readers[0])?;
        self.readers[0] = reader(&self.slave)?;
        burner.end()?;
        within(DEADLINE, "one reader has the mutex", || {
            let [third, second] = [function_of(&self.readers[0])?, function_of(&self.readers[1])?];
            Ok(match (third.as_str(), second.as_str()) {
                ("wait_woken", "n_tty_read") => Some(true),
                ("n_tty_read", "wait_woken") => Some(false),
                _ => None,
            })
        })
    }
}

/// Waits until a reader has ended.
fn ended(reader: &mut Child) -> Result<()> {
    ensure!(reader.wait()?.success(), "a reader ended badly");
    Ok(())
}

/// Returns the function of the kernel in which a process sleeps.
fn function_of(process: &Child) -> Result<String> {
    Ok(fs::read_to_string(format!("/proc/{}/wchan", process.id()))?)
}

/// Starts a process that reads one line.
fn reader(terminal: &OwnedFd) -> Result<Child> {
    let mut command = Command::new("head");
    bind_to_parent(&mut command);
    command.args(["-n", "1"]).stdin(terminal.try_clone()?).stdout(Stdio::null());
    command.spawn().context("failed to start `head`")
}

/// Waits until a process sleeps in this function of the kernel.
fn blocked_in(process: &Child, function: &str) -> Result<()> {
    within(DEADLINE, &format!("a reader is in `{function}`"), || {
        thread::sleep(Duration::from_millis(1));
        Ok((function_of(process)? == function).then_some(()))
    })
}

/// Returns a count that may have no series, because it is 0.
fn count_or_zero(metrics: &Metrics, family: &str, cgroup: &TestCgroup, labels: &[(&str, &str)]) -> f64 {
    count(metrics, family, cgroup, labels).unwrap_or_default()
}

/// Returns the time of waits for mutexes, which may have no series, because it is 0.
fn time_or_zero(metrics: &Metrics, cgroup: &TestCgroup) -> Duration {
    time(metrics, WAIT, cgroup, &MUTEX).unwrap_or_default()
}

/// Checks that the counted waits of a reader fit into the time since the end of its wait for the terminal. A reader
/// may wait for other mutexes as it ends.
fn ensure_is_after(end: Instant, counted: Duration) -> Result<()> {
    let since = end.elapsed();
    ensure!(counted <= since, "{counted:?} of a wait whose begin was not seen, which ended {since:?} ago");
    Ok(())
}

fn runs(metrics: &Metrics, program: &str) -> Result<f64> {
    metrics.get("podperf_bpf_program_runs_total", &[("program", program)]).with_context(|| format!("no `{program}`"))
}

fn state(metrics: &Metrics, part: &str, state: &str) -> bool {
    metrics.get("podperf_part_state", &[("part", part), ("state", state)]) == Some(1.0)
}

/// Makes waits for locks of both kinds in a new cgroup. Returns the cgroup and the number of waits of each kind.
fn make_waits() -> Result<(TestCgroup, [f64; 2])> {
    let (waiter, holder) = (TestCgroup::new("waiter")?, TestCgroup::new("holder")?);
    let mut waits = [0.0; 2];
    for (kind, waits) in ["inode", "mutex"].iter().zip(&mut waits) {
        let (waiter, holder) = (waiter.path().display(), holder.path().display());
        let report: LocksReport = run(&format!("locks --kind {kind} --waits 20 --cgroup {waiter} --holder {holder}"))?;
        ensure!(report.waits > 10, "only {} waits", report.waits);
        *waits = f64::from(report.waits);
    }
    Ok((waiter, waits))
}

/// Without stacks, the sensor is the first step. An agent without a cap adopts the programs while nothing begins.
pub(crate) fn a_sensor_begins_nothing_and_ends_what_has_begun() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let yaml = |cap: f64| {
        let pins = bpffs.yaml();
        format!(
            "{pins}\nsensors: {{calls: {{enabled: true}}, locks: {{enabled: true}}}}\nstacks: {{enabled: false}}\n\
             overhead: {{maxPercent: {cap}}}"
        )
    };
    let mut agent = Agent::start(&yaml(NO_CAP))?;
    let [before, during] = [TestCgroup::new("before")?, TestCgroup::new("during")?];
    let begun_before = Terminal::begin_wait(&before)?;

    agent.restart(Signal::SIGKILL, &yaml(TINY))?;
    agent.wait_until_sensors_are_shed(true)?;
    let then = agent.fresh_metrics()?;
    begun_before.end_wait()?;
    let begun_during = Terminal::begin_wait(&during)?;
    let (waiter, _) = make_waits()?;
    let metrics = agent.fresh_metrics()?;
    for part in ["calls", "locks"] {
        ensure!(state(&metrics, part, "degraded"), "the part `{part}` is not degraded");
    }
    let status = String::from_utf8(agent.get("/status", &[])?.2)?;
    for line in ["sensors with programs of their own begin nothing new", "its counters stand still"] {
        ensure!(status.contains(line), "no `{line}` in\n{status}");
    }
    let whole = time(&metrics, WAIT, &before, &MUTEX)?;
    tell(&format!("the wait that had begun before took {whole:?}"));
    ensure!(count(&metrics, CONTENTIONS, &before, &MUTEX)? == 1.0, "the wait that had begun before has not ended");
    let new = [
        count_or_zero(&metrics, CONTENTIONS, &waiter, &WRITE),
        count_or_zero(&metrics, USER_WAITS, &waiter, &[]),
        count_or_zero(&metrics, CONTENTIONS, &during, &MUTEX),
    ];
    ensure!(new == [0.0; 3], "waits that began while the sensor was given up: {new:?}");
    let [call, begun, ended] = ["calls_sys_exit", "locks_contention_begin", "locks_contention_end"];
    for idle in [call, begun] {
        ensure!(runs(&metrics, idle)? == runs(&then, idle)?, "`{idle}` has worked");
    }
    ensure!(runs(&metrics, ended)? > runs(&then, ended)?, "`{ended}` has not run");

    agent.restart(Signal::SIGKILL, &yaml(NO_CAP))?;
    agent.fresh_metrics()?;
    let end = Instant::now();
    begun_during.end_wait()?;
    let unseen = time_or_zero(&agent.fresh_metrics()?, &during);
    ensure_is_after(end, unseen)?;
    let (waiter, waits) = make_waits()?;
    let metrics = agent.fresh_metrics()?;
    for part in ["calls", "locks"] {
        ensure!(state(&metrics, part, "healthy"), "the part `{part}` is not healthy");
    }
    // The counts go on from where they stood.
    ensure!(runs(&metrics, call)? > runs(&then, call)?, "`{call}` has not run");
    let found = [count(&metrics, CONTENTIONS, &waiter, &WRITE)?, count(&metrics, USER_WAITS, &waiter, &[])?];
    ensure!(found == waits, "{found:?} new waits, by their own count {waits:?}");
    Ok(())
}

/// The kernel reports the begin of a wait for a mutex again if another task takes the mutex before the woken one.
pub(crate) fn a_wait_from_before_the_agent_is_not_counted_from_its_second_begin() -> Result<()> {
    let (waiting, realtime) = (TestCgroup::new("waiting")?, TestCgroup::new("realtime")?);
    let terminals = (0..TRIES).map(|_| Terminal::begin_wait(&waiting)).collect::<Result<Vec<_>>>()?;
    let agent = Agent::start("sensors: {locks: {enabled: true}}\nstacks: {enabled: false}")?;
    for mut terminal in terminals {
        let is_stolen = terminal.steal(&realtime)?;
        // From here on, the wait is longer than all waits after its end.
        thread::sleep(Duration::from_millis(500));
        let before = time_or_zero(&agent.fresh_metrics()?, &waiting);
        let end = Instant::now();
        terminal.end_wait()?;
        let counted = time_or_zero(&agent.fresh_metrics()?, &waiting) - before;
        ensure_is_after(end, counted)?;
        if is_stolen {
            return Ok(());
        }
    }
    bail!("in {TRIES} attempts, no other reader took the mutex before the waiter");
}
