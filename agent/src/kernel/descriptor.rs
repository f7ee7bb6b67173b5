//! `bpf(2)` commands for objects that aya cannot open with few privileges: for pinned programs, and so for iterators,
//! aya also reads the types, which needs `CAP_SYS_ADMIN`.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    ptr,
};

const OBJ_PIN: libc::c_long = 6;
const OBJ_GET: libc::c_long = 7;
const LINK_CREATE: libc::c_long = 28;
const ITER_CREATE: libc::c_long = 33;
/// The iterator's value of `enum bpf_attach_type`, and that of a perf event.
const TRACE_ITER: u32 = 28;
const PERF_EVENT: u32 = 41;

/// The attributes of `BPF_OBJ_PIN` and `BPF_OBJ_GET`.
#[repr(C)]
struct PinAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

/// The attributes of `BPF_LINK_CREATE`.
#[repr(C)]
struct LinkAttr {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    /// Only for a perf event: the value that the program asks for.
    cookie: u64,
}

/// The attributes of `BPF_ITER_CREATE`.
#[repr(C)]
struct IterAttr {
    link: u32,
    flags: u32,
}

/// Opens the object that is pinned at `path`.
pub(super) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    open(OBJ_GET, &PinAttr { path: path.as_ptr() as u64, fd: 0, flags: 0 })
}

/// Pins an object at `path`.
pub(super) fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attr = PinAttr { path: path.as_ptr() as u64, fd: number(fd), flags: 0 };
    command(OBJ_PIN, &attr).map(drop)
}

/// Attaches an iterator's program, and returns the link.
pub(super) fn attach_iterator(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (program, attach_type) = (number(program), TRACE_ITER);
    open(LINK_CREATE, &LinkAttr { program, target: 0, attach_type, flags: 0, cookie: 0 })
}

/// Makes a perf event call a program, and returns the link. `cookie` is the value that the program gets from
/// `bpf_get_attach_cookie`.
pub(super) fn attach_to_event(program: BorrowedFd<'_>, event: BorrowedFd<'_>, cookie: u64) -> io::Result<OwnedFd> {
    let (program, target, attach_type) = (number(program), number(event), PERF_EVENT);
    open(LINK_CREATE, &LinkAttr { program, target, attach_type, flags: 0, cookie })
}

/// Returns a file that runs an iterator's program when it is read.
pub(super) fn iterate(link: BorrowedFd<'_>) -> io::Result<File> {
    open(ITER_CREATE, &IterAttr { link: number(link), flags: 0 }).map(File::from)
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

/// Runs a command that opens a descriptor.
fn open<A>(which: libc::c_long, attr: &A) -> io::Result<OwnedFd> {
    let fd = command(which, attr)?;
    // SAFETY: the kernel has just opened the descriptor for this call, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd).unwrap_or(-1)) })
}

fn command<A>(which: libc::c_long, attr: &A) -> io::Result<libc::c_long> {
    // SAFETY: the callers' paths and descriptors outlive the call, and the kernel writes to none of them.
    let result = unsafe { libc::syscall(libc::SYS_bpf, which, ptr::from_ref(attr), size_of::<A>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
