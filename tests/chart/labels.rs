//! Names and labels of objects: no duplicates, none that Kubernetes rejects, and no conflicts with another release.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{suite::Test, tests};
use serde_yaml::Value;

use crate::helm::{GO, chart, helm, object, objects, said, template};

pub(crate) const TESTS: &[Test] = tests![
    no_rendering_has_a_key_twice: GO,
    labels_of_users_win_over_the_charts_but_for_the_selectors: GO,
    annotations_of_the_chart_are_not_replaced: GO,
    long_names_that_begin_alike_stay_apart: GO,
    release_names_that_look_like_numbers_or_have_dots_are_labels_and_names: GO,
    credentials_of_the_registry_come_from_both_places: GO,
    a_probe_that_is_null_is_left_out: GO,
    the_service_of_a_test_is_not_scraped: GO,
];

/// Returns the output of `helm template` under another release's name.
fn template_as(release: &str, values: &[&str]) -> Result<String> {
    let chart = chart();
    let chart = chart.to_string_lossy();
    said(&helm([&["template", release, &*chart, "--namespace", "podperf"], values].concat())?)
}

/// The values set labels in all places, with keys that the chart has as well. The parser rejects a key that is there
/// twice, as kustomize does.
fn no_rendering_has_a_key_twice() -> Result<()> {
    let labels = "{app.kubernetes.io/name: podperf, app.kubernetes.io/part-of: shop, app.kubernetes.io/version: v9, \
                  helm.sh/chart: mine, team: a}";
    let annotations = "{checksum/config: mine, prometheus.io/scrape: 'false', prometheus.io/port: '1', \
                       kubectl.kubernetes.io/default-container: other}";
    let common = format!(
        "commonLabels: {labels}, podLabels: {labels}, daemonSetLabels: {labels}, podAnnotations: {annotations}, \
         service: {{enabled: true, labels: {labels}}}, dashboards: {{configMaps: {{enabled: true, labels: {labels}}}, \
         grafanaOperator: {{enabled: true, labels: {labels}}}}}, daemonSetAnnotations: {{podperf.io/chart: mine}}"
    );
    for monitor in ["podMonitor", "serviceMonitor", "podMonitoring", "vmPodScrape", "scrapeConfig"] {
        // Managed Prometheus has its own rules.
        let rules = if monitor == "podMonitoring" {
            String::new()
        } else {
            format!(", prometheusRule: {{enabled: true, additionalLabels: {labels}}}")
        };
        let rendered = template(&format!("{{{common}{rules}, {monitor}: {{enabled: true, labels: {labels}}}}}"), &[])?;
        let objects = objects(&rendered).with_context(|| monitor.to_owned())?;
        ensure!(objects.len() > 8, "{monitor}: only {} objects", objects.len());
    }
    let annotated = format!("{{{common}, prometheusAnnotations: {{enabled: true}}}}");
    let rendered = template(&annotated, &["--kube-version", "1.29.0"])?;
    objects(&rendered)?;
    let twice = rendered.replacen("  labels:\n", "  labels:\n    team: b\n", 1);
    ensure!(objects(&twice).is_err(), "the parser takes a key twice");
    Ok(())
}

fn labels_of_users_win_over_the_charts_but_for_the_selectors() -> Result<()> {
    let values = "{commonLabels: {app.kubernetes.io/part-of: shop, helm.sh/chart: mine, team: a}, \
                  daemonSetLabels: {team: b}, podLabels: {team: c}}";
    let rendered = template(values, &[])?;
    let set = object(&rendered, "DaemonSet")?;
    let labels = &set["metadata"]["labels"];
    ensure!(labels["app.kubernetes.io/part-of"] == "shop" && labels["team"] == "b", "{labels:?}");
    ensure!(labels["helm.sh/chart"].as_str().is_some_and(|chart| chart.starts_with("podperf-")), "{labels:?}");
    let pods = &set["spec"]["template"]["metadata"]["labels"];
    ensure!(pods["team"] == "c" && pods["app.kubernetes.io/component"] == "agent", "{pods:?}");
    ensure!(object(&rendered, "ConfigMap")?["metadata"]["labels"]["team"] == "a");
    Ok(())
}

fn annotations_of_the_chart_are_not_replaced() -> Result<()> {
    let values = "{podAnnotations: {checksum/config: mine, prometheus.io/port: '1', team: a}, \
                  prometheusAnnotations: {enabled: true}}";
    let set = object(&template(values, &[])?, "DaemonSet")?;
    let annotations = &set["spec"]["template"]["metadata"]["annotations"];
    ensure!(annotations["checksum/config"] != "mine" && annotations["prometheus.io/port"] == "9799", "{annotations:?}");
    ensure!(annotations["team"] == "a", "{annotations:?}");
    Ok(())
}

fn names(rendered: &str) -> Result<BTreeSet<String>> {
    let name = |object: &Value| object["metadata"]["name"].as_str().map(str::to_owned);
    Ok(objects(rendered)?.iter().filter_map(name).collect())
}

fn long_names_that_begin_alike_stay_apart() -> Result<()> {
    let everything = [
        "--set=podMonitor.enabled=true,dashboards.configMaps.enabled=true,prometheusRule.enabled=true",
        "--set=http.tls.secretName=a,http.authorization.enabled=true,http.authorization.tokenSecret.name=b",
        "--set=networkPolicy.enabled=true,service.enabled=true",
    ];
    // Helm allows at most 53 characters. The first 47 of them are the same here.
    let start = "a-team-whose-name-goes-on-and-on-until-it-is-fortyseven"[..47].to_owned();
    let (one, other) =
        (template_as(&format!("{start}-east"), &everything)?, template_as(&format!("{start}-west"), &everything)?);
    let (one, other) = (names(&one)?, names(&other)?);
    let shared: Vec<_> = one.intersection(&other).collect();
    ensure!(shared.is_empty(), "both releases have {shared:?}");
    let long: Vec<_> = one.iter().filter(|name| name.len() > 80).collect();
    ensure!(long.is_empty(), "{long:?}");
    // A short name stays unchanged.
    ensure!(names(&template_as("podperf", &[])?)?.contains("podperf"));
    Ok(())
}

fn release_names_that_look_like_numbers_or_have_dots_are_labels_and_names() -> Result<()> {
    let rendered = template_as("a.b", &[])?;
    let set = object(&rendered, "DaemonSet")?;
    let name = set["metadata"]["name"].as_str().context("no name")?;
    ensure!(name.starts_with("a-b-podperf-") && !name.contains('.'), "{name}");
    ensure!(set["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] == "a.b");
    let rendered = template_as("123", &["--set=fullnameOverride=podperf"])?;
    let labels = object(&rendered, "DaemonSet")?["spec"]["template"]["metadata"]["labels"].clone();
    ensure!(labels["app.kubernetes.io/instance"] == "123", "{labels:?}");
    let error = template_as("123", &[]).err().context("a Service's name begins with a digit")?.to_string();
    ensure!(error.contains("fullnameOverride: `123-podperf` begins with a digit"), "{error}");
    Ok(())
}

fn credentials_of_the_registry_come_from_both_places() -> Result<()> {
    let values = "{imagePullSecrets: [{name: a}], global: {imagePullSecrets: [b, {name: c}, a]}}";
    let rendered = template(values, &[])?;
    let wanted: Value = serde_yaml::from_str("[{name: a}, {name: b}, {name: c}]")?;
    let agents = object(&rendered, "DaemonSet")?["spec"]["template"]["spec"].clone();
    let test = objects(&rendered)?.into_iter().find(|object| object["kind"] == "Pod").context("no test")?;
    for pod in [&agents, &test["spec"]] {
        ensure!(pod["imagePullSecrets"] == wanted, "{:?}", pod["imagePullSecrets"]);
    }
    Ok(())
}

fn a_probe_that_is_null_is_left_out() -> Result<()> {
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let set = object(&template(&format!("{probe}: null"), &[])?, "DaemonSet")?;
        let agent = &set["spec"]["template"]["spec"]["containers"][0];
        ensure!(agent[probe].is_null(), "{probe}: {:?}", agent[probe]);
        let left = ["startupProbe", "livenessProbe", "readinessProbe"].iter().filter(|name| !agent[**name].is_null());
        ensure!(left.count() == 2, "{probe}: {agent:?}");
    }
    Ok(())
}

/// A failed test leaves its Service.
fn the_service_of_a_test_is_not_scraped() -> Result<()> {
    let rendered = template("serviceMonitor: {enabled: true}", &[])?;
    let monitor = object(&rendered, "ServiceMonitor")?;
    ensure!(monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == "agent");
    let services: Vec<_> = objects(&rendered)?.into_iter().filter(|object| object["kind"] == "Service").collect();
    let is_of_test = |service: &&Value| service["metadata"]["name"] == "podperf-test";
    let service = services.iter().find(is_of_test).context("no Service of the test")?;
    ensure!(service["metadata"]["labels"]["app.kubernetes.io/component"] == "test", "{service:?}");
    ensure!(service["spec"]["selector"]["app.kubernetes.io/component"] == "agent", "{service:?}");
    Ok(())
}
