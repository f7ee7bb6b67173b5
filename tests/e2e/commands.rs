//! The command line as people and packagers use it: versions, completions, manual pages, help, errors.

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Output},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent,
    command::{Refusal, Started},
    http::get_text,
    suite::{Need, Test},
    tests,
};
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] the_short_version_is_one_line_and_the_long_one_names_what_was_built => versions,
    #[land] #[beside] bash_takes_the_completions_and_offers_the_commands: &[Need::Program("bash")] => bash_takes_the_completions,
    #[land] #[beside] each_command_of_the_help_has_a_manual_page_and_a_row_in_the_docs => every_command_is_documented,
    #[land] #[beside] an_error_has_one_prefix_whoever_finds_it => an_error_has_one_prefix,
    #[land] #[beside] broken_yaml_is_named_with_its_place,
    #[land] #[beside] a_time_without_a_unit_is_refused_with_an_example => a_time_without_a_unit_is_refused,
    #[land] #[beside] a_recording_of_nobody_is_refused_with_both_ways_to_name_somebody => a_recording_of_nobody_is_refused,
    #[beside] a_flag_is_before_the_variable_and_that_before_the_file_for_the_nodes_name => the_nodes_name,
];

const BAD_ARGUMENTS: i32 = 2;

fn podperf(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(agent::binary()?);
    command.args(arguments);
    Ok(command)
}

/// Returns the stdout of a command that must succeed and print nothing to stderr.
fn stdout(arguments: &[&str]) -> Result<String> {
    let Output { status, stdout, stderr } = podperf(arguments)?.output()?;
    ensure!(status.success() && stderr.is_empty(), "{arguments:?}: {status}: {}", String::from_utf8_lossy(&stderr));
    Ok(String::from_utf8(stdout)?)
}

fn versions() -> Result<()> {
    let first = format!("podperf {}\n", env!("CARGO_PKG_VERSION"));
    ensure!(stdout(&["-V"])? == first, "{}", stdout(&["-V"])?);
    let long = stdout(&["--version"])?;
    let facts = long.strip_prefix(&first).with_context(|| long.clone())?;
    let names: Vec<_> = facts.lines().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    ensure!(names == ["commit", "date", "target", "profile", "aya", "libbpf headers", "features"], "{long}");
    ensure!(long.contains(&format!("target: {}-", std::env::consts::ARCH)), "{long}");
    Ok(())
}

fn bash_takes_the_completions() -> Result<()> {
    let directory = TempDir::new()?;
    let script = directory.path().join("podperf.bash");
    fs::write(&script, stdout(&["completions", "bash"])?)?;
    // This is bash's request when a user presses Tab after `podperf re`.
    let ask = "source \"$1\"; COMP_WORDS=(podperf re); COMP_CWORD=1; COMP_LINE='podperf re'; \
               _podperf podperf re podperf; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", ask, "bash"]).arg(&script).output()?;
    let offered = String::from_utf8(output.stdout)?;
    ensure!(offered == "record\n", "{offered}{}", String::from_utf8_lossy(&output.stderr));
    for shell in ["elvish", "fish", "powershell", "zsh"] {
        ensure!(stdout(&["completions", shell])?.contains("otlp-endpoint"), "{shell}");
    }
    Refusal::of(&mut podperf(&["completions", "tcsh"])?)?.expect(BAD_ARGUMENTS, &["error: ", "tcsh", "bash"])
}

fn every_command_is_documented() -> Result<()> {
    let help = stdout(&["--help"])?;
    let listed = help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).context("no commands")?;
    let commands: BTreeSet<_> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let commands: BTreeSet<_> = commands.into_iter().filter(|name| *name != "help").collect();
    ensure!(commands.contains("completions") && commands.contains("unpin"), "{commands:?}");
    let directory = TempDir::new()?;
    let pages = directory.path().join("man1");
    stdout(&["man", &pages.to_string_lossy()])?;
    let written: BTreeSet<_> = fs::read_dir(&pages)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    let expected = commands.iter().map(|name| format!("podperf-{name}.1")).chain(["podperf.1".to_owned()]);
    ensure!(written == expected.collect(), "{written:?}");
    ensure!(stdout(&["man"])? == fs::read_to_string(pages.join("podperf.1"))?);
    let docs = include_str!("../../docs/command.md");
    for name in commands {
        ensure!(docs.contains(&format!("| `podperf {name}")), "no row of `podperf {name}` in docs/command.md");
    }
    Ok(())
}

fn an_error_has_one_prefix() -> Result<()> {
    let directory = TempDir::new()?;
    let missing = directory.path().join("missing.yaml").display().to_string();
    for arguments in [
        &["agent", "--config", &missing][..],
        &["unpin", "--config", &missing],
        &["agent", "--no-such-flag"],
        &["record", "--all", "--duration", "0s"],
        &["man", "/proc/no/such/directory"],
    ] {
        let refusal = Refusal::of(&mut podperf(arguments)?)?;
        ensure!(refusal.code.is_some_and(|code| code > 0), "{arguments:?}: {refusal:?}");
        ensure!(refusal.says.starts_with("error: ") && refusal.says.matches("error: ").count() == 1, "{refusal:?}");
        // stderr is a file here, so the text has no colors.
        ensure!(!refusal.says.contains('\x1b') && refusal.says.ends_with('\n'), "{refusal:?}");
    }
    Ok(())
}

fn broken_yaml_is_named_with_its_place() -> Result<()> {
    let directory = TempDir::new()?;
    let config = directory.path().join("podperf.yaml");
    fs::write(&config, "a: [1,\n")?;
    for command in ["agent", "check", "unpin"] {
        let refusal = Refusal::of(podperf(&[command, "--config"])?.arg(&config))?;
        refusal.expect(BAD_ARGUMENTS, &["podperf.yaml`: bad YAML syntax: ", "at line 2 column 1"])?;
        ensure!(!refusal.says.contains("unknown key"), "{refusal:?}");
    }
    fs::write(&config, "a: [1]\n")?;
    let refusal = Refusal::of(podperf(&["agent", "--config"])?.arg(&config))?;
    refusal.expect(BAD_ARGUMENTS, &["unknown key `a` (one of `listen`, `server`, "])?;
    ensure!(!refusal.says.contains("did you mean"), "{refusal:?}");
    Ok(())
}

fn a_time_without_a_unit_is_refused() -> Result<()> {
    let directory = TempDir::new()?;
    let refusal = Refusal::of(&mut agent::command(directory.path(), "otlp: {interval: 5}")?)?;
    refusal.expect(BAD_ARGUMENTS, &["otlp.interval: `5` has no unit, expected a duration such as `5s` at line"])?;
    for arguments in [&["record", "--all", "--duration", "ten"][..], &["probe", "127.0.0.1:1", "--wait", "5"]] {
        Refusal::of(&mut podperf(arguments)?)?.expect(BAD_ARGUMENTS, &["expected a time such as `10s`"])?;
    }
    Ok(())
}

fn a_recording_of_nobody_is_refused() -> Result<()> {
    Refusal::of(&mut podperf(&["record"])?)?.expect(BAD_ARGUMENTS, &["<POD|CGROUP|--all>"])
}

fn the_nodes_name() -> Result<()> {
    let name = |variable: &str, flag: Option<&str>| -> Result<String> {
        let directory = TempDir::new()?;
        let mut command = agent::command(directory.path(), "nodeName: of-file")?;
        command.env("NODE_NAME", variable).args(flag.map(|flag| format!("--node-name={flag}")));
        let mut started = Started::new(&mut command)?;
        let (_, status) = get_text(started.address()?, "/status")?;
        let first = status.lines().next().unwrap_or_default();
        Ok(first.split(" on node ").nth(1).unwrap_or_default().to_owned())
    };
    for (variable, flag, expected) in
        [("of-variable", Some("of-flag"), "of-flag"), ("of-variable", None, "of-variable"), ("", None, "of-file")]
    {
        let name = name(variable, flag)?;
        ensure!(name.starts_with(expected), "`{name}` instead of `{expected}`");
    }
    Ok(())
}
