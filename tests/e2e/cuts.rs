//! Each recording cuts the windows of all profiles. Many short recordings do not harm other profiles.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    collector::Collector,
    http,
    suite::{Test, tell, within},
    tests,
};

use crate::profiles::{DEADLINE, GO, Held};

pub(crate) const TESTS: &[Test] = tests![
    recordings_in_a_loop_cut_one_window_a_second_and_none_is_lost: &[GO],
];

const EXPORTS: &str = "podperf_otlp_exports_total";
/// The length of a window without a recording, in seconds.
const INTERVAL_SECONDS: f64 = 5.0;
const CLIENTS: usize = 8;
const LOOPS: Duration = Duration::from_secs(8);
/// The time limit of a request. A recording's answer waits for the names of its windows, which take longer on a busy
/// machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn recordings_in_a_loop_cut_one_window_a_second_and_none_is_lost() -> Result<()> {
    let collector = Collector::start()?;
    let agent =
        Agent::start(&format!("otlp: {{endpoint: '{}', interval: {INTERVAL_SECONDS}s}}", collector.endpoint()))?;
    let cgroup = TestCgroup::new("cuts")?;
    let _load = Held::start(&cgroup, &["sleepers", "--waits", "100000"])?;
    within(DEADLINE, "a window has arrived", || Ok((agent.metrics()?.sum(EXPORTS, &[]) > 0.0).then_some(())))?;

    let start = Instant::now();
    let before = agent.metrics()?.sum(EXPORTS, &[]);
    let [recorded, busy, behind, short] = [const { AtomicU32::new(0) }; 4];
    let path = format!("/debug/profile?subject={}&format=folded&seconds=", cgroup.kernel_path());
    thread::scope(|scope| {
        let client = || -> Result<()> {
            while start.elapsed() < LOOPS {
                let (code, _, says) = agent.get(&format!("{path}0.01"), &[])?;
                let says = String::from_utf8_lossy(&says).into_owned();
                ensure!(code == 400 && says.contains("at least 1, at most 300"), "{code}: {says}");
                short.fetch_add(1, Ordering::Relaxed);
                match http::get_within(PATIENCE, agent.address(), &format!("{path}1"))? {
                    (200, ..) => recorded.fetch_add(1, Ordering::Relaxed),
                    // The agent has four places for recordings.
                    (429, ..) => busy.fetch_add(1, Ordering::Relaxed),
                    // The agent still looks up the names of earlier windows.
                    (503, head, says) if is_behind(&head, &says) => behind.fetch_add(1, Ordering::Relaxed),
                    (code, _, says) => anyhow::bail!("{code}: {}", String::from_utf8_lossy(&says)),
                };
                thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("a client panicked"))
    })?;
    let [recorded, busy, behind, short] = [recorded, busy, behind, short].map(AtomicU32::into_inner);
    ensure!(recorded > 0, "no recording; {busy} refused for want of a place, {behind} for names");

    // Windows that were cut arrive a moment later.
    thread::sleep(Duration::from_secs(2));
    let metrics = agent.fresh_metrics()?;
    let windows = metrics.sum(EXPORTS, &[]) - before;
    let seconds = start.elapsed().as_secs_f64();
    tell(&format!(
        "{recorded} recordings of 1 s, {busy} refused for want of a place, {behind} for names and {short} as too short: {windows} windows in \
         {seconds:.1} s"
    ));
    // One cut a second, the windows that end by themselves, and at both ends one window that had begun before.
    let most = seconds + seconds / INTERVAL_SECONDS + 3.0;
    ensure!(windows <= most, "{windows} windows in {seconds} s, with at most {most}");
    for name in ["podperf_otlp_dropped_total", "podperf_profile_windows_dropped_total"] {
        ensure!(metrics.sum(name, &[]) == 0.0, "`{name}` is {}", metrics.sum(name, &[]));
    }
    Ok(())
}

/// Returns whether an answer says that the symbolizer is behind, and when to retry.
fn is_behind(head: &str, says: &[u8]) -> bool {
    head.to_lowercase().contains("retry-after: ") && String::from_utf8_lossy(says).contains("names of earlier windows")
}
