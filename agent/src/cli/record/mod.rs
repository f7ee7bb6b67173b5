//! `podperf record`: records the stacks or the system calls of a pod or cgroup for a while, through the agent of this
//! node or alone.

mod alone;
mod output;
mod progress;
mod through;

use std::{io, time::Duration};

use anyhow::Context;
use clap::{ArgGroup, Args};
use humantime_serde::re::humantime;
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};

pub(super) use alone::NobodyRecords;
pub(super) use output::BadOutput;

use super::{
    client::{Client, Login},
    overrides::{self, CONNECTION, NodeOverrides},
    time,
};
use crate::{
    config::Config,
    export::{calls::CallsFormat, flamegraph::Format},
    filter::Filter,
    recording::{LONGEST, SHORTEST, Selector, SelectorError, Side, Wanted, WantedLatency},
};
use output::Output;

/// The flags of `podperf record`.
#[derive(Debug, Args)]
// A group, so that the error without a subject names both ways.
#[command(group(ArgGroup::new("whose").required(true).args(["subject", "all"])))]
pub(super) struct Arguments {
    /// The pod or cgroup to record: `namespace/pod`, `namespace/pod/container`, `namespace/workload`, or the path of a
    /// cgroup, from the `/` of the cgroup2 tree on. A path that ends with `/` also stands for all cgroups below it.
    #[arg(value_name = "POD|CGROUP", value_parser = subject)]
    subject: Option<Subject>,
    /// Record all pods and cgroups.
    #[arg(long)]
    all: bool,
    /// Record where threads waited, and what for. This is the default.
    #[arg(long, conflicts_with_all = ["on_cpu", "locks"])]
    off_cpu: bool,
    /// Record where threads ran.
    #[arg(long)]
    on_cpu: bool,
    /// Record where threads waited for locks off the CPU. An agent must have the sensor `locks`.
    #[arg(long, conflicts_with = "on_cpu")]
    locks: bool,
    /// Record which system calls it makes, instead of stacks: calls, errors and times of each. Prints a table.
    #[arg(long, conflicts_with_all = ["off_cpu", "on_cpu", "locks", "filter", "lines", "latency"])]
    syscalls: bool,
    /// Print how long calls of a function take: of one in the agent's `functions`, by its name, or of another one if
    /// the agent allows it: `vfs_read` of the kernel, or /PATH/OF/FILE:SYMBOL. An agent must have the sensor
    /// `functions`.
    #[arg(long, value_name = "FUNCTION",
        conflicts_with_all = ["off_cpu", "on_cpu", "locks", "filter", "output", "lines"])]
    latency: Option<String>,
    /// Length of the recording, at least 1s and at most 5m.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Record only what matches, such as `state == D && duration > 1ms || comm == "nginx*"`. Fields: state (S, D, R),
    /// duration, reason, tid, pid, comm, cgroup, namespace, pod, container, workload, label.NAME.
    #[arg(long, value_name = "EXPR")]
    filter: Option<Filter>,
    /// The file: .svg and .html are flame graphs, .pb.gz is for pprof, .folded for other tools. `-.html` is stdout in
    /// that format, and so are the others; `-` is stdout, folded [default: podperf-SUBJECT-off-cpu.svg, or -on-cpu,
    /// -locks; with --lines .pb.gz]. With --syscalls a .json, or `-.json` for stdout [default: a table on stdout].
    #[arg(short, long, value_name = "FILE", allow_hyphen_values = true)]
    output: Option<String>,
    /// Add source files and lines of user code to a .pb.gz, where the programs or their debug files have them.
    #[arg(long)]
    lines: bool,
    #[command(flatten)]
    node: NodeOverrides,
    /// The agent to go through [default: that of `listen`, where one answers].
    #[arg(long, value_name = "URL", value_parser = Client::new, help_heading = CONNECTION)]
    agent: Option<Client>,
    #[command(flatten)]
    login: Login,
}

/// A subject as it was typed.
#[derive(Clone, Debug)]
enum Subject {
    Selector(Selector),
    /// A word without a `/` names no subject. An agent knows the names that have the word in them.
    Word(String),
}

/// The content and the format of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Stacks(Format),
    Calls(CallsFormat),
}

/// A finished recording.
#[derive(Debug)]
struct Recorded {
    file: Vec<u8>,
    /// The sentence about how much of its time has a stack; `None` without any time, and of an agent that has none.
    stacks: Option<String>,
}

/// A word that names no subject. The command then exits with code 2.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct BadSubject(String);

fn subject(text: &str) -> Result<Subject, SelectorError> {
    match text.parse() {
        Ok(selector) => Ok(Subject::Selector(selector)),
        Err(SelectorError::Bad(word)) if !word.is_empty() && !word.contains('/') => Ok(Subject::Word(word)),
        Err(error) => Err(error),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = time::parse(text)?;
    if !(SHORTEST..=LONGEST).contains(&duration) {
        let bounds = [SHORTEST, LONGEST].map(humantime::format_duration);
        return Err(format!("at least {} and at most {}", bounds[0], bounds[1]));
    }
    Ok(duration)
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let selector = match &arguments.subject {
        None => Selector::All,
        Some(Subject::Selector(selector)) => selector.clone(),
        Some(Subject::Word(word)) => return Err(no_subject(arguments, word)?.into()),
    };
    if let Some(function) = &arguments.latency {
        return measure(
            arguments,
            &WantedLatency { selector, function: function.clone(), duration: arguments.duration },
        );
    }
    let wanted = Wanted {
        selector,
        side: match arguments {
            Arguments { on_cpu: true, .. } => Side::OnCpu,
            Arguments { locks: true, .. } => Side::Locks,
            _ => Side::OffCpu,
        },
        filter: arguments.filter.clone().unwrap_or_default(),
        duration: arguments.duration,
        lines: arguments.lines,
    };
    let settings = overrides::settings(arguments.node.config()?, arguments.node.file())?;
    let name = arguments.output.as_deref();
    let output = if arguments.syscalls { Output::of_calls(name)? } else { Output::open(name, &wanted)? };
    let runtime = runtime()?;
    let recorded = runtime.block_on(async {
        let named = arguments.agent.as_ref();
        match through::find(named, &settings.config, &arguments.login).await? {
            Some(agent) => through::record(&agent, &wanted, output.form()).await,
            None => alone::record(settings, &wanted, output.form()).await,
        }
    });
    // Name lookups that still run are abandoned: their time is over.
    runtime.shutdown_background();
    let Recorded { file, stacks } = recorded?;
    output.write(&file)?;
    if let Some(says) = stacks {
        progress::print(&says);
    }
    Ok(())
}

/// Prints the length of a function's calls. Only an agent measures them: the sensor is part of it.
fn measure(arguments: &Arguments, wanted: &WantedLatency) -> anyhow::Result<()> {
    let config: Config = arguments.node.config()?;
    let runtime = runtime()?;
    let measured = runtime.block_on(async {
        match through::find(arguments.agent.as_ref(), &config, &arguments.login).await? {
            Some(agent) => through::measure(&agent, wanted).await,
            None => anyhow::bail!(
                "no agent answers at `http://{}`, and only an agent measures functions (start one with the sensor \
                 `functions`, or name one with `--agent URL`)",
                config.listen
            ),
        }
    });
    runtime.shutdown_background();
    output::print(&measured?.file, &mut io::stdout().lock()).context("failed to write")
}

fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("failed to start the runtime")
}

/// Returns the error for a word that is no subject, in the words of an agent if one answers: it knows similar names.
fn no_subject(arguments: &Arguments, word: &str) -> anyhow::Result<BadSubject> {
    let config: Config = arguments.node.config()?;
    let runtime = runtime()?;
    let says = runtime.block_on(async {
        let agent = through::find(arguments.agent.as_ref(), &config, &arguments.login).await.ok()??;
        through::says_of_subject(&agent, word).await
    });
    runtime.shutdown_background();
    Ok(BadSubject(says.unwrap_or_else(|| SelectorError::Bad(word.to_owned()).to_string())))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Record {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parsed(arguments: &[&str]) -> Result<Arguments, clap::Error> {
        Record::try_parse_from([&["record"][..], arguments].concat()).map(|record| record.arguments)
    }

    #[test]
    fn stdout_in_a_format_is_no_flag() {
        for flags in [&["-o", "-.html"][..], &["--output", "-.html"], &["-o=-.html"], &["--output=-.html"]] {
            let output = parsed(&[&["--all"][..], flags].concat()).unwrap().output;
            assert_eq!(output.as_deref(), Some("-.html"), "{flags:?}");
        }
    }

    #[test]
    fn a_word_is_left_to_an_agent_and_what_cannot_be_a_name_is_refused() {
        assert!(matches!(parsed(&["checkout"]).unwrap().subject, Some(Subject::Word(word)) if word == "checkout"));
        assert!(matches!(parsed(&["shop/checkout"]).unwrap().subject, Some(Subject::Selector(_))));
        for text in ["shop/", "a/b/c/d"] {
            let error = parsed(&[text]).unwrap_err().to_string();
            assert!(error.contains("`namespace/pod`"), "{text}: {error}");
        }
    }

    #[test]
    fn system_calls_have_no_stacks() {
        assert!(parsed(&["--all", "--syscalls"]).unwrap().syscalls);
        for stacks in [&["--on-cpu"][..], &["--off-cpu"], &["--locks"], &["--lines"], &["--filter", "state == D"]] {
            assert!(parsed(&[&["--all", "--syscalls"][..], stacks].concat()).is_err(), "{stacks:?}");
        }
    }

    #[test]
    fn a_recording_has_an_end() {
        assert_eq!(
            (duration("10s"), duration("1500ms")),
            (Ok(Duration::from_secs(10)), Ok(Duration::from_millis(1500)))
        );
        for (text, says) in [
            ("0s", "at least 1s"),
            ("999ms", "at least 1s"),
            ("301s", "at most 5m"),
            ("10", "expected a time such as `10s`"),
            ("ten", "expected a time such as `10s`"),
        ] {
            let error = duration(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
