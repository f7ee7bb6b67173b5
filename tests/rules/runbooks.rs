//! Each alert has a runbook, and each runbook has an alert.

use std::{collections::BTreeSet, fs, process::Command};

use anyhow::{Result, ensure};
use podperf_tests::{
    rules::{self, files_in, root},
    suite::{Need, Test},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    every_alert_has_a_runbook_and_every_runbook_an_alert,
    queries_of_pages_are_promql: &[Need::Program("promtool")],
    runbooks_say_what_it_means_and_what_to_do,
];

fn alerts() -> Result<Vec<String>> {
    let files = rules::read()?;
    let alerts = files.iter().flat_map(|file| &file.rules).filter(|rule| rule.is_alert);
    Ok(alerts.map(|rule| rule.name.clone()).collect())
}

fn every_alert_has_a_runbook_and_every_runbook_an_alert() -> Result<()> {
    let expected: BTreeSet<String> = alerts()?.iter().map(|name| format!("{}.md", name.to_lowercase())).collect();
    let files = files_in(&root().join("docs/runbooks"), ".md")?;
    let found = files.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned());
    let found: BTreeSet<String> = found.collect();
    ensure!(found == expected, "not both: {:?}", found.symmetric_difference(&expected).collect::<Vec<_>>());
    Ok(())
}

fn runbooks_say_what_it_means_and_what_to_do() -> Result<()> {
    for name in alerts()? {
        let page = fs::read_to_string(root().join(format!("docs/runbooks/{}.md", name.to_lowercase())))?;
        let headings: Vec<&str> = page.lines().filter(|line| line.starts_with('#')).collect();
        let title = format!("# {name}");
        let expected = [title.as_str(), "## Meaning", "## Impact", "## Diagnosis", "## Mitigation"];
        ensure!(headings == expected, "{name} has {headings:?}");
        let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
        for section in sections {
            let (heading, text) = section.split_once('\n').unwrap_or((section, ""));
            ensure!(text.trim().len() > 40, "{name} says nothing under {heading}");
        }
    }
    Ok(())
}

/// The test writes the queries into a rule file, because promtool checks only such files.
fn queries_of_pages_are_promql() -> Result<()> {
    let mut pages = vec![root().join("README.md")];
    for directory in ["docs", "docs/runbooks"] {
        pages.extend(files_in(&root().join(directory), ".md")?);
    }
    let (mut rules, mut count) = (String::from("groups:\n- name: pages\n  rules:\n"), 0);
    for page in pages {
        let text = fs::read_to_string(&page)?;
        for query in text.split("```promql\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            count += 1;
            rules.push_str(&format!("  - record: query_{count}\n    expr: |2\n"));
            query.lines().for_each(|line| rules.push_str(&format!("      {line}\n")));
        }
    }
    ensure!(count > 20, "only {count} queries in all pages");
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("pages.yaml");
    fs::write(&file, &rules)?;
    let output = Command::new("promtool").args(["check", "rules"]).arg(&file).output()?;
    ensure!(output.status.success(), "{}\n{rules}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
