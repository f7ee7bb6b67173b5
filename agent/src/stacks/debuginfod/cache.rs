//! The debug files on disk, in a directory of the agent's own. The next agent finds them there.
//!
//! A file appears under its name only when it is complete. Beyond the limit, the files go that were not used for the
//! longest time. A file's time of use is its time of modification. No content is looked at here: the thread for files
//! checks the build id before each use.

use std::{
    collections::HashMap,
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use nix::{fcntl::OFlag, unistd::geteuid};

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
}

#[derive(Debug)]
struct Kept {
    bytes: u64,
    used: SystemTime,
    /// Set if this agent wrote the file.
    is_new: bool,
}

/// A file that is not complete yet. It is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Partial {
    file: File,
    path: PathBuf,
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
    /// When the directory cannot be used, belongs to another user, or other users may write to it.
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
                let kept = Kept { bytes: metadata.len(), used: metadata.modified()?, is_new: false };
                files.insert(build_id.to_owned(), kept);
            }
        }
        let mut cache = Self { directory: directory.to_owned(), max_bytes, files };
        cache.make_room(0)?;
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
        Ok(Partial { file: options.open(&path)?, path })
    }

    /// Gives a file of `bytes` its name, after others have made room for it.
    ///
    /// # Errors
    ///
    /// When the file cannot be written to the disk, or no room can be made. Then it is not kept.
    pub(super) fn keep(&mut self, build_id: &str, partial: &Partial, bytes: u64) -> io::Result<()> {
        // The name must not be on the disk before the content is.
        partial.file.sync_all()?;
        self.make_room(bytes)?;
        fs::rename(&partial.path, self.path(build_id))?;
        self.files.insert(build_id.to_owned(), Kept { bytes, used: SystemTime::now(), is_new: true });
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

    /// Removes a file. Returns whether this agent wrote it; `None` if there was no such file.
    pub(super) fn remove(&mut self, build_id: &str) -> io::Result<Option<bool>> {
        if !self.files.contains_key(build_id) {
            return Ok(None);
        }
        match fs::remove_file(self.path(build_id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(self.files.remove(build_id).map(|kept| kept.is_new)),
        }
    }

    /// Removes the files that were not used for the longest time, until a file of `bytes` fits beside one that is being
    /// written.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        let room = (self.max_bytes - self.max_file()).saturating_sub(bytes);
        while self.bytes() > room {
            let oldest = self.files.iter().min_by_key(|(_, kept)| kept.used).map(|(build_id, _)| build_id.clone());
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
        self.file.write_all(bytes)
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
        let mut partial = cache.begin(&id(number)).unwrap();
        partial.append(b"of another server").unwrap();
        partial.empty().unwrap();
        partial.append(&vec![number; usize::from(bytes)]).unwrap();
        cache.keep(&id(number), &partial, bytes.into()).unwrap();
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
        assert_eq!(cache.remove(&id(1)).unwrap(), Some(true));
        assert_eq!(cache.remove(&id(1)).unwrap(), None);
        assert!(kept(&mut cache).is_empty() && cache.bytes() == 0);
        write(&mut cache, 3, 10);
        let mut next = Cache::open(&directory, MAX).unwrap();
        assert_eq!(next.remove(&id(3)).unwrap(), Some(false), "an earlier agent wrote it");
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
