//! Configurations and machines that the agent refuses, its error messages, and its exit codes. `check.rs` compares the
//! words for missing features of the kernel and missing capabilities.

use std::{fs, net::TcpListener, os::unix::fs::chown, process::Command};

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::{self, Agent, NO_STACKS},
    cgroup,
    command::{Refusal, Started},
    http::get_text,
    suite::{Need, Test},
    tests,
};
use tempfile::TempDir;

use crate::nobody::ForNobody;

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] a_mistyped_key_is_refused_with_its_path_and_the_nearest,
    #[land] #[beside] a_wrong_value_is_refused_with_its_key,
    #[land] #[beside] an_event_that_does_not_exist_is_refused_with_the_nearest,
    #[land] #[beside] a_file_that_is_no_configuration_is_refused,
    #[land] #[beside] wrong_flags_are_refused,
    #[land] #[beside] a_port_in_use_is_named,
    #[land] #[beside] a_second_agent_is_refused_by_words_about_the_first,
    #[land] #[beside] a_run_directory_that_cannot_be_written_is_named: &[SETPRIV],
    #[land] #[beside] two_capabilities_suffice_to_run_without_root: &[SETPRIV],
    #[land] #[beside] a_root_that_is_no_cgroup2_mount_is_named,
];

const SETPRIV: Need = Need::Program("setpriv");
const FAILED: i32 = 1;
const BAD_CONFIGURATION: i32 = 2;
const UNSUPPORTED: i32 = 3;

/// Checks that the agent refuses this configuration with code 2.
fn expect_bad(yaml: &str, says: &[&str]) -> Result<()> {
    let directory = TempDir::new()?;
    let refusal = Refusal::of(&mut agent::command(directory.path(), yaml)?)?;
    refusal.expect(BAD_CONFIGURATION, says)
}

fn a_mistyped_key_is_refused_with_its_path_and_the_nearest() -> Result<()> {
    expect_bad("listn: x", &["podperf.yaml`: unknown key `listn`", "did you mean `listen`?"])?;
    expect_bad("cgroups:\n  dept: 3", &["cgroups: unknown key `dept` at line 4 column 3", "did you mean `depth`?"])?;
    expect_bad("otlp: {headers: {}, endpont: x}", &["otlp: unknown key `endpont`", "did you mean `endpoint`?"])?;
    expect_bad("level: pod", &["unknown key `level`", "did you mean `metrics.level`?"])
}

fn a_wrong_value_is_refused_with_its_key() -> Result<()> {
    expect_bad("cgroups: {depth: many}", &["cgroups.depth: invalid type: string \"many\""])?;
    expect_bad("counters: {groups: [[cycles, []]]}", &["counters.groups[0][1]: invalid type: sequence"])?;
    let says = ["counters.groups[0]: invalid type", "as in `[[cycles, instructions]]`"];
    expect_bad("counters: {groups: [cycles]}", &says)?;
    expect_bad("otlp: {interval: 10}", &["otlp.interval: `10` has no unit, expected a duration such as `5s`"])?;
    let says = ["podperf.yaml` at line ", "bad value for `otlp.interval`: needs at least 1s"];
    expect_bad("otlp: {interval: 10ms}", &says)?;
    expect_bad("otlp: {endpoint: 'ftp://x:1'}", &["bad value for `otlp`: endpoint `ftp://x:1` has scheme `ftp`"])?;
    expect_bad("otlp: {endpoint: 'http://x:0'}", &["bad value for `otlp`: endpoint `http://x:0` has a bad port"])?;
    expect_bad("cgroups: {include: ['/a', '(']}", &["bad value for `cgroups.include`", "`(`"])?;
    expect_bad("cgroups: {exclude: ['[']}", &["bad value for `cgroups.exclude`", "`[`"])?;
    expect_bad("logLevel: loud", &["bad value for `logLevel`", "error, warn, info, debug, trace"])?;
    expect_bad("stacks: {onCpuEvent: any}", &["stacks.onCpuEvent: unknown variant `any`", "`auto`"])
}

fn an_event_that_does_not_exist_is_refused_with_the_nearest() -> Result<()> {
    let yaml = "counters: {groups: [[cycles], [instructions, cycels]]}";
    let says = ["podperf.yaml` at line", "`counters.groups[1][1]`", "unknown event `cycels`", "did you mean `cycles`?"];
    expect_bad(yaml, &says)
}

fn a_file_that_is_no_configuration_is_refused() -> Result<()> {
    let directory = TempDir::new()?;
    let config = directory.path().join("podperf.yaml");
    let refusal = |expected: &[&str]| -> Result<()> {
        let command = &mut Command::new(agent::binary()?);
        let refusal = Refusal::of(command.args(["agent", "--config"]).arg(&config))?;
        refusal.expect(BAD_CONFIGURATION, &[&[config.to_string_lossy().as_ref()], expected].concat())
    };
    let missing = "failed to read configuration";
    refusal(&[missing, "No such file or directory (os error 2)\n"])?;
    for (text, says) in [
        ("- listen", "invalid type: sequence"),
        ("listen", "invalid type: string \"listen\""),
        ("cgroups: {depth: 4", "bad YAML syntax: "),
        ("listen: 127.0.0.1:0\nlisten: 127.0.0.1:0", "duplicate"),
    ] {
        fs::write(&config, text)?;
        refusal(&["failed to parse configuration", says])?;
    }
    Ok(())
}

fn wrong_flags_are_refused() -> Result<()> {
    for (arguments, says) in [
        (&["agent", "--lisen", "127.0.0.1:0"][..], "--listen"),
        (&["agent", "--listen", "here"], "'here' for '--listen <ADDR:PORT>': expected an address and a port"),
        (&["agent", "--otlp-endpoint", "here:port"], "endpoint `here:port` has a bad port"),
        (&["agent", "--log-level", "loud"], "bad value for `logLevel`"),
        (&["agnt"], "agent"),
        (&[], "Usage: podperf"),
    ] {
        Refusal::of(Command::new(agent::binary()?).args(arguments))?.expect(BAD_CONFIGURATION, &[says])?;
    }
    Ok(())
}

fn a_port_in_use_is_named() -> Result<()> {
    let taken = TcpListener::bind(("127.0.0.1", 0))?;
    let address = taken.local_addr()?.to_string();
    let directory = TempDir::new()?;
    let mut command = agent::command(directory.path(), "")?;
    let refusal = Refusal::of(command.args(["--listen", &address]))?;
    refusal.expect(FAILED, &[&format!("failed to listen on `{address}`"), "in use"])
}

fn a_second_agent_is_refused_by_words_about_the_first() -> Result<()> {
    let first = Agent::start(NO_STACKS)?;
    let mut second = agent::command(first.directory(), "identity: none")?;
    let pid = first.pid();
    Refusal::of(&mut second)?.expect(FAILED, &[&format!("another podperf agent is running, pid {pid} "), "runDir"])?;
    // In a pod, a pid of the node means nothing.
    let in_pod = Refusal::of(second.env("KUBERNETES_SERVICE_HOST", "127.0.0.1"))?;
    in_pod.expect(FAILED, &["another podperf agent is running on this node", "agent.lock`", "helm list"])?;
    ensure!(!in_pod.says.contains("pid") && !in_pod.says.contains("runDir"), "{in_pod:?}");
    // The first agent still works.
    first.metrics()?;
    drop(first);
    let directory = TempDir::new()?;
    let run_dir = directory.path().join("podperf");
    // A lock file after a crash does not block a new agent, and the agent creates a missing directory.
    fs::create_dir(&run_dir)?;
    fs::write(run_dir.join("agent.lock"), pid.to_string())?;
    let mut third = agent::command(&run_dir, "")?;
    Started::new(&mut third)?.address()?;
    Ok(())
}

fn a_run_directory_that_cannot_be_written_is_named() -> Result<()> {
    let nobody = ForNobody::new()?;
    chown(nobody.directory(), Some(0), Some(0))?;
    let refusal = Refusal::of(&mut nobody.agent("", Some("+bpf,+perfmon"))?)?;
    let says = format!("run directory `{}` belongs to user 0 and not to user 65534", nobody.directory().display());
    refusal.expect(FAILED, &[&says, "set another `runDir`"])
}

fn two_capabilities_suffice_to_run_without_root() -> Result<()> {
    let nobody = ForNobody::new()?;
    let yaml = "otlp: {endpoint: 'http://127.0.0.1:1'}";
    let mut started = Started::new(&mut nobody.agent(yaml, Some("+bpf,+perfmon"))?)?;
    let address = started.address()?;
    let (status, metrics) = get_text(address, "/metrics")?;
    ensure!(status == 200, "{status}: {metrics}");
    ensure!(metrics.contains("podperf_cgroup_oncpu_seconds_total{cgroup=\"/\"}"), "no row for `/`: {metrics}");
    let (_, text) = get_text(address, "/status")?;
    let stacks = text.lines().find(|line| line.starts_with("stacks")).unwrap_or_default();
    for says in ["degraded", "kernel names (needs CAP_SYSLOG)", "(needs CAP_SYS_PTRACE)"] {
        ensure!(stacks.contains(says), "no `{says}` in: {text}");
    }
    Ok(())
}

fn a_root_that_is_no_cgroup2_mount_is_named() -> Result<()> {
    let directory = TempDir::new()?;
    let root = directory.path().display().to_string();
    let says = format!("`{root}` is not a cgroup2 mount");
    let mut command = agent::command(directory.path(), "")?;
    Refusal::of(command.args(["--cgroup-root", &root]))?.expect(UNSUPPORTED, &[&says])?;
    let mut command = agent::command(directory.path(), &format!("cgroups: {{root: '{root}'}}"))?;
    Refusal::of(&mut command)?.expect(UNSUPPORTED, &[&says])?;
    let mount = cgroup::mount_point()?;
    let mut command = agent::command(directory.path(), "")?;
    let refusal = Refusal::of(command.arg("--cgroup-root").arg(mount.join("no-such-cgroup")))?;
    refusal.expect(UNSUPPORTED, &["no-such-cgroup` is not a cgroup2 mount"])
}
