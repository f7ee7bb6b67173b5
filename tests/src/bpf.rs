//! Commands of bpf(2) that bpftool does not offer, or not in all its versions, and events of perf_event_open(2). Most
//! return a file descriptor, and the effect ends when that is closed.

#![expect(unsafe_code, reason = "bpf(2) and perf_event_open(2) have no safe form")]

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// `enum bpf_cmd` of linux/bpf.h.
const PROG_LOAD: libc::c_long = 5;
const OBJ_GET: libc::c_long = 7;
const PROG_TEST_RUN: libc::c_long = 10;
const RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const ENABLE_STATS: libc::c_long = 32;

/// `PERF_FLAG_FD_CLOEXEC`.
const CLOEXEC: libc::c_ulong = 8;
/// `PERF_EVENT_IOC_SET_BPF`.
const IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
/// The configuration of a probe at the return of a function.
const AT_RETURN: u64 = 1;

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

/// `BPF_PROG_TYPE_SOCKET_FILTER`, which `BPF_PROG_TEST_RUN` runs on a packet.
const SOCKET_FILTER: u32 = 1;

/// The member of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct ProgLoad {
    kind: u32,
    instructions: u32,
    code: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// The member of `union bpf_attr` for `BPF_PROG_TEST_RUN`. The kernel writes the result and the duration.
#[repr(C)]
struct TestRun {
    program: u32,
    result: u32,
    bytes_in: u32,
    bytes_out: u32,
    packet_in: u64,
    packet_out: u64,
    repeat: u32,
    duration: u32,
}

/// Codes of instructions, from linux/bpf.h and linux/bpf_common.h: with 64 bits and a constant.
const ADD: u8 = 0x07;
const JUMP_IF_LESS: u8 = 0xa5;
const MOVE: u8 = 0xb7;
const EXIT: u8 = 0x95;

/// Returns a `struct bpf_insn` with one register.
const fn instruction(code: u8, register: u8, offset: i16, constant: i32) -> [u8; 8] {
    let ([o0, o1], [c0, c1, c2, c3]) = (offset.to_le_bytes(), constant.to_le_bytes());
    [code, register, o0, o1, c0, c1, c2, c3]
}

/// A program that counts to 100 a hundred times in each run, which takes some microseconds. It is attached nowhere.
#[derive(Debug)]
pub struct Spinning(OwnedFd);

impl Spinning {
    /// Loads the program under a name of at most 15 letters.
    pub fn load(name: &str) -> Result<Self> {
        let code = [
            instruction(MOVE, 0, 0, 0),
            instruction(MOVE, 1, 0, 0),
            instruction(ADD, 1, 0, 1),
            // Back to the addition.
            instruction(JUMP_IF_LESS, 1, -2, 100),
            instruction(ADD, 0, 0, 1),
            // Back to the second instruction.
            instruction(JUMP_IF_LESS, 0, -5, 100),
            instruction(MOVE, 0, 0, 0),
            instruction(EXIT, 0, 0, 0),
        ];
        let licence = CString::new("GPL")?;
        let mut attributes = ProgLoad {
            kind: SOCKET_FILTER,
            instructions: u32::try_from(code.len())?,
            code: u64::try_from(code.as_ptr().addr())?,
            licence: address(&licence)?,
            log_level: 0,
            log_size: 0,
            log: 0,
            kernel_version: 0,
            flags: 0,
            name: [0; 16],
        };
        attributes.name[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: the attributes are those of the command; the code and the licence outlive it.
        unsafe { bpf(PROG_LOAD, &attributes) }.map(Self).context("failed to load a program (needs root)")
    }

    /// Returns another descriptor of the program, which a process may get.
    pub fn share(&self) -> Result<OwnedFd> {
        Ok(self.0.try_clone()?)
    }

    /// Runs the program this number of times, on this thread.
    pub fn run(&self, times: u32) -> Result<()> {
        let packet = [0_u8; 64];
        let mut attributes = TestRun {
            program: u32::try_from(self.0.as_raw_fd())?,
            result: 0,
            bytes_in: u32::try_from(packet.len())?,
            bytes_out: 0,
            packet_in: u64::try_from(packet.as_ptr().addr())?,
            packet_out: 0,
            repeat: times,
            duration: 0,
        };
        // SAFETY: the attributes are those of the command, and the kernel may write to them; the packet outlives it.
        let done = unsafe { libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, &raw mut attributes, size_of::<TestRun>()) };
        if done < 0 {
            bail!("failed to run a program: {}", std::io::Error::last_os_error());
        }
        Ok(())
    }

    /// Returns the number of runs and the time in them by the kernel's statistics, see [`enable_run_statistics`].
    pub fn statistics(&self) -> Result<(u64, Duration)> {
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.as_raw_fd()))?;
        let number = |name: &str| -> Result<u64> {
            let word = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            Ok(word.with_context(|| format!("no `{name}` of a program"))?.trim().parse()?)
        };
        Ok((number("run_cnt")?, Duration::from_nanos(number("run_time_ns")?)))
    }
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

/// The second version of `struct perf_event_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventAttr {
    pub(crate) kind: u32,
    /// Set by [`open_event`].
    pub(crate) size: u32,
    pub(crate) config: u64,
    pub(crate) sample_period: u64,
    pub(crate) sample_type: u64,
    pub(crate) read_format: u64,
    pub(crate) flags: u64,
    pub(crate) wakeup: u32,
    pub(crate) breakpoint: u32,
    pub(crate) config1: u64,
    pub(crate) config2: u64,
}

/// Opens an event of all tasks on one CPU.
pub(crate) fn open_event(attr: EventAttr, cpu: usize) -> Result<OwnedFd> {
    let attr = EventAttr { size: u32::try_from(size_of::<EventAttr>())?, ..attr };
    // SAFETY: an initialised attr of the size that it states, which outlives the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, libc::c_int::try_from(cpu)?, -1, CLOEXEC)
    };
    // SAFETY: the call has just returned this number.
    unsafe { owned(fd) }
}

/// A function that can call programs.
#[derive(Clone, Copy, Debug)]
pub enum Probed<'a> {
    /// A function of the kernel, by its name.
    Kernel(&'a str),
    /// A function of a program: the file, and the place in the file.
    Program(&'a Path, u64),
}

/// Makes a function call a program, at its begin or at its return, for as long as the result is open.
pub fn attach_probe(function: Probed<'_>, at_return: bool, program: &OwnedFd) -> Result<OwnedFd> {
    let (pmu, target, offset) = match function {
        Probed::Kernel(name) => ("kprobe", CString::new(name)?, 0),
        Probed::Program(file, offset) => ("uprobe", CString::new(file.as_os_str().as_bytes())?, offset),
    };
    let kind = fs::read_to_string(format!("/sys/bus/event_source/devices/{pmu}/type"))
        .with_context(|| format!("this kernel has no {pmu}s"))?;
    let attr = EventAttr {
        kind: kind.trim().parse()?,
        config: if at_return { AT_RETURN } else { 0 },
        config1: address(&target)?,
        config2: offset,
        ..EventAttr::default()
    };
    // The kernel wants a CPU, but its probes call programs on each CPU.
    let event = open_event(attr, 0).with_context(|| format!("failed to open a {pmu}"))?;
    // SAFETY: the command takes the number of a descriptor.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), IOC_SET_BPF, program.as_raw_fd()) };
    if result < 0 {
        bail!("failed to attach to a {pmu}: {}", std::io::Error::last_os_error());
    }
    Ok(event)
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
    // SAFETY: the command has just returned this number.
    unsafe { owned(fd) }
}

/// Returns the descriptor that a system call has returned, or its error.
///
/// # Safety
///
/// The number must be what the last system call of this thread returned, and that call must return a new descriptor.
unsafe fn owned(returned: libc::c_long) -> Result<OwnedFd> {
    if returned < 0 {
        bail!(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(returned)?) })
}
