//! Detects that a file was replaced. Each check reads the file's metadata only, so that it costs next to nothing.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Device, inode, time and size.
type Seen = (u64, u64, i64, i64, u64);

/// Follows the changes of one file.
#[derive(Debug)]
pub(super) struct Follower {
    path: Option<PathBuf>,
    seen: Option<Seen>,
}

impl Follower {
    /// Remembers the file as it is now. A follower of `None` never reports a change.
    pub(super) fn new(path: Option<&Path>) -> Self {
        let path = path.map(Path::to_owned);
        Self { seen: path.as_deref().and_then(look), path }
    }

    /// Returns whether the file has changed since the last call. A missing file counts as unchanged: it is being
    /// replaced.
    pub(super) fn changed(&mut self) -> bool {
        let now = self.path.as_deref().and_then(look);
        let changed = now.is_some() && now != self.seen;
        if changed {
            self.seen = now;
        }
        changed
    }
}

/// Reads the file's metadata through links: the links of a mounted ConfigMap lead to a new file when it changes.
fn look(path: &Path) -> Option<Seen> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.mtime(), file.mtime_nsec(), file.size()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_another_once_for_each_change() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "a").unwrap();
        let mut follower = Follower::new(Some(&path));
        assert!(!follower.changed());
        fs::write(&path, "ab").unwrap();
        assert_eq!([follower.changed(), follower.changed()], [true, false]);
        fs::remove_file(&path).unwrap();
        assert!(!follower.changed(), "it is gone");
        fs::write(&path, "ab").unwrap();
        assert!(follower.changed(), "it is back, as another");
    }

    #[test]
    fn a_mounted_config_map_changes_by_its_link() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for version in ["1", "2"] {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("file"), "x").unwrap();
        }
        symlink("1", at("..data")).unwrap();
        symlink("..data/file", at("file")).unwrap();
        let mut follower = Follower::new(Some(&at("file")));
        symlink("2", at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert!(follower.changed());
    }

    #[test]
    fn without_a_file_there_is_nothing_to_follow() {
        assert!(!Follower::new(None).changed());
    }
}
