//! A server program of the control plane, as a process.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::process;

/// Number of lines of the log that an error shows.
const LAST_LINES: usize = 30;

/// A running server. It is killed on drop: kube-apiserver ends slowly on a signal, and never without etcd.
#[derive(Debug)]
pub(super) struct Server {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts the server. Its log is appended to `<name>.log`.
    pub(super) fn start(name: &'static str, mut command: Command, directory: &Path) -> Result<Self> {
        let log = directory.join(name).with_extension("log");
        let file = File::options().create(true).append(true).open(&log)?;
        process::bind_to_parent(&mut command);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("failed to start {name}"))?;
        Ok(Self { name, child, log })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns an error with the server's log, if the server has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended ({status}):\n{}", self.name, self.log());
        }
        Ok(())
    }

    /// Returns the end of the server's log.
    pub(super) fn log(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(i32::try_from(self.child.id())?), signal)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
