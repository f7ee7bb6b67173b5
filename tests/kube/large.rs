//! Pods at the API server's limits of size, names and changes.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use podperf_tests::{
    agent::Agent,
    cluster::{BURN, Cluster, NODE, ONCPU, SHOP, is_close},
    control_plane::NEEDS,
    kubelet::{self, Qos},
    suite::{Test, tell},
    tests,
};
use serde_json::json;

pub(crate) const TESTS: &[Test] = tests![
    #[beside] each_of_a_pods_hundred_containers_has_its_own_counts: NEEDS,
    #[land] #[beside] names_of_the_longest_are_whole: NEEDS,
    #[land] #[beside] configured_labels_and_annotations_are_told_as_they_are: NEEDS,
    annotations_that_nobody_asked_for_take_no_memory: NEEDS,
    #[beside] #[exact] a_pod_that_changes_a_thousand_times_keeps_its_counts: NEEDS,
];

const POD_INFO: &str = "podperf_pod_info";
/// The life of a container. It is short, because there are a hundred of them.
const BRIEFLY: Duration = Duration::from_millis(5);
const CHANGES: u32 = 1000;

fn each_of_a_pods_hundred_containers_has_its_own_counts() -> Result<()> {
    let cluster = Cluster::start("", "")?;
    let names: Vec<_> = (0..100).map(|number| format!("c{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut pod = cluster.kubelet.pod(SHOP, "huge", Qos::Burstable, &names)?;
    let mut running = Vec::new();
    for name in &names {
        running.push(pod.start(name, BRIEFLY)?);
    }
    let mut truths = Vec::new();
    for running in running {
        let name = running.name().to_owned();
        truths.push((name, pod.finish(running)?.cpu));
    }
    pod.report()?;
    let reported = Instant::now();
    let sum: Duration = truths.iter().map(|(_, cpu)| *cpu).sum();
    let metrics = cluster.wait_for(ONCPU, &[("namespace", SHOP), ("pod", "huge")], |seconds| is_close(seconds, sum))?;
    tell(&format!("100 containers: all named {:.1?} after their status", reported.elapsed()));
    for (name, truth) in truths {
        let seconds = metrics.get(ONCPU, &[("pod", "huge"), ("container", &name)]);
        let seconds = seconds.with_context(|| format!("no series of {name}"))?;
        ensure!(is_close(seconds, truth), "{name}: {seconds} s, and the truth is {truth:?}");
    }
    Ok(())
}

fn names_of_the_longest_are_whole() -> Result<()> {
    let cluster = Cluster::start("", "")?;
    let (namespace, name, container) = ("n".repeat(63), "p".repeat(253), "c".repeat(63));
    let mut pod = cluster.kubelet.pod(&namespace, &name, Qos::Burstable, &[&container])?;
    let running = pod.start(&container, BURN)?;
    pod.report()?;
    let finished = pod.finish(running)?;
    let labels = [("namespace", &*namespace), ("pod", &*name), ("container", &*container)];
    let metrics = cluster.wait_for(ONCPU, &labels, |seconds| is_close(seconds, finished.cpu))?;
    let info = [("namespace", &*namespace), ("pod", &*name), ("uid", pod.uid()), ("workload", &*name)];
    metrics.get(POD_INFO, &info).with_context(|| format!("no podperf_pod_info {info:?}"))?;
    Ok(())
}

fn configured_labels_and_annotations_are_told_as_they_are() -> Result<()> {
    let long = "a".repeat(63);
    let keys = format!("[app.kubernetes.io/part-of, camelCase, 0-digit, 'x.io/{long}', absent]");
    let cluster = Cluster::start(&format!("podLabels: {keys}, podAnnotations: ['note!', note]"), "")?;
    let odd = "a \"quote\", a \\ and a {brace}=~\n\tanother line, é 🦀 \u{7f}";
    let mut specification = kubelet::pod(SHOP, "odd", Qos::Burstable, &["app"])?;
    specification.metadata.labels = Some(
        [
            ("app.kubernetes.io/part-of", "A_b.c-D"),
            ("camelCase", ""),
            ("0-digit", "0"),
            (&format!("x.io/{long}"), &long),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
    );
    specification.metadata.annotations = Some([("note".to_owned(), odd.to_owned())].into());
    let mut pod = cluster.kubelet.run(specification)?;
    let running = pod.start("app", BURN)?;
    pod.report()?;
    let finished = pod.finish(running)?;
    let metrics = cluster.wait_for_cpu("odd", "app", finished.cpu)?;
    let of_x = format!("label_x_io_{long}");
    let info = [
        ("pod", "odd"),
        ("label_app_kubernetes_io_part_of", "A_b.c-D"),
        ("label_camel_case", ""),
        ("label_0_digit", "0"),
        (&of_x, &long),
        ("annotation_note", odd),
    ];
    let told = metrics.samples().iter().find(|sample| sample.name == POD_INFO);
    ensure!(metrics.get(POD_INFO, &info) == Some(1.0), "no {info:?}, but {told:?}");
    Ok(())
}

fn annotations_that_nobody_asked_for_take_no_memory() -> Result<()> {
    const PODS: u32 = 60;
    const EACH: usize = 200 * 1024;
    let cluster = Cluster::start("", "")?;
    let large = |name: String| -> Result<Pod> {
        let mut pod = kubelet::pod(SHOP, &name, Qos::Burstable, &["app"])?;
        pod.metadata.annotations = Some([("podperf.test/large".to_owned(), "x".repeat(EACH))].into());
        pod.spec.get_or_insert_default().node_name = Some(NODE.into());
        Ok(pod)
    };
    // The first pods fill the buffers, and the later pods show the memory of each pod.
    for number in 0..5 {
        cluster.plane.admin().create_pod(&large(format!("first-{number}"))?)?;
    }
    cluster.wait_for("podperf_kube_pods", &[], |pods| pods == 5.0)?;
    let before = resident(&cluster.agent)?;
    for number in 0..PODS {
        cluster.plane.admin().create_pod(&large(format!("large-{number}"))?)?;
    }
    cluster.wait_for("podperf_kube_pods", &[], |pods| pods == f64::from(5 + PODS))?;
    let grown = resident(&cluster.agent)?.saturating_sub(before);
    let all = u64::from(PODS) * EACH as u64;
    tell(&format!("{PODS} pods with {} KiB of annotations each: {} KiB more in memory", EACH / 1024, grown / 1024));
    ensure!(grown < all / 3, "{grown} bytes more in memory, with {all} bytes of annotations");

    // The agent counts such a pod's containers as any others.
    let mut pod = cluster.kubelet.take_up(cluster.plane.admin().create_pod(&large("used".into())?)?)?;
    let running = pod.start("app", BURN)?;
    pod.report()?;
    let finished = pod.finish(running)?;
    cluster.wait_for_cpu("used", "app", finished.cpu)?;
    Ok(())
}

fn a_pod_that_changes_a_thousand_times_keeps_its_counts() -> Result<()> {
    let cluster = Cluster::start("podLabels: [turn]", "")?;
    let mut pod = cluster.kubelet.pod(SHOP, "restless", Qos::Burstable, &["app"])?;
    let running = pod.start("app", BURN)?;
    pod.report()?;
    let start = Instant::now();
    for turn in 1..=CHANGES {
        let labels = json!({"metadata": {"labels": {"turn": turn.to_string()}}});
        cluster.plane.admin().patch_pod(SHOP, "restless", &labels)?;
    }
    tell(&format!("{CHANGES} changes in {:.1?}", start.elapsed()));
    let finished = pod.finish(running)?;
    let last = [("pod", "restless"), ("label_turn", &*CHANGES.to_string())];
    let metrics = cluster.wait_for(POD_INFO, &last, |there| there == 1.0)?;
    ensure!(metrics.get(POD_INFO, &[("pod", "restless")]) == Some(1.0), "more than one podperf_pod_info");
    let metrics = cluster.wait_for_cpu("restless", "app", finished.cpu)?;
    for name in ["podperf_kube_watch_failures_total", "podperf_kube_watch_restarts_total"] {
        ensure!(
            metrics.get(name, &[]) == Some(0.0),
            "{name} is {:?}:\n{}",
            metrics.get(name, &[]),
            cluster.agent.log()
        );
    }
    Ok(())
}

/// Returns `VmRSS`, in bytes.
fn resident(agent: &Agent) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1024)
}
