//! The delay between a container's status and its name in the metrics.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    cluster::{Cluster, ONCPU, SHOP, SOON, ensure_all_named, ensure_close},
    control_plane::NEEDS,
    kubelet::Qos,
    suite::{Test, tell, within},
    tests,
    waited::Waited,
};

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[measures] a_container_of_20_ms_is_in_the_first_scrape_after_its_status: NEEDS,
    a_status_makes_a_named_series_in_a_moment: NEEDS,
];

const CONTAINERS: u32 = 11;
/// The container's work. Its life is 20 ms with start and end.
const BRIEFLY: Duration = Duration::from_millis(15);
/// The documented median delay. The test subtracts the time in which the agent, each process of the control plane and
/// this test waited for a CPU: a status passes through them one after the other.
const PROMISED: Duration = Duration::from_secs(1);

fn a_container_of_20_ms_is_in_the_first_scrape_after_its_status() -> Result<()> {
    let cluster = Cluster::start("", "")?;
    for number in 0..6 {
        let name = format!("brief-{number}");
        let mut pod = cluster.kubelet.pod(SHOP, &name, Qos::Burstable, &["app", "proxy"])?;
        let mut lives = Vec::new();
        for container in ["app", "proxy"] {
            let running = pod.start(container, BRIEFLY)?;
            lives.push((container, pod.finish(running)?));
        }
        // The counts are still in the kernel without this scrape, and wait in the agent with it.
        if number % 2 == 1 {
            let before = cluster.agent.fresh_metrics()?;
            ensure!(before.get(ONCPU, &[("pod", &name)]).is_none(), "`{name}` was named by nobody");
        }
        pod.report()?;
        let metrics = cluster.agent.fresh_metrics()?;
        for (container, finished) in lives {
            let labels = [("namespace", SHOP), ("pod", &*name), ("container", container)];
            let seconds = metrics.get(ONCPU, &labels).with_context(|| format!("no series of {labels:?}"))?;
            ensure_close(&name, seconds, finished.cpu)?;
            let info = [("pod", &*name), ("container", container), ("container_id", &*finished.id)];
            ensure!(metrics.get("podperf_container_info", &info).is_some(), "no podperf_container_info {info:?}");
        }
        ensure_all_named(&metrics)?;
    }
    Ok(())
}

fn a_status_makes_a_named_series_in_a_moment() -> Result<()> {
    let cluster = Cluster::start("", "")?;
    let mut delays = Vec::new();
    let mut machines = Vec::new();
    let pids = [&[cluster.agent.pid()][..], &cluster.plane.pids()].concat();
    for number in 0..CONTAINERS {
        // The pause varies. Otherwise each status would come at the same moment of the second in which the agent
        // returns the previous reading again.
        thread::sleep(Duration::from_millis(u64::from(number * 370 % 1000)));
        let name = format!("brief-{number}");
        let mut pod = cluster.kubelet.pod(SHOP, &name, Qos::Burstable, &["app"])?;
        let running = pod.start("app", BRIEFLY)?;
        pod.finish(running)?;
        pod.report()?;
        let (told, mut waited) = (Instant::now(), Waited::begin(&pids));
        within(SOON, "the container has its name", || Ok(cluster.agent.metrics()?.get(ONCPU, &[("pod", &name)])))?;
        let (delay, machine) = (told.elapsed(), waited.total());
        delays.push(delay.saturating_sub(machine));
        machines.push(machine.min(delay));
    }
    delays.sort();
    let median = delays[delays.len() / 2];
    let worst = delays.last().context("no delay")?;
    let machine: Duration = machines.iter().sum();
    tell(&format!(
        "from a status to the named series, {CONTAINERS} times: median {median:.2?}, at most {worst:.2?}, and {:.2?} each without a CPU",
        machine / CONTAINERS
    ));
    ensure!(median < PROMISED, "{median:?} from a status to the named series: {delays:?}");
    Ok(())
}
