//! The pages about the chart agree with the chart.

use std::{fs, path::Path, process::Command as Shell};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    golden,
    pages::{self, Command},
    suite::Test,
    tests,
};
use serde_yaml::Value;

use crate::helm::{GO, chart, notes, object, program, root, said, template};

pub(crate) const TESTS: &[Test] = tests![
    every_value_has_its_explanation_above_it,
    the_readme_is_generated_from_the_values: GO,
    every_helm_command_of_the_documents_renders: GO,
    chart_and_agent_have_one_version,
    the_page_on_installing_names_each_capability: GO,
    the_notes_name_the_page_the_mode_and_what_is_not_made_yet: GO,
];

fn every_value_has_its_explanation_above_it() -> Result<()> {
    let text = fs::read_to_string(chart().join("values.yaml"))?;
    let lines: Vec<_> = text.lines().collect();
    let mut without = Vec::new();
    // Objects of Kubernetes are below these keys. Kubernetes documents them itself.
    let foreign = ["resources", "updateStrategy", "nodeSelector", "Probe", "labels:", "instanceSelector"];
    let mut skipped: Option<usize> = None;
    for (index, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let is_key = !line.trim_start().starts_with(['#', '-']) && line.contains(':');
        if skipped.is_some_and(|above| indent > above || !is_key) {
            continue;
        }
        skipped = None;
        if is_key {
            let explained = lines[index - 1].trim_start().starts_with('#');
            // An object needs no comment: the values below it have comments.
            let above = line.ends_with(':');
            if !explained && !above {
                without.push(line.trim());
            }
            if above && explained && foreign.iter().any(|word| line.contains(word)) {
                skipped = Some(indent);
            }
        }
    }
    ensure!(without.is_empty(), "without a comment above: {without:?}");
    Ok(())
}

fn the_readme_is_generated_from_the_values() -> Result<()> {
    let options = ["--dry-run", "--log-level=error", "--sort-values-order=file", "--chart-search-root"];
    let made = program("helm-docs")?.args(options).arg(chart()).output()?;
    // The program prints an additional line break.
    let fresh = format!("{}\n", said(&made)?.trim());
    golden::expect(&chart().join("README.md"), &fresh)
}

/// The test runs each command unchanged, with `template` instead of the installation.
fn every_helm_command_of_the_documents_renders() -> Result<()> {
    let mut count = 0;
    for Command { page, text } in pages::commands()? {
        // Other projects' charts are in registries that no test contacts.
        if text.contains("prometheus-community") {
            continue;
        }
        let Some(arguments) = ["helm install ", "helm upgrade "].iter().find_map(|start| text.strip_prefix(start))
        else {
            continue;
        };
        // The shell removes the quotes, as on a reader's machine.
        let script = format!("\"$HELM\" template {}", arguments.replace("--reset-then-reuse-values", ""));
        let helm = program("helm")?.get_program().to_owned();
        let output = Shell::new("sh").arg("-c").arg(script).env("HELM", helm).current_dir(root()).output()?;
        let rendered = said(&output).with_context(|| format!("{page}: {text}"))?;
        object(&rendered, "DaemonSet").with_context(|| text.clone())?;
        count += 1;
    }
    ensure!(count >= 7, "only {count} commands");
    Ok(())
}

fn chart_and_agent_have_one_version() -> Result<()> {
    let read = |path: &Path| -> Result<Value> { Ok(serde_yaml::from_str(&fs::read_to_string(path)?)?) };
    let about = read(&chart().join("Chart.yaml"))?;
    let agent = env!("CARGO_PKG_VERSION");
    ensure!(about["version"] == agent && about["appVersion"] == agent, "{about:?}, the agent is {agent}");
    let images = about["annotations"]["artifacthub.io/images"].as_str().context("no images")?;
    ensure!(images.contains(&format!("podperf:{agent}\n")), "{images}");
    Ok(())
}

fn the_page_on_installing_names_each_capability() -> Result<()> {
    let page = fs::read_to_string(root().join("docs/install.md"))?;
    let values =
        "{mode: profiles, http: {acceptOpenProfiles: true}, securityContext: {capabilities: {addSysAdmin: true}}}";
    let pod = object(&template(values, &[])?, "DaemonSet")?["spec"]["template"]["spec"].clone();
    let added = pod["containers"][0]["securityContext"]["capabilities"]["add"].clone();
    for capability in added.as_sequence().into_iter().flatten().filter_map(Value::as_str) {
        ensure!(page.contains(&format!("| `{capability}` |")), "docs/install.md has no row for {capability}");
    }
    Ok(())
}

fn the_notes_name_the_page_the_mode_and_what_is_not_made_yet() -> Result<()> {
    let lines = |values: &str| -> Result<Vec<String>> {
        let said = notes(&chart(), values, &[])?;
        let lines: Vec<_> = said.lines().skip_while(|line| !line.starts_with("  page ")).take(5).collect();
        ensure!(lines.len() == 5, "{said}");
        Ok(lines.into_iter().map(str::to_owned).collect())
    };
    let plain = lines("")?;
    let words = ["http://localhost:9799", "`reasons`", "podMonitor.", "dashboards.configMaps.", "prometheusRule."];
    for (line, words) in plain.iter().zip(words) {
        ensure!(line.contains(words), "no `{words}` in: {line}");
    }
    let values =
        "{podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboards: {configMaps: {enabled: true}}}";
    let all = lines(values)?;
    ensure!(all[2].ends_with(" collected") && all[3].ends_with(" made") && all[4].ends_with(" made"), "{all:?}");
    Ok(())
}
