//! A noisy neighbour: one cgroup creates processes as fast as possible, and all other cgroups keep their shares of the
//! tables.

use std::{fmt::Write as _, thread, time::Duration};

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics, testing},
    cgroup::TestCgroup,
    command::run_load,
    load::storm::StormReport,
    suite::{Test, tell},
    tests,
};

use crate::profiles::Held;

pub(crate) const TESTS: &[Test] = tests![a_storm_of_processes_leaves_a_quiet_cgroup_its_reasons,];

/// Number of storms. A scrape follows each storm.
const STORMS: usize = 2;
/// Number of kinds of waits that a table has room for. The agent empties it every ten seconds without a scrape.
const SAMPLES: u32 = 1024;
/// Number of processes of a storm, each with its own kind of wait.
const PROCESSES: u64 = 20_000;
/// The time limit of a storm, in seconds. Even the slowest storm fills the table in ten seconds.
const LONGEST: u32 = 120;
/// The share of the time off the CPU that must keep its reason.
const KEPT: f64 = 0.99;

/// A cgroup's time off the CPU by the hook and by the profile, and the part of it that has the expected reason.
#[derive(Clone, Copy, Debug)]
struct Times {
    offcpu: f64,
    in_profiles: f64,
    of_reason: f64,
}

impl Times {
    fn of(metrics: &Metrics, cgroup: &TestCgroup, reason: &str) -> Self {
        let labels = [("cgroup", cgroup.kernel_path())];
        Self {
            offcpu: metrics.sum("podperf_cgroup_offcpu_seconds_total", &labels),
            in_profiles: metrics.sum("podperf_cgroup_wait_seconds_total", &labels),
            of_reason: metrics.sum("podperf_cgroup_wait_seconds_total", &[labels[0], ("reason", reason)]),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            offcpu: self.offcpu - before.offcpu,
            in_profiles: self.in_profiles - before.in_profiles,
            of_reason: self.of_reason - before.of_reason,
        }
    }
}

fn a_storm_of_processes_leaves_a_quiet_cgroup_its_reasons() -> Result<()> {
    // No cap: the cost of the storm would turn stacks off for all cgroups.
    let yaml = format!("overhead: {{maxPercent: 0}}\nstacks: {{onCpuHertz: 0, maxSamples: {SAMPLES}}}");
    let agent = Agent::start(&(testing("maxStacks=32768") + &yaml))?;
    let (quiet, noisy) = (TestCgroup::new("quiet")?, TestCgroup::new("noisy")?);
    // One thread with one kind of wait. Its sum is in its own record, and reaches the table last.
    let _sleeper = Held::start(&quiet, &["sleepers", "--waits", "1000000", "--millis", "5", "--fifo"])?;
    thread::sleep(Duration::from_secs(2));
    let look = || -> Result<(Times, Times, f64)> {
        let metrics = agent.fresh_metrics()?;
        let full = metrics.sum("podperf_bpf_drops_total", &[("reason", "sample_table")]);
        Ok((Times::of(&metrics, &quiet, "sleep"), Times::of(&metrics, &noisy, "unknown"), full))
    };
    let first = look()?;
    ensure!(first.0.of_reason > 1.0, "the quiet one has slept {:?}", first.0);
    let mut table = format!(
        "a storm beside a quiet cgroup: seconds off the CPU, in profiles, with a reason\nbefore: quiet {}",
        shown(first.0)
    );
    let mut before = first;
    let arguments = ["storm", "--seconds", &LONGEST.to_string(), "--count", &PROCESSES.to_string()];
    for _ in 0..STORMS {
        let storm: StormReport = run_load(noisy.path(), &arguments)?;
        let now = look()?;
        write!(
            table,
            "\n{} processes in {:.1} s ({:.0} a second): quiet {}; noisy {}; sample_table {}",
            storm.children,
            storm.seconds,
            storm.rate,
            shown(now.0.since(before.0)),
            shown(now.1.since(before.1)),
            now.2 - before.2
        )?;
        ensure!(storm.children == PROCESSES, "{storm:?} is no storm");
        before = now;
    }
    tell(&table);
    let (quiet, noisy) = (before.0.since(first.0), before.1.since(first.1));
    ensure!(
        quiet.of_reason >= KEPT * quiet.offcpu && quiet.of_reason <= quiet.offcpu / KEPT,
        "the quiet cgroup has a reason for {} s of {} s off the CPU:\n{table}",
        quiet.of_reason,
        quiet.offcpu
    );
    // Waits of the noisy cgroup without room in the table are in its own row, without a reason.
    ensure!(
        noisy.in_profiles >= KEPT * noisy.offcpu && noisy.in_profiles <= noisy.offcpu / KEPT,
        "{} s of {} s off the CPU are in the noisy cgroup's profiles:\n{table}",
        noisy.in_profiles,
        noisy.offcpu
    );
    ensure!(noisy.of_reason > 0.0, "none of the storm's waits was too much:\n{table}");
    Ok(())
}

fn shown(times: Times) -> String {
    format!("{:.2} {:.2} {:.2}", times.offcpu, times.in_profiles, times.of_reason)
}
