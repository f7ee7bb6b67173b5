//! What the watch and the kubelet tell of pods: their owners choose names, labels and annotations.
//!
//! The parser's files stand alone and are private to the agent, so they are taken in as they are.
#![no_main]
#![expect(dead_code, reason = "the agent's modules offer more than is asked of them here")]
#![allow(unfulfilled_lint_expectations, reason = "the agent warns of more than is warned of here")]

#[path = "../../../agent/src/ids.rs"]
mod ids;
#[path = "../../../agent/src/pods/pod.rs"]
mod pod;
#[path = "../../../agent/src/pods/prune.rs"]
mod prune;
#[path = "../../../agent/src/pods/raw.rs"]
mod raw;
#[path = "../../../agent/src/restart/shared.rs"]
mod shared;
#[path = "../../../agent/src/pods/workload.rs"]
mod workload;

/// As the files call it.
mod restart {
    pub(crate) use crate::shared;
}

use kube::core::WatchEvent;
use libfuzzer_sys::fuzz_target;
use pod::Pod;
use prune::{Keep, Teller};
use raw::{RawList, RawPod};

/// `serde_json` goes so deep, and a list or an event is deeper than its pod.
const DEEP: usize = 120;

fuzz_target!(|text: &str| {
    let keys = ["app", "app.kubernetes.io/name", "app_kubernetes_io_name", "teamName"].map(str::to_owned);
    let teller = if text.len() % 2 == 0 { Teller::Kubelet } else { Teller::Api { node: "node-1".into() } };
    let keep = Keep::new(&keys, &keys, teller);
    if let Ok(list) = serde_json::from_str::<RawList>(text) {
        list.items.into_iter().filter_map(|raw| keep.prune(raw)).for_each(|pod| check(&pod));
    }
    let Ok(raw) = serde_json::from_str::<RawPod>(text) else { return };
    let pod = keep.prune(raw);
    pod.iter().for_each(check);
    if text.matches(['[', '{']).count() > DEEP {
        return;
    }
    // A pod is the same one however it comes.
    let list: RawList = serde_json::from_str(&format!("{{\"kind\":\"PodList\",\"items\":[{text}]}}")).unwrap();
    let listed: Vec<_> = list.items.into_iter().map(|raw| keep.prune(raw)).collect();
    assert_eq!(listed, [pod.clone()]);
    for kind in ["ADDED", "MODIFIED", "DELETED"] {
        let event: WatchEvent<RawPod> =
            serde_json::from_str(&format!("{{\"type\":\"{kind}\",\"object\":{text}}}")).unwrap();
        let (WatchEvent::Added(raw) | WatchEvent::Modified(raw) | WatchEvent::Deleted(raw)) = event else {
            panic!("another event than {kind}");
        };
        assert_eq!(keep.prune(raw), pod);
    }
});

fn check(pod: &Pod) {
    assert!(!pod.name.is_empty() && !pod.namespace.is_empty());
    // Each a label of Prometheus, and no two alike.
    let is_label = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let names: std::collections::BTreeSet<_> = pod.labels.iter().map(|(name, _)| name).collect();
    assert!(names.len() == pod.labels.len() && names.iter().all(|name| is_label(name)), "{names:?}");
}
