//! The chart rejects combinations of valid values that cannot be meant together, and its message names the remedy.

use anyhow::{Result, bail};
use podperf_tests::{suite::Test, tests};

use crate::helm::{GO, template};

pub(crate) const TESTS: &[Test] = tests![
    values_that_cannot_be_meant_together_are_refused: GO,
    what_is_close_to_a_refusal_is_rendered: GO,
];

/// The value that the mode `profiles` requires, unless other values choose the readers.
const OPEN: &str = "http: {acceptOpenProfiles: true}";
const TLS: &str = "otlp: {tls: {secretName: x}}";
const HTTPS: &str = "config: {otlp: {endpoint: 'https://x:4317'}}";

fn values_that_cannot_be_meant_together_are_refused() -> Result<()> {
    let cases: &[(&str, &str)] = &[
        (
            "{mode: metrics, config: {stacks: {enabled: true}}}",
            "config.stacks.enabled: the mode `metrics` has no privileges",
        ),
        ("config: {stacks: {enabled: false}}", "config.stacks.enabled: the mode `reasons` would have"),
        ("config: {stacks: {unwind: tables}}", "config.stacks.unwind: the mode `reasons` has no privileges"),
        (
            "config: {sensors: {functions: {enabled: true}}, functions: [{name: a, binary: /b, symbol: c}]}",
            "config.functions: `a` is a function of a program, and the mode `reasons` has no privileges",
        ),
        (
            "{mode: profiles, http: {acceptOpenProfiles: true}, config: {sensors: {functions: {enabled: true}}, \
             functions: [{name: a, binary: /b, symbol: c}]}}",
            "config.functions: `a` is a function of a program, and the kernel lets only SYS_ADMIN",
        ),
        (
            "{mode: profiles, http: {acceptOpenProfiles: true}, config: {stacks: {unwind: none}}}",
            "config.stacks.unwind: the mode `profiles` would have",
        ),
        (
            "{mode: profiles, config: {stacks: {enabled: false}}}",
            "config.stacks.enabled: the mode `profiles` would have",
        ),
        (
            "config: {identity: none, sensors: {calls: {enabled: true, namespaces: [shop]}}}",
            "config.sensors.calls.namespaces: with config.identity: none no namespace is known",
        ),
        (
            "config: {stacks: {debuginfod: {urls: ['https://x.example']}}}",
            "config.stacks.debuginfod.urls: the mode `reasons` has no user frames",
        ),
        (&format!("{{mode: metrics, {HTTPS}}}"), "config.otlp.endpoint: the mode `metrics` has no profiles to send"),
        ("config: {otlp: {metrics: {enabled: true}}}", "config.otlp.metrics.enabled: pushing metrics needs a receiver"),
        (&format!("{{mode: profiles, {OPEN}, {TLS}}}"), "otlp.tls.secretName: certificates are for an https endpoint"),
        (
            &format!(
                "{{mode: profiles, {OPEN}, {HTTPS}, otlp: {{tls: {{secretName: x, ca: false, clientCertificate: false}}}}}}"
            ),
            "otlp.tls.secretName: nothing of the secret would be used",
        ),
        ("serviceAccount: {create: false}", "serviceAccount.name: without a service account of its own"),
        ("{hostNetwork: true, networkPolicy: {enabled: true}}", "networkPolicy.enabled: a NetworkPolicy does not hold"),
        ("{hostNetwork: true, http: {readers: [a]}}", "http.readers: a NetworkPolicy does not hold"),
        ("securityContext: {seccompProfile: {type: Localhost}}", "securityContext.seccompProfile.localhostProfile: "),
        ("securityContext: {appArmor: {type: Localhost}}", "securityContext.appArmor.localhostProfile: "),
        (
            "{mode: profiles, securityContext: {appArmor: {type: RuntimeDefault}}}",
            "securityContext.appArmor.type: the runtime's profile forbids",
        ),
        ("http: {authorization: {enabled: true}}", "http.authorization.enabled: tokens would be sent in clear text"),
        ("http: {authorization: {readers: [{kind: User, name: a}]}}", "http.authorization.readers: everybody may read"),
        (
            "config: {sensors: {functions: {enabled: true}}, server: {anyFunction: true}}",
            "config.server.anyFunction: every pod of the cluster",
        ),
        (
            "config: {server: {authorization: {audiences: [a]}}}",
            "config.server.authorization.audiences: no tokens are asked for",
        ),
        (
            "{http: {tls: {secretName: x}, authorization: {enabled: true}}, podMonitor: {enabled: true}}",
            "http.authorization.tokenSecret.name: this monitor needs",
        ),
        (
            "{http: {tls: {secretName: x}, authorization: {enabled: true}}, podMonitoring: {enabled: true}}",
            "http.authorization.enabled: podMonitoring and prometheusAnnotations show no token",
        ),
        (
            "{podMonitor: {enabled: true}, prometheusAnnotations: {enabled: true}}",
            "podMonitor.enabled, prometheusAnnotations.enabled: each would collect the same metrics",
        ),
        ("enabled: false", "enabled: `false` is read by the chart that has this one as a dependency"),
        ("podMonitor: null", "podMonitor: the values lack it"),
        ("vmPodScrape: null", "(use --reset-then-reuse-values"),
        ("clusterLabel: null", "clusterLabel: the values lack it"),
        ("config: null", "config: the values lack it"),
        ("extraEnvFrom: null", "extraEnvFrom: the values lack it"),
        ("host: {cgroupPath: null}", "host.cgroupPath: the values lack it"),
        ("http: {port: null}", "http.port: the values lack it"),
        ("http: {address: null}", "http.address: the values lack it"),
        ("http: {tls: null}", "http.tls: the values lack it"),
        ("http: {authorization: null}", "http.authorization: the values lack it"),
        ("otlp: {tls: null}", "otlp.tls: the values lack it"),
        ("securityContext: {appArmor: null}", "securityContext.appArmor: the values lack it"),
        ("securityContext: {seccompProfile: {type: null}}", "securityContext.seccompProfile.type: the values lack it"),
        ("hostNetwork: null", "hostNetwork: the values lack it"),
        ("prometheusRule: {groups: null}", "prometheusRule.groups: the values lack it"),
        ("dashboards: {configMaps: null}", "dashboards.configMaps: the values lack it"),
        (
            "dashboards: {configMaps: {folderAnnotation: null}}",
            "dashboards.configMaps.folderAnnotation: the values lack it",
        ),
        ("http: {address: 127.0.0.1}", "http.address: `127.0.0.1` is a loopback address"),
        ("http: {address: 127.1.2.3}", "http.address: `127.1.2.3` is a loopback address"),
        ("http: {address: '::1'}", "http.address: `::1` is a loopback address"),
        ("http: {address: '0:0:0:0:0:0:0:1'}", "http.address: `0:0:0:0:0:0:0:1` is a loopback address"),
        ("http: {address: '::ffff:127.0.0.1'}", "http.address: `::ffff:127.0.0.1` is a loopback address"),
        (
            "updateStrategy: {rollingUpdate: {maxSurge: 1}}",
            "updateStrategy.rollingUpdate.maxSurge: a second agent of a node cannot start",
        ),
        ("extraEnv: [{name: NODE_NAME, value: a}]", "extraEnv: the chart itself sets `NODE_NAME`"),
        ("extraEnv: [{name: PODPERF_RUN_BY, value: a}]", "extraEnv: the chart itself sets `PODPERF_RUN_BY`"),
        ("extraVolumes: [{name: run, emptyDir: {}}]", "extraVolumes: the chart itself has a volume `run`"),
        (
            "podLabels: {app.kubernetes.io/name: other}",
            "podLabels: agents are selected by the label `app.kubernetes.io/name`",
        ),
        (
            "commonLabels: {app.kubernetes.io/instance: x}",
            "commonLabels: agents are selected by the label `app.kubernetes.io/instance`",
        ),
        (
            "service: {labels: {app.kubernetes.io/component: x}}",
            "service.labels: agents are selected by the label `app.kubernetes.io/component`",
        ),
        (
            "podMonitor: {enabled: true, interval: 15s, scrapeTimeout: 30s}",
            "podMonitor.scrapeTimeout: 30s is longer than the interval of 15s",
        ),
        (
            "vmPodScrape: {enabled: true, interval: 1m, scrapeTimeout: 1m1s}",
            "vmPodScrape.scrapeTimeout: 1m1s is longer than the interval of 1m",
        ),
        (
            "{podMonitoring: {enabled: true}, prometheusRule: {enabled: true}}",
            "prometheusRule.enabled: managed Prometheus does not read PrometheusRules",
        ),
        (
            "podMonitoring: {rules: {enabled: true}}",
            "podMonitoring.rules.enabled: the rules are for what podMonitoring collects",
        ),
        (
            "{prometheusAnnotations: {enabled: true}, prometheusRule: {enabled: true}}",
            "`PodperfDown` would fire for ever (set prometheusRule.job",
        ),
        // The configuration names no receiver.
        (
            "{config: {otlp: {metrics: {enabled: true}}}, extraEnv: [{name: OTEL_EXPORTER_OTLP_TIMEOUT, value: '1'}]}",
            "config.otlp.metrics.enabled: pushing metrics needs a receiver",
        ),
        (
            "{mode: profiles, http: {acceptOpenProfiles: true}, config: {otlp: {endpoint: 'http://x:1', headers: {a: b}}}, \
             extraEnv: [{name: OTEL_EXPORTER_OTLP_HEADERS, value: c=d}]}",
            "config.otlp.headers: the variable `OTEL_EXPORTER_OTLP_HEADERS` of extraEnv says other headers",
        ),
        (
            "prometheusRule: {groups: {nobody: {enabled: false}}}",
            "prometheusRule.groups.nobody: there is no such group",
        ),
        (
            "prometheusRule: {alerts: {Nobody: {enabled: false}}}",
            "prometheusRule.alerts.Nobody: there is no such alert",
        ),
    ];
    let mut wrong = Vec::new();
    for (values, words) in cases {
        match template(values, &[]) {
            Ok(_) => wrong.push(format!("`{values}` is rendered")),
            Err(error) if error.to_string().contains(words) => {}
            Err(error) => wrong.push(format!("`{values}`: no `{words}` in: {error}")),
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n"));
    }
    Ok(())
}

fn what_is_close_to_a_refusal_is_rendered() -> Result<()> {
    for values in [
        &*format!("{{mode: profiles, {OPEN}, {HTTPS}, {TLS}}}"),
        // The mode `reasons` has profiles to send, too.
        HTTPS,
        "config: {stacks: {enabled: true, unwind: none}}",
        "config: {otlp: {endpoint: 'http://x:4317', metrics: {enabled: true}}}",
        // Only the agent knows the environment.
        "{config: {otlp: {metrics: {enabled: true}}}, extraEnv: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: 'http://x:1'}]}",
        "{config: {otlp: {metrics: {enabled: true}}}, extraArgs: ['--otlp-endpoint=http://x:1']}",
        "{config: {otlp: {metrics: {enabled: true}}}, extraArgs: [--otlp-endpoint, 'http://x:1']}",
        "{prometheusAnnotations: {enabled: true}, prometheusRule: {enabled: true, job: podperf}}",
        "{serviceAccount: {create: false}, config: {identity: none}}",
        "{serviceAccount: {create: false, name: other}}",
        "{hostNetwork: true}",
        "{http: {readers: [a]}, config: {sensors: {functions: {enabled: true}}, server: {anyFunction: true}}}",
        "securityContext: {appArmor: {type: Localhost, localhostProfile: podperf}}",
        "{enabled: true, global: {storageClass: fast, imagePullSecrets: [a, {name: b}], imageRegistry: x.test}}",
        "enabled: null",
        "global: null",
        "http: {address: 12.7.0.1}",
        "http: {address: '::'}",
        "http: {address: 'fd00::1:1'}",
        "updateStrategy: {rollingUpdate: {maxSurge: 0}}",
        "podMonitor: {enabled: true, interval: 60s, scrapeTimeout: 1m}",
        "podMonitor: {enabled: true, scrapeTimeout: 1m}",
        "podLabels: {app.kubernetes.io/name: podperf}",
        "commonLabels: {app.kubernetes.io/part-of: shop, app.kubernetes.io/version: v9}",
    ] {
        template(values, &[])?;
    }
    Ok(())
}
