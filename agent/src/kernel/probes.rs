//! Probes: functions of the kernel and of programs that call the programs of the sensor `functions`.
//!
//! A probe has the place of its function in the rows. The last places are lent to recordings, see [`Place`].

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use podperf_ebpf::abi;

use super::{
    descriptor::attach_to_event,
    object::{Object, fd},
    perf::open_probe,
    raw::{self, Then},
    sensor_programs::programs,
};
use crate::{events::SYSFS, model::sensors::Hook};

/// The tables of calls of functions of recordings, and of the begins of calls by place.
const LENT: &str = "functions_lent";
const BEGUN: &str = "functions_begun";

/// The programs that probed functions call.
#[derive(Debug)]
pub struct Probes {
    begin: OwnedFd,
    end: OwnedFd,
    /// The calls of functions of recordings.
    lent: OwnedFd,
    /// The begins of such calls, with a number for each possible CPU.
    begun: OwnedFd,
    copies: usize,
}

/// The place of a function in the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of the function.
    pub function: u32,
    /// The number of the recording that borrows the place, at most [`LAST_RECORDING`]; 0 for the configuration.
    pub recording: u16,
}

/// The largest number of a recording.
pub const LAST_RECORDING: u16 = u16::MAX;

const _: () = assert!(LAST_RECORDING as u32 == abi::PODPERF_LAST_RECORDING);

impl Place {
    /// Returns the number that the programs get with each call.
    fn cookie(self) -> u32 {
        self.function | u32::from(self.recording) << abi::PODPERF_RECORDING_SHIFT
    }
}

/// A probed function. The probe ends when this is dropped.
#[derive(Debug)]
pub struct Probe {
    _links: [OwnedFd; 2],
}

/// A kind of probes of the kernel.
struct Kind {
    /// The type for `perf_event_open(2)`.
    kind: u32,
    /// The configuration of a probe at the return.
    at_return: u64,
}

impl Probes {
    /// Returns the programs; `None` if they do not run.
    pub(super) fn of(object: &Object, copies: usize) -> Option<Self> {
        let called_at = |hook: Hook| {
            let (_, program) = programs().find(|(_, program)| program.hook == hook)?;
            object.descriptor(program.name)?.try_clone_to_owned().ok()
        };
        let table = |name: &'static str| fd(object, name).ok()?.try_clone_to_owned().ok();
        let (begin, end) = (called_at(Hook::FunctionBegin)?, called_at(Hook::FunctionEnd)?);
        Some(Self { begin, end, lent: table(LENT)?, begun: table(BEGUN)?, copies })
    }

    /// Probes a function of the kernel.
    ///
    /// # Errors
    ///
    /// When the kernel has no such probes, or refuses this one: the reason, and the remedy.
    pub fn kernel(&self, place: Place, function: &str) -> Result<Probe, String> {
        let kind = kind("kprobe").ok_or("this kernel has no kprobes (needs CONFIG_KPROBE_EVENTS=y)")?;
        let target = CString::new(function).map_err(|error| error.to_string())?;
        self.attach(&kind, place.cookie() | abi::PODPERF_FUNCTION_OF_KERNEL, &target, 0).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENOENT) => "the kernel has no function of this name, or only inlines it".to_owned(),
                Some(libc::EINVAL | libc::EOPNOTSUPP) => "the kernel allows no probe in this function".to_owned(),
                Some(libc::EPERM | libc::EACCES) => format!("{error} (needs CAP_PERFMON)"),
                _ => error.to_string(),
            }
        })
    }

    /// Probes the function at `offset` in the file, for all processes.
    ///
    /// # Errors
    ///
    /// When the kernel has no such probes, or refuses this one: the reason, and the remedy.
    pub fn program(&self, place: Place, file: BorrowedFd<'_>, offset: u64) -> Result<Probe, String> {
        let kind = kind("uprobe").ok_or("this kernel has no uprobes (needs CONFIG_UPROBE_EVENTS=y)")?;
        // This path leads to the open file, whatever has its name by now.
        let path = format!("/proc/thread-self/fd/{}", file.as_raw_fd());
        let target = CString::new(path).map_err(|error| error.to_string())?;
        self.attach(&kind, place.cookie(), &target, offset).map_err(|error| match error.raw_os_error() {
            // `perf_uprobe_event_init` of the kernel.
            Some(libc::EPERM | libc::EACCES) => format!("{error} (needs CAP_SYS_ADMIN)"),
            _ => error.to_string(),
        })
    }

    /// Returns the number of begins of calls at a place that was lent, also of calls that do not count. It never falls.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn begun(&self, place: Place) -> io::Result<u64> {
        let mut copies = vec![0_u64; self.copies];
        raw::lookup(self.begun.as_fd(), place.function, &mut copies)?;
        Ok(copies.iter().sum())
    }

    /// Forgets the calls at a place that was lent, whose probes have ended.
    ///
    /// # Errors
    ///
    /// When the kernel refuses. The calls then take room until their threads end, or the next recording at this place.
    pub fn forget_lent(&self, place: Place) -> io::Result<()> {
        let mut calls = Vec::new();
        raw::read_words(self.lent.as_fd(), size_of::<abi::podperf_call>() / 8, Then::Keep, |key: u64, _| {
            // The upper half is the thread, see `key_of_call`.
            if key & u64::from(u32::MAX) == u64::from(place.function) {
                calls.push(key);
            }
        })?;
        calls.into_iter().try_for_each(|key| raw::delete(self.lent.as_fd(), key))
    }

    /// The probe at the return comes first: no call begins that it does not see.
    fn attach(&self, kind: &Kind, cookie: u32, target: &CStr, offset: u64) -> io::Result<Probe> {
        let attach = |program: &OwnedFd, config| {
            let event = open_probe(kind.kind, config, target, offset)?;
            attach_to_event(program.as_fd(), event.as_fd(), cookie.into())
        };
        Ok(Probe { _links: [attach(&self.end, kind.at_return)?, attach(&self.begin, 0)?] })
    }
}

/// Forgets the calls that began under a previous agent, whose probes have ended: nothing saw the ends of these calls.
pub(super) fn forget_calls(object: &Object) -> io::Result<()> {
    raw::clear::<u64>(fd(object, "functions_calls")?)?;
    raw::clear::<u64>(fd(object, LENT)?)?;
    let shares = fd(object, "functions_shares")?;
    let info = object.map("functions_shares").and_then(raw::data).and_then(|data| data.info().ok());
    (0..info.map_or(0, |info| info.max_entries())).try_for_each(|share| raw::update(shares, share, 0_u32))
}

/// Returns the kind of this name; `None` if the kernel does not have it.
fn kind(name: &str) -> Option<Kind> {
    let read = |file: &str| fs::read_to_string(Path::new(SYSFS).join(name).join(file)).ok();
    let bit: u32 = read("format/retprobe")?.trim().strip_prefix("config:")?.parse().ok()?;
    Some(Kind { kind: read("type")?.trim().parse().ok()?, at_return: 1_u64.checked_shl(bit)? })
}
