//! Checks of dashboards without Grafana: each panel explains why it may be empty, Prometheus parses each query, and
//! panels do not overlap.
//!
//! `make dashboards` checks Grafana's own types and needs a network.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    dashboards::{self, Dashboard, Panel},
    rules::{promql, root},
    suite::{Need, Test},
    tests,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::promtool::promtool;

pub(crate) const TESTS: &[Test] = tests![
    every_panel_says_why_it_may_be_empty,
    every_board_begins_with_how_to_read_it,
    prometheus_parses_every_query_of_the_dashboards: &[Need::Program("promtool")],
    tables_of_several_queries_have_rows_without_names,
    links_of_tables_take_columns_that_are_shown,
    panels_do_not_lie_on_each_other,
    every_query_for_containers_asks_for_whole_pods_too,
    rows_outside_of_containers_have_a_name_in_legends,
    cadvisor_is_asked_for_containers_alone,
    time_a_second_is_in_cores_or_threads,
    workloads_are_joined_by_the_recorded_series,
    every_board_can_show_all_clusters,
    every_variable_of_a_query_is_one_of_its_board,
    annotations_show_alerts_versions_and_rollouts,
    the_page_of_dashboards_names_every_board,
];

/// The longest text, in characters, that a stat panel of four columns shows in a readable size.
const STAT_TEXT: usize = 28;
/// Values of variables. `$node` and similar ones are names, `$job` and `$cluster` are regular expressions.
const VALUES: [(&str, &str); 9] = [
    ("__rate_interval", "5m"),
    ("__range", "3h"),
    ("job", ".+"),
    ("cluster", ".*"),
    ("namespace", "shop"),
    ("workload", "web"),
    ("node", "n1"),
    ("pod", "web-1"),
    ("pyroscope", "p"),
];

fn panels() -> Result<Vec<(String, Panel)>> {
    let of_board =
        |board: Dashboard| board.panels.into_iter().map(move |panel| (board.uid.clone(), panel)).collect::<Vec<_>>();
    Ok(dashboards::read()?.into_iter().flat_map(of_board).collect())
}

fn queries() -> Result<Vec<(String, String)>> {
    let place = |uid: &str, title: &str| format!("{uid}: `{title}`");
    let of_panel = |(uid, panel): (String, Panel)| {
        let place = place(&uid, &panel.title);
        panel.queries.into_iter().map(move |query| (place.clone(), query))
    };
    let mut found: Vec<_> = panels()?.into_iter().flat_map(of_panel).collect();
    for board in dashboards::read()? {
        for (name, query) in annotations(&board) {
            found.push((place(&board.uid, &name), query));
        }
    }
    Ok(found)
}

/// Returns the annotations of a dashboard: name and query.
fn annotations(board: &Dashboard) -> Vec<(String, String)> {
    let list = board.json["annotations"]["list"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    list.map(|annotation| (text(&annotation["name"]), text(&annotation["target"]["expr"]))).collect()
}

fn every_panel_says_why_it_may_be_empty() -> Result<()> {
    for (uid, panel) in panels()?.into_iter().filter(|(_, panel)| panel.kind != "text") {
        let says = panel.json["fieldConfig"]["defaults"]["noValue"].as_str().unwrap_or_default();
        let place = format!("{uid}: `{}`", panel.title);
        ensure!(!says.is_empty() && !says.eq_ignore_ascii_case("no data"), "{place} is empty without a word");
        ensure!(panel.kind != "stat" || says.len() <= STAT_TEXT, "{place}: `{says}` is too long for a stat");
        let needs_stacks = panel.queries.iter().any(|query| {
            query.contains("podperf_container_wait_seconds_total") || query.contains("podperf_pod_wait_seconds_total")
        });
        ensure!(!needs_stacks || says.contains("`mode: reasons`"), "{place} needs stacks, and says `{says}`");
        // A table fills its empty cells with the text, too.
        let short = panel.json["fieldConfig"]["overrides"].as_array().into_iter().flatten().any(|rule| {
            let properties = rule["properties"].as_array().into_iter().flatten();
            properties.into_iter().any(|property| property["id"] == "noValue" && property["value"] == "-")
        });
        ensure!(panel.kind != "table" || short, "{place} has a long text in each empty cell");
    }
    Ok(())
}

fn every_board_begins_with_how_to_read_it() -> Result<()> {
    for Dashboard { uid, panels, .. } in dashboards::read()? {
        let first = panels.first().context("a board without panels")?;
        ensure!(first.kind == "text" && first.title == "How to read this board", "{uid} begins with `{}`", first.title);
        let content = first.json["options"]["content"].as_str().unwrap_or_default();
        ensure!(content.contains("**Question:") && content.contains("**Units.**"), "{uid}: {content}");
    }
    Ok(())
}

/// Returns a query as Grafana sends it.
fn substituted(query: &str) -> Result<String> {
    let mut values = VALUES;
    // Longer names come first, because one name may begin with another.
    values.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    let text = values.iter().fold(query.to_owned(), |text, (name, value)| text.replace(&format!("${name}"), value));
    ensure!(!text.contains('$'), "`$` in `{text}` is no variable");
    Ok(text)
}

fn prometheus_parses_every_query_of_the_dashboards() -> Result<()> {
    let queries = queries()?;
    let rules = queries.iter().enumerate().map(|(index, (place, query))| {
        Ok(json!({"record": format!("query:{index}"), "labels": {"place": place}, "expr": substituted(query)?}))
    });
    let rules: Vec<Value> = rules.collect::<Result<_>>()?;
    ensure!(rules.len() > 200, "only {} queries", rules.len());
    let directory = TempDir::new()?;
    let file = directory.path().join("queries.yaml");
    fs::write(&file, json!({"groups": [{"name": "dashboards", "rules": rules}]}).to_string())?;
    promtool(&["check", "rules"], vec![file])
}

/// The names of recorded series are labels of a table's rows. A table does not merge rows with two names.
fn tables_of_several_queries_have_rows_without_names() -> Result<()> {
    for (uid, panel) in panels()?.into_iter().filter(|(_, panel)| panel.kind == "table" && panel.queries.len() > 1) {
        for query in &panel.queries {
            let nameless = ["max", "min", "sum", "avg", "count", "topk(25, max", "topk(10, max"];
            let aggregated = nameless.iter().any(|function| query.starts_with(&format!("{function} by (")));
            ensure!(aggregated, "{uid}: `{}` keeps the name of a series: {query}", panel.title);
        }
    }
    Ok(())
}

/// A link uses the columns of its row. A hidden column has no value.
fn links_of_tables_take_columns_that_are_shown() -> Result<()> {
    let mut count = 0;
    for (uid, panel) in panels()?.into_iter().filter(|(_, panel)| panel.kind == "table") {
        let steps = panel.json["transformations"].as_array().into_iter().flatten();
        let organize = steps.into_iter().find(|step| step["id"] == "organize").context("a table in no order")?;
        let renamed = organize["options"]["renameByName"].as_object().context("a table without names")?;
        let hidden = |source: &str| organize["options"]["excludeByName"][source] == true;
        let shown: BTreeSet<&str> =
            renamed.iter().filter(|(source, _)| !hidden(source)).filter_map(|(_, name)| name.as_str()).collect();
        for part in panel.json["fieldConfig"].to_string().split("${__data.fields.").skip(1) {
            count += 1;
            let name = part.split('}').next().unwrap_or_default();
            ensure!(shown.contains(name), "{uid}: a link of `{}` takes `{name}`, which is not shown", panel.title);
        }
    }
    ensure!(count > 20, "only {count} columns in links");
    Ok(())
}

fn panels_do_not_lie_on_each_other() -> Result<()> {
    for Dashboard { uid, json, .. } in dashboards::read()? {
        let all: Vec<&Value> = json["panels"].as_array().into_iter().flatten().collect();
        no_overlap(&uid, &all)?;
        for row in all {
            no_overlap(&uid, &row["panels"].as_array().into_iter().flatten().collect::<Vec<_>>())?;
        }
    }
    Ok(())
}

fn no_overlap(uid: &str, panels: &[&Value]) -> Result<()> {
    let mut taken = BTreeSet::new();
    for panel in panels {
        let side = |name: &str| panel["gridPos"][name].as_u64().context("a panel without a place");
        let (x, y, w, h) = (side("x")?, side("y")?, side("w")?, side("h")?);
        for place in (y..y + h).flat_map(|y| (x..x + w).map(move |x| (x, y))) {
            ensure!(taken.insert(place), "{uid}: `{}` lies on another panel", panel["title"]);
        }
    }
    Ok(())
}

/// With `metrics.level: pod` there are no series of containers.
fn every_query_for_containers_asks_for_whole_pods_too() -> Result<()> {
    for (place, query) in queries()? {
        let names: BTreeSet<String> = promql::selectors(&query).into_iter().map(|selector| selector.metric).collect();
        for name in names.iter().filter(|name| name.starts_with("podperf_container_")) {
            let only_of_containers = ["podperf_container_info"].contains(&name.as_str());
            let twin = name.replace("podperf_container_", "podperf_pod_");
            ensure!(only_of_containers || names.contains(&twin), "{place} asks for `{name}` and not for `{twin}`");
        }
    }
    Ok(())
}

/// The row with `container=""` is the rest of a pod. With `metrics.level: pod` it is the whole pod.
fn rows_outside_of_containers_have_a_name_in_legends() -> Result<()> {
    for (place, query) in queries()? {
        let by_container = query.contains("by (container") || query.contains("pod, container)");
        let raw = query.contains("podperf_container_") && query.contains("_total");
        let named = query.contains("\"(outside containers)\"") && query.contains("\"(whole pod)\"");
        ensure!(!(by_container && raw) || named, "{place} has a row without a name: {query}");
    }
    Ok(())
}

/// cAdvisor has a row for the pod and rows for its containers, and both have the same periods.
fn cadvisor_is_asked_for_containers_alone() -> Result<()> {
    let mut count = 0;
    for (place, query) in queries()? {
        for selector in promql::selectors(&query).iter().filter(|selector| selector.metric.starts_with("container_")) {
            count += 1;
            ensure!(selector.matchers.contains("container!=\"\""), "{place} adds a pod to its containers: {query}");
        }
    }
    ensure!(count >= 3, "only {count} queries for cAdvisor");
    Ok(())
}

/// On a time axis, a quarter of a core would be "250 ms".
fn time_a_second_is_in_cores_or_threads() -> Result<()> {
    for (uid, panel) in panels()? {
        let unit = panel.json["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
        let is_rate = |name: &str| name.ends_with("seconds_total") || name.contains("_seconds:rate");
        let selectors: Vec<_> = panel.queries.iter().flat_map(|query| promql::selectors(query)).collect();
        let all_rates = !selectors.is_empty() && selectors.iter().all(|selector| is_rate(&selector.metric));
        ensure!(!(all_rates && unit == "s"), "{uid}: `{}` shows cores or threads in seconds", panel.title);
    }
    Ok(())
}

fn workloads_are_joined_by_the_recorded_series() -> Result<()> {
    for (place, query) in queries()? {
        let joined = query.contains("group_left (workload") && query.contains("podperf_pod_info");
        ensure!(!joined, "{place} joins `podperf_pod_info`, which a failed scrape takes away");
    }
    Ok(())
}

fn every_board_can_show_all_clusters() -> Result<()> {
    for Dashboard { uid, variables, .. } in dashboards::read()? {
        let cluster = variables.iter().find(|variable| variable.name == "cluster").context("no variable `cluster`")?;
        let (all, value) = (&cluster.json["includeAll"], &cluster.json["allValue"]);
        // Not `.+`: a single cluster often has no such label.
        ensure!(*all == true && value == ".*" && cluster.json["multi"] == true, "{uid}: {}", cluster.json);
    }
    Ok(())
}

fn every_variable_of_a_query_is_one_of_its_board() -> Result<()> {
    for board in dashboards::read()? {
        let known: BTreeSet<&str> = board.variables.iter().map(|variable| variable.name.as_str()).collect();
        let of_panels = board.panels.iter().flat_map(|panel| panel.queries.iter().cloned());
        for query in of_panels.chain(annotations(&board).into_iter().map(|(_, query)| query)) {
            for part in query.split('$').skip(1) {
                let name: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                ensure!(name.starts_with("__") || known.contains(&*name), "{}: `${name}` in `{query}`", board.uid);
            }
        }
    }
    Ok(())
}

fn annotations_show_alerts_versions_and_rollouts() -> Result<()> {
    for board in dashboards::read()? {
        let list = annotations(&board);
        let has = |name: &str| list.iter().find(|(known, _)| known == name).map(|(_, query)| query.as_str());
        let uid = &board.uid;
        ensure!(has("Alerts").is_some_and(|query| query.starts_with("ALERTS{")), "{uid} shows no alerts");
        let versions = has("Agent versions").with_context(|| format!("{uid} shows no versions"))?;
        // `changes` of a series that is always 1 is never above 0.
        ensure!(!versions.contains("changes(") && versions.contains("unless"), "{uid}: {versions}");
        let of_team = board.variables.iter().any(|variable| variable.name == "namespace");
        let shows = has("Rollouts").is_some_and(|query| query.contains("podperf_container_info"));
        ensure!(shows == of_team, "{uid}: rollouts belong to boards of a namespace, and to those alone");
    }
    Ok(())
}

fn the_page_of_dashboards_names_every_board() -> Result<()> {
    let page = fs::read_to_string(root().join("docs/dashboards.md"))?;
    for Dashboard { uid, json, .. } in dashboards::read()? {
        let title = json["title"].as_str().unwrap_or_default().trim_start_matches("Podperf / ");
        ensure!(page.contains(&format!("## {title}\n")), "docs/dashboards.md has no section on {title}");
        ensure!(page.contains(&format!("{uid}.json")), "docs/dashboards.md does not name {uid}.json");
    }
    Ok(())
}
