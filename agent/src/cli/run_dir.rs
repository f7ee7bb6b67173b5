//! The run directory: its owner and mode, and the lock that keeps a second agent from running.
//!
//! The lock is an exclusive lock of the open file description, which only a process that may write the file can take. A
//! process that may only read the file can still take a shared lock and so block it: the agent then replaces the file.
//!
//! Agents of older versions take only `flock`, which the kernel keeps apart from that lock. So the agent takes `flock`
//! as well. The agent refuses to start where another process holds `flock` and the file names a living agent.

use std::{
    fs::{self, DirBuilder, File, Permissions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, FcntlArg, OFlag, RenameFlags, fcntl, renameat2},
    unistd::{AccessFlags, faccessat, geteuid},
};
use tracing::{debug, warn};

use crate::kernel::proc::read_text;

const LOCK: &str = "agent.lock";
/// The files that an agent leaves in the run directory.
const FILES: &[&str] = &[LOCK, "agent.new", "kept.state", "kept.new"];
const PROGRAM: &str = "podperf";
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

/// The process that prevents the lock from being taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Nobody,
    /// A process that may write the file: an agent.
    Writer,
    /// A process that perhaps may only read the file.
    Reader,
}

/// Takes the lock, and makes the directory if it is missing. Two agents on a node would count everything twice and cost
/// twice. So the second agent is refused while the first runs.
pub(super) fn lock(run_dir: &Path) -> anyhow::Result<File> {
    let path = lock_path(run_dir);
    let make = || DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(run_dir);
    make().with_context(|| cannot_open(&path))?;
    if is_to_be_closed(run_dir)? {
        fs::set_permissions(run_dir, Permissions::from_mode(DIRECTORY_MODE)).with_context(|| cannot_open(&path))?;
        // Files of older versions may be open to others.
        close_files(run_dir).with_context(|| cannot_open(&path))?;
    }
    let mut file = open(&path).with_context(|| cannot_open(&path))?;
    match take(&file).with_context(|| cannot_lock(&path))? {
        Holder::Nobody => {}
        Holder::Writer => return Err(another(&path)),
        Holder::Reader => {
            warn!(path = %path.display(), "a process that is no agent has locked the file, which is replaced");
            file = replace(&path, &file)?;
        }
    }
    // `flock` lasts as long as the other lock.
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) if names_an_agent(&path) => return Err(another(&path)),
        Err(TryLockError::WouldBlock) => {
            warn!(path = %path.display(), "a process that is no agent holds a `flock` on the file");
        }
        Err(TryLockError::Error(error)) => {
            debug!(path = %path.display(), %error, "an agent that takes `flock` would not be seen");
        }
    }
    let pid = std::process::id();
    let start = start_of(pid).unwrap_or_default();
    let told = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{pid} {start}"));
    if let Err(error) = told {
        // The lock works without the pid: a second agent is refused without the pid of the first.
        warn!(path = %path.display(), %error, "failed to write the pid into the lock (is its file system full?)");
    }
    Ok(file)
}

/// Checks that [`lock`] could open its file, and returns the pid of the agent that holds it. Changes nothing and locks
/// nothing: an agent that starts at this moment would not be refused.
pub(super) fn probe(run_dir: &Path) -> anyhow::Result<Option<u32>> {
    let path = lock_path(run_dir);
    if run_dir.is_dir() {
        is_to_be_closed(run_dir)?;
    }
    may_open(&path).with_context(|| cannot_open(&path))?;
    let Ok(file) = File::options().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(&path) else {
        return Ok(None);
    };
    Ok(if holder(&file)? == Holder::Writer { agent(&path) } else { None })
}

fn lock_path(run_dir: &Path) -> PathBuf {
    run_dir.join(LOCK)
}

fn cannot_open(path: &Path) -> String {
    format!("failed to open lock `{}` (set `runDir` to a writable directory)", path.display())
}

fn cannot_lock(path: &Path) -> String {
    format!("failed to take lock `{}` (set `runDir` to a directory of a local file system)", path.display())
}

fn another(path: &Path) -> anyhow::Error {
    anyhow::anyhow!(another_runs(path, agent(path), std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()))
}

/// Returns the error text for an agent that holds the lock, with the remedy. In a pod the chart sets `runDir`, and the
/// pid would be from another pid namespace.
fn another_runs(path: &Path, pid: Option<u32>, in_pod: bool) -> String {
    let remedy = "stop it, or set another `runDir`";
    match pid {
        _ if in_pod => format!(
            "another podperf agent is running on this node: it holds `{}` (keep one release of the chart for each node: \
             `helm list --all-namespaces` shows the other one)",
            path.display()
        ),
        Some(pid) => format!("another podperf agent is running, pid {pid} ({remedy})"),
        // The other agent has not written its pid yet, or runs in another pid namespace.
        None => format!("another podperf agent is running: it holds `{}` ({remedy})", path.display()),
    }
}

/// Refuses a directory in which another user could put files. Returns whether the directory's mode must be changed: the
/// agent does not close a directory that holds other files.
fn is_to_be_closed(run_dir: &Path) -> anyhow::Result<bool> {
    let (name, me) = (run_dir.display(), geteuid().as_raw());
    let own = |metadata: &fs::Metadata| metadata.uid() == me;
    let directory = fs::metadata(run_dir).with_context(|| cannot_open(&lock_path(run_dir)))?;
    ensure!(
        own(&directory),
        "run directory `{name}` belongs to user {} and not to user {me}, who runs the agent (chown it, or set another `runDir`)",
        directory.uid()
    );
    if directory.mode() & OTHERS == 0 {
        return Ok(false);
    }
    let entries = fs::read_dir(run_dir).with_context(|| cannot_open(&lock_path(run_dir)))?;
    let is_own = |entry: io::Result<fs::DirEntry>| {
        let Ok(entry) = entry else { return false };
        let file = entry.metadata().is_ok_and(|metadata| metadata.is_file() && own(&metadata));
        file && FILES.iter().any(|name| entry.file_name() == **name)
    };
    let only_own = entries.into_iter().all(is_own);
    ensure!(
        only_own || directory.mode() & OTHERS_WRITE == 0,
        "other users may write to run directory `{name}` (chmod it to 0700, or set another `runDir`)"
    );
    Ok(only_own)
}

/// Removes the permissions of other users from the agent's files.
fn close_files(run_dir: &Path) -> io::Result<()> {
    for name in FILES {
        match fs::set_permissions(run_dir.join(name), Permissions::from_mode(FILE_MODE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Opens or makes a file that no other user can open.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE).custom_flags(OFlag::O_NOFOLLOW.bits());
    let file = options.open(path)?;
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    Ok(file)
}

fn whole_file(kind: i32) -> libc::flock {
    let (l_type, l_whence) =
        (i16::try_from(kind).unwrap_or_default(), i16::try_from(libc::SEEK_SET).unwrap_or_default());
    libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Takes the lock if it is free, and otherwise returns its holder. The lock lasts as long as the file is open.
fn take(file: &File) -> io::Result<Holder> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK))) {
        Ok(_) => Ok(Holder::Nobody),
        Err(Errno::EAGAIN | Errno::EACCES) => match holder(file)? {
            // The lock was released just now.
            Holder::Nobody => Ok(Holder::Writer),
            holder => Ok(holder),
        },
        Err(error) => Err(error.into()),
    }
}

/// Returns the process that would prevent the lock from being taken. Does not take the lock.
fn holder(file: &File) -> io::Result<Holder> {
    let mut lock = whole_file(libc::F_WRLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(match i32::from(lock.l_type) {
        libc::F_UNLCK => Holder::Nobody,
        libc::F_RDLCK => Holder::Reader,
        _ => Holder::Writer,
    })
}

/// Replaces a lock file that a reader has `blocked`. The new file is locked before another process can see it.
fn replace(path: &Path, blocked: &File) -> anyhow::Result<File> {
    let new = path.with_extension("new");
    let make = || {
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = open(&new)?;
        Ok((take(&file)?, file))
    };
    let (holder, file) = make().with_context(|| cannot_open(&new))?;
    if holder != Holder::Nobody {
        return Err(another(path));
    }
    let exchange = || renameat2(AT_FDCWD, &new, AT_FDCWD, path, RenameFlags::RENAME_EXCHANGE);
    exchange().with_context(|| cannot_lock(path))?;
    // Another agent may have replaced the file at the same time. Then the exchange has moved that agent's file.
    let same = |at: &Path, file: &File| -> io::Result<bool> {
        let (there, file) = (fs::symlink_metadata(at)?, file.metadata()?);
        Ok((there.dev(), there.ino()) == (file.dev(), file.ino()))
    };
    if same(&new, blocked)? && same(path, &file)? {
        fs::remove_file(&new).with_context(|| cannot_open(&new))?;
        return Ok(file);
    }
    exchange().with_context(|| cannot_lock(path))?;
    bail!(another(path))
}

/// Returns the pid in the lock file, if the agent that wrote the pid is alive.
fn agent(path: &Path) -> Option<u32> {
    let text = text_of(path)?;
    // Agents that take `flock` wrote the pid alone.
    let (pid, start) = text.split_once(' ').map_or((&*text, None), |(pid, start)| (pid, Some(start)));
    let pid = pid.parse().ok()?;
    let since = start_of(pid)?;
    start.map_or_else(|| is_podperf(pid), |start| since == start).then_some(pid)
}

/// Returns whether a living agent wrote its pid into the lock file. A program of another name with that pid is no
/// agent.
fn names_an_agent(path: &Path) -> bool {
    agent(path).is_some_and(is_podperf)
}

fn text_of(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(64).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

/// Returns whether the process has the name or the program file of an agent.
fn is_podperf(pid: u32) -> bool {
    let name = read_text(format!("/proc/{pid}/comm")).unwrap_or_default();
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(PROGRAM) || program.starts_with(PROGRAM)
}

/// Returns the start time of a process from `/proc/PID/stat`: a pid may be used again.
fn start_of(pid: u32) -> Option<String> {
    let stat = read_text(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold spaces and brackets; `starttime` is the 20th field after it.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19).map(str::to_owned)
}

/// Checks that the file may be written. For a missing file, checks the nearest directory above it that exists.
fn may_open(path: &Path) -> io::Result<()> {
    let Some(there) = path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    if there != path && !there.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let access = if there == path { AccessFlags::R_OK } else { AccessFlags::X_OK };
    // Checks the effective user and capabilities, as `open` does.
    Ok(faccessat(AT_FDCWD, there, access | AccessFlags::W_OK, AtFlags::AT_EACCESS)?)
}

#[cfg(test)]
#[path = "run_dir_tests.rs"]
mod tests;
