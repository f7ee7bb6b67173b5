//! Pods of all kinds are in `/metrics` under their own names, with the kernel's own counts.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use podperf_tests::{
    agent::Metrics,
    node::Node,
    suite::{Test, within},
    tests,
};

use crate::{
    cluster::{self, NEEDS},
    pods::{self, Kind, name},
    release,
};

pub(crate) const TESTS: &[Test] = tests![
    each_node_counts_each_kind_of_its_own_pods_and_no_others: NEEDS,
    a_containers_time_is_its_cgroups: NEEDS,
    the_agent_has_the_named_privileges_and_no_others: NEEDS,
];

const ONCPU: &str = "podperf_container_oncpu_seconds_total";
const WAIT: &str = "podperf_container_wait_seconds_total";
/// A name comes with the API server's next event of a pod.
const NAMED_WITHIN: Duration = Duration::from_secs(60);

fn each_node_counts_each_kind_of_its_own_pods_and_no_others() -> Result<()> {
    let shared = cluster::shared()?;
    let cluster = shared.get()?;
    for (number, node) in cluster.nodes.iter().enumerate() {
        let node = node.name();
        let pods = cluster.control_plane.admin().pods_of(node)?;
        let expected: BTreeSet<_> = pods.iter().flat_map(containers).collect();
        for kind in pods::kinds(number) {
            let start = format!("{}-{node}", kind.name);
            let is = |it: &(String, String, String)| {
                it.0 == kind.namespace && it.1.starts_with(&start) && it.2 == kind.container
            };
            ensure!(expected.iter().any(is), "the API server has no {start}, {}: {expected:?}", kind.container);
        }
        ensure!(expected.iter().any(|it| it.0 == "podperf" && it.2 == "podperf"), "no agent: {expected:?}");
        let mut found = BTreeSet::new();
        within(NAMED_WITHIN, "all containers, and no others, have series", || {
            found = named(&release::fresh_metrics(cluster, number)?);
            Ok((found == expected).then_some(()))
        })
        .with_context(|| {
            let missing: Vec<_> = expected.difference(&found).collect();
            let strange: Vec<_> = found.difference(&expected).collect();
            format!("{node}: no series for {missing:?}; series for {strange:?}")
        })?;
    }
    Ok(())
}

fn a_containers_time_is_its_cgroups() -> Result<()> {
    let shared = cluster::shared()?;
    let cluster = shared.get()?;
    for (number, node) in cluster.nodes.iter().enumerate() {
        let mut containers = Vec::new();
        let staying = |kind: &&Kind| ["busy", "blocked", "escorted", "static"].contains(&kind.name);
        for kind in pods::kinds(number).iter().filter(staying) {
            let name_start = format!("{}-{}", kind.name, node.name());
            let pod = cluster.wait_for_pod(kind.namespace, &name_start, "is there", |_| true)?;
            let directory = directory(node, &pod, kind.container)?;
            containers.push((kind.namespace, name(&pod)?.to_owned(), kind.container, directory));
        }
        let usages = || containers.iter().map(|(.., directory)| usage(node, directory)).collect::<Result<Vec<_>>>();
        // The test reads the kernel's counts before and after the agent's.
        let read = || Ok::<_, anyhow::Error>((usages()?, release::fresh_metrics(cluster, number)?, usages()?));
        let begin = read()?;
        std::thread::sleep(Duration::from_secs(5));
        let end = read()?;
        for (at, (namespace, pod, container, _)) in containers.iter().enumerate() {
            let labels = [("namespace", *namespace), ("pod", pod), ("container", container)];
            let (least, most) = (end.0[at] - begin.2[at], end.2[at] - begin.0[at]);
            let counted = end.1.sum(ONCPU, &labels) - begin.1.sum(ONCPU, &labels);
            ensure!(
                counted >= least * 0.98 && counted <= most * 1.02,
                "{labels:?}: counted {counted} s, and the cgroup between {least} and {most}"
            );
        }
    }
    Ok(())
}

fn the_agent_has_the_named_privileges_and_no_others() -> Result<()> {
    let shared = cluster::shared()?;
    let cluster = shared.get()?;
    let node = cluster.node();
    let status = node.run("cat /proc/$(pidof podperf)/status")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(str::trim).with_context(|| format!("no {name} in {status}"))
    };
    // CAP_SYSLOG is 34, CAP_PERFMON 38, CAP_BPF 39.
    let three = format!("{:016x}", (1_u64 << 34) | (0b11 << 38));
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        ensure!(field(set)? == three, "{set} is {}", field(set)?);
    }
    ensure!(field("NoNewPrivs")? == "1" && field("Seccomp")? == "2", "{status}");
    let profile = node.run("cat /proc/$(pidof podperf)/attr/apparmor/current")?;
    ensure!(profile == "cri-containerd.apparmor.d (enforce)", "AppArmor: {profile}");
    let writable = node.run("grep ' / ' /proc/$(pidof podperf)/mounts")?;
    ensure!(writable.contains(" ro,"), "the root file system: {writable}");
    // With these privileges waits have their reasons. The pods of the kind `blocked` sleep most of the time.
    within(NAMED_WITHIN, "waits have reasons", || {
        let metrics = release::fresh_metrics(cluster, 0)?;
        let waits = |reason| metrics.sum(WAIT, &[("container", "db"), ("reason", reason)]);
        let slept = waits("sleep") + waits("child");
        Ok((slept > 0.0 && waits("unknown") < slept / 10.0).then_some(()))
    })
}

/// Returns namespace, pod and container of all containers of a pod that ran.
fn containers(pod: &Pod) -> Vec<(String, String, String)> {
    let of_pod = (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone().unwrap_or_default());
    let status = pod.status.as_ref();
    let main = status.and_then(|status| status.container_statuses.as_ref());
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let ran = main.into_iter().chain(init).flatten().filter(|status| status.container_id.is_some());
    ran.map(|status| (of_pod.0.clone(), of_pod.1.clone(), status.name.clone())).collect()
}

/// Returns the same of all series.
fn named(metrics: &Metrics) -> BTreeSet<(String, String, String)> {
    let series = metrics.samples().iter().filter(|sample| sample.name == ONCPU);
    let label =
        |sample: &podperf_tests::agent::Sample, name: &str| sample.labels.get(name).cloned().unwrap_or_default();
    series.map(|it| (label(it, "namespace"), label(it, "pod"), label(it, "container"))).collect()
}

/// Returns the cgroup of a container, in the guest.
fn directory(node: &Node, pod: &Pod, container: &str) -> Result<String> {
    let status = pod.status.as_ref();
    let main = status.and_then(|status| status.container_statuses.as_ref());
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let status = main.into_iter().chain(init).flatten().find(|status| status.name == container);
    let id = status.and_then(|status| status.container_id.as_deref()).context("no id")?;
    let id = id.trim_start_matches("containerd://");
    node.run(&format!("find /sys/fs/cgroup -type d -name '*{id}*'"))
}

/// Returns the CPU time of a cgroup, in seconds.
fn usage(node: &Node, directory: &str) -> Result<f64> {
    let text = node.run(&format!("cat {directory}/cpu.stat"))?;
    let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec ")).context("no usage")?;
    Ok(usage.parse::<f64>()? / 1e6)
}
