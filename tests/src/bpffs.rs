//! A bpffs for one test: its pins are gone when it is unmounted.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

/// A mounted bpffs, which is unmounted on drop.
#[derive(Debug)]
pub struct Bpffs(TempDir);

impl Bpffs {
    /// Mounts a bpffs in a new directory.
    pub fn mount() -> Result<Self> {
        let directory = TempDir::new()?;
        let options: Option<&str> = None;
        mount(Some("bpf"), directory.path(), Some("bpf"), MsFlags::empty(), options)
            .context("failed to mount a bpffs")?;
        Ok(Self(directory))
    }

    /// Makes the file system read-only for all processes.
    pub fn make_read_only(&self) -> Result<()> {
        let options: Option<&str> = None;
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(Some("bpf"), self.path(), Some("bpf"), flags, options).context("failed to remount a bpffs")
    }

    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the directory for the pins of an agent.
    #[must_use]
    pub fn pins(&self) -> PathBuf {
        self.path().join("podperf")
    }

    /// Returns the configuration of an agent that pins there.
    #[must_use]
    pub fn yaml(&self) -> String {
        format!("restart: {{pin: true, directory: {}}}", self.pins().display())
    }
}

impl Drop for Bpffs {
    fn drop(&mut self) {
        umount2(self.path(), MntFlags::MNT_DETACH).ok();
    }
}
