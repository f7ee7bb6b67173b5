//! Opens files of other processes: only regular files, and only below the root of such a process. Debug files in the
//! agent's own cache are opened in the same way.

use std::{
    fs::{File, Metadata, OpenOptions},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    sys::{
        stat::Mode,
        statfs::{
            BPF_FS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC, FsType, PROC_SUPER_MAGIC,
            RDTGROUP_SUPER_MAGIC, SECURITYFS_MAGIC, SELINUX_MAGIC, SMACK_MAGIC, SYSFS_MAGIC, TRACEFS_MAGIC,
            XENFS_SUPER_MAGIC, fstatfs,
        },
    },
};

use super::{
    maps::{FileMapping, Vma},
    read_at::ReadAt,
    reader::Pulse,
};
use crate::model::ids::Pid;

/// Returns the processes that see the host's files: process 1 and, where access to that is denied, the agent itself if
/// it runs without a container.
pub(super) fn hosts() -> [Pid; 2] {
    [Pid(1), Pid(std::process::id())]
}

/// The file systems whose files the kernel makes up.
const MADE_UP: [FsType; 12] = [
    BPF_FS_MAGIC,
    CGROUP_SUPER_MAGIC,
    CGROUP2_SUPER_MAGIC,
    DEBUGFS_MAGIC,
    PROC_SUPER_MAGIC,
    RDTGROUP_SUPER_MAGIC,
    SECURITYFS_MAGIC,
    SELINUX_MAGIC,
    SMACK_MAGIC,
    SYSFS_MAGIC,
    TRACEFS_MAGIC,
    XENFS_SUPER_MAGIC,
];

/// The identity of a file's content. A pod can choose the inode, the time of the last write and the size of its files,
/// and its file system may have had the number of another one's device. But the kernel sets the time of the last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    /// It also changes when the file gets or loses a name.
    changed: (i64, i64),
    pub(super) size: u64,
}

impl FileId {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|metadata| Self::from(&metadata))
    }

    /// Returns whether the process that had the file `self` has the same one as `other`: it may have lost a name since.
    pub(super) fn is_still(self, other: Self) -> bool {
        Self { changed: self.changed, ..other } == self
    }
}

/// The identity of a file of an image's layer in all containers: each has a device of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LayerFile(FileId);

impl LayerFile {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        Ok(Self(FileId { device: 0, ..FileId::of(file)? }))
    }
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            size: metadata.size(),
        }
    }
}

/// An open file. Each read beats the pulse, and fails when no time is left. It must be closed on the thread that opened
/// it: a close may hang on the file's server as well.
#[derive(Debug)]
pub(super) struct Watched<'a> {
    pub(super) file: File,
    pub(super) pulse: &'a Pulse,
}

impl ReadAt for Watched<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.pulse.beat()?;
        self.file.read_at(buffer, offset)
    }
}

/// Opens the file that a process has mapped, even if it was deleted or replaced since.
pub(super) fn open_mapped(process: Pid, vma: &Vma, mapping: &FileMapping) -> io::Result<File> {
    let path = format!("/proc/{}/map_files/{:x}-{:x}", process.0, vma.start, vma.end);
    let by_path = || {
        let file = open_below(process, &mapping.path)?;
        let is_it = file.metadata()?.ino() == mapping.inode;
        is_it.then_some(file).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "another file has its path"))
    };
    // Without CAP_CHECKPOINT_RESTORE, the file is opened by its path.
    handle(path.as_ref()).and_then(|file| regular(&file)).or_else(|_| by_path())
}

/// Opens the memory of a process, which needs `CAP_SYS_PTRACE`.
pub(super) fn open_memory(process: Pid) -> io::Result<File> {
    File::open(format!("/proc/{}/mem", process.0))
}

/// Opens a path as a process sees it. Links lead to files of that process, too, and never to the agent's own.
pub(super) fn open_below(process: Pid, path: &str) -> io::Result<File> {
    let root = handle(format!("/proc/{}/root", process.0).as_ref())?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .mode(Mode::empty())
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = openat2(&root, path, how)?;
    regular(&file.into())
}

/// Opens a file of one of the agent's own directories by its name. A link there leads nowhere.
pub(super) fn open_inside(directory: &Path, name: &str) -> io::Result<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .mode(Mode::empty())
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    let file = openat2(&handle(directory)?, name, how)?;
    regular(&file.into())
}

/// Opens a handle without opening the file itself: opening a device or a pipe may have effects.
fn handle(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(path)
}

/// Opens a regular file by its handle. A file that the kernel makes up is refused, since reading it may have effects:
/// `/proc/kmsg` gives each line to one reader only.
fn regular(handle: &File) -> io::Result<File> {
    let is_made_up = match fstatfs(handle) {
        Ok(of) => MADE_UP.contains(&of.filesystem_type()),
        // A security module may refuse. Else, a file system that does not say its kind is no such one: some servers of
        // FUSE do not.
        Err(error) => matches!(error, Errno::EACCES | Errno::EPERM),
    };
    if is_made_up || !handle.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file with contents of its own"));
    }
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    // The thread may have its own table of descriptors.
    let path = format!("/proc/thread-self/fd/{}", handle.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Read as _, os::unix::fs::symlink};

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn a_link_in_a_directory_of_the_agent_leads_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), "content").unwrap();
        symlink("file", directory.path().join("link")).unwrap();
        let mut text = String::new();
        open_inside(directory.path(), "file").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        for refused in ["link", "../etc/passwd", "/etc/passwd", "none", "."] {
            open_inside(directory.path(), refused).expect_err(refused);
        }
    }

    #[test]
    fn a_file_that_is_written_again_has_another_identity_whatever_its_owner_sets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "good").unwrap();
        let file = || File::options().write(true).open(&path).unwrap();
        let (first, written) = (FileId::of(&file()).unwrap(), file().metadata().unwrap().modified().unwrap());
        assert_eq!(FileId::of(&file()).unwrap(), first);
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(&path, "evil").unwrap();
        file().set_modified(written).unwrap();
        let forged = FileId::of(&file()).unwrap();
        assert!(forged.is_still(first) && forged != first, "{forged:?}");
        fs::hard_link(&path, directory.path().join("second")).unwrap();
        assert!(FileId::of(&file()).unwrap().is_still(first));
        fs::write(&path, "another size").unwrap();
        assert!(!FileId::of(&file()).unwrap().is_still(first));
    }

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).into_os_string().into_string().unwrap();
        fs::write(path("file"), "content").unwrap();
        mkfifo(&*path("fifo"), Mode::S_IRWXU).unwrap();
        symlink(path("file"), path("link")).unwrap();
        symlink(path("loop"), path("loop")).unwrap();
        let own = Pid(std::process::id());
        let mut text = String::new();
        open_below(own, &path("link")).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        symlink("/proc/self/status", path("made-up")).unwrap();
        symlink("/sys/kernel/mm/transparent_hugepage/enabled", path("made-up-too")).unwrap();
        for refused in ["fifo", "loop", "none", ".", "made-up", "made-up-too"] {
            open_below(own, &path(refused)).expect_err(refused);
        }
        for refused in ["/dev/null", "/proc/self/exe", "/dev/zero"] {
            open_below(own, refused).expect_err(refused);
        }
    }
}
