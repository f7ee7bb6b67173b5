//! Pins: what keeps maps and programs in the kernel when the agent ends. A generation of them is a directory of bpffs,
//! named by its [`super::layout::Layout`] and a number, with `maps`, `programs` and `links`.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use aya::maps::MapData;
use nix::{
    fcntl::{Flock, FlockArg},
    sys::statfs::{FsType, statfs},
    unistd::{AccessFlags, access},
};
use thiserror::Error;

use super::{error::LoadError, object::Object};

/// `BPF_FS_MAGIC`.
const BPFFS: FsType = FsType(0xcafe_4a11);
/// A generation that is not whole yet.
const UNFINISHED: &str = "unfinished";
/// What all generations use.
const SHARED: &str = "shared";

/// A whole generation.
#[derive(Clone, Debug)]
pub(super) struct Generation {
    /// Its directory: layout and number.
    pub(super) name: String,
    /// See [`super::layout::Layout::name`].
    pub(super) layout: String,
    /// Another one each time.
    pub(super) number: u64,
}

impl Generation {
    /// The version of what its maps hold.
    pub(super) fn version(&self) -> &str {
        self.layout.split('-').next().unwrap_or_default()
    }
}

/// The directory of the pins. No other agent has it while this lives.
#[derive(Debug)]
pub struct Pins {
    root: PathBuf,
    _lock: Flock<File>,
}

/// Why nothing can be pinned.
#[derive(Debug, Error)]
pub enum PinsError {
    /// It is no part of a bpffs.
    #[error("`{0}` is not in a mounted bpffs (mount it: `mount -t bpf bpf /sys/fs/bpf`, or set `restart.pin: false`)")]
    NotMounted(PathBuf),
    /// Another agent has it.
    #[error(
        "another podperf agent has its pins in `{0}` (stop it, or set another `restart.directory`; in a cluster, keep one \
         release of the chart for each node)"
    )]
    Taken(PathBuf),
    /// It cannot be made or written to.
    #[error("failed to use `{path}` (make it writable, or set `restart.pin: false`)")]
    Io {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Pins {
    /// Makes the directory if it is not there, and locks it.
    ///
    /// # Errors
    ///
    /// When it is not in a bpffs, not writable, or another agent's.
    pub fn open(root: &Path) -> Result<Self, PinsError> {
        let failed = |source| PinsError::Io { path: root.to_owned(), source };
        if !is_bpffs(root) {
            return Err(PinsError::NotMounted(root.to_owned()));
        }
        fs::create_dir_all(root).map_err(failed)?;
        let lock = Flock::lock(File::open(root).map_err(failed)?, FlockArg::LockExclusiveNonblock);
        let lock = lock.map_err(|(_, error)| match error {
            nix::errno::Errno::EWOULDBLOCK => PinsError::Taken(root.to_owned()),
            error => failed(error.into()),
        })?;
        Ok(Self { root: root.to_owned(), _lock: lock })
    }

    /// Whether an agent could pin there, without a change and without the lock: how many generations there are.
    ///
    /// # Errors
    ///
    /// When it is not in a bpffs, or not writable.
    pub fn look(root: &Path) -> Result<usize, PinsError> {
        if !is_bpffs(root) {
            return Err(PinsError::NotMounted(root.to_owned()));
        }
        let there = root.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(root);
        let failed = |source| PinsError::Io { path: root.to_owned(), source };
        access(there, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|errno| failed(errno.into()))?;
        match generations(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            found => Ok(found.map_err(failed)?.len()),
        }
    }

    /// Where everything is.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The whole generations that are there.
    pub(super) fn generations(&self) -> io::Result<Vec<Generation>> {
        generations(&self.root)
    }

    /// What the kernel calls a map of a generation; `None` where it is not pinned.
    pub(super) fn map_id(&self, generation: &Generation, map: &str) -> Option<u32> {
        let map = MapData::from_pin(Object::pin_of(&self.of(&generation.name), map)).ok()?;
        Some(map.info().ok()?.id())
    }

    /// What all generations use.
    pub(super) fn shared(&self) -> PathBuf {
        self.of(SHARED)
    }

    /// An empty directory for it: no generation is left.
    pub(super) fn begin_shared(&self) -> io::Result<()> {
        self.remove(SHARED)?;
        fs::create_dir(self.shared())
    }

    /// The directory of one.
    pub(super) fn of(&self, generation: &str) -> PathBuf {
        self.root.join(generation)
    }

    pub(super) fn unfinished(&self) -> PathBuf {
        self.of(UNFINISHED)
    }

    pub(super) fn failed(&self, source: io::Error) -> LoadError {
        LoadError::Pins { path: self.root.clone(), source }
    }

    /// An empty directory for the pins of a generation, which is not there until it is finished.
    pub(super) fn begin(&self) -> io::Result<PathBuf> {
        self.remove(UNFINISHED)?;
        let path = self.unfinished();
        fs::create_dir(&path)?;
        Ok(path)
    }

    pub(super) fn finish(&self, generation: &str) -> io::Result<()> {
        fs::rename(self.unfinished(), self.of(generation))
    }

    /// Removes a generation. Its programs end, unless somebody else holds them.
    pub(super) fn remove(&self, generation: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.of(generation)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Removes all generations and the directory, and says which there were.
    ///
    /// # Errors
    ///
    /// When one cannot be removed.
    pub fn remove_all(&self) -> io::Result<Vec<String>> {
        let generations = self.generations()?;
        match fs::remove_dir_all(&self.root) {
            // A mount of its own, as the chart's `host.ownPinsOnly` makes it, stays and is empty.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && fs::read_dir(&self.root)?.next().is_none() => {
            }
            removed => removed?,
        }
        Ok(generations.into_iter().map(|generation| generation.name).collect())
    }
}

fn generations(root: &Path) -> io::Result<Vec<Generation>> {
    let names = fs::read_dir(root)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: io::Result<Vec<String>> = names.collect();
    let generation = |name: String| {
        let (layout, number) = name.rsplit_once('-')?;
        Some(Generation { layout: layout.to_owned(), number: number.parse().ok()?, name })
    };
    Ok(names?.into_iter().filter_map(generation).collect())
}

/// Whether a directory is in a bpffs, or would be.
fn is_bpffs(path: &Path) -> bool {
    let there = path.ancestors().find(|ancestor| ancestor.exists());
    there.is_some_and(|there| statfs(there).is_ok_and(|found| found.filesystem_type() == BPFFS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_elsewhere_is_refused_and_not_made() {
        let elsewhere = tempfile::tempdir().unwrap();
        let root = elsewhere.path().join("podperf");
        assert!(matches!(Pins::look(&root), Err(PinsError::NotMounted(_))));
        let error = Pins::open(&root).unwrap_err();
        assert!(matches!(error, PinsError::NotMounted(_)) && error.to_string().contains("mount -t bpf"), "{error}");
        assert!(!root.exists());
    }
}
