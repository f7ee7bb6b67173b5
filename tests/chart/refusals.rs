//! Values that are each fine and cannot be meant together are refused in words, with the way out.

use anyhow::{Result, bail};
use podperf_tests::suite::Test;

use crate::helm::{GO, template};

#[rustfmt::skip]
pub(crate) const TESTS: &[Test] = &[
    ("values_that_cannot_be_meant_together_are_refused", GO, values_that_cannot_be_meant_together_are_refused),
    ("what_is_close_to_a_refusal_is_rendered", GO, what_is_close_to_a_refusal_is_rendered),
];

const TLS: &str = "otlp: {tls: {secretName: x}}";
const HTTPS: &str = "config: {otlp: {endpoint: 'https://x:4317'}}";

fn values_that_cannot_be_meant_together_are_refused() -> Result<()> {
    let cases: &[(&str, &str)] = &[
        ("config: {stacks: {enabled: true}}", "config.stacks.enabled: the mode `metrics` has no privileges"),
        (
            "{mode: profiles, config: {stacks: {enabled: false}}}",
            "config.stacks.enabled: the mode `profiles` would have",
        ),
        ("{mode: profiles, config: {facts: {enabled: false}}}", "config.facts.enabled: the mode `profiles` needs"),
        (HTTPS, "config.otlp.endpoint: the mode `metrics` has no profiles to send"),
        ("config: {otlp: {metrics: {enabled: true}}}", "config.otlp.metrics.enabled: pushing metrics needs a receiver"),
        (&format!("{{mode: profiles, {TLS}}}"), "otlp.tls.secretName: certificates are for an https endpoint"),
        (
            &format!(
                "{{mode: profiles, {HTTPS}, otlp: {{tls: {{secretName: x, ca: false, clientCertificate: false}}}}}}"
            ),
            "otlp.tls.secretName: nothing of the secret would be used",
        ),
        ("serviceAccount: {create: false}", "serviceAccount.name: without a service account of its own"),
        ("{hostNetwork: true, networkPolicy: {enabled: true}}", "networkPolicy.enabled: a NetworkPolicy does not hold"),
        ("securityContext: {seccompProfile: {type: Localhost}}", "securityContext.seccompProfile.localhostProfile: "),
        ("securityContext: {appArmor: {type: Localhost}}", "securityContext.appArmor.localhostProfile: "),
        (
            "{mode: profiles, securityContext: {appArmor: {type: RuntimeDefault}}}",
            "securityContext.appArmor.type: the runtime's profile forbids",
        ),
        ("http: {authorization: {enabled: true}}", "http.authorization.enabled: tokens would be sent in clear text"),
        ("http: {authorization: {readers: [{kind: User, name: a}]}}", "http.authorization.readers: everybody may read"),
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
        &*format!("{{mode: profiles, {HTTPS}, {TLS}}}"),
        "config: {otlp: {endpoint: 'http://x:4317', metrics: {enabled: true}}}",
        // What the environment says is known to the agent only.
        "{config: {otlp: {metrics: {enabled: true}}}, extraEnv: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: 'http://x:1'}]}",
        "{serviceAccount: {create: false}, config: {identity: none}}",
        "{serviceAccount: {create: false, name: other}}",
        "{hostNetwork: true}",
        "securityContext: {appArmor: {type: Localhost, localhostProfile: podperf}}",
    ] {
        template(values, &[])?;
    }
    Ok(())
}
