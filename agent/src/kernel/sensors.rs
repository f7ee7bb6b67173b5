//! The BPF programs and their maps: loaded, attached, flushed, read.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{Map, MapData, RingBuf},
    programs::{BtfTracePoint, ProgramError, RawTracePoint, RawTracePointRunOptions, TestRun},
};
use podperf_ebpf::abi;
use thiserror::Error;
use tracing::debug;

use super::{
    clock::monotonic_ns,
    cost::{MapUse, ProgramUse},
    perf::{Counters, OpenCounter},
    raw::{self, Then},
    records::{CgroupRecord, RawWait, StackRecord, WaitKey},
};
use crate::{
    events::plan::Plan,
    ids::{CgroupId, StackId},
};

/// What the sensors are to do.
#[derive(Clone, Debug)]
pub struct SensorSettings {
    /// Which form of the scheduling tracepoint is wanted.
    pub tracepoint: Tracepoint,
    /// Whether times, waits, switches and faults are kept.
    pub facts: bool,
    /// Whether waits get stacks.
    pub stacks: bool,
    /// Waits at least this long are reported one by one; 0 reports none.
    pub long_wait_ns: u64,
    /// Rows of the cgroup table.
    pub max_cgroups: u32,
    /// Remembered stacks.
    pub max_stacks: u32,
    /// Distinct (stack, cgroup, process, state) of one profile window.
    pub max_waits: u32,
    /// `kernel.perf_event_paranoid`, for messages.
    pub perf_event_paranoid: Option<i32>,
}

/// The forms of the scheduling tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tracepoint {
    /// BTF-typed where the kernel takes it, else raw.
    Auto,
    /// `tp_btf/sched_switch`.
    Btf,
    /// `raw_tp/sched_switch`: sees only the leaving task; coming-on times are told by run times.
    Raw,
}

/// Why the sensors did not start.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The kernel's BTF, the object, a map or a relocation.
    // aya's own messages hold their sources, or hide them: `{err:#}` prints each once.
    #[error(
        "failed to load the BPF object (a kernel without a helper that it needs, or too little memory for its maps)"
    )]
    Object(#[source] Box<aya::EbpfError>),
    /// The kernel's BTF could not be read.
    #[error("failed to read the kernel's BTF")]
    Btf(#[from] aya_obj::btf::BtfError),
    /// The verifier, or the tracepoint, refused a program.
    #[error("failed to start BPF program `{program}`")]
    Program {
        /// Its name in the object.
        program: &'static str,
        /// aya's reason; the verifier's log is in it.
        #[source]
        source: Box<ProgramError>,
    },
    /// A map or program is not in the object: agent and object are not of one build.
    #[error("no `{0}` in the BPF object (rebuild podperf)")]
    Missing(&'static str),
    /// A perf counter could not be put where the programs read it.
    #[error("failed to hand over a perf counter")]
    Counter(#[source] io::Error),
}

/// The kernel's counts at one instant; all of them only ever grow.
#[derive(Debug, Default)]
pub struct RawReading {
    /// `CLOCK_MONOTONIC` of the reading.
    pub at_ns: u64,
    /// Per cgroup (and [`CgroupId::IDLE`]), all CPUs together.
    pub rows: Vec<RawRow>,
    /// The per-CPU state, all CPUs together.
    pub cpu: CpuTotals,
    /// What was lost, by `podperf_bpf_drops_total` label, in the order of `enum podperf_drop`.
    pub drops: Vec<(&'static str, u64)>,
}

/// One row of the `cgroups` map.
#[derive(Clone, Copy, Debug)]
pub struct RawRow {
    /// Whose.
    pub cgroup: CgroupId,
    /// Facts and counts, as in podperf.h.
    pub counts: abi::podperf_cgroup,
}

/// The sums over CPUs of `struct podperf_cpu`; nanoseconds and counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTotals {
    /// Idle time.
    pub idle_ns: u64,
    /// Switch-ins that were not reported and were told by the run time.
    pub switches_recovered: u64,
    /// Waits that are in no profile.
    pub unprofiled_ns: u64,
    /// Waits that should have a stack.
    pub waits: u64,
    /// Of these, how many walked.
    pub walks: u64,
    /// Of these, how many only to check a remembered stack.
    pub checks: u64,
    /// Of these, how many found another stack.
    pub checks_wrong: u64,
}

/// Labels of `enum podperf_drop`, in its order.
const DROPS: [&str; abi::PODPERF_DROPS as usize] = [
    "task_storage",
    "task_busy",
    "cgroup_table",
    "event_read",
    "stack_walk",
    "stack_memo",
    "stack_ring",
    "wait_table",
    "wait_ring",
    "cgroup_ring",
];

/// The running programs. They detach, and the counters close, on drop.
pub struct Sensors {
    ebpf: Ebpf,
    counters: Counters,
    stack_ring: RingBuf<MapData>,
    cgroup_ring: RingBuf<MapData>,
    copies: usize,
    epoch: u32,
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
        let counters = Counters::open(plan, &cpus, settings.perf_event_paranoid);
        let mut leader_of = counters.leader_of.clone();
        leader_of.resize(abi::PODPERF_MAX_EVENTS as usize, 0);
        let nr_events = u32::try_from(counters.fds.len()).unwrap_or(0);
        let max_stacks = if settings.stacks { settings.max_stacks } else { 1 };
        let max_waits = if settings.stacks { settings.max_waits } else { 1 };

        let mut ebpf = EbpfLoader::new()
            .btf(Some(&btf))
            // Task storage: made and filled by the programs, never touched from here.
            .allow_unsupported_maps()
            .override_global("nr_events", &nr_events, true)
            .override_global("leader_of", leader_of.as_slice(), true)
            .override_global("facts_enabled", &u8::from(settings.facts), true)
            .override_global("stacks_enabled", &u8::from(settings.stacks), true)
            .override_global("long_wait_ns", &settings.long_wait_ns, true)
            .override_global("loaded_at_ns", &monotonic_ns(), true)
            .map_max_entries("cgroups", settings.max_cgroups)
            .map_max_entries("stack_memo", max_stacks)
            .map_max_entries("stacks_sent", max_stacks)
            .map_max_entries("waits0", max_waits)
            .map_max_entries("waits1", max_waits)
            .load(podperf_ebpf::OBJECT)
            .map_err(|error| LoadError::Object(Box::new(error)))?;

        hand_over(&ebpf, &counters)?;
        let mut running = Vec::new();
        for program in ["cgroup_mkdir", "cgroup_rename", "cgroup_rmdir", "cgroup_attach_task"] {
            attach_btf(&mut ebpf, program, program, &btf)?;
            running.push(program);
        }
        load_raw(&mut ebpf, "flush", None)?;
        running.push("flush");
        let stack_ring = take_ring(&mut ebpf, "stack_ring")?;
        let cgroup_ring = take_ring(&mut ebpf, "cgroup_ring")?;
        let (tracepoint, program) = attach_scheduling(&mut ebpf, settings.tracepoint, &btf)?;
        running.push(program);
        // The kernel's types were by far the largest thing in the agent.
        drop(btf);
        raw::return_free_memory();
        Ok(Self { ebpf, counters, stack_ring, cgroup_ring, copies, epoch: 0, tracepoint, running })
    }

    /// Which form of the scheduling tracepoint is attached.
    #[must_use]
    pub const fn tracepoint(&self) -> Tracepoint {
        self.tracepoint
    }

    /// The configured events and what became of each.
    #[must_use]
    pub fn counters(&self) -> &[OpenCounter] {
        &self.counters.counters
    }

    /// Settles what is on each CPU, then reads everything.
    ///
    /// # Errors
    ///
    /// When a map cannot be read: the reading is then not usable.
    pub fn read(&self) -> io::Result<RawReading> {
        self.flush();
        let mut rows = Vec::new();
        self.read_map("cgroups", self.copies, |cgroup: u64, copies: &[abi::podperf_cgroup]| {
            rows.push(RawRow { cgroup: CgroupId(cgroup), counts: sum(copies) });
        })?;
        let mut cpu = CpuTotals::default();
        self.read_map("cpus", self.copies, |_: u32, copies: &[abi::podperf_cpu]| {
            for copy in copies {
                cpu.idle_ns += copy.idle_ns;
                cpu.switches_recovered += copy.switches_recovered;
                cpu.unprofiled_ns += copy.unprofiled_ns;
                cpu.waits += copy.waits;
                cpu.walks += copy.walks;
                cpu.checks += copy.checks;
                cpu.checks_wrong += copy.checks_wrong;
            }
        })?;
        Ok(RawReading { at_ns: monotonic_ns(), rows, cpu, drops: self.drops()? })
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

    /// Forgets a cgroup that is gone. If one of its tasks still had something to settle, a new row appears.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn forget_cgroup(&self, cgroup: CgroupId) -> io::Result<()> {
        raw::delete(self.fd("cgroups")?, cgroup.0)
    }

    /// Takes all new records of both rings.
    pub fn drain(&mut self, mut stacks: impl FnMut(StackRecord), mut cgroups: impl FnMut(CgroupRecord)) {
        while let Some(record) = self.cgroup_ring.next() {
            CgroupRecord::decode(&record).into_iter().for_each(&mut cgroups);
        }
        while let Some(record) = self.stack_ring.next() {
            StackRecord::decode(&record).into_iter().for_each(&mut stacks);
        }
    }

    /// Makes the programs write to the other table of waits, and empties the one they wrote to.
    ///
    /// # Errors
    ///
    /// When the tables cannot be read; their waits are then in the next window.
    pub fn take_waits(&mut self) -> io::Result<Vec<RawWait>> {
        let full = if self.epoch & 1 == 0 { "waits0" } else { "waits1" };
        raw::update(self.fd("waits_epoch")?, 0_u32, self.epoch + 1)?;
        self.epoch += 1;
        // A program that read the old epoch is done well before this: flushing interrupts each CPU, and programs at
        // the context switch cannot be interrupted.
        self.flush();
        let mut waits = Vec::new();
        raw::read_all(
            self.fd(full)?,
            1,
            Then::Delete,
            |key: abi::podperf_wait_key, sums: &[abi::podperf_wait_sum]| {
                if let (Some(key), [sum]) = (WaitKey::from_abi(&key), sums) {
                    waits.push(RawWait { key, ns: sum.ns, waits: sum.waits, last_ns: sum.last_ns });
                }
            },
        )?;
        Ok(waits)
    }

    /// Has a stack sent again when it is next walked, since it was forgotten here.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn forget_stack(&self, stack: StackId) -> io::Result<()> {
        raw::delete(self.fd("stacks_sent")?, stack.0)
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

    /// The programs that run, by the kernel's own account (`/proc/self/fdinfo`).
    #[must_use]
    pub fn program_use(&self) -> Vec<ProgramUse> {
        let read = |name: &&'static str| {
            let fd = self.ebpf.program(name)?.fd().ok()?;
            Some(ProgramUse::read(name, fd.as_fd()))
        };
        self.running.iter().filter_map(read).collect()
    }

    fn flush(&self) {
        let Some(program) = self.ebpf.program("flush") else { return };
        let Ok(program) = <&RawTracePoint>::try_from(program) else { return };
        for cpu in aya::util::online_cpus().unwrap_or_default() {
            // A CPU that went offline meanwhile has nothing to settle.
            if let Err(error) = program.test_run(RawTracePointRunOptions { args: [0; 12], cpu: Some(cpu) }) {
                debug!(cpu, %error, "not flushed");
            }
        }
    }

    fn read_map<K: bytemuck::Pod, V: bytemuck::Pod>(
        &self,
        name: &'static str,
        copies: usize,
        each: impl FnMut(K, &[V]),
    ) -> io::Result<()> {
        raw::read_all(self.fd(name)?, copies, Then::Keep, each)
    }

    fn fd(&self, name: &'static str) -> io::Result<BorrowedFd<'_>> {
        let data = self.ebpf.map(name).and_then(raw::data);
        data.map(|data| data.fd().as_fd()).ok_or_else(|| io::Error::other(LoadError::Missing(name)))
    }
}

impl std::fmt::Debug for Sensors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sensors").field("running", &self.running).finish_non_exhaustive()
    }
}

fn hand_over(ebpf: &Ebpf, counters: &Counters) -> Result<(), LoadError> {
    const EVENTS: [&str; abi::PODPERF_MAX_EVENTS as usize] = [
        "event0", "event1", "event2", "event3", "event4", "event5", "event6", "event7", "event8", "event9", "event10",
        "event11", "event12", "event13", "event14", "event15",
    ];
    for (name, fds) in EVENTS.into_iter().zip(&counters.fds) {
        let map = ebpf.map(name).and_then(raw::data).ok_or(LoadError::Missing(name))?;
        for (cpu, fd) in fds {
            raw::update(map.fd().as_fd(), *cpu, fd.as_raw_fd()).map_err(LoadError::Counter)?;
        }
    }
    Ok(())
}

fn attach_btf(ebpf: &mut Ebpf, program: &'static str, tracepoint: &str, btf: &Btf) -> Result<(), LoadError> {
    let failed = |source| LoadError::Program { program, source: Box::new(source) };
    let loaded: &mut BtfTracePoint =
        ebpf.program_mut(program).ok_or(LoadError::Missing(program))?.try_into().map_err(failed)?;
    loaded.load(tracepoint, btf).map_err(failed)?;
    loaded.attach().map_err(failed)?;
    Ok(())
}

/// Attaches the scheduling tracepoint in the wanted form, and says in which.
fn attach_scheduling(ebpf: &mut Ebpf, wanted: Tracepoint, btf: &Btf) -> Result<(Tracepoint, &'static str), LoadError> {
    if wanted != Tracepoint::Raw {
        match attach_btf(ebpf, "sched_switch", "sched_switch", btf) {
            Ok(()) => return Ok((Tracepoint::Btf, "sched_switch")),
            Err(error) if wanted == Tracepoint::Btf => return Err(error),
            Err(error) => debug!(%error, "no BTF-typed tracepoint, taking the raw one"),
        }
    }
    load_raw(ebpf, "sched_switch_raw", Some("sched_switch"))?;
    Ok((Tracepoint::Raw, "sched_switch_raw"))
}

fn load_raw(ebpf: &mut Ebpf, program: &'static str, tracepoint: Option<&str>) -> Result<(), LoadError> {
    let failed = |source| LoadError::Program { program, source: Box::new(source) };
    let loaded: &mut RawTracePoint =
        ebpf.program_mut(program).ok_or(LoadError::Missing(program))?.try_into().map_err(failed)?;
    loaded.load().map_err(failed)?;
    if let Some(tracepoint) = tracepoint {
        loaded.attach(tracepoint).map_err(failed)?;
    }
    Ok(())
}

fn take_ring(ebpf: &mut Ebpf, name: &'static str) -> Result<RingBuf<MapData>, LoadError> {
    let map = ebpf.take_map(name).ok_or(LoadError::Missing(name))?;
    match map {
        Map::RingBuf(_) => RingBuf::try_from(map).map_err(|error| LoadError::Object(Box::new(error.into()))),
        _ => Err(LoadError::Missing(name)),
    }
}

fn sum(copies: &[abi::podperf_cgroup]) -> abi::podperf_cgroup {
    let mut total: abi::podperf_cgroup = bytemuck::Zeroable::zeroed();
    let words: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut total));
    for copy in copies {
        let copy: &[u64] = bytemuck::cast_slice(std::slice::from_ref(copy));
        for (word, value) in words.iter_mut().zip(copy) {
            // A task settled on two CPUs may count down on one what it counted up on the other.
            *word = word.wrapping_add(*value);
        }
    }
    total
}
