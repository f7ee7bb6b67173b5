//! The BTF of the maps gives field names to programs that dump them.

use std::{collections::HashSet, env, fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::Agent, cgroup::TestCgroup, load::sleepers::SleepersReport, programs::succeed, running::run, suite::Need,
};
use serde::Deserialize;

/// The usual place of `bpftool`, which is not on every user's path.
const SYSTEM: &str = "/usr/sbin/bpftool";

/// Returns the test's needs: `bpftool`, on the path or in its usual place.
pub(crate) fn needs() -> &'static [Need] {
    if fs::exists(SYSTEM).unwrap_or(false) { &[] } else { &[Need::Program("bpftool")] }
}

pub(crate) fn dumps_have_field_names() -> Result<()> {
    // Each reading empties the table, every ten seconds without a scrape. Waits below 10 ms are in the tasks' own
    // records until then.
    let agent = Agent::start("")?;
    let cgroup = TestCgroup::new("maps")?;
    let _: SleepersReport = run(&format!("sleepers --waits 50 --millis 20 --cgroup {}", cgroup.path().display()))?;
    for (map, fields) in [
        ("rows", ["id", "run_ns", "unprofiled_ns", "offcpu_ns", "minor_faults"].as_slice()),
        ("rows_by_id", &[]),
        ("cpus", &["cgroup", "idle_ns", "switches_recovered"]),
        ("samples", &["stack", "tgid", "activity", "last_ns"]),
        ("stack_cache", &["agreed", "uses", "wrong"]),
    ] {
        let dump = match map {
            "samples" => dump(&agent, "waits_even")? + &dump(&agent, "waits_odd")?,
            _ => dump(&agent, map)?,
        };
        for field in fields {
            ensure!(dump.contains(&format!("\"{field}\":")), "no `{field}` in the dump of `{map}`:\n{dump:.400}");
        }
    }
    for (map, field) in [("cgroups", "key"), ("rows", "id")] {
        let line = format!("\"{field}\": {}", cgroup.id());
        ensure!(dump(&agent, map)?.contains(&line), "no {} in the dump of `{map}`", cgroup.id());
    }
    Ok(())
}

/// Returns a map of this agent in `bpftool`'s form.
pub(crate) fn dump(agent: &Agent, map: &str) -> Result<String> {
    bpftool(&["map", "dump", "id", &id(agent, map)?])
}

/// Deletes a cgroup's entry from a map of this agent.
pub(crate) fn delete(agent: &Agent, map: &str, cgroup: &TestCgroup) -> Result<()> {
    let id = id(agent, map)?;
    let key = cgroup.id().to_ne_bytes().map(|byte| byte.to_string());
    let key: Vec<&str> = key.iter().map(String::as_str).collect();
    bpftool(&[&["map", "delete", "id", &id, "key"], &key[..]].concat()).map(drop)
}

/// Returns the id of a map of this agent. Other agents on the machine, and pins that an agent left, have maps of the same
/// names.
fn id(agent: &Agent, map: &str) -> Result<String> {
    let mut own = HashSet::new();
    for file in fs::read_dir(format!("/proc/{}/fdinfo", agent.pid()))? {
        // A file of another kind may be closed meanwhile.
        let text = fs::read_to_string(file?.path()).unwrap_or_default();
        own.extend(text.lines().find_map(|line| line.strip_prefix("map_id:")?.trim().parse::<u64>().ok()));
    }
    let shown: Vec<Shown> = serde_json::from_str(&bpftool(&["--json", "map", "show"])?)?;
    let id = shown.iter().find(|shown| shown.name.as_deref() == Some(map) && own.contains(&shown.id));
    Ok(id.with_context(|| format!("the agent has no map `{map}`"))?.id.to_string())
}

/// One map in `bpftool map show --json`.
#[derive(Deserialize)]
struct Shown {
    id: u64,
    name: Option<String>,
}

/// Returns the output of `bpftool`.
pub(crate) fn bpftool(arguments: &[&str]) -> Result<String> {
    let path = format!("{}:/usr/sbin", env::var("PATH").unwrap_or_default());
    Ok(String::from_utf8(succeed(Command::new("bpftool").env("PATH", path).args(arguments))?)?)
}
