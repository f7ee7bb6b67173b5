//! Filters of profiles: samples that pass arrive, other samples do not, and metrics have everything.

use std::{fs, thread, time::Duration};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{Agent, STOP_DEADLINE},
    cgroup::TestCgroup,
    collector::{Collector, Sample},
    load::sleepers::SleepersReport,
    suite::{Need, Test, within},
    tests,
};
use tempfile::TempDir;

use crate::profiles::{Held, WAIT_STACK, nanoseconds};

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] #[measures] a_filter_by_length_and_name_lets_only_those_waits_pass: &[Need::Program("go")] => by_length_and_name,
    #[beside] a_filter_by_cgroup_or_thread_lets_only_those_pass: &[Need::Program("go")] => by_cgroup_or_thread,
];

const DEADLINE: Duration = Duration::from_secs(30);
/// Ten times the interval in which the receiver writes its data.
const SETTLES: Duration = Duration::from_secs(1);
/// The rounding error of a sum of some hundred samples, in seconds.
const ROUNDING: f64 = 0.0005;

/// Two sleepers, one with long waits and one with short waits, under an agent with this filter.
struct Run {
    long: Slept,
    short: Slept,
}

/// A sleeper's time, in seconds.
#[derive(Clone, Copy, Debug)]
struct Slept {
    /// The time in profiles.
    arrived: f64,
    /// The time by the sleeper's own clock.
    truth: SleepersReport,
}

impl Run {
    fn new(filter: impl Fn(&TestCgroup, u32) -> String) -> Result<Self> {
        let (long, short) = (TestCgroup::new("long")?, TestCgroup::new("short")?);
        let collector = Collector::start()?;
        let scratch = TempDir::new()?;
        let start = scratch.path().join("start");
        let after = start.to_string_lossy();
        let loads = [
            Held::start(&long, &["sleepers", "--waits", "40", "--millis", "50", "--after", &after])?,
            Held::start(&short, &["sleepers", "--waits", "1000", "--millis", "1", "--after", &after])?,
        ];
        let filter = filter(&long, loads[1].pid());
        // With a limit of walks, some waits would have no stack, and other waits would stand for them.
        let mut agent = Agent::start(&format!(
            "otlp: {{endpoint: '{}', interval: 1s}}\nstacks: {{filter: '{filter}', maxWalks: 0}}",
            collector.endpoint()
        ))?;
        fs::write(&start, "")?;
        within(DEADLINE, "both have slept", || Ok(loads.iter().all(Held::is_done).then_some(())))?;
        // The agent ends after it has sent all windows. If all windows are empty, there is no export to wait for.
        agent.signal(Signal::SIGTERM)?;
        ensure!(agent.wait(STOP_DEADLINE)?.success(), "{}", agent.log());
        for lost in ["not done in time", "dropped profiles"] {
            ensure!(!agent.log().contains(lost), "{}", agent.log());
        }
        let arrived = (settled(&collector, &long)?, settled(&collector, &short)?);
        let [of_long, of_short] = loads;
        Ok(Self {
            long: Slept { arrived: arrived.0, truth: of_long.finish()? },
            short: Slept { arrived: arrived.1, truth: of_short.finish()? },
        })
    }
}

/// Returns the seconds of a cgroup's own sleep that have arrived, once the receiver has written all of them.
fn settled(collector: &Collector, cgroup: &TestCgroup) -> Result<f64> {
    let slept = || -> Result<f64> {
        let is_sleep = |sample: &&Sample| sample.reason == "sleep" && sample.functions().contains(&WAIT_STACK[0]);
        Ok(nanoseconds(collector.samples_of(cgroup.kernel_path())?.iter().filter(is_sleep)) / 1e9)
    };
    let mut before = slept()?;
    loop {
        thread::sleep(SETTLES);
        let now = slept()?;
        if now.to_bits() == before.to_bits() {
            return Ok(now);
        }
        before = now;
    }
}

impl Slept {
    /// Checks that each wait arrived once: the time of the waits by the wall clock, without the time in which the
    /// process ran or waited for a CPU.
    fn ensure_whole(&self) -> Result<()> {
        let SleepersReport { waited_ns, usage, .. } = self.truth;
        let seconds = |nanoseconds| Duration::from_nanos(nanoseconds).as_secs_f64();
        let most = seconds(waited_ns);
        let least = most - seconds(usage.cpu_ns + usage.wait_ns);
        ensure!(
            self.arrived >= least * (1.0 - ROUNDING) && self.arrived <= most,
            "{} s arrived, between {least} s and {most} s were slept",
            self.arrived
        );
        Ok(())
    }
}

fn by_length_and_name() -> Result<()> {
    let run = Run::new(|_, _| "duration >= 20ms && comm == \"podperf-l*\" || comm == nobody".into())?;
    run.long.ensure_whole()?;
    // On a busy machine, some of the waits of a millisecond became long.
    let (short, late) = (run.short.arrived, Duration::from_nanos(run.short.truth.late_ns).as_secs_f64());
    ensure!(short <= late, "{short} s of short waits arrived, and {late} s of them were long");
    Ok(())
}

fn by_cgroup_or_thread() -> Result<()> {
    let run = Run::new(|long, tid| format!("cgroup == \"{}\" && state == D || tid == {tid}", long.kernel_path()))?;
    run.short.ensure_whole()?;
    ensure!(run.long.arrived == 0.0, "{} s of interruptible waits arrived", run.long.arrived);
    Ok(())
}
