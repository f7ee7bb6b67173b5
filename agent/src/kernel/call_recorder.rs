//! Records system calls for a while, with BPF programs of its own that are in the kernel only meanwhile.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use aya::{
    Ebpf, EbpfLoader,
    programs::{ProgramError, RawTracePoint},
};
use podperf_ebpf::{RECORDED_CALLS_OBJECT, abi};

use super::{
    cost::recursion_misses,
    error::LoadError,
    raw::{self, Then},
};
use crate::model::{
    ids::CgroupId,
    recorded_calls::{CallSum, RecordedCalls},
};

/// The most cgroups of a recording that does not have all.
pub const MOST_CGROUPS: usize = abi::PODPERF_RECORDED_CGROUPS as usize;
/// Memory that the process takes for a moment to load the programs, in bytes: the kernel's types.
pub const LOADING_BYTES: u64 = 48 << 20;

/// The programs and their tracepoints. The returns come first, so that no call begins whose return is not seen.
const PROGRAMS: [(&str, &str); 2] = [("recorded_sys_exit", "sys_exit"), ("recorded_sys_enter", "sys_enter")];

/// The programs of a recording. They are unloaded when this is dropped.
pub struct CallRecorder {
    ebpf: Ebpf,
    /// The number of possible CPUs.
    copies: usize,
}

/// The work of the programs so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecorderUse {
    /// Number of calls that began and ended.
    pub calls: u64,
    /// Time in the programs, in nanoseconds, without the kernel's path to them.
    pub run_ns: u64,
}

impl CallRecorder {
    /// Loads and attaches the programs. No call counts before [`Self::begin`]. Without `all`, calls count only in the
    /// cgroups of [`Self::add`].
    ///
    /// # Errors
    ///
    /// When the kernel has no such tracepoints, or refuses the programs: the reason.
    pub fn load(all: bool) -> Result<Self, String> {
        let says = |error: LoadError| format!("{:#}", anyhow::Error::new(error));
        let copies = aya::util::nr_cpus().map_err(|(_, source)| says(LoadError::Cpus(source)))?;
        let all = u8::from(all);
        // The loader reads the kernel's types, which are large.
        let ebpf = {
            let mut loader = EbpfLoader::new();
            // aya does not support task storage, which only the programs create and fill.
            loader.allow_unsupported_maps();
            loader.override_global("records_all", bytemuck::bytes_of(&all), true);
            loader.load(RECORDED_CALLS_OBJECT)
        };
        raw::return_free_memory();
        let mut ebpf = ebpf.map_err(|error| says(LoadError::Object(Box::new(error))))?;
        for (program, tracepoint) in PROGRAMS {
            attach(&mut ebpf, program, tracepoint).map_err(|error| match &error {
                LoadError::Program { source, .. } if lacks_tracepoint(source) => format!(
                    "this kernel has no tracepoint `{tracepoint}`, at which system calls are seen (needs \
                     CONFIG_TRACEPOINTS=y)"
                ),
                _ => says(error),
            })?;
        }
        Ok(Self { ebpf, copies })
    }

    /// Begins to count calls.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn begin(&self) -> io::Result<()> {
        raw::update(self.map("recording")?, 0_u32, 1_u64)
    }

    /// Ends the counting. Programs that run at this moment end within microseconds.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn end(&self) -> io::Result<()> {
        raw::update(self.map("recording")?, 0_u32, 0_u64)
    }

    /// Counts calls in these cgroups, too. There is room for [`MOST_CGROUPS`].
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn add(&self, cgroups: &[CgroupId]) -> io::Result<()> {
        let map = self.map("recorded_cgroups")?;
        cgroups.iter().try_for_each(|cgroup| raw::update(map, cgroup.0, 1_u64))
    }

    /// Returns the work of the programs so far.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn used(&self) -> io::Result<RecorderUse> {
        let totals = self.totals()?;
        let sum = |of: fn(&abi::podperf_recorded_totals) -> u64| totals.iter().map(of).sum();
        Ok(RecorderUse { calls: sum(|cpu| cpu.ended), run_ns: sum(|cpu| cpu.run_ns) })
    }

    /// Returns the calls.
    ///
    /// # Errors
    ///
    /// When the maps cannot be read.
    pub fn read(&self) -> io::Result<RecordedCalls> {
        let mut sums = Vec::new();
        let map = self.map("recorded_calls")?;
        raw::read_all(map, self.copies, Then::Keep, |number: u32, cpus: &[abi::podperf_recorded_call]| {
            sums.extend(sum_of(number, cpus));
        })?;
        sums.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then(a.number.cmp(&b.number)));
        let totals = self.totals()?;
        let sum = |of: fn(&abi::podperf_recorded_totals) -> u64| -> u64 { totals.iter().map(of).sum() };
        let unseen = sum(|cpu| cpu.unseen_end);
        Ok(RecordedCalls {
            sums,
            in_progress: sum(|cpu| cpu.begun).saturating_sub(sum(|cpu| cpu.ended)).saturating_sub(unseen),
            began_before: sum(|cpu| cpu.began_before),
            not_entered: sum(|cpu| cpu.not_entered),
            lost: sum(|cpu| cpu.unnoted) + unseen + self.misses(),
        })
    }

    /// Returns the runs that the kernel skipped, because another program ran on the CPU.
    fn misses(&self) -> u64 {
        let programs = PROGRAMS.into_iter().filter_map(|(program, _)| self.ebpf.program(program)?.fd().ok());
        programs.map(|program| recursion_misses(program.as_fd())).sum()
    }

    fn totals(&self) -> io::Result<Vec<abi::podperf_recorded_totals>> {
        let mut totals = vec![bytemuck::Zeroable::zeroed(); self.copies];
        raw::lookup(self.map("recorded_totals")?, 0_u32, &mut totals)?;
        Ok(totals)
    }

    fn map(&self, name: &'static str) -> io::Result<BorrowedFd<'_>> {
        let data = self.ebpf.map(name).and_then(raw::data);
        data.map(|data| data.fd().as_fd()).ok_or_else(|| io::Error::other(LoadError::Missing(name)))
    }
}

impl std::fmt::Debug for CallRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallRecorder").field("copies", &self.copies).finish_non_exhaustive()
    }
}

fn attach(ebpf: &mut Ebpf, program: &'static str, tracepoint: &str) -> Result<(), LoadError> {
    let failed = |source| LoadError::refused(program, source);
    let loaded: &mut RawTracePoint =
        ebpf.program_mut(program).ok_or(LoadError::Missing(program))?.try_into().map_err(failed)?;
    loaded.load().map_err(failed)?;
    loaded.attach(tracepoint).map(drop).map_err(failed)
}

fn lacks_tracepoint(error: &ProgramError) -> bool {
    matches!(error, ProgramError::SyscallError(failed) if failed.io_error.raw_os_error() == Some(libc::ENOENT))
}

/// Returns the sum over all CPUs; `None` without any call.
fn sum_of(number: u32, cpus: &[abi::podperf_recorded_call]) -> Option<CallSum> {
    let sum = |of: fn(&abi::podperf_recorded_call) -> u64| cpus.iter().map(of).sum();
    let max = |of: fn(&abi::podperf_recorded_call) -> u64| cpus.iter().map(of).max().unwrap_or(0);
    let sum = CallSum {
        number: (number < abi::PODPERF_RECORDED_NUMBERS).then_some(number),
        calls: sum(|cpu| cpu.calls),
        errors: sum(|cpu| cpu.errors),
        total_ns: sum(|cpu| cpu.ns),
        min_ns: !max(|cpu| cpu.max_not_ns),
        max_ns: max(|cpu| cpu.max_ns),
    };
    (sum.calls > 0).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_without_calls_has_no_shortest_one() {
        let none: abi::podperf_recorded_call = bytemuck::Zeroable::zeroed();
        let some = |ns: u64| abi::podperf_recorded_call { calls: 2, errors: 1, ns, max_ns: ns - 1, max_not_ns: !1 };
        let sum = CallSum { number: Some(3), calls: 4, errors: 2, total_ns: 16, min_ns: 1, max_ns: 9 };
        assert_eq!(sum_of(3, &[none, some(10), some(6)]), Some(sum));
        assert_eq!(sum_of(3, &[none, none]), None);
        assert_eq!(sum_of(abi::PODPERF_RECORDED_NUMBERS, &[some(10)]).and_then(|sum| sum.number), None);
    }
}
