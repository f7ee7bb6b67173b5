//! Tests with jumps of the wall clock, as on a node without a battery that sets its time from the network. Only the
//! agent's clock jumps: `libfaketime` is loaded into it. The monotonic clock, which measures all waits here, cannot
//! jump on Linux.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{
    agent::{self, Agent, Metrics},
    cluster::{Cluster, NODE, ONCPU, RECOVERY, SHOP, Spoilt, configuration, ensure_close, wait_for_part},
    control_plane::{ControlPlane, NEEDS},
    suite::{Need, Test, tell},
    tests,
};

#[rustfmt::skip]
/// The tests of clocks.
pub const TESTS: &[Test] = tests![
    a_clock_that_jumps_a_day_and_back_costs_no_count_and_no_series: CLOCK_NEEDS,
    a_clock_before_the_servers_certificate_is_told_until_it_is_right: CLOCK_NEEDS,
];

/// An API server, and a library that changes the time.
const CLOCK_NEEDS: &[Need] = &[NEEDS[0], NEEDS[1], Need::Program("faketime")];
const AN_HOUR: Duration = Duration::from_secs(3600);
const A_DAY: i64 = 86_400;
/// The allowed difference in seconds, because the two clocks are read at slightly different times.
const CLOSE: f64 = 30.0;
const LAST_SYNC: &str = "podperf_kube_watch_last_sync_timestamp_seconds";

/// The clock of one process.
struct Clock {
    directory: TempDir,
    library: PathBuf,
}

impl Clock {
    fn new() -> Result<Self> {
        let clock = Self { directory: TempDir::new()?, library: library()? };
        clock.jump(0)?;
        Ok(clock)
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("offset")
    }

    /// Sets the clock to this many seconds ahead of the machine's clock.
    fn jump(&self, seconds: i64) -> Result<()> {
        let next = self.directory.path().join("next");
        fs::write(&next, format!("{seconds:+}"))?;
        Ok(fs::rename(next, self.file())?)
    }

    /// Starts a cluster whose agent has this clock.
    fn cluster(&self) -> Result<Cluster<ControlPlane>> {
        let Spoilt { kubelet, credentials, plane } = Spoilt::start_own(AN_HOUR)?;
        let agent = Agent::start_changed(&agent::binary()?, &configuration(&credentials, NODE, "", ""), |command| {
            command
                .env("LD_PRELOAD", &self.library)
                .env("FAKETIME_TIMESTAMP_FILE", self.file())
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("DONT_FAKE_MONOTONIC", "1");
        })?;
        let cluster = Cluster { agent, kubelet, credentials, plane };
        cluster.wait_for_connection()?;
        Ok(cluster)
    }
}

/// Jumps a day ahead, back, and a day behind.
fn a_clock_that_jumps_a_day_and_back_costs_no_count_and_no_series() -> Result<()> {
    let clock = Clock::new()?;
    let mut cluster = clock.cluster()?;
    let mut truths = Vec::new();
    let mut before: Option<Metrics> = None;
    for (number, ahead) in [0, A_DAY, 0, -A_DAY, 0].into_iter().enumerate() {
        clock.jump(ahead)?;
        let pod = format!("clock-{number}");
        truths.push((pod.clone(), cluster.run_once(&pod, "app")?.cpu));
        let metrics = cluster.wait_for_cpu(&pod, "app", truths[number].1)?;
        // The test proves nothing unless the agent's clock has jumped.
        let lead = metrics.get(LAST_SYNC, &[]).context("no last sync")? - now()?;
        let expected = f64::from(i32::try_from(ahead)?);
        ensure!((lead - expected).abs() < CLOSE, "the agent's clock is {lead} s ahead instead of {expected} s");
        tell(&format!("the agent's clock is {lead:.1} s ahead"));
        // The series of a finished pod stays for the grace period and for two scrapes.
        for (pod, truth) in &truths {
            let seconds = metrics.get(ONCPU, &[("namespace", SHOP), ("pod", pod)]);
            ensure_close(pod, seconds.with_context(|| format!("the series of {pod} has ended early"))?, *truth)?;
        }
        if let Some(before) = &before {
            ensure_none_fell(before, &metrics)?;
        }
        before = Some(metrics);
        // A watch that begins at such a time works as well.
        if ahead != 0 {
            cluster.plane.start_api()?;
            cluster.wait_for_connection()?;
        }
    }
    wait_for_part(&cluster.agent, "pods", "healthy", &["5 pods of node"])?;
    Ok(())
}

fn a_clock_before_the_servers_certificate_is_told_until_it_is_right() -> Result<()> {
    let clock = Clock::new()?;
    let mut cluster = clock.cluster()?;
    let before = cluster.run_once("before", "app")?;
    cluster.wait_for_cpu("before", "app", before.cpu)?;
    // The new time is the beginning of 1971. A resumed TLS session sends no certificate, but a new server cannot resume
    // one.
    let since_1971 = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())? - 365 * A_DAY;
    clock.jump(-since_1971)?;
    cluster.plane.start_api()?;
    cluster.agent.wait_for_log("(is the clock right?)", RECOVERY)?;
    wait_for_part(&cluster.agent, "pods", "degraded", &["certificate", "(is the clock right?)"])?;
    let failures = "podperf_kube_watch_failures_total";
    let so_far = cluster.agent.metrics()?.sum(failures, &[]);
    // The wait before each attempt is longer than the previous one, and the server's start has already cost some
    // attempts.
    cluster.wait_long_for(failures, &[], |failures| failures >= so_far + 2.0)?;
    let log = cluster.agent.log();
    ensure!(log.matches("is the clock right?").count() == 1, "the same reason again and again:\n{log}");
    let meanwhile = cluster.run_once("meanwhile", "app")?;
    // The agent's clock tells nothing about when a reading began.
    thread::sleep(cluster.agent.coalesced_for());
    let metrics = cluster.agent.metrics()?;
    let seconds = metrics.get(ONCPU, &[("namespace", SHOP), ("pod", "before")]).context("a series has ended")?;
    ensure_close("before", seconds, before.cpu)?;

    clock.jump(0)?;
    cluster.wait_for_connection()?;
    cluster.wait_for_cpu("meanwhile", "app", meanwhile.cpu)?;
    wait_for_part(&cluster.agent, "pods", "healthy", &["2 pods of node"])?;
    Ok(())
}

/// Checks that no counter of containers, cgroups, the node or the watch fell.
fn ensure_none_fell(before: &Metrics, after: &Metrics) -> Result<()> {
    for sample in before.samples() {
        let ours = ["podperf_container_", "podperf_cgroup_", "podperf_node_", "podperf_kube_"];
        if !sample.name.ends_with("_total") || !ours.iter().any(|start| sample.name.starts_with(start)) {
            continue;
        }
        let labels: Vec<_> = sample.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        // A cgroup outside of the test may have ended.
        let now = after.get(&sample.name, &labels).unwrap_or(sample.value);
        ensure!(now >= sample.value, "{} {labels:?} fell from {} to {now}", sample.name, sample.value);
    }
    Ok(())
}

/// Returns Debian's path of the library for programs with threads.
fn library() -> Result<PathBuf> {
    let directories = fs::read_dir("/usr/lib")?.filter_map(|entry| Some(entry.ok()?.path()));
    directories
        .chain([Path::new("/usr/lib").into()])
        .map(|directory| directory.join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.exists())
        .context("no `libfaketimeMT.so.1` below `/usr/lib` (Debian has it in `libfaketime`)")
}

fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}
