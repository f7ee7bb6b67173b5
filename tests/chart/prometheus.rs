//! `config/prometheus.yaml`, for a Prometheus without the operator, requests the same as the chart's monitors.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    prometheus::Version,
    suite::{Test, tell},
    tests,
};
use serde_yaml::{Mapping, Value};

use crate::helm::{GO, object, root, template};

pub(crate) const TESTS: &[Test] = tests![
    the_example_for_prometheus_asks_as_the_charts_monitors_do: GO,
    promtool_takes_the_example_and_its_rules: Version::TWO => || the_example_is_taken(Version::Two),
    #[rings] promtool_of_prometheus_3_takes_the_example_and_its_rules: Version::THREE => || the_example_is_taken(Version::Three),
];

const EXAMPLE: &str = "config/prometheus.yaml";

fn example() -> Result<Value> {
    Ok(serde_yaml::from_str(&fs::read_to_string(root().join(EXAMPLE))?)?)
}

fn the_example_for_prometheus_asks_as_the_charts_monitors_do() -> Result<()> {
    let job = example()?["scrape_configs"][0].clone();
    let rendered = template("scrapeConfig: {enabled: true}", &[])?;
    let monitor = object(&rendered, "ScrapeConfig")?["spec"].clone();
    ensure!(job["honor_labels"] == monitor["honorLabels"], "{job:?}");
    ensure!(snake_case(&monitor["relabelings"])? == job["relabel_configs"], "not as {:?}", monitor["relabelings"]);

    let (ours, theirs) = (&job["kubernetes_sd_configs"][0], &monitor["kubernetesSDConfigs"][0]);
    ensure!(ours["namespaces"]["names"] == theirs["namespaces"]["names"], "{ours:?}");
    ensure!(ours["selectors"][0]["label"] == theirs["selectors"][0]["label"], "{ours:?}");

    // The example contains the part that all monitors share, and its selector finds the pods.
    let monitor = object(&template("podMonitor: {enabled: true}", &[])?, "PodMonitor")?["spec"].clone();
    let endpoint = &monitor["podMetricsEndpoints"][0];
    let shared = snake_case(&endpoint["relabelings"])?;
    let all = job["relabel_configs"].as_sequence().context("no relabelings")?;
    ensure!(shared.as_sequence().is_some_and(|shared| all.ends_with(shared)), "not as {shared:?}");
    ensure!(all[0]["regex"] == endpoint["port"], "not the port {:?}", endpoint["port"]);
    let labels = object(&rendered, "DaemonSet")?["spec"]["template"]["metadata"]["labels"].clone();
    let selector = ours["selectors"][0]["label"].as_str().context("no selector")?;
    for (label, value) in selector.split(',').filter_map(|pair| pair.split_once('=')) {
        ensure!(labels[label] == value, "the pods have `{label}` {:?}", labels[label]);
    }
    Ok(())
}

/// Converts keys to the form of Prometheus' own file: the operator's are `sourceLabels` and similar.
fn snake_case(relabelings: &Value) -> Result<Value> {
    let mut all = Vec::new();
    for relabeling in relabelings.as_sequence().context("no relabelings")? {
        let mut renamed = Mapping::new();
        for (key, value) in relabeling.as_mapping().context("no relabeling")? {
            let key = key.as_str().context("no key")?;
            let words = key.replace("Labels", "_labels").replace("Label", "_label");
            renamed.insert(words.into(), value.clone());
        }
        all.push(Value::Mapping(renamed));
    }
    Ok(Value::Sequence(all))
}

/// promtool checks the unchanged file if it knows Kubernetes' service discovery. Debian's does not, and gets the file
/// without it.
fn the_example_is_taken(version: Version) -> Result<()> {
    let promtool = version.program("promtool")?;
    let check = |file: &std::path::Path| -> Result<(bool, String)> {
        let output = Command::new(&promtool).args(["check", "config"]).arg(file).output()?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        Ok((output.status.success(), said))
    };
    let (mut taken, mut says) = check(&root().join(EXAMPLE))?;
    if version == Version::Two && says.contains("field kubernetes_sd_configs not found") {
        tell("this promtool was built without Kubernetes: the example is checked without its `kubernetes_sd_configs`");
        let mut example = example()?;
        let job = example["scrape_configs"][0].as_mapping_mut().context("no job")?;
        job.remove("kubernetes_sd_configs").context("no discovery")?;
        // The rule files are in another place.
        let rules = example["rule_files"][0].as_str().context("no rules")?;
        let rules = root().join("config").join(rules).display().to_string();
        example["rule_files"][0] = rules.into();
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), serde_yaml::to_string(&example)?)?;
        (taken, says) = check(file.path())?;
    }
    ensure!(taken, "{says}");
    let files = fs::read_dir(root().join("charts/podperf/files/rules"))?.count();
    ensure!(says.contains(&format!("{files} rule files found")), "not {files} files of rules: {says}");
    Ok(())
}
