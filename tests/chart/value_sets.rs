//! Sets of values from platform teams, and their expected outcomes.

/// A set of values.
pub(crate) struct Set {
    pub(crate) name: &'static str,
    pub(crate) release: &'static str,
    /// The values as YAML.
    pub(crate) values: &'static str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) outcome: Outcome,
}

/// The outcome of a set of values.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The API server accepts the rendering, and so does kustomize.
    Taken,
    /// Helm fails with these words.
    Refused(&'static str),
    /// Helm renders the values, and the API server rejects the objects with these words.
    RefusedByTheServer(&'static str),
}
use Outcome::{Refused, RefusedByTheServer, Taken};

const fn set(name: &'static str, values: &'static str, outcome: Outcome) -> Set {
    Set { name, release: "podperf", values, arguments: &[], outcome }
}

const fn of_release(release: &'static str, values: &'static str, outcome: Outcome) -> Set {
    Set { name: release, release, values, arguments: &[], outcome }
}

const fn with(name: &'static str, arguments: &'static [&'static str], values: &'static str, outcome: Outcome) -> Set {
    Set { name, release: "podperf", values, arguments, outcome }
}

const EVERYTHING: &str = r"
mode: profiles
clusterLabel: k8s_cluster
podMonitor: {enabled: true, interval: 30s, scrapeTimeout: 10s}
prometheusRule: {enabled: true}
dashboards: {configMaps: {enabled: true}, grafanaOperator: {enabled: true}}
networkPolicy: {enabled: true}
verticalPodAutoscaler: {enabled: true}
service: {enabled: true}
openshift: {scc: true}
http: {tls: {secretName: a}, authorization: {enabled: true, tokenSecret: {name: b}, readers: [{kind: Group, name: c}]}}
otlp: {tls: {secretName: d}}
securityContext:
  seccompProfile: {type: Localhost, localhostProfile: podperf.json}
  appArmor: {type: Localhost, localhostProfile: podperf}
  selinux: {enabled: true}
config:
  otlp: {endpoint: 'https://collector:4317', headers: {Authorization: Bearer token}, metrics: {enabled: true}}
";

const ANNOTATIONS: &str = r#"
podAnnotations:
  example.com/braces: "{{ .Values }} {} }}"
  example.com/quotes: "it's \"quoted\""
  example.com/lines: "one\ntwo\n"
  example.com/emoji: "🚀"
  example.com/yes: "yes"
  example.com/number: "0123"
daemonSetAnnotations: {example.com/yes: "yes", example.com/number: "0123"}
serviceAccount: {annotations: {example.com/braces: "{{ x }}"}}
service: {enabled: true, annotations: {example.com/quotes: "'"}}
"#;

const ARGO: &str = r#"
namespaceOverride: monitoring
daemonSetAnnotations: {argocd.argoproj.io/sync-wave: "1"}
podAnnotations: {argocd.argoproj.io/sync-wave: "1"}
prometheusRule: {enabled: true}
podMonitor: {enabled: true}
extraManifests:
  - |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: {{ include "podperf.fullname" . }}-extra, namespace: monitoring}
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: more, namespace: monitoring}, data: {mode: "{{ .Values.mode }}"}}
"#;

const AFFINITY: &str = "{nodeSelector: {kubernetes.io/os: null}, affinity: {nodeAffinity: \
    {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: \
    [{key: eks.amazonaws.com/compute-type, operator: NotIn, values: [fargate]}]}]}}}}";

pub(crate) const SETS: &[Set] = &[
    set("nothing said", "", Taken),
    set("a name with a dot", "nameOverride: my.app", Refused("'/nameOverride'")),
    set("a name with a blank", "nameOverride: a b", Refused("'/nameOverride'")),
    set("a full name of capitals", "fullnameOverride: Podperf_Agent", Refused("'/fullnameOverride'")),
    set("a full name that begins with a digit", "fullnameOverride: 1podperf", Refused("'/fullnameOverride'")),
    set("an account of capitals", "serviceAccount: {name: Foo_Bar}", Refused("'/serviceAccount/name'")),
    of_release("a-release-of-fifty-three-characters-as-long-as-it-may", EVERYTHING, Taken),
    of_release("a.release.with.dots", EVERYTHING, Taken),
    of_release("123", "{fullnameOverride: podperf, service: {enabled: true}}", Taken),
    of_release("1a", "", Refused("fullnameOverride: `1a-podperf` begins with a digit")),
    set(
        "IPv6",
        "{http: {address: '::'}, hostNetwork: true, config: {otlp: {endpoint: 'http://[fd00::1]:4317', metrics: {enabled: true}}}}",
        Taken,
    ),
    set("an IPv6 loopback", "http: {address: '::1'}", Refused("is a loopback address")),
    set("an IPv4 loopback", "http: {address: 127.0.0.1}", Refused("is a loopback address")),
    set("strange annotations", ANNOTATIONS, Taken),
    set(
        "a selector's label of pods",
        "podLabels: {app.kubernetes.io/name: other}",
        Refused("agents are selected by the label"),
    ),
    set(
        "a selector's label of all",
        "commonLabels: {app.kubernetes.io/instance: x}",
        Refused("agents are selected by the label"),
    ),
    set(
        "labels that the chart has, too",
        "commonLabels: {app.kubernetes.io/part-of: shop, app.kubernetes.io/version: v2}",
        Taken,
    ),
    set("an affinity in place of the selector", AFFINITY, Taken),
    set("no selector of our own", "nodeSelector: {}", Taken),
    set("the least", "{config: {identity: none, restart: {pin: false}}, tests: {enabled: false}}", Taken),
    set(
        "air-gapped",
        "{global: {imageRegistry: 'registry.test:5000/mirror'}, imagePullSecrets: [{name: a}], image: {digest: 'sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef'}}",
        Taken,
    ),
    set("as Argo CD", ARGO, Taken),
    set(
        "of an umbrella",
        "{enabled: true, global: {imagePullSecrets: [a, {name: b}], storageClass: fast, security: {}}}",
        Taken,
    ),
    set("everything", EVERYTHING, Taken),
    with("Kubernetes 1.26", &["--kube-version=1.26.0"], "", Refused("incompatible with Kubernetes")),
    with("Kubernetes 1.27", &["--kube-version=1.27.0"], EVERYTHING, Taken),
    with("Kubernetes 1.29", &["--kube-version=1.29.0"], "config: {kubernetes: {source: kubelet}}", Taken),
    with("Kubernetes 1.33", &["--kube-version=1.33.0"], "config: {kubernetes: {source: kubelet}}", Taken),
    with("Kubernetes 1.36", &["--kube-version=1.36.0"], EVERYTHING, Taken),
    with("OpenShift", &["--api-versions=security.openshift.io/v1"], "networkPolicy: {enabled: true}", Taken),
    set(
        "a timeout longer than its interval",
        "podMonitor: {enabled: true, interval: 15s, scrapeTimeout: 30s}",
        Refused("podMonitor.scrapeTimeout: 30s is longer"),
    ),
    set(
        "annotations and rules",
        "{prometheusAnnotations: {enabled: true}, prometheusRule: {enabled: true}}",
        Refused("would fire for ever"),
    ),
    set(
        "managed Prometheus and rules",
        "{podMonitoring: {enabled: true}, prometheusRule: {enabled: true}}",
        Refused("would fire for ever"),
    ),
    set("managed Prometheus and its rules", "podMonitoring: {enabled: true, rules: {enabled: true}}", Taken),
    set("VictoriaMetrics", "vmPodScrape: {enabled: true, interval: 30s}", Taken),
    set("open profiles", "mode: profiles", Refused("http.acceptOpenProfiles: ")),
    set("a startup probe of null", "startupProbe: null", Taken),
    set("all pins of the node", "host: {ownPinsOnly: false}", Taken),
    set("readers by namespace", "{mode: profiles, http: {readers: [monitoring]}}", Taken),
    set("large nodes", "nodeCpus: 512", Taken),
    set("a misspelt toleration", "tolerations: [{foo: bar}]", Refused("'/tolerations/0'")),
    set(
        "a misspelt affinity",
        "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologykey: a}]}}",
        RefusedByTheServer("topologykey"),
    ),
    set(
        "a misspelt variable",
        "extraEnv: [{name: A, valueFrom: {secretKeyRef: {nam: a, key: b}}}]",
        RefusedByTheServer("nam"),
    ),
    set(
        "a misspelt volume",
        "{extraVolumes: [{name: a, hostPath: {pth: /a}}], extraVolumeMounts: [{name: a, mountPath: /a}]}",
        RefusedByTheServer("pth"),
    ),
    set("a resource that is none", "resources: {limits: {memory: 1GiB}}", Refused("'/resources/limits/memory'")),
    set(
        "a variable of the chart's own",
        "extraEnv: [{name: NODE_NAME, value: a}]",
        Refused("extraEnv: the chart itself sets"),
    ),
    set("a variable twice", "extraEnv: [{name: A, value: a}, {name: A, value: b}]", RefusedByTheServer("duplicate")),
];
