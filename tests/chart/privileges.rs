//! Each mode has exactly its privileges.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{suite::Test, tests};
use serde::Deserialize as _;
use serde_yaml::Value;

use crate::helm::{GO, object, objects, root, template};

pub(crate) const TESTS: &[Test] = tests![
    each_mode_has_exactly_its_privileges: GO,
    the_default_mode_is_reasons_which_takes_no_user_frames: GO,
    memory_grows_with_the_cpus_of_a_node: GO,
    without_pins_nothing_of_the_node_is_written_to: GO,
    who_pins_may_ask_for_its_own_daemonset_alone: GO,
    apparmor_is_an_annotation_before_kubernetes_1_30: GO,
    rbac_is_that_of_the_example_without_the_chart: GO,
    the_roles_of_reviews_are_those_of_the_example_without_the_chart: GO,
    the_kubelet_is_asked_with_the_least_that_its_version_takes: GO,
    who_asks_for_no_pods_has_no_token: GO,
    openshift_gets_constraints_that_fit_the_pod: GO,
    no_label_of_a_version_selects_pods: GO,
];

const METRICS: &[&str] = &["BPF", "PERFMON"];
const REASONS: &[&str] = &["BPF", "PERFMON", "SYSLOG"];
const PROFILES: &[&str] = &["BPF", "PERFMON", "SYSLOG", "SYS_PTRACE", "DAC_READ_SEARCH", "CHECKPOINT_RESTORE"];

fn pod(rendered: &str) -> Result<Value> {
    Ok(object(rendered, "DaemonSet")?["spec"]["template"].clone())
}

fn words(list: &Value) -> Vec<&str> {
    list.as_sequence().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn each_mode_has_exactly_its_privileges() -> Result<()> {
    for (mode, capabilities, shared, pids) in [
        ("metrics", METRICS, true, true),
        ("metrics", METRICS, false, false),
        ("reasons", REASONS, true, true),
        ("reasons", REASONS, false, false),
        ("profiles", PROFILES, true, true),
        ("profiles", PROFILES, false, true),
    ] {
        let pod =
            pod(&template(&format!("{{mode: {mode}, hostPID: {shared}, http: {{acceptOpenProfiles: true}}}}"), &[])?)?;
        let spec = &pod["spec"];
        let security = &spec["containers"][0]["securityContext"];
        ensure!(words(&security["capabilities"]["add"]) == capabilities, "{mode}: {security:?}");
        ensure!(words(&security["capabilities"]["drop"]) == ["ALL"], "{mode}: {security:?}");
        ensure!(security["privileged"] == false && security["allowPrivilegeEscalation"] == false, "{mode}");
        ensure!(security["readOnlyRootFilesystem"] == true, "{mode}");
        ensure!(security["seccompProfile"]["type"] == "RuntimeDefault", "{mode}");
        let app_armor = security["appArmorProfile"]["type"].as_str();
        ensure!(app_armor == (mode == "profiles").then_some("Unconfined"), "{mode}: {app_armor:?}");
        ensure!(spec["hostPID"].as_bool().unwrap_or(false) == pids, "{mode}");
        ensure!(spec["hostNetwork"].is_null() && spec["hostIPC"].is_null(), "{mode}");
        let volumes = spec["volumes"].as_sequence().context("no volumes")?;
        let host: Vec<_> = volumes.iter().filter(|volume| !volume["hostPath"].is_null()).collect();
        let paths: Vec<_> = host.iter().filter_map(|volume| volume["hostPath"]["path"].as_str()).collect();
        ensure!(paths == ["/run/podperf", "/sys/fs/bpf/podperf", "/sys/fs/cgroup"], "{mode}: {host:?}");
        let mounts = spec["containers"][0]["volumeMounts"].as_sequence().context("no mounts")?;
        let writable: Vec<_> = mounts.iter().filter(|mount| mount["readOnly"] != true).collect();
        let writable: Vec<_> = writable.iter().filter_map(|mount| mount["mountPath"].as_str()).collect();
        ensure!(writable == ["/run/podperf", "/host/sys/fs/bpf/podperf"], "{mode}: {writable:?}");
        ensure!(spec["containers"].as_sequence().map(Vec::len) == Some(1), "{mode}");
    }
    Ok(())
}

fn the_default_mode_is_reasons_which_takes_no_user_frames() -> Result<()> {
    let config = |values: &str| -> Result<Value> {
        let map = object(&template(values, &[])?, "ConfigMap")?;
        Ok(serde_yaml::from_str(map["data"]["podperf.yaml"].as_str().context("no podperf.yaml")?)?)
    };
    ensure!(template("", &[])? == template("mode: reasons", &[])?);
    let stacks = config("")?["stacks"].clone();
    ensure!(stacks["enabled"] == true && stacks["unwind"] == "none", "{stacks:?}");
    let stacks = config("mode: metrics")?["stacks"].clone();
    ensure!(stacks["enabled"] == false && stacks["unwind"].is_null(), "{stacks:?}");
    let stacks = config("{mode: profiles, http: {readers: [monitoring]}}")?["stacks"].clone();
    ensure!(stacks["enabled"] == true && stacks["unwind"].is_null(), "{stacks:?}");
    // The agent knows in which words to give advice.
    let pod = pod(&template("", &[])?)?;
    let variables = pod["spec"]["containers"][0]["env"].as_sequence().context("no variables")?.clone();
    ensure!(variables.iter().any(|it| it["name"] == "PODPERF_RUN_BY" && it["value"] == "chart"), "{variables:?}");
    Ok(())
}

/// The requests of memory are those of the table in docs/install.md: the process, stacks, and the tables of each CPU. A
/// unit test of the agent compares the sizes in the chart with the tables.
fn memory_grows_with_the_cpus_of_a_node() -> Result<()> {
    let memory = |values: &str| -> Result<(String, String)> {
        let resources = pod(&template(values, &[])?)?["spec"]["containers"][0]["resources"].clone();
        let of = |kind: &str| resources[kind]["memory"].as_str().map(str::to_owned).context("no memory");
        ensure!(resources["requests"]["cpu"] == "10m", "{resources:?}");
        Ok((of("requests")?, of("limits")?))
    };
    let expected = |request: &str, limit: &str| (request.to_owned(), limit.to_owned());
    ensure!(memory("")? == expected("128Mi", "512Mi"));
    let profiles = |config: &str| format!("{{mode: profiles, nodeCpus: 64, http: {{readers: [a]}}, config: {config}}}");
    let (tables, pointers) = (profiles("{}"), profiles("{stacks: {unwind: frame-pointers}}"));
    for (values, request, limit) in [
        ("{mode: metrics, nodeCpus: 8}", "52Mi", "512Mi"),
        ("{nodeCpus: 64}", "188Mi", "512Mi"),
        ("{nodeCpus: 256}", "611Mi", "872Mi"),
        ("{nodeCpus: 256, config: {cgroups: {max: 2048}}}", "328Mi", "512Mi"),
        // A table has a power of two of rows.
        ("{nodeCpus: 100, config: {cgroups: {max: 4097}}}", "488Mi", "697Mi"),
        ("{nodeCpus: 100, config: {cgroups: {max: 8192}}}", "488Mi", "697Mi"),
        ("{nodeCpus: 64, config: {sensors: {histograms: {enabled: true}}}}", "305Mi", "512Mi"),
        ("{nodeCpus: 64, config: {stacks: {maxSamples: 65536}}}", "224Mi", "512Mi"),
        (tables.as_str(), "227Mi", "512Mi"),
        (pointers.as_str(), "207Mi", "512Mi"),
        // A larger limit stays, and a smaller one does not.
        ("{nodeCpus: 64, resources: {limits: {memory: 2Gi}}}", "188Mi", "2Gi"),
        ("{nodeCpus: 64, resources: {limits: {memory: 1.5G}}}", "188Mi", "1.5G"),
        ("{nodeCpus: 64, resources: {limits: {memory: 100M}}}", "188Mi", "268Mi"),
    ] {
        let found = memory(values)?;
        ensure!(found == expected(request, limit), "`{values}`: {found:?}");
    }
    Ok(())
}

/// An agent without pins does not write to the node, and does not read its DaemonSet.
fn without_pins_nothing_of_the_node_is_written_to() -> Result<()> {
    for values in ["config: {restart: {pin: false}}", "config: {identity: none}"] {
        let rendered = template(values, &[])?;
        let spec = &pod(&rendered)?["spec"];
        let volumes = spec["volumes"].as_sequence().context("no volumes")?;
        let host: Vec<_> = volumes.iter().filter_map(|volume| volume["hostPath"]["path"].as_str()).collect();
        ensure!(host == ["/sys/fs/cgroup"], "{values}: {host:?}");
        ensure!(object(&rendered, "Role").is_err() && !rendered.contains("daemonSet:"), "{values}");
    }
    Ok(())
}

fn who_pins_may_ask_for_its_own_daemonset_alone() -> Result<()> {
    let rendered = template("", &[])?;
    let (role, set) = (object(&rendered, "Role")?, object(&rendered, "DaemonSet")?);
    let rules = role["rules"].as_sequence().context("no rules")?;
    ensure!(rules.len() == 1 && words(&rules[0]["verbs"]) == ["get"], "{rules:?}");
    ensure!(words(&rules[0]["resources"]) == ["daemonsets"], "{rules:?}");
    let name = set["metadata"]["name"].as_str().context("no name")?;
    ensure!(words(&rules[0]["resourceNames"]) == [name], "{rules:?}");
    let namespace = set["metadata"]["namespace"].as_str().context("no namespace")?;
    ensure!(role["metadata"]["namespace"] == namespace);
    let config = object(&rendered, "ConfigMap")?;
    let config = config["data"]["podperf.yaml"].as_str().context("no podperf.yaml")?;
    ensure!(config.contains(&format!("daemonSet: {namespace}/{name}")), "{config}");
    Ok(())
}

fn apparmor_is_an_annotation_before_kubernetes_1_30() -> Result<()> {
    let key = "container.apparmor.security.beta.kubernetes.io/podperf";
    for (values, version, field, annotation) in [
        ("{mode: profiles, http: {acceptOpenProfiles: true}}", "1.29.3", None, Some("unconfined")),
        ("{mode: profiles, http: {acceptOpenProfiles: true}}", "1.30.0", Some("Unconfined"), None),
        // The runtime's own profile applies on nodes with AppArmor. By name, it would require AppArmor on all nodes.
        ("mode: metrics", "1.29.3", None, None),
        ("mode: reasons", "1.29.3", None, None),
        ("mode: reasons", "1.30.0", None, None),
        ("securityContext: {appArmor: {type: RuntimeDefault}}", "1.29.3-gke.100", None, Some("runtime/default")),
        ("securityContext: {appArmor: {type: RuntimeDefault}}", "1.30.1-eks-1", Some("RuntimeDefault"), None),
    ] {
        let pod = pod(&template(values, &["--kube-version", version])?)?;
        let security = &pod["spec"]["containers"][0]["securityContext"];
        ensure!(security["appArmorProfile"]["type"].as_str() == field, "{values} {version}: {security:?}");
        ensure!(pod["metadata"]["annotations"][key].as_str() == annotation, "{values} {version}");
    }
    Ok(())
}

fn rbac_is_that_of_the_example_without_the_chart() -> Result<()> {
    let example = fs::read_to_string(root().join("config/rbac.yaml"))?;
    let documents = serde_yaml::Deserializer::from_str(&example).map(Value::deserialize);
    let documents: Vec<_> = documents.collect::<Result<_, _>>()?;
    let rules = documents.iter().find(|object| object["kind"] == "ClusterRole").context("no role")?;
    let rendered = template("", &[])?;
    ensure!(object(&rendered, "ClusterRole")?["rules"] == rules["rules"]);
    let (binding, account) = (object(&rendered, "ClusterRoleBinding")?, object(&rendered, "ServiceAccount")?);
    ensure!(binding["subjects"][0]["name"] == account["metadata"]["name"]);
    ensure!(binding["roleRef"]["name"] == object(&rendered, "ClusterRole")?["metadata"]["name"]);
    ensure!(pod(&rendered)?["spec"]["serviceAccountName"] == account["metadata"]["name"]);
    Ok(())
}

fn the_roles_of_reviews_are_those_of_the_example_without_the_chart() -> Result<()> {
    let example = fs::read_to_string(root().join("config/rbac-authorization.yaml"))?;
    let documents = serde_yaml::Deserializer::from_str(&example).map(Value::deserialize);
    let documents: Vec<_> = documents.collect::<Result<_, _>>()?;
    let readers = "readers: [{kind: ServiceAccount, name: a, namespace: b}]";
    let rendered = template(
        &format!(
            "{{tests: {{enabled: false}}, http: {{tls: {{secretName: x}}, authorization: {{enabled: true, {readers}}}}}}}"
        ),
        &[],
    )?;
    let rendered = objects(&rendered)?;
    for suffix in ["-authorization", "-metrics"] {
        let rules = |objects: &[Value]| {
            let role = objects.iter().find(|object| {
                object["kind"] == "ClusterRole"
                    && object["metadata"]["name"].as_str().is_some_and(|name| name.ends_with(suffix))
            });
            role.map(|role| role["rules"].clone()).with_context(|| format!("no role `{suffix}`"))
        };
        ensure!(rules(&rendered)? == rules(&documents)?, "{suffix}");
    }
    // Without authorization the chart grants no token reviews.
    ensure!(!template("", &[])?.contains("tokenreviews"));
    Ok(())
}

fn the_kubelet_is_asked_with_the_least_that_its_version_takes() -> Result<()> {
    for (version, resource) in [("1.32.9", "nodes/proxy"), ("1.33.0", "nodes/pods")] {
        let values = "config: {kubernetes: {source: kubelet}}";
        let rendered = template(values, &["--kube-version", version])?;
        let rules = object(&rendered, "ClusterRole")?["rules"].clone();
        ensure!(rules.as_sequence().map(Vec::len) == Some(1), "{rules:?}");
        ensure!(words(&rules[0]["resources"]) == [resource] && words(&rules[0]["verbs"]) == ["get"], "{rules:?}");
        ensure!(rendered.contains("fieldPath: status.hostIP"), "the agent does not know where the kubelet is");
    }
    Ok(())
}

fn who_asks_for_no_pods_has_no_token() -> Result<()> {
    let rendered = template("config: {identity: none}", &[])?;
    ensure!(pod(&rendered)?["spec"]["automountServiceAccountToken"] == false);
    let kinds: Vec<_> = objects(&rendered)?.iter().map(|object| object["kind"].clone()).collect();
    ensure!(!kinds.iter().any(|kind| kind == "ClusterRole" || kind == "ClusterRoleBinding"), "{kinds:?}");
    ensure!(pod(&template("", &[])?)?["spec"]["automountServiceAccountToken"] == true);
    Ok(())
}

fn openshift_gets_constraints_that_fit_the_pod() -> Result<()> {
    let openshift = &["--api-versions", "security.openshift.io/v1"];
    for mode in ["metrics", "reasons", "reasons, hostPID: false", "profiles"] {
        let rendered = template(&format!("{{mode: {mode}, http: {{acceptOpenProfiles: true}}}}"), openshift)?;
        let constraints = object(&rendered, "SecurityContextConstraints")?;
        let pod = pod(&rendered)?;
        let security = &pod["spec"]["containers"][0]["securityContext"];
        ensure!(constraints["allowedCapabilities"] == security["capabilities"]["add"], "{mode}");
        ensure!(constraints["allowHostPID"] == pod["spec"]["hostPID"].as_bool().unwrap_or(false), "{mode}");
        ensure!(constraints["seLinuxContext"]["seLinuxOptions"] == security["seLinuxOptions"], "{mode}");
        ensure!(security["seLinuxOptions"]["type"] == "spc_t", "{mode}");
        ensure!(constraints["allowPrivilegedContainer"] == false, "{mode}");
    }
    let elsewhere = template("", &[])?;
    ensure!(object(&elsewhere, "SecurityContextConstraints").is_err() && !elsewhere.contains("spc_t"));
    Ok(())
}

fn no_label_of_a_version_selects_pods() -> Result<()> {
    let values = "{commonLabels: {team: a}, podMonitor: {enabled: true}, networkPolicy: {enabled: true}}";
    let rendered = template(values, &[])?;
    let selector = object(&rendered, "DaemonSet")?["spec"]["selector"]["matchLabels"].clone();
    let keys: Vec<_> = selector.as_mapping().into_iter().flatten().filter_map(|(key, _)| key.as_str()).collect();
    let fixed = ["app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"];
    ensure!(keys == fixed, "an upgrade could not change them: {keys:?}");
    ensure!(object(&rendered, "PodMonitor")?["spec"]["selector"]["matchLabels"] == selector);
    ensure!(object(&rendered, "NetworkPolicy")?["spec"]["podSelector"]["matchLabels"] == selector);
    let labels = &object(&rendered, "DaemonSet")?["spec"]["template"]["metadata"]["labels"];
    for key in fixed {
        ensure!(labels[key] == selector[key], "{key}");
    }
    Ok(())
}
