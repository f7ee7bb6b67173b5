//! Dashboards look alike, and like the agent's pages: colours, verdicts, legends, texts, and the place of panels that
//! need hardware counters.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    dashboards::{self, Dashboard, Panel},
    rules::{RULES, promql, root},
    suite::Test,
    tests,
};
use serde_json::Value;

pub(crate) const TESTS: &[Test] = tests![
    reasons_have_the_colours_of_the_agents_pages,
    verdicts_have_a_colour_a_sentence_and_a_place_on_the_page_of_patterns,
    the_first_table_is_of_lost_time_and_needs_no_counters,
    panels_of_counters_are_in_folded_rows,
    marks_of_alerts_are_of_the_boards_own_subject,
    legends_take_at_most_a_third,
    texts_have_three_rows,
];

/// The file with the colours of the agent's flame graphs.
const PALETTE: &str = "agent/src/export/flamegraph/palette.rs";
/// Reasons that are grey on boards, which have no judgements: most of these waits are idleness, or nothing is known.
const GREY: [&str; 3] = ["poll", "sleep", "unknown"];
/// The page that a verdict leads to, with one anchor for each.
const VERDICTS: &str = "docs/patterns.md";
const ANCHOR: &str = "https://github.com/podperf/podperf/blob/main/docs/patterns.md#verdict-${__value.raw}";
/// The longest paragraph, in characters, that takes two lines of a board 1,900 pixels wide.
const PARAGRAPH: usize = 270;

/// Returns the colour of each reason of a wait on a white page.
fn palette() -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(root().join(PALETTE))?;
    let rows = text.lines().filter_map(|line| line.trim().strip_prefix("WaitReason::")?.split_once("=> Colour(\""));
    let colours = rows.map(|(_, row)| {
        let mut parts = row.split('"');
        let (name, colour) = (parts.next(), parts.nth(1));
        Ok((name.context("no name")?.to_owned(), colour.context("no colour")?.to_owned()))
    });
    let colours: BTreeMap<String, String> = colours.collect::<Result<_>>()?;
    ensure!(colours.len() > 10, "only {} colours in {PALETTE}", colours.len());
    Ok(colours)
}

/// Returns the verdicts of the recording rule.
pub(crate) fn verdicts() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(root().join(RULES).join("podperf-rules.yaml"))?;
    let parts = text.split("\"verdict\", \"").skip(1);
    let found: BTreeSet<String> = parts.filter_map(|part| Some(part.split('"').next()?.to_owned())).collect();
    ensure!(found.len() > 4, "only the verdicts {found:?}");
    Ok(found)
}

/// Returns the values of a property in the overrides of a panel, by the name of the field or series.
fn overrides<'a>(panel: &'a Panel, property: &str) -> BTreeMap<&'a str, &'a Value> {
    let mut found = BTreeMap::new();
    for rule in panel.json["fieldConfig"]["overrides"].as_array().into_iter().flatten() {
        for set in rule["properties"].as_array().into_iter().flatten().filter(|set| set["id"] == property) {
            found.insert(rule["matcher"]["options"].as_str().unwrap_or_default(), &set["value"]);
        }
    }
    found
}

/// Returns true if red, green and blue of `#rrggbb` are nearly the same.
fn is_grey(colour: &str) -> bool {
    let Ok(colour) = u32::from_str_radix(colour.trim_start_matches('#'), 16) else { return false };
    let [_, channels @ ..] = colour.to_be_bytes();
    let (least, most) = (channels.iter().min(), channels.iter().max());
    least.zip(most).is_some_and(|(least, most)| most - least <= 16)
}

fn panels() -> Result<Vec<(String, Panel)>> {
    let of_board =
        |board: Dashboard| board.panels.into_iter().map(move |panel| (board.uid.clone(), panel)).collect::<Vec<_>>();
    Ok(dashboards::read()?.into_iter().flat_map(of_board).collect())
}

fn reasons_have_the_colours_of_the_agents_pages() -> Result<()> {
    let palette = palette()?;
    let mut count = 0;
    let is_of_reasons = |query: &String| query.starts_with("sum by (reason)") && query.contains("_wait_seconds_total");
    for (uid, panel) in panels()?.into_iter().filter(|(_, panel)| panel.queries.iter().any(is_of_reasons)) {
        count += 1;
        let shown = overrides(&panel, "color");
        for (reason, colour) in &palette {
            let has = shown.get(reason.as_str()).and_then(|value| value["fixedColor"].as_str());
            let is_its_own = has == Some(colour.as_str());
            let fits = if GREY.contains(&reason.as_str()) { has.is_some_and(is_grey) } else { is_its_own };
            ensure!(fits, "{uid}: `{}`: {reason} is {has:?}, not {colour} or grey", panel.title);
        }
    }
    ensure!(count >= 2, "only {count} panels of reasons");
    Ok(())
}

fn verdicts_have_a_colour_a_sentence_and_a_place_on_the_page_of_patterns() -> Result<()> {
    let (verdicts, page) = (verdicts()?, fs::read_to_string(root().join(VERDICTS))?);
    let mut count = 0;
    for (uid, panel) in panels()? {
        let shows = overrides(&panel, "mappings").contains_key("Verdict") || panel.title == "Verdict";
        let counts = |query: &String| query.starts_with("count") || !query.contains("podperf_verdict:info");
        ensure!(shows || panel.queries.iter().all(counts), "{uid}: `{}` shows a verdict as it is", panel.title);
        if !shows {
            continue;
        }
        count += 1;
        let (mappings, links) = if panel.kind == "stat" {
            let defaults = &panel.json["fieldConfig"]["defaults"];
            (&defaults["mappings"], &defaults["links"])
        } else {
            let links = overrides(&panel, "links").remove("Verdict").context("a verdict without a link")?;
            (overrides(&panel, "mappings")["Verdict"], links)
        };
        ensure!(links[0]["url"] == ANCHOR, "{uid}: `{}` leads to {}", panel.title, links[0]["url"]);
        let options = mappings[0]["options"].as_object().context("no value mappings")?;
        let mapped: BTreeSet<String> = options.keys().cloned().collect();
        ensure!(mapped == verdicts, "{uid}: `{}` maps {mapped:?}, and the rule has {verdicts:?}", panel.title);
        for (verdict, shown) in options {
            let text = shown["text"].as_str().unwrap_or_default();
            ensure!(text.starts_with(&format!("{verdict}: ")), "{uid}: {verdict} is shown as `{text}`");
            ensure!(shown["color"].as_str().is_some_and(|colour| colour.starts_with('#')), "{uid}: {verdict}: {shown}");
        }
    }
    ensure!(count >= 4, "only {count} panels show a verdict");
    for verdict in verdicts {
        ensure!(page.contains(&format!("<a id=\"verdict-{verdict}\"></a>")), "{VERDICTS} has no place for {verdict}");
    }
    Ok(())
}

/// Tells whether a query is about hardware events.
fn needs_counters(query: &str) -> bool {
    let of_hardware = ["cycles", "instructions", "cache_misses", "cache_references", "wasted_cores"];
    promql::selectors(query).iter().any(|selector| of_hardware.iter().any(|event| selector.metric.contains(event)))
}

fn the_first_table_is_of_lost_time_and_needs_no_counters() -> Result<()> {
    for uid in ["podperf-cluster", "podperf-namespace"] {
        let board = dashboards::read()?.into_iter().find(|board| board.uid == uid).context("no such board")?;
        let table = board.panels.iter().find(|panel| panel.kind == "table").context("a board without a table")?;
        ensure!(table.title == "Who loses most time", "{uid}: the first table is `{}`", table.title);
        let sorted = &table.json["options"]["sortBy"][0];
        ensure!(sorted["displayName"] == "Threads lost" && sorted["desc"] == true, "{uid}: sorted by {sorted}");
        let first = table.queries.first().context("a table without a query")?;
        ensure!(first.contains("namespace_pod:podperf_lost_seconds:rate5m"), "{uid}: {first}");
        ensure!(!table.queries.iter().any(|query| needs_counters(query)), "{uid}: its first table needs counters");
    }
    Ok(())
}

/// A table of times may have a column of IPC: the other columns are there without counters.
fn panels_of_counters_are_in_folded_rows() -> Result<()> {
    let mut folded = 0;
    for board in dashboards::read()?.into_iter().filter(|board| board.uid != "podperf-agent") {
        let rows = board.json["panels"].as_array().into_iter().flatten().filter(|panel| panel["type"] == "row");
        let closed: BTreeSet<u64> = rows
            .filter(|row| row["collapsed"] == true)
            .flat_map(|row| row["panels"].as_array().into_iter().flatten())
            .filter_map(|panel| panel["id"].as_u64())
            .collect();
        for panel in &board.panels {
            let needs = !panel.queries.is_empty() && panel.queries.iter().all(|query| needs_counters(query));
            let is_folded = panel.json["id"].as_u64().is_some_and(|id| closed.contains(&id));
            folded += usize::from(needs && is_folded);
            ensure!(!needs || is_folded, "{}: `{}` is blank without counters", board.uid, panel.title);
        }
    }
    ensure!(folded > 15, "only {folded} panels of counters");
    Ok(())
}

fn marks_of_alerts_are_of_the_boards_own_subject() -> Result<()> {
    for (uid, own) in [
        ("podperf-pod", "pod=\"$pod\""),
        ("podperf-workload", "workload=\"$workload\""),
        ("podperf-namespace", "namespace=\"$namespace\""),
        ("podperf-node", "node=~\"$node|\""),
    ] {
        let board = dashboards::read()?.into_iter().find(|board| board.uid == uid).context("no such board")?;
        for mark in board.json["annotations"]["list"].as_array().into_iter().flatten() {
            let query = mark["target"]["expr"].as_str().unwrap_or_default();
            let is_own = query.contains(own) || uid == "podperf-node";
            ensure!(is_own, "{uid}: {} are of other subjects, too: {query}", mark["name"]);
            ensure!(mark["name"] != "Alerts" || query.contains(own), "{uid}: {query}");
        }
    }
    Ok(())
}

/// Grafana gives a legend below a plot up to 35 % of the panel, and one beside it up to 60 %.
fn legends_take_at_most_a_third() -> Result<()> {
    for (uid, panel) in panels()?.into_iter().filter(|(_, panel)| panel.kind == "timeseries") {
        let legend = &panel.json["options"]["legend"];
        let is_low = legend["placement"] == "bottom" && legend["displayMode"] == "list";
        ensure!(is_low, "{uid}: `{}` has the legend {legend}", panel.title);
    }
    Ok(())
}

fn texts_have_three_rows() -> Result<()> {
    for (uid, panel) in panels()?.into_iter().filter(|(_, panel)| panel.kind == "text") {
        ensure!(panel.json["gridPos"]["h"] == 3, "{uid}: the text has {} rows", panel.json["gridPos"]["h"]);
        for paragraph in panel.json["options"]["content"].as_str().unwrap_or_default().split("\n\n") {
            ensure!(paragraph.chars().count() <= PARAGRAPH, "{uid}: too long for its panel: {paragraph}");
        }
    }
    Ok(())
}
