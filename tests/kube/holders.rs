//! The pods that hold BPF programs.

use anyhow::{Context as _, Result};
use podperf_tests::{
    agent::testing,
    bpf::Spinning,
    cluster::{BURN, Cluster, SHOP},
    control_plane::NEEDS,
    kubelet::Qos,
    suite::Test,
    tests,
};

pub(crate) const TESTS: &[Test] = tests![the_container_that_holds_a_program_is_named: NEEDS];

const INFO: &str = "podperf_node_bpf_program_info";
const NAME: &str = "podperf_held";

/// A process in the container gets the program as its standard input.
fn the_container_that_holds_a_program_is_named() -> Result<()> {
    let yaml = format!("{}stacks: {{enabled: true}}\n", testing("holdersEvery=200ms"));
    let cluster = Cluster::start("", &yaml)?;
    let mut pod = cluster.kubelet.pod(SHOP, "tracer", Qos::Burstable, &["app"])?;
    let running = pod.start("app", BURN)?;
    pod.report()?;
    let program = Spinning::load(NAME)?;
    let mut command = running.cgroup().command();
    let child = command.args(["sleep", "600"]).stdin(program.share()?).spawn();
    let mut child = child.context("failed to start `sleep`")?;
    drop(program);
    let place = [("namespace", SHOP), ("pod", "tracer"), ("container", "app"), ("cgroup", "")];
    let held = [&[("program", NAME), ("process", "sleep")][..], &place[..]].concat();
    let found = cluster.wait_for(INFO, &held, |series| series == 1.0);
    // The container's cgroup can only be removed without it.
    child.kill()?;
    child.wait()?;
    found?;
    pod.finish(running)?;
    Ok(())
}
