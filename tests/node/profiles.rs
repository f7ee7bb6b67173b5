//! The agents have the privileges for profiles, and send them. The test reads the privileges on the node with the
//! systemd driver.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    collector::{Collector, Profile},
    node::GUEST_HOST,
    suite::{Test, within},
    tests,
};
use serde_json::json;

use crate::{
    cluster::{self, NEEDS, is_ready},
    pods::{self, name},
    release,
};

pub(crate) const TESTS: &[Test] = tests![
    under_systemd_profiles_arrive_at_a_collector_with_the_names_of_pods: NEEDS,
];

const ARRIVES_WITHIN: Duration = Duration::from_secs(120);

fn under_systemd_profiles_arrive_at_a_collector_with_the_names_of_pods() -> Result<()> {
    let shared = cluster::shared()?;
    let cluster = shared.get()?;
    let collector = Collector::start()?;
    // Debian's kernels start with 3, and then require CAP_SYS_ADMIN. Other kernels accept CAP_PERFMON.
    for node in &cluster.nodes {
        node.run("sysctl -w kernel.perf_event_paranoid=2")?;
    }
    let endpoint = format!("http://{GUEST_HOST}:{}", collector.address().port());
    // On an emulated CPU, the symbol lookup alone costs more than the cap.
    let config = json!({"otlp": {"endpoint": endpoint, "interval": "5s"}, "overhead": {"maxPercent": 0}});
    release::upgrade(cluster, &json!({"mode": "profiles", "http": {"acceptOpenProfiles": true}, "config": config}))?;

    let node = cluster.nodes.last().context("no node")?.name();
    let deployment = format!("busy-{node}");
    let busy = cluster.wait_for_pod(pods::NAMESPACE, &deployment, "is ready", is_ready)?;
    let wanted = BTreeMap::from([
        ("k8s.node.name", node),
        ("k8s.namespace.name", pods::NAMESPACE),
        ("k8s.pod.name", name(&busy)?),
        ("k8s.pod.uid", busy.metadata.uid.as_deref().unwrap_or_default()),
        ("k8s.container.name", "web"),
        ("k8s.deployment.name", &deployment),
    ]);
    let of_busy = |profile: &Profile| {
        wanted.iter().all(|(key, value)| profile.resource.get(*key).is_some_and(|found| found == value))
    };
    for sample_type in ["off_cpu", "samples"] {
        let found = within(ARRIVES_WITHIN, &format!("profiles `{sample_type}` of {wanted:?}"), || {
            let profiles = collector.profiles()?;
            Ok(profiles.into_iter().find(|profile| profile.sample_type == sample_type && of_busy(profile)))
        });
        let profile =
            found.with_context(|| format!("{}\n{}", resources(&collector), cluster.describe(release::NAMESPACE)))?;
        let kernel = profile.samples.iter().flat_map(|sample| sample.functions()).any(|name| name.contains("sched"));
        ensure!(sample_type == "samples" || kernel, "no names of kernel functions: {profile:?}");
    }
    Ok(())
}

/// Returns the resources of the profiles that have arrived.
fn resources(collector: &Collector) -> String {
    let profiles = collector.profiles().unwrap_or_default();
    let mut resources: Vec<_> =
        profiles.into_iter().map(|it| format!("{} {:?}", it.sample_type, it.resource)).collect();
    resources.sort();
    resources.dedup();
    resources.join("\n")
}
