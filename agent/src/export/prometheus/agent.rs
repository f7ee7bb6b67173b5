//! The agent about itself: what it counts, what it lost, what it costs. Pure but for `/proc/self`.

use std::{
    fs,
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use tracing::Level;
use tracing_subscriber::layer::{Context, Layer};

use super::{BaseUnit, FactFamily, Family, Kind, Value};
use crate::{
    attribution::NotExported,
    collector::Observation,
    events::state::EventState,
    export::otlp,
    pods::SourceStats,
    stacks::{Cause, SymbolStats},
    status::{Part, State},
    upkeep::Feature,
};

/// What the agent knows of itself beside an observation.
#[derive(Debug)]
pub struct AgentFacts<'a> {
    /// The families without PMU that are exported.
    pub families: Vec<FactFamily>,
    /// The states of the parts.
    pub parts: &'a [Part],
    /// Where pods come from, in a cluster.
    pub pods: Option<SourceStats>,
    /// The profile exporter, if there is one.
    pub otlp: Option<otlp::Stats>,
    /// The symbolizer's counts.
    pub symbols: SymbolStats,
    /// Log messages.
    pub logs: &'a LogCounts,
    /// Whether the last reload was taken, and when the configuration last was.
    pub reload: (bool, SystemTime),
}

/// Log messages by level, counted as they are written.
#[derive(Debug, Default)]
pub struct LogCounts([AtomicU64; 3]);

impl LogCounts {
    /// All zero.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 3])
    }
}

/// The levels that are counted, with their label values.
const LEVELS: [(Level, &str); 3] = [(Level::ERROR, "error"), (Level::WARN, "warn"), (Level::INFO, "info")];

impl<S: tracing::Subscriber> Layer<S> for &'static LogCounts {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let level = LEVELS.iter().position(|(level, _)| level == event.metadata().level());
        if let Some(count) = level.and_then(|level| self.0.get(level)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The families about the agent.
pub(super) fn families(observation: &Observation, facts: &AgentFacts<'_>) -> Vec<Family> {
    let mut families = Vec::new();
    build_and_parts(&mut families, facts);
    pmu(&mut families, observation);
    overhead(&mut families, observation);
    bpf(&mut families, observation);
    stacks(&mut families, observation, facts);
    if let Some(stats) = &facts.pods {
        pods(&mut families, observation, stats);
    }
    if let Some(stats) = &facts.otlp {
        exporter(&mut families, stats);
    }
    let snapshot = &observation.snapshot;
    families.extend([
        gauge("cgroups_tracked", "Cgroups that live").sample(&[], Value::Count(snapshot.cgroups_tracked as u64)),
        gauge("cgroups_unresolved", "Cgroups whose counts wait for a path or a pod's name")
            .sample(&[], Value::Count(snapshot.cgroups_unresolved as u64)),
        counter("readings", "Readings of the kernel's maps; scrapes within a second share one")
            .sample(&[], Value::Count(observation.readings)),
        gauge("scrape_duration", "How long the reading behind this scrape took")
            .unit(BaseUnit::Seconds)
            .sample(&[], Value::Real(observation.took.as_secs_f64())),
        gauge("config_last_reload_successful", "Whether the last reading of the configuration was taken")
            .sample(&[], Value::Count(facts.reload.0.into())),
        gauge("config_last_reload_success_timestamp", "When the configuration was last taken, Unix time")
            .unit(BaseUnit::Seconds)
            .sample(&[], Value::Real(unix_seconds(facts.reload.1))),
    ]);
    let mut logs = counter("log_messages", "Log messages written");
    for ((_, name), count) in LEVELS.iter().zip(&facts.logs.0) {
        logs.push(&[("level", name)], Value::Count(count.load(Ordering::Relaxed)));
    }
    families.push(logs);
    families.extend(process());
    families
}

fn counter(name: &str, help: &'static str) -> Family {
    Family::new(format!("podperf_{name}"), help, Kind::Counter)
}

fn gauge(name: &str, help: &'static str) -> Family {
    Family::new(format!("podperf_{name}"), help, Kind::Gauge)
}

fn build_and_parts(families: &mut Vec<Family>, facts: &AgentFacts<'_>) {
    families.push(
        gauge("build_info", "The build of this agent")
            .sample(&[("version", env!("CARGO_PKG_VERSION")), ("arch", std::env::consts::ARCH)], Value::Count(1)),
    );
    let mut states = gauge("part_state", "State of each part of the agent: 1 for the state it is in");
    for part in facts.parts {
        for state in State::ALL {
            let value = Value::Count((part.state == state).into());
            states.push(&[("part", part.part), ("state", state.name())], value);
        }
    }
    families.push(states);
}

fn pmu(families: &mut Vec<Family>, observation: &Observation) {
    let mut available = gauge("pmu_event_available", "Whether the event is counted");
    let mut info = gauge("pmu_event_info", "What the kernel was asked for");
    let mut enabled =
        counter("pmu_event_enabled", "CPU time for which the event's group was to be counted").unit(BaseUnit::Seconds);
    let mut running = counter(
        "pmu_event_running",
        "CPU time for which the event's group was on the PMU; less than enabled means multiplexed",
    )
    .unit(BaseUnit::Seconds);
    let mut states = gauge("pmu_event_state", "State of each configured event: 1 for the state it is in");
    let mut counted = counter(
        "pmu_event_counted",
        "Count of all CPUs, not scaled, clocks in nanoseconds: what all rows are a part of",
    );
    let total = observation.snapshot.total();
    for open in observation.counters.iter() {
        let labels = [("event", open.counter.name.as_str())];
        available.push(&labels, Value::Count(open.state.is_counted().into()));
        for state in EventState::ALL {
            states.push(&[labels[0], ("state", state.name())], Value::Count((open.state == state).into()));
        }
        if let Some(slot) = open.slot {
            counted.push(&labels, Value::Count(observation.cpu.counts.get(slot).copied().unwrap_or(0)));
        }
        info.push(&[labels[0], ("kernel_event", &open.counter.kernel_event)], Value::Count(1));
        if let Some(group) = open.group {
            let time = |times: &[u64]| Value::seconds(times.get(group).copied().unwrap_or(0));
            enabled.push(&labels, time(&total.enabled_ns));
            running.push(&labels, time(&total.running_ns));
        }
    }
    families.extend([available, states, info, counted, enabled, running]);
}

fn overhead(families: &mut Vec<Family>, observation: &Observation) {
    let overhead = &observation.overhead;
    let mut shed = gauge("overhead_shed", "Features given up to stay below the cap; of counters, groups");
    for feature in Feature::ALL {
        let count = overhead.shed.iter().filter(|shed| **shed == feature).count();
        shed.push(&[("feature", feature.name())], Value::Count(count as u64));
    }
    families.extend([
        gauge("overhead_ratio", "Share of all CPUs' time that podperf took, programs and process together")
            .sample(&[], Value::Real(overhead.percent / 100.0)),
        gauge("overhead_limit_ratio", "The cap on that share; 0 is none")
            .sample(&[], Value::Real(overhead.most_percent / 100.0)),
        shed,
    ]);
}

fn bpf(families: &mut Vec<Family>, observation: &Observation) {
    let mut drops = counter("bpf_drops", "What could not be counted, by reason");
    for (reason, count) in &observation.drops {
        drops.push(&[("reason", reason)], Value::Count(*count));
    }
    let mut loaded = gauge("bpf_program_loaded", "Whether the program is loaded");
    let mut run_time = counter("bpf_program_run_time", "Time in the program, estimated from runs that it times itself")
        .unit(BaseUnit::Seconds);
    let mut runs = counter("bpf_program_runs", "Runs of the program");
    let mut misses = counter("bpf_program_misses", "Runs that the kernel skipped to avoid recursion");
    let mut verified = gauge(
        "bpf_program_verified_instructions",
        "Instructions that the kernel's verifier walked, over all paths: the size of the program",
    );
    for program in &observation.programs {
        let labels = [("program", program.program)];
        loaded.push(&labels, Value::Count(1));
        run_time.push(&labels, Value::seconds(program.run_time_ns));
        runs.push(&labels, Value::Count(program.runs));
        misses.push(&labels, Value::Count(program.misses));
        if let Some(count) = program.verified_instructions {
            verified.push(&labels, Value::Count(count));
        }
    }
    let mut max_entries = gauge("bpf_map_max_entries", "Size of the map in entries; bytes for rings");
    let entries = gauge("bpf_map_entries", "Entries in use, of the map that a busy node fills")
        .sample(&[("map", "cgroups")], Value::Count(observation.cgroup_rows as u64));
    let mut bytes = gauge("bpf_map_memory", "Kernel memory that the map holds").unit(BaseUnit::Bytes);
    for map in &observation.maps {
        let labels = [("map", map.map.as_str())];
        max_entries.push(&labels, Value::Count(map.max_entries));
        bytes.push(&labels, Value::Count(map.bytes));
    }
    let recovered = counter("switches_recovered", "Switch-ins that the kernel did not report and the run time told")
        .sample(&[], Value::Count(observation.cpu.switches_recovered));
    let late = counter("switches_recovered", "Time up to those: what counters counted in it went to who came on then")
        .unit(BaseUnit::Seconds)
        .sample(&[], Value::seconds(observation.cpu.recovered_ns));
    families.extend([drops, loaded, run_time, runs, misses, verified, entries, max_entries, bytes, recovered, late]);
}

fn stacks(families: &mut Vec<Family>, observation: &Observation, facts: &AgentFacts<'_>) {
    let cpu = &observation.cpu;
    let mut unsymbolized = counter("stack_unsymbolized_frames", "Frames that got none, by cause");
    for (cause, count) in Cause::ALL.iter().zip(facts.symbols.unsymbolized) {
        unsymbolized.push(&[("cause", cause.name())], Value::Count(count));
    }
    families.extend([
        counter("stack_waits", "Waits that should have a stack").sample(&[], Value::Count(cpu.waits)),
        counter("stack_walks", "Waits whose stack was walked; the others' was remembered")
            .sample(&[], Value::Count(cpu.walks)),
        counter("stack_checks", "Walks that only checked a remembered stack").sample(&[], Value::Count(cpu.checks)),
        counter("stack_checks_wrong", "Checks that found another stack: this share of the remembered ones is wrong")
            .sample(&[], Value::Count(cpu.checks_wrong)),
        counter("stack_sampled_out", "Short waits over the budget of walks: others stand for them in profiles")
            .sample(&[], Value::Count(cpu.sampled_out)),
        counter(
            "stack_unprofiled",
            "Time off the CPU that is in no profile, for the reasons in podperf_bpf_drops_total",
        )
        .unit(BaseUnit::Seconds)
        .sample(&[], Value::seconds(cpu.unprofiled_ns)),
        counter("stack_shadow_waits", "Remembered stacks that `stacks.shadow` walked all the same")
            .sample(&[], Value::Count(cpu.shadow_waits)),
        counter("stack_shadow_wrong", "Of these, those that were another stack")
            .sample(&[], Value::Count(cpu.shadow_wrong)),
        counter("stack_symbolized_frames", "Frames that got a name")
            .sample(&[], Value::Count(facts.symbols.symbolized)),
        unsymbolized,
        counter("profile_windows_dropped", "Profiles given up because symbols or the exporter took too long")
            .sample(&[], Value::Count(observation.profiles_dropped)),
    ]);
}

fn pods(families: &mut Vec<Family>, observation: &Observation, stats: &SourceStats) {
    families.extend([
        gauge("kube_watch_connected", "Whether changes of pods arrive")
            .sample(&[], Value::Count(stats.connected.into())),
        counter("kube_watch_restarts", "Watches begun anew and complete lists after the first")
            .sample(&[], Value::Count(stats.restarts)),
        counter("kube_watch_failures", "Requests for pods that failed").sample(&[], Value::Count(stats.failures)),
        gauge("kube_watch_last_sync_timestamp", "When the pods were last known to be complete, Unix time; 0 for never")
            .unit(BaseUnit::Seconds)
            .sample(&[], Value::Real(stats.last_sync.map_or(0.0, unix_seconds))),
        gauge("kube_pods", "Pods of this node").sample(&[], Value::Count(stats.pods as u64)),
    ]);
    let mut withheld =
        gauge("containers_not_exported", "Containers that live but have no series of their own, by the reason");
    for (why, count) in NotExported::ALL.iter().zip(observation.snapshot.not_exported) {
        withheld.push(&[("reason", why.name())], Value::Count(count as u64));
    }
    families.push(withheld);
}

fn exporter(families: &mut Vec<Family>, stats: &otlp::Stats) {
    let signal = ("signal", "profiles");
    let mut failures = counter("otlp_export_failures", "Attempts to export that failed, by cause");
    for (cause, count) in &stats.failures {
        failures.push(&[signal, ("cause", cause.name())], Value::Count(*count));
    }
    families.extend([
        counter("otlp_exports", "Requests that the receiver accepted").sample(&[signal], Value::Count(stats.exports)),
        failures,
        counter("otlp_lost_requests", "Requests that were given up").sample(&[signal], Value::Count(stats.lost)),
        counter("otlp_dropped", "Profiles that found the queue full").sample(&[signal], Value::Count(stats.dropped)),
        counter("otlp_rejected", "Profiles that the receiver refused out of requests that it accepted")
            .sample(&[signal], Value::Count(stats.rejected_profiles)),
        gauge("otlp_queue_length", "Profiles that wait").sample(&[signal], Value::Count(stats.queue_length as u64)),
        gauge("otlp_queue_capacity", "Profiles that can wait")
            .sample(&[signal], Value::Count(stats.queue_capacity as u64)),
    ]);
}

/// The `process_*` families of every client library; what cannot be read is left out.
fn process() -> Vec<Family> {
    let mut families = Vec::new();
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command's name may hold spaces and brackets: the fields begin after the last bracket, with the third.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok());
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
    #[expect(clippy::cast_precision_loss, reason = "ticks of a process' life")]
    let seconds = |count: u64| count as f64 / ticks as f64;
    let family = |name: &'static str, help, kind| Family::new(name, help, kind);
    if let (Some(user), Some(system)) = (field(14), field(15)) {
        families.push(
            family("process_cpu", "Total user and system CPU time spent", Kind::Counter)
                .unit(BaseUnit::Seconds)
                .sample(&[], Value::Real(seconds(user + system))),
        );
    }
    if let (Some(start), Some(boot)) = (field(22), boot_time()) {
        families.push(
            family("process_start_time", "Start time of the process, Unix time", Kind::Gauge)
                .unit(BaseUnit::Seconds)
                .sample(&[], Value::Real(boot + seconds(start))),
        );
    }
    if let (Some(virtual_bytes), Some(pages)) = (field(23), field(24)) {
        families.push(
            family("process_virtual_memory", "Virtual memory size", Kind::Gauge)
                .unit(BaseUnit::Bytes)
                .sample(&[], Value::Count(virtual_bytes)),
        );
        families.push(
            family("process_resident_memory", "Resident memory size", Kind::Gauge)
                .unit(BaseUnit::Bytes)
                .sample(&[], Value::Count(pages * u64::try_from(page).unwrap_or(0))),
        );
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        families.push(
            family("process_open_fds", "Number of open file descriptors", Kind::Gauge)
                .sample(&[], Value::Count(entries.count() as u64)),
        );
    }
    families
}

/// When the machine booted, Unix time.
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
