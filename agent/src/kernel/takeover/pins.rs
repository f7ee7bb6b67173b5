//! Pins keep maps and programs in the kernel when the agent ends. A generation of pins is a directory in bpffs with
//! `maps`, `programs` and `links`. Its name is made of its [`super::layout::Layout`] and a number.

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

use crate::kernel::{error::LoadError, object::Object};

/// `BPF_FS_MAGIC`.
const BPFFS: FsType = FsType(0xcafe_4a11);
/// The directory of a generation that is not complete yet.
const UNFINISHED: &str = "unfinished";
/// The directory of the pins that all generations share.
const SHARED: &str = "shared";

/// A complete generation.
#[derive(Clone, Debug)]
pub(in crate::kernel) struct Generation {
    /// The name of its directory: layout and number.
    pub(in crate::kernel) name: String,
    /// See [`super::layout::Layout::name`].
    pub(in crate::kernel) layout: String,
    /// A number that no other generation in the directory has.
    pub(in crate::kernel) number: u64,
}

impl Generation {
    /// Returns the version of the layout of its maps.
    pub(in crate::kernel) fn version(&self) -> &str {
        self.layout.split('-').next().unwrap_or_default()
    }
}

/// The directory of the pins, locked against other agents until this is dropped.
#[derive(Debug)]
pub struct Pins {
    root: PathBuf,
    _lock: Flock<File>,
}

/// A reason why the agent cannot pin.
#[derive(Debug, Error)]
pub enum PinsError {
    /// The directory is not in a bpffs.
    #[error("`{0}` is not in a mounted bpffs (mount it: `mount -t bpf bpf /sys/fs/bpf`, or set `restart.pin: false`)")]
    NotMounted(PathBuf),
    /// Another agent has locked the directory.
    #[error(
        "another podperf agent has its pins in `{0}` (stop it, or set another `restart.directory`; in a cluster, keep one \
         release of the chart for each node)"
    )]
    Taken(PathBuf),
    /// The directory cannot be created or written to.
    #[error("failed to use `{path}` (make it writable, or set `restart.pin: false`)")]
    Io {
        /// The directory.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
}

impl Pins {
    /// Creates the directory if it does not exist, and locks it.
    ///
    /// # Errors
    ///
    /// When the directory is not in a bpffs, not writable, or locked by another agent.
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

    /// Checks that an agent could pin in a directory, without a change and without the lock. Returns the number of
    /// generations there.
    ///
    /// # Errors
    ///
    /// When the directory is not in a bpffs, or not writable.
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

    /// Returns the directory of all pins.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the complete generations in the directory.
    pub(in crate::kernel) fn generations(&self) -> io::Result<Vec<Generation>> {
        generations(&self.root)
    }

    /// Returns the kernel's id of a map of a generation; `None` if the map is not pinned.
    pub(in crate::kernel) fn map_id(&self, generation: &Generation, map: &str) -> Option<u32> {
        let map = MapData::from_pin(Object::pin_of(&self.of(&generation.name), map)).ok()?;
        Some(map.info().ok()?.id())
    }

    /// Returns the number of entries of a map of a generation, and the size of its values in bytes; `None` if the map
    /// is not pinned.
    pub(in crate::kernel) fn sizes(&self, generation: &Generation, map: &str) -> Option<(u32, usize)> {
        let map = MapData::from_pin(Object::pin_of(&self.of(&generation.name), map)).ok()?;
        let info = map.info().ok()?;
        Some((info.max_entries(), info.value_size() as usize))
    }

    /// Returns the directory of the pins that all generations share.
    pub(in crate::kernel) fn shared(&self) -> PathBuf {
        self.of(SHARED)
    }

    /// Creates an empty directory for the shared pins, when no generation is left.
    pub(in crate::kernel) fn begin_shared(&self) -> io::Result<()> {
        self.remove(SHARED)?;
        fs::create_dir(self.shared())
    }

    /// Returns the directory of a generation.
    pub(in crate::kernel) fn of(&self, generation: &str) -> PathBuf {
        self.root.join(generation)
    }

    pub(in crate::kernel) fn unfinished(&self) -> PathBuf {
        self.of(UNFINISHED)
    }

    pub(in crate::kernel) fn failed(&self, source: io::Error) -> LoadError {
        LoadError::Pins { path: self.root.clone(), source }
    }

    /// Creates an empty directory for the pins of a new generation. The generation appears under its name at
    /// [`Self::finish`].
    pub(in crate::kernel) fn begin(&self) -> io::Result<PathBuf> {
        self.remove(UNFINISHED)?;
        let path = self.unfinished();
        fs::create_dir(&path)?;
        Ok(path)
    }

    pub(in crate::kernel) fn finish(&self, generation: &str) -> io::Result<()> {
        fs::rename(self.unfinished(), self.of(generation))
    }

    /// Removes a generation. Its programs end, unless another process holds them.
    pub(in crate::kernel) fn remove(&self, generation: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.of(generation)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Removes all generations and the directory, and returns the names of the generations.
    ///
    /// # Errors
    ///
    /// When one cannot be removed.
    pub fn remove_all(&self) -> io::Result<Vec<String>> {
        let generations = self.generations()?;
        match fs::remove_dir_all(&self.root) {
            // A directory that is a mount of its own (the chart's `host.ownPinsOnly`) stays and is empty.
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

/// Returns true if a directory is in a bpffs, or would be there once it is created.
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
