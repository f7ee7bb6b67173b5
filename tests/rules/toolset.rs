//! The toolset for assistants: ten calls with short answers, whose queries Prometheus parses.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    rules::root,
    suite::{Need, Test},
    tests,
};
use serde_json::json;
use serde_yaml::Value;
use tempfile::TempDir;

use crate::promtool::promtool;

pub(crate) const TESTS: &[Test] = tests![
    the_page_names_ten_calls_whose_answers_have_a_bound,
    prometheus_parses_every_query_of_the_calls: &[Need::Program("promtool")],
];

const FILE: &str = "config/holmesgpt.yaml";
const BOUND: &str = "| head -c 2000";

/// Returns the name and the command of each call.
fn calls() -> Result<Vec<(String, String)>> {
    let file: Value = serde_yaml::from_str(&fs::read_to_string(root().join(FILE))?)?;
    let tools = file["toolsets"]["podperf"]["tools"].as_sequence().context("no tools")?;
    let text = |tool: &Value, key: &str| tool[key].as_str().map(str::to_owned).with_context(|| format!("no `{key}`"));
    tools.iter().map(|tool| Ok((text(tool, "name")?, text(tool, "command")?))).collect()
}

fn the_page_names_ten_calls_whose_answers_have_a_bound() -> Result<()> {
    let (calls, page) = (calls()?, fs::read_to_string(root().join("docs/assistants.md"))?);
    ensure!(calls.len() == 10, "{} calls", calls.len());
    for (name, command) in calls {
        ensure!(page.contains(&format!("| `{name}` |")), "docs/assistants.md does not name `{name}`");
        ensure!(command.trim_end().ends_with(BOUND), "the answer of `{name}` has no bound");
    }
    Ok(())
}

fn prometheus_parses_every_query_of_the_calls() -> Result<()> {
    let mut rules = Vec::new();
    for (name, command) in calls()? {
        let query = command.split("'query=").nth(1).and_then(|rest| rest.split('\'').next());
        let filled = query.map(|query| query.replace("{{ namespace }}", "a").replace("{{ pod }}", "a"));
        rules.extend(
            filled.map(|query| json!({"record": format!("call:{name}"), "expr": query.replace("{{ node }}", "a")})),
        );
    }
    ensure!(rules.len() == 8, "{} queries", rules.len());
    let directory = TempDir::new()?;
    let file = directory.path().join("calls.yaml");
    fs::write(&file, json!({"groups": [{"name": "calls", "rules": rules}]}).to_string())?;
    promtool(&["check", "rules"], vec![file])
}
