//! Signals, flags and reloads of a running agent.

use std::{collections::BTreeSet, fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent, NO_STACKS, STOP_DEADLINE},
    cgroup::{self, TestCgroup},
    command::{Started, run_load},
    http::get_text,
    load::cpu::CpuReport,
    suite::{Need, Test, within},
    tests,
};
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] sigterm_and_sigint_end_it_and_leave_no_program_behind: &[Need::Program("bpftool")],
    #[land] #[beside] a_changed_depth_takes_effect_without_a_restart,
    #[land] #[beside] a_changed_log_level_takes_effect_without_a_restart,
    #[land] #[beside] a_change_that_needs_a_restart_is_named,
    #[land] #[beside] a_broken_file_keeps_the_old_configuration,
    #[land] #[beside] a_followed_file_takes_effect_by_itself_and_loses_no_count,
    #[land] #[beside] flags_override_the_file,
    #[land] #[beside] a_probe_asks_every_address_and_fails_by_name,
];

const LOG_DEADLINE: Duration = Duration::from_secs(10);

fn sigterm_and_sigint_end_it_and_leave_no_program_behind() -> Result<()> {
    for (signal, yaml) in [(Signal::SIGTERM, ""), (Signal::SIGINT, NO_STACKS)] {
        let mut agent = Agent::start(yaml)?;
        let programs = programs_of(agent.pid())?;
        ensure!(programs.len() > 1, "its programs are {programs:?}");
        ensure!(programs.iter().all(|id| is_loaded(id)), "not all of {programs:?} are loaded");
        agent.signal(signal)?;
        let status = agent.wait(STOP_DEADLINE)?;
        ensure!(status.code() == Some(0), "{signal}: {status}: {}", agent.log());
        // The kernel frees the programs a moment later.
        within(LOG_DEADLINE, "its programs are gone", || Ok((!programs.iter().any(|id| is_loaded(id))).then_some(())))?;
    }
    Ok(())
}

/// Returns the ids of the BPF programs that a process holds open.
pub(crate) fn programs_of(pid: u32) -> Result<BTreeSet<String>> {
    let mut ids = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // The process may close a descriptor before this read.
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        ids.extend(text.lines().filter_map(|line| Some(line.strip_prefix("prog_id:")?.trim().to_owned())));
    }
    Ok(ids)
}

pub(crate) fn is_loaded(id: &str) -> bool {
    Command::new("bpftool").args(["prog", "show", "id", id]).output().is_ok_and(|output| output.status.success())
}

/// Rewrites the agent's configuration file and asks for a reload. An agent without stacks stays without them.
fn reload(agent: &Agent, yaml: &str) -> Result<()> {
    let before = fs::read_to_string(agent.directory().join("podperf.yaml"))?;
    let stacks = if before.contains(NO_STACKS) { NO_STACKS } else { "" };
    agent::command(agent.directory(), &format!("{stacks}{yaml}"))?;
    agent.signal(Signal::SIGHUP)
}

fn a_changed_depth_takes_effect_without_a_restart() -> Result<()> {
    let outer = TestCgroup::new("reload")?;
    let inner = outer.child("inner")?;
    let mut agent = Agent::start("cgroups: {depth: 1}")?;
    let oncpu = |agent: &Agent, cgroup: &TestCgroup| -> Result<Option<f64>> {
        let metrics = agent.fresh_metrics()?;
        Ok(metrics.get("podperf_cgroup_oncpu_seconds_total", &[("cgroup", cgroup.kernel_path())]))
    };
    let before: CpuReport = run_load(inner.path(), &["spin", "--seconds", "0.2"])?;
    let burnt = Duration::from_nanos(before.inside.cpu_ns).as_secs_f64();
    let outer_before = oncpu(&agent, &outer)?.context("no row for the outer cgroup")?;
    ensure!(outer_before >= burnt * 0.98, "burnt {burnt} s inside, the outer row has {outer_before}");
    ensure!(oncpu(&agent, &inner)?.is_none(), "a row below the depth");

    reload(&agent, "cgroups: {depth: 2}")?;
    agent.wait_for_log("configuration reloaded", LOG_DEADLINE)?;
    let after: CpuReport = run_load(inner.path(), &["spin", "--seconds", "0.1"])?;
    let burnt = Duration::from_nanos(after.inside.cpu_ns).as_secs_f64();
    let inner_after = oncpu(&agent, &inner)?.context("no row for the inner cgroup")?;
    ensure!((burnt * 0.98..burnt * 1.02 + 0.01).contains(&inner_after), "burnt {burnt} s, its row has {inner_after}");
    let outer_after = oncpu(&agent, &outer)?.context("the outer row is gone")?;
    ensure!(
        (outer_before..outer_before + 0.01).contains(&outer_after),
        "the outer row went from {outer_before} to {outer_after}"
    );
    Ok(())
}

fn a_changed_log_level_takes_effect_without_a_restart() -> Result<()> {
    let mut agent = Agent::start(&format!("{NO_STACKS}logLevel: info"))?;
    agent.fresh_metrics()?;
    agent.metrics()?;
    ensure!(!agent.log().contains("DEBUG"), "{}", agent.log());
    reload(&agent, "logLevel: debug")?;
    agent.wait_for_log("configuration reloaded", LOG_DEADLINE)?;
    // The agent merges the second signal into the first, and logs this at this level.
    agent.fresh_metrics()?;
    agent.metrics()?;
    agent.wait_for_log("DEBUG", LOG_DEADLINE)?;
    Ok(())
}

fn a_change_that_needs_a_restart_is_named() -> Result<()> {
    let mut agent = Agent::start(NO_STACKS)?;
    let config = agent.directory().join("podperf.yaml");
    let text = fs::read_to_string(&config)?;
    let changed = text.replace("listen: 127.0.0.1:0", "listen: 127.0.0.1:1") + "\notlp: {queue: 3}\n";
    ensure!(changed.contains("127.0.0.1:1"), "{text}");
    agent::replace_config(agent.directory(), &changed)?;
    agent.signal(Signal::SIGHUP)?;
    let line = agent.wait_for_log("need a restart", LOG_DEADLINE)?;
    ensure!(line.contains("WARN") && line.contains("listen, otlp"), "{line}");
    let metrics = agent.metrics().context("it listens where it did")?;
    ensure!(metrics.get("podperf_config_last_reload_successful", &[]) == Some(1.0), "the reload counts as failed");
    Ok(())
}

fn a_broken_file_keeps_the_old_configuration() -> Result<()> {
    let cgroup = TestCgroup::new("broken")?;
    let mut agent = Agent::start(&format!("{NO_STACKS}cgroups: {{depth: 1}}"))?;
    let row = |agent: &Agent| -> Result<bool> {
        Ok(agent
            .fresh_metrics()?
            .get("podperf_cgroup_oncpu_seconds_total", &[("cgroup", cgroup.kernel_path())])
            .is_some())
    };
    let succeeded = |agent: &Agent| -> Result<[f64; 2]> {
        let metrics = agent.metrics()?;
        let time = metrics.get("podperf_config_last_reload_success_timestamp_seconds", &[]).context("no time")?;
        Ok([metrics.get("podperf_config_last_reload_successful", &[]).context("no state")?, time])
    };
    let [ok, loaded] = succeeded(&agent)?;
    ensure!(ok == 1.0, "at the start the last reload was {ok}");
    for broken in ["cgroups: {depth: 0, dept: 1}", "cgroups: {depth: 0", "cgroups: {depth: 0, max: 1}"] {
        reload(&agent, broken)?;
        within(LOG_DEADLINE, "the failed reload shows", || Ok((succeeded(&agent)? == [0.0, loaded]).then_some(())))?;
    }
    let line = agent.wait_for_log("configuration not reloaded", LOG_DEADLINE)?;
    ensure!(line.contains("did you mean `depth`?"), "{line}");
    let _: CpuReport = run_load(cgroup.path(), &["spin", "--seconds", "0.05"])?;
    ensure!(row(&agent)?, "the depth of a broken file was taken");

    reload(&agent, "cgroups: {depth: 1, grace: 1m}")?;
    within(LOG_DEADLINE, "the mended file is taken", || {
        let [ok, time] = succeeded(&agent)?;
        Ok((ok == 1.0 && time > loaded).then_some(()))
    })
}

/// The kubelet replaces a ConfigMap's mounted file in the same way.
fn a_followed_file_takes_effect_by_itself_and_loses_no_count() -> Result<()> {
    let cgroup = TestCgroup::new("followed")?;
    let mut agent = Agent::start_changed(&agent::binary()?, "cgroups: {depth: 1}", |command| {
        command.arg("--follow-config");
    })?;
    let oncpu = |agent: &Agent| -> Result<f64> {
        let metrics = agent.fresh_metrics()?;
        let value = metrics.get("podperf_cgroup_oncpu_seconds_total", &[("cgroup", cgroup.kernel_path())]);
        value.context("no row for the cgroup")
    };
    let _: CpuReport = run_load(cgroup.path(), &["spin", "--seconds", "0.1"])?;
    let before = oncpu(&agent)?;
    ensure!(before > 0.09, "its row has {before}");
    let config = fs::read_to_string(agent.directory().join("podperf.yaml"))?;
    agent::replace_config(agent.directory(), &config.replace("depth: 1", "depth: 1, grace: 1m"))?;
    agent.wait_for_log("configuration reloaded", LOG_DEADLINE)?;
    let _: CpuReport = run_load(cgroup.path(), &["spin", "--seconds", "0.1"])?;
    let after = oncpu(&agent)?;
    ensure!(after > before + 0.09, "from {before} to {after}");
    Ok(())
}

/// `helm test` runs this command.
fn a_probe_asks_every_address_and_fails_by_name() -> Result<()> {
    let probe = |arguments: &[&str]| -> Result<(Option<i32>, String)> {
        let output = Command::new(agent::binary()?).arg("probe").args(arguments).output()?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    let agent = Agent::start(&format!("{NO_STACKS}nodeName: probed"))?;
    let url = format!("http://{}", agent.address());
    let (code, said) = probe(&[&url])?;
    ensure!(code == Some(0) && said.contains(" on node probed: ready, "), "{code:?}: {said}");
    ensure!(said.ends_with("1 of 1 agents are ready and count\n"), "{said}");
    let (code, said) = probe(&[&url, "http://127.0.0.1:1", "http://nobody.invalid:1"])?;
    ensure!(code == Some(1) && said.ends_with("1 of 3 agents are ready and count\n"), "{code:?}: {said}");
    let refused = said.lines().find(|line| line.starts_with("FAIL  http://127.0.0.1:1  Connection refused"));
    let hint = "(does an agent run there, and listen on this address?)";
    ensure!(refused.is_some_and(|line| line.ends_with(hint)), "{said}");
    ensure!(said.contains("FAIL  http://nobody.invalid:1  failed to look it up"), "{said}");
    // Without facts and counters the agent is ready and exports no facts.
    drop(agent);
    let idle = Agent::start("metrics: {facts: []}\nstacks: {enabled: false}\ncounters: {groups: []}")?;
    let (code, said) = probe(&[&format!("http://{}", idle.address())])?;
    ensure!(code == Some(1) && said.contains("ready, but counts nothing"), "{code:?}: {said}");
    Ok(())
}

fn flags_override_the_file() -> Result<()> {
    let directory = TempDir::new()?;
    let yaml =
        "nodeName: of-the-file\nlogLevel: error\ncgroups: {root: /nonexistent}\notlp: {endpoint: 'http://127.0.0.1:1'}";
    let mut command = agent::command(directory.path(), yaml)?;
    // The file's `listen` is 127.0.0.1.
    command.args(["--listen", "127.0.0.2:0", "--node-name", "of-the-flag", "--log-level", "debug"]);
    command.args(["--otlp-endpoint", "http://127.0.0.1:2"]).arg("--cgroup-root").arg(cgroup::mount_point()?);
    let mut started = Started::new(&mut command)?;
    let address = started.address()?;
    ensure!(address.ip().to_string() == "127.0.0.2", "it listens on {address}");
    let (_, status) = get_text(address, "/status")?;
    ensure!(status.contains("on node of-the-flag\n"), "{status}");
    ensure!(status.contains("http://127.0.0.1:2"), "{status}");
    let (_, metrics) = get_text(address, "/metrics")?;
    ensure!(metrics.contains("podperf_cgroup_oncpu_seconds_total{cgroup=\"/\"}"), "no row for `/`: {metrics}");
    get_text(address, "/metrics")?;
    ensure!(started.log().contains(" DEBUG "), "no debug line: {}", started.log());
    Ok(())
}
