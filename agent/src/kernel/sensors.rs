//! The BPF programs and their maps: loads, attaches and adopts the programs, and reads their counts. [`samples`] takes
//! their samples, [`cgroups`] looks after the cgroups that they count, and [`mod@accounts`] has their losses and costs.

mod accounts;
mod cgroups;
mod samples;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use aya::maps::{MapData, RingBuf};
use podperf_ebpf::abi;
use tracing::{debug, warn};

use super::{
    adopt_or_load::{find, forget_stacks, is_loaded, layout, load},
    attach::{pass_counters, take_ring},
    clock::{monotonic, monotonic_ns},
    copies::Copies,
    counters::{Counters, OpenCounter, fastest_ghz},
    error::LoadError,
    flush::{flush, flush_without},
    hard_interrupts::{self, ByName},
    hotplug::Hotplug,
    listed,
    load::{SensorSettings, Tracepoint},
    object::{Object, fd, identity},
    orders::apart_ns,
    presence::Presence,
    probes::{Probes, forget_calls},
    programs::{ADOPT, DROPS, ORDERS, RUN, SEE},
    raw::{self, Then},
    reading::{CpuTotals, RawReading},
    rows::Rows,
    sampler::{SampleEvent, Sampler},
    sensor_programs::{SensorState, accounts, adopt, names, programs, supported},
    stolen::stolen_ns,
    takeover::{
        Pins, Previous,
        generations::{self, take_over},
    },
    works::{self, Works},
};
use crate::{
    events::{plan::Plan, plausible::MOST_PER_CYCLE},
    model::{hard_interrupts::HardInterrupts, status::State, works::WorkCounts},
};

/// The running programs. On drop, the counters close, and programs that are not pinned detach.
pub struct Sensors {
    object: Object,
    counters: Counters,
    hotplug: Hotplug,
    presence: Presence,
    rows: Rows,
    stack_ring: RingBuf<MapData>,
    cgroup_ring: RingBuf<MapData>,
    /// `None` once another thread has them, or if stacks are not copied.
    stack_copies: Option<Copies>,
    /// The error of the program that the kernel refused while it copied stacks.
    copies_refused: Option<String>,
    sampler: Result<Option<Sampler>, String>,
    copies: usize,
    /// The quiet CPUs (see [`super::isolation`]).
    quiet_cpus: Vec<u32>,
    orders: abi::podperf_orders,
    max_walks: u32,
    tracepoint: Tracepoint,
    running: Vec<&'static str>,
    sensor_states: Vec<SensorState>,
    begin: Begin,
    /// Totals, and losses by reason, that are no longer in any map.
    base: (CpuTotals, Vec<(&'static str, u64)>),
    hard_interrupts: ByName,
    previous: Vec<Previous>,
    /// Number of task records that could not be created, at the last reading.
    records_missing: u64,
    unreadable: Vec<String>,
    works: Works,
}

/// The way in which counting began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// Counting began with this agent, and all counts were zero.
    Anew,
    /// A previous agent began counting, and this agent uses its programs and maps.
    Adopted,
    /// A previous agent began counting, with other programs. Their counts are in [`Sensors::previous`].
    TookOver,
}

impl Sensors {
    /// Loads the object and attaches the programs, or adopts the programs that an agent with the same object and the
    /// same settings has pinned. Counting then begins or continues. Walk the cgroup tree after this, so that no cgroup
    /// is missed.
    ///
    /// If the kernel refuses a program that copies stacks, the programs are started once more, and walk the stacks.
    ///
    /// # Errors
    ///
    /// When the kernel rejects the object or a program. Events that cannot be counted are no error: see
    /// [`Sensors::counters`].
    pub fn start(settings: &SensorSettings, plan: &Plan, pins: Option<&Pins>) -> Result<Self, LoadError> {
        match Self::start_as(settings, plan, pins) {
            Err(error) if settings.copies && error.is_refusal_of_program() => {
                let refused = error.to_string();
                warn!(error = format!("{:#}", anyhow::Error::new(error)), "stacks are not copied");
                let settings = SensorSettings { copies: false, ..settings.clone() };
                // Otherwise the maps of both attempts would take memory at the same time.
                if let Some(pins) = pins {
                    pins.abandon().map_err(|source| pins.failed(source))?;
                }
                Ok(Self { copies_refused: Some(refused), ..Self::start_as(&settings, plan, pins)? })
            }
            started => started,
        }
    }

    fn start_as(settings: &SensorSettings, plan: &Plan, pins: Option<&Pins>) -> Result<Self, LoadError> {
        let cpus = aya::util::online_cpus().unwrap_or_else(|_| vec![0]);
        let copies = aya::util::nr_cpus().map_err(|(_, source)| LoadError::Cpus(source))?;
        // Listens before the counters are opened: CPUs that come or go meanwhile are noticed afterwards.
        let hotplug = Hotplug::listen();
        let mut counters = Counters::open(plan, &cpus, settings.pmu, monotonic());
        let (on, mut sensor_states) = supported(&settings.sensors);
        let rows = Rows::new(settings.max_cgroups, copies, &on).sparing(&settings.quiet_cpus);
        let layout = layout(settings, &on, &counters, &rows, copies);
        let mut found = pins.map(|pins| find(pins, &layout.name())).transpose()?.unwrap_or_default();
        let same = found.same.take();
        let adopted = same.is_some();
        let (mut object, number, states) = match same {
            Some((generation, object)) => {
                listed::name_levels(&object, &settings.levels).map_err(LoadError::Counter)?;
                let states = adopt(&object, &on);
                (object, generation.number, states)
            }
            None => load(settings, &on, &layout, pins, &found).map_err(LoadError::or_missing_features)?,
        };
        sensor_states.extend(states);
        for of in sensor_states.iter_mut().filter(|of| of.state == State::Healthy) {
            of.detail = settings.values.about(of.sensor);
        }
        let others = found.others;
        let begin = match (others.is_empty(), adopted) {
            (false, _) => Begin::TookOver,
            (true, true) => Begin::Adopted,
            (true, false) => Begin::Anew,
        };
        let mut orders: abi::podperf_orders = bytemuck::Zeroable::zeroed();
        let data = fd(&object, ORDERS).map_err(LoadError::Counter)?;
        raw::lookup(data, 0_u32, std::slice::from_mut(&mut orders)).map_err(LoadError::Counter)?;
        // Adopted programs that have counted until now missed no end.
        let has_counted_on = adopted && found.counting.is_none();
        if let Some(pins) = pins.filter(|_| matches!(begin, Begin::TookOver) && !has_counted_on) {
            orders.sensors_since_ns = generations::sensors_since_ns(pins, found.counting.as_ref(), number);
        }
        if adopted {
            forget_stacks(&object).and_then(|()| forget_calls(&object)).map_err(LoadError::Counter)?;
        }
        pass_counters(&mut object, &mut counters, &cpus, adopted)?;
        let stack_ring = take_ring(&mut object, "stack_ring")?;
        let cgroup_ring = take_ring(&mut object, "cgroup_ring")?;
        let stack_copies = (settings.stacks && settings.copies).then(|| Copies::of(&mut object)).transpose()?;
        // Set before the first samples, because samples by cycles begin with a burst.
        orders.sample_busy = (settings.oncpu_event != SampleEvent::CpuClock).into();
        // Adopted programs may have another budget, and still leave something out: the first reading decides.
        orders.walk_every_ns = orders.walk_every_ns.max(apart_ns(settings.max_walks));
        order(&object, orders).map_err(LoadError::Counter)?;
        let sampler = Self::start_sampler(&mut object, settings, &cpus)?;
        if matches!(&sampler, Ok(Some(sampler)) if sampler.event() == SampleEvent::CpuClock) {
            orders.sample_busy = 0;
            order(&object, orders).map_err(LoadError::Counter)?;
        }
        let (mut previous, mut unreadable) = (Vec::new(), Vec::new());
        if let Some(pins) = pins {
            let failed = |source| pins.failed(source);
            if !adopted {
                let name = format!("{}-{number}", layout.name());
                object.pin_programs(&pins.unfinished()).and_then(|()| pins.finish(&name)).map_err(failed)?;
            }
            if !others.is_empty() {
                (previous, unreadable) = take_over(pins, others, &object, number, copies).map_err(failed)?;
            }
        }
        if settings.facts {
            // These programs count now. This iterator shows them the tasks that have slept since before they counted.
            object.iterate(SEE).map_err(LoadError::Counter)?;
        }
        if !settings.quiet_cpus.is_empty() {
            // The iterator does not see the tasks that run: without this, such a task on a quiet CPU would count only
            // from its next switch.
            flush(&object);
        }
        let tracepoint = if is_loaded(&object, "sched_switch_raw") { Tracepoint::Raw } else { Tracepoint::Btf };
        let of_sensors = programs().map(|(_, program)| program.name);
        let running = RUN.into_iter().chain(of_sensors).filter(|name| is_loaded(&object, name)).collect();
        raw::return_free_memory();
        Ok(Self {
            object,
            counters,
            hotplug,
            presence: Presence::since(monotonic_ns(), &cpus),
            rows,
            stack_ring,
            cgroup_ring,
            stack_copies,
            copies_refused: None,
            sampler,
            copies,
            quiet_cpus: settings.quiet_cpus.clone(),
            orders,
            max_walks: settings.max_walks,
            tracepoint,
            running,
            sensor_states,
            begin,
            base: Default::default(),
            hard_interrupts: ByName::default(),
            previous,
            records_missing: 0,
            unreadable,
            works: settings.values.number(works::MAX_FUNCTIONS).map_or_else(Works::default, Works::at_most),
        })
    }

    /// Returns the way in which counting began.
    #[must_use]
    pub const fn begin(&self) -> Begin {
        self.begin
    }

    /// Adds totals that are no longer in any map. The losses and the hard interrupts are entries of `numbers`.
    /// `names` are the names of hard interrupts that the previous agent showed, and `read_ns` is the time of its last
    /// reading.
    pub fn restore(
        &mut self,
        totals: &CpuTotals,
        numbers: &BTreeMap<String, u64>,
        names: BTreeSet<String>,
        read_ns: Option<u64>,
    ) {
        if let Some(read_ns) = read_ns {
            self.presence = Presence::since(read_ns, &aya::util::online_cpus().unwrap_or_default());
        }
        let lost = |reason: &&'static str| Some((*reason, *numbers.get(&format!("drop {reason}"))?));
        self.base = (*totals, DROPS.iter().filter_map(lost).collect());
        // A sensor that is off has no series, and one that comes back begins anew, as with its other words.
        if self.sensor_states.iter().any(|of| of.sensor.names.sensor == hard_interrupts::SENSOR) {
            self.hard_interrupts.restore(numbers, names);
        }
    }

    /// Returns the totals, the losses by reason and the hard interrupts that are no longer in any map.
    #[must_use]
    pub fn base(&self) -> (&CpuTotals, &[(&'static str, u64)], &HardInterrupts) {
        (&self.base.0, &self.base.1, self.hard_interrupts.base())
    }

    /// Returns the identity of these counts: two agents with the same identity read the same rows.
    #[must_use]
    pub fn identity(&self) -> String {
        identity(&self.object)
    }

    /// Returns the counts of the programs of previous generations.
    #[must_use]
    pub fn previous(&self) -> &[Previous] {
        &self.previous
    }

    /// Returns the previous generations that could not be read: their counts since the last reading are lost.
    #[must_use]
    pub fn unreadable(&self) -> &[String] {
        &self.unreadable
    }

    /// Unpins previous generations and drops their counts, once the counts are reported and in the checkpoint.
    pub fn forget_previous(&mut self) {
        self.previous.retain_mut(|generation| !generation.forget());
    }

    /// Returns the form of the scheduling tracepoint that is attached.
    #[must_use]
    pub const fn tracepoint(&self) -> Tracepoint {
        self.tracepoint
    }

    /// Returns the programs that probed functions call; `None` if the sensor `functions` does not run.
    #[must_use]
    pub fn probes(&self) -> Option<Probes> {
        Probes::of(&self.object, self.copies)
    }

    /// Returns the states of the sensors that the configuration turns on.
    #[must_use]
    pub fn sensor_states(&self) -> &[SensorState] {
        &self.sensor_states
    }

    /// Returns the counts of work items by function, which grow with each reading.
    #[must_use]
    pub fn work_counts(&self) -> WorkCounts {
        self.works.counts()
    }

    /// Returns the configured events, and the state of each.
    #[must_use]
    pub fn counters(&self) -> &[OpenCounter] {
        self.counters.events()
    }

    /// Returns the largest count that any event can reach in a nanosecond of one CPU of this machine.
    #[must_use]
    pub fn most_per_ns(&self) -> f64 {
        MOST_PER_CYCLE * fastest_ghz(&aya::util::online_cpus().unwrap_or_default())
    }

    /// Frees counters of the PMU for other users, or takes them back, after a reading. `doubtful` are slots with
    /// impossible counts. Returns true if the state of any counter changed.
    pub fn update_counters(&mut self, reading: &RawReading, doubtful: &[usize]) -> bool {
        let gone = self.note_cpus();
        self.follow_cpus(&gone.unwrap_or_default());
        self.make_records(reading);
        for slot in doubtful {
            self.counters.doubt(*slot, "it counted more than the fastest clock allows (a virtual PMU that jumps?)");
        }
        let object = &self.object;
        self.counters.look(monotonic(), &reading.cpus, &self.quiet_cpus, || _ = flush(object))
    }

    /// Stops the last group of counters that still counts. Returns false when no group counts.
    pub fn shed_counters(&mut self) -> bool {
        let object = &self.object;
        self.counters.shed_group(|| _ = flush(object))
    }

    /// Restores the group of counters that was stopped last. Returns false when no group was stopped.
    pub fn restore_counters(&mut self) -> bool {
        self.counters.restore_group()
    }

    fn order(&self) -> io::Result<()> {
        order(&self.object, self.orders)
    }

    /// Settles the running task of each CPU that is not quiet, then reads all maps.
    ///
    /// # Errors
    ///
    /// When a map cannot be read. The reading is then not usable.
    pub fn read(&mut self) -> io::Result<RawReading> {
        if let Some(gone) = self.note_cpus() {
            self.follow_cpus(&gone);
        }
        // Reads this list first: a CPU that comes online meanwhile belongs to the next reading.
        let online = aya::util::online_cpus().unwrap_or_default();
        let at_ns = self.flush();
        let rows = self.rows.read(&self.object)?;
        let charged = listed::charged(&self.object)?;
        let mut cpus = Vec::new();
        self.read_map("cpus", 1, |_: u32, cpu: &[abi::podperf_cpu]| cpus.extend_from_slice(cpu))?;
        let drops = self.drops()?;
        let idle: Vec<u64> = cpus.iter().map(|cpu| cpu.idle_ns).collect();
        // A quiet CPU is settled up to its last switch, and counts as online up to then.
        let last_switch = |cpu: u32| cpus.get(cpu as usize).map_or(0, |cpu| cpu.since_ns);
        let until = |cpu: u32| if self.quiet_cpus.contains(&cpu) { last_switch(cpu) } else { at_ns };
        let passed = self.presence.pass(until, &online, &idle);
        // The totals may wrap around.
        self.base.0.idle_ns = self.base.0.idle_ns.wrapping_sub(passed.offline_idle_ns);
        let mut cpu = CpuTotals::of(&cpus, accounts(&self.object, self.copies, names)?);
        cpu.add(&self.base.0);
        let hard_interrupts = self.hard_interrupts.read(&self.object, self.copies)?;
        let (online_ns, stolen_ns) = (passed.online_ns, stolen_ns());
        // This may read the kernel's symbols, so it comes after all that belongs to one instant.
        self.works.read(&self.object)?;
        Ok(RawReading { at_ns, rows, charged, cpu, drops, online_ns, hard_interrupts, stolen_ns, cpus })
    }

    /// Notes the CPUs that came and went since the last call. Returns the CPUs that went, and some of them may be back;
    /// `None` when no CPU came or went.
    fn note_cpus(&mut self) -> Option<Vec<u32>> {
        let (news, now_ns) = (self.hotplug.news(), monotonic_ns());
        news.iter().for_each(|(cpu, is_online)| self.presence.note(*cpu, *is_online, now_ns));
        let gone = news.iter().filter(|(_, is_online)| !is_online).map(|(cpu, _)| *cpu);
        (!news.is_empty()).then(|| gone.collect())
    }

    fn follow_cpus(&mut self, gone: &[u32]) {
        let online = aya::util::online_cpus().unwrap_or_default();
        if let Ok(Some(sampler)) = &mut self.sampler {
            sampler.follow(&mut self.object, gone, &online);
        }
        self.counters.follow(gone, &online);
        self.rows.follow(&self.object, &online);
    }

    /// Creates the records of tasks for which the kernel had no memory when the tasks were created.
    fn make_records(&mut self, reading: &RawReading) {
        let missing = reading.drops.iter().find(|(reason, _)| *reason == "task_storage").map_or(0, |(_, count)| *count);
        if std::mem::replace(&mut self.records_missing, missing) < missing
            && let Err(error) = self.object.iterate(ADOPT)
        {
            debug!(%error, "records not made");
        }
    }

    fn flush(&self) -> u64 {
        flush_without(&self.object, &self.quiet_cpus)
    }

    fn read_map<K: bytemuck::Pod, V: bytemuck::Pod>(
        &self,
        name: &'static str,
        copies: usize,
        each: impl FnMut(K, &[V]),
    ) -> io::Result<()> {
        raw::read_all(fd(&self.object, name)?, copies, Then::Keep, each)
    }
}

impl std::fmt::Debug for Sensors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sensors").field("running", &self.running).finish_non_exhaustive()
    }
}

fn order(object: &Object, orders: abi::podperf_orders) -> io::Result<()> {
    raw::update(fd(object, ORDERS)?, 0_u32, orders)
}
