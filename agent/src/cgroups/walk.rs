//! One walk of the tree: the id of a cgroup is the inode number of its directory.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use crate::model::ids::CgroupId;

/// Returns every cgroup below `root`, itself included, with its path from `root`. Leaves out cgroups that vanish during
/// the walk.
///
/// # Errors
///
/// Fails if `root` itself cannot be read.
pub fn walk(root: &Path) -> io::Result<Vec<(CgroupId, String)>> {
    let mut found = vec![(CgroupId(fs::metadata(root)?.ino()), "/".to_owned())];
    let mut next = 0;
    while next < found.len() {
        let path = found[next].1.clone();
        next += 1;
        let Ok(entries) = fs::read_dir(root.join(&path[1..])) else { continue };
        for entry in entries.flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            let name = entry.file_name();
            let parent = path.trim_end_matches('/');
            found.push((CgroupId(metadata.ino()), format!("{parent}/{}", name.to_string_lossy())));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_found_with_their_paths_and_files_are_not() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a.slice/b.scope")).unwrap();
        fs::write(root.path().join("cgroup.procs"), "").unwrap();
        let mut paths: Vec<_> = walk(root.path()).unwrap().into_iter().map(|(_, path)| path).collect();
        paths.sort();
        assert_eq!(paths, ["/", "/a.slice", "/a.slice/b.scope"]);
    }

    #[test]
    fn a_root_that_is_not_there_is_an_error() {
        assert!(walk(Path::new("/no/such/directory")).is_err());
    }
}
