//! The sampler's perf events: one per CPU, `cycles` if the CPUs have a counter for them, else a clock.

use super::programs::SAMPLE;
use std::{collections::BTreeMap, fs, io, path::Path};

use aya::programs::{
    PerfEvent, ProgramError,
    perf_event::{HardwareEvent, PerfEventConfig, PerfEventLink, PerfEventScope, SamplePolicy, SoftwareEvent},
};
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::{error::LoadError, object::Object};

/// The directory in which the kernel describes each CPU.
const CPUS: &str = "/sys/devices/system/cpu";

/// The event that triggers samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleEvent {
    /// `cycles` if the CPUs count them, else `cpu-clock`.
    Auto,
    /// The PMU's cycles. They also sample code that runs with interrupts off, and take a counter.
    Cycles,
    /// The kernel's timer.
    CpuClock,
}

/// The way in which CPUs are sampled.
#[derive(Debug)]
pub(super) struct Sampling<'a> {
    pub(super) event: SampleEvent,
    /// Number of samples of a CPU in a second.
    pub(super) hertz: u32,
    /// Set if some CPUs may run without a tick. While an event with a frequency is open, the kernel keeps the tick of
    /// all CPUs (`account_freq_event_nohz` in kernel/events/core.c), so events have a fixed period.
    pub(super) tickless: bool,
    /// The CPUs that are not sampled.
    pub(super) quiet: &'a [u32],
    /// Set if a test wants the program to be refused.
    pub(super) is_refused: bool,
}

/// The attached events, which close on drop.
#[derive(Debug)]
pub(super) struct Sampler {
    event: SampleEvent,
    hertz: u64,
    /// The clock that a fixed period of cycles is for, in Hz. `None`: the kernel adjusts the period to the frequency.
    fixed_hz: Option<u64>,
    quiet: Vec<u32>,
    links: BTreeMap<u32, PerfEventLink>,
}

impl Sampler {
    /// Loads the program if no previous agent has pinned it, and attaches it on each CPU that is not quiet. If cycles
    /// need a fixed period, but the clock of a CPU is not known, samples are by `cpu-clock`.
    ///
    /// # Errors
    ///
    /// When the kernel rejects the program, or the event on a CPU.
    pub(super) fn start(object: &mut Object, sampling: &Sampling<'_>, cpus: &[u32]) -> Result<Self, LoadError> {
        if sampling.is_refused {
            let verifier_log = aya_obj::VerifierLog::new("a test wants this".into());
            return Err(refused(ProgramError::LoadError {
                io_error: io::ErrorKind::InvalidInput.into(),
                verifier_log,
            }));
        }
        let loaded = program(object)?;
        // A program that a previous agent pinned is loaded already.
        if loaded.fd().is_err() {
            loaded.load().map_err(refused)?;
        }
        let cpus: Vec<u32> = cpus.iter().filter(|cpu| !sampling.quiet.contains(cpu)).copied().collect();
        let fixed_hz = if sampling.tickless { slowest_hz(Path::new(CPUS), &cpus) } else { None };
        let mut sampler = Self {
            event: if sampling.tickless && fixed_hz.is_none() { SampleEvent::CpuClock } else { sampling.event },
            hertz: sampling.hertz.into(),
            fixed_hz,
            quiet: sampling.quiet.to_vec(),
            links: BTreeMap::new(),
        };
        let Some((first, rest)) = cpus.split_first() else { return Ok(sampler) };
        if sampler.event == SampleEvent::Auto {
            sampler.event = SampleEvent::Cycles;
            if let Err(error) = sampler.attach(object, *first) {
                debug!(%error, "no cycles to sample by, taking the clock");
                sampler.event = SampleEvent::CpuClock;
            }
        }
        if sampler.links.is_empty() {
            sampler.attach(object, *first)?;
        }
        for cpu in rest {
            sampler.attach(object, *cpu)?;
        }
        Ok(sampler)
    }

    /// Returns the event that triggers the samples, never `auto`.
    pub(super) const fn event(&self) -> SampleEvent {
        self.event
    }

    /// Attaches the program on CPUs that came online. The events of CPUs that went offline (`gone`) are dead and are
    /// dropped; some of these CPUs may be back.
    pub(super) fn follow(&mut self, object: &mut Object, gone: &[u32], online: &[u32]) {
        self.links.retain(|cpu, _| !gone.contains(cpu));
        for cpu in online {
            if !self.links.contains_key(cpu)
                && !self.quiet.contains(cpu)
                && let Err(error) = self.attach(object, *cpu)
            {
                debug!(cpu, %error, "not sampled");
            }
        }
    }

    fn attach(&mut self, object: &mut Object, cpu: u32) -> Result<(), LoadError> {
        let event = match self.event {
            SampleEvent::CpuClock => PerfEventConfig::Software(SoftwareEvent::CpuClock),
            SampleEvent::Cycles | SampleEvent::Auto => PerfEventConfig::Hardware(HardwareEvent::CpuCycles),
        };
        let program = program(object)?;
        let scope = PerfEventScope::AllProcessesOneCpu { cpu };
        let id = program.attach(event, scope, self.policy(), false).map_err(refused)?;
        self.links.insert(cpu, program.take_link(id).map_err(refused)?);
        Ok(())
    }

    fn policy(&self) -> SamplePolicy {
        match (self.event, self.fixed_hz) {
            // With a fixed period, the kernel needs no start-up time to adjust it.
            (SampleEvent::CpuClock, _) => SamplePolicy::Period(1_000_000_000 / self.hertz.max(1)),
            (SampleEvent::Cycles | SampleEvent::Auto, Some(hz)) => {
                SamplePolicy::Period((hz / self.hertz.max(1)).max(1))
            }
            (SampleEvent::Cycles | SampleEvent::Auto, None) => SamplePolicy::Frequency(self.hertz),
        }
    }
}

/// Returns the slowest nominal clock of these CPUs, in Hz; `None` if the clock of one is not known. Faster CPUs get
/// more samples: each sample stands for the time since the last one.
fn slowest_hz(root: &Path, cpus: &[u32]) -> Option<u64> {
    let clocks: Option<Vec<u64>> = cpus.iter().map(|cpu| nominal_hz(root, *cpu)).collect();
    clocks?.into_iter().min()
}

/// Returns the nominal clock of a CPU in Hz, by intel_pstate or ACPI, else its fastest clock.
fn nominal_hz(root: &Path, cpu: u32) -> Option<u64> {
    const FILES: [(&str, u64); 3] =
        [("cpufreq/base_frequency", 1_000), ("acpi_cppc/nominal_freq", 1_000_000), ("cpufreq/cpuinfo_max_freq", 1_000)];
    let directory = root.join(format!("cpu{cpu}"));
    let read = |(file, unit): (&str, u64)| {
        let text = fs::read_to_string(directory.join(file)).ok()?;
        text.trim().parse::<u64>().ok()?.checked_mul(unit).filter(|hz| *hz > 0)
    };
    FILES.into_iter().find_map(read)
}

fn program(object: &mut Object) -> Result<&mut PerfEvent, LoadError> {
    object.program_mut(SAMPLE).ok_or(LoadError::Missing(SAMPLE))?.try_into().map_err(refused)
}

fn refused(source: ProgramError) -> LoadError {
    LoadError::refused(SAMPLE, source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nominal_clock_comes_from_the_best_file_and_all_cpus_need_one() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("cpu0/cpufreq/cpuinfo_max_freq", "4500000\n");
        assert_eq!(slowest_hz(root.path(), &[0]), Some(4_500_000_000));
        write("cpu0/acpi_cppc/nominal_freq", "2900\n");
        assert_eq!(nominal_hz(root.path(), 0), Some(2_900_000_000));
        write("cpu0/cpufreq/base_frequency", "2600000\n");
        write("cpu1/cpufreq/base_frequency", "1800000\n");
        write("cpu2/acpi_cppc/nominal_freq", "0\n");
        assert_eq!(slowest_hz(root.path(), &[0, 1]), Some(1_800_000_000));
        assert_eq!(slowest_hz(root.path(), &[0, 1, 2]), None);
    }

    #[test]
    fn no_event_has_a_frequency_where_cpus_run_without_a_tick() {
        let policy = |event, fixed_hz| {
            Sampler { event, hertz: 49, fixed_hz, quiet: Vec::new(), links: BTreeMap::new() }.policy()
        };
        assert!(matches!(policy(SampleEvent::Cycles, None), SamplePolicy::Frequency(49)));
        assert!(matches!(policy(SampleEvent::Cycles, Some(4_900_000_000)), SamplePolicy::Period(100_000_000)));
        assert!(matches!(policy(SampleEvent::CpuClock, None), SamplePolicy::Period(20_408_163)));
    }
}
