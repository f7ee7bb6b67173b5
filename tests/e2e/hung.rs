//! A program on a file system whose server does not answer. Other programs keep their profiles and names.

use std::{
    fs,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    command::run_load,
    hung_fs::HungFs,
    load::{self, cpu::CpuReport},
    process,
    suite::{Need, Test, within},
    tests,
};

use crate::recorded::Recording;

pub(crate) const TESTS: &[Test] = tests![
    a_file_server_that_hangs_stops_the_names_of_its_own_cgroup_only: &[Need::Path("/dev/fuse")],
    an_agent_that_cannot_end_keeps_no_other_from_starting: &[Need::Path("/dev/fuse")],
];

/// The limit on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(60);
const READER: &str = "podperf-files";
const UNWINDER: &str = "podperf-unwind";
const UNREAD: &str = "podperf_stack_unread_frames_total";

fn a_file_server_that_hangs_stops_the_names_of_its_own_cgroup_only() -> Result<()> {
    let (stuck, quiet) = (TestCgroup::new("stuck")?, TestCgroup::new("quiet")?);
    // A process with a hanging thread ends only with the file system, so the test drops the file system first.
    let mut agent = None;
    let hung = HungFs::serve(&load::binary()?)?;
    others_have_names(&hung, &mut agent, &stuck, &quiet)
}

fn others_have_names(hung: &HungFs, agent: &mut Option<Agent>, stuck: &TestCgroup, quiet: &TestCgroup) -> Result<()> {
    let mut load = burn_and_hang(hung, stuck)?;
    let agent = agent.insert(Agent::start("stacks: {onCpuHertz: 99}")?);
    // One reader finds names, and another one unwinds stacks if these are copied. Until its read hangs, each waits for it.
    within(DEADLINE, "all readers have met the read that hangs", || {
        let readers = 1 + threads(agent.pid())?.iter().filter(|(name, _)| name == UNWINDER).count();
        Ok((agent.log().matches("a read of a file hangs").count() >= readers).then_some(()))
    })?;
    for _ in 0..2 {
        let url = agent.address().to_string();
        let arguments = [quiet.kernel_path(), "--agent", &url, "--on-cpu", "--duration", "2m"];
        let mut recording = Recording::start("", "folded", &arguments)?;
        recording.begun()?;
        let report: CpuReport = run_load(quiet.path(), &["spin", "--seconds", "1"])?;
        recording.interrupt()?;
        recording.ended()?;
        let text = String::from_utf8(recording.finish()?)?;
        let (mut all, mut burning) = (0, 0);
        for line in text.lines() {
            let (stack, nanoseconds) = line.rsplit_once(' ').context("not folded")?;
            let nanoseconds: u64 = nanoseconds.parse()?;
            all += nanoseconds;
            // A sample at the first instruction of a function may lack its caller, but has the caller's callers.
            burning += if stack.contains("cpu::spin") { nanoseconds } else { 0 };
        }
        ensure!(all > report.inside.cpu_ns / 2, "{all} ns are sampled of {}:\n{text}", report.inside.cpu_ns);
        ensure!(burning >= all / 10 * 9, "only {burning} of {all} ns have the name of their function:\n{text}");
    }
    // The agent counts the hanging program's frames for its cgroup, once a window had such frames.
    let its_own = [("cgroup", stuck.kernel_path())];
    let metrics = within(DEADLINE, "the frames of the hanging program are counted", || {
        let metrics = agent.fresh_metrics()?;
        Ok(metrics.get(UNREAD, &its_own).is_some_and(|frames| frames > 0.0).then_some(metrics))
    })?;
    ensure!(metrics.get(UNREAD, &[("cgroup", quiet.kernel_path())]).is_none(), "the other's are counted as well");
    let threads = threads(agent.pid())?;
    let of = |wanted: &str| threads.iter().filter(|(name, _)| name == wanted).count();
    let (readers, expected) = (of(READER), 2 * (1 + of(UNWINDER)));
    ensure!(readers == expected, "{readers} threads instead of {expected}: those that hang and their successors");
    load.kill()?;
    Ok(())
}

/// Starts a program on the file system that burns in this cgroup, after the file system has begun to hang.
fn burn_and_hang(hung: &HungFs, stuck: &TestCgroup) -> Result<Child> {
    let mut load = Command::new(hung.program());
    load.args(["spin", "--seconds", "600", "--cgroup"]).arg(stuck.path()).stdin(Stdio::null()).stdout(Stdio::null());
    process::bind_to_parent(&mut load);
    let load = load.spawn().context("failed to run a program on FUSE")?;
    // A program that burns in its cgroup has read all its files.
    within(DEADLINE, "the load burns", || {
        let stat = fs::read_to_string(stuck.path().join("cpu.stat"))?;
        let usage = stat.lines().find_map(|line| line.strip_prefix("usage_usec ")).context("no `usage_usec`")?;
        Ok((usage.parse::<u64>()? > 500_000).then_some(()))
    })?;
    hung.hang()?;
    Ok(load)
}

/// Returns the names of a process' threads, and their states.
fn threads(pid: u32) -> Result<Vec<(String, char)>> {
    let mut threads = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end before this read.
        let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else { continue };
        let (head, rest) = stat.rsplit_once(") ").context("no state")?;
        let (_, name) = head.split_once('(').context("no name")?;
        threads.push((name.to_owned(), rest.chars().next().context("no state")?));
    }
    Ok(threads)
}

fn an_agent_that_cannot_end_keeps_no_other_from_starting() -> Result<()> {
    let (stuck, bpffs) = (TestCgroup::new("stuck")?, Bpffs::mount()?);
    let mut agent = None;
    let hung = HungFs::serve(&load::binary()?)?;
    let mut load = burn_and_hang(&hung, &stuck)?;
    let yaml = format!("stacks: {{onCpuHertz: 99}}\n{}", bpffs.yaml());
    let agent = agent.insert(Agent::start(&yaml)?);
    // One reader finds names, and another one unwinds stacks if these are copied. Until its read hangs, each waits for it.
    within(DEADLINE, "all readers have met the read that hangs", || {
        let readers = 1 + threads(agent.pid())?.iter().filter(|(name, _)| name == UNWINDER).count();
        Ok((agent.log().matches("a read of a file hangs").count() >= readers).then_some(()))
    })?;
    let first = agent.pid();
    agent.signal(Signal::SIGKILL)?;
    // The kernel keeps the first thread as a zombie while another thread exists.
    let rest = || -> Result<Vec<_>> { Ok(threads(first)?.into_iter().filter(|(_, state)| *state != 'Z').collect()) };
    within(DEADLINE, "all threads but the one that hangs end", || {
        Ok((rest()?.iter().all(|(name, _)| name == READER)).then_some(()))
    })?;

    agent.begin_again(&agent::binary()?, &yaml)?;
    agent.wait_until_ready()?;
    agent.metrics()?;
    let rest: Vec<_> = rest()?;
    // Two readers may hang: the one that finds names, and the one that unwinds stacks.
    let hangs = |thread: &(String, char)| *thread == (READER.to_owned(), 'D');
    ensure!(!rest.is_empty() && rest.iter().all(hangs), "the first agent does not hang: {rest:?}");
    load.kill()?;
    Ok(())
}
