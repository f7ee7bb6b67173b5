use serde_json::{Value, json};

use super::{
    super::{raw_pod::RawList, workload::WorkloadKind},
    *,
};
use crate::model::ids::PodUid;

const UID: &str = "6ef0362e-e3b9-43a3-acdb-de4ba71f1fa4";
const HASH: &str = "0123456789abcdef0123456789abcdef";

/// A container id that differs from other ids in its first digit.
fn id(digit: char) -> String {
    format!("{digit}{:0>63}", "")
}

fn status_id(digit: char) -> String {
    format!("containerd://{}", id(digit))
}

fn container_id(digit: char) -> Option<ContainerId> {
    Some(id(digit).parse().unwrap())
}

fn prune(pod: Value) -> Pod {
    pruned_from(Origin::Api { node: "node-1".into() }, pod)
}

fn pruned_from(origin: Origin, pod: Value) -> Pod {
    PruneRules::new(&[], &[], origin).prune(serde_json::from_value(pod).unwrap()).unwrap()
}

fn names(pod: &Pod) -> Vec<(&str, ContainerKind)> {
    pod.containers.iter().map(|container| (&*container.name, container.kind)).collect()
}

/// A pod with some of the further fields that an API server sends.
fn web() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web-5d4f8c7b9-x2x4z",
            "generateName": "web-5d4f8c7b9-",
            "namespace": "shop",
            "uid": UID,
            "resourceVersion": "4711",
            "creationTimestamp": "2026-11-20T20:00:00Z",
            "labels": {"app.kubernetes.io/name": "web", "team": "a", "pod-template-hash": "5d4f8c7b9"},
            "annotations": {"example.com/costCentre": "12", "resource.opentelemetry.io/service.name": "storefront"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "not-me", "uid": "x"},
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f8c7b9", "uid": "y", "controller": true}
            ],
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}}]
        },
        "spec": {
            "nodeName": "node-1",
            "priorityClassName": "high",
            "initContainers": [
                {"name": "migrate", "image": "migrate:1"},
                {"name": "proxy", "image": "envoy:2", "restartPolicy": "Always"}
            ],
            "containers": [
                {"name": "web", "image": "registry/web:3", "env": [{"name": "PASSWORD", "value": "hunter2"}]},
                {"name": "log", "image": ""}
            ],
            "ephemeralContainers": [{"name": "debugger-abc", "image": "busybox", "targetContainerName": "web"}]
        },
        "status": {
            "phase": "Running",
            "qosClass": "Burstable",
            "initContainerStatuses": [
                {
                    "name": "migrate", "image": "docker.io/migrate:1", "containerID": status_id('1'),
                    "state": {"terminated": {"exitCode": 0, "reason": "Completed", "containerID": status_id('1')}},
                    "lastState": {}
                },
                {"name": "proxy", "containerID": status_id('2'), "state": {"running": {}}, "started": true}
            ],
            "containerStatuses": [
                {"name": "log", "image": "registry/log:4", "containerID": "", "state": {"waiting": {"reason": "X"}}},
                {
                    "name": "web", "image": "registry/web@sha256:abc", "containerID": status_id('4'),
                    "state": {"running": {"startedAt": "2026-11-20T20:00:00Z"}},
                    "lastState": {"terminated": {"exitCode": 137, "containerID": status_id('3')}}
                }
            ],
            "ephemeralContainerStatuses": [
                {"name": "debugger-abc", "containerID": format!("cri-o://{}", id('5')), "state": {"running": null}}
            ]
        }
    })
}

#[test]
fn all_four_kinds_of_container_are_found_with_their_ids() {
    let pod = prune(web());
    assert_eq!(
        names(&pod),
        [
            ("migrate", ContainerKind::Init),
            ("proxy", ContainerKind::Sidecar),
            ("web", ContainerKind::Main),
            ("log", ContainerKind::Main),
            ("debugger-abc", ContainerKind::Ephemeral),
        ]
    );
    let ids: Vec<_> = pod.containers.iter().map(|container| (container.current, container.last)).collect();
    let expected = [('1', None), ('2', None), ('4', Some('3')), ('0', None), ('5', None)];
    for (found, (current, last)) in ids.iter().zip(expected) {
        let current = if current == '0' { None } else { container_id(current) };
        assert_eq!(*found, (current, last.and_then(container_id)));
    }
    let ended: Vec<_> = pod.containers.iter().map(|container| container.ended).collect();
    assert_eq!(ended, [true, false, false, false, false]);
    let images: Vec<_> = pod.containers.iter().map(|container| &*container.image).collect();
    assert_eq!(images, ["migrate:1", "envoy:2", "registry/web:3", "registry/log:4", "busybox"]);
}

#[test]
fn a_pod_keeps_what_names_it_and_nothing_else() {
    let pod = prune(web());
    assert_eq!((&*pod.namespace, &*pod.name), ("shop", "web-5d4f8c7b9-x2x4z"));
    assert_eq!(pod.uid, Some(UID.parse::<PodUid>().unwrap()));
    assert_eq!(pod.config_hash, None);
    assert_eq!((&pod.workload.kind, &*pod.workload.name), (&WorkloadKind::Deployment, "web"));
    assert_eq!((&*pod.qos_class, &*pod.priority_class), ("burstable", "high"));
    assert_eq!(pod.service_name.as_deref(), Some("storefront"));
    assert!(pod.scrape && !pod.over);
    assert!(pod.labels.is_empty());
    let debug = format!("{pod:?}");
    assert!(!debug.contains("hunter2") && !debug.contains("not-me"), "{debug}");
}

#[test]
fn configured_labels_and_annotations_are_kept_under_the_names_of_kube_state_metrics() {
    let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
    let keep = PruneRules::new(
        &keys(&["team", "app.kubernetes.io/name", "absent"]),
        &keys(&["example.com/costCentre", "resource.opentelemetry.io/service.name"]),
        Origin::default(),
    );
    let pod = keep.prune(serde_json::from_value(web()).unwrap()).unwrap();
    let labels: Vec<_> = pod.labels.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(
        labels,
        [
            ("label_app_kubernetes_io_name", "web"),
            ("label_team", "a"),
            ("annotation_example_com_cost_centre", "12"),
            ("annotation_resource_opentelemetry_io_service_name", "storefront"),
        ]
    );
}

#[test]
fn labels_and_annotations_are_cut_at_a_kibibyte() {
    let key = "resource.opentelemetry.io/service.name";
    let mut pod = web();
    // The last letter has two bytes, and only one of them would fit.
    pod["metadata"]["annotations"][key] = format!("{}\u{e9}", "x".repeat(1023)).into();
    let keep = PruneRules::new(&[], &[key.to_owned()], Origin::default());
    let pod = keep.prune(serde_json::from_value(pod).unwrap()).unwrap();
    let cut = "x".repeat(1023);
    assert_eq!((pod.service_name.as_deref(), &*pod.labels[0].1), (Some(&*cut), &*cut));
}

#[test]
fn keys_with_one_name_are_distinguished() {
    let names: Vec<_> = named("label", &["a-b".into(), "a.b".into(), "a-b".into(), "HTTPPort2X".into()])
        .into_iter()
        .map(|(key, name)| format!("{key} {name}"))
        .collect();
    assert_eq!(names, ["HTTPPort2X label_httpport2_x", "a-b label_a_b_conflict1", "a.b label_a_b_conflict2"]);
}

#[test]
fn a_static_pod_is_found_by_its_hash() {
    // The API server's copy.
    let mirror = prune(json!({
        "metadata": {
            "name": "etcd-node-1", "namespace": "kube-system", "uid": UID,
            "annotations": {
                "kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": HASH,
                "kubernetes.io/config.source": "file"
            },
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-1", "controller": true}]
        },
        "spec": {"containers": [{"name": "etcd", "image": "etcd:3"}], "priorityClassName": "system-node-critical"}
    }));
    assert_eq!((mirror.uid, mirror.config_hash), (UID.parse().ok(), HASH.parse().ok()));
    assert_eq!((&mirror.workload.kind, &*mirror.workload.name), (&WorkloadKind::StaticPod, "etcd-node-1"));
    // The kubelet's copy.
    let own = json!({
        "metadata": {
            "name": "etcd-node-1", "namespace": "kube-system", "uid": HASH,
            "annotations": {"kubernetes.io/config.source": "file"}
        }
    });
    let own = pruned_from(Origin::Kubelet, own);
    assert_eq!((own.uid, own.config_hash), (None, HASH.parse().ok()));
    assert_eq!(own.workload, mirror.workload);
    // A pod that a kubelet has from the API server is not static.
    let other = json!({"name": "x", "namespace": "y", "annotations": {"kubernetes.io/config.source": "api"}});
    assert_eq!(pruned_from(Origin::Kubelet, json!({"metadata": other})).workload.kind, WorkloadKind::BarePod);
}

#[test]
fn a_hash_that_anybody_may_have_written_is_not_believed() {
    let pod = |annotations: Value, owners: Value| {
        json!({"metadata": {
            "name": "etcd", "namespace": "x", "uid": UID, "annotations": annotations, "ownerReferences": owners
        }})
    };
    let node = |name: &str| json!([{"apiVersion": "v1", "kind": "Node", "name": name, "controller": true}]);
    let hash = json!({"kubernetes.io/config.hash": HASH});
    let source = json!({"kubernetes.io/config.hash": HASH, "kubernetes.io/config.source": "file"});
    let mirror = json!({"kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": HASH});
    let from_api = json!({
        "kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": HASH, "kubernetes.io/config.source": "api"
    });
    let replica_set = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "node-1", "controller": true}]);
    for (annotations, owners) in [
        (&hash, json!([])),
        (&hash, node("node-1")),
        (&source, node("node-1")),
        (&mirror, json!([])),
        (&mirror, node("node-2")),
        (&mirror, replica_set),
    ] {
        let told = pod(annotations.clone(), owners);
        let pod = prune(told.clone());
        assert_eq!(pod.config_hash, None, "{told}");
    }
    // A kubelet overwrites the source in each pod.
    let told = pruned_from(Origin::Kubelet, pod(from_api, node("node-1")));
    assert_eq!(told.config_hash, None);
}

#[test]
fn a_finished_pod_of_a_cron_job_is_over() {
    let pod = prune(json!({
        "metadata": {
            "name": "backup-29184720-q7x2k", "namespace": "ops", "uid": UID,
            "labels": {"batch.kubernetes.io/job-name": "backup-29184720"},
            "annotations": {"podperf.io/scrape": "false", "resource.opentelemetry.io/service.name": ""},
            "ownerReferences": [{"kind": "Job", "name": "backup-29184720", "controller": true}]
        },
        "spec": {"containers": [{"name": "main", "image": "backup:1"}]},
        "status": {
            "phase": "Succeeded", "qosClass": "BestEffort",
            "containerStatuses": [{"name": "main", "state": {"terminated": {"containerID": status_id('7')}}}]
        }
    }));
    assert_eq!((&pod.workload.kind, &*pod.workload.name), (&WorkloadKind::CronJob, "backup"));
    assert!(pod.over && !pod.scrape && pod.service_name.is_none());
    assert_eq!(&*pod.qos_class, "besteffort");
    assert_eq!((pod.containers[0].current, pod.containers[0].ended), (container_id('7'), true));
}

#[test]
fn what_is_missing_null_or_garbled_is_empty() {
    let pod = prune(json!({
        "metadata": {
            "name": "odd", "namespace": "n", "uid": "not a UID", "labels": null, "annotations": null,
            "ownerReferences": null
        },
        "spec": {
            "priorityClassName": null, "initContainers": null, "ephemeralContainers": null,
            "containers": [{"name": "a"}, {"name": "b", "image": null}, {"name": "c"}, {}]
        },
        "status": {
            "phase": null, "qosClass": null, "initContainerStatuses": null,
            "containerStatuses": [
                {"name": "a", "containerID": "containerd://short", "state": null, "lastState": {"terminated": null}},
                {"name": "b", "containerID": null, "state": {"terminated": {"containerID": "containerd://"}}},
                {"name": "nobody", "containerID": status_id('1')}
            ]
        }
    }));
    assert_eq!((pod.uid, pod.config_hash), (None, None));
    assert_eq!((&*pod.qos_class, &*pod.priority_class, pod.over), ("", "", false));
    assert_eq!(pod.containers.len(), 4);
    assert!(pod.containers.iter().all(|container| container.current.is_none() && container.last.is_none()));
    assert!(pod.containers[1].ended);
    assert_eq!(
        prune(json!({"metadata": {"name": "n", "namespace": "s"}, "spec": null, "status": null})).containers,
        []
    );
    let nameless: RawPod = serde_json::from_value(json!({"metadata": {"name": "x"}})).unwrap();
    assert_eq!(PruneRules::default().prune(nameless), None);
}

#[test]
fn a_list_without_items_is_empty() {
    let list: RawList = serde_json::from_str(r#"{"kind": "PodList", "metadata": {}, "items": null}"#).unwrap();
    assert!(list.items.is_empty() && list.metadata.resource_version.is_empty());
}
