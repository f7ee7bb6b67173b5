//! One walk of the tree: the id of a cgroup is the inode number of its directory.

use std::{
    ffi::OsString,
    fs::{self, DirEntry},
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt,
    path::Path,
};

use nix::errno::Errno;

use crate::model::ids::CgroupId;

/// The cgroups that a walk found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Each cgroup with its path from the root of the walk.
    pub cgroups: Vec<(CgroupId, String)>,
    /// Paths of directories that could not be read in full: cgroups below them may live and be not found.
    pub unreadable: Vec<String>,
}

impl Found {
    /// Returns `true` if a cgroup of this path may live although the walk did not find it.
    #[must_use]
    pub fn may_miss(&self, path: &str) -> bool {
        let is_below = |directory: &String| path.strip_prefix(directory.trim_end_matches('/'));
        self.unreadable.iter().filter_map(is_below).any(|rest| rest.starts_with('/'))
    }
}

/// Returns every cgroup below `root`, itself included. Leaves out cgroups that vanish during the walk.
///
/// # Errors
///
/// Fails if `root` itself cannot be read.
pub fn walk(root: &Path) -> io::Result<Found> {
    let mut cgroups = vec![(CgroupId(fs::metadata(root)?.ino()), "/".to_owned())];
    // A name need not be UTF-8, so the path in the result may not lead to the directory.
    let mut directories = vec![root.to_owned()];
    let (mut next, mut unreadable) = (0, Vec::new());
    while next < cgroups.len() {
        let path = cgroups[next].1.clone();
        let directory = std::mem::take(&mut directories[next]);
        next += 1;
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if has_vanished(&error) => continue,
            Err(_) => {
                unreadable.push(path);
                continue;
            }
        };
        let mut is_whole = true;
        for entry in entries {
            match entry.and_then(|entry| cgroup(&entry)) {
                Ok(Some((id, name))) => {
                    cgroups.push((id, format!("{}/{}", path.trim_end_matches('/'), name.to_string_lossy())));
                    directories.push(directory.join(name));
                }
                Ok(None) => {}
                Err(error) => is_whole &= has_vanished(&error),
            }
        }
        if !is_whole {
            unreadable.push(path);
        }
    }
    Ok(Found { cgroups, unreadable })
}

/// Returns the id and the name of a directory, and `None` for a file.
fn cgroup(entry: &DirEntry) -> io::Result<Option<(CgroupId, OsString)>> {
    if !entry.file_type()?.is_dir() {
        return Ok(None);
    }
    Ok(Some((CgroupId(entry.metadata()?.ino()), entry.file_name())))
}

/// Returns `true` for the errors of a cgroup that is removed during the walk.
fn has_vanished(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ENODEV as i32)
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, fs::File, os::unix::ffi::OsStrExt as _};

    use nix::{
        fcntl::{OFlag, openat},
        sys::stat::{Mode, mkdirat},
    };

    use super::*;

    #[test]
    fn directories_are_found_with_their_paths_and_files_are_not() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a.slice/b.scope")).unwrap();
        fs::write(root.path().join("cgroup.procs"), "").unwrap();
        let found = walk(root.path()).unwrap();
        assert_eq!(found.unreadable, [""; 0]);
        let mut paths: Vec<_> = found.cgroups.into_iter().map(|(_, path)| path).collect();
        paths.sort();
        assert_eq!(paths, ["/", "/a.slice", "/a.slice/b.scope"]);
    }

    #[test]
    fn cgroups_below_a_name_of_any_bytes_are_found() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(OsStr::from_bytes(b"caf\xe9")).join("inner")).unwrap();
        let found = walk(root.path()).unwrap();
        let paths: Vec<_> = found.cgroups.iter().map(|(_, path)| path.as_str()).collect();
        assert_eq!(paths, ["/", "/caf\u{fffd}", "/caf\u{fffd}/inner"]);
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_named() {
        // Not even root can list this directory: its path is longer than the kernel takes.
        let root = tempfile::tempdir().unwrap();
        let name = "d".repeat(200);
        let mut directory = File::open(root.path()).unwrap();
        for _ in 0..=4096 / name.len() {
            mkdirat(&directory, &*name, Mode::S_IRWXU).unwrap();
            directory = openat(&directory, &*name, OFlag::O_DIRECTORY, Mode::empty()).unwrap().into();
        }
        let found = walk(root.path()).unwrap();
        let [directory] = &found.unreadable[..] else { panic!("{:?}", found.unreadable) };
        assert!(directory.starts_with(&format!("/{name}/")));
        let missed = ["/a", "/deep", directory, &format!("{directory}/a"), &format!("{directory}a/b")];
        assert_eq!(missed.map(|path| found.may_miss(path)), [false, false, false, true, false]);
        let all = Found { cgroups: Vec::new(), unreadable: vec!["/".into()] };
        assert!(all.may_miss("/a/b"));
    }

    #[test]
    fn a_root_that_is_not_there_is_an_error() {
        assert!(walk(Path::new("/no/such/directory")).is_err());
    }
}
