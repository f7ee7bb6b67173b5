//! CPUs that come and go. Only on a machine of the tests' own: others would lose a CPU too.

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
/// The agent looks for CPUs four times a second; until then a new one has no counters.
pub const NOTICED: Duration = Duration::from_millis(500);

/// Brings the CPU back on drop.
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

/// Two burners on two CPUs, one of which goes and comes back: for a moment, and for longer.
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
    // Of each return, what the new counters missed.
    ensure!(
        found <= truth + truth / 50 && found + 2 * NOTICED + truth / 50 >= truth,
        "{found:?}, and the truth is {truth:?}"
    );
    ensure!(metrics.get("podperf_bpf_drops_total", &[("reason", "event_read")]) == Some(0.0), "unread counters");

    // And it counts there as ever.
    let _awake = keep_cpus_awake()?;
    let again = TestCgroup::new("again")?;
    let _: CpuReport = run(&format!("spin --seconds 1 --cpu {CPU} --cgroup {}", again.path().display()))?;
    is_close("cpu-clock", time(&agent.fresh_metrics()?, CPU_CLOCK, &again, &[])?, again.cpu_usage()?)?;
    ensure!(agent.log().contains("CPU went offline"), "not told:\n{}", agent.log());
    within(NOTICED, "told", || Ok(agent.log().contains("CPU came online").then_some(())))
}
