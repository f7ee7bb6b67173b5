//! Cgroups that tests and loads make and remove again.
//!
//! They are real directories below the cgroup2 mount, so that the kernel's accounts per cgroup can be compared with
//! podperf's counts. The tests never enable controllers: the machine's own tree stays unchanged.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::deadline::Deadline;

/// The longest wait for the last process of a dropped cgroup to end.
const REMOVAL_DEADLINE: Duration = Duration::from_secs(10);

/// Makes the names unique: two cgroups of one test process never share a name.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A cgroup that exists as long as this value does.
///
/// Dropping it kills the processes that still run in it, and removes it with all cgroups below it.
#[derive(Debug)]
pub struct TestCgroup {
    path: PathBuf,
    kernel_path: String,
    id: u64,
}

impl TestCgroup {
    /// Makes a uniquely named cgroup directly below the cgroup2 mount.
    pub fn new(label: &str) -> Result<Self> {
        Self::below(&Mount::find()?.point, label)
    }

    /// Makes a uniquely named cgroup below the existing cgroup `parent`.
    pub fn below(parent: &Path, label: &str) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self::create(parent.join(format!("podperf-test-{}-{number}-{label}", process::id())))
    }

    /// Makes a uniquely named cgroup inside this one.
    pub fn child(&self, label: &str) -> Result<Self> {
        Self::below(&self.path, label)
    }

    /// Makes a cgroup of exactly this name directly below the cgroup2 mount.
    pub fn named(name: &str) -> Result<Self> {
        Self::create(Mount::find()?.point.join(name))
    }

    /// Makes a cgroup of exactly this name inside this one, for tests of the meaning of a name (`kubepods.slice`,
    /// `cri-containerd-<id>.scope`).
    pub fn child_named(&self, name: &str) -> Result<Self> {
        Self::create(self.path.join(name))
    }

    /// Returns the absolute directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path in the kernel's form: from the root of the cgroup2 tree, with a leading `/`.
    pub fn kernel_path(&self) -> &str {
        &self.kernel_path
    }

    /// Returns the cgroup id: the inode number of the directory.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the CPU time that the kernel has charged to this cgroup and all cgroups below it: `usage_usec` of
    /// `cpu.stat`, which needs no controller.
    pub fn cpu_usage(&self) -> Result<Duration> {
        cpu_usage(&self.path)
    }

    /// Moves a process, with all its threads, into this cgroup.
    pub fn add(&self, pid: u32) -> Result<()> {
        let procs = self.path.join("cgroup.procs");
        fs::write(&procs, pid.to_string()).with_context(|| format!("failed to write {pid} to `{}`", procs.display()))
    }

    /// Returns a command whose process joins this cgroup and then becomes the program of the command's arguments. The
    /// process ends with this one.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new("sh");
        crate::process::bind_to_parent(&mut command);
        command.args(["-c", "echo 0 >\"$0\" && exec \"$@\""]).arg(self.path.join("cgroup.procs"));
        command
    }

    fn create(path: PathBuf) -> Result<Self> {
        let mount = Mount::find()?;
        let kernel_path = mount.kernel_path(&path)?;
        fs::create_dir(&path).with_context(|| format!("failed to create cgroup `{}`", path.display()))?;
        let id = fs::metadata(&path).with_context(|| format!("failed to stat cgroup `{}`", path.display()))?.ino();
        Ok(Self { path, kernel_path, id })
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        // cgroup.kill reaches the whole subtree. Kernels before 5.14 lack it, and there a remaining process only gets
        // the time until the deadline.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        let deadline = Deadline::begin(REMOVAL_DEADLINE);
        while let Err(error) = remove_tree(&self.path) {
            if error.kind() == ErrorKind::NotFound || deadline.left().is_zero() {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Puts the calling process into the cgroup `directory`.
pub fn join(directory: &Path) -> Result<()> {
    let procs = directory.join("cgroup.procs");
    fs::write(&procs, "0").with_context(|| format!("failed to join `{}`", procs.display()))
}

/// Enables a controller for the cgroups below the root.
pub fn switch_on(controller: &str) -> Result<()> {
    fs::write(mount_point()?.join("cgroup.subtree_control"), format!("+{controller}"))
        .with_context(|| format!("failed to switch on the controller `{controller}`"))
}

/// Returns `usage_usec` of the cgroup `directory`.
pub fn cpu_usage(directory: &Path) -> Result<Duration> {
    let file = directory.join("cpu.stat");
    let text = fs::read_to_string(&file).with_context(|| format!("failed to read `{}`", file.display()))?;
    let micros = text
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec "))
        .with_context(|| format!("failed to find `usage_usec` in `{}`", file.display()))?;
    Ok(Duration::from_micros(micros.trim().parse()?))
}

/// Returns the directory under which the cgroup2 tree is mounted. On hybrid machines this is not `/sys/fs/cgroup`.
pub fn mount_point() -> Result<PathBuf> {
    Ok(Mount::find()?.point)
}

/// The mount point of the cgroup2 tree, and the part of the tree that is mounted there.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    root: String,
    point: PathBuf,
}

impl Mount {
    fn find() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("failed to read `/proc/self/mountinfo`")?;
        match Self::parse(&mounts) {
            Some(mount) => Ok(mount),
            None => bail!("failed to find a cgroup2 mount in `/proc/self/mountinfo`"),
        }
    }

    /// Parses the first cgroup2 line of a mountinfo file (proc_pid_mountinfo(5)).
    fn parse(mounts: &str) -> Option<Self> {
        mounts.lines().find_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            if after.split(' ').next() != Some("cgroup2") {
                return None;
            }
            let mut fields = before.split(' ').skip(3);
            let root = fields.next()?.to_owned();
            let point = PathBuf::from(fields.next()?);
            Some(Self { root, point })
        })
    }

    fn kernel_path(&self, path: &Path) -> Result<String> {
        let below = path
            .strip_prefix(&self.point)
            .with_context(|| format!("`{}` is not below `{}`", path.display(), self.point.display()))?;
        let root = self.root.trim_end_matches('/');
        Ok(format!("{root}/{}", String::from_utf8_lossy(below.as_os_str().as_bytes())))
    }
}

/// Removes the cgroup and the cgroups inside it, innermost first. The files in a cgroup directory belong to the kernel:
/// only directories are removed.
fn remove_tree(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_mount_of_a_hybrid_machine_is_found() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let mount = Mount::parse(mounts).expect("a cgroup2 line");
        assert_eq!(mount.point, Path::new("/sys/fs/cgroup/unified"));
        let inside = Path::new("/sys/fs/cgroup/unified/a/b");
        assert_eq!(mount.kernel_path(inside).expect("a path inside"), "/a/b");
    }
}
