//! The cgroup tree and the kernel's names as the agent's mounts show them: hidden, in part, or beside strange paths.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{self, Agent},
    cgroup::{self, TestCgroup},
    cluster::wait_for_part,
    command::{Refusal, through},
    suite::{Need, Test, within},
    tests,
};
use tempfile::TempDir;

use crate::checked::{Report, command};

pub(crate) const TESTS: &[Test] = tests![
    #[beside] a_mount_at_a_path_that_is_not_utf8_hides_no_other: &[UNSHARE],
    #[beside] the_visible_one_of_several_cgroup2_mounts_is_used: &[UNSHARE],
    #[beside] a_part_of_the_cgroup_tree_is_told_by_check_and_status: &[UNSHARE],
    #[beside] hidden_names_of_the_kernel_are_told_and_make_reasons_unknown: &[UNSHARE],
];

const UNSHARE: Need = Need::Program("unshare");
const NO_EVENTS: &str = "counters: {groups: []}\nstacks: {onCpuHertz: 0}";
/// Waits at a new place may appear a minute late.
const DEADLINE: Duration = Duration::from_secs(90);

/// Returns a wrapper that runs a command in its own mount namespace, after a shell command.
fn among_other_mounts(script: &str) -> Vec<String> {
    let script = format!("{script} && exec \"$@\"");
    ["unshare", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
}

fn check(wrapper: &[String]) -> Result<Report> {
    let directory = TempDir::new()?;
    Report::of(|| through(wrapper, &command(directory.path(), NO_EVENTS)?))
}

fn start(wrapper: &[String]) -> Result<Agent> {
    let (program, arguments) = wrapper.split_first().context("an empty wrapper")?;
    Agent::start_changed(&agent::binary()?, NO_EVENTS, |command| {
        let mut wrapped = Command::new(program);
        wrapped.args(arguments).arg(command.get_program()).args(command.get_args());
        *command = wrapped;
    })
}

fn a_mount_at_a_path_that_is_not_utf8_hides_no_other() -> Result<()> {
    let directory = TempDir::new()?;
    let path = format!("\"{}/$(printf 'caf\\351')\"", directory.path().display());
    let report = check(&among_other_mounts(&format!("mkdir -p {path} && mount -t tmpfs none {path}")))?;
    report.expect("cgroup2", "cgroup2-found", "healthy")?;
    report.expect_verdict("usable", &[])
}

fn the_visible_one_of_several_cgroup2_mounts_is_used() -> Result<()> {
    let (elsewhere, first) = (TempDir::new()?, cgroup::mount_point()?.display().to_string());
    let elsewhere = elsewhere.path().display().to_string();
    let hide = format!("mount -t tmpfs none {first}");
    let report = check(&among_other_mounts(&format!("mount -t cgroup2 none {elsewhere} && {hide}")))?;
    report.expect("cgroup2", "cgroup2-found", "healthy")?.names(&[&elsewhere])?;
    let wrapper = among_other_mounts(&hide);
    let report = check(&wrapper)?;
    let line = report.expect("cgroup2", "cgroup2-hidden", "unsupported")?;
    line.names(&[&first, "`--cgroup-root DIR`"])?;
    let directory = TempDir::new()?;
    let agent = agent::command(directory.path(), NO_EVENTS)?;
    Refusal::of(&mut through(&wrapper, &agent)?)?.expect(3, &[&line.agents_words()])
}

/// Starts a check and an agent that see one cgroup: in a cgroup namespace, as in a container of Docker, and by a bind
/// mount.
fn a_part_of_the_cgroup_tree_is_told_by_check_and_status() -> Result<()> {
    let (cgroup, tree) = (TestCgroup::new("part")?, cgroup::mount_point()?.display().to_string());
    let part = cgroup.path().display();
    let join = ["sh", "-c", &format!("echo 0 >{part}/cgroup.procs && exec \"$@\""), "sh"].map(str::to_owned).to_vec();
    let mount = format!("umount --all --lazy --types cgroup2 && mount -t cgroup2 none {tree}");
    let in_namespace = [join, vec!["unshare".to_owned(), "--cgroup".to_owned()], among_other_mounts(&mount)].concat();
    for wrapper in [in_namespace, among_other_mounts(&format!("mount --bind {part} {tree}"))] {
        let report = check(&wrapper)?;
        report.expect("cgroup2", "cgroup2-part", "degraded")?.names(&[&tree, "`--cgroupns=host`"])?;
        report.expect_verdict("degraded", &["cgroup2"])?;
        wait_for_part(&start(&wrapper)?, "cgroup2", "degraded", &["`--cgroupns=host`"])?;
    }
    Ok(())
}

/// As with `kernel.kptr_restrict=2`, and as in a kernel without `CONFIG_KALLSYMS`.
fn hidden_names_of_the_kernel_are_told_and_make_reasons_unknown() -> Result<()> {
    let directory = TempDir::new()?;
    let shown = fs::read("/proc/kallsyms")?;
    let without_address = |line: &str| Some(format!("0000000000000000 {}\n", line.split_once(' ')?.1));
    let hidden: String = String::from_utf8_lossy(&shown).lines().filter_map(without_address).collect();
    let over_names = |name: &str, text: String| -> Result<Vec<String>> {
        let file = directory.path().join(name);
        fs::write(&file, text)?;
        Ok(among_other_mounts(&format!("mount --bind {} /proc/kallsyms", file.display())))
    };
    let (hidden, missing) = (over_names("hidden", hidden)?, over_names("missing", String::new())?);
    for (wrapper, way) in [(&missing, "CONFIG_KALLSYMS=y"), (&hidden, "`sysctl kernel.kptr_restrict=1`")] {
        let report = check(wrapper)?;
        report.expect("stacks", "stacks-without-names", "degraded")?.names(&["kernel names", way])?;
        report.expect_verdict("degraded", &["stacks"])?;
    }
    let agent = start(&hidden)?;
    wait_for_part(&agent, "stacks", "degraded", &["`sysctl kernel.kptr_restrict=1`"])?;
    let cgroup = TestCgroup::new("hidden")?;
    ensure!(cgroup.command().args(["sleep", "0.5"]).status()?.success());
    let waited = |reason: &str| -> Result<f64> {
        let labels = [("cgroup", cgroup.kernel_path()), ("reason", reason)];
        Ok(agent.metrics()?.get("podperf_cgroup_wait_seconds_total", &labels).unwrap_or_default())
    };
    within(DEADLINE, "the wait is counted", || Ok((waited("unknown")? >= 0.4).then_some(())))?;
    ensure!(waited("other")? == 0.0, "{} s of waits have a reason", waited("other")?);
    Ok(())
}
