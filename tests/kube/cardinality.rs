//! The configuration chooses the pods with their own series. The agent still counts all other pods.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::Metrics,
    cluster::{BURN, CGROUP_ONCPU, Cluster, ONCPU, SHOP, SOON, burn_in, ensure_close, is_close, series},
    control_plane::NEEDS,
    kubelet::{self, PodHandle, Qos, Running},
    load::calls::CallsReport,
    running::run,
    suite::Test,
    tests,
};
use serde_json::json;

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] at_the_level_of_pods_a_pod_is_one_row_with_its_sandbox: NEEDS,
    #[land] at_the_level_of_the_node_all_pods_are_one_row: NEEDS,
    #[land] #[beside] excluded_namespaces_are_counted_together: NEEDS,
    #[land] #[beside] only_included_namespaces_have_series: NEEDS,
    #[land] #[beside] a_sensor_counts_only_the_namespaces_that_it_names: NEEDS,
    #[land] #[beside] a_pod_can_opt_out_from_the_start: NEEDS,
    #[land] #[beside] a_pod_that_opts_out_later_loses_its_series_and_no_count: NEEDS,
    #[land] #[beside] containers_over_the_limit_are_counted_together_until_there_is_room: NEEDS,
    #[land] #[beside] a_reload_changes_the_namespaces_and_says_that_the_level_needs_a_restart: NEEDS,
    #[land] #[beside] in_brief_the_agent_has_at_most_a_hundred_series_of_its_own: NEEDS,
];

const POD_ONCPU: &str = "podperf_pod_oncpu_seconds_total";
const NOT_EXPORTED: &str = "podperf_containers_not_exported";
/// The short patience makes the agent recognize sandboxes soon.
const PATIENCE: &str = "patience: 2s";
const SYSTEM: &str = "kube-system";

fn at_the_level_of_pods_a_pod_is_one_row_with_its_sandbox() -> Result<()> {
    let cluster = Cluster::start(PATIENCE, "metrics: {level: pod}")?;
    let mut shop = Shop::default();
    shop.open(&cluster, SHOP, "cart", &["web", "log"])?;
    shop.open(&cluster, SHOP, "stock", &["web"])?;
    for (pod, _) in &shop.pods {
        burn_in(pod.sandbox(), BURN)?;
    }
    for (pod, running) in &shop.pods {
        let truth = cpu_of(running)? + pod.sandbox().cpu_usage()?;
        let labels = [("namespace", SHOP), ("pod", pod.name())];
        cluster.wait_for(POD_ONCPU, &labels, |cpu| is_close(cpu, truth))?;
    }
    let metrics = shop.conserved(&cluster)?;
    no_series_of("podperf_container_", &metrics)?;
    ensure!(metrics.sum(NOT_EXPORTED, &[]) == 0.0, "containers are not exported");
    Ok(())
}

fn at_the_level_of_the_node_all_pods_are_one_row() -> Result<()> {
    let cluster = Cluster::start(PATIENCE, "metrics: {level: node}")?;
    let mut shop = Shop::default();
    shop.open(&cluster, SHOP, "cart", &["web", "log"])?;
    shop.open(&cluster, SHOP, "stock", &["web"])?;
    let metrics = shop.conserved(&cluster)?;
    no_series_of("podperf_container_", &metrics)?;
    no_series_of("podperf_pod_", &metrics)
}

fn excluded_namespaces_are_counted_together() -> Result<()> {
    one_namespace_is_left_out("metrics: {excludeNamespaces: ['kube-.*', 'sho']}")
}

fn only_included_namespaces_have_series() -> Result<()> {
    one_namespace_is_left_out("metrics: {includeNamespaces: ['sh.p', 'kube']}")
}

/// Checks that `yaml` leaves out the system's namespace.
fn one_namespace_is_left_out(yaml: &str) -> Result<()> {
    let cluster = Cluster::start(PATIENCE, yaml)?;
    let mut shop = Shop::default();
    shop.open(&cluster, SHOP, "cart", &["web"])?;
    shop.open(&cluster, SYSTEM, "dns", &["dns", "metrics"])?;
    let system = cpu_of(&shop.pods[1].1)?;
    cluster.wait_for(CGROUP_ONCPU, &[("cgroup", &cluster.common_row())], |cpu| is_close(cpu, system))?;
    cluster.wait_for_cpu("cart", "web", cpu_of(&shop.pods[0].1)?)?;
    ensure_left_out(&shop.conserved(&cluster)?, "namespace", 2.0)?;
    // The agent does not export their names either.
    ensure!(cluster.agent.metrics()?.get("podperf_pod_info", &[("namespace", SYSTEM)]).is_none(), "it is told of");
    // The sandboxes have no container name by now, and the agent does not count them as containers.
    shop.burn_in_sandboxes()?;
    ensure_left_out(&shop.conserved(&cluster)?, "namespace", 2.0)
}

/// A container that a reading shows by name is chosen, so all later calls count. Two of three pods are not chosen: one
/// is of another namespace, and one opts out.
fn a_sensor_counts_only_the_namespaces_that_it_names() -> Result<()> {
    const CALLS: &str = "podperf_container_syscalls_total";
    let sensor = "sensors: {calls: {enabled: true, namespaces: [sho., other]}}";
    // The load does nothing but system calls, and over the cap the sensor stops counting.
    let cluster = Cluster::start(PATIENCE, &format!("{sensor}\noverhead: {{maxPercent: 0}}"))?;
    let mut shop = Shop::default();
    let mut specification = kubelet::pod(SHOP, "shy", Qos::Burstable, &["web"])?;
    specification.metadata.annotations = Some([("podperf.io/scrape".into(), "false".into())].into());
    shop.take(cluster.kubelet.run(specification)?, &["web"])?;
    shop.open(&cluster, SYSTEM, "dns", &["web"])?;
    shop.open(&cluster, SHOP, "cart", &["web"])?;
    shop.conserved(&cluster)?;
    cluster.wait_for_cpu("cart", "web", cpu_of(&shop.pods[2].1)?)?;
    let mut truth = 0;
    for (_, running) in &shop.pods {
        let path = running[0].cgroup().path();
        let report: CallsReport = run(&format!("calls --rounds 100 --cgroup {}", path.display()))?;
        truth = report.rounds;
    }
    let metrics = cluster.agent.fresh_metrics()?;
    let of_cart = [("namespace", SHOP), ("pod", "cart"), ("container", "web"), ("syscall", "getppid")];
    let counted = metrics.get(CALLS, &of_cart);
    ensure!(counted == Some(f64::from(truth)), "{counted:?} calls of {truth} are counted");
    let others = metrics.samples().iter().filter(|sample| sample.name.contains("_syscall"));
    let others: Vec<_> = others.filter(|sample| sample.labels.get("pod").is_none_or(|pod| pod != "cart")).collect();
    ensure!(others.is_empty(), "others are counted: {others:?}");
    Ok(())
}

fn a_pod_can_opt_out_from_the_start() -> Result<()> {
    let cluster = Cluster::start(PATIENCE, "")?;
    let mut shop = Shop::default();
    shop.open(&cluster, SHOP, "cart", &["web"])?;
    let mut specification = kubelet::pod(SHOP, "shy", Qos::Burstable, &["web"])?;
    specification.metadata.annotations = Some([("podperf.io/scrape".into(), "false".into())].into());
    shop.take(cluster.kubelet.run(specification)?, &["web"])?;
    let metrics = shop.conserved(&cluster)?;
    ensure!(metrics.get(ONCPU, &[("pod", "shy")]).is_none(), "it has a series");
    ensure!(metrics.get("podperf_pod_info", &[("pod", "shy")]).is_none(), "it is told of");
    ensure_left_out(&metrics, "annotation", 1.0)
}

fn a_pod_that_opts_out_later_loses_its_series_and_no_count() -> Result<()> {
    let cluster = Cluster::start(PATIENCE, "cgroups: {grace: 1s}")?;
    let mut shop = Shop::default();
    shop.open(&cluster, SHOP, "cart", &["web"])?;
    let running = &shop.pods[0].1[0];
    let before = running.cgroup().cpu_usage()?;
    cluster.wait_for_cpu("cart", "web", before)?;

    let out = json!({"metadata": {"annotations": {"podperf.io/scrape": "false"}}});
    cluster.plane.admin().patch_pod(SHOP, "cart", &out)?;
    let metrics = cluster.wait_for(NOT_EXPORTED, &[("reason", "annotation")], |count| count == 1.0)?;
    // The series ends with its last value. The common row has all later counts.
    ensure_close("the series", metrics.get(ONCPU, &[("pod", "cart")]).context("it ended at once")?, before)?;
    burn_in(running.cgroup(), BURN)?;
    let after = running.cgroup().cpu_usage()? - before;
    let common = cluster.common_row();
    cluster.wait_for(CGROUP_ONCPU, &[("cgroup", &common)], |cpu| is_close(cpu, after))?;
    let metrics = cluster.wait_for_end_of(ONCPU, &[])?;
    ensure!(metrics.get("podperf_pod_info", &[("pod", "cart")]).is_none(), "it is told of");

    // The annotation allows series again.
    let back = json!({"metadata": {"annotations": {"podperf.io/scrape": "true"}}});
    cluster.plane.admin().patch_pod(SHOP, "cart", &back)?;
    cluster.wait_for(NOT_EXPORTED, &[("reason", "annotation")], |count| count == 0.0)?;
    let cpu = burn_in(running.cgroup(), BURN).and_then(|()| running.cgroup().cpu_usage())? - before - after;
    cluster.wait_for_cpu("cart", "web", cpu).map(drop)
}

fn containers_over_the_limit_are_counted_together_until_there_is_room() -> Result<()> {
    let cluster = Cluster::start(PATIENCE, "metrics: {maxContainers: 2}\ncgroups: {grace: 1s}")?;
    let mut shop = Shop::default();
    for pod in ["one", "two", "three", "four"] {
        shop.open(&cluster, SHOP, pod, &["web"])?;
    }
    let metrics = shop.conserved(&cluster)?;
    ensure!(series(&metrics, ONCPU) == 2, "{} containers have series", series(&metrics, ONCPU));
    ensure!(series(&metrics, "podperf_container_info") == 2, "{} are told of", series(&metrics, ONCPU));
    ensure_left_out(&metrics, "limit", 2.0)?;
    shop.burn_in_sandboxes()?;
    ensure_left_out(&shop.conserved(&cluster)?, "limit", 2.0)?;

    // The test removes a pod with a series.
    let had: Vec<_> = metrics.samples().iter().filter(|sample| sample.name == ONCPU).collect();
    let gone = had[0].labels["pod"].clone();
    let at = shop.pods.iter().position(|(pod, _)| pod.name() == gone).context("a pod of nobody")?;
    let (pod, running) = shop.pods.remove(at);
    pod.delete()?;
    drop((running, pod));
    cluster.wait_for(NOT_EXPORTED, &[("reason", "limit")], |count| count == 1.0)?;
    let metrics = cluster.agent.fresh_metrics()?;
    ensure!(metrics.get(ONCPU, &[("pod", &gone)]).is_none(), "the series of `{gone}` has not ended");
    ensure!(series(&metrics, ONCPU) == 2, "{} containers have series", series(&metrics, ONCPU));
    Ok(())
}

fn a_reload_changes_the_namespaces_and_says_that_the_level_needs_a_restart() -> Result<()> {
    let mut cluster = Cluster::start(PATIENCE, "cgroups: {grace: 1s}\nmetrics: {excludeNamespaces: [other]}")?;
    let mut shop = Shop::default();
    shop.open(&cluster, SHOP, "cart", &["web"])?;
    shop.open(&cluster, SYSTEM, "dns", &["dns"])?;
    let truths = [cpu_of(&shop.pods[0].1)?, cpu_of(&shop.pods[1].1)?];
    cluster.wait_for_cpu("cart", "web", truths[0])?;
    cluster.wait_for(ONCPU, &[("namespace", SYSTEM)], |cpu| is_close(cpu, truths[1]))?;

    let path = cluster.agent.directory().join("podperf.yaml");
    let yaml = fs::read_to_string(&path)?;
    fs::write(&path, yaml.replace("excludeNamespaces: [other]", "excludeNamespaces: [shop], level: pod"))?;
    cluster.agent.signal(Signal::SIGHUP)?;
    let line = cluster.agent.wait_for_log("need a restart", SOON)?;
    ensure!(line.contains("metrics.level") && !line.contains("excludeNamespaces"), "{line}");
    cluster.wait_for(NOT_EXPORTED, &[("reason", "namespace")], |count| count == 1.0)?;
    let running = &shop.pods[0].1[0];
    burn_in(running.cgroup(), BURN)?;
    let more = running.cgroup().cpu_usage()? - truths[0];
    cluster.wait_for(CGROUP_ONCPU, &[("cgroup", &cluster.common_row())], |cpu| is_close(cpu, more))?;
    let metrics = cluster.wait_for_end_of(ONCPU, &[("pod", "cart")])?;
    ensure_close("the other", metrics.sum(ONCPU, &[("pod", "dns"), ("container", "dns")]), truths[1])?;
    // The pod's series continues at its current value.
    let running = &shop.pods[1].1[0];
    burn_in(running.cgroup(), BURN)?;
    let truth = running.cgroup().cpu_usage()?;
    let metrics = cluster.wait_for(ONCPU, &[("namespace", SYSTEM)], |cpu| is_close(cpu, truth))?;
    no_series_of(POD_ONCPU, &metrics)
}

fn in_brief_the_agent_has_at_most_a_hundred_series_of_its_own() -> Result<()> {
    // These depend on the node and its pods.
    let others = ["podperf_cgroup_", "podperf_container_", "podperf_pod_", "podperf_node_"];
    let count = |own: &str| -> Result<usize> {
        let cluster = Cluster::start(PATIENCE, &format!("stacks: {{enabled: true}}\nmetrics: {{own: {own}}}"))?;
        let metrics = cluster.agent.fresh_metrics()?;
        let is_own = |name: &str| !others.iter().any(|prefix| name.starts_with(prefix));
        Ok(metrics.samples().iter().filter(|sample| is_own(&sample.name)).count())
    };
    let (brief, all) = (count("brief")?, count("all")?);
    ensure!(brief <= 100, "{brief} series of its own");
    ensure!(all > 2 * brief, "{brief} in brief, and {all} in all");
    Ok(())
}

/// Pods, and their running containers.
#[derive(Default)]
struct Shop {
    // The order matters: containers end before their pods.
    pods: Vec<(PodHandle, Vec<Running>)>,
}

impl Shop {
    /// Adds a pod with live containers. Each container has burnt more CPU time than the previous one.
    fn open(&mut self, cluster: &Cluster, namespace: &str, pod: &str, containers: &[&str]) -> Result<()> {
        self.take(cluster.kubelet.pod(namespace, pod, Qos::Burstable, containers)?, containers)
    }

    fn take(&mut self, mut pod: PodHandle, containers: &[&str]) -> Result<()> {
        let mut running = Vec::new();
        for container in containers {
            let started = pod.start(container, BURN + BURN / 5 * u32::try_from(self.pods.len() + running.len())?)?;
            running.push(started);
        }
        pod.report()?;
        for container in &running {
            container.burnt()?;
        }
        self.pods.push((pod, running));
        Ok(())
    }

    fn burn_in_sandboxes(&self) -> Result<()> {
        self.pods.iter().try_for_each(|(pod, _)| burn_in(pod.sandbox(), BURN))
    }

    /// Waits until the rows of pods, containers and the cgroup of all pods have all CPU time of the pods.
    fn conserved(&self, cluster: &Cluster) -> Result<Metrics> {
        let mut truth = Duration::ZERO;
        for (pod, running) in &self.pods {
            truth += cpu_of(running)? + pod.sandbox().cpu_usage()?;
        }
        let common = cluster.common_row();
        cluster.wait_for_metrics(|metrics| {
            let sum = metrics.sum(ONCPU, &[])
                + metrics.sum(POD_ONCPU, &[])
                + metrics.sum(CGROUP_ONCPU, &[("cgroup", &common)]);
            ensure_close("all rows together", sum, truth)
        })
    }
}

fn cpu_of(running: &[Running]) -> Result<Duration> {
    running.iter().map(|running| running.cgroup().cpu_usage()).sum()
}

fn ensure_left_out(metrics: &Metrics, reason: &str, expected: f64) -> Result<()> {
    let found = metrics.get(NOT_EXPORTED, &[("reason", reason)]);
    ensure!(found == Some(expected), "{found:?} containers are left out by {reason}, and the truth is {expected}");
    Ok(())
}

fn no_series_of(prefix: &str, metrics: &Metrics) -> Result<()> {
    let found = metrics.samples().iter().find(|sample| sample.name.starts_with(prefix));
    ensure!(found.is_none(), "there is {found:?}");
    Ok(())
}
