//! The monitoring mixin is the rules and dashboards of the chart.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{rules::files_in, suite::Test, tests};
use serde_json::Value;

use crate::helm::{GO, chart, program, said};

pub(crate) const TESTS: &[Test] = tests![
    the_mixin_has_every_rule_of_the_chart: GO,
    the_mixin_has_every_dashboard_of_the_chart: GO,
    a_dashboard_for_grafana_com_names_what_it_needs: GO,
];

/// Returns the value of a jsonnet expression about `mixin`.
fn evaluate(expression: &str) -> Result<Value> {
    let code = format!("local mixin = import 'mixin.libsonnet'; {expression}");
    let made = program("jsonnet")?.arg("--jpath").arg(chart().join("files")).args(["--exec", &code]).output()?;
    Ok(serde_json::from_str(&said(&made)?)?)
}

fn the_mixin_has_every_rule_of_the_chart() -> Result<()> {
    let by_name = |groups: &Value| -> Result<BTreeMap<String, Value>> {
        let groups = groups.as_array().context("no groups")?;
        Ok(groups.iter().map(|group| (group["name"].to_string(), group.clone())).collect())
    };
    let mut expected = BTreeMap::new();
    for file in files_in(&chart().join("files/rules"), ".yaml")? {
        let rules: Value = serde_yaml::from_str(&fs::read_to_string(file)?)?;
        expected.append(&mut by_name(&rules["groups"])?);
    }
    let found = by_name(&evaluate("mixin.prometheusRules.groups + mixin.prometheusAlerts.groups")?)?;
    ensure!(found.keys().eq(expected.keys()), "{:?}, and the chart has {:?}", found.keys(), expected.keys());
    ensure!(found == expected, "a group differs from that of the chart");
    Ok(())
}

fn the_mixin_has_every_dashboard_of_the_chart() -> Result<()> {
    let found = evaluate("mixin.grafanaDashboards")?;
    let files = files_in(&chart().join("files/dashboards"), ".json")?;
    for file in &files {
        let name = file.file_name().context("no name")?.to_string_lossy().into_owned();
        let board: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
        ensure!(found[&name] == board, "`{name}` differs from that of the chart");
    }
    let count = found.as_object().map_or(0, serde_json::Map::len);
    ensure!(count == files.len(), "{count} dashboards, and the chart has {}", files.len());
    Ok(())
}

fn a_dashboard_for_grafana_com_names_what_it_needs() -> Result<()> {
    let board = evaluate("mixin.grafanaCom['podperf-pod.json']")?;
    ensure!(board["__inputs"] == Value::Array(Vec::new()), "its data source is a variable: {}", board["__inputs"]);
    let needs = board["__requires"].as_array().context("it needs nothing")?;
    let needs: Vec<_> = needs.iter().filter_map(|need| need["id"].as_str()).collect();
    for id in ["grafana", "flamegraph", "stat", "timeseries", "prometheus", "grafana-pyroscope-datasource"] {
        ensure!(needs.contains(&id), "`{id}` is not in {needs:?}");
    }
    ensure!(!needs.contains(&"row"), "a row is no plugin");
    Ok(())
}
