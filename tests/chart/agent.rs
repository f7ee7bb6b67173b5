//! The real agent accepts the configuration and the command line of each rendering.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{agent, suite::Test, tests};

use crate::helm::{GO, arguments_of, object, objects, template, value_files};

pub(crate) const TESTS: &[Test] = tests![
    the_agent_takes_every_configuration_that_is_rendered: GO,
    the_agent_has_the_commands_that_the_pods_run: GO,
];

/// The exit code of a configuration that the agent rejects.
const BAD: i32 = 2;
/// The exit code of an agent that cannot run. It has read its configuration by then.
const UNSUPPORTED: i32 = 3;

/// Starts the agent, which ends after it has read its configuration: an empty directory has no cgroup tree.
fn start(config: &str, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("podperf.yaml");
    fs::write(&file, config)?;
    let mut command = Command::new(agent::binary()?);
    command.arg("agent").arg("--config").arg(&file).arg("--cgroup-root").arg(directory.path());
    let output = command.args(arguments).output()?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn the_agent_takes_every_configuration_that_is_rendered() -> Result<()> {
    for file in value_files()? {
        let values = fs::read_to_string(&file)?;
        let rendered = template(&values, &arguments_of(&values))?;
        let map = objects(&rendered)?.into_iter().find(|object| object["data"]["podperf.yaml"].is_string());
        let map = map.with_context(|| format!("{}: no ConfigMap", file.display()))?;
        let config = map["data"]["podperf.yaml"].as_str().unwrap_or_default();
        let pod = object(&rendered, "DaemonSet")?["spec"]["template"]["spec"]["containers"][0].clone();
        let arguments: Vec<_> =
            pod["args"].as_sequence().into_iter().flatten().filter_map(|one| one.as_str()).collect();
        let own = arguments.iter().skip(1).filter(|argument| !argument.starts_with("--config=")).copied();
        let (code, log) = start(config, &own.collect::<Vec<_>>())?;
        ensure!(code == Some(UNSUPPORTED), "{}: exit code {code:?}: {log}\n{config}", file.display());
    }
    // This check shows that a bad configuration has another exit code.
    let (code, log) = start("cgroup: {}", &[])?;
    ensure!(code == Some(BAD) && log.contains("cgroup"), "{code:?}: {log}");
    Ok(())
}

fn the_agent_has_the_commands_that_the_pods_run() -> Result<()> {
    let test = objects(&template("", &[])?)?.into_iter().find(|object| object["kind"] == "Pod").context("no test")?;
    let arguments = &test["spec"]["containers"][0]["args"];
    let arguments: Vec<_> = arguments.as_sequence().into_iter().flatten().filter_map(|one| one.as_str()).collect();
    ensure!(arguments.first() == Some(&"probe"), "{arguments:?}");
    // No agent listens at the address, and the command does not wait. Its message then shows that it understood the
    // command line.
    let asked: Vec<_> =
        arguments.iter().map(|one| if one.starts_with("http") { "http://127.0.0.1:1" } else { one }).collect();
    let asked: Vec<_> =
        asked.into_iter().map(|one| if one.starts_with("--wait") { "--wait=0s" } else { one }).collect();
    let output = Command::new(agent::binary()?).args(asked).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.code() == Some(1) && said.contains("0 of 1 agents are ready"), "{said} {output:?}");
    Ok(())
}
