//! The resource attributes that name the subject of a profile. Pure.

use crate::attribution::Subject;

/// Returns the resource attributes of a subject. They have the names of OpenTelemetry's semantic conventions where there
/// are such names.
pub(super) fn resource(subject: &Subject, node_name: &str) -> Vec<(&'static str, String)> {
    let mut attributes = vec![("host.name", node_name.to_owned())];
    match subject {
        Subject::Cgroup(path) => {
            let service = path.rsplit('/').find(|part| !part.is_empty()).unwrap_or("/");
            attributes.extend([("service.name", service.to_owned()), ("podperf.cgroup.path", path.to_string())]);
        }
        Subject::Container(info) => {
            let (pod, workload) = (&info.pod, &info.pod.workload);
            let service = pod.service_name.as_ref().unwrap_or(&workload.name);
            attributes.extend([
                ("service.name", service.to_string()),
                ("service.instance.id", format!("{}.{}.{}", pod.namespace, pod.name, info.name)),
                ("container.id", info.id.to_string()),
                ("k8s.node.name", node_name.to_owned()),
                ("k8s.namespace.name", pod.namespace.to_string()),
                ("k8s.pod.name", pod.name.to_string()),
                ("k8s.container.name", info.name.to_string()),
            ]);
            attributes.extend(pod.uid.map(|uid| ("k8s.pod.uid", uid.to_string())));
            attributes.extend(workload.kind.attribute().map(|key| (key, workload.name.to_string())));
        }
    }
    attributes
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use super::*;
    use crate::pods::{ContainerInfo, Pod, Workload, WorkloadKind};

    fn container(kind: WorkloadKind, service_name: Option<&str>) -> BTreeMap<&'static str, String> {
        let pod = Pod {
            name: "web-0".into(),
            workload: Workload { kind, name: "web".into() },
            service_name: service_name.map(Into::into),
            ..Pod::example()
        };
        let info = ContainerInfo {
            pod: Arc::new(pod),
            name: "app".into(),
            image: "image".into(),
            id: "ab".repeat(32).parse().unwrap(),
        };
        resource(&Subject::Container(Arc::new(info)), "node-1").into_iter().collect()
    }

    #[test]
    fn a_container_is_told_with_its_pod_and_workload() {
        let attributes = container(WorkloadKind::StatefulSet, None);
        for (key, value) in [
            ("service.name", "web"),
            ("service.instance.id", "shop.web-0.app"),
            ("container.id", &"ab".repeat(32)),
            ("k8s.node.name", "node-1"),
            ("k8s.namespace.name", "shop"),
            ("k8s.pod.name", "web-0"),
            ("k8s.pod.uid", "6ef0362e-e3b9-43a3-acdb-de4ba71f1fa4"),
            ("k8s.container.name", "app"),
            ("k8s.statefulset.name", "web"),
        ] {
            assert_eq!(attributes.get(key).map(String::as_str), Some(value), "{key}");
        }
    }

    #[test]
    fn the_annotation_names_the_service() {
        let attributes = container(WorkloadKind::Deployment, Some("checkout"));
        assert_eq!((&*attributes["service.name"], &*attributes["k8s.deployment.name"]), ("checkout", "web"));
    }

    #[test]
    fn a_cgroup_is_a_service_of_its_last_name() {
        let attributes: BTreeMap<_, _> =
            resource(&Subject::Cgroup("/system.slice/ssh.service".into()), "node-1").into_iter().collect();
        assert_eq!(attributes["service.name"], "ssh.service");
        assert_eq!(attributes["podperf.cgroup.path"], "/system.slice/ssh.service");
    }
}
