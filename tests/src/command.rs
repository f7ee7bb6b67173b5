//! Command lines: of the agent, with any flags and as any user, and of the loads.

use std::{
    ffi::OsStr,
    fs::{self, File},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;

use crate::{load, process, suite::within};

/// The longest wait for a start or a refusal. Both take well below a second; a loaded machine gets more.
const DEADLINE: Duration = Duration::from_secs(30);

/// A started command line of the agent, which ends on drop.
#[derive(Debug)]
pub struct Started {
    child: Child,
    log: NamedTempFile,
}

/// The stderr and the exit code of a command that refused to run.
#[derive(Debug)]
pub struct Refusal {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// The whole of stderr.
    pub says: String,
}

impl Started {
    /// Starts a command, and stores its stderr in a file.
    pub fn new(command: &mut Command) -> Result<Self> {
        let log = NamedTempFile::new()?;
        process::bind_to_parent(command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(log.path())?);
        let child = command.spawn().with_context(|| format!("failed to start {command:?}"))?;
        Ok(Self { child, log })
    }

    /// Returns the id of the process. A program that replaces itself, such as `setpriv`, has the id of the agent.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the text that the command has written to stderr.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap_or_default()
    }

    /// Waits until the agent listens, and returns its address.
    pub fn address(&mut self) -> Result<SocketAddr> {
        within(DEADLINE, "the agent listens", || {
            if let Some(status) = self.child.try_wait()? {
                bail!("it ended ({status}):\n{}", self.log());
            }
            let log = self.log();
            let address = log.split("listening on http://").nth(1).and_then(|rest| rest.split(' ').next());
            Ok(address.and_then(|address| address.parse().ok()))
        })
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Other tests check how the agent ends on a signal.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Refusal {
    /// Runs a command that should end by itself.
    pub fn of(command: &mut Command) -> Result<Self> {
        let mut started = Started::new(command)?;
        let status = within(DEADLINE, "the agent refuses to run", || Ok(started.child.try_wait()?))
            .with_context(|| started.log())?;
        Ok(Self { code: status.code(), says: started.log() })
    }

    /// Checks that the command ended with this code, and that its stderr contains all these texts.
    pub fn expect(&self, code: i32, says: &[&str]) -> Result<()> {
        ensure!(self.code == Some(code), "exit code {:?} instead of {code}: {}", self.code, self.says);
        for text in says {
            ensure!(self.says.contains(text), "`{text}` is not in: {}", self.says);
        }
        Ok(())
    }
}

/// Returns `command` wrapped in `wrapper`, a program that executes its arguments.
pub fn through<S: AsRef<OsStr>>(wrapper: &[S], command: &Command) -> Result<Command> {
    let (program, arguments) = wrapper.split_first().context("an empty wrapper")?;
    let mut wrapped = Command::new(program);
    wrapped.args(arguments).arg(command.get_program()).args(command.get_args());
    Ok(wrapped)
}

/// Runs a load to its end in a cgroup, and returns its report.
pub fn run_load<T: DeserializeOwned>(cgroup: &Path, arguments: &[&str]) -> Result<T> {
    let mut command = load_command(cgroup, arguments)?;
    process::bind_to_parent(&mut command);
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command:?} failed: {}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns a command of `podperf-load` with these arguments and a cgroup to join.
pub fn load_command(cgroup: &Path, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(load::binary()?);
    command.args(arguments).arg("--cgroup").arg(cgroup);
    Ok(command)
}
