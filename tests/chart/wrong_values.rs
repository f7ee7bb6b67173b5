//! Helm rejects invalid values before an installation, and names their key.

use anyhow::{Context as _, Result, bail, ensure};
use podperf_tests::{suite::Test, tests};
use serde_json::Value;

use crate::helm::{GO, template};

pub(crate) const TESTS: &[Test] = tests![
    wrong_values_are_refused_by_their_key: GO,
];

/// Values as YAML, their key, and a word of the message about it.
type Row = (&'static str, &'static str, &'static str);

const WRONG: &[Row] = &[
    ("mode: both", "/mode", "'metrics', 'reasons', 'profiles'"),
    ("mod: profiles", "", "'mod' not allowed"),
    ("metrics: {level: pod}", "/metrics", "below `config`"),
    ("logLevel: debug", "/logLevel", "below `config`"),
    ("config: {cgroup: {}}", "/config", "'cgroup' not allowed"),
    ("config: {listen: '0.0.0.0:1'}", "/config", "'listen' not allowed"),
    ("config: {runDir: /tmp}", "/config", "'runDir' not allowed"),
    ("config: {cgroups: {root: /sys/fs/cgroup}}", "/config/cgroups", "'root' not allowed"),
    ("config: {cgroups: {depth: deep}}", "/config/cgroups/depth", "want integer"),
    ("config: {cgroups: {max: 2}}", "/config/cgroups/max", "minimum"),
    ("config: {cgroups: {grace: 5}}", "/config/cgroups/grace", "want string"),
    ("config: {cgroups: {grace: 5 parsecs}}", "/config/cgroups/grace", "pattern"),
    ("config: {identity: auto}", "/config/identity", "'kubernetes', 'none'"),
    ("config: {kubernetes: {source: informer}}", "/config/kubernetes/source", "'watch', 'kubelet'"),
    ("config: {kubernetes: {kubeconfig: /x}}", "/config/kubernetes", "'kubeconfig' not allowed"),
    ("config: {metrics: {facts: [oncpu, ipc]}}", "/config/metrics/facts/1", "must be one of"),
    ("config: {metrics: {facts: [oncpu, oncpu]}}", "/config/metrics/facts", "are equal"),
    ("config: {metrics: {level: namespace}}", "/config/metrics/level", "must be one of"),
    ("config: {counters: {groups: [cycles]}}", "/config/counters/groups/0", "want array"),
    ("config: {server: {tls: {certFile: /x}}}", "/config/server", "'tls' not allowed"),
    ("config: {server: {authorization: {enabled: true}}}", "/config/server/authorization", "'enabled' not allowed"),
    ("config: {server: {limits: {maxPercent: 101}}}", "/config/server/limits/maxPercent", "maximum"),
    ("config: {server: {limits: {connections: 8}}}", "/config/server/limits", "'connections' not allowed"),
    (
        "http: {authorization: {readers: [{kind: Robot, name: x}]}}",
        "/http/authorization/readers/0/kind",
        "must be one of",
    ),
    ("config: {pmu: {leaveFree: 65}}", "/config/pmu/leaveFree", "maximum"),
    ("config: {overhead: {maxPercent: 101}}", "/config/overhead/maxPercent", "maximum"),
    ("config: {overhead: {maxMemory: 200m}}", "/config/overhead/maxMemory", "pattern"),
    ("config: {sensors: {lokcs: {enabled: true}}}", "/config/sensors", "'lokcs' not allowed"),
    (
        "config: {sensors: {calls: {enabled: true, namespaces: ['']}}}",
        "/config/sensors/calls/namespaces/0",
        "minLength",
    ),
    (
        "config: {sensors: {workqueues: {enabled: true, maxFunctions: 0}}}",
        "/config/sensors/workqueues/maxFunctions",
        "minimum",
    ),
    ("config: {sensors: {locks: true}}", "/config/sensors/locks", "want object"),
    ("config: {functions: [{name: a b, kernel: f}]}", "/config/functions/0/name", "pattern"),
    ("config: {functions: [{name: a, binary: /x}]}", "/config/functions/0", "oneOf"),
    ("config: {stacks: {enabled: 'yes'}}", "/config/stacks/enabled", "want boolean"),
    ("config: {stacks: {onCpuHertz: 1001}}", "/config/stacks/onCpuHertz", "maximum"),
    ("config: {stacks: {debuginfod: {urls: [x.example]}}}", "/config/stacks/debuginfod/urls/0", "pattern"),
    ("config: {stacks: {debuginfod: {urls: ['https://a:b@x']}}}", "/config/stacks/debuginfod/urls/0", "pattern"),
    ("config: {stacks: {debuginfod: {maxCache: 1GB}}}", "/config/stacks/debuginfod/maxCache", "pattern"),
    ("config: {stacks: {debuginfod: {cacheDir: /x}}}", "/config/stacks/debuginfod", "'cacheDir' not allowed"),
    ("config: {otlp: {endpoint: 'collector:4317'}}", "/config/otlp/endpoint", "pattern"),
    ("config: {otlp: {protocol: http}}", "/config/otlp/protocol", "must be one of"),
    ("config: {otlp: {preset: tempo}}", "/config/otlp/preset", "must be one of"),
    ("config: {otlp: {queue: 0}}", "/config/otlp/queue", "minimum"),
    ("config: {otlp: {headers: [authorization]}}", "/config/otlp/headers", "want object"),
    ("config: {otlp: {tls: {ca: /x}}}", "/config/otlp/tls", "'ca' not allowed"),
    ("image: podperf", "/image", "want object"),
    ("image: {tag: 1.0}", "/image/tag", "want string"),
    ("image: {digest: latest}", "/image/digest", "pattern"),
    ("image: {digest: 'sha256:abc'}", "/image/digest", "pattern"),
    ("image: {pullPolicy: Sometimes}", "/image/pullPolicy", "must be one of"),
    ("image: {repository: Podperf}", "/image/repository", "pattern"),
    ("imagePullSecrets: [registry]", "/imagePullSecrets/0", "want object"),
    ("imagePullSecrets: [{secret: registry}]", "/imagePullSecrets/0", "'secret' not allowed"),
    ("commonLabels: {team: a b}", "/commonLabels/team", "pattern"),
    ("commonLabels: {'a b': team}", "/commonLabels", "'a b' not allowed"),
    ("serviceAccount: {create: maybe}", "/serviceAccount/create", "want boolean"),
    ("rbac: {clusterAdmin: true}", "/rbac", "'clusterAdmin' not allowed"),
    ("securityContext: {privileged: true}", "/securityContext", "'privileged' not allowed"),
    ("securityContext: {runAsNonRoot: true}", "/securityContext", "'runAsNonRoot' not allowed"),
    ("securityContext: {capabilities: {add: [SYS_ADMIN]}}", "/securityContext/capabilities", "'add' not allowed"),
    ("securityContext: {appArmor: {type: runtime/default}}", "/securityContext/appArmor/type", "must be one of"),
    ("securityContext: {selinux: {enabled: maybe}}", "/securityContext/selinux/enabled", "must be one of"),
    ("openshift: {scc: 'yes'}", "/openshift/scc", "must be one of"),
    ("host: {cgroupMount: sys/fs/cgroup}", "/host/cgroupMount", "pattern"),
    ("host: {cgroupPath: /unified}", "/host/cgroupPath", "pattern"),
    ("http: {address: localhost}", "/http/address", "pattern"),
    ("http: {port: 70000}", "/http/port", "maximum"),
    ("http: {port: http}", "/http/port", "want integer"),
    ("http: {readers: [Monitoring]}", "/http/readers/0", "pattern"),
    ("nodeCpus: many", "/nodeCpus", "want integer"),
    ("config: {stacks: {unwind: nothing}}", "/config/stacks/unwind", "must be one of"),
    ("dnsPolicy: Cluster", "/dnsPolicy", "must be one of"),
    ("otlp: {tls: {secret: x}}", "/otlp/tls", "'secret' not allowed"),
    ("extraArgs: --log-level=debug", "/extraArgs", "want array"),
    ("resources: {limit: {memory: 1Gi}}", "/resources", "'limit' not allowed"),
    ("livenessProbe: {httpGet: {path: /metrics}}", "/livenessProbe", "'httpGet' not allowed"),
    ("startupProbe: {periodSeconds: 0}", "/startupProbe/periodSeconds", "minimum"),
    ("terminationGracePeriodSeconds: 1", "/terminationGracePeriodSeconds", "minimum"),
    ("updateStrategy: {type: Recreate}", "/updateStrategy/type", "must be one of"),
    (
        "updateStrategy: {rollingUpdate: {maxUnavailable: some}}",
        "/updateStrategy/rollingUpdate/maxUnavailable",
        "pattern",
    ),
    ("tolerations: {operator: Exists}", "/tolerations", "want array"),
    ("tolerations: [{foo: bar}]", "/tolerations/0", "'foo' not allowed"),
    ("tolerations: [{operator: Exist}]", "/tolerations/0/operator", "must be one of"),
    ("affinity: {nodeAfinity: {}}", "/affinity", "'nodeAfinity' not allowed"),
    (
        "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerm: []}}}",
        "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution",
        "missing property 'nodeSelectorTerms'",
    ),
    ("resources: {limits: {memory: 1 GiB}}", "/resources/limits/memory", "pattern"),
    ("extraEnv: [{nam: A, value: b}]", "/extraEnv/0", "missing property 'name'"),
    ("extraEnv: [{name: A, valueForm: {}}]", "/extraEnv/0", "'valueForm' not allowed"),
    ("extraEnv: [{name: A, valueFrom: {secretRef: {}}}]", "/extraEnv/0/valueFrom", "'secretRef' not allowed"),
    ("extraEnvFrom: [{secretKeyRef: {name: a}}]", "/extraEnvFrom/0", "'secretKeyRef' not allowed"),
    ("extraVolumes: [{name: a, hostpath: {path: /a}}]", "/extraVolumes/0", "'hostpath' not allowed"),
    ("extraVolumes: [{name: a}]", "/extraVolumes/0", "minProperties"),
    ("extraVolumeMounts: [{name: a, path: /a}]", "/extraVolumeMounts/0", "missing property 'mountPath'"),
    ("podMonitor: {relabelings: [{source_labels: [a]}]}", "/podMonitor/relabelings/0", "'source_labels' not allowed"),
    ("networkPolicy: {from: [{namespaceselector: {}}]}", "/networkPolicy/from/0", "'namespaceselector' not allowed"),
    ("networkPolicy: {from: [{ipBlock: {cidr: 10.0.0.0}}]}", "/networkPolicy/from/0/ipBlock/cidr", "pattern"),
    ("networkPolicy: {dns: {port: 53}}", "/networkPolicy/dns", "'port' not allowed"),
    ("nameOverride: a b", "/nameOverride", "pattern"),
    ("nameOverride: my.app", "/nameOverride", "pattern"),
    ("fullnameOverride: Podperf_Agent", "/fullnameOverride", "pattern"),
    ("fullnameOverride: 1podperf", "/fullnameOverride", "pattern"),
    ("serviceAccount: {name: Foo_Bar}", "/serviceAccount/name", "pattern"),
    ("enabled: 'no'", "/enabled", "want boolean"),
    ("global: {imagePullSecrets: [{secret: a}]}", "/global/imagePullSecrets/0", "missing property 'name'"),
    ("config: {otlp: {endpoint: 'https://user:password@collector:4317'}}", "/config/otlp/endpoint", "pattern"),
    ("podMonitor: true", "/podMonitor", "want object"),
    ("podMonitor: {interval: 30}", "/podMonitor/interval", "want string"),
    ("podMonitor: {honorLabels: false}", "/podMonitor", "'honorLabels' not allowed"),
    ("serviceMonitor: {scrapeTimeout: soon}", "/serviceMonitor/scrapeTimeout", "pattern"),
    ("prometheusRule: {runbookUrl: runbooks}", "/prometheusRule/runbookUrl", "pattern"),
    ("clusterLabel: k8s-cluster", "/clusterLabel", "pattern"),
    (
        "prometheusRule: {alerts: {X: {thresholds: {share: half}}}}",
        "/prometheusRule/alerts/X/thresholds/share",
        "want number",
    ),
    ("prometheusRule: {alerts: {X: {treshold: 1}}}", "/prometheusRule/alerts/X", "'treshold' not allowed"),
    ("prometheusRule: {alerts: {X: {for: 15}}}", "/prometheusRule/alerts/X/for", "want string"),
    ("prometheusRule: {groups: {x: false}}", "/prometheusRule/groups/x", "want object"),
    ("dashboards: {enabled: true}", "/dashboards", "'enabled' not allowed"),
    ("networkPolicy: {apiServerPorts: ['443']}", "/networkPolicy/apiServerPorts/0", "want integer"),
    ("verticalPodAutoscaler: {updateMode: On}", "/verticalPodAutoscaler/updateMode", "must be one of"),
    ("tests: {url: 'https://podperf:9799'}", "/tests/url", "pattern"),
    ("tests: {wait: 60}", "/tests/wait", "string"),
    ("tests: {wait: '1h30'}", "/tests/wait", "pattern"),
    ("extraManifests: {kind: ConfigMap}", "/extraManifests", "want array"),
];

fn wrong_values_are_refused_by_their_key() -> Result<()> {
    let mut wrong = Vec::new();
    for (values, rows) in together()? {
        let message = template(&values.to_string(), &[]).err().with_context(|| format!("`{values}` is rendered"))?;
        let message = message.to_string();
        for (alone, key, reason) in rows {
            let told = format!("at '{key}': ");
            if !message.lines().any(|line| line.contains(&told) && line.contains(reason)) {
                wrong.push(format!("`{alone}`: no `{key}` with `{reason}` in: {message}"));
            }
        }
    }
    if !wrong.is_empty() {
        bail!("{} of {}:\n{}", wrong.len(), WRONG.len(), wrong.join("\n"));
    }
    // This check shows that the chart does not reject all values.
    ensure!(template("{mode: profiles, http: {acceptOpenProfiles: true}}", &[])?.contains("kind: DaemonSet"));
    Ok(())
}

/// Returns sets of rows, each with the values of all its rows. Helm has a line for each key, so one run shows a set. A set
/// has no key twice, and no value in the place of another.
fn together() -> Result<Vec<(Value, Vec<Row>)>> {
    let mut sets: Vec<(Value, Vec<Row>)> = Vec::new();
    for &row in WRONG {
        let values: Value = serde_yaml::from_str(row.0)?;
        let fits =
            |(all, rows): &&mut (Value, Vec<Row>)| rows.iter().all(|other| other.1 != row.1) && are_apart(all, &values);
        if let Some((all, rows)) = sets.iter_mut().find(fits) {
            merge(all, values);
            rows.push(row);
        } else {
            sets.push((values, vec![row]));
        }
    }
    Ok(sets)
}

fn are_apart(all: &Value, more: &Value) -> bool {
    let (Some(all), Some(more)) = (all.as_object(), more.as_object()) else { return false };
    more.iter().all(|(key, value)| all.get(key).is_none_or(|there| are_apart(there, value)))
}

/// Merges values that are apart.
fn merge(all: &mut Value, more: Value) {
    let (Value::Object(all), Value::Object(more)) = (all, more) else { return };
    for (key, value) in more {
        match all.get_mut(&key) {
            Some(there) => merge(there, value),
            None => drop(all.insert(key, value)),
        }
    }
}
