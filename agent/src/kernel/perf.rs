//! perf counters: opened per CPU, group by group, and put where the BPF programs read them.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

use aya_obj::generated::perf_event_attr;

use crate::events::plan::{Attr, Counter, Plan, Source, perf_error_hint};

/// `PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING`.
const READ_FORMAT: u64 = 1 | 2;
/// `PERF_EVENT_IOC_ENABLE`.
const IOC_ENABLE: libc::c_ulong = 0x2400;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOEXEC: libc::c_ulong = 8;

/// A counter of the configuration, and what became of it.
#[derive(Clone, Debug)]
pub struct OpenCounter {
    /// As configured.
    pub counter: Counter,
    /// Its place in `podperf_cgroup.counts`, or why it is not counted and how that is mended.
    pub slot: Result<usize, String>,
    /// Its group's place in `podperf_cgroup.enabled_ns`, for hardware groups, which may be multiplexed.
    pub group: Option<usize>,
}

/// All counters, open on all CPUs. They close, and stop counting, on drop.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) counters: Vec<OpenCounter>,
    /// Slot -> one fd per CPU.
    pub(super) fds: Vec<Vec<(u32, OwnedFd)>>,
    /// Slot -> 1 + group, for leaders of hardware groups; see `leader_of` in counters.bpf.h.
    pub(super) leader_of: Vec<u8>,
}

impl Counters {
    /// Opens what can be opened. An event that the machine lacks is left out of its group and says why.
    pub(super) fn open(plan: &Plan, cpus: &[u32], paranoid: Option<i32>) -> Self {
        let mut this = Self::default();
        for (group, counters) in plan.groups.iter().enumerate() {
            this.open_group(group, counters, cpus, paranoid);
        }
        this
    }

    fn open_group(&mut self, group: usize, counters: &[Counter], cpus: &[u32], paranoid: Option<i32>) {
        let explain = |error: &io::Error, counter: &Counter| {
            perf_error_hint(error.raw_os_error().unwrap_or(0), counter, paranoid)
        };
        // Each alone first, so that one event that this CPU lacks does not take its group down.
        let mut members = Vec::new();
        for counter in counters {
            let refusal = match &counter.source {
                Source::Unsupported(reason) => Some(reason.clone()),
                Source::Attr(attr) => {
                    cpus.first().and_then(|cpu| open(attr, *cpu, None).err()).map(|error| explain(&error, counter))
                }
            };
            match (refusal, &counter.source) {
                (None, Source::Attr(attr)) => members.push((counter, attr)),
                (reason, _) => self.refuse(counter, reason.unwrap_or_default()),
            }
        }
        let hardware = members.iter().any(|(_, attr)| !attr.is_software());
        let mut opened: Vec<Vec<(u32, OwnedFd)>> = members.iter().map(|_| Vec::new()).collect();
        for &cpu in cpus {
            match open_group_on(cpu, &members) {
                Ok(group) => opened.iter_mut().zip(group).for_each(|(fds, fd)| fds.push((cpu, fd))),
                // Whole or not at all.
                Err((counter, error)) => {
                    let reason = explain(&error, counter);
                    members.iter().for_each(|(counter, _)| self.refuse(counter, reason.clone()));
                    return;
                }
            }
        }
        for (index, ((counter, _), fds)) in members.into_iter().zip(opened).enumerate() {
            let slot = self.fds.len();
            self.fds.push(fds);
            let leads = hardware && index == 0;
            self.leader_of.push(if leads { u8::try_from(group + 1).unwrap_or(0) } else { 0 });
            self.counters.push(OpenCounter {
                counter: counter.clone(),
                slot: Ok(slot),
                group: hardware.then_some(group),
            });
        }
    }

    fn refuse(&mut self, counter: &Counter, reason: String) {
        self.counters.push(OpenCounter { counter: counter.clone(), slot: Err(reason), group: None });
    }
}

/// Opens a group on one CPU and lets it count; or says which counter failed.
fn open_group_on<'a>(cpu: u32, members: &[(&'a Counter, &Attr)]) -> Result<Vec<OwnedFd>, (&'a Counter, io::Error)> {
    let mut fds: Vec<OwnedFd> = Vec::new();
    for (counter, attr) in members {
        let leader = fds.first().map(AsRawFd::as_raw_fd);
        fds.push(open(attr, cpu, leader).map_err(|error| (*counter, error))?);
    }
    if let (Some(leader), Some((counter, _))) = (fds.first(), members.first()) {
        enable(leader.as_raw_fd()).map_err(|error| (*counter, error))?;
    }
    Ok(fds)
}

/// Lets a group count.
fn enable(leader: RawFd) -> io::Result<()> {
    // SAFETY: it takes no pointer.
    let result = unsafe { libc::ioctl(leader, IOC_ENABLE, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `perf_event_open(2)` for all tasks on one CPU; a leader counts, and its members with it, once it is enabled.
fn open(attr: &Attr, cpu: u32, leader: Option<RawFd>) -> io::Result<OwnedFd> {
    // SAFETY: all-zero is a valid attr: numbers, and unions of numbers.
    let mut raw: perf_event_attr = unsafe { std::mem::zeroed() };
    raw.type_ = attr.kind;
    raw.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
    raw.config = attr.config;
    raw.read_format = READ_FORMAT;
    raw.__bindgen_anon_3.config1 = attr.config1;
    raw.__bindgen_anon_4.config2 = attr.config2;
    // Members that join a group of another PMU while it runs may never be scheduled: it starts once it is whole.
    raw.set_disabled(leader.is_none().into());
    raw.set_exclude_user(attr.exclude_user.into());
    raw.set_exclude_kernel(attr.exclude_kernel.into());
    // SAFETY: `raw` is an initialised attr of the size it states, and outlives the call.
    let fd =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const raw, -1, cpu, leader.unwrap_or(-1), CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd).unwrap_or(-1)) })
}
