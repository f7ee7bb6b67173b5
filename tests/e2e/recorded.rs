//! Runs `podperf record` in the background for the tests, and reads its file at the end.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use podperf_tests::{
    agent::{self, Agent},
    cgroup::TestCgroup,
    pprof::{self, Sample},
    process,
    suite::within,
};
use tempfile::TempDir;

use crate::profiles::WAIT_STACK;

/// The sensors load in well below a second; a loaded machine gets more.
const DEADLINE: Duration = Duration::from_secs(30);

/// A recording in progress. Drop ends it.
#[derive(Debug)]
pub(crate) struct Recording {
    child: Child,
    directory: TempDir,
    output: PathBuf,
}

/// Returns a command line of `podperf record` with this configuration.
pub(crate) fn command(directory: &Path, yaml: &str, arguments: &[&str]) -> Result<Command> {
    let agent = agent::command(directory, yaml)?;
    let mut command = Command::new(agent.get_program());
    command.arg("record").args(agent.get_args().skip(1)).args(arguments).current_dir(directory);
    Ok(command)
}

impl Recording {
    /// Starts a recording, with a file of this extension as its output. `yaml` is a configuration as the agent's.
    pub(crate) fn start(yaml: &str, extension: &str, arguments: &[&str]) -> Result<Self> {
        let directory = TempDir::new()?;
        let output = directory.path().join(format!("out.{extension}"));
        // The command does not contact an agent that may run on this machine.
        let mut command = command(directory.path(), yaml, arguments)?;
        process::bind_to_parent(&mut command);
        command.arg("-o").arg(&output).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(File::create(directory.path().join("log"))?).spawn()?;
        Ok(Self { child, directory, output })
    }

    /// Records a cgroup through an agent for this time, and returns the samples.
    pub(crate) fn of(agent: &Agent, cgroup: &TestCgroup, time: Duration) -> Result<Vec<Sample>> {
        let url = agent.address().to_string();
        let mut recording = Self::start("", "pb.gz", &[cgroup.kernel_path(), "--agent", &url, "--duration", "1m"])?;
        recording.begun()?;
        thread::sleep(time);
        recording.interrupt()?;
        recording.ended()?;
        pprof::samples(&recording.finish()?)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Waits until the recording has started.
    pub(crate) fn begun(&mut self) -> Result<()> {
        within(DEADLINE, "the recording begins", || {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended ({status})");
            }
            Ok(self.log().contains("recording ").then_some(()))
        })
        .with_context(|| self.log())
    }

    /// Sends the signal of Ctrl-C.
    pub(crate) fn interrupt(&self) -> Result<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGINT)?)
    }

    pub(crate) fn ended(&mut self) -> Result<ExitStatus> {
        within(DEADLINE, "the recording ends", || Ok(self.child.try_wait()?)).with_context(|| self.log())
    }

    /// Waits for the recording's end and returns its file. Besides the configuration and the log, no other file may
    /// remain.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>> {
        let status = self.ended()?;
        ensure!(status.success(), "{status}: {}", self.log());
        let files = fs::read_dir(self.directory.path())?.count();
        ensure!(files == 3, "{files} files are left");
        Ok(fs::read(&self.output)?)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Returns the nanoseconds of the stacks in which the sleepers wait.
pub(crate) fn slept(folded: &[u8]) -> Result<f64> {
    let text = std::str::from_utf8(folded)?;
    let mut sum = 0.0;
    for line in text.lines() {
        let (stack, nanoseconds) = line.rsplit_once(' ').with_context(|| format!("not folded: `{line}`"))?;
        let nanoseconds: f64 = nanoseconds.parse().with_context(|| format!("not folded: `{line}`"))?;
        let functions: Vec<&str> = stack.split(';').collect();
        let mut outermost_first = WAIT_STACK;
        outermost_first.reverse();
        if functions.windows(WAIT_STACK.len()).any(|names| names == outermost_first) {
            sum += nanoseconds;
        }
    }
    Ok(sum)
}
