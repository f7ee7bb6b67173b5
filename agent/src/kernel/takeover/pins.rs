//! Pins keep maps and programs in the kernel when the agent ends. A generation of pins is a directory in bpffs with
//! `maps`, `programs` and `links`. Its name is made of its [`super::layout::Layout`] and a number.
//!
//! A bpffs has no files that could be locked, so the lock in the run directory guards the pins. A link among the pins
//! names that directory. `flock` on the directory of the pins keeps out agents with another run directory, and agents
//! of older versions. A process that may only read the directory can take `flock`, too. So it counts only where the
//! link names another run directory: the lock of its own run directory is this agent's.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use aya::maps::MapData;
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::statfs::{FsType, statfs},
    unistd::{AccessFlags, access, geteuid},
};
use thiserror::Error;
use tracing::warn;

use crate::kernel::{error::LoadError, object::Object};

/// `BPF_FS_MAGIC`.
const BPFFS: FsType = FsType(0xcafe_4a11);
/// The directory of a generation that is not complete yet.
const UNFINISHED: &str = "unfinished";
/// The directory of the pins that all generations share.
const SHARED: &str = "shared";
/// The link that names the run directory whose lock guards the pins. Names in a bpffs have no dots.
const GUARD: &str = "guard";
const MODE: u32 = 0o700;
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

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
    /// `None` if a process that is no agent has it.
    _lock: Option<Flock<File>>,
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
    /// A process has locked the directory, and nothing shows whether it is an agent.
    #[error(
        "`{0}` is locked by a process that may be an agent of an older version with another `runDir` (end that \
         process, and restart this agent)"
    )]
    Locked(PathBuf),
    /// Another user made the directory, or a link in its place.
    #[error(
        "`{path}` belongs to user {owner} and not to user {me}, who runs the agent (remove it, or set another \
         `restart.directory`)"
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        me: u32,
    },
    /// Other users could put pins into the directory.
    #[error("other users may write to `{0}` (chmod it to 0700, or set another `restart.directory`)")]
    Open(PathBuf),
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
    /// Creates the directory if it does not exist, closes it to other users, and locks it. The caller has the lock of
    /// `run_dir`.
    ///
    /// # Errors
    ///
    /// When the directory is not in a bpffs, not writable, open to others, or locked by another agent.
    pub fn open(root: &Path, run_dir: &Path) -> Result<Self, PinsError> {
        let failed = |source| PinsError::Io { path: root.to_owned(), source };
        if !is_bpffs(root) {
            return Err(PinsError::NotMounted(root.to_owned()));
        }
        DirBuilder::new().recursive(true).mode(MODE).create(root).map_err(failed)?;
        close(root)?;
        Ok(Self { root: root.to_owned(), _lock: lock(root, run_dir)? })
    }

    /// Checks that an agent could pin in a directory, without a change and without the lock. Returns the number of
    /// generations there.
    ///
    /// # Errors
    ///
    /// When the directory is not in a bpffs, not writable, or another user may write to it.
    pub fn look(root: &Path) -> Result<usize, PinsError> {
        if !is_bpffs(root) {
            return Err(PinsError::NotMounted(root.to_owned()));
        }
        let there = root.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(root);
        let failed = |source| PinsError::Io { path: root.to_owned(), source };
        access(there, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|errno| failed(errno.into()))?;
        if there == root {
            is_to_be_closed(root)?;
        }
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

    /// Removes the pins of a generation that did not become complete.
    pub(in crate::kernel) fn abandon(&self) -> io::Result<()> {
        self.remove(UNFINISHED)
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
    Ok(names?.into_iter().filter_map(generation).collect())
}

/// Returns the generation with this name; `None` if no generation has such a name.
fn generation(name: String) -> Option<Generation> {
    let (layout, number) = name.rsplit_once('-')?;
    Some(Generation { layout: layout.to_owned(), number: number.parse().ok()?, name })
}

/// Removes the permissions of other users from a directory.
fn close(root: &Path) -> Result<(), PinsError> {
    if !is_to_be_closed(root)? {
        return Ok(());
    }
    let closed = fs::set_permissions(root, Permissions::from_mode(MODE));
    closed.map_err(|source| PinsError::Io { path: root.to_owned(), source })
}

/// Refuses a directory in which another user could put pins. Returns whether the directory's mode must be changed: the
/// agent does not close a directory with the pins of other programs.
fn is_to_be_closed(root: &Path) -> Result<bool, PinsError> {
    let failed = |source| PinsError::Io { path: root.to_owned(), source };
    let directory = fs::metadata(root).map_err(failed)?;
    // Another user may have made a link in the directory's place.
    let owners = [fs::symlink_metadata(root).map_err(failed)?.uid(), directory.uid()];
    let me = geteuid().as_raw();
    if let Some(owner) = owners.into_iter().find(|owner| *owner != me) {
        return Err(PinsError::Foreign { path: root.to_owned(), owner, me });
    }
    if directory.mode() & OTHERS_WRITE != 0 {
        return Err(PinsError::Open(root.to_owned()));
    }
    if directory.mode() & OTHERS == 0 {
        return Ok(false);
    }
    let is_own = |entry: io::Result<fs::DirEntry>| {
        let Ok(entry) = entry else { return false };
        let name = entry.file_name().to_string_lossy().into_owned();
        [UNFINISHED, SHARED, GUARD].contains(&name.as_str()) || generation(name).is_some()
    };
    Ok(fs::read_dir(root).map_err(failed)?.all(is_own))
}

/// Takes `flock` on the directory of the pins, and names this agent's run directory there. Returns `None` if a process
/// that is no agent has the lock.
fn lock(root: &Path, run_dir: &Path) -> Result<Option<Flock<File>>, PinsError> {
    let failed = |source| PinsError::Io { path: root.to_owned(), source };
    let run_dir = fs::metadata(run_dir).map_err(|source| PinsError::Io { path: run_dir.to_owned(), source })?;
    // In pods all run directories have the same path.
    let guard = PathBuf::from(format!("{:x}-{}", run_dir.dev(), run_dir.ino()));
    let link = root.join(GUARD);
    let directory = File::open(root).map_err(failed)?;
    match (Flock::lock(directory, FlockArg::LockExclusiveNonblock), fs::read_link(&link)) {
        (Ok(lock), Ok(named)) if named == guard => Ok(Some(lock)),
        (Ok(lock), named) => {
            // The last agent there had another run directory, or is of an older version.
            let removed = named.and_then(|_| fs::remove_file(&link));
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => symlink(&guard, &link).map_err(failed)?,
            }
            Ok(Some(lock))
        }
        (Err((_, Errno::EWOULDBLOCK)), Ok(named)) if named == guard => {
            warn!(path = %root.display(), "a process that is no agent has locked the directory of the pins");
            Ok(None)
        }
        (Err((_, Errno::EWOULDBLOCK)), Ok(_)) => Err(PinsError::Taken(root.to_owned())),
        (Err((_, Errno::EWOULDBLOCK)), Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            Err(PinsError::Locked(root.to_owned()))
        }
        (Err((_, Errno::EWOULDBLOCK)), Err(error)) => Err(failed(error)),
        (Err((_, error)), _) => Err(failed(error.into())),
    }
}

/// Returns true if a directory is in a bpffs, or would be there once it is created.
pub(in crate::kernel) fn is_bpffs(path: &Path) -> bool {
    let there = path.ancestors().find(|ancestor| ancestor.exists());
    there.is_some_and(|there| statfs(there).is_ok_and(|found| found.filesystem_type() == BPFFS))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    /// Returns a directory of this mode, and the guard that removes it.
    fn directory(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let top = tempfile::tempdir().unwrap();
        let root = top.path().join("podperf");
        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, Permissions::from_mode(mode)).unwrap();
        (top, root)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_directory_elsewhere_is_refused_and_not_made() {
        let elsewhere = tempfile::tempdir().unwrap();
        let root = elsewhere.path().join("podperf");
        assert!(matches!(Pins::look(&root), Err(PinsError::NotMounted(_))));
        let error = Pins::open(&root, elsewhere.path()).unwrap_err();
        assert!(matches!(error, PinsError::NotMounted(_)) && error.to_string().contains("mount -t bpf"), "{error}");
        assert!(!root.exists());
    }

    #[test]
    fn the_directory_is_closed_to_others_unless_others_have_pins_there() {
        let (_top, root) = directory(0o755);
        for name in ["5-c98621e1-1", "unfinished", "shared"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        close(&root).unwrap();
        assert_eq!(mode(&root), 0o700);
        let (_top, root) = directory(0o755);
        fs::create_dir(root.join("somebody")).unwrap();
        close(&root).unwrap();
        assert_eq!(mode(&root), 0o755);
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused() {
        for open in [0o1777, 0o775, 0o722] {
            let (_top, root) = directory(open);
            let text = close(&root).unwrap_err().to_string();
            assert!(text.starts_with("other users may write") && text.contains("chmod it to 0700"), "{text}");
            assert_eq!(mode(&root), open);
        }
    }

    #[test]
    fn a_directory_or_a_link_of_another_user_is_refused() {
        let says = |root: &Path| {
            let text = close(root).unwrap_err().to_string();
            assert!(text.contains("belongs to user") && text.contains("another `restart.directory`"), "{text}");
        };
        // Only root may change the owner; for other users `/` belongs to root.
        if !geteuid().is_root() {
            return says(Path::new("/"));
        }
        let (top, root) = directory(0o700);
        let link = top.path().join("link");
        symlink(&root, &link).unwrap();
        close(&link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        says(&link);
        chown(&root, Some(65534), None).unwrap();
        says(&root);
    }

    #[test]
    fn only_a_lock_that_another_agent_may_have_keeps_an_agent_out() {
        let (_top, root) = directory(0o700);
        let (mine, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let held = || Flock::lock(File::open(&root).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();

        let older_or_stranger = held();
        assert!(matches!(lock(&root, mine.path()), Err(PinsError::Locked(_))), "nothing says whose it is");
        drop(older_or_stranger);

        let agent = lock(&root, theirs.path()).unwrap();
        assert!(agent.is_some() && matches!(lock(&root, mine.path()), Err(PinsError::Taken(_))));
        drop(agent);
        assert!(lock(&root, mine.path()).unwrap().is_some(), "its run directory has changed");

        let stranger = held();
        assert!(lock(&root, mine.path()).unwrap().is_none(), "no other agent has the lock of this run directory");
        assert!(matches!(lock(&root, theirs.path()), Err(PinsError::Taken(_))));
        drop(stranger);
        assert!(lock(&root, mine.path()).unwrap().is_some());
    }
}
