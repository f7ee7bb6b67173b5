//! Tests of CPUs that go offline and online, for a machine of the tests' own: other users would lose a CPU too.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    agent::Agent,
    cgroup::TestCgroup,
    load::cpu::CpuReport,
    running::{CPU_CLOCK, Load, is_close, keep_cpus_awake, run, time},
    suite::within,
};

const CPU: u32 = 1;
/// The longest time until the agent notices a CPU. It checks four times a second, and a new CPU has no counters until
/// then.
pub const NOTICED: Duration = Duration::from_millis(500);

/// A CPU that is offline until drop.
#[derive(Debug)]
pub struct Offline;

impl Offline {
    fn set(online: bool) -> Result<()> {
        let path = format!("/sys/devices/system/cpu/cpu{CPU}/online");
        fs::write(&path, if online { "1" } else { "0" }).with_context(|| format!("failed to write `{path}`"))
    }

    /// Takes the CPU offline.
    pub fn new() -> Result<Self> {
        Self::set(false).map(|()| Self)
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        Self::set(true).ok();
    }
}

/// Runs two burners on two CPUs. One CPU goes offline and comes back: first for a moment, and then for longer.
pub fn counters_follow_a_cpu_off_and_on() -> Result<()> {
    let agent = Agent::start("counters: {groups: [[cpu-clock]]}\n")?;
    let cgroup = TestCgroup::new("hotplug")?;
    let arguments = format!("spin --seconds 60 --cgroup {}", cgroup.path().display());
    let loads = [Load::start(&arguments)?, Load::start(&arguments)?];
    thread::sleep(Duration::from_secs(1));
    for away in [Duration::ZERO, Duration::from_secs(2)] {
        let offline = Offline::new()?;
        thread::sleep(away);
        drop(offline);
        thread::sleep(NOTICED);
    }
    thread::sleep(Duration::from_secs(2));
    drop(loads);
    let metrics = agent.fresh_metrics()?;
    let (found, truth) = (time(&metrics, CPU_CLOCK, &cgroup, &[])?, cgroup.cpu_usage()?);
    ensure!(truth > Duration::from_secs(5), "the load did too little: {truth:?}");
    // The difference is the time that the new counters missed after each return.
    ensure!(
        found <= truth + truth / 50 && found + 2 * NOTICED + truth / 50 >= truth,
        "{found:?}, and the truth is {truth:?}"
    );
    ensure!(metrics.get("podperf_bpf_drops_total", &[("reason", "event_read")]) == Some(0.0), "unread counters");

    // The counters on the CPU must work again.
    let _awake = keep_cpus_awake()?;
    let again = TestCgroup::new("again")?;
    let _: CpuReport = run(&format!("spin --seconds 1 --cpu {CPU} --cgroup {}", again.path().display()))?;
    is_close("cpu-clock", time(&agent.fresh_metrics()?, CPU_CLOCK, &again, &[])?, again.cpu_usage()?)?;
    ensure!(agent.log().contains("CPU went offline"), "not told:\n{}", agent.log());
    within(NOTICED, "told", || Ok(agent.log().contains("CPU came online").then_some(())))
}
