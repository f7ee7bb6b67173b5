//! `podperf record`: records the stacks of a pod or cgroup for a while, through the agent of this node or alone.

mod alone;
mod output;
mod progress;
mod through;

use std::time::Duration;

use anyhow::Context;
use clap::{ArgGroup, Args};
use humantime_serde::re::humantime;

pub(super) use output::BadOutput;

use super::{
    client::{Client, Login},
    overrides::{CONNECTION, NodeOverrides},
    time,
};
use crate::{
    config::Settings,
    filter::Filter,
    recording::{LONGEST, SHORTEST, Selector, Side, Wanted},
};
use output::Output;

/// The flags of `podperf record`.
#[derive(Debug, Args)]
// A group, so that the error without a subject names both ways.
#[command(group(ArgGroup::new("whose").required(true).args(["subject", "all"])))]
pub(super) struct Arguments {
    /// The pod or cgroup to record: `namespace/pod`, `namespace/pod/container`, or the path of a cgroup, from the `/` of
    /// the cgroup2 tree on. A path that ends with `/` also stands for all cgroups below it.
    #[arg(value_name = "POD|CGROUP")]
    subject: Option<Selector>,
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
    /// Length of the recording, at least 1s and at most 5m.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Record only what matches, such as `state == D && duration > 1ms || comm == "nginx*"`. Fields: state (S, D, R),
    /// duration, reason, tid, pid, comm, cgroup, namespace, pod, container, workload, label.NAME.
    #[arg(long, value_name = "EXPR")]
    filter: Option<Filter>,
    /// The file: .svg and .html are flame graphs, .pb.gz is for pprof, .folded for other tools; `-` is stdout, folded
    /// [default: podperf-SUBJECT-off-cpu.svg, or -on-cpu, -locks; with --lines .pb.gz].
    #[arg(short, long, value_name = "FILE")]
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

fn duration(text: &str) -> Result<Duration, String> {
    let duration = time::parse(text)?;
    if !(SHORTEST..=LONGEST).contains(&duration) {
        let bounds = [SHORTEST, LONGEST].map(humantime::format_duration);
        return Err(format!("at least {} and at most {}", bounds[0], bounds[1]));
    }
    Ok(duration)
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let wanted = Wanted {
        selector: arguments.subject.clone().unwrap_or(Selector::All),
        side: match arguments {
            Arguments { on_cpu: true, .. } => Side::OnCpu,
            Arguments { locks: true, .. } => Side::Locks,
            _ => Side::OffCpu,
        },
        filter: arguments.filter.clone().unwrap_or_default(),
        duration: arguments.duration,
        lines: arguments.lines,
    };
    let settings = Settings::try_from(arguments.node.config()?)?;
    let output = Output::open(arguments.output.as_deref(), &wanted)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("failed to start the runtime")?;
    let recorded = runtime.block_on(async {
        let named = arguments.agent.as_ref();
        match through::find(named, &settings.config, &arguments.login).await? {
            Some(agent) => through::record(&agent, &wanted, output.format()).await,
            None => alone::record(settings, &wanted, output.format()).await,
        }
    });
    // Name lookups that still run are abandoned: their time is over.
    runtime.shutdown_background();
    output.write(&recorded?)
}

#[cfg(test)]
mod tests {
    use super::*;

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
