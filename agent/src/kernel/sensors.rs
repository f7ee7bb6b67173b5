//! The BPF programs and their maps: loaded, attached, flushed, read.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{MapData, RingBuf},
    programs::{Iter, RawTracePoint},
};
use podperf_ebpf::abi;
use tracing::debug;

use super::{
    attach::{attach_btf, attach_scheduling, hand_over, load_iter, load_raw, take_ring},
    clock::{monotonic, monotonic_ns},
    cost::{MapUse, ProgramUse},
    counters::{Counters, OpenCounter, fastest_ghz},
    host::in_initial_pid_namespace,
    hotplug::Hotplug,
    load::{LoadError, SensorSettings, Tracepoint},
    raw::{self, Then},
    reading::{CpuTotals, RawReading},
    records::{CgroupRecord, RawSample, SampleKey, StackRecord},
    rows::Rows,
    sampler::{self, SampleEvent, Sampler},
    symbols,
};
use crate::{
    events::{plan::Plan, plausible::MOST_PER_CYCLE},
    ids::CgroupId,
};

/// Labels of `enum podperf_drop`, in its order.
pub(crate) const DROPS: [&str; abi::PODPERF_DROPS as usize] = [
    "task_storage",
    "task_busy",
    "cgroup_table",
    "event_read",
    "stack_walk",
    "stack_memo",
    "stack_ring",
    "sample_table",
    "sample_stack",
    "long_wait",
    "cgroup_ring",
    "stack_shed",
];

/// The programs with an account of their own, in the order of `enum podperf_program`. Either form of the first.
const PROGRAMS: [&str; abi::PODPERF_PROGRAMS as usize] = [
    "sched_switch",
    "cgroup_attach_task",
    "flush",
    "forget",
    "cgroup_mkdir",
    "cgroup_rename",
    "cgroup_rmdir",
    sampler::PROGRAM,
    "sched_waking",
    COLLECT,
];

/// The iterator over tasks.
const COLLECT: &str = "collect";

/// The running programs. They detach, and the counters close, on drop.
pub struct Sensors {
    ebpf: Ebpf,
    counters: Counters,
    hotplug: Hotplug,
    rows: Rows,
    stack_ring: RingBuf<MapData>,
    cgroup_ring: RingBuf<MapData>,
    sampler: Result<Option<Sampler>, String>,
    copies: usize,
    orders: abi::podperf_orders,
    tracepoint: Tracepoint,
    running: Vec<&'static str>,
}

impl Sensors {
    /// Loads the object and attaches the programs: counting begins. Walk the cgroup tree after this, so that no
    /// cgroup is missed.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the object or a program. Events that cannot be counted are no error: see
    /// [`Sensors::counters`].
    pub fn start(settings: &SensorSettings, plan: &Plan) -> Result<Self, LoadError> {
        let btf = Btf::from_sys_fs()?;
        let cpus = aya::util::online_cpus().unwrap_or_else(|_| vec![0]);
        let copies = aya::util::nr_cpus().unwrap_or(cpus.len());
        // Before the counters are opened: what happens meanwhile is seen afterwards.
        let hotplug = Hotplug::listen();
        let mut counters = Counters::open(plan, &cpus, settings.pmu, monotonic());
        let leader_of = counters.leader_of();
        let nr_events = u32::try_from(counters.slots()).unwrap_or(0);
        let rows = Rows::new(settings.max_cgroups, copies);
        let max_stacks = if settings.stacks { settings.max_stacks } else { 1 };
        let max_samples = if settings.stacks { settings.max_samples } else { 1 };
        let wakers = settings.stacks && settings.waker_after_ns > 0;
        let (interrupts, scheduler) = symbols::text(settings.stacks);

        let mut ebpf = EbpfLoader::new()
            .btf(Some(&btf))
            // Task storage: made and filled by the programs, never touched from here.
            .allow_unsupported_maps()
            .override_global("nr_events", &nr_events, true)
            .override_global("leader_of", leader_of.as_slice(), true)
            .override_global("facts_enabled", &u8::from(settings.facts), true)
            .override_global("stacks_enabled", &u8::from(settings.stacks), true)
            .override_global("long_wait_ns", &settings.long_wait_ns, true)
            .override_global("waker_after_ns", &settings.waker_after_ns, true)
            .override_global("waker_stacks", &u8::from(settings.waker_stacks), true)
            .override_global("irq_text_begin", &interrupts.start, true)
            .override_global("irq_text_end", &interrupts.end, true)
            .override_global("schedule_begin", &scheduler.start, true)
            .override_global("schedule_end", &scheduler.end, true)
            .override_global("walk_every_ns", &apart_ns(settings.max_walks), true)
            .override_global("sample_ns", &apart_ns(settings.oncpu_hertz), true)
            .override_global("max_samples", &max_samples, true)
            .override_global("shadow", &u8::from(settings.shadow), true)
            .override_global("sums_enabled", &u8::from(in_initial_pid_namespace()), true)
            .override_global("loaded_at_ns", &monotonic_ns(), true)
            .override_global("slot_shift", &rows.slot_shift(), true)
            .map_max_entries("cgroups", settings.max_cgroups)
            .map_max_entries("rows", rows.slots())
            .map_max_entries("rows_by_id", rows.by_id())
            .map_max_entries("cpus", u32::try_from(copies).unwrap_or(1))
            .map_max_entries("controls", u32::try_from(copies).unwrap_or(1))
            .map_max_entries("stack_memo", max_stacks)
            .map_max_entries("stacks_sent", max_stacks)
            .map_max_entries("samples0", max_samples)
            .map_max_entries("samples1", max_samples)
            .load(podperf_ebpf::OBJECT)
            .map_err(|error| LoadError::Object(Box::new(error)))?;

        hand_over(&mut ebpf, &mut counters, &cpus)?;
        let mut running = Vec::new();
        for program in ["cgroup_mkdir", "cgroup_rename", "cgroup_rmdir", "cgroup_attach_task"] {
            attach_btf(&mut ebpf, program, program, &btf)?;
            running.push(program);
        }
        for program in ["flush", "forget"] {
            load_raw(&mut ebpf, program, None)?;
            running.push(program);
        }
        let stack_ring = take_ring(&mut ebpf, "stack_ring")?;
        let cgroup_ring = take_ring(&mut ebpf, "cgroup_ring")?;
        let (tracepoint, program) = attach_scheduling(&mut ebpf, settings.tracepoint, &btf)?;
        running.push(program);
        if settings.stacks {
            load_iter(&mut ebpf, COLLECT, &btf)?;
            running.push(COLLECT);
        }
        if wakers {
            attach_btf(&mut ebpf, "sched_waking", "sched_waking", &btf)?;
            running.push("sched_waking");
        }
        let sampled = settings.stacks && settings.oncpu_hertz > 0;
        let sampler = sampled.then(|| Sampler::start(&mut ebpf, settings.oncpu_event, settings.oncpu_hertz, &cpus));
        // All else goes on without it.
        let sampler = sampler.transpose().map_err(|error| format!("{:#}", anyhow::Error::new(error)));
        if let Ok(Some(_)) = &sampler {
            running.push(sampler::PROGRAM);
        }
        // The kernel's types were by far the largest thing in the agent.
        drop(btf);
        raw::return_free_memory();
        Ok(Self {
            ebpf,
            counters,
            hotplug,
            rows,
            stack_ring,
            cgroup_ring,
            sampler,
            copies,
            orders: bytemuck::Zeroable::zeroed(),
            tracepoint,
            running,
        })
    }

    /// Which form of the scheduling tracepoint is attached.
    #[must_use]
    pub const fn tracepoint(&self) -> Tracepoint {
        self.tracepoint
    }

    /// What makes samples on the CPU; `None` where none are wanted.
    ///
    /// # Errors
    ///
    /// Why there are none although they are wanted.
    pub fn samples(&self) -> Result<Option<SampleEvent>, String> {
        let sampler = self.sampler.as_ref().map_err(Clone::clone)?;
        Ok(sampler.as_ref().map(Sampler::event))
    }

    /// The configured events and what became of each.
    #[must_use]
    pub fn counters(&self) -> &[OpenCounter] {
        self.counters.events()
    }

    /// The most that any event can count in a nanosecond of one CPU here.
    #[must_use]
    pub fn most_per_ns(&self) -> f64 {
        MOST_PER_CYCLE * fastest_ghz(&aya::util::online_cpus().unwrap_or_default())
    }

    /// After a reading: makes room on the PMU for others or takes it back. Whether the state of any counter changed. `doubtful` are slots whose counts cannot be.
    pub fn tend(&mut self, reading: &RawReading, doubtful: &[usize]) -> bool {
        self.follow_cpus(&self.hotplug.gone().unwrap_or_default());
        for slot in doubtful {
            self.counters.doubt(*slot, "it counted more than the fastest clock allows (a virtual PMU that jumps?)");
        }
        let ebpf = &self.ebpf;
        self.counters.look(monotonic(), &reading.cpus, || flush(ebpf))
    }

    /// Gives up the last group of counters that still counts; `false` when none does.
    pub fn shed_counters(&mut self) -> bool {
        let ebpf = &self.ebpf;
        self.counters.shed_group(|| flush(ebpf))
    }

    /// Takes up again the group of counters that was given up last; `false` when there is none.
    pub fn restore_counters(&mut self) -> bool {
        self.counters.restore_group()
    }

    /// Whether stacks are left out.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn shed_stacks(&mut self, shed: bool) -> io::Result<()> {
        self.orders.shed = if shed { abi::PODPERF_SHED_STACKS } else { 0 };
        self.order()
    }

    /// Has the programs look at these terms of filters and no others.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn set_filter_terms(&mut self, terms: &[abi::podperf_filter_term]) -> io::Result<()> {
        self.orders.terms = 0;
        self.order()?;
        for (index, term) in (0_u32..).zip(terms) {
            raw::update(fd(&self.ebpf, "filter_terms")?, index, *term)?;
        }
        self.orders.terms = u32::try_from(terms.len()).unwrap_or(0);
        self.order()
    }

    fn order(&self) -> io::Result<()> {
        raw::update(fd(&self.ebpf, ".data.orders")?, 0_u32, self.orders)
    }

    /// Settles what is on each CPU, then reads everything.
    ///
    /// # Errors
    ///
    /// When a map cannot be read: the reading is then not usable.
    pub fn read(&self) -> io::Result<RawReading> {
        self.flush();
        let rows = self.rows.read(&self.ebpf)?;
        let mut cpus = Vec::new();
        self.read_map("cpus", 1, |_: u32, cpu: &[abi::podperf_cpu]| cpus.extend_from_slice(cpu))?;
        let cpu = CpuTotals::of(&cpus);
        Ok(RawReading { at_ns: monotonic_ns(), rows, cpu, drops: self.drops()?, cpus })
    }

    /// What was lost so far, by `podperf_bpf_drops_total` label.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn drops(&self) -> io::Result<Vec<(&'static str, u64)>> {
        let mut drops: Vec<_> = DROPS.iter().map(|reason| (*reason, 0)).collect();
        self.read_map("drops", self.copies, |reason: u32, copies: &[u64]| {
            if let Some((_, count)) = drops.get_mut(reason as usize) {
                *count = copies.iter().sum();
            }
        })?;
        Ok(drops)
    }

    /// Forgets cgroups that are gone. If one of their tasks still had something to settle, a new row appears.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn forget_cgroups(&mut self, dead: &[CgroupId]) -> io::Result<()> {
        self.rows.forget(&self.ebpf, dead)
    }

    /// Takes all new records of both rings, and follows CPUs that came or went.
    pub fn drain(&mut self, mut stacks: impl FnMut(StackRecord), mut cgroups: impl FnMut(CgroupRecord)) {
        if let Some(gone) = self.hotplug.gone() {
            self.follow_cpus(&gone);
        }
        while let Some(record) = self.cgroup_ring.next() {
            CgroupRecord::decode(&record).into_iter().for_each(&mut cgroups);
        }
        while let Some(record) = self.stack_ring.next() {
            StackRecord::decode(&record).into_iter().for_each(&mut stacks);
        }
    }

    /// Makes the programs write to the other table of samples, and empties the one they wrote to.
    ///
    /// # Errors
    ///
    /// When the tables cannot be read; their samples are then taken the time after the next.
    pub fn take_samples(&mut self) -> io::Result<Vec<RawSample>> {
        let odd = self.orders.epoch & 1;
        let full = if odd == 0 { "samples0" } else { "samples1" };
        self.orders.epoch ^= 1;
        self.order()?;
        // A program that read the old epoch is done well before this: flushing interrupts each CPU, and programs at
        // the context switch cannot be interrupted.
        self.flush();
        self.collect()?;
        let mut samples = Vec::new();
        raw::read_all(
            fd(&self.ebpf, full)?,
            1,
            Then::Delete,
            |key: abi::podperf_sample_key, sums: &[abi::podperf_sample_sum]| {
                if let (Some(key), [sum]) = (SampleKey::from_abi(&key), sums) {
                    samples.push(RawSample { key, ns: sum.ns, count: sum.count, last_ns: sum.last_ns });
                }
            },
        )?;
        let unused: abi::podperf_samples_used = bytemuck::Zeroable::zeroed();
        raw::update(fd(&self.ebpf, "samples_used")?, odd, unused)?;
        Ok(samples)
    }

    /// Has what tasks have summed put into the table that is no longer written to.
    fn collect(&mut self) -> io::Result<()> {
        let Some(program) = self.ebpf.program_mut(COLLECT) else { return Ok(()) };
        let program: &mut Iter = program.try_into().map_err(io::Error::other)?;
        let link = program.attach().and_then(|id| program.take_link(id)).map_err(io::Error::other)?;
        let mut tasks = link.into_file().map_err(io::Error::other)?;
        // It writes nothing; reading runs it. The kernel asks to come again when there are many.
        loop {
            match io::copy(&mut tasks, &mut io::sink()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result.map(drop),
            }
        }
    }

    /// Has stacks and wakers sent again when they come again, since they were forgotten here.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn forget_sent(&self, ids: &[u64]) -> io::Result<()> {
        let sent = fd(&self.ebpf, "stacks_sent")?;
        ids.iter().try_for_each(|id| raw::delete(sent, *id))
    }

    /// What the maps hold, by the kernel's own account (`/proc/self/fdinfo`).
    #[must_use]
    pub fn map_use(&self) -> Vec<MapUse> {
        let mut maps: Vec<_> = self
            .ebpf
            .maps()
            .filter(|(name, _)| !name.starts_with("event") && !name.starts_with('.'))
            .filter_map(|(name, map)| Some(MapUse::read(name, raw::data(map)?.fd().as_fd())))
            .collect();
        maps.sort_by(|a, b| a.map.cmp(&b.map));
        maps
    }

    /// The programs that run, and what they did by their own account in `totals`.
    #[must_use]
    pub fn program_use(&self, totals: &CpuTotals) -> Vec<ProgramUse> {
        let read = |name: &&'static str| {
            // The raw form has the account of the other.
            let own = PROGRAMS.iter().position(|program| name.starts_with(program))?;
            ProgramUse::read(name, self.ebpf.program(name)?, &totals.programs[own])
        };
        self.running.iter().filter_map(read).collect()
    }

    fn follow_cpus(&mut self, gone: &[u32]) {
        let online = aya::util::online_cpus().unwrap_or_default();
        if let Ok(Some(sampler)) = &mut self.sampler {
            sampler.follow(&mut self.ebpf, gone, &online);
        }
        self.counters.follow(gone, &online);
        self.rows.follow(&self.ebpf, &online);
    }

    fn flush(&self) {
        flush(&self.ebpf);
    }

    fn read_map<K: bytemuck::Pod, V: bytemuck::Pod>(
        &self,
        name: &'static str,
        copies: usize,
        each: impl FnMut(K, &[V]),
    ) -> io::Result<()> {
        raw::read_all(fd(&self.ebpf, name)?, copies, Then::Keep, each)
    }
}

impl std::fmt::Debug for Sensors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sensors").field("running", &self.running).finish_non_exhaustive()
    }
}

/// A map of the object.
pub(super) fn fd<'a>(ebpf: &'a Ebpf, name: &'static str) -> io::Result<BorrowedFd<'a>> {
    let data = ebpf.map(name).and_then(raw::data);
    data.map(|data| data.fd().as_fd()).ok_or_else(|| io::Error::other(LoadError::Missing(name)))
}

/// A program that is run from here.
pub(super) fn raw_program<'a>(ebpf: &'a Ebpf, name: &str) -> Option<&'a RawTracePoint> {
    ebpf.program(name)?.try_into().ok()
}

/// How far apart so many in a second are; 0 for none.
fn apart_ns(in_a_second: u32) -> u64 {
    1_000_000_000_u64.checked_div(in_a_second.into()).unwrap_or(0)
}

/// Settles what is on each CPU.
fn flush(ebpf: &Ebpf) {
    let Some(program) = raw_program(ebpf, "flush") else { return };
    for cpu in aya::util::online_cpus().unwrap_or_default() {
        // A CPU that went offline meanwhile has nothing to settle.
        if let Err(error) = raw::run_on(program, cpu, [0; 12]) {
            debug!(cpu, %error, "not flushed");
        }
    }
}
