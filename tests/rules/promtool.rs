//! promtool's own checks of the rules.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    prometheus::Version,
    rules::{self, RULES, TESTS as RULE_TESTS, files_in, is_story, root},
    suite::Test,
    tests,
};

/// The repository's address, the same as in Cargo.toml.
const REPOSITORY: &str = "https://github.com/podperf/podperf";

pub(crate) const TESTS: &[Test] = tests![
    prometheus_2_reads_every_rule: Version::TWO => || every_rule_is_read(Version::Two),
    #[rings] prometheus_3_reads_every_rule: Version::THREE => || every_rule_is_read(Version::Three),
    alerts_fire_for_who_deserves_it_and_for_no_other: Version::TWO => || alerts_fire_for_who_deserves_it(Version::Two, false),
    #[rings] alerts_in_stories_fire_for_who_deserves_it_and_for_no_other: Version::TWO => || alerts_fire_for_who_deserves_it(Version::Two, true),
    #[rings] alerts_of_prometheus_3_fire_for_who_deserves_it_and_for_no_other: Version::THREE => || {
        alerts_fire_for_who_deserves_it(Version::Three, false)?;
        alerts_fire_for_who_deserves_it(Version::Three, true)
    },
    every_alert_has_a_test_in_which_it_fires,
    alerts_keep_to_the_conventions,
    demo_rules_fire_within_minutes: Version::TWO => || demo_rules_fire(Version::Two),
    #[rings] demo_rules_of_prometheus_3_fire_within_minutes: Version::THREE => || demo_rules_fire(Version::Three),
    every_group_in_a_test_is_a_group_of_the_rules,
];

/// Runs the promtool on the path.
pub(crate) fn promtool(arguments: &[&str], files: Vec<PathBuf>) -> Result<()> {
    promtool_of(Version::Two, arguments, files)
}

fn promtool_of(version: Version, arguments: &[&str], files: Vec<PathBuf>) -> Result<()> {
    let mut command = Command::new(version.program("promtool")?);
    // It ends soon, and has memory to spare: the collection of its garbage is a fifth of its time.
    command.env("GOGC", "400");
    let output = command.args(arguments).args(files).output().context("failed to run promtool")?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "promtool {arguments:?}: {}:\n{said}", output.status);
    Ok(())
}

fn every_rule_is_read(version: Version) -> Result<()> {
    let files = files_in(&root().join(RULES), ".yaml")?;
    promtool_of(version, &["check", "rules", "--lint=all", "--lint-fatal"], files)
}

/// A window of Prometheus 3 has no point at its left end, so it holds one point less in these tests. Their loads fire
/// with either window.
fn alerts_fire_for_who_deserves_it(version: Version, in_stories: bool) -> Result<()> {
    let mut files = files_in(&root().join(RULE_TESTS), "_test.yaml")?;
    files.retain(|file| is_story(file) == in_stories);
    promtool_of(version, &["test", "rules"], files)
}

fn demo_rules_fire(version: Version) -> Result<()> {
    let rules = vec![root().join("config/demo-rules.yaml")];
    promtool_of(version, &["check", "rules", "--lint=all", "--lint-fatal"], rules)?;
    promtool_of(version, &["test", "rules"], files_in(&root().join("tests/rules/demo"), ".yaml")?)
}

/// promtool ignores an unknown group, and then takes the groups in any order.
fn every_group_in_a_test_is_a_group_of_the_rules() -> Result<()> {
    let mut groups = Vec::new();
    for file in rules::read()? {
        groups.extend(file.lines.iter().filter_map(|line| Some(line.strip_prefix("  - name: ")?.to_owned())));
    }
    for path in files_in(&root().join(RULE_TESTS), "_test.yaml")? {
        let text = std::fs::read_to_string(&path)?;
        for group in text.lines().filter_map(|line| line.strip_prefix("  - podperf.")) {
            ensure!(groups.contains(&format!("podperf.{group}")), "{}: no group podperf.{group}", path.display());
        }
    }
    Ok(())
}

fn every_alert_has_a_test_in_which_it_fires() -> Result<()> {
    let tests = files_in(&root().join(RULE_TESTS), "_test.yaml")?;
    // `make test` runs all others.
    let tests = tests.into_iter().filter(|file| !is_story(file));
    let tests: String = tests.map(std::fs::read_to_string).collect::<std::io::Result<_>>()?;
    let lines: Vec<&str> = tests.lines().collect();
    for file in rules::read()? {
        for alert in file.rules.iter().filter(|rule| rule.is_alert) {
            let asked = format!("alertname=\"{}\", alertstate=\"firing\"", alert.name);
            let fires = lines.windows(3).any(|lines| lines[0].contains(&asked) && lines[2].ends_with("exp_samples:"));
            ensure!(fires, "no test in which {} fires", alert.name);
            let is_quiet = lines.windows(3).any(|lines| lines[0].contains(&asked) && lines[2].ends_with("[]"));
            ensure!(is_quiet, "no test in which {} is quiet", alert.name);
            let says = lines.iter().any(|line| line.trim() == format!("alertname: {}", alert.name));
            ensure!(says, "no test of what {} says", alert.name);
        }
    }
    Ok(())
}

fn alerts_keep_to_the_conventions() -> Result<()> {
    for file in rules::read()? {
        for alert in file.rules.iter().filter(|rule| rule.is_alert) {
            let name = &alert.name;
            let value = |key: &str| file.value(alert, key).with_context(|| format!("no `{key}` in {name}"));
            ensure!(name.starts_with("Podperf"), "{name} does not begin with Podperf");
            let (severity, summary) = (value("severity")?, value("summary")?);
            ensure!(["critical", "warning", "info"].contains(&severity), "{name} is {severity}");
            // Instructions per cycle are a cause, not a symptom, and must not page a person.
            ensure!((severity == "critical") == (name == "PodperfDown"), "{name} is {severity}");
            ensure!(summary.ends_with('.') && !summary.contains("{{"), "the summary of {name}: {summary}");
            ensure!(value("description")?.ends_with('.'), "the description of {name} is no sentence");
            let runbook = format!("{REPOSITORY}/blob/main/docs/runbooks/{}.md", name.to_lowercase());
            ensure!(value("runbook_url")? == runbook, "the runbook of {name} is not {runbook}");
            ensure!(value("dashboard_url")?.starts_with("/d/podperf-"), "{name} has no dashboard of ours");
            let minutes: u32 = value("for")?.trim_end_matches('m').parse()?;
            let argued =
                file.lines[..alert.all.start].last().is_some_and(|line| line.trim().starts_with("# Ten minutes"));
            ensure!(minutes >= 15 || argued, "{name} waits only {minutes} minutes, and nobody says why");
        }
    }
    Ok(())
}
