//! Hundreds of containers that start and end. Each ends before its name is known.

use std::{
    fs::OpenOptions,
    io::Write as _,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    cluster::{Cluster, ONCPU, SHOP, SOON, ensure_all_named, ensure_close, ensure_no_drops},
    control_plane::NEEDS,
    kubelet::{Kubelet, Qos},
    suite::{Test, long, tell, within},
    tests,
};

use crate::counters::Counters;

pub(crate) const TESTS: &[Test] = tests![
    of_hundreds_of_containers_a_minute_every_count_has_its_name: NEEDS,
];

const CONTAINERS: u32 = 300;
const MANY_CONTAINERS: u32 = 1500;
/// The interval between two containers: 750 a minute.
const EVERY: Duration = Duration::from_millis(80);
/// The time limit is three times the normal run time, for slow machines.
const DEADLINE: Duration = Duration::from_secs(360);
/// Number of workers. Each worker starts, watches and ends one container after another.
const WORKERS: usize = 12;
const SCRAPE_EVERY: Duration = Duration::from_secs(2);
/// The default of `cgroups.grace`.
const GRACE: Duration = Duration::from_secs(300);

/// A finished container: its pod's name, and its cgroup's CPU time from the kernel.
type Life = (String, Duration);

/// The shared state of all workers.
#[derive(Debug)]
struct Churn<'a> {
    kubelet: &'a Kubelet,
    start: Instant,
    containers: u32,
    next: AtomicU32,
    lives: Mutex<Vec<Life>>,
}

fn of_hundreds_of_containers_a_minute_every_count_has_its_name() -> Result<()> {
    let cluster = Cluster::start("", "stacks: {enabled: true}")?;
    let containers = if long() { MANY_CONTAINERS } else { CONTAINERS };
    let churn = Churn {
        kubelet: &cluster.kubelet,
        start: Instant::now(),
        containers,
        next: AtomicU32::new(0),
        lives: Mutex::default(),
    };
    let mut counters = Counters::new(GRACE);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(|| churn.work())).collect();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            let scraped = cluster.agent.metrics().and_then(|metrics| counters.take(&metrics));
            if scraped.is_err() {
                churn.next.store(containers, Ordering::Relaxed);
                return scraped;
            }
            thread::sleep(SCRAPE_EVERY);
        }
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| bail!("a worker panicked")))
    })?;
    let took = churn.start.elapsed();
    let lives = churn.lives.into_inner().unwrap_or_else(PoisonError::into_inner);

    let metrics = cluster.wait_for("podperf_cgroups_unresolved", &[], |waiting| waiting == 0.0)?;
    counters.take(&metrics)?;
    ensure_all_named(&metrics)?;
    ensure_no_drops(&metrics)?;
    let (mut sum, mut truth, mut worst) = (0.0, Duration::ZERO, 0.0_f64);
    for (pod, cpu) in &lives {
        let seconds = counters.of_container(ONCPU, pod, "app").with_context(|| format!("no series of `{pod}`"))?;
        ensure_close(pod, seconds, *cpu)?;
        sum += seconds;
        truth += *cpu;
        worst = worst.max((seconds - cpu.as_secs_f64()).abs());
    }
    let truth = truth.as_secs_f64();
    tell(&format!(
        "churn: {} containers in {:.1} s ({:.0} a minute), {sum:.6} s on CPU, the truth is {truth:.6} s: {:+.3} %, at \
         most {:.3} ms in one; 0 unattributed",
        lives.len(),
        took.as_secs_f64(),
        lives.len() as f64 * 60.0 / took.as_secs_f64(),
        (sum / truth - 1.0) * 100.0,
        worst * 1000.0,
    ));
    ensure!(lives.len() == usize::try_from(containers)?, "only {} containers in {took:?}", lives.len());
    ensure!((sum / truth - 1.0).abs() < 0.005, "{sum} s in all, and the truth is {truth} s");

    // The grace comes from the configuration, and a new grace also applies to finished containers.
    let config = cluster.agent.directory().join("podperf.yaml");
    OpenOptions::new().append(true).open(config)?.write_all(b"cgroups: {grace: 1s}\n")?;
    cluster.agent.signal(Signal::SIGHUP)?;
    let gone = within(SOON, "the series end", || {
        let metrics = cluster.agent.metrics()?;
        Ok((metrics.get(ONCPU, &[]).is_none() && metrics.get("podperf_pod_info", &[]).is_none()).then_some(metrics))
    });
    ensure_all_named(&gone.with_context(|| cluster.agent.log())?)
}

impl Churn<'_> {
    fn work(&self) -> Result<()> {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.containers || self.start.elapsed() > DEADLINE {
                return Ok(());
            }
            thread::sleep((EVERY * number).saturating_sub(self.start.elapsed()));
            let life = self.live(number).inspect_err(|_| self.next.store(self.containers, Ordering::Relaxed))?;
            self.lives.lock().unwrap_or_else(PoisonError::into_inner).push(life);
        }
    }

    /// Runs a pod from its creation to its deletion. Its container lives 50 to 200 ms and burns a third of that.
    fn live(&self, number: u32) -> Result<Life> {
        let mut pod = self.kubelet.pod(SHOP, &format!("job-{number}"), Qos::Burstable, &["app"])?;
        let (start, life) = (Instant::now(), Duration::from_millis(u64::from(50 + number * 37 % 151)));
        let running = pod.start("app", life / 3)?;
        // Half of the pods report a status while they live, and all pods report their end.
        if number.is_multiple_of(2) {
            pod.report()?;
        }
        thread::sleep(life.saturating_sub(start.elapsed()));
        let finished = pod.finish(running)?;
        pod.report()?;
        pod.delete()?;
        Ok((pod.name().to_owned(), finished.cpu))
    }
}
