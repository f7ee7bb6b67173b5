//! The API server is away, late, or has forgotten events that the agent missed. Counts wait, and have their names
//! afterwards.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::Metrics,
    cluster::{
        BURN, Cluster, ONCPU, SHOP, SOON, Spoilt, ensure_all_named, is_close, wait_for_part, wait_long_for_part,
    },
    control_plane::{ControlPlane, NEEDS},
    kubelet::{PodHandle, Qos},
    suite::{Test, long, tell, within},
    tests,
};

use crate::counters::Counters;

pub(crate) const TESTS: &[Test] = tests![
    sixty_lives_in_an_outage_have_their_names_after_it: NEEDS,
    an_agent_that_starts_in_an_outage_says_so_and_keeps_the_counts: NEEDS,
    what_a_paused_server_tells_late_is_not_too_late: NEEDS,
    what_changed_while_the_server_forgot_its_history_is_right_after_it: NEEDS,
    #[exact] in_an_outage_under_load_no_counter_falls_and_no_count_is_lost: NEEDS,
];

/// The patience: the agent then names lives that no status names, once it is up to date.
const SHORT_PATIENCE: &str = "patience: 5s";
const LONGER_THAN_PATIENCE: Duration = Duration::from_secs(6);
const CONNECTED: &str = "podperf_kube_watch_connected";
const FAILURES: &str = "podperf_kube_watch_failures_total";
const RESTARTS: &str = "podperf_kube_watch_restarts_total";
const LAST_SYNC: &str = "podperf_kube_watch_last_sync_timestamp_seconds";
const PODS: usize = 10;
const LIVES: usize = 3;
/// The pause is longer than the agent's request timeout, and longer than its interval between readings.
const PAUSE: Duration = Duration::from_secs(12);
/// The length of an outage under load, and the number of pods that live in it. The outage is long enough for the first
/// four waits between attempts, and in long runs also for some of the longest waits.
const OUTAGE: (Duration, usize) = (Duration::from_secs(20), 3);
const LONG_OUTAGE: (Duration, usize) = (Duration::from_secs(120), 20);

/// A control plane of the test's own. These tests stop, pause and restart it.
type Own = Cluster<ControlPlane>;

/// The kernel's CPU time of the containers, by pod and container.
#[derive(Debug, Default)]
struct Truth(BTreeMap<(String, String), Duration>);

/// Ten known pods have three lives of their only container, and their status names only the last two lives. Ten other
/// pods have three containers, each with one life.
fn sixty_lives_in_an_outage_have_their_names_after_it() -> Result<()> {
    let mut cluster = Cluster::start_own(SHORT_PATIENCE, "")?;
    let crowd = ["web", "proxy", "log"];
    let mut pods = pods(&cluster, "lone", PODS, &["app"])?;
    pods.extend(self::pods(&cluster, "crowd", PODS, &crowd)?);
    let before = cluster.wait_for("podperf_kube_pods", &[], |known| known == 20.0)?;

    let (start, mut truth) = (Instant::now(), Truth::default());
    cluster.plane.stop_api();
    wait_for_part(&cluster.agent, "pods", "degraded", &["failed to reach the API server", "Connection refused"])?;
    for (number, pod) in pods.iter_mut().enumerate() {
        let lives = if number < PODS { ["app"; LIVES] } else { crowd };
        lives.iter().try_for_each(|container| truth.live(pod, container))?;
    }
    // The patience does not run in an outage.
    thread::sleep(LONGER_THAN_PATIENCE);
    let during = cluster.agent.fresh_metrics()?;
    ensure!(value(&during, CONNECTED)? == 0.0, "connected to nobody");
    ensure!(value(&during, FAILURES)? > value(&before, FAILURES)?, "no failure was counted");
    ensure!(during.get(ONCPU, &[]).is_none(), "named by nobody: {during:?}");
    let waiting = value(&during, "podperf_cgroups_unresolved")?;
    ensure!(waiting == 60.0, "{waiting} cgroups wait instead of 60");
    let (code, _, body) = cluster.agent.get("/readyz", &[])?;
    ensure!(code == 200, "/readyz answered {code}: {}", String::from_utf8_lossy(&body));

    let outage = start.elapsed();
    cluster.plane.start_api()?;
    pods.iter_mut().try_for_each(PodHandle::report)?;
    cluster.wait_for_connection()?;
    let after = truth.wait(&cluster)?;
    ensure!(value(&after, LAST_SYNC)? > value(&during, LAST_SYNC)?, "no sync since the outage");
    wait_for_part(&cluster.agent, "pods", "healthy", &["20 pods"])?;
    tell(&format!("outage of {:.1} s: 60 lives in it, {}", outage.as_secs_f64(), truth.compare(&after)));
    Ok(())
}

fn an_agent_that_starts_in_an_outage_says_so_and_keeps_the_counts() -> Result<()> {
    let mut spoilt = Spoilt::start_own(Duration::from_secs(3600))?;
    let mut pod = spoilt.kubelet.pod(SHOP, "cart", Qos::Burstable, &["web", "proxy"])?;
    spoilt.plane.stop_api();
    let mut cluster = Cluster::join(spoilt, "", "")?;

    let reasons = ["failed to reach the API server", "Connection refused"];
    wait_for_part(&cluster.agent, "pods", "degraded", &reasons)?;
    let (code, _, body) = cluster.agent.get("/readyz", &[])?;
    let body = String::from_utf8(body)?;
    let explained = body.contains("no list of pods yet") && reasons.iter().all(|reason| body.contains(reason));
    ensure!(code == 503 && explained, "/readyz answered {code}: {body}");
    let mut truth = Truth::default();
    for container in ["web", "proxy"] {
        truth.live(&mut pod, container)?;
    }
    let during = cluster.agent.fresh_metrics()?;
    ensure!(during.get(ONCPU, &[]).is_none(), "named by nobody: {during:?}");
    ensure!(value(&during, LAST_SYNC)? == 0.0, "a sync with nobody");

    cluster.plane.start_api()?;
    pod.report()?;
    cluster.wait_for_connection()?;
    truth.wait(&cluster)?;
    let (code, _, body) = cluster.agent.get("/readyz", &[])?;
    ensure!(code == 200, "/readyz answered {code}: {}", String::from_utf8_lossy(&body));
    Ok(())
}

fn what_a_paused_server_tells_late_is_not_too_late() -> Result<()> {
    let mut cluster = Cluster::start_own("", "")?;
    let mut pod = cluster.kubelet.pod(SHOP, "cart", Qos::Burstable, &["web", "proxy"])?;
    cluster.wait_for("podperf_kube_pods", &[], |known| known == 1.0)?;
    cluster.plane.pause_api()?;
    let (start, mut truth) = (Instant::now(), Truth::default());
    for container in ["web", "proxy"] {
        truth.live(&mut pod, container)?;
    }
    while start.elapsed() < PAUSE {
        let during = cluster.agent.fresh_metrics()?;
        ensure!(during.get(ONCPU, &[]).is_none(), "named by nobody: {during:?}");
    }
    cluster.plane.resume_api()?;
    pod.report()?;
    cluster.wait_for_connection()?;
    truth.wait(&cluster).map(drop)
}

fn what_changed_while_the_server_forgot_its_history_is_right_after_it() -> Result<()> {
    let mut cluster = Cluster::start_own("", "cgroups: {grace: 1s}")?;
    let mut gone = cluster.kubelet.pod(SHOP, "gone", Qos::Burstable, &["app"])?;
    let mut again = cluster.kubelet.pod(SHOP, "again", Qos::Burstable, &["app"])?;
    let mut truth = Truth::default();
    for pod in [&mut gone, &mut again] {
        truth.live(pod, "app")?;
        pod.wait("app", "CrashLoopBackOff");
        pod.report()?;
    }
    let before = truth.wait(&cluster)?;

    // Without its role the agent receives no changes, although the server is there.
    cluster.plane.revoke()?;
    cluster.plane.stop_api();
    cluster.plane.start_api()?;
    wait_long_for_part(&cluster.agent, "pods", "degraded", &["may not"])?;
    gone.delete()?;
    drop(gone);
    let mut new = cluster.kubelet.pod(SHOP, "new", Qos::Burstable, &["app"])?;
    truth.live(&mut new, "app")?;
    let running = again.start("app", BURN)?;
    let id = running.id().to_owned();
    truth.add("again", "app", again.finish(running)?.cpu);
    again.wait("app", "CrashLoopBackOff");
    for pod in [&mut new, &mut again] {
        pod.report()?;
    }
    cluster.plane.forget_history()?;
    cluster.plane.grant()?;
    cluster.wait_for_connection()?;
    let forgotten = "what was missed is forgotten there";
    ensure!(cluster.agent.log().contains(forgotten), "the history was not gone:\n{}", cluster.agent.log());

    truth.0.remove(&("gone".to_owned(), "app".to_owned()));
    let after = truth.wait(&cluster)?;
    ensure!(value(&after, RESTARTS)? > value(&before, RESTARTS)?, "the watch was not begun anew");
    ensure!(value(&after, "podperf_kube_pods")? == 2.0, "other pods than two");
    let info = [("pod", "again"), ("container_id", &*id)];
    ensure!(after.get("podperf_container_info", &info) == Some(1.0), "no podperf_container_info {info:?}");
    within(SOON, "the series of the deleted pod end", || {
        let metrics = cluster.agent.metrics()?;
        let left = [ONCPU, "podperf_pod_info"].iter().any(|name| metrics.get(name, &[("pod", "gone")]).is_some());
        Ok((!left).then_some(()))
    })
}

fn in_an_outage_under_load_no_counter_falls_and_no_count_is_lost() -> Result<()> {
    let (outage, count) = if long() { LONG_OUTAGE } else { OUTAGE };
    let mut cluster = Cluster::start_own(SHORT_PATIENCE, "stacks: {enabled: true}")?;
    let mut busy = cluster.kubelet.pod(SHOP, "busy", Qos::Burstable, &["app"])?;
    let mut pods = pods(&cluster, "lone", count, &["app"])?;
    // The load runs longer than the test.
    let running = busy.start("app", 10 * outage)?;
    busy.report()?;
    cluster.wait_for(ONCPU, &[("pod", "busy")], |seconds| seconds > 0.0)?;

    let (mut counters, mut truth) = (Counters::new(2 * outage), Truth::default());
    cluster.plane.stop_api();
    let (start, mut lives) = (Instant::now(), 0);
    while start.elapsed() < outage || lives < LIVES * pods.len() {
        if lives < LIVES * pods.len() {
            let which = lives % pods.len();
            truth.live(&mut pods[which], "app")?;
            lives += 1;
        }
        // The test reads the CPU time before the scrape, because a scrape may take long.
        let cpu = running.cgroup().cpu_usage()?.as_secs_f64();
        let metrics = cluster.agent.fresh_metrics()?;
        counters.take(&metrics)?;
        ensure!(value(&metrics, CONNECTED)? == 0.0, "connected to nobody");
        let seconds = metrics.sum(ONCPU, &[("pod", "busy")]);
        ensure!(seconds > cpu * 0.99, "`busy` stands at {seconds} s, and the truth was {cpu} s before");
    }
    let outage = start.elapsed();
    cluster.plane.start_api()?;
    pods.iter_mut().try_for_each(PodHandle::report)?;
    counters.take(&cluster.wait_for_connection()?)?;
    counters.take(&truth.wait(&cluster)?)?;
    let finished = busy.kill(running)?;
    truth.add("busy", "app", finished.cpu);
    busy.report()?;
    let after = truth.wait(&cluster)?;
    counters.take(&after)?;
    tell(&format!(
        "outage of {:.1} s: {lives} lives in it beside a busy container, {}",
        outage.as_secs_f64(),
        truth.compare(&after)
    ));
    Ok(())
}

impl Truth {
    /// Runs a whole life of a container without a report of its status.
    fn live(&mut self, pod: &mut PodHandle, container: &str) -> Result<()> {
        let running = pod.start(container, BURN)?;
        let finished = pod.finish(running)?;
        self.add(pod.name(), container, finished.cpu);
        Ok(())
    }

    fn add(&mut self, pod: &str, container: &str, cpu: Duration) {
        *self.0.entry((pod.to_owned(), container.to_owned())).or_default() += cpu;
    }

    /// Waits until all containers have their CPU time, and no count is without a name.
    fn wait(&self, cluster: &Own) -> Result<Metrics> {
        let mut wrong = Vec::new();
        let found = within(SOON, "all counts have their names", || {
            let metrics = cluster.agent.metrics()?;
            let is_wrong = |((pod, container), cpu): &(&(String, String), &Duration)| {
                let labels = [("namespace", SHOP), ("pod", &**pod), ("container", &**container)];
                !metrics.get(ONCPU, &labels).is_some_and(|seconds| is_close(seconds, **cpu))
            };
            wrong = self.0.iter().filter(is_wrong).map(|(name, cpu)| (name.clone(), *cpu)).collect();
            Ok((wrong.is_empty() && ensure_all_named(&metrics).is_ok()).then_some(metrics))
        });
        let found = found.with_context(|| {
            let metrics = cluster.agent.metrics();
            let named = metrics.as_ref().map(ensure_all_named);
            format!("not as they should be: {wrong:?}; {named:?}: {metrics:?}\n{}", cluster.agent.log())
        })?;
        Ok(found)
    }

    fn compare(&self, metrics: &Metrics) -> String {
        let (sum, truth) = (metrics.sum(ONCPU, &[]), self.0.values().sum::<Duration>().as_secs_f64());
        format!("{sum:.6} s on CPU, the truth is {truth:.6} s: {:+.3} %", (sum / truth - 1.0) * 100.0)
    }
}

/// Creates pods whose containers have not started.
fn pods(cluster: &Own, name: &str, count: usize, containers: &[&str]) -> Result<Vec<PodHandle>> {
    let pod = |number| cluster.kubelet.pod(SHOP, &format!("{name}-{number}"), Qos::Burstable, containers);
    (0..count).map(pod).collect()
}

fn value(metrics: &Metrics, name: &str) -> Result<f64> {
    metrics.get(name, &[]).with_context(|| format!("no `{name}`"))
}
