//! Three bpf(2) commands that bpftool does not offer, or not in all its versions. Each returns a file descriptor, and
//! the command's effect ends when that is closed.

#![expect(unsafe_code, reason = "bpf(2) has no safe form")]

use std::ffi::CString;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// `enum bpf_cmd` of linux/bpf.h.
const OBJ_GET: libc::c_long = 7;
const RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const ENABLE_STATS: libc::c_long = 32;

/// The member of `union bpf_attr` for `BPF_OBJ_GET`.
#[repr(C)]
struct ObjGet {
    path: u64,
    fd: u32,
    flags: u32,
}

/// The member of `union bpf_attr` for `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
struct RawTracepointOpen {
    name: u64,
    program: i32,
    padding: u32,
}

/// The member of `union bpf_attr` for `BPF_ENABLE_STATS`; type 0 is the run time.
#[repr(C)]
struct EnableStats {
    kind: u32,
    padding: u32,
}

/// Opens the object that is pinned at `path`.
pub fn pinned(path: &Path) -> Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = ObjGet { path: address(&path)?, fd: 0, flags: 0 };
    // SAFETY: the attributes are those of the command; the path outlives it.
    unsafe { bpf(OBJ_GET, &attributes) }.context("failed to open a pinned program")
}

/// Attaches a program to a raw tracepoint for as long as the result is open.
pub fn attach_raw_tracepoint(name: &str, program: &OwnedFd) -> Result<OwnedFd> {
    let tracepoint = CString::new(name)?;
    let attributes = RawTracepointOpen { name: address(&tracepoint)?, program: program.as_raw_fd(), padding: 0 };
    // SAFETY: the attributes are those of the command; the name outlives it.
    unsafe { bpf(RAW_TRACEPOINT_OPEN, &attributes) }
        .with_context(|| format!("failed to attach to raw tracepoint `{name}`"))
}

/// Makes the kernel measure each run of each program for as long as the result is open. Unlike the sysctl with the same
/// purpose, this setting ends with the process.
pub fn enable_run_statistics() -> Result<OwnedFd> {
    // SAFETY: the attributes are those of the command and hold no pointer.
    unsafe { bpf(ENABLE_STATS, &EnableStats { kind: 0, padding: 0 }) }
        .context("failed to enable BPF statistics (needs root)")
}

fn address(text: &CString) -> Result<u64> {
    Ok(u64::try_from(text.as_ptr().addr())?)
}

/// # Safety
///
/// `attributes` must be the member of `union bpf_attr` for `command`, which
/// must be one that returns a file descriptor.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> Result<OwnedFd> {
    // SAFETY: the kernel reads size_of::<T>() bytes and takes the rest as zero.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    if fd < 0 {
        bail!(std::io::Error::last_os_error());
    }
    // SAFETY: the command has just returned this descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd)?) })
}
