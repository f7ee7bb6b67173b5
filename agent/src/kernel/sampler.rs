//! The sampler's perf events: one per CPU, `cycles` if the CPUs have a counter for them, else a clock.

use super::programs::SAMPLE;
use std::collections::BTreeMap;

use aya::programs::{
    PerfEvent, ProgramError,
    perf_event::{HardwareEvent, PerfEventConfig, PerfEventLink, PerfEventScope, SamplePolicy, SoftwareEvent},
};
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::{error::LoadError, object::Object};

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

/// The attached events, which close on drop.
#[derive(Debug)]
pub(super) struct Sampler {
    event: SampleEvent,
    hertz: u64,
    links: BTreeMap<u32, PerfEventLink>,
}

impl Sampler {
    /// Loads the program if no previous agent has pinned it, and attaches it on each CPU.
    ///
    /// # Errors
    ///
    /// When the kernel rejects the program, or the event on a CPU.
    pub(super) fn start(object: &mut Object, wanted: SampleEvent, hertz: u32, cpus: &[u32]) -> Result<Self, LoadError> {
        let loaded = program(object)?;
        // A program that a previous agent pinned is loaded already.
        if loaded.fd().is_err() {
            loaded.load().map_err(refused)?;
        }
        let mut sampler = Self { event: wanted, hertz: hertz.into(), links: BTreeMap::new() };
        let Some((first, rest)) = cpus.split_first() else { return Ok(sampler) };
        if wanted == SampleEvent::Auto {
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
        let policy = match self.event {
            // With a fixed period, the kernel needs no start-up time to adjust it.
            SampleEvent::CpuClock => SamplePolicy::Period(1_000_000_000 / self.hertz.max(1)),
            SampleEvent::Cycles | SampleEvent::Auto => SamplePolicy::Frequency(self.hertz),
        };
        let id = program.attach(event, scope, policy, false).map_err(refused)?;
        self.links.insert(cpu, program.take_link(id).map_err(refused)?);
        Ok(())
    }
}

fn program(object: &mut Object) -> Result<&mut PerfEvent, LoadError> {
    object.program_mut(SAMPLE).ok_or(LoadError::Missing(SAMPLE))?.try_into().map_err(refused)
}

fn refused(source: ProgramError) -> LoadError {
    LoadError::refused(SAMPLE, source)
}
