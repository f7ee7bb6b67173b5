//! File systems that are full or read-only.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::{self, Agent},
    bpffs::Bpffs,
    command::Refusal,
    suite::{Need, Test},
    tests,
};
use tempfile::TempDir;

use crate::{
    limits::message,
    table::{nothing_was_lost, row, serves_and_counts},
};

pub(crate) const TESTS: &[Test] = tests![
    #[land] an_agent_starts_although_its_run_directory_is_full: UNSHARE,
    #[land] a_run_directory_that_is_read_only_is_named: UNSHARE,
    #[land] #[exact] a_bpffs_that_is_read_only_costs_what_is_left_to_the_next_agent,
    a_recording_for_a_full_disk_says_so_and_harms_nobody: UNSHARE,
];

const UNSHARE: &[Need] = &[Need::Program("unshare")];
const FAILED: i32 = 1;

/// Returns a command that runs `command` in its own mount namespace, with a tmpfs of these options at `$0`, after a
/// shell command.
fn on_tmpfs(at: &Path, options: &str, script: &str, command: &Command) -> Command {
    let script = format!("mount -t tmpfs -o {options} none \"$0\" && {script} && exec \"$@\"");
    let mut own = Command::new("unshare");
    own.args(["--mount", "sh", "-c", &script]).arg(at).arg(command.get_program()).args(command.get_args());
    own
}

/// A shell command that fills a file system, and leaves its inodes.
const FILL: &str = "{ cat /dev/zero >\"$0/filler\" 2>/dev/null || :; }";

fn an_agent_starts_although_its_run_directory_is_full() -> Result<()> {
    let (directory, full) = (TempDir::new()?, TempDir::new()?);
    let mut agent = Agent::start_changed(&agent::binary()?, "", |command| {
        *command =
            on_tmpfs(full.path(), "size=64k,mode=700", FILL, &with_run_dir(directory.path(), full.path(), command));
    })?;
    let said = agent.wait_for_log("failed to write the pid into the lock", Duration::from_secs(10))?;
    nothing_was_lost(&serves_and_counts(&mut agent)?)?;
    row("run directory full (ENOSPC)", &format!("`{}`", message(&said)), "0");
    Ok(())
}

/// Returns the command line of the same agent with another run directory, and its configuration file in `directory`.
fn with_run_dir(directory: &Path, run_dir: &Path, agent: &Command) -> Command {
    let config = directory.join("podperf.yaml");
    let text = format!("listen: 127.0.0.1:0\nrunDir: {}\nrestart: {{pin: false}}\n", run_dir.display());
    fs::write(&config, text).ok();
    let mut command = Command::new(agent.get_program());
    // The options of a test agent follow its configuration.
    command.args(["agent", "--config"]).arg(config).args(agent.get_args().skip(3));
    command
}

fn a_run_directory_that_is_read_only_is_named() -> Result<()> {
    let (directory, read_only) = (TempDir::new()?, TempDir::new()?);
    let command = with_run_dir(directory.path(), read_only.path(), &Command::new(agent::binary()?));
    let refusal = Refusal::of(&mut on_tmpfs(read_only.path(), "ro,mode=700", ":", &command))?;
    refusal
        .expect(FAILED, &["failed to open lock `", "set `runDir` to a writable directory", "Read-only file system"])?;
    row("run directory read-only (EROFS)", &format!("exit code 1: `{}`", refusal.says.trim()), "0: it does not start");
    Ok(())
}

/// A bpffs has no size limit, so it cannot be full: its inodes are kernel memory, and without kernel memory no program
/// loads either.
fn a_bpffs_that_is_read_only_costs_what_is_left_to_the_next_agent() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    bpffs.make_read_only()?;
    let mut agent = Agent::start(&bpffs.yaml())?;
    let said = agent.wait_for_log("counts end with this agent", Duration::from_secs(1))?;
    for words in ["WARN", "degraded", "Read-only file system", "make it writable", "restart.pin: false"] {
        ensure!(said.contains(words), "{words}: {said}");
    }
    nothing_was_lost(&serves_and_counts(&mut agent)?)?;
    ensure!(!agent.directory().join("kept.state").exists(), "it keeps what nobody can go on with");
    row("bpffs read-only (EROFS)", &format!("`{}`", message(&said)), "0; what was counted, when the agent ends");
    Ok(())
}

fn a_recording_for_a_full_disk_says_so_and_harms_nobody() -> Result<()> {
    let mut agent = Agent::start("")?;
    let full = TempDir::new()?;
    let mut record = Command::new(agent::binary()?);
    let url = format!("http://{}", agent.address());
    record.args(["record", "--all", "--duration", "1s", "--agent", &url, "-o"]).arg(full.path().join("out.svg"));
    let refusal = Refusal::of(&mut on_tmpfs(full.path(), "size=4k", ":", &record))?;
    refusal.expect(FAILED, &["failed to write `", "No space left on device", "-o FILE"])?;
    let last = refusal.says.lines().last().unwrap_or_default().to_owned();
    ensure!(!last.is_empty(), "it said nothing");
    nothing_was_lost(&serves_and_counts(&mut agent)?)?;
    row("`record` onto a full disk (ENOSPC)", &format!("exit code 1: `{last}`"), "that recording");
    Ok(())
}
