//! On-CPU time is the growth of `cpu.stat`, in whichever way a task came to its cgroup.

use std::{thread, time::Duration};

use anyhow::{Result, bail, ensure};
use podperf_tests::{
    agent::{Agent, NO_STACKS, testing},
    cgroup::TestCgroup,
    load::{cpu::CpuReport, moved::MovedReport, ring::RingReport},
    running::{Counts, Load, ONCPU, count, cpus, is_close, oncpu_is_cpu_stat, run, time, with_faults},
    suite,
};

/// The time between two readings of a task that runs on.
const RUNS_FOR: Duration = Duration::from_millis(1500);

pub(crate) fn burner(configuration: &str) -> Result<()> {
    charges_what_is_burnt(&Agent::start(&format!("{configuration}{NO_STACKS}"))?)
}

pub(crate) fn charges_what_is_burnt(agent: &Agent) -> Result<()> {
    let cgroup = TestCgroup::new("burner")?;
    let report: CpuReport = run(&format!("spin --seconds 1 --cgroup {}", cgroup.path().display()))?;
    let metrics = agent.fresh_metrics()?;
    oncpu_is_cpu_stat(&metrics, &cgroup)?;
    is_close("the load's own clock", time(&metrics, ONCPU, &cgroup, &[])?, Duration::from_nanos(report.inside.cpu_ns))
}

pub(crate) fn ring(configuration: &str) -> Result<()> {
    let agent = Agent::start(configuration)?;
    let (ping, pong) = (TestCgroup::new("ping")?, TestCgroup::new("pong")?);
    let cgroups = format!("{},{}", ping.path().display(), pong.path().display());
    let report: RingReport = run(&format!("ring --hops 30000 --slices 9 --cgroups {cgroups}"))?;
    ensure!(report.hops > 270_000, "only {} hops", report.hops);
    let metrics = agent.fresh_metrics()?;
    oncpu_is_cpu_stat(&metrics, &ping)?;
    oncpu_is_cpu_stat(&metrics, &pong)
}

pub(crate) fn moved(configuration: &str) -> Result<()> {
    let agent = Agent::start(&format!("{configuration}{NO_STACKS}"))?;
    let (from, to) = (TestCgroup::new("from")?, TestCgroup::new("to")?);
    let report: MovedReport =
        run(&format!("moved --from {} --to {} --part-millis 500", from.path().display(), to.path().display()))?;
    let metrics = agent.fresh_metrics()?;
    is_close("on-CPU time before the move", time(&metrics, ONCPU, &from, &[])?, Duration::from_nanos(report.from_ns))?;
    is_close("on-CPU time after the move", time(&metrics, ONCPU, &to, &[])?, Duration::from_nanos(report.to_ns))
}

/// On a machine whose CPUs are all busy, the kernel leaves some switch-ins unreported: the agent has to find the cgroup in
/// which such a task came on.
pub(crate) fn moved_often(configuration: &str) -> Result<()> {
    // The CPUs of a guest take turns of up to 2 ms, also between the kernel's move and the program that settles it: the
    // kernel and the agent differ by 1.4 ms a move there, in either direction. So a guest has few moves.
    let (moves, part) = if suite::has_own_machine() { (41, 100) } else { (401, 5) };
    let agent = Agent::start(configuration)?;
    let busy = |cpu| Load::start(&format!("spin --idle --seconds 60 --cpu {cpu}"));
    let _busy = (0..cpus()?).map(busy).collect::<Result<Vec<_>>>()?;
    let (from, to) = (TestCgroup::new("from")?, TestCgroup::new("to")?);
    let (first, second) = (from.path().display(), to.path().display());
    let report: MovedReport = run(&format!("moved --from {first} --to {second} --part-millis {part} --moves {moves}"))?;
    let metrics = agent.fresh_metrics()?;
    let found = [time(&metrics, ONCPU, &from, &[])?, time(&metrics, ONCPU, &to, &[])?];
    let truth = [report.from_ns, report.to_ns].map(Duration::from_nanos);
    suite::tell(&format!("{found:?} in the two cgroups, and {truth:?} by the kernel"));
    is_close("on-CPU time in the first", found[0], truth[0])?;
    is_close("on-CPU time in the second", found[1], truth[1])
}

pub(crate) fn fork_join(configuration: &str) -> Result<()> {
    let agent = Agent::start(&format!("{configuration}{NO_STACKS}"))?;
    let cgroup = TestCgroup::new("forkjoin")?;
    let _: CpuReport = run(&format!("forkjoin --seconds 1 --cgroup {}", cgroup.path().display()))?;
    oncpu_is_cpu_stat(&agent.fresh_metrics()?, &cgroup)
}

pub(crate) fn late_join(configuration: &str) -> Result<()> {
    let agent = Agent::start(&with_faults(configuration))?;
    let cgroup = TestCgroup::new("late")?;
    let report: CpuReport = run(&format!("spin --late --seconds 1 --cgroup {}", cgroup.path().display()))?;
    ensure!(report.outside.cpu_ns > 1_000_000_000, "little work before the join: {report:?}");
    let metrics = agent.fresh_metrics()?;
    oncpu_is_cpu_stat(&metrics, &cgroup)?;
    // The load's report covers its counts up to the report. Then the load prints and exits.
    let faults = count(&metrics, "podperf_cgroup_page_faults_total", &cgroup, &[("kind", "minor")])?;
    let least = u32::try_from(report.inside.minor_faults)?.into();
    ensure!(faults >= least && faults <= least + 100.0, "{faults} faults, and the load had {least} up to its report");
    Ok(())
}

/// The load exits after the move, in about 0.15 ms. An agent that charges a task to the cgroup in which it leaves the
/// CPU would put the whole 300 ms there.
pub(crate) fn last_move() -> Result<()> {
    let agent = Agent::start("")?;
    let (first, last) = (TestCgroup::new("first")?, TestCgroup::new("last")?);
    let arguments =
        format!("--spin-before 0.3 --cgroup {} --move-to {}", first.path().display(), last.path().display());
    let _: CpuReport = run(&format!("spin {arguments}"))?;
    let metrics = agent.fresh_metrics()?;
    let truth = first.cpu_usage()?;
    let found = time(&metrics, ONCPU, &first, &[])?;
    ensure!(found.abs_diff(truth) <= truth / 50, "{found:?} in the first cgroup, and the truth is {truth:?}");
    let found = time(&metrics, ONCPU, &last, &[])?;
    ensure!(found < Duration::from_millis(2), "{found:?} for an exit ({:?} in cpu.stat)", last.cpu_usage()?);
    Ok(())
}

/// No switch reports a task that stays on its CPU. Only the flush before a reading can.
pub(crate) fn fifo() -> Result<()> {
    let agent = Agent::start("")?;
    for _ in 0..5 {
        // A scrape sooner would return the agent's last reading again.
        thread::sleep(agent.coalesced_for());
        let cgroup = TestCgroup::new("fifo")?;
        let mut load = Load::start(&format!("fifo --seconds 0.4 --cpu 1 --hold --cgroup {}", cgroup.path().display()))?;
        while cgroup.cpu_usage()? < Duration::from_millis(100) {
            thread::sleep(Duration::from_millis(1));
        }
        let (switches, before) = (Counts::of(load.pid())?, load.cpu_time()?);
        let metrics = agent.metrics()?;
        let (after, switches_after) = (load.cpu_time()?, Counts::of(load.pid())?);
        let report: CpuReport = load.report()?;
        let unswitched = |counts: &Counts| (counts.state.clone(), counts.voluntary, counts.involuntary);
        let caught = switches.state == "R" && unswitched(&switches) == unswitched(&switches_after);
        if caught {
            let outside = Duration::from_nanos(report.outside.cpu_ns);
            let found = time(&metrics, ONCPU, &cgroup, &[])?;
            let tolerance = Duration::from_millis(2);
            ensure!(
                found + tolerance >= before - outside && found <= after - outside + tolerance,
                "{found:?} while it ran, and the truth was between {:?} and {:?}",
                before - outside,
                after - outside
            );
        }
        load.wait_until_blocked()?;
        oncpu_is_cpu_stat(&agent.fresh_metrics()?, &cgroup)?;
        if caught {
            return Ok(());
        }
    }
    bail!("it never ran from before a reading to after it")
}

/// A reading does not interrupt an isolated CPU. The task there is counted when it leaves the CPU, and nothing is lost.
pub(crate) fn isolated() -> Result<()> {
    let agent = Agent::start(&testing("isolatedCpus=[1]"))?;
    for _ in 0..5 {
        thread::sleep(agent.coalesced_for());
        let cgroup = TestCgroup::new("isolated")?;
        let mut load = Load::start(&format!("fifo --seconds 0.4 --cpu 1 --hold --cgroup {}", cgroup.path().display()))?;
        while cgroup.cpu_usage()? < Duration::from_millis(100) {
            thread::sleep(Duration::from_millis(1));
        }
        let before = Counts::of(load.pid())?;
        let metrics = agent.metrics()?;
        let after = Counts::of(load.pid())?;
        let _: CpuReport = load.report()?;
        let unswitched = |counts: &Counts| (counts.state.clone(), counts.voluntary, counts.involuntary);
        let caught = before.state == "R" && unswitched(&before) == unswitched(&after);
        if caught {
            // Without a row there is no series.
            let found = time(&metrics, ONCPU, &cgroup, &[]).unwrap_or_default();
            ensure!(found < Duration::from_millis(50), "{found:?} are counted before the task has left the CPU");
        }
        load.wait_until_blocked()?;
        oncpu_is_cpu_stat(&agent.fresh_metrics()?, &cgroup)?;
        if caught {
            return Ok(());
        }
    }
    bail!("it never ran from before a reading to after it")
}

/// The truth is the task's own clock beside each reading. On an idle machine that is the wall clock.
pub(crate) fn running_on() -> Result<()> {
    let agent = Agent::start("")?;
    let cgroup = TestCgroup::new("running")?;
    let load = Load::start(&format!("spin --seconds 30 --cpu 0 --cgroup {}", cgroup.path().display()))?;
    while cgroup.cpu_usage()? < Duration::from_millis(10) {
        thread::sleep(Duration::from_millis(1));
    }
    let read = || -> Result<_> {
        thread::sleep(RUNS_FOR);
        let before = load.cpu_time()?;
        let found = time(&agent.metrics()?, ONCPU, &cgroup, &[])?;
        Ok((before, found, load.cpu_time()?))
    };
    let (first, second) = (read()?, read()?);
    let (least, most) = (second.0 - first.2, second.2 - first.0);
    let (grown, tolerance) = (second.1 - first.1, Duration::from_millis(5).max(least / 50));
    ensure!(least > Duration::from_millis(500), "it had the CPU for only {least:?}");
    ensure!(
        grown + tolerance >= least && grown <= most + tolerance,
        "grew by {grown:?} between two readings, and the truth is between {least:?} and {most:?}"
    );
    Ok(())
}
