//! `perf_event_open(2)` and what can be done with its descriptors.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use aya_obj::generated::perf_event_attr;

use crate::events::{plan::Attr, plausible::Growth};

/// `PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING`.
const READ_FORMAT: u64 = 1 | 2;
/// `PERF_EVENT_IOC_ENABLE` and `PERF_EVENT_IOC_DISABLE`.
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOEXEC: libc::c_ulong = 8;

/// Opens a group for all tasks on one CPU, completely or not at all. The group counts once it is [`enable`]d. An error
/// comes with the index of the event that failed.
pub(super) fn open_group(cpu: u32, attrs: &[Attr]) -> Result<Vec<OwnedFd>, (usize, io::Error)> {
    let mut fds: Vec<OwnedFd> = Vec::with_capacity(attrs.len());
    for (index, attr) in attrs.iter().enumerate() {
        let leader = fds.first().map(AsRawFd::as_raw_fd);
        fds.push(open(attr, cpu, leader).map_err(|error| (index, error))?);
    }
    Ok(fds)
}

/// Makes a group count.
pub(super) fn enable(leader: BorrowedFd<'_>) -> io::Result<()> {
    control(leader, IOC_ENABLE)
}

/// Takes a group off the PMU. Its counts and times no longer grow.
pub(super) fn disable(leader: BorrowedFd<'_>) -> io::Result<()> {
    control(leader, IOC_DISABLE)
}

/// Reads the count and the times of an event since it was opened.
pub(super) fn read(event: BorrowedFd<'_>) -> io::Result<Growth> {
    let mut words = [0_u64; 3];
    let bytes: &mut [u8] = bytemuck::bytes_of_mut(&mut words);
    let length = nix::unistd::read(event, bytes)?;
    if length < bytes.len() {
        // Reading an event of a CPU that went offline returns no bytes.
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let [count, enabled_ns, running_ns] = words;
    Ok(Growth { count, enabled_ns, running_ns })
}

fn control(leader: BorrowedFd<'_>, command: libc::c_ulong) -> io::Result<()> {
    // SAFETY: these commands take no pointer.
    let result = unsafe { libc::ioctl(leader.as_raw_fd(), command, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a probe of a function, for all tasks on all CPUs: `kind` and `config` are those of the PMU `kprobe` or `uprobe`.
/// `target` is a function of the kernel or the path of a file, and `offset` the place in it.
pub(super) fn open_probe(kind: u32, config: u64, target: &CStr, offset: u64) -> io::Result<OwnedFd> {
    let mut raw = empty(kind, config);
    raw.__bindgen_anon_3.config1 = target.as_ptr() as u64;
    raw.__bindgen_anon_4.config2 = offset;
    // The kernel wants a CPU, but its probes call programs on each CPU.
    open_raw(&raw, 0, None)
}

/// Returns an attr whose other numbers are all zero.
fn empty(kind: u32, config: u64) -> perf_event_attr {
    // SAFETY: all-zero is a valid attr: numbers, and unions of numbers.
    let mut raw: perf_event_attr = unsafe { std::mem::zeroed() };
    raw.type_ = kind;
    raw.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
    raw.config = config;
    raw
}

fn open(attr: &Attr, cpu: u32, leader: Option<RawFd>) -> io::Result<OwnedFd> {
    let mut raw = empty(attr.kind, attr.config);
    raw.read_format = READ_FORMAT;
    raw.__bindgen_anon_3.config1 = attr.config1;
    raw.__bindgen_anon_4.config2 = attr.config2;
    // A member that joins a running group of another PMU may never be scheduled, so the group starts once it is
    // complete.
    raw.set_disabled(leader.is_none().into());
    raw.set_exclude_user(attr.exclude_user.into());
    raw.set_exclude_kernel(attr.exclude_kernel.into());
    open_raw(&raw, cpu, leader)
}

fn open_raw(raw: &perf_event_attr, cpu: u32, leader: Option<RawFd>) -> io::Result<OwnedFd> {
    let (attr, leader) = (std::ptr::from_ref(raw), leader.unwrap_or(-1));
    // SAFETY: `raw` is an initialised attr of the size it states. It and the text of a probe outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr, -1, cpu, leader, CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd).unwrap_or(-1)) })
}
