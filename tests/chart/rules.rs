//! Rule and dashboard files reach the cluster unchanged, except for the changes that the values request.
//!
//! Most rules here are this test's own: they test how the chart renders any rules. The chart's own files have to arrive
//! as well.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    rules::files_in,
    suite::{Need, Test},
    tests,
};
use serde_yaml::Value;
use tempfile::TempDir;

use crate::helm::{GO, chart, copy_of, notes, object, objects, said, template_of};

pub(crate) const TESTS: &[Test] = tests![
    rules_arrive_as_they_are_written: GO,
    values_change_what_they_name_of_an_alert: GO,
    a_runbook_without_an_address_is_none: GO,
    thresholds_replace_the_number_before_their_mark: GO,
    a_threshold_that_is_not_there_is_refused: GO,
    groups_are_left_out_one_by_one: GO,
    a_group_that_others_need_stays_in: GO,
    numbers_that_would_come_and_go_are_refused: GO,
    the_job_of_the_agents_is_a_value: GO,
    the_label_of_clusters_is_renamed_and_recorded_names_are_not: GO,
    what_is_rendered_is_what_prometheus_takes: &[Need::Program("go"), Need::Program("promtool")],
    the_rules_of_the_chart_are_what_prometheus_takes: &[Need::Program("go"), Need::Program("promtool")],
    dashboards_arrive_as_they_are_written: GO,
    dashboards_ask_for_clusters_by_their_label: GO,
    a_chart_without_rules_and_dashboards_renders_and_says_so: GO,
];

const RULES: &str = r#"groups:
  - name: waits.rules
    interval: 1m
    rules:
      - record: cluster:waits:rate5m
        expr: sum by (cluster) (rate(podperf_container_context_switches_total[5m]))
  - name: waits.alerts
    rules:
      - alert: Waits
        expr: |
          sum by (cluster, namespace, pod) (rate(podperf_container_context_switches_total{cluster=~".+"}[5m]))
            > 0.25 # threshold share
          and on (cluster, namespace, pod)
            rate(podperf_container_oncpu_seconds_total[5m])
              > 1.5e-2 # threshold seconds
          unless on (cluster) cluster:waits:rate5m > 100
        for: 15m
        labels:
          severity: warning
        annotations:
          summary: A pod waits for CPUs.
          description: '{{ $labels.namespace }}/{{ $labels.pod }} of {{ $labels.cluster }} waits {{ $value | humanizePercentage }}.'
          runbook_url: https://example.com/runbooks/Waits
      - alert: Gone
        expr: absent(up{job="podperf"} == 1)
"#;

const DASHBOARD: &str = r#"{
  "title": "Waits",
  "uid": "podperf-waits",
  "templating": {"list": [{"name": "cluster", "query": "label_values(x, cluster)"}]},
  "panels": [{
    "targets": [{"expr": "sum by (cluster, pod) (rate(x{cluster=~\"$cluster\"}[$__rate_interval]))", "legendFormat": "{{pod}}"}],
    "transformations": [{"id": "organize", "options": {"excludeByName": {"cluster": true}}}]
  }]
}
"#;

/// Returns a copy of the chart with only these rules and this dashboard.
fn with_files() -> Result<(TempDir, PathBuf)> {
    let (directory, copy) = without_files()?;
    for (path, text) in [("rules/podperf-waits.yaml", RULES), ("dashboards/podperf-waits.json", DASHBOARD)] {
        let path = copy.join("files").join(path);
        fs::create_dir_all(path.parent().context("no parent")?)?;
        fs::write(path, text)?;
    }
    Ok((directory, copy))
}

fn without_files() -> Result<(TempDir, PathBuf)> {
    let (directory, copy) = copy_of(&chart())?;
    if copy.join("files").exists() {
        fs::remove_dir_all(copy.join("files"))?;
    }
    Ok((directory, copy))
}

/// Returns the groups, rendered with these values of `prometheusRule`. A first line contains other values.
fn groups(values: &str) -> Result<Value> {
    let (_directory, copy) = with_files()?;
    let (all, values) = values.split_once('\n').unwrap_or(("", values));
    let rendered = template_of(&copy, &format!("{all}\nprometheusRule: {{enabled: true, {values}}}"), &[])?;
    Ok(object(&rendered, "PrometheusRule")?["spec"].clone())
}

/// Returns the alert `Waits` of these groups.
fn alert(values: &str) -> Result<Value> {
    Ok(groups(values)?["groups"][1]["rules"][0].clone())
}

/// Returns the chart's files of a folder: their names without the ending, and their texts.
fn files(folder: &str, ending: &str) -> Result<Vec<(String, String)>> {
    let paths = files_in(&chart().join("files").join(folder), ending)?;
    let file = |path: &PathBuf| {
        let name = path.file_name().context("no name")?.to_string_lossy();
        Ok((name.trim_end_matches(ending).to_owned(), fs::read_to_string(path)?))
    };
    paths.iter().map(file).collect()
}

/// Returns the chart's objects of a kind, sorted by name. Each has the namespace of the release, and these labels
/// beside those of the DaemonSet.
fn arrived(values: &str, kind: &str, labels: &[(&str, &str)]) -> Result<Vec<Value>> {
    let rendered = template_of(&chart(), values, &[])?;
    let common = object(&rendered, "DaemonSet")?["metadata"]["labels"].clone();
    let mut found = objects(&rendered)?;
    found.retain(|object| object["kind"] == kind && object["data"]["podperf.yaml"].is_null());
    for object in &found {
        let metadata = &object["metadata"];
        let mut wanted = common.clone();
        for (key, value) in labels {
            wanted[*key] = (*value).into();
        }
        ensure!(metadata["namespace"] == "podperf" && metadata["labels"] == wanted, "{metadata:?}");
    }
    found.sort_by_key(|object| object["metadata"]["name"].as_str().map(str::to_owned));
    Ok(found)
}

fn rules_arrive_as_they_are_written() -> Result<()> {
    let written: Value = serde_yaml::from_str(RULES)?;
    ensure!(groups("")? == written);
    let values = "{commonLabels: {team: a}, prometheusRule: {enabled: true, additionalLabels: {release: b}}}";
    let rules = arrived(values, "PrometheusRule", &[("release", "b")])?;
    let files = files("rules", ".yaml")?;
    ensure!(rules.len() == files.len(), "{} files, {} objects", files.len(), rules.len());
    for (rule, (name, text)) in rules.iter().zip(files) {
        let written: Value = serde_yaml::from_str(&text)?;
        ensure!(rule["metadata"]["name"] == *name && rule["spec"] == written, "{name} is not as written");
    }
    Ok(())
}

fn values_change_what_they_name_of_an_alert() -> Result<()> {
    let changed = alert(
        "runbookUrl: 'https://runbooks.test/podperf/', additionalRuleLabels: {team: a, severity: info}, \
         additionalRuleAnnotations: {grafana: here}, \
         alerts: {Waits: {for: 1h, severity: critical, labels: {tier: node}}, Gone: {enabled: false}}",
    )?;
    let mut wanted = serde_yaml::from_str::<Value>(RULES)?["groups"][1]["rules"][0].clone();
    wanted["for"] = "1h".into();
    wanted["labels"] = serde_yaml::from_str("{severity: critical, team: a, tier: node}")?;
    wanted["annotations"]["runbook_url"] = "https://runbooks.test/podperf/Waits".into();
    wanted["annotations"]["grafana"] = "here".into();
    ensure!(changed == wanted, "{changed:?}");
    let rules = groups("alerts: {Gone: {enabled: false}}")?["groups"][1]["rules"].clone();
    ensure!(rules.as_sequence().map(Vec::len) == Some(1), "{rules:?}");
    Ok(())
}

fn a_runbook_without_an_address_is_none() -> Result<()> {
    let (_directory, copy) = with_files()?;
    let file = copy.join("files/rules/podperf-waits.yaml");
    fs::write(&file, RULES.replace("https://example.com/runbooks/Waits", "NO-ADDRESS/runbooks/waits.md"))?;
    for (values, wanted) in
        [("", None), (", runbookUrl: 'https://runbooks.test'", Some("https://runbooks.test/waits.md"))]
    {
        let rendered = template_of(&copy, &format!("prometheusRule: {{enabled: true{values}}}"), &[])?;
        let alert = object(&rendered, "PrometheusRule")?["spec"]["groups"][1]["rules"][0].clone();
        ensure!(alert["annotations"]["runbook_url"].as_str() == wanted, "{alert:?}");
        ensure!(alert["annotations"]["summary"].is_string(), "{alert:?}");
    }
    Ok(())
}

fn thresholds_replace_the_number_before_their_mark() -> Result<()> {
    let expression =
        |values: &str| -> Result<String> { Ok(alert(values)?["expr"].as_str().unwrap_or_default().to_owned()) };
    let plain = expression("")?;
    let share = expression("alerts: {Waits: {thresholds: {share: 0.5}}}")?;
    ensure!(share == plain.replace("0.25 # threshold share", "0.5 # threshold share"), "{share}");
    let both = expression("alerts: {Waits: {thresholds: {share: 1, seconds: 0.2}}}")?;
    let wanted = plain.replace("0.25 # threshold share", "1 # threshold share");
    ensure!(both == wanted.replace("1.5e-2 # threshold seconds", "0.2 # threshold seconds"), "{both}");
    Ok(())
}

fn a_threshold_that_is_not_there_is_refused() -> Result<()> {
    for (name, there) in [
        ("Waits: {thresholds: {shares: 1}}", "(there are: share, seconds)"),
        ("Gone: {thresholds: {x: 1}}", "(there are: none)"),
    ] {
        let error = alert(&format!("alerts: {{{name}}}")).map(drop).err().context("it is taken")?.to_string();
        ensure!(error.contains("there is no such threshold") && error.contains(there), "{error}");
    }
    // A threshold in several places is one value with one name.
    let of_chart = |name: &str| {
        let alert = format!("alerts: {{PodperfWorkloadLowIPC: {{thresholds: {{{name}: 5}}}}}}");
        template_of(&chart(), &format!("prometheusRule: {{enabled: true, {alert}}}"), &[])
    };
    let error = of_chart("cycles").map(drop).err().context("it is taken")?.to_string();
    ensure!(error.contains("(there are: cyclesPerSecond, share)"), "{error}");
    let lines = |text: &str| of_chart("cyclesPerSecond").map(|rendered| rendered.matches(text).count());
    let (changed, others) = (lines("> 5 # threshold cyclesPerSecond")?, lines("> 3e8 # threshold cyclesPerSecond")?);
    ensure!((changed, others) == (3, 3), "{changed} of LowIPC, {others} of CacheMissSurge");
    let error = alert("alerts: {Wait: {enabled: false}}").map(drop).err().context("it is taken")?.to_string();
    ensure!(error.contains("prometheusRule.alerts.Wait: there is no such alert (there are: Gone, Waits)"), "{error}");
    Ok(())
}

fn groups_are_left_out_one_by_one() -> Result<()> {
    let names = |values: &str| -> Result<Vec<String>> {
        let groups = groups(values)?["groups"].clone();
        Ok(groups
            .as_sequence()
            .into_iter()
            .flatten()
            .filter_map(|group| Some(group["name"].as_str()?.to_owned()))
            .collect())
    };
    ensure!(names("")? == ["waits.rules", "waits.alerts"]);
    ensure!(names("groups: {waits.alerts: {enabled: false}}")? == ["waits.rules"]);
    ensure!(groups("groups: {waits.rules: {interval: 4m30s}}")?["groups"][0]["interval"] == "4m30s");
    // The chart renders no object without groups.
    let (_directory, copy) = with_files()?;
    let values =
        "prometheusRule: {enabled: true, groups: {waits.rules: {enabled: false}, waits.alerts: {enabled: false}}}";
    ensure!(object(&template_of(&copy, values, &[])?, "PrometheusRule").is_err());
    Ok(())
}

/// Returns the error message for these values of `prometheusRule`. A first line contains other values.
fn refusal(values: &str) -> Result<String> {
    Ok(groups(values).map(drop).err().with_context(|| format!("`{values}` is taken"))?.to_string())
}

fn a_group_that_others_need_stays_in() -> Result<()> {
    let said = refusal("groups: {waits.rules: {enabled: false}}")?;
    ensure!(said.contains("prometheusRule.groups.waits.rules.enabled: Waits needs its numbers"), "{said}");
    groups("groups: {waits.rules: {enabled: false}}, alerts: {Waits: {enabled: false}}")?;
    // The chart's own groups that alerts need, directly and through other groups.
    for (group, by) in [("container", "PodperfContainerRunqueueWait"), ("baseline", "PodperfWorkloadLowIPC")] {
        let values =
            format!("prometheusRule: {{enabled: true, groups: {{podperf.rules.{group}: {{enabled: false}}}}}}");
        let said = template_of(&chart(), &values, &[]).map(drop).err().context(group)?.to_string();
        ensure!(said.contains(&format!("podperf.rules.{group}.enabled: {by} needs its numbers")), "{said}");
    }
    let values = "prometheusRule: {enabled: true, groups: {podperf.rules.waste: {enabled: false}}}";
    template_of(&chart(), values, &[]).map(drop)
}

fn numbers_that_would_come_and_go_are_refused() -> Result<()> {
    for interval in ["5m", "300s", "4m60s", "1h", "300000ms", "4m59s1000ms"] {
        let said = refusal(&format!("groups: {{waits.rules: {{interval: {interval}}}}}"))?;
        ensure!(said.contains("waits.rules.interval: Prometheus uses a point for five minutes"), "{said}");
    }
    // A group of alerts records nothing.
    groups("groups: {waits.alerts: {interval: 10m}}")?;
    for monitor in ["podMonitor", "serviceMonitor", "scrapeConfig"] {
        let seldom = |interval: &str| format!("{monitor}: {{enabled: true, interval: {interval}}}\n");
        let said = refusal(&seldom("121s"))?;
        ensure!(said.contains(&format!("{monitor}.interval: rates of the rules are over five minutes")), "{said}");
        groups(&seldom("2m"))?;
        template_of(&chart(), &seldom("10m"), &[])?;
    }
    Ok(())
}

fn the_job_of_the_agents_is_a_value() -> Result<()> {
    let gone = |values: &str| -> Result<Value> { Ok(groups(values)?["groups"][1]["rules"][1]["expr"].clone()) };
    ensure!(gone("")? == "absent(up{job=\"podperf\"} == 1)");
    ensure!(gone("job: kubernetes-pods")? == "absent(up{job=\"kubernetes-pods\"} == 1)");
    let rendered = template_of(&chart(), "prometheusRule: {enabled: true, job: other}", &[])?;
    ensure!(rendered.contains("up{job=\"other\"}") && !rendered.contains("job=\"podperf\""), "{rendered}");
    // YAML reads this name as a number.
    let monitor = template_of(&chart(), "{podMonitor: {enabled: true}, prometheusRule: {job: '123'}}", &[])?;
    let monitor = object(&monitor, "PodMonitor")?;
    ensure!(monitor["spec"]["podMetricsEndpoints"][0]["relabelings"][0]["replacement"] == "123", "{monitor:?}");
    Ok(())
}

fn the_label_of_clusters_is_renamed_and_recorded_names_are_not() -> Result<()> {
    let renamed = groups("clusterLabel: k8s_cluster\n")?;
    let record = &renamed["groups"][0]["rules"][0];
    ensure!(record["record"] == "cluster:waits:rate5m", "{record:?}");
    ensure!(record["expr"].as_str().unwrap_or_default().starts_with("sum by (k8s_cluster) ("), "{record:?}");
    let alert = &renamed["groups"][1]["rules"][0];
    let expression = alert["expr"].as_str().unwrap_or_default();
    let wanted =
        serde_yaml::from_str::<Value>(RULES)?["groups"][1]["rules"][0]["expr"].as_str().unwrap_or_default().to_owned();
    let wanted = wanted.replace("(cluster", "(k8s_cluster").replace("{cluster=~", "{k8s_cluster=~");
    ensure!(expression == wanted, "{expression}");
    let description = alert["annotations"]["description"].as_str().unwrap_or_default();
    ensure!(description.contains("of {{ $labels.k8s_cluster }} waits"), "{description}");
    Ok(())
}

fn check(spec: &Value) -> Result<()> {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile()?;
    fs::write(file.path(), serde_yaml::to_string(spec)?)?;
    said(&Command::new("promtool").args(["check", "rules"]).arg(file.path()).output()?)?;
    Ok(())
}

fn what_is_rendered_is_what_prometheus_takes() -> Result<()> {
    for values in ["", "clusterLabel: k8s_cluster\n", "alerts: {Waits: {thresholds: {share: 0.5, seconds: 3}}}"] {
        check(&groups(values)?)?;
    }
    let broken: Value = serde_yaml::from_str(&RULES.replace("> 0.25", "> > 0.25"))?;
    ensure!(check(&broken).is_err(), "promtool takes anything");
    Ok(())
}

fn the_rules_of_the_chart_are_what_prometheus_takes() -> Result<()> {
    for values in ["", "clusterLabel: k8s_cluster"] {
        let rendered = template_of(&chart(), &format!("prometheusRule: {{enabled: true}}\n{values}"), &[])?;
        for object in objects(&rendered)?.iter().filter(|object| object["kind"] == "PrometheusRule") {
            check(&object["spec"])?;
        }
    }
    Ok(())
}

fn dashboards_arrive_as_they_are_written() -> Result<()> {
    let (_directory, copy) = with_files()?;
    let values = "dashboards: {folder: waits, configMaps: {enabled: true}, grafanaOperator: {enabled: true}}";
    let rendered = template_of(&copy, values, &[])?;
    let written: Value = serde_yaml::from_str(DASHBOARD)?;
    let map = objects(&rendered)?.into_iter().find(|object| object["metadata"]["name"] == "podperf-dashboard-waits");
    let map = map.context("no ConfigMap")?;
    let text = map["data"]["podperf-waits.json"].as_str().context("no file")?;
    ensure!(serde_yaml::from_str::<Value>(text)? == written, "{text}");
    ensure!(map["metadata"]["labels"]["grafana_dashboard"] == "1");
    ensure!(map["metadata"]["annotations"]["grafana_folder"] == "waits");
    let dashboard = object(&rendered, "GrafanaDashboard")?;
    let text = dashboard["spec"]["json"].as_str().context("no dashboard")?;
    ensure!(serde_yaml::from_str::<Value>(text)? == written, "{text}");
    ensure!(dashboard["spec"]["folder"] == "waits" && dashboard["metadata"]["name"] == "podperf-waits");

    let values =
        "{commonLabels: {team: a}, dashboards: {configMaps: {enabled: true}, grafanaOperator: {enabled: true}}}";
    let maps = arrived(values, "ConfigMap", &[("grafana_dashboard", "1")])?;
    let dashboards = arrived(values, "GrafanaDashboard", &[])?;
    let files = files("dashboards", ".json")?;
    ensure!(maps.len() == files.len() && dashboards.len() == files.len(), "{} files", files.len());
    for ((map, dashboard), (name, text)) in maps.iter().zip(&dashboards).zip(files) {
        let (text, spec) = (text.trim(), &dashboard["spec"]);
        ensure!(map["metadata"]["name"] == name.replace("podperf-", "podperf-dashboard-"), "{name}");
        ensure!(map["data"][format!("{name}.json")] == text, "{name} is not as written");
        ensure!(dashboard["metadata"]["name"] == *name && spec["json"] == text, "{name} is not as written");
        let selector = &spec["instanceSelector"]["matchLabels"]["dashboards"];
        ensure!(spec["folder"] == "podperf" && selector == "grafana" && spec["resyncPeriod"] == "10m", "{spec:?}");
        ensure!(spec["allowCrossNamespaceImport"] == true, "{spec:?}");
    }
    Ok(())
}

fn dashboards_ask_for_clusters_by_their_label() -> Result<()> {
    let (_directory, copy) = with_files()?;
    let values = "{clusterLabel: k8s_cluster, dashboards: {grafanaOperator: {enabled: true}}}";
    let dashboard = object(&template_of(&copy, values, &[])?, "GrafanaDashboard")?;
    let renamed: Value = serde_yaml::from_str(dashboard["spec"]["json"].as_str().context("no dashboard")?)?;
    let panel = &renamed["panels"][0];
    let expression = &panel["targets"][0]["expr"];
    ensure!(
        expression == "sum by (k8s_cluster, pod) (rate(x{k8s_cluster=~\"$cluster\"}[$__rate_interval]))",
        "{expression:?}"
    );
    ensure!(panel["transformations"][0]["options"]["excludeByName"]["k8s_cluster"] == true, "{panel:?}");
    let variable = &renamed["templating"]["list"][0];
    ensure!(variable["name"] == "cluster" && variable["query"] == "label_values(x, k8s_cluster)", "{variable:?}");
    Ok(())
}

fn a_chart_without_rules_and_dashboards_renders_and_says_so() -> Result<()> {
    let (_directory, copy) = without_files()?;
    let values = "{prometheusRule: {enabled: true}, dashboards: {configMaps: {enabled: true}}}";
    ensure!(object(&template_of(&copy, values, &[])?, "PrometheusRule").is_err());
    let said = notes(&copy, values, &[])?;
    ensure!(
        said.contains("WARNING: prometheusRule.enabled") && said.contains("WARNING: dashboards are enabled"),
        "{said}"
    );
    let (_directory, copy) = with_files()?;
    ensure!(!notes(&copy, values, &[])?.contains("WARNING"));
    Ok(())
}
