//! The widest filters that readers may ask for cost the sensors nothing.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::unistd::Pid;
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    http, process,
    suite::{Test, tell, within},
    tests,
};

use crate::profiles::{DEADLINE, Held};

pub(crate) const TESTS: &[Test] = tests![
    #[measures]
    the_widest_filters_cost_the_sensors_nothing,
];

/// The readers who ask at once. The agent has places for four recordings.
const READERS: usize = 6;
const PLACES: usize = 4;
/// The length of the recordings. Features are given up one after the other, every twelve seconds.
const SECONDS: u64 = 80;
/// The terms that a filter may have.
const TERMS: usize = 64;
/// Nearly each wait has a stack of its own, and so is a sample of its own.
const LOAD: [&str; 5] = ["thicket", "--threads", "4", "--micros", "2000"];
/// The time after the end of a recording in which its samples get names, on a busy machine.
const NAMES: Duration = Duration::from_secs(60);
/// The sensors of a test build stay below this, in percent of the node.
const MOST_PERCENT: f64 = 40.0;

/// Returns a filter with this number of terms, encoded for a URL. All terms but the last one hold, so that each sample
/// is compared with each term.
fn filter(terms: usize) -> String {
    let others: String = (2..=terms).map(|pid| format!("pid!={pid}%26%26")).collect();
    others + "pid==1"
}

/// The CPU time of the agent's sensors and of its readers, in seconds.
#[derive(Clone, Copy, Debug)]
struct Spent {
    sensors: f64,
    readers: f64,
}

impl Spent {
    fn now(agent: &Agent) -> Result<Self> {
        let readers = agent.fresh_metrics()?.sum("podperf_server_cpu_seconds_total", &[]);
        let all = process::cpu_ns_of(Pid::from_raw(i32::try_from(agent.pid())?))?;
        Ok(Self { sensors: Duration::from_nanos(all).as_secs_f64() - readers, readers })
    }

    fn since(self, before: Self) -> Self {
        Self { sensors: self.sensors - before.sensors, readers: self.readers - before.readers }
    }
}

/// Makes all readers record with this filter at once, and returns what that cost.
fn recorded(agent: &Agent, filter: &str, seconds: u64) -> Result<Spent> {
    let path = format!("/debug/profile?seconds={seconds}&format=folded&filter={filter}");
    let before = Spent::now(agent)?;
    let codes = thread::scope(|scope| {
        let ask = || http::get_within(Duration::from_secs(seconds) + NAMES, agent.address(), &path);
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(ask)).collect();
        let code = |reader: thread::ScopedJoinHandle<'_, Result<http::Answer>>| -> Result<u16> {
            let answer = reader.join().map_err(|_panic| anyhow::anyhow!("a reader panicked"))?;
            Ok(answer?.0)
        };
        readers.into_iter().map(code).collect::<Result<Vec<_>>>()
    })?;
    let refused = codes.iter().filter(|code| **code == 429).count();
    // No sample passes the widest filter, and only one recording is drawn at a time.
    let ended = codes.iter().filter(|code| [200, 404, 503].contains(*code)).count();
    ensure!((ended, refused) == (PLACES, READERS - PLACES), "{codes:?}");
    Ok(Spent::now(agent)?.since(before))
}

fn the_widest_filters_cost_the_sensors_nothing() -> Result<()> {
    // The readers' own cap would also refuse the scrapes of this test.
    let agent =
        Agent::start(&format!("overhead: {{maxPercent: {MOST_PERCENT}}}\nserver: {{limits: {{maxPercent: 0}}}}\n"))?;
    let (code, _, says) = agent.get(&format!("/debug/profile?seconds=1&filter={}", filter(TERMS + 1)), &[])?;
    let says = String::from_utf8_lossy(&says).into_owned();
    ensure!(code == 400 && says.contains("too many terms"), "a wider filter: {code}: {says}");

    let cgroup = TestCgroup::new("wide-filters")?;
    let _load = Held::start(&cgroup, &LOAD)?;
    within(DEADLINE, "the load waits", || {
        let labels = [("cgroup", cgroup.kernel_path())];
        let waited = agent.metrics()?.get("podperf_cgroup_wait_seconds_total", &labels);
        Ok(waited.filter(|seconds| *seconds > 1.0))
    })?;
    let without = recorded(&agent, "", SECONDS)?;
    let with = recorded(&agent, &filter(TERMS), SECONDS)?;
    tell(&format!("sensors and readers, without filters: {without:.2?}, with the widest ones: {with:.2?}"));
    ensure!(with.sensors < 1.25 * without.sensors + 0.5, "the sensors pay: {with:?}, and without filters {without:?}");
    let metrics = agent.fresh_metrics()?;
    let shed = metrics.sum("podperf_overhead_shed", &[("cap", "cpu")]);
    ensure!(shed == 0.0, "{shed} features are given up:\n{}", agent.log());
    let ratio = metrics.get("podperf_overhead_ratio", &[]).context("no ratio")?;
    ensure!(ratio < MOST_PERCENT / 100.0, "the sensors are charged with {ratio}");
    Ok(())
}
