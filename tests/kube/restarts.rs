//! Containers that end: one restarts repeatedly, one has a successor, one has finished. A real Prometheus watches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use podperf_tests::{
    agent::{Metrics, SCRAPE_TIMEOUT},
    cluster::{BURN, Cluster, ONCPU, SHOP, SOON, ensure_all_named, ensure_close},
    control_plane::NEEDS,
    http,
    kubelet::{self, Qos},
    prometheus::Prometheus,
    suite::{Need, Test, tell, within},
    tests,
};
use serde_json::json;

pub(crate) const TESTS: &[Test] = tests![
    #[exact] a_restart_loop_is_one_series_that_never_falls: PROMETHEUS,
    #[exact] a_successor_goes_on_under_its_name_and_is_the_only_pod_of_it: PROMETHEUS,
    a_container_that_is_over_ends_after_its_grace: PROMETHEUS,
];

const PROMETHEUS: &[Need] = &[NEEDS[0], NEEDS[1], Need::Program("prometheus")];
const SHORT_GRACE: &str = "cgroups: {grace: 1s}";
const ALL_FACTS: &str = "metrics: {facts: [oncpu, offcpu, context_switches, cpu_migrations, page_faults]}";
const RESTARTS: u32 = 20;
/// The back-off is much longer than the short grace and two scrapes.
const LONG_BACKOFF: Duration = Duration::from_secs(5);
const SHORT_BACKOFF: Duration = Duration::from_millis(400);

/// The number of readings. Scrapes with the same number show the same reading.
const READINGS: &str = "podperf_readings_total";
/// The scrape interval of the watcher. The agent returns the same reading for a second, which contains four scrapes.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Prometheus' view of one container, from its first sample on.
#[derive(Debug)]
struct Seen {
    prometheus: Prometheus,
    selector: String,
    first: Option<Instant>,
}

/// Counters of a pod by their series, from one reading.
type Counters = BTreeMap<String, f64>;

/// Scrapes more often than Prometheus, which skips scrapes on a busy machine: the test can check only readings that
/// were scraped.
#[derive(Debug)]
struct Watcher {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<BTreeMap<u64, Counters>>>,
}

fn a_restart_loop_is_one_series_that_never_falls() -> Result<()> {
    let cluster = Cluster::start("", &format!("{SHORT_GRACE}\n{ALL_FACTS}"))?;
    let mut seen = Seen::start(&cluster, "cart")?;
    let watcher = Watcher::start(&cluster, "cart");
    let mut pod = cluster.kubelet.pod(SHOP, "cart", Qos::Burstable, &["app"])?;
    let (start, mut truth) = (Instant::now(), Duration::ZERO);
    for life in 0..=RESTARTS {
        let running = pod.start("app", BURN)?;
        running.burnt()?;
        pod.report()?;
        let finished = if life.is_multiple_of(2) { pod.finish(running)? } else { pod.kill(running)? };
        truth += finished.cpu;
        pod.report()?;
        pod.wait("app", "CrashLoopBackOff");
        pod.report()?;
        seen.begin()?;
        thread::sleep(if life == RESTARTS / 2 { LONG_BACKOFF } else { SHORT_BACKOFF });
    }
    let metrics = cluster.wait_for_cpu("cart", "app", truth)?;
    ensure_all_named(&metrics)?;
    let at_last = within(SOON, "Prometheus has the last life", || {
        let now = seen.ask(&seen.selector(ONCPU))?;
        Ok((now == metrics.get(ONCPU, &[("pod", "cart")])).then_some(now).flatten())
    })?;

    let names: BTreeSet<_> = metrics.samples().iter().map(|sample| &*sample.name).collect();
    let counters: Vec<_> = names.iter().filter(|name| is_counter_of_containers(name)).collect();
    ensure!(counters.len() >= 5, "only {counters:?}");
    let mut scrapes = 0.0;
    for counter in &counters {
        scrapes = seen.ensure_steady(counter)?;
    }
    let readings = seen.ensure_no_reading_falls(&counters, watcher)?;
    tell(&format!(
        "restarts: {RESTARTS} in {:.1} s, {at_last:.6} s on CPU, the truth is {:.6} s; {} counters in all of {scrapes} \
         scrapes, and none falls in {readings} readings, which are all that there were",
        start.elapsed().as_secs_f64(),
        truth.as_secs_f64(),
        counters.len(),
    ));
    ensure_close("the last value", at_last, truth)
}

fn a_successor_goes_on_under_its_name_and_is_the_only_pod_of_it() -> Result<()> {
    let cluster = Cluster::start("", ALL_FACTS)?;
    let mut seen = Seen::start(&cluster, "db-0")?;
    let watcher = Watcher::start(&cluster, "db-0");
    let mut specification = kubelet::pod(SHOP, "db-0", Qos::Guaranteed, &["app", "proxy", "log"])?;
    specification.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "apps/v1".into(),
        kind: "StatefulSet".into(),
        name: "db".into(),
        uid: "6ef0362e-e3b9-43a3-acdb-de4ba71f1fa4".into(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
    let (mut truth, mut uids) = (Duration::ZERO, BTreeSet::new());
    for life in 0..3 {
        let mut pod = cluster.kubelet.run(specification.clone())?;
        // In later lives some sidecars do not start. The series of the first life must not replace theirs.
        for sidecar in ["proxy", "log"].into_iter().filter(|_| life == 0) {
            let running = pod.start(sidecar, BURN)?;
            pod.finish(running)?;
        }
        let uid = pod.uid().to_owned();
        let info = [("pod", "db-0"), ("uid", &*uid), ("workload", "db"), ("workload_type", "statefulset")];
        if life > 0 {
            // This wait is before the start of any of its containers.
            cluster.wait_for("podperf_pod_info", &info, |pods| pods == 1.0)?;
        }
        let running = pod.start("app", BURN)?;
        pod.report()?;
        running.burnt()?;
        cluster.wait_for("podperf_pod_info", &info, |pods| pods == 1.0)?;
        seen.begin()?;
        // The back-off is long enough for a scrape, because Prometheus has to see every life.
        thread::sleep(2 * SHORT_BACKOFF + Duration::from_secs(1));
        truth += pod.finish(running)?.cpu;
        pod.report()?;
        ensure!(uids.insert(uid), "the same UID again");
        pod.delete()?;
    }
    let metrics = cluster.wait_for_cpu("db-0", "app", truth)?;
    ensure_all_named(&metrics)?;
    let names: BTreeSet<_> = metrics.samples().iter().map(|sample| &*sample.name).collect();
    let counters: Vec<_> = names.iter().filter(|name| is_counter_of_containers(name)).collect();
    for counter in &counters {
        seen.ensure_steady(counter)?;
    }
    seen.ensure_no_reading_falls(&counters, watcher)?;
    let window = seen.window()?;
    let pods = seen.selector("podperf_pod_info");
    let all = seen.ask(&format!("count(count by (uid) (count_over_time({pods}[{window}s])))"))?;
    ensure!(all == Some(3.0), "Prometheus saw {all:?} pods instead of 3");
    let at_once = seen.ask(&format!("max_over_time(count({pods})[{window}s:1s])"))?;
    ensure!(at_once == Some(1.0), "{at_once:?} pods at once had the name");
    let scrapes = format!("scalar(sum(sum_over_time(up[{window}s])))");
    let missing = seen.ask(&format!("{scrapes} - sum(count_over_time({pods}[{window}s]))"))?;
    ensure!(missing == Some(0.0), "in {missing:?} scrapes no pod had the name");
    Ok(())
}

fn a_container_that_is_over_ends_after_its_grace() -> Result<()> {
    let cluster = Cluster::start("", SHORT_GRACE)?;
    let mut seen = Seen::start(&cluster, "report-1")?;
    let mut pod = cluster.kubelet.pod(SHOP, "report-1", Qos::BestEffort, &["app"])?;
    let running = pod.start("app", BURN)?;
    pod.report()?;
    seen.begin()?;
    let finished = pod.finish(running)?;
    pod.report()?;
    cluster.plane.admin().patch_status(SHOP, "report-1", &json!({"phase": "Succeeded"}))?;

    // Only Prometheus scrapes now: its two scrapes have to end the series.
    let series = [ONCPU, "podperf_pod_info", "podperf_container_info"];
    let ended = within(SOON, "Prometheus knows that the series have ended", || {
        let left: Result<Vec<_>> = series.iter().map(|name| seen.ask(&seen.selector(name))).collect();
        Ok(left?.iter().all(Option::is_none).then_some(()))
    });
    ended.with_context(|| cluster.agent.log())?;
    let metrics = cluster.agent.metrics()?;
    let left = series.iter().find(|name| metrics.get(name, &[("pod", "report-1")]).is_some());
    ensure!(left.is_none(), "{left:?} is still in /metrics");
    ensure_all_named(&metrics)?;
    // Prometheus had the complete count before the series ended.
    let window = seen.window()?;
    let oncpu = seen.selector(ONCPU);
    let at_last = seen.ask(&format!("last_over_time({oncpu}[{window}s])"))?.context("never scraped")?;
    ensure_close("the last value", at_last, finished.cpu)?;
    let tenths = seen.ask(&format!("count_over_time(({oncpu} == {at_last})[{window}s:100ms])"))?;
    ensure!(tenths.is_some_and(|tenths| tenths > 15.0), "the last value was there for {tenths:?} tenths of a second");
    ensure!(cluster.plane.admin().pod(SHOP, "report-1").is_ok(), "the pod is gone, and that is why");
    Ok(())
}

impl Seen {
    /// Starts a Prometheus that scrapes every second.
    fn start(cluster: &Cluster, pod: &str) -> Result<Self> {
        let prometheus = Prometheus::start(cluster.agent.address())?;
        let selector = format!("{{namespace=\"{SHOP}\",pod=\"{pod}\"}}");
        Ok(Self { prometheus, selector, first: None })
    }

    fn selector(&self, name: &str) -> String {
        format!("{name}{}", self.selector)
    }

    /// Waits for the first sample.
    fn begin(&mut self) -> Result<()> {
        if self.first.is_none() {
            within(SOON, "Prometheus has seen the container", || {
                self.ask(&format!("max({})", self.selector(ONCPU))).or(Ok(None))
            })?;
            self.first = Some(Instant::now());
        }
        Ok(())
    }

    /// Returns the whole seconds since the first sample was seen.
    fn window(&self) -> Result<u64> {
        Ok(self.first.context("nothing seen yet")?.elapsed().as_secs())
    }

    /// Returns the only value of a query, or `None` without a series.
    fn ask(&self, query: &str) -> Result<Option<f64>> {
        let found = self.prometheus.query(query)?;
        ensure!(found.len() <= 1, "`{query}`: {found:?}");
        Ok(found.first().map(|sample| sample.value))
    }

    /// Checks that each scrape has all series of this name, and that none falls. Returns the number of scrapes.
    fn ensure_steady(&self, name: &str) -> Result<f64> {
        let (series, window) = (self.selector(name), self.window()?);
        let resets = self.ask(&format!("max(resets({series}[10m]))"))?;
        ensure!(resets == Some(0.0), "`{series}` fell: {resets:?} resets");
        let scrapes = self.ask(&format!("sum(sum_over_time(up[{window}s]))"))?.unwrap_or_default();
        let missing = format!("scalar(sum(sum_over_time(up[{window}s]))) - min(count_over_time({series}[{window}s]))");
        let missing = self.ask(&missing)?;
        ensure!(missing == Some(0.0), "`{series}` is missing in {missing:?} of {scrapes} scrapes");
        Ok(scrapes)
    }

    /// Joins the scrapes of Prometheus and of the watcher by the number of the reading. Checks that no reading is
    /// missing from the first one on, and that no series falls or ends. Returns the number of readings.
    fn ensure_no_reading_falls(&self, counters: &[&&str], watcher: Watcher) -> Result<usize> {
        let mut readings = watcher.finish()?;
        let numbers = self.prometheus.history(&format!("{READINGS}[10m]"))?;
        let [(_, numbers)] = numbers.as_slice() else { anyhow::bail!("{} series of {READINGS}", numbers.len()) };
        let numbers: BTreeMap<_, _> = numbers.iter().map(|&(time, number)| (time, number)).collect();
        for counter in counters {
            for (labels, values) in self.prometheus.history(&format!("{}[10m]", self.selector(counter)))? {
                let series = series(counter, &labels);
                for (time, value) in values {
                    let number =
                        numbers.get(&time).with_context(|| format!("no {READINGS} in the scrape of `{series}`"))?;
                    let known = readings.entry(whole(*number)).or_default().insert(series.clone(), value);
                    let same = known.is_none_or(|known| known.to_bits() == value.to_bits());
                    ensure!(same, "`{series}` was {known:?} and {value} in the same reading");
                }
            }
        }
        let mut before: Option<(u64, Counters)> = None;
        for (number, now) in readings.iter().skip_while(|(_, counters)| counters.is_empty()) {
            if let Some((last, before)) = &before {
                ensure!(*number == last + 1, "nobody has seen the readings between {last} and {number}");
                for (series, before) in before {
                    let now = now.get(series).with_context(|| format!("`{series}` ended in reading {number}"))?;
                    ensure!(now >= before, "`{series}` fell from {before} to {now} in reading {number}");
                }
            }
            before = Some((*number, now.clone()));
        }
        Ok(readings.len())
    }
}

impl Watcher {
    fn start(cluster: &Cluster, pod: &'static str) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let (stopped, address) = (Arc::clone(&stop), cluster.agent.address());
        let watch = move || {
            let mut readings = BTreeMap::new();
            while !stopped.load(Ordering::Relaxed) {
                // This is Prometheus' request: new series start at zero.
                let (status, _, body) = http::get(address, "/metrics", &[SCRAPE_TIMEOUT])?;
                let text = String::from_utf8(body)?;
                ensure!(status == 200, "/metrics answered {status}: {text}");
                let metrics = Metrics::parse(&text);
                let number = whole(metrics.get(READINGS, &[]).context("no number of readings")?);
                let of_pod = metrics.samples().iter().filter(|sample| {
                    is_counter_of_containers(&sample.name)
                        && sample.labels.get("namespace").is_some_and(|namespace| namespace == SHOP)
                        && sample.labels.get("pod").is_some_and(|name| name == pod)
                });
                readings.insert(number, of_pod.map(|one| (series(&one.name, &one.labels), one.value)).collect());
                thread::sleep(LOOK_EVERY);
            }
            Ok(readings)
        };
        Self { stop, thread: thread::spawn(watch) }
    }

    /// Returns the counters by the number of the reading.
    fn finish(self) -> Result<BTreeMap<u64, Counters>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_panic| anyhow::anyhow!("the watcher panicked"))?
    }
}

/// Returns the key of a series: its name and labels, without the labels that Prometheus adds.
fn series(name: &str, labels: &BTreeMap<String, String>) -> String {
    let own = labels.iter().filter(|(label, _)| !["__name__", "instance", "job"].contains(&label.as_str()));
    format!("{name} {:?}", own.collect::<Vec<_>>())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
const fn whole(number: f64) -> u64 {
    number as u64
}

fn is_counter_of_containers(name: &str) -> bool {
    name.starts_with("podperf_container_") && name.ends_with("_total")
}
