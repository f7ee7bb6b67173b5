//! The rules of Grafana's dashboard-linter under their names, and our own conventions for dashboards.
//!
//! The linter is a Go program that cannot be had as a module, so its rules are checked here. `.lint` beside the
//! dashboards lists the exceptions for users of the linter itself. A real Prometheus checks the queries in the ring
//! `kube`.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    dashboards::{self, DASHBOARDS, Dashboard, Panel},
    rules::{promql, root},
    suite::Test,
    tests,
};
use serde_json::Value;

use crate::names::OF_OTHERS;

pub(crate) const TESTS: &[Test] = tests![
    dashboards_have_their_variables,
    panels_have_a_question_a_unit_and_a_data_source,
    queries_match_job_and_cluster_and_rate_counters,
    dashboards_keep_to_the_conventions,
    links_go_to_dashboards_and_variables_that_there_are,
    every_exclusion_of_the_linter_has_a_reason,
];

/// Where links to pages of the repository begin.
const PAGES: &str = "https://github.com/podperf/podperf/";
/// The units in use here, from the linter's list.
const UNITS: &[&str] = &["none", "short", "percentunit", "s", "ns", "ops", "bytes"];

/// `template-datasource-rule`, `template-job-rule`, `template-label-promql-rule`,
/// `template-on-time-change-reload-rule`.
fn dashboards_have_their_variables() -> Result<()> {
    for Dashboard { uid, variables, .. } in dashboards::read()? {
        let of = |name: &str| {
            let found = variables.iter().find(|variable| variable.name == name);
            found.map(|variable| &variable.json).with_context(|| format!("{uid} has no variable `{name}`"))
        };
        let source = of("datasource")?;
        ensure!(source["type"] == "datasource" && source["query"] == "prometheus", "{uid}: {source}");
        ensure!(source["label"] == "Data source", "{uid}: {source}");
        let job = of("job")?;
        ensure!(job["multi"] == true && job["allValue"] == ".+", "{uid}: {job}");
        of("cluster")?;
        for variable in variables.iter().filter(|variable| variable.json["type"] == "query") {
            let json = &variable.json;
            ensure!(variable.label_values.is_some(), "{uid}: `{}` asks for nothing", variable.name);
            ensure!(json["refresh"] == 2, "{uid}: `{}` is not asked for anew when the time changes", variable.name);
            ensure!(json["datasource"]["uid"] == "${datasource}", "{uid}: {json}");
            // A single cluster often has no such label.
            let all = if variable.name == "cluster" { ".*" } else { ".+" };
            ensure!(json["multi"] != true || json["allValue"] == all, "{uid}: {json}");
        }
    }
    Ok(())
}

/// `panel-datasource-rule`, `panel-title-description-rule`, `panel-units-rule`, `panel-no-targets-rule`.
fn panels_have_a_question_a_unit_and_a_data_source() -> Result<()> {
    for Dashboard { uid, panels, .. } in dashboards::read()? {
        let titles: BTreeSet<&str> = panels.iter().map(|panel| panel.title.as_str()).collect();
        ensure!(titles.len() == panels.len(), "{uid} has two panels of one title");
        for Panel { title, kind, json, queries } in panels.iter().filter(|panel| panel.kind != "text") {
            let description = json["description"].as_str().unwrap_or_default();
            ensure!(
                !title.is_empty() && description.contains(['?', ':']),
                "{uid}: `{title}` asks nothing: {description}"
            );
            let is_flame_graph = kind == "flamegraph";
            let source = if is_flame_graph { "${pyroscope}" } else { "${datasource}" };
            ensure!(json["datasource"]["uid"] == source, "{uid}: `{title}` has another data source");
            for target in json["targets"].as_array().into_iter().flatten() {
                ensure!(target["datasource"]["uid"] == source, "{uid}: `{title}` has another data source");
            }
            ensure!(is_flame_graph || !queries.is_empty(), "{uid}: `{title}` asks for nothing");
            let unit = json["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
            ensure!(UNITS.contains(&unit), "{uid}: `{title}` has the unit `{unit}`");
        }
    }
    Ok(())
}

/// `target-promql-rule` in part, `target-job-rule`, `target-rate-interval-rule`, `target-counter-agg-rule`; the cluster
/// instead of `target-instance-rule`.
fn queries_match_job_and_cluster_and_rate_counters() -> Result<()> {
    for Dashboard { uid, panels, .. } in dashboards::read()? {
        for (title, query) in panels.iter().flat_map(|panel| panel.queries.iter().map(|query| (&panel.title, query))) {
            for selector in promql::selectors(query) {
                let place = format!("{uid}: `{title}`: `{}`", selector.metric);
                ensure!(selector.matchers.contains("cluster=~\"$cluster\""), "{place} is of all clusters");
                let of_agent = !selector.metric.contains(':') && !OF_OTHERS.contains(&selector.metric.as_str());
                ensure!(!of_agent || selector.matchers.contains("job=~\"$job\""), "{place} is of all jobs");
                let is_rated =
                    selector.inside.iter().any(|name| ["rate", "irate", "increase"].contains(&name.as_str()));
                // A histogram has counters, with native and with classic buckets.
                let is_counter =
                    ["_total", "_latency_seconds", "_bucket"].iter().any(|end| selector.metric.ends_with(end));
                ensure!(is_rated == is_counter, "{place}: a counter is rated, a gauge is not");
                let range = selector.range.as_deref();
                let is_whole = range == Some("$__range") && selector.inside.iter().any(|name| name == "increase");
                ensure!(!is_rated || is_whole || range == Some("$__rate_interval"), "{place}: {range:?}");
            }
        }
    }
    Ok(())
}

/// `uneditable-dashboard`, and our own conventions.
fn dashboards_keep_to_the_conventions() -> Result<()> {
    for Dashboard { uid, json, .. } in dashboards::read()? {
        ensure!(json["editable"] == false, "{uid} can be edited, and the next release takes that back");
        ensure!(
            (39..=42).contains(&json["schemaVersion"].as_u64().unwrap_or_default()),
            "{uid}: {}",
            json["schemaVersion"]
        );
        ensure!(json["tags"] == serde_json::json!(["podperf"]), "{uid}: {}", json["tags"]);
        ensure!(json["graphTooltip"] == 1 && json["refresh"] == "1m" && json["timezone"] == "browser", "{uid}");
        let sibling = &json["links"][0];
        ensure!(sibling["includeVars"] == true && sibling["keepTime"] == true, "{uid}: {sibling}");
        let alerts = json["annotations"]["list"].as_array().into_iter().flatten();
        let alerts = alerts.filter_map(|annotation| annotation["target"]["expr"].as_str());
        ensure!(alerts.into_iter().any(|query| query.starts_with("ALERTS{")), "{uid} shows no alerts");
        let mut seen = BTreeSet::new();
        places(&json, &mut |panel| {
            ensure!(seen.insert(panel["id"].as_u64()), "{uid} has the panel {} twice", panel["id"]);
            let at = &panel["gridPos"];
            let right = at["x"].as_u64().zip(at["w"].as_u64()).map(|(x, w)| x + w);
            ensure!(right.is_some_and(|right| right <= 24), "{uid}: {} is too wide", panel["title"]);
            Ok(())
        })?;
    }
    Ok(())
}

fn places(parent: &Value, look: &mut dyn FnMut(&Value) -> Result<()>) -> Result<()> {
    for panel in parent["panels"].as_array().into_iter().flatten() {
        look(panel)?;
        places(panel, look)?;
    }
    Ok(())
}

fn links_go_to_dashboards_and_variables_that_there_are() -> Result<()> {
    let all = dashboards::read()?;
    let mut count = 0;
    for Dashboard { uid, json, variables, .. } in &all {
        let text = json.to_string();
        for link in text.split("\"url\":\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            count += 1;
            if let Some(page) = link.strip_prefix(PAGES) {
                let (_, path) = page.split_once("/main/").with_context(|| format!("{uid}: {link}"))?;
                let file = path.split('#').next().unwrap_or_default();
                ensure!(root().join(file).exists(), "{uid}: {link} leads to no file");
                continue;
            }
            ensure!(link.contains("${__url_time_range}"), "{uid}: {link} forgets the time");
            let Some(target) = link.strip_prefix("/d/") else {
                ensure!(link.starts_with("/a/grafana-pyroscope-app/"), "{uid}: {link}");
                continue;
            };
            let (to, parameters) = target.split_once('?').context("a link without variables")?;
            let to = all.iter().find(|dashboard| dashboard.uid == to).with_context(|| format!("{uid}: {link}"))?;
            for parameter in parameters.split('&') {
                let name = match parameter.strip_prefix("var-") {
                    Some(rest) => rest.split('=').next().unwrap_or_default(),
                    None => parameter.trim_start_matches("${").trim_end_matches(":queryparam}"),
                };
                let there = to.variables.iter().any(|variable| variable.name == name);
                ensure!(there || name == "__url_time_range}", "{uid}: {link}: {} has no `{name}`", to.uid);
                let here = variables.iter().any(|variable| variable.name == name);
                ensure!(here || parameter.contains("${__"), "{uid}: {link}: there is no `{name}` here");
            }
        }
    }
    ensure!(count > 10, "only {count} links");
    Ok(())
}

fn every_exclusion_of_the_linter_has_a_reason() -> Result<()> {
    let lint = fs::read_to_string(root().join(DASHBOARDS).join(".lint"))?;
    let rules: Vec<&str> = lint.split("\n  ").filter(|part| part.contains("-rule:")).collect();
    let reasons = lint.lines().filter(|line| line.trim_start().starts_with("reason: ")).count();
    ensure!(!rules.is_empty() && rules.len() == reasons, "{} exclusions, {reasons} reasons", rules.len());
    Ok(())
}
