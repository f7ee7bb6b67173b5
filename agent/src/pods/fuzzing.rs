//! The parser of the API's pods, for a fuzz target. It panics when the parser breaks a promise.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a fuzzer reports what panics")]

use std::collections::BTreeSet;

use kube::core::WatchEvent;

use super::{
    Pod,
    prune::{Origin, PruneRules},
    raw_pod::{RawList, RawPod},
};

/// Nesting depth of the input up to which `serde_json` can also parse the pod inside a list or an event.
const DEEP: usize = 120;

/// Reads a text as a list of pods, and as a single pod: alone, in a list, and in each event of a watch.
pub fn object(text: &str) {
    let keys = ["app", "app.kubernetes.io/name", "app_kubernetes_io_name", "teamName"].map(str::to_owned);
    let origin = if text.len().is_multiple_of(2) { Origin::Kubelet } else { Origin::Api { node: "node-1".into() } };
    let keep = PruneRules::new(&keys, &keys, origin);
    if let Ok(list) = serde_json::from_str::<RawList>(text) {
        list.items.into_iter().filter_map(|raw| keep.prune(raw)).for_each(|pod| check(&pod));
    }
    let Ok(raw) = serde_json::from_str::<RawPod>(text) else { return };
    let pod = keep.prune(raw);
    pod.iter().for_each(check);
    if text.matches(['[', '{']).count() > DEEP {
        return;
    }
    // A pod is the same, whether it comes alone, in a list or in an event.
    let list: RawList = serde_json::from_str(&format!("{{\"kind\":\"PodList\",\"items\":[{text}]}}")).unwrap();
    let listed: Vec<_> = list.items.into_iter().map(|raw| keep.prune(raw)).collect();
    assert_eq!(listed, std::slice::from_ref(&pod));
    for kind in ["ADDED", "MODIFIED", "DELETED"] {
        let event: WatchEvent<RawPod> =
            serde_json::from_str(&format!("{{\"type\":\"{kind}\",\"object\":{text}}}")).unwrap();
        let (WatchEvent::Added(raw) | WatchEvent::Modified(raw) | WatchEvent::Deleted(raw)) = event else {
            panic!("another event than {kind}");
        };
        assert_eq!(keep.prune(raw), pod);
    }
}

fn check(pod: &Pod) {
    assert!(!pod.name.is_empty() && !pod.namespace.is_empty());
    // Each name is a valid Prometheus label, and no two names are equal.
    let is_label = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let names: BTreeSet<_> = pod.labels.iter().map(|(name, _)| name).collect();
    assert!(names.len() == pod.labels.len() && names.iter().all(|name| is_label(name)), "{names:?}");
}
