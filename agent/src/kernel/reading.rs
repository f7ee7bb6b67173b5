//! One reading of the maps: plain sums over CPUs.

use std::time::Duration;

use podperf_ebpf::abi;

use super::{
    programs::PROGRAMS,
    sensor_programs::{self, Accounts},
};
use crate::model::{hard_interrupts::HardInterrupts, ids::CgroupId, sensor_words::SensorWords, sensors};

/// The kernel's counts at one instant; all of them only ever grow.
#[derive(Debug, Default)]
pub struct RawReading {
    /// The time of the counts, in nanoseconds of `CLOCK_MONOTONIC`: the mean over all CPUs that are not quiet of the
    /// times at which their running tasks were settled.
    pub at_ns: u64,
    /// One row per cgroup (and for [`CgroupId::IDLE`]), all CPUs together.
    pub rows: Vec<RawRow>,
    /// The cgroups that found no room in the kernel's list of cgroups: others' rows have their counts.
    pub charged: Vec<CgroupId>,
    /// The per-CPU state, all CPUs together.
    pub cpu: CpuTotals,
    /// Numbers of losses, by `podperf_bpf_drops_total` label, in the order of the map.
    pub drops: Vec<(&'static str, u64)>,
    /// Time that CPUs were online since the last reading, all together, in nanoseconds.
    pub online_ns: u64,
    /// Hard interrupts by name, all CPUs together.
    pub hard_interrupts: HardInterrupts,
    /// Time since boot that the hypervisor took, all CPUs together, in nanoseconds; `None` if it is not known.
    pub stolen_ns: Option<u64>,
    /// The state of each possible CPU, by its number.
    pub cpus: Vec<abi::podperf_cpu>,
}

/// The counts of a cgroup on all CPUs.
#[derive(Clone, Debug)]
pub struct RawRow {
    /// The cgroup.
    pub cgroup: CgroupId,
    /// Facts and counts, as in podperf.h; without the id.
    pub counts: abi::podperf_cgroup,
    /// The words of the sensors.
    pub words: SensorWords<u64>,
}

impl RawRow {
    /// The number of words of facts and counts, without those of the sensors.
    pub const WORDS: usize = size_of::<abi::podperf_cgroup>() / size_of::<u64>();
}

/// The sums over CPUs of `struct podperf_cpu`; nanoseconds and counts.
#[derive(Clone, Copy, Debug)]
pub struct CpuTotals {
    /// Idle time.
    pub idle_ns: u64,
    /// Number of switch-ins that were not reported, and were recovered from the run time.
    pub switches_recovered: u64,
    /// The time before recovered switch-ins, since the last reported switch, in nanoseconds. Its counts, but not its
    /// time, were charged to the task that was switched in.
    pub recovered_ns: u64,
    /// The time of waits that are in no profile, in nanoseconds.
    pub unprofiled_ns: u64,
    /// Number of waits that should have a stack.
    pub waits: u64,
    /// Number of `waits` whose stack was walked.
    pub walks: u64,
    /// Number of walks that only checked a stack of the stack cache.
    pub checks: u64,
    /// Number of checks that found another stack than the cached one.
    pub checks_wrong: u64,
    /// Number of waits whose kernel part was walked after a recipe had proved the user frames.
    pub kernel_walks: u64,
    /// Number of short waits above the limit of walks: other waits represent them.
    pub sampled_out: u64,
    /// Number of waits with a cached stack that were walked nevertheless, if the shadow is on.
    pub shadow_waits: u64,
    /// Number of `shadow_waits` whose walk found another stack than the cached one.
    pub shadow_wrong: u64,
    /// The lengths of `shadow_waits`, in nanoseconds.
    pub shadow_ns: u64,
    /// The lengths of `shadow_wrong`, in nanoseconds, without waits whose stack was seen while the task slept.
    pub shadow_wrong_ns: u64,
    /// The counts of the counters, by slot, never scaled. Counts from before a counter's first reading are left out,
    /// because they are charged to no cgroup.
    pub counts: [u64; abi::PODPERF_MAX_EVENTS as usize],
    /// The runs and the time of each program, by its own account, in the order of `enum podperf_program`.
    pub programs: [abi::podperf_runs; abi::PODPERF_PROGRAMS as usize],
    /// The same of the programs of sensors.
    pub sensor_programs: [abi::podperf_runs; sensors::PROGRAMS],
}

impl CpuTotals {
    pub(super) fn of(cpus: &[abi::podperf_cpu], sensor_programs: Accounts) -> Self {
        let mut total = Self { sensor_programs, ..Self::default() };
        for cpu in cpus {
            total.idle_ns += cpu.idle_ns;
            total.switches_recovered += cpu.switches_recovered;
            total.recovered_ns += cpu.recovered_ns;
            total.unprofiled_ns += cpu.unprofiled_ns;
            total.waits += cpu.waits;
            total.walks += cpu.walks;
            total.checks += cpu.checks;
            total.checks_wrong += cpu.checks_wrong;
            total.kernel_walks += cpu.kernel_walks;
            total.sampled_out += cpu.sampled_out;
            total.shadow_waits += cpu.shadow_waits;
            total.shadow_wrong += cpu.shadow_wrong;
            total.shadow_ns += cpu.shadow_ns;
            total.shadow_wrong_ns += cpu.shadow_wrong_ns;
            for (to, (count, uncounted)) in total.counts.iter_mut().zip(cpu.counts.iter().zip(&cpu.uncounted)) {
                *to = to.wrapping_add(count.wrapping_sub(*uncounted));
            }
            for (to, from) in total.programs.iter_mut().zip(&cpu.programs) {
                to.runs += from.runs;
                to.ns += from.ns;
            }
        }
        total
    }

    /// Adds other totals, such as those of a previous generation.
    pub fn add(&mut self, other: &Self) {
        let mut other = *other;
        let slots = vec![(String::new(), None); abi::PODPERF_MAX_EVENTS as usize];
        for ((_, to), (_, from)) in self.numbers(&slots).into_iter().zip(other.numbers(&slots)) {
            *to = to.wrapping_add(*from);
        }
    }

    /// Returns all numbers, each with a label. The labels of counts have the names of the slots.
    pub fn numbers(&mut self, slots: &[(String, Option<usize>)]) -> Vec<(String, &mut u64)> {
        let plain = [
            ("idle_ns", &mut self.idle_ns),
            ("switches_recovered", &mut self.switches_recovered),
            ("recovered_ns", &mut self.recovered_ns),
            ("unprofiled_ns", &mut self.unprofiled_ns),
            ("waits", &mut self.waits),
            ("walks", &mut self.walks),
            ("checks", &mut self.checks),
            ("checks_wrong", &mut self.checks_wrong),
            ("kernel_walks", &mut self.kernel_walks),
            ("sampled_out", &mut self.sampled_out),
            ("shadow_waits", &mut self.shadow_waits),
            ("shadow_wrong", &mut self.shadow_wrong),
            ("shadow_ns", &mut self.shadow_ns),
            ("shadow_wrong_ns", &mut self.shadow_wrong_ns),
        ];
        let mut numbers: Vec<_> = plain.into_iter().map(|(label, number)| (label.to_owned(), number)).collect();
        numbers.extend(slots.iter().zip(&mut self.counts).map(|((name, _), count)| (format!("count {name}"), count)));
        let of_sensors = sensor_programs::programs().map(|(_, program)| program.name).zip(&mut self.sensor_programs);
        for (program, account) in PROGRAMS.into_iter().zip(&mut self.programs).chain(of_sensors) {
            numbers.push((format!("runs {program}"), &mut account.runs));
            numbers.push((format!("ns {program}"), &mut account.ns));
        }
        numbers
    }

    /// Returns the account of a program.
    pub(super) fn account(&self, program: &str) -> Option<&abi::podperf_runs> {
        if let Some(place) = sensor_programs::programs().position(|(_, of)| of.name == program) {
            return self.sensor_programs.get(place);
        }
        // The raw form `sched_switch_raw` shares the account of `sched_switch`.
        let place = PROGRAMS.iter().position(|own| program.starts_with(own))?;
        self.programs.get(place)
    }

    /// Returns the time in all programs.
    #[must_use]
    pub fn programs_time(&self) -> Duration {
        let all = self.programs.iter().chain(&self.sensor_programs);
        Duration::from_nanos(all.map(|program| program.ns).sum())
    }
}

impl Default for CpuTotals {
    fn default() -> Self {
        Self {
            idle_ns: 0,
            switches_recovered: 0,
            recovered_ns: 0,
            unprofiled_ns: 0,
            waits: 0,
            walks: 0,
            checks: 0,
            checks_wrong: 0,
            kernel_walks: 0,
            sampled_out: 0,
            shadow_waits: 0,
            shadow_wrong: 0,
            shadow_ns: 0,
            shadow_wrong_ns: 0,
            counts: bytemuck::Zeroable::zeroed(),
            programs: bytemuck::Zeroable::zeroed(),
            sensor_programs: bytemuck::Zeroable::zeroed(),
        }
    }
}

/// Returns the sum of the copies of a row. Its `id` is 0, so that it does not change with the number of copies.
pub(super) fn sum(copies: &[abi::podperf_cgroup]) -> abi::podperf_cgroup {
    let mut total: abi::podperf_cgroup = bytemuck::Zeroable::zeroed();
    let words: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut total));
    for copy in copies {
        let copy: &[u64] = bytemuck::cast_slice(std::slice::from_ref(copy));
        for (word, value) in words.iter_mut().zip(copy) {
            // A task that is settled on two CPUs may add on one and subtract on the other.
            *word = word.wrapping_add(*value);
        }
    }
    total.id = 0;
    total
}
