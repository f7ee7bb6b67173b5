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

use crate::{appearance::verdicts, promtool::promtool};

pub(crate) const TESTS: &[Test] = tests![
    the_page_names_ten_calls_whose_answers_have_a_bound,
    the_instructions_explain_every_verdict,
    a_value_cannot_end_a_quote,
    prometheus_parses_every_query_of_the_calls: &[Need::Program("promtool")],
];

const FILE: &str = "config/holmesgpt.yaml";
const BOUND: &str = "| head -c 2000";

fn toolset() -> Result<Value> {
    let file: Value = serde_yaml::from_str(&fs::read_to_string(root().join(FILE))?)?;
    Ok(file["toolsets"]["podperf"].clone())
}

/// Returns the name and the command of each call.
fn calls() -> Result<Vec<(String, String)>> {
    let toolset = toolset()?;
    let tools = toolset["tools"].as_sequence().context("no tools")?;
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

fn the_instructions_explain_every_verdict() -> Result<()> {
    let toolset = toolset()?;
    let instructions = toolset["llm_instructions"].as_str().context("no instructions")?;
    for verdict in verdicts()? {
        let is_explained = instructions.split_whitespace().any(|word| word.strip_suffix(':') == Some(verdict.as_str()));
        ensure!(is_explained, "`{verdict}` is not explained: {instructions}");
    }
    Ok(())
}

/// Returns the text of a command outside of the shell's quotes.
fn outside_quotes(command: &str) -> String {
    let mut open = None;
    let is_outside = |next: &char| match (open, *next) {
        (Some(quote), next) => {
            open = open.filter(|_| next != quote);
            false
        }
        (None, next @ ('\'' | '"')) => {
            open = Some(next);
            false
        }
        (None, _) => true,
    };
    command.chars().filter(is_outside).collect()
}

/// HolmesGPT quotes the values itself. Its quotes would end those around a placeholder, and the shell run the value.
fn a_value_cannot_end_a_quote() -> Result<()> {
    for (name, command) in calls()? {
        let count = |text: &str| text.matches("{{").count();
        ensure!(count(&outside_quotes(&command)) == count(&command), "`{name}` has a placeholder in quotes: {command}");
    }
    Ok(())
}

fn prometheus_parses_every_query_of_the_calls() -> Result<()> {
    let mut rules = Vec::new();
    for (name, command) in calls()? {
        let fill = |text: String, key| text.replace(&format!("'{{{{ {key} }}}}'"), "a");
        let filled = ["namespace", "pod", "node"].into_iter().fold(command, fill);
        let query = filled.split("'query=").nth(1).and_then(|rest| rest.split('\'').next());
        rules.extend(query.map(|query| json!({"record": format!("call:{name}"), "expr": query})));
    }
    ensure!(rules.len() == 8, "{} queries", rules.len());
    let directory = TempDir::new()?;
    let file = directory.path().join("calls.yaml");
    fs::write(&file, json!({"groups": [{"name": "calls", "rules": rules}]}).to_string())?;
    promtool(&["check", "rules"], vec![file])
}
