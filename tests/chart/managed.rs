//! Objects for monitoring systems other than the Prometheus operator: VictoriaMetrics' and Google's.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    suite::{Need, Test},
    tests,
};
use serde_yaml::Value;

use crate::helm::{GO, chart, helm, object, objects, said, template};

pub(crate) const TESTS: &[Test] = tests![
    managed_prometheus_has_the_same_rules_under_its_own_labels: &[GO[0], Need::Program("promtool")],
    managed_prometheus_knows_the_job_by_the_release: GO,
    victoria_metrics_asks_as_the_prometheus_operator_does: GO,
    the_job_of_the_targets_is_that_of_the_rules: GO,
];

fn groups(rendered: &str, kind: &str) -> Result<Vec<Value>> {
    let objects = objects(rendered)?.into_iter().filter(|object| object["kind"] == kind);
    let groups: Vec<Value> =
        objects.flat_map(|object| object["spec"]["groups"].as_sequence().cloned().unwrap_or_default()).collect();
    ensure!(groups.len() > 4, "only {} groups of {kind}", groups.len());
    Ok(groups)
}

fn rules(group: &Value) -> impl Iterator<Item = &Value> {
    group["rules"].as_sequence().into_iter().flatten()
}

fn managed_prometheus_has_the_same_rules_under_its_own_labels() -> Result<()> {
    let managed = template("podMonitoring: {enabled: true, rules: {enabled: true}}", &[])?;
    let plain = template("{prometheusRule: {enabled: true}, podMonitor: {enabled: true}}", &[])?;
    let (managed, plain) = (groups(&managed, "ClusterRules")?, groups(&plain, "PrometheusRule")?);
    ensure!(managed.len() == plain.len(), "{} groups, not {}", managed.len(), plain.len());
    let mut renamed = 0;
    for (ours, theirs) in managed.iter().zip(&plain) {
        ensure!(ours["interval"].is_string(), "managed Prometheus wants an interval: {:?}", ours["name"]);
        for (rule, original) in rules(ours).zip(rules(theirs)) {
            let (expr, was) =
                (rule["expr"].as_str().unwrap_or_default(), original["expr"].as_str().unwrap_or_default());
            ensure!(rule["record"] == original["record"] && rule["alert"] == original["alert"], "{rule:?}");
            ensure!(expr.replace("exported_namespace", "namespace") == was, "{expr}");
            for (position, _) in expr.match_indices("namespace") {
                // The label, not a part of a recorded name.
                let before = expr[..position].chars().next_back().unwrap_or(' ');
                let after = expr[position + "namespace".len()..].chars().next().unwrap_or(' ');
                let alone = !is_of_a_name(before) && !is_of_a_name(after);
                ensure!(!alone || expr[..position].ends_with('"'), "`namespace` is left in: {expr}");
            }
            renamed += expr.matches("exported_namespace").count();
            let description = rule["annotations"]["description"].as_str().unwrap_or_default();
            ensure!(!description.contains("$labels.namespace"), "{description}");
        }
    }
    ensure!(renamed > 20, "only {renamed} labels");
    let file = tempfile::Builder::new().suffix(".yaml").tempfile()?;
    let all = serde_yaml::to_string(&serde_json::json!({"groups": managed}))?;
    fs::write(file.path(), &all)?;
    said(&Command::new("promtool").args(["check", "rules"]).arg(file.path()).output()?)?;
    Ok(())
}

fn is_of_a_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_' || letter == ':'
}

fn managed_prometheus_knows_the_job_by_the_release() -> Result<()> {
    let chart = chart();
    let chart = chart.to_string_lossy();
    let values = "--set=podMonitoring.enabled=true,podMonitoring.rules.enabled=true";
    let rendered = said(&helm(["template", "other", &*chart, values])?)?;
    let name = object(&rendered, "PodMonitoring")?["metadata"]["name"].as_str().context("no name")?.to_owned();
    ensure!(name == "other-podperf", "{name}");
    let all = serde_yaml::to_string(&groups(&rendered, "ClusterRules")?)?;
    ensure!(all.contains(&format!("job=\"{name}\"")) && !all.contains("job=\"podperf\""), "{all}");
    Ok(())
}

fn victoria_metrics_asks_as_the_prometheus_operator_does() -> Result<()> {
    let common = "{enabled: true, interval: 30s, scrapeTimeout: 10s, labels: {a: b}, \
                  relabelings: [{targetLabel: cluster, replacement: one}], \
                  metricRelabelings: [{sourceLabels: [namespace], regex: a, action: drop}]}";
    let tls = "http: {tls: {secretName: a}, authorization: {enabled: true, tokenSecret: {name: b}}}";
    let ours = object(&template(&format!("{{{tls}, vmPodScrape: {common}}}"), &[])?, "VMPodScrape")?;
    let theirs = object(&template(&format!("{{{tls}, podMonitor: {common}}}"), &[])?, "PodMonitor")?;
    for key in ["selector", "namespaceSelector"] {
        ensure!(ours["spec"][key] == theirs["spec"][key] && !ours["spec"][key].is_null(), "{key}: {ours:?}");
    }
    ensure!(ours["metadata"] == theirs["metadata"]);
    let endpoint = &ours["spec"]["podMetricsEndpoints"][0];
    let original = &theirs["spec"]["podMetricsEndpoints"][0];
    for (key, name) in [
        ("port", "port"),
        ("path", "path"),
        ("scheme", "scheme"),
        ("tlsConfig", "tlsConfig"),
        ("authorization", "authorization"),
        ("honorLabels", "honorLabels"),
        ("interval", "interval"),
        ("scrapeTimeout", "scrapeTimeout"),
        ("relabelConfigs", "relabelings"),
        ("metricRelabelConfigs", "metricRelabelings"),
    ] {
        ensure!(endpoint[key] == original[name] && !endpoint[key].is_null(), "{key}: {endpoint:?}");
    }
    Ok(())
}

fn the_job_of_the_targets_is_that_of_the_rules() -> Result<()> {
    for (monitor, kind) in
        [("podMonitor", "PodMonitor"), ("scrapeConfig", "ScrapeConfig"), ("vmPodScrape", "VMPodScrape")]
    {
        let found = serde_yaml::to_string(&object(&template(&format!("{monitor}: {{enabled: true}}"), &[])?, kind)?)?;
        ensure!(found.contains("targetLabel: job\n"), "{found}");
        ensure!(found.contains("replacement: podperf\n"), "{found}");
    }
    Ok(())
}
