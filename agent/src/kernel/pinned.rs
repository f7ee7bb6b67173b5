//! Reads what the kernel says about an object that is pinned in a bpffs.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use super::{proc::read_text, takeover::pins};

/// `BPF_OBJ_GET`.
const OBJ_GET: libc::c_long = 7;

/// `union bpf_attr`, the part for `BPF_OBJ_GET`.
#[repr(C)]
struct ObjGetAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Returns whether a directory is in a bpffs.
#[must_use]
pub fn is_bpffs(directory: &Path) -> bool {
    pins::is_bpffs(directory)
}

/// Returns the text in `/proc/self/fdinfo` of the pinned object at `path`, a program, a link or a map. The object is
/// open for this moment only.
///
/// # Errors
///
/// When the object cannot be opened, for instance because another user pinned it.
pub fn described_pin(path: &Path) -> io::Result<String> {
    let text = CString::new(path.as_os_str().as_bytes())?;
    let attr = ObjGetAttr { path: text.as_ptr() as u64, fd: 0, flags: 0 };
    // SAFETY: the attributes are those of the command, and the path outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, OBJ_GET, &raw const attr, size_of::<ObjGetAttr>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let number = RawFd::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the call has just returned this descriptor, so it has no other owner.
    let object = unsafe { OwnedFd::from_raw_fd(number) };
    read_text(format!("/proc/self/fdinfo/{}", object.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_outside_of_a_bpffs_is_no_object() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::write(&path, "no program").unwrap();
        assert!(!is_bpffs(directory.path()));
        described_pin(&path).unwrap_err();
    }
}
