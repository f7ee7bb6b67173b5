//! Runs the agent as a user without privileges.

use std::{
    fs::{self, File},
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use podperf_tests::{agent, command::through, process::install};
use tempfile::TempDir;

/// The id of the unprivileged user, the same on every distribution.
pub(crate) const NOBODY: u32 = 65534;

/// Returns the beginning of a command line that runs as the unprivileged user.
pub(crate) fn as_nobody() -> Vec<String> {
    let id = NOBODY.to_string();
    ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"].map(str::to_owned).to_vec()
}

/// A directory of the unprivileged user. It holds the binary, its configuration and its lock, readable by any user.
pub(crate) struct ForNobody {
    directory: TempDir,
    binary: PathBuf,
}

impl ForNobody {
    pub(crate) fn new() -> Result<Self> {
        let directory = TempDir::new()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        chown(directory.path(), Some(NOBODY), Some(NOBODY))?;
        let binary = directory.path().join("podperf");
        install(File::open(agent::binary()?)?, &binary)?;
        Ok(Self { directory, binary })
    }

    /// Returns the directory of the configuration and the lock.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a command line of the agent as the unprivileged user, with some capabilities (`+bpf,+perfmon`).
    pub(crate) fn agent(&self, yaml: &str, capabilities: Option<&str>) -> Result<Command> {
        self.command(&agent::command(self.directory.path(), yaml)?, capabilities)
    }

    /// Returns a command line of the agent's binary as the unprivileged user, with some capabilities.
    pub(crate) fn command(&self, command: &Command, capabilities: Option<&str>) -> Result<Command> {
        let mut wrapper = as_nobody();
        if let Some(capabilities) = capabilities {
            wrapper.extend(["--inh-caps", capabilities, "--ambient-caps", capabilities].map(str::to_owned));
        }
        let mut copied = Command::new(&self.binary);
        copied.args(command.get_args());
        through(&wrapper, &copied)
    }
}
