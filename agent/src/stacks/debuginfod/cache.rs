//! The debug files on disk, in a directory of the agent's own. The next agent finds them there.
//!
//! A file appears under its name only when it is complete. Beyond the limit, the files go that were not used for the
//! longest time; an owner with more than a quarter of the cache loses its own files first. A file's time of use is its
//! time of modification. No content is looked at here: the thread for files checks the build id before each use.

use std::{
    collections::HashMap,
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg, OFlag},
    unistd::geteuid,
};

const MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const OTHERS_WRITE: u32 = 0o022;
const COMPLETE: &str = ".debug";
const UNFINISHED: &str = ".new";
/// The part of the cache that one file may take. The same part is for the file that is being written.
const LARGEST: u64 = 4;
/// The time of use is written again after this time.
const EXACT_TO: Duration = Duration::from_secs(60);
/// The lengths of build ids in hex.
const BUILD_IDS: std::ops::RangeInclusive<usize> = 8..=128;

/// The files in the directory.
#[derive(Debug)]
pub(super) struct Cache {
    directory: PathBuf,
    max_bytes: u64,
    files: HashMap<String, Kept>,
    /// Keeps other agents out.
    _lock: Flock<File>,
}

/// A complete file.
#[derive(Debug)]
pub(super) struct Kept {
    bytes: u64,
    used: SystemTime,
    /// `None` if an earlier agent left the file.
    pub(super) origin: Option<Origin>,
}

/// The way on which this agent got a file.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    /// The pod or the row of cgroups that needed the file.
    pub(super) owner: String,
    /// The address of the server, for messages.
    pub(super) server: String,
}

/// A file that is not complete yet. It is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Partial {
    file: File,
    path: PathBuf,
    received: u64,
}

/// Returns the name of the complete file in the directory.
pub(super) fn name_of(build_id: &str) -> String {
    format!("{build_id}{COMPLETE}")
}

/// Returns whether a text is a build id in hex, and so a safe part of a file's name.
pub(super) fn is_build_id(text: &str) -> bool {
    BUILD_IDS.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

impl Cache {
    /// Opens the directory, makes it if it is missing, and closes it to other users. Removes the files that an agent
    /// did not complete.
    ///
    /// # Errors
    ///
    /// When the directory cannot be used, belongs to another user, may be written to by others, or has another agent.
    pub(super) fn open(directory: &Path, max_bytes: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(MODE).create(directory)?;
        let refused = |reason| Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        let found = fs::symlink_metadata(directory)?;
        if !found.is_dir() || found.uid() != geteuid().as_raw() {
            return refused("it is a link, or belongs to another user");
        }
        if found.mode() & OTHERS_WRITE != 0 {
            return refused("other users may write to it");
        }
        fs::set_permissions(directory, Permissions::from_mode(MODE))?;
        let locked = Flock::lock(File::open(directory)?, FlockArg::LockExclusiveNonblock);
        let lock = locked.map_err(|(_, error)| match error {
            Errno::EWOULDBLOCK => io::Error::new(io::ErrorKind::WouldBlock, "another agent uses it"),
            error => error.into(),
        })?;
        let mut files = HashMap::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(UNFINISHED) {
                fs::remove_file(entry.path())?;
                continue;
            }
            let Some(build_id) = name.strip_suffix(COMPLETE).filter(|id| is_build_id(id)) else { continue };
            let metadata = entry.metadata()?;
            if metadata.is_file() {
                let kept = Kept { bytes: metadata.len(), used: metadata.modified()?, origin: None };
                files.insert(build_id.to_owned(), kept);
            }
        }
        let mut cache = Self { directory: directory.to_owned(), max_bytes, files, _lock: lock };
        cache.make_room(0, None)?;
        Ok(cache)
    }

    /// Returns the size of all complete files, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.files.values().map(|kept| kept.bytes).sum()
    }

    /// Returns the number of complete files.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the size that a file may have, in bytes.
    pub(super) const fn max_file(&self) -> u64 {
        self.max_bytes / LARGEST
    }

    /// Returns whether the complete file is there.
    pub(super) fn has(&mut self, build_id: &str) -> bool {
        let is_there = self.files.contains_key(build_id) && self.path(build_id).is_file();
        if !is_there {
            self.files.remove(build_id);
        }
        is_there
    }

    /// Begins a file, which is empty.
    pub(super) fn begin(&self, build_id: &str) -> io::Result<Partial> {
        let path = self.directory.join(format!("{build_id}.{}{UNFINISHED}", std::process::id()));
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(FILE_MODE).custom_flags(OFlag::O_NOFOLLOW.bits());
        Ok(Partial { file: options.open(&path)?, path, received: 0 })
    }

    /// Gives a file of `bytes` its name, after others have made room for it.
    ///
    /// # Errors
    ///
    /// When the file cannot be written to the disk, or no room can be made. Then it is not kept.
    pub(super) fn keep(&mut self, build_id: &str, partial: &Partial, bytes: u64, origin: Origin) -> io::Result<()> {
        // The name must not be on the disk before the content is.
        partial.file.sync_all()?;
        self.make_room(bytes, Some(&origin.owner))?;
        fs::rename(&partial.path, self.path(build_id))?;
        self.files.insert(build_id.to_owned(), Kept { bytes, used: SystemTime::now(), origin: Some(origin) });
        Ok(())
    }

    /// Notes that a file is in use.
    pub(super) fn used(&mut self, build_id: &str) {
        let (path, now) = (self.path(build_id), SystemTime::now());
        let Some(kept) = self.files.get_mut(build_id) else { return };
        if now.duration_since(kept.used).is_ok_and(|age| age < EXACT_TO) {
            return;
        }
        kept.used = now;
        // If this fails, the file is older than it should be for the next agent only.
        File::open(path).and_then(|file| file.set_modified(now)).ok();
    }

    /// Removes a file, and returns it; `None` if there was no such file.
    pub(super) fn remove(&mut self, build_id: &str) -> io::Result<Option<Kept>> {
        if !self.files.contains_key(build_id) {
            return Ok(None);
        }
        match fs::remove_file(self.path(build_id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(self.files.remove(build_id)),
        }
    }

    /// Removes the files that were not used for the longest time, until a file of `bytes` for this owner fits beside
    /// one that is being written. As long as the owner's files and the new one take more than a quarter of the cache,
    /// the owner's files go first.
    fn make_room(&mut self, bytes: u64, owner: Option<&str>) -> io::Result<()> {
        let room = (self.max_bytes - self.max_file()).saturating_sub(bytes);
        while self.bytes() > room {
            let is_own = |kept: &Kept| kept.origin.as_ref().is_some_and(|origin| Some(&*origin.owner) == owner);
            let own: u64 = self.files.values().filter(|kept| is_own(kept)).map(|kept| kept.bytes).sum();
            let own_go_first = own > 0 && own + bytes > self.max_file();
            let files = self.files.iter().filter(|(_, kept)| !own_go_first || is_own(kept));
            let oldest = files.min_by_key(|(_, kept)| kept.used).map(|(build_id, _)| build_id.clone());
            let Some(oldest) = oldest else { break };
            self.remove(&oldest)?;
        }
        Ok(())
    }

    fn path(&self, build_id: &str) -> PathBuf {
        self.directory.join(name_of(build_id))
    }
}

impl Partial {
    /// Appends bytes.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.received += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Returns the number of all bytes that were appended, also of those that are no longer in the file.
    pub(super) const fn received(&self) -> u64 {
        self.received
    }

    /// Empties the file.
    pub(super) fn empty(&mut self) -> io::Result<()> {
        self.file.rewind()?;
        self.file.set_len(0)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // A complete file has another name by then.
        fs::remove_file(&self.path).ok();
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    const MAX: u64 = 1600;

    fn id(number: u8) -> String {
        format!("{number:02x}").repeat(20)
    }

    fn directory() -> (TempDir, PathBuf) {
        let top = tempfile::tempdir().unwrap();
        let directory = top.path().join("cache/debuginfod");
        (top, directory)
    }

    fn write(cache: &mut Cache, number: u8, bytes: u16) {
        write_for(cache, "/a", number, bytes);
    }

    fn write_for(cache: &mut Cache, owner: &str, number: u8, bytes: u16) {
        let mut partial = cache.begin(&id(number)).unwrap();
        partial.append(b"of another server").unwrap();
        partial.empty().unwrap();
        partial.append(&vec![number; usize::from(bytes)]).unwrap();
        let origin = Origin { owner: owner.into(), server: "http://x".into() };
        cache.keep(&id(number), &partial, bytes.into(), origin).unwrap();
    }

    /// Sets the time of use to this number of hours ago.
    fn age(directory: &Path, number: u8, hours: u64) {
        let file = File::open(directory.join(name_of(&id(number)))).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600 * hours)).unwrap();
    }

    fn kept(cache: &mut Cache) -> Vec<u8> {
        (0..=9).filter(|number| cache.has(&id(*number))).collect()
    }

    #[test]
    fn the_least_recently_used_file_makes_room() {
        let (_top, directory) = directory();
        let mut cache = Cache::open(&directory, MAX).unwrap();
        // Three quarters of the limit are for complete files.
        for number in 1..=3 {
            write(&mut cache, number, 400);
        }
        assert_eq!((kept(&mut cache), cache.bytes(), cache.max_file()), (vec![1, 2, 3], 1200, 400));
        for (number, hours) in [(1, 3), (2, 2), (3, 1)] {
            age(&directory, number, hours);
        }
        // The next agent has the files, and the times of their use.
        drop(cache);
        let mut cache = Cache::open(&directory, MAX).unwrap();
        assert_eq!((kept(&mut cache), cache.bytes()), (vec![1, 2, 3], 1200));
        cache.used(&id(1));
        write(&mut cache, 4, 100);
        assert_eq!((kept(&mut cache), cache.bytes()), (vec![1, 3, 4], 900));
        drop(cache);
        let mut cache = Cache::open(&directory, MAX / 2).unwrap();
        assert_eq!(kept(&mut cache), [1, 4], "a smaller limit holds for old files, too");
        assert_eq!(fs::read(directory.join(name_of(&id(4)))).unwrap(), [4; 100]);
    }

    #[test]
    fn an_owner_over_its_share_loses_its_own_files_first() {
        let (_top, directory) = directory();
        let mut cache = Cache::open(&directory, MAX).unwrap();
        write_for(&mut cache, "quiet", 9, 100);
        for number in 1..=6 {
            write_for(&mut cache, "noisy", number, 350);
        }
        assert_eq!(kept(&mut cache), [4, 5, 6, 9]);
        // One within its share takes the place of the file that was not used for the longest time.
        write_for(&mut cache, "third", 7, 400);
        assert_eq!(kept(&mut cache), [5, 6, 7]);
    }

    #[test]
    fn two_agents_do_not_share_a_directory() {
        let (_top, directory) = directory();
        let first = Cache::open(&directory, MAX).unwrap();
        let error = Cache::open(&directory, MAX).unwrap_err();
        assert_eq!(error.to_string(), "another agent uses it");
        drop(first);
        Cache::open(&directory, MAX).unwrap();
    }

    #[test]
    fn a_torn_file_is_never_in_the_cache() {
        let (_top, directory) = directory();
        let mut cache = Cache::open(&directory, MAX).unwrap();
        let mut partial = cache.begin(&id(1)).unwrap();
        partial.append(b"half of it").unwrap();
        assert!(!cache.has(&id(1)) && cache.bytes() == 0);
        // As an agent leaves it that is killed.
        let left = directory.join(format!("{}.7{UNFINISHED}", id(2)));
        fs::copy(&partial.path, &left).unwrap();
        drop(partial);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "a file that was given up is gone");
        drop(cache);
        let mut cache = Cache::open(&directory, MAX).unwrap();
        assert!(!left.exists() && kept(&mut cache).is_empty());
    }

    #[test]
    fn a_file_that_was_removed_is_not_there() {
        let (_top, directory) = directory();
        let mut cache = Cache::open(&directory, MAX).unwrap();
        write(&mut cache, 1, 10);
        write(&mut cache, 2, 10);
        fs::remove_file(directory.join(name_of(&id(2)))).unwrap();
        assert!(cache.remove(&id(1)).unwrap().unwrap().origin.is_some());
        assert!(cache.remove(&id(1)).unwrap().is_none());
        assert!(kept(&mut cache).is_empty() && cache.bytes() == 0);
        write(&mut cache, 3, 10);
        drop(cache);
        let mut next = Cache::open(&directory, MAX).unwrap();
        assert!(next.remove(&id(3)).unwrap().unwrap().origin.is_none(), "an earlier agent wrote it");
    }

    #[test]
    fn the_directory_is_closed_and_one_of_others_is_refused() {
        let (top, directory) = directory();
        write(&mut Cache::open(&directory, MAX).unwrap(), 1, 10);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&directory), mode(&directory.join(name_of(&id(1))))), (0o700, 0o600));
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        Cache::open(&directory, MAX).unwrap();
        assert_eq!(mode(&directory), 0o700);
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        Cache::open(&directory, MAX).unwrap_err();
        let link = top.path().join("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        Cache::open(&link, MAX).unwrap_err();
    }

    #[test]
    fn only_a_build_id_is_part_of_a_name() {
        assert!(is_build_id(&id(1)) && is_build_id("0123cdef"));
        for text in ["", "0123cde", "../../etc", "0123CDEF", "0123cdeg", "0123cde/", &"0".repeat(130)] {
            assert!(!is_build_id(text), "{text}");
        }
    }
}
