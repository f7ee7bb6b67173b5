//! Waits that have not ended: for a server that does not answer, and under an agent in its own PID namespace.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent},
    cgroup::TestCgroup,
    hung_fs::{HungFs, Reads},
    load,
    suite::{Need, Test, within},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    who_reads_from_a_file_server_that_hangs_is_blocked: &[Need::Path("/dev/fuse")],
    #[land] #[measures] without_the_nodes_process_ids_a_wait_counts_when_it_ends,
];

const OFFCPU: &str = "podperf_cgroup_offcpu_seconds_total";
/// The time between a wait's last charge and the end of a reading, in seconds, on a busy machine.
const OFF: f64 = 0.5;
const DEADLINE: Duration = Duration::from_secs(60);
/// Longer than the minimum time after which an unfinished wait is counted.
const A_WHILE: Duration = Duration::from_secs(1);

/// A process in a cgroup. Drop kills it.
struct Waiting(Child);

impl Waiting {
    fn start(cgroup: &TestCgroup, program: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = cgroup.command();
        command.arg(program).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(Self(command.spawn().context("failed to start a load")?))
    }

    /// Starts a thread that blocks until its input ends.
    fn hold(cgroup: &TestCgroup) -> Result<Self> {
        let program = load::binary()?;
        let mut this = Self::start(cgroup, &program.to_string_lossy(), &["spin", "--seconds", "0.01", "--hold"])?;
        let mut line = String::new();
        BufReader::new(this.0.stdout.take().context("no stdout")?).read_line(&mut line)?;
        ensure!(!line.is_empty(), "a load ended without a report");
        thread::sleep(A_WHILE);
        Ok(this)
    }

    fn end(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        ensure!(self.0.wait()?.success(), "a load ended badly");
        Ok(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns the time that threads of a cgroup were in a state, and the time of the reading, both in seconds.
fn blocked(agent: &Agent, cgroup: &TestCgroup, state: &str) -> Result<(f64, f64)> {
    let metrics = agent.fresh_metrics()?;
    let at = metrics.get("podperf_reading_timestamp_seconds", &[]).context("no time of the reading")?;
    Ok((metrics.sum(OFFCPU, &[("cgroup", cgroup.kernel_path()), ("state", state)]), at))
}

/// The thread that sends a request waits for its answer. Other threads wait for a page that an earlier request fetches.
fn who_reads_from_a_file_server_that_hangs_is_blocked() -> Result<()> {
    let agent = Agent::start("")?;
    is_blocked(&agent, Reads::OneByOne, "interruptible")?;
    is_blocked(&agent, Reads::Ahead, "uninterruptible")
}

fn is_blocked(agent: &Agent, serves: Reads, state: &str) -> Result<()> {
    let cgroup = TestCgroup::new(state)?;
    // A signal does not end the read, and the end of the file system does. So the test drops the file system first.
    let mut reads = None;
    let hung = HungFs::serve_with(&load::binary()?, serves)?;
    hung.hang()?;
    reads.replace(Waiting::start(&cgroup, "tail", &["-c", "1", &hung.program().to_string_lossy()])?);
    thread::sleep(A_WHILE);
    let (first, then) = blocked(agent, &cgroup, state)?;
    thread::sleep(A_WHILE);
    let (last, now) = blocked(agent, &cgroup, state)?;
    let off = (last - first) - (now - then);
    ensure!(first > 0.0 && off.abs() < OFF, "{first} s and then {last} s, and {} s have passed", now - then);
    within(DEADLINE, "the reason is told", || {
        let labels = [("cgroup", cgroup.kernel_path()), ("reason", "disk")];
        Ok((agent.metrics()?.sum("podperf_cgroup_wait_seconds_total", &labels) > first).then_some(()))
    })
}

fn without_the_nodes_process_ids_a_wait_counts_when_it_ends() -> Result<()> {
    let (early, late) = (TestCgroup::new("early")?, TestCgroup::new("late")?);
    let began_before = Waiting::hold(&early)?;
    let agent = Agent::start_changed(&agent::binary()?, "stacks: {unwind: tables}", |command| {
        let mut contained = Command::new("unshare");
        contained.args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]);
        contained.arg(command.get_program()).args(command.get_args());
        *command = contained;
    })?;
    // The files of processes that are not visible cannot be read for their tables.
    let status = String::from_utf8(agent.get("/status", &[])?.2)?;
    ensure!(status.contains("by frame pointers instead of tables: the node's processes are not visible"), "{status}");
    let began_after = Waiting::hold(&late)?;
    let told = |cgroup| -> Result<f64> { Ok(blocked(&agent, cgroup, "interruptible")?.0) };
    let least = A_WHILE.as_secs_f64();
    ensure!(told(&late)? < least / 2.0, "a wait that goes on is counted: {} s", told(&late)?);
    began_after.end()?;
    ensure!(told(&late)? >= least, "a wait that is over is not counted: {} s", told(&late)?);
    began_before.end()?;
    ensure!(told(&early)? < least / 2.0, "a wait that began before the agent is counted: {} s", told(&early)?);
    // `unshare` leaves other signals to its child, which is the first process of its PID namespace and ignores them.
    agent.signal(Signal::SIGKILL)
}
