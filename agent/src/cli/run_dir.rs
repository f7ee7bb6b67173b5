//! The run directory: the lock that keeps a second agent from running.

use std::{
    fs,
    io::{self, Seek, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::Context;
use nix::{
    fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg},
    unistd::{AccessFlags, faccessat},
};
use tracing::warn;

/// Two agents on a node would count everything twice and cost twice: the second is refused while the first lives.
pub(super) fn lock(run_dir: &Path) -> anyhow::Result<Flock<fs::File>> {
    let path = lock_path(run_dir);
    let open = || {
        fs::create_dir_all(run_dir)?;
        fs::File::options().read(true).write(true).create(true).truncate(false).open(&path)
    };
    let file = open().with_context(|| cannot_open(&path))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            let pid = std::process::id();
            let told = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{pid}"));
            if let Err(error) = told {
                // The lock holds all the same; a second agent is refused without a name for the first.
                warn!(path = %path.display(), %error, "failed to write the pid into the lock (is its file system full?)");
            }
            Ok(lock)
        }
        Err(_) => {
            let pid = fs::read_to_string(&path).unwrap_or_default();
            anyhow::bail!("another podperf agent is running, pid {} (stop it, or set another `runDir`)", pid.trim())
        }
    }
}

/// Whether [`lock`] could open its file, and the pid of the agent that holds it. Changes nothing, and locks nothing: an
/// agent that starts at this moment would be refused.
pub(super) fn probe(run_dir: &Path) -> anyhow::Result<Option<u32>> {
    let path = lock_path(run_dir);
    may_open(&path).with_context(|| cannot_open(&path))?;
    let Ok(file) = fs::metadata(&path) else { return Ok(None) };
    let pid = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    Ok(pid.filter(|pid| holds(&locks, *pid, file.ino())))
}

fn lock_path(run_dir: &Path) -> PathBuf {
    run_dir.join("agent.lock")
}

fn cannot_open(path: &Path) -> String {
    format!("failed to open lock `{}` (set `runDir` to a writable directory)", path.display())
}

/// The file may be written if it is there; else its directory, or the one in which that would be made.
fn may_open(path: &Path) -> io::Result<()> {
    let Some(there) = path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    if there != path && !there.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let access = if there == path { AccessFlags::R_OK } else { AccessFlags::X_OK };
    // By the effective user and capabilities, as opening does.
    Ok(faccessat(AT_FDCWD, there, access | AccessFlags::W_OK, AtFlags::AT_EACCESS)?)
}

/// Whether `/proc/locks` has this process hold a lock on the file of this inode. Processes of other pid namespaces are
/// not in it. Pure.
fn holds(locks: &str, pid: u32, inode: u64) -> bool {
    locks.lines().any(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // `7: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF`
        matches!(fields.as_slice(), [_, "FLOCK", _, _, holder, file, ..]
            if *holder == pid.to_string() && file.rsplit(':').next() == Some(&inode.to_string()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_the_lock_is_told_from_others() {
        let locks = "\
            1: FLOCK  ADVISORY  WRITE 4711 00:19:1234 0 EOF\n\
            2: POSIX  ADVISORY  WRITE 4712 00:19:1234 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 4713 00:19:1234 0 EOF\n";
        assert!(holds(locks, 4711, 1234));
        assert!(!holds(locks, 4711, 234) && !holds(locks, 711, 1234), "a part of a number");
        assert!(!holds(locks, 4712, 1234) && !holds(locks, 4713, 1234), "another kind of lock, or one that waits");
    }

    #[test]
    fn a_directory_that_would_be_made_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("a/b");
        assert_eq!(probe(&run_dir).unwrap(), None);
        assert!(!run_dir.parent().unwrap().exists());
    }

    #[test]
    fn what_is_no_directory_is_refused_as_by_the_agent() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let said = [probe(file.path()).map(drop), lock(file.path()).map(drop)].map(|result| result.unwrap_err());
        for error in said {
            let text = format!("{error:#}");
            assert!(text.starts_with("failed to open lock `") && text.contains("(set `runDir`"), "{text}");
        }
    }

    #[test]
    fn the_pid_of_a_lock_that_is_held_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let lock = lock(directory.path()).unwrap();
        assert_eq!(probe(directory.path()).unwrap(), Some(std::process::id()));
        drop(lock);
        assert_eq!(probe(directory.path()).unwrap(), None);
    }
}
