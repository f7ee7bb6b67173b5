//! The cgroup2 mounts of this process, from `/proc/self/mountinfo`. The paths of mounts may have any bytes.

use std::{
    ffi::OsString,
    fs,
    os::unix::{ffi::OsStringExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use nix::sys::statfs::statfs;

use crate::model::ids::CgroupId;

/// `CGROUP2_SUPER_MAGIC` of `statfs(2)`.
const CGROUP2_MAGIC: i64 = 0x6367_7270;

/// A cgroup2 mount. Another mount may hide it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The path of the cgroup that is the root of the mount, in the cgroup namespace of this process.
    pub(super) root: PathBuf,
    /// The directory of the mount.
    pub(super) point: PathBuf,
}

/// Returns all cgroup2 mounts, in the order of the mount table.
pub(super) fn cgroup2_mounts() -> Vec<Mount> {
    parse(&fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// Returns the cgroup2 mounts of a mount table (proc_pid_mountinfo(5)). Pure.
pub(super) fn parse(mountinfo: &[u8]) -> Vec<Mount> {
    mountinfo.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// Returns the directory of the mount to use: the first visible mount of the whole tree, or else the first visible one.
/// Pure.
pub(super) fn choose(
    mounts: &[Mount],
    is_visible: impl Fn(&Path) -> bool,
    is_whole: impl Fn(&Path) -> bool,
) -> Option<&Path> {
    let visible = mounts.iter().map(|mount| mount.point.as_path()).filter(|point| is_visible(point));
    visible.min_by_key(|point| !is_whole(point))
}

/// Returns whether a path is in a cgroup2 tree. The path of a mount is not, if another mount hides that mount.
pub(super) fn is_cgroup2(path: &Path) -> bool {
    statfs(path).is_ok_and(|stat| stat.filesystem_type().0 == CGROUP2_MAGIC)
}

/// Returns whether a directory in a cgroup2 tree is the root of the machine's whole tree. It is not in a cgroup
/// namespace, or if only a part of the tree is mounted.
pub(super) fn is_whole(directory: &Path) -> bool {
    fs::metadata(directory).is_ok_and(|found| CgroupId(found.ino()) == CgroupId::ROOT)
}

fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (root, point) = (fields.nth(3)?, fields.next()?);
    // A hyphen ends the optional fields.
    let filesystem = fields.skip_while(|field| *field != b"-").nth(1)?;
    (filesystem == b"cgroup2").then(|| Mount { root: path(root), point: path(point) })
}

/// Returns the path in a field. The kernel writes spaces and some other bytes as a backslash and three octal digits.
fn path(mut field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    while let [first, rest @ ..] = field {
        let escaped = rest.get(..3).filter(|_| *first == b'\\').and_then(octal);
        bytes.push(escaped.unwrap_or(*first));
        field = if escaped.is_some() { &rest[3..] } else { rest };
    }
    OsString::from_vec(bytes).into()
}

fn octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn cgroup2_mounts_are_found_beside_paths_of_any_bytes() {
        let mountinfo = b"\
            31 24 0:27 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro\n\
            32 31 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            33 31 0:30 / /srv/archives-\xe9t\xe9 rw,relatime - tmpfs none rw\n\
            34 31 0:29 / /sys/fs/cgroup/my\\040unified rw,nosuid shared:9 master:1 - cgroup2 cgroup2 rw\n\
            35 31 0:29 /a\\134b /mnt/\xe9\\9 rw,nosuid - cgroup2 none rw\n";
        let found = parse(mountinfo);
        let bytes: Vec<_> =
            found.iter().map(|mount| (mount.root.as_os_str().as_bytes(), mount.point.as_os_str().as_bytes())).collect();
        let expected: [(&[u8], &[u8]); 2] = [(b"/", b"/sys/fs/cgroup/my unified"), (b"/a\\b", b"/mnt/\xe9\\9")];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_visible_mount_of_the_whole_tree_is_chosen_before_a_part_and_a_hidden_one() {
        let mounts = ["/hidden", "/part", "/whole"].map(|point| Mount { root: "/".into(), point: point.into() });
        let chosen = |mounts: &[Mount]| {
            let visible = |path: &Path| path != Path::new("/hidden");
            choose(mounts, visible, |path| path == Path::new("/whole")).map(Path::to_owned)
        };
        assert_eq!(chosen(&mounts), Some("/whole".into()));
        assert_eq!(chosen(&mounts[..2]), Some("/part".into()));
        assert_eq!(chosen(&mounts[..1]), None);
    }
}
