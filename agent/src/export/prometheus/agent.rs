//! The metrics about the agent itself: its counts, losses and costs. Pure but for `/proc/self`.

use crate::model::{facts::FactFamily, sensors::Sensor};
use crate::telemetry::logs::{LEVELS, LogCounts};
use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::Ordering,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::{Family, Value, families as rows, programs};
use crate::{
    access::AccessStats,
    attribution::NotExported,
    checkpoint::RestartStats,
    collector::Observation,
    events::state::EventState,
    export::otlp,
    holders::HolderFacts,
    kernel::{cpu_info::CpuInfo, proc::read_text},
    limits::{memory::ORDER, steps::STEPS},
    model::{
        feature::Feature,
        status::{Part, State},
        works::WorkCounts,
    },
    pods::SourceStats,
    stacks::{
        BpfProgram, Cause, CutCause, FrameOwner, SymbolStats,
        debuginfod::{FetchStats, Outcome},
    },
    telemetry::http::ServerStats,
};

/// The map that a busy node fills.
const CGROUPS: &str = "cgroups";

/// The data about the agent that an observation does not hold.
#[derive(Debug)]
pub struct AgentFacts<'a> {
    /// The exported families that need no PMU.
    pub families: Vec<FactFamily>,
    /// The sensors that are on.
    pub sensors: Vec<&'static Sensor>,
    /// True if OpenMetrics has a series `_created` for each counter of a row.
    pub created_series: bool,
    /// True if histograms have classic buckets, too.
    pub classic_buckets: bool,
    /// True if all series of the agent itself are exported, not only those that alerts and dashboards of others need.
    pub all_own: bool,
    /// The model of the node's CPUs.
    pub cpu: &'a CpuInfo,
    /// The name of the BPF scheduler; `None` if the kernel's own one runs.
    pub scheduler: Option<String>,
    /// The states of the parts.
    pub parts: &'a [Part],
    /// The counts of the source of pods; `None` without a cluster.
    pub pods: Option<SourceStats>,
    /// The counts of the profile exporter; `None` without one.
    pub otlp: Option<otlp::Stats>,
    /// The symbolizer's counts.
    pub symbols: SymbolStats,
    /// Number of frames whose files were not read, by pod or row of cgroups.
    pub unread: BTreeMap<FrameOwner, u64>,
    /// Time on the CPU in BPF programs of the node, in nanoseconds; empty if no sample was in one.
    pub programs: BTreeMap<BpfProgram, u64>,
    /// The runs of work items by function; empty without the sensor `workqueues`.
    pub works: WorkCounts,
    /// The holders of BPF programs and the runs that the kernel counts; `None` if the agent looks for none.
    pub holders: Option<HolderFacts>,
    /// The counts of debug files; `None` without `stacks.debuginfod.urls`.
    pub debug_files: Option<FetchStats>,
    /// The number of log messages.
    pub logs: &'a LogCounts,
    /// The counts of the HTTP server.
    pub server: ServerStats,
    /// The CPU time of answering requests.
    pub answering: Duration,
    /// The counts of token reviews; `None` without `server.authorization`.
    pub access: Option<AccessStats>,
    /// True if the last reload succeeded, and the time when the configuration was last read successfully.
    pub reload: (bool, SystemTime),
}

/// Returns the families about the agent.
pub(super) fn families(observation: &Observation, facts: &AgentFacts<'_>) -> Vec<Family> {
    let mut families = Vec::new();
    build_and_parts(&mut families, facts);
    pmu(&mut families, observation, facts.all_own);
    overhead(&mut families, observation);
    bpf(&mut families, observation, facts.all_own);
    stacks(&mut families, observation, facts);
    hard_interrupts(&mut families, observation);
    works(&mut families, &facts.works);
    if let Some(stats) = &facts.debug_files {
        debug_files(&mut families, stats);
    }
    if let Some(stats) = &facts.pods {
        pods(&mut families, observation, stats);
    }
    if let Some(stats) = &facts.otlp {
        exporter(&mut families, stats);
    }
    server(&mut families, facts);
    let snapshot = &observation.snapshot;
    families.extend([
        rows::CGROUPS_TRACKED.of(Value::Count(snapshot.cgroups_tracked as u64)),
        rows::CGROUPS_UNRESOLVED.of(Value::Count(snapshot.cgroups_unresolved as u64)),
        rows::ROWS_FORGOTTEN.of(Value::Count(snapshot.forgotten)),
        rows::READINGS.of(Value::Count(observation.readings)),
        rows::READING_TIME.of(Value::Real(unix_seconds(snapshot.taken))),
        rows::SCRAPE_DURATION.of(Value::Real(observation.took.as_secs_f64())),
        rows::RELOAD_SUCCESSFUL.of(Value::Count(facts.reload.0.into())),
        rows::RELOAD_TIME.of(Value::Real(unix_seconds(facts.reload.1))),
    ]);
    if let Some(stats) = &observation.restart {
        restart(&mut families, stats);
    }
    let mut logs = rows::LOG_MESSAGES.family();
    for ((_, name), count) in LEVELS.iter().zip(&facts.logs.0) {
        logs.push(&[name], Value::Count(count.load(Ordering::Relaxed)));
    }
    families.push(logs);
    families.extend(process());
    families.retain(|family| facts.all_own || !family.detail);
    families
}

fn build_and_parts(families: &mut Vec<Family>, facts: &AgentFacts<'_>) {
    let CpuInfo { vendor, cpuid, model_name } = facts.cpu;
    families.push(rows::BUILD_INFO.with(&[env!("CARGO_PKG_VERSION"), std::env::consts::ARCH], Value::Count(1)));
    families.push(rows::NODE_CPU_INFO.with(&[vendor, cpuid, model_name], Value::Count(1)));
    let scheduler = |name: &String| rows::NODE_SCHEDULER_INFO.with(&[name.as_str()], Value::Count(1));
    families.extend(facts.scheduler.as_ref().map(scheduler));
    let mut states = rows::PART_STATE.family();
    for part in facts.parts {
        for state in State::ALL.into_iter().filter(|state| facts.all_own || part.state == *state) {
            states.push(&[part.part, state.name()], Value::Count((part.state == state).into()));
        }
    }
    families.push(states);
}

fn pmu(families: &mut Vec<Family>, observation: &Observation, all_own: bool) {
    let (mut available, mut states, mut info) =
        (rows::PMU_AVAILABLE.family(), rows::PMU_STATE.family(), rows::PMU_INFO.family());
    let (mut counted, mut enabled, mut running) =
        (rows::PMU_COUNTED.family(), rows::PMU_ENABLED.family(), rows::PMU_RUNNING.family());
    let total = observation.snapshot.total();
    for open in observation.counters.iter() {
        let event = open.counter.name.as_str();
        available.push(&[event], Value::Count(open.state.is_counted().into()));
        for state in EventState::ALL.into_iter().filter(|state| all_own || open.state == *state) {
            states.push(&[event, state.name()], Value::Count((open.state == state).into()));
        }
        if let Some(slot) = open.slot {
            counted.push(&[event], Value::Count(observation.cpu.counts.get(slot).copied().unwrap_or(0)));
        }
        info.push(&[event, &open.counter.kernel_event], Value::Count(1));
        if let Some(group) = open.group {
            let time = |times: &[u128]| Value::seconds(times.get(group).copied().unwrap_or(0));
            enabled.push(&[event], time(&total.enabled_ns));
            running.push(&[event], time(&total.running_ns));
        }
    }
    families.extend([available, states, info, counted, enabled, running]);
}

fn overhead(families: &mut Vec<Family>, observation: &Observation) {
    let overhead = &observation.overhead;
    let memory = &overhead.memory;
    let mut shed = rows::OVERHEAD_SHED.family();
    let mut push = |cap, feature: Feature, given_up: &[Feature]| {
        let count = given_up.iter().filter(|given_up| **given_up == feature).count();
        shed.push(&[cap, feature.name()], Value::Count(count as u64));
    };
    STEPS.iter().for_each(|row| push("cpu", row.feature, &overhead.shed));
    ORDER.into_iter().for_each(|feature| push("memory", feature, memory.shed));
    families.extend([
        rows::OVERHEAD.of(Value::Real(overhead.percent / 100.0)),
        rows::OVERHEAD_LIMIT.of(Value::Real(overhead.most_percent / 100.0)),
        rows::OVERHEAD_MEMORY.of(Value::Count(memory.used.bytes())),
        rows::OVERHEAD_MEMORY_LIMIT.of(Value::Count(memory.budget.map_or(0, |budget| budget.bytes))),
        shed,
    ]);
}

fn bpf(families: &mut Vec<Family>, observation: &Observation, all_own: bool) {
    let mut drops = rows::BPF_DROPS.family();
    for (reason, count) in &observation.drops {
        drops.push(&[reason], Value::Count(*count));
    }
    let (mut loaded, mut run_time, mut runs) =
        (rows::PROGRAM_LOADED.family(), rows::PROGRAM_RUN_TIME.family(), rows::PROGRAM_RUNS.family());
    let (mut misses, mut verified) = (rows::PROGRAM_MISSES.family(), rows::PROGRAM_VERIFIED.family());
    for program in &observation.programs {
        let labels = [program.program];
        loaded.push(&labels, Value::Count(1));
        run_time.push(&labels, Value::seconds(program.run_time_ns));
        runs.push(&labels, Value::Count(program.runs));
        misses.push(&labels, Value::Count(program.misses));
        if let Some(count) = program.verified_instructions {
            verified.push(&labels, Value::Count(count));
        }
    }
    let entries = rows::MAP_ENTRIES.with(&[CGROUPS], Value::Count(observation.cgroup_rows as u64));
    let (mut max_entries, mut bytes) = (rows::MAP_MAX_ENTRIES.family(), rows::MAP_MEMORY.family());
    for map in &observation.maps {
        if all_own || map.map == CGROUPS {
            max_entries.push(&[&map.map], Value::Count(map.max_entries));
        }
        bytes.push(&[&map.map], Value::Count(map.bytes));
    }
    let recovered = rows::RECOVERED.of(Value::Count(observation.cpu.switches_recovered));
    let late = rows::RECOVERED_TIME.of(Value::seconds(observation.cpu.recovered_ns));
    families.extend([drops, loaded, run_time, runs, misses, verified, entries, max_entries, bytes, recovered, late]);
}

fn stacks(families: &mut Vec<Family>, observation: &Observation, facts: &AgentFacts<'_>) {
    let cpu = &observation.cpu;
    let mut unsymbolized = rows::UNSYMBOLIZED.family();
    for (cause, count) in Cause::ALL.iter().zip(facts.symbols.unsymbolized) {
        unsymbolized.push(&[cause.name()], Value::Count(count));
    }
    let mut cut = rows::STACK_CUT.family();
    for (cause, count) in CutCause::ALL.iter().zip(observation.cut_samples) {
        cut.push(&[cause.name()], Value::Count(count));
    }
    let mut unread = rows::UNREAD.family();
    for (owner, count) in &facts.unread {
        unread.push(&[&owner.namespace, &owner.pod, &owner.cgroup], Value::Count(*count));
    }
    families.extend([
        rows::STACK_WAITS.of(Value::Count(cpu.waits)),
        rows::STACK_WALKS.of(Value::Count(cpu.walks)),
        rows::STACK_CHECKS.of(Value::Count(cpu.checks)),
        rows::STACK_CHECKS_WRONG.of(Value::Count(cpu.checks_wrong)),
        rows::STACK_KERNEL_WALKS.of(Value::Count(cpu.kernel_walks)),
        rows::STACK_SAMPLED_OUT.of(Value::Count(cpu.sampled_out)),
        rows::STACK_UNPROFILED.of(Value::seconds(cpu.unprofiled_ns)),
        rows::STACK_SHADOW_WAITS.of(Value::Count(cpu.shadow_waits)),
        rows::STACK_SHADOW_WRONG.of(Value::Count(cpu.shadow_wrong)),
        rows::STACK_SHADOW_TIME.of(Value::seconds(cpu.shadow_ns)),
        rows::STACK_SHADOW_WRONG_TIME.of(Value::seconds(cpu.shadow_wrong_ns)),
        rows::STACK_SHADOW_PROOFS.of(Value::Count(observation.proofs.all)),
        rows::STACK_SHADOW_PROOFS_WRONG.of(Value::Count(observation.proofs.wrong)),
        rows::STACK_SEEN.of(Value::seconds(observation.seen.all_ns)),
        rows::STACK_SEEN_WRONG.of(Value::seconds(observation.seen.wrong_ns)),
        cut,
        rows::SYMBOLIZED.of(Value::Count(facts.symbols.symbolized)),
        unsymbolized,
        unread,
        rows::WINDOWS_DROPPED.of(Value::Count(observation.profiles_dropped)),
    ]);
    families.extend(programs::families(&observation.snapshot, &facts.programs, facts.holders.as_ref()));
}

fn hard_interrupts(families: &mut Vec<Family>, observation: &Observation) {
    let (mut counts, mut times) = (rows::NODE_HARD_INTERRUPTS.family(), rows::NODE_HARD_INTERRUPTS_TIME.family());
    for (name, handled) in observation.hard_interrupts.iter() {
        counts.push(&[name], Value::Count(handled.count));
        times.push(&[name], Value::seconds(handled.ns));
    }
    let started = observation.snapshot.started;
    let families_of_names = [counts, times].into_iter().filter(|family| !family.samples.is_empty());
    families.extend(families_of_names.map(|family| family.created(started)));
}

fn works(families: &mut Vec<Family>, counts: &WorkCounts) {
    let (mut runs, mut times) = (rows::NODE_WORK_RUNS.family(), rows::NODE_WORK_TIME.family());
    let (mut waits, mut waited) = (rows::NODE_WORK_WAITS.family(), rows::NODE_WORK_WAIT_TIME.family());
    for (function, work) in counts.sums() {
        let function = [function.name()];
        runs.push(&function, Value::Count(work.runs));
        times.push(&function, Value::seconds(work.ns));
        if work.waits > 0 {
            waits.push(&function, Value::Count(work.waits));
            waited.push(&function, Value::seconds(work.waited_ns));
        }
    }
    families.extend([runs, times, waits, waited].into_iter().filter(|family| !family.samples.is_empty()));
}

fn debug_files(families: &mut Vec<Family>, stats: &FetchStats) {
    let mut files = rows::DEBUG_FILES.family();
    for (outcome, count) in Outcome::ALL.iter().zip(stats.outcomes) {
        files.push(&[outcome.name()], Value::Count(count));
    }
    families.extend([files, rows::DEBUG_CACHE.of(Value::Count(stats.cache_bytes))]);
}

fn pods(families: &mut Vec<Family>, observation: &Observation, stats: &SourceStats) {
    families.extend([
        rows::KUBE_CONNECTED.of(Value::Count(stats.connected.into())),
        rows::KUBE_RESTARTS.of(Value::Count(stats.restarts)),
        rows::KUBE_FAILURES.of(Value::Count(stats.failures)),
        rows::KUBE_LAST_SYNC.of(Value::Real(stats.last_sync.map_or(0.0, unix_seconds))),
        rows::KUBE_PODS.of(Value::Count(stats.pods as u64)),
    ]);
    let mut withheld = rows::NOT_EXPORTED.family();
    for (why, count) in NotExported::ALL.iter().zip(observation.snapshot.not_exported) {
        withheld.push(&[why.name()], Value::Count(count as u64));
    }
    families.push(withheld);
}

fn restart(families: &mut Vec<Family>, stats: &RestartStats) {
    let mut starts = rows::STARTS.family();
    for (how, count) in &stats.starts {
        starts.push(&[how], Value::Count(*count));
    }
    families.extend([
        starts,
        rows::KEPT_BYTES.of(Value::Count(stats.bytes)),
        rows::KEPT_DURATION.of(Value::Real(stats.took.as_secs_f64())),
        rows::KEPT_FAILURES.of(Value::Count(stats.failures)),
    ]);
}

fn exporter(families: &mut Vec<Family>, stats: &otlp::Stats) {
    let signal = "profiles";
    let mut failures = rows::OTLP_FAILURES.family();
    for (cause, count) in &stats.failures {
        failures.push(&[signal, cause.name()], Value::Count(*count));
    }
    families.extend([
        rows::OTLP_EXPORTS.with(&[signal], Value::Count(stats.exports)),
        failures,
        rows::OTLP_LOST.with(&[signal], Value::Count(stats.lost)),
        rows::OTLP_DROPPED.with(&[signal], Value::Count(stats.dropped)),
        rows::OTLP_REJECTED.with(&[signal], Value::Count(stats.rejected_profiles)),
        rows::OTLP_QUEUE.with(&[signal], Value::Count(stats.queue_length as u64)),
        rows::OTLP_QUEUE_CAPACITY.with(&[signal], Value::Count(stats.queue_capacity as u64)),
    ]);
}

fn server(families: &mut Vec<Family>, facts: &AgentFacts<'_>) {
    let ServerStats { codes, refusals, certificate_ends, share } = &facts.server;
    let mut requests = rows::HTTP_REQUESTS.family();
    for (code, count) in codes {
        requests.push(&[&code.to_string()], Value::Count(*count));
    }
    let mut refused = rows::HTTP_REFUSALS.family();
    for (why, count) in refusals {
        refused.push(&[why.name()], Value::Count(*count));
    }
    families.extend([
        requests,
        refused,
        rows::SERVER_CPU.of(Value::Real(facts.answering.as_secs_f64())),
        rows::SERVER_OVERHEAD.of(Value::Real(share.percent / 100.0)),
        rows::SERVER_OVERHEAD_LIMIT.of(Value::Real(share.most_percent / 100.0)),
    ]);
    if let Some(end) = certificate_ends {
        #[expect(clippy::cast_precision_loss, reason = "seconds of a date")]
        families.push(rows::CERTIFICATE_EXPIRY.of(Value::Real(*end as f64)));
    }
    if let Some(AccessStats { allowed, forbidden, unauthenticated, failed }) = facts.access {
        let mut reviews = rows::ACCESS_REVIEWS.family();
        for (result, count) in
            [("allowed", allowed), ("forbidden", forbidden), ("unauthenticated", unauthenticated), ("failed", failed)]
        {
            reviews.push(&[result], Value::Count(count));
        }
        families.push(reviews);
    }
}

/// Returns the `process_*` families that every client library has; a value that cannot be read is left out.
fn process() -> Vec<Family> {
    let mut families = Vec::new();
    let stat = read_text("/proc/self/stat").unwrap_or_default();
    // The command's name may hold spaces and brackets. So the fields are counted from the last bracket, where the third
    // begins.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok());
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
    #[expect(clippy::cast_precision_loss, reason = "ticks of a process' life")]
    let seconds = |count: u64| count as f64 / ticks as f64;
    if let (Some(user), Some(system)) = (field(14), field(15)) {
        families.push(rows::PROCESS_CPU.of(Value::Real(seconds(user + system))));
    }
    if let (Some(start), Some(boot)) = (field(22), boot_time()) {
        families.push(rows::PROCESS_START.of(Value::Real(boot + seconds(start))));
    }
    if let (Some(virtual_bytes), Some(pages)) = (field(23), field(24)) {
        families.push(rows::PROCESS_VIRTUAL_MEMORY.of(Value::Count(virtual_bytes)));
        families.push(rows::PROCESS_RESIDENT_MEMORY.of(Value::Count(pages * u64::try_from(page).unwrap_or(0))));
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        families.push(rows::PROCESS_OPEN_FDS.of(Value::Count(entries.count() as u64)));
    }
    families
}

/// Returns the boot time of the machine, Unix time in seconds.
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
