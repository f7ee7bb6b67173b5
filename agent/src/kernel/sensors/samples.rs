//! Takes the samples of the running programs from their tables and rings, and sets the samples that the programs leave
//! out, filter or send again.

use std::io;

use podperf_ebpf::abi;
use tracing::debug;

use super::Sensors;
use crate::kernel::{
    clock::monotonic_ns,
    copies::Copies,
    error::LoadError,
    load::SensorSettings,
    object::{Object, fd},
    orders::Lowered,
    programs::COLLECT,
    raw,
    records::{CgroupRecord, RawSample, StackRecord},
    sample_tables,
    sampler::{SampleEvent, Sampler, Sampling},
    sent,
};

impl Sensors {
    /// Starts the sampler if samples are wanted. The rest works without it, so the reason why it does not start is a
    /// text.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the program that copies stacks. It may load the one that walks them.
    pub(super) fn start_sampler(
        object: &mut Object,
        settings: &SensorSettings,
        cpus: &[u32],
    ) -> Result<Result<Option<Sampler>, String>, LoadError> {
        if !settings.stacks || settings.oncpu_hertz == 0 {
            return Ok(Ok(None));
        }
        let sampling = Sampling {
            event: settings.oncpu_event,
            hertz: settings.oncpu_hertz,
            tickless: settings.tickless,
            quiet: &settings.quiet_cpus,
            is_refused: settings.copies && settings.refuse_copies,
        };
        match Sampler::start(object, &sampling, cpus) {
            Err(error) if settings.copies && error.is_refusal_of_program() => Err(error),
            started => Ok(started.map(Some).map_err(|error| format!("{:#}", anyhow::Error::new(error)))),
        }
    }

    /// Returns the event that triggers samples on the CPU; `None` if none are wanted.
    ///
    /// # Errors
    ///
    /// The reason why the sampler did not start, if samples are wanted.
    pub fn samples(&self) -> Result<Option<SampleEvent>, String> {
        let sampler = self.sampler.as_ref().map_err(Clone::clone)?;
        Ok(sampler.as_ref().map(Sampler::event))
    }

    /// Makes the programs leave out these parts of their work, and do all other parts.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn lower(&mut self, lowered: Lowered) -> io::Result<()> {
        lowered.apply(&mut self.orders, self.max_walks, monotonic_ns());
        self.order()
    }

    /// Makes the programs use only these filter terms.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn set_filter_terms(&mut self, terms: &[abi::podperf_filter_term]) -> io::Result<()> {
        self.orders.terms = 0;
        self.order()?;
        for (index, term) in (0_u32..).zip(terms) {
            raw::update(fd(&self.object, "filter_terms")?, index, *term)?;
        }
        self.orders.terms = u32::try_from(terms.len()).unwrap_or(0);
        self.order()
    }

    /// Charges the waits that have not ended, for the next reading. [`Self::take_samples`] does this, too.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn charge_waits(&self) -> io::Result<()> {
        self.object.iterate(COLLECT)
    }

    /// Passes on all new records of both rings, and handles CPUs that came or went.
    pub fn drain(&mut self, mut stacks: impl FnMut(StackRecord), mut cgroups: impl FnMut(CgroupRecord)) {
        if let Some(gone) = self.note_cpus() {
            self.follow_cpus(&gone);
        }
        while let Some(record) = self.cgroup_ring.next() {
            CgroupRecord::decode(&record).into_iter().for_each(&mut cgroups);
        }
        while let Some(record) = self.stack_ring.next() {
            StackRecord::decode(&record).into_iter().for_each(&mut stacks);
        }
    }

    /// Makes the programs write to the other tables of samples, then reads and empties the tables that they wrote to.
    /// The tables include the waits that have not ended, with their time so far.
    ///
    /// # Errors
    ///
    /// When the tables cannot be read. The call after the next one then returns their samples.
    pub fn take_samples(&mut self) -> io::Result<Vec<RawSample>> {
        let odd = self.orders.epoch & 1;
        self.orders.epoch ^= 1;
        self.order()?;
        // After the flush, no program still uses the old epoch: flushing interrupts each CPU, and programs at the
        // context switch cannot be interrupted. Quiet CPUs are not interrupted: a program there has ended long before
        // the iterator has seen all tasks.
        self.flush();
        // The sums of tasks go into the tables that programs no longer write to, or stay for the next tables.
        let unsettled = self.object.iterate(COLLECT).err();
        let (samples, untaken) = sample_tables::take(&self.object, odd as usize);
        let failed = unsettled.or(untaken);
        match failed {
            // The samples are no longer in the table, so this returns them despite the error.
            Some(error) if !samples.is_empty() => {
                debug!(%error, "not all samples are read");
                Ok(samples)
            }
            Some(error) => Err(error),
            None => Ok(samples),
        }
    }

    /// Takes the ring of copied user stacks for the thread that unwinds them; `None` if stacks are not copied.
    pub fn take_copies(&mut self) -> Option<Copies> {
        self.stack_copies.take()
    }

    /// Returns the error of the program that the kernel refused while it copied stacks. The programs that run walk the
    /// stacks.
    #[must_use]
    pub fn copies_refused(&self) -> Option<&str> {
        self.copies_refused.as_deref()
    }

    /// Makes the programs send these stacks and wakers again at their next use, because the agent has dropped them.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn forget_sent(&self, ids: &[u64]) -> io::Result<()> {
        sent::forget(&self.object, ids)
    }
}
