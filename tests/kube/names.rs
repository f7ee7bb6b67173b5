//! Every kind of container has its names, with each runtime and cgroup driver.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::{api::core::v1::Container, apimachinery::pkg::apis::meta::v1::OwnerReference};
use podperf_tests::{
    agent::{Agent, Metrics},
    cgroup::TestCgroup,
    cluster::{
        BURN, CGROUP_ONCPU, Cluster, NODE, ONCPU, SHOP, Spoilt, burn_in, configuration, ensure_close, is_close, series,
        wait_for_part, wait_unscraped_for_part,
    },
    control_plane::NEEDS,
    kubelet::{self, Driver, Qos, Running, Runtime},
    suite::Test,
    tests,
};
use serde_json::json;

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] a_container_has_its_pods_name_under_either_driver: NEEDS,
    #[land] #[beside] each_kind_of_container_has_its_own_name_and_its_own_time: NEEDS,
    #[land] #[beside] a_static_pod_is_found_by_the_hash_in_its_path: NEEDS,
    #[land] #[beside] the_sandbox_is_kept_apart_from_the_containers: NEEDS,
    #[land] #[beside] a_pod_that_computes_outside_of_its_containers_has_series_of_its_own: NEEDS,
    #[land] #[beside] a_cgroup_inside_a_container_adds_to_it: NEEDS,
    #[land] #[beside] a_container_outside_of_kubepods_has_the_name_of_its_status: NEEDS,
    #[land] #[beside] the_owner_of_a_pod_names_its_workload: NEEDS,
    #[land] #[beside] labels_and_annotations_are_told_where_asked_for_and_only_there: NEEDS,
    #[land] #[beside] containers_older_than_the_agent_have_series_at_the_first_scrape: NEEDS,
];

const INFO: &str = "podperf_pod_info";
/// The hash of a static pod's manifest.
const HASH: &str = "0123456789abcdef0123456789abcdef";

fn a_container_has_its_pods_name_under_either_driver() -> Result<()> {
    for (driver, runtime) in [(Driver::Systemd, Runtime::Containerd), (Driver::Cgroupfs, Runtime::CriO)] {
        let cluster = Cluster::start_with(driver, runtime, "", "")?;
        for qos in [Qos::BestEffort, Qos::Burstable, Qos::Guaranteed] {
            let name = format!("{qos:?}").to_lowercase();
            let mut pod = cluster.kubelet.pod(SHOP, &name, qos, &["app"])?;
            let running = pod.start("app", BURN)?;
            pod.report()?;
            let finished = pod.finish(running)?;
            let metrics = cluster.wait_for_cpu(&name, "app", finished.cpu)?;
            let info = [("namespace", SHOP), ("pod", &*name), ("uid", pod.uid()), ("qos_class", &*name)];
            ensure!(metrics.get(INFO, &info) == Some(1.0), "no podperf_pod_info {info:?}");
            let info = [("pod", &*name), ("container", "app"), ("container_id", &*finished.id)];
            metrics
                .get("podperf_container_info", &info)
                .with_context(|| format!("no podperf_container_info {info:?}"))?;
        }
    }
    Ok(())
}

fn each_kind_of_container_has_its_own_name_and_its_own_time() -> Result<()> {
    let cluster = Cluster::start("", "")?;
    let mut specification = kubelet::pod(SHOP, "cart", Qos::Burstable, &["web", "log"])?;
    let spec = specification.spec.as_mut().context("no spec")?;
    let init = ["setup", "mesh"].map(|name| Container {
        name: name.into(),
        image: Some("none".into()),
        restart_policy: (name == "mesh").then(|| "Always".into()),
        ..Container::default()
    });
    spec.init_containers = Some(init.into());
    let mut pod = cluster.kubelet.run(specification)?;
    pod.add_ephemeral("debug")?;

    // Each container burns a different time, so that the test can distinguish them.
    let setup = pod.start("setup", BURN)?;
    let mut truths = vec![("setup", pod.finish(setup)?)];
    let mut running = Vec::new();
    for (name, times) in [("mesh", 2), ("web", 3), ("log", 4), ("debug", 5)] {
        running.push((name, pod.start(name, BURN * times)?));
    }
    pod.report()?;
    for (name, running) in running {
        truths.push((name, pod.finish(running)?));
    }
    pod.report()?;
    for (container, finished) in &truths {
        let metrics = cluster.wait_for_cpu("cart", container, finished.cpu)?;
        let info = [("container", *container), ("container_id", &*finished.id)];
        ensure!(metrics.get("podperf_container_info", &info) == Some(1.0), "no podperf_container_info {info:?}");
    }
    Ok(())
}

fn a_static_pod_is_found_by_the_hash_in_its_path() -> Result<()> {
    let cluster = Cluster::start("patience: 2s", "")?;
    let mut specification = kubelet::pod(SHOP, "etcd-a-node", Qos::Burstable, &["etcd"])?;
    let annotations = ["mirror", "hash"].map(|kind| (format!("kubernetes.io/config.{kind}"), HASH.to_owned()));
    specification.metadata.annotations = Some(annotations.into());
    specification.metadata.owner_references = Some(vec![owner("Node", NODE, true)]);
    let mut pod = cluster.kubelet.run(specification)?;
    ensure!(pod.uid() != HASH && pod.cgroup().kernel_path().contains(HASH), "{}", pod.cgroup().kernel_path());
    let told = pod.start("etcd", BURN)?;
    pod.report()?;
    let told = pod.finish(told)?;
    let metrics = cluster.wait_for_cpu("etcd-a-node", "etcd", told.cpu)?;
    let info = [("uid", pod.uid()), ("workload", "etcd-a-node"), ("workload_type", "staticpod")];
    ensure!(metrics.get(INFO, &info) == Some(1.0), "no podperf_pod_info {info:?}");

    // Any user may claim the hash for another pod.
    let _stranger = cluster.kubelet.pod(SHOP, "stranger", Qos::Burstable, &["etcd"])?;
    let claim = json!({"metadata": {"annotations": {"kubernetes.io/config.hash": HASH}}});
    cluster.plane.admin().patch_pod(SHOP, "stranger", &claim)?;

    // No status names this life of the container. Only the hash identifies the pod.
    let untold = pod.start("etcd", BURN)?;
    let untold = pod.finish(untold)?;
    cluster.wait_for_cpu("etcd-a-node", "etcd", told.cpu + untold.cpu).map(drop)
}

fn the_sandbox_is_kept_apart_from_the_containers() -> Result<()> {
    let spoilt = Spoilt::start(Duration::from_secs(3600))?;
    // One pod is older than the agent, so its sandbox is known by the order of ids.
    let mut pods = vec![spoilt.kubelet.pod(SHOP, "older", Qos::Burstable, &["app"])?];
    let mut running = vec![pods[0].start("app", BURN)?];
    pods[0].report()?;
    running[0].burnt()?;
    let cluster = Cluster::join(spoilt, "patience: 2s", "")?;
    cluster.wait_for_connection()?;
    for (name, containers) in [("single", &["app"][..]), ("double", &["app", "other"])] {
        let mut pod = cluster.kubelet.pod(SHOP, name, Qos::Burstable, containers)?;
        running.push(pod.start("app", BURN)?);
        pod.report()?;
        pods.push(pod);
    }
    for running in &running {
        running.burnt()?;
    }
    let mut sandboxes = Duration::ZERO;
    for pod in &pods {
        burn_in(pod.sandbox(), BURN)?;
        sandboxes += pod.sandbox().cpu_usage()?;
    }
    let common = cluster.common_row();
    let metrics = cluster.wait_for(CGROUP_ONCPU, &[("cgroup", &common)], |cpu| is_close(cpu, sandboxes))?;
    for ((pod, running), new) in pods.iter().zip(&running).zip([false, true, true]) {
        let truth = if new { running.cgroup().cpu_usage()? } else { Duration::ZERO };
        let sum = metrics.get(ONCPU, &[("pod", pod.name())]).context("no series of the pod")?;
        ensure_close(&format!("the containers of `{}`", pod.name()), sum, truth)?;
    }
    ensure!(series(&metrics, ONCPU) == 3, "another number of series than of containers");
    Ok(())
}

/// A virtual machine runs its containers in the same way.
fn a_pod_that_computes_outside_of_its_containers_has_series_of_its_own() -> Result<()> {
    let cluster = Cluster::start("patience: 2s", "")?;
    let pods = ["quiet", "machine"].map(|name| cluster.kubelet.pod(SHOP, name, Qos::Burstable, &["app"]));
    let mut running = Vec::new();
    let mut pods = pods.into_iter().collect::<Result<Vec<_>>>()?;
    for pod in &mut pods {
        running.push(pod.start("app", BURN)?);
        pod.report()?;
    }
    running.iter().try_for_each(Running::burnt)?;
    burn_in(pods[0].sandbox(), BURN)?;
    burn_in(pods[1].sandbox(), BURN * 8)?;
    let own = [("namespace", SHOP), ("pod", "machine"), ("container", "")];
    let common = cluster.common_row();
    let sandboxes = || -> Result<Duration> { Ok(pods[0].sandbox().cpu_usage()? + pods[1].sandbox().cpu_usage()?) };
    let all = |metrics: &Metrics| metrics.sum(ONCPU, &own) + metrics.sum(CGROUP_ONCPU, &[("cgroup", &common)]);
    let truth = sandboxes()?;
    // A reading in the middle of the burning may leave part of it in the row of all pods.
    let metrics = cluster.wait_for_metrics(|metrics| {
        ensure!(is_close(all(metrics), truth) && metrics.get(ONCPU, &own).is_some(), "{} of {truth:?}", all(metrics));
        Ok(())
    })?;
    let before = (metrics.sum(ONCPU, &own), pods[1].sandbox().cpu_usage()?);
    // The pod's series has all later time, however short.
    burn_in(pods[1].sandbox(), BURN)?;
    let later = pods[1].sandbox().cpu_usage()? - before.1;
    let metrics = cluster.wait_for(ONCPU, &own, |seconds| is_close(seconds - before.0, later))?;
    ensure!(series(&metrics, ONCPU) == 3, "another number of series than of containers and one pod");
    Ok(())
}

fn a_cgroup_inside_a_container_adds_to_it() -> Result<()> {
    let cluster = Cluster::start("", "")?;
    let mut pod = cluster.kubelet.pod(SHOP, "build", Qos::Burstable, &["docker"])?;
    let running = pod.start("docker", BURN)?;
    pod.report()?;
    let nested = running.cgroup().child_named("init.scope")?;
    // A runtime inside of the container would use this name. The id in it is in no status.
    let deeper = nested.child_named(&format!("cri-containerd-{}.scope", kubelet::random_id()?))?;
    burn_in(&nested, BURN)?;
    burn_in(&deeper, BURN)?;
    ensure!(nested.cpu_usage()? >= BURN * 2, "nothing burnt inside");
    let finished = pod.finish(running)?;
    let metrics = cluster.wait_for_cpu("build", "docker", finished.cpu)?;
    ensure!(series(&metrics, ONCPU) == 1, "a nested cgroup has a series");
    Ok(())
}

/// As under a kubelet with `cgroupsPerQOS: false`.
fn a_container_outside_of_kubepods_has_the_name_of_its_status() -> Result<()> {
    let cluster = Cluster::start("", "")?;
    let mut specification = kubelet::pod(SHOP, "flat", Qos::Burstable, &["app"])?;
    specification.spec.as_mut().context("no spec")?.node_name = Some(NODE.into());
    cluster.plane.admin().create_pod(&specification)?;
    let id = kubelet::random_id()?;
    let parent = TestCgroup::new("flat")?;
    let container = parent.child_named(&id)?;
    let status = json!({
        "containerID": format!("containerd://{id}"),
        "image": "none",
        "imageID": "",
        "name": "app",
        "ready": true,
        "restartCount": 0,
    });
    let status = json!({"phase": "Running", "containerStatuses": [status]});
    cluster.plane.admin().patch_status(SHOP, "flat", &status)?;
    // Beside pods with directories its counts do not wait for the name.
    let info = [("pod", "flat"), ("container", "app"), ("container_id", &*id)];
    cluster.wait_for("podperf_container_info", &info, |info| info == 1.0)?;
    burn_in(&container, BURN)?;
    cluster.wait_for_cpu("flat", "app", container.cpu_usage()?).map(drop)
}

fn the_owner_of_a_pod_names_its_workload() -> Result<()> {
    let cluster = Cluster::start("", "")?;
    let mut pods = Vec::new();
    let owners = [
        ("ReplicaSet", "web-5d4f8c7b9", "deployment", "web"),
        ("StatefulSet", "db", "statefulset", "db"),
        ("DaemonSet", "log", "daemonset", "log"),
        ("Job", "import", "job", "import"),
        ("Job", "report-29184720", "cronjob", "report"),
        ("", "", "barepod", "pod-5"),
    ];
    for (number, (kind, name, ..)) in owners.into_iter().enumerate() {
        let mut specification = kubelet::pod(SHOP, &format!("pod-{number}"), Qos::BestEffort, &["app"])?;
        if let Some((_, hash)) = name.rsplit_once('-').filter(|_| kind == "ReplicaSet") {
            specification.metadata.labels = Some([("pod-template-hash".into(), hash.into())].into());
        }
        // An owner that does not control the pod is not its workload.
        let owners = [("ConfigMap", "bystander", false), (kind, name, true)];
        let references = owners.into_iter().filter(|(kind, ..)| !kind.is_empty());
        specification.metadata.owner_references =
            Some(references.map(|(kind, name, controls)| owner(kind, name, controls)).collect());
        let mut pod = cluster.kubelet.run(specification)?;
        let running = pod.start("app", Duration::ZERO)?;
        pod.report()?;
        pods.push((pod, running));
    }
    for ((pod, _), (_, _, workload_type, workload)) in pods.iter().zip(owners) {
        let info = [("pod", pod.name()), ("workload_type", workload_type), ("workload", workload)];
        cluster.wait_for(INFO, &info, |info| info == 1.0)?;
    }
    Ok(())
}

fn labels_and_annotations_are_told_where_asked_for_and_only_there() -> Result<()> {
    let asked = "podLabels: [team, app.kubernetes.io/name, absent], podAnnotations: [example.com/costCenter]";
    let cluster = Cluster::start(asked, "")?;
    let mut specification = kubelet::pod(SHOP, "cart", Qos::BestEffort, &["web"])?;
    specification.metadata = serde_json::from_value(json!({
        "namespace": SHOP,
        "name": "cart",
        "labels": {"team": "checkout", "app.kubernetes.io/name": "cart", "secret": "label"},
        "annotations": {"example.com/costCenter": "K \"7\"", "secret": "annotation"},
    }))?;
    let mut pod = cluster.kubelet.run(specification)?;
    let _running = pod.start("web", Duration::ZERO)?;
    pod.report()?;
    let told = [
        ("label_team", "checkout"),
        ("label_app_kubernetes_io_name", "cart"),
        ("annotation_example_com_cost_center", "K \"7\""),
    ];
    let metrics = cluster.wait_for(INFO, &told, |info| info == 1.0)?;
    ensure!(asked_for(&metrics)?.len() == told.len(), "more than asked for: {:?}", asked_for(&metrics)?);

    cluster.plane.admin().patch_pod(SHOP, "cart", &json!({"metadata": {"labels": {"team": "returns"}}}))?;
    let metrics = cluster.wait_for(INFO, &[("label_team", "returns")], |info| info == 1.0)?;
    ensure!(series(&metrics, INFO) == 1, "the pod is told with its old label too");

    let by_default = Agent::start(&configuration(&cluster.credentials, NODE, "", ""))?;
    wait_for_part(&by_default, "pods", "healthy", &["1 pods"])?;
    let metrics = by_default.fresh_metrics()?;
    ensure!(asked_for(&metrics)?.is_empty(), "told without being asked for: {:?}", asked_for(&metrics)?);
    Ok(())
}

fn containers_older_than_the_agent_have_series_at_the_first_scrape() -> Result<()> {
    let spoilt = Spoilt::start(Duration::from_secs(3600))?;
    let mut pod = spoilt.kubelet.pod(SHOP, "old", Qos::Guaranteed, &["idle", "idler"])?;
    let running = [pod.start("idle", BURN)?, pod.start("idler", BURN)?];
    for container in &running {
        container.burnt()?;
    }
    pod.report()?;
    let cluster = Cluster::join(spoilt, "", "")?;
    wait_unscraped_for_part(&cluster.agent, "pods", "healthy", "1 pods")?;
    let metrics = cluster.agent.fresh_metrics()?;
    for running in &running {
        let labels = [("namespace", SHOP), ("pod", "old"), ("container", running.name())];
        let cpu = metrics.get(ONCPU, &labels).with_context(|| format!("no series {labels:?}"))?;
        ensure_close("what was before the agent", cpu, Duration::ZERO)?;
        let info = [("container", running.name()), ("container_id", running.id())];
        ensure!(metrics.get("podperf_container_info", &info) == Some(1.0), "no podperf_container_info {info:?}");
    }
    // Counts after the agent's start have a name.
    burn_in(running[0].cgroup(), BURN)?;
    cluster.wait_for(ONCPU, &[("pod", "old"), ("container", "idle")], |cpu| cpu >= BURN.as_secs_f64())?;
    Ok(())
}

/// Returns a reference to an owner that does not exist. The API server does not look for it.
fn owner(kind: &str, name: &str, controls: bool) -> OwnerReference {
    OwnerReference {
        api_version: "apps/v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: format!("made-up-{name}"),
        controller: Some(controls),
        ..OwnerReference::default()
    }
}

/// Returns the labels and annotations of the only pod.
fn asked_for(metrics: &Metrics) -> Result<Vec<String>> {
    let info = metrics.samples().iter().find(|sample| sample.name == INFO).context("no podperf_pod_info")?;
    let asked = |label: &&String| label.starts_with("label_") || label.starts_with("annotation_");
    Ok(info.labels.keys().filter(asked).cloned().collect())
}
