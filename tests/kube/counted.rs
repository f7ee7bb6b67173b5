//! A node with hardware counters, for dashboards: the agent's own exporter with invented readings. Names, types and
//! labels are real. This file defines the pods' activity.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result};
use podperf::model::usage::SeenTime;
use podperf::{
    attribution::{NotExported, Row, RowUsage, Shown, Snapshot},
    checkpoint::RestartStats,
    collector::Observation,
    events::{
        catalogue::find,
        plan::{Counter, Source},
        state::EventState,
    },
    export::{
        otlp,
        prometheus::{AgentFacts, Format, render},
    },
    holders::{Held, HolderFacts, ProgramName},
    kernel::{CpuTotals, MapUse, OpenCounter, ProgramUse, cpu_info::CpuInfo},
    limits::{MemoryUse, OverheadUse},
    model::{
        facts::{Fact, FactFamily, Facts},
        functions,
        hard_interrupts::{Handled, HardInterrupts},
        sensor_words::SensorWords,
        sensors,
        status::{Part, State},
        usage::Usage,
        wait::{Unwind, WaitReason, WaitState},
        works::{Work, WorkCounts},
    },
    pods::{ContainerInfo, Pod, SourceStats, Workload, WorkloadKind},
    stacks::{BpfProgram, CutSamples, FrameOwner, Proofs, SymbolStats},
    telemetry::{http::ServerStats, logs::LogCounts},
};

static LOGS: LogCounts = LogCounts::new();

const EVENTS: [&str; 4] = ["cycles", "instructions", "cache-references", "cache-misses"];
const SECOND: u64 = 1_000_000_000;

/// The increases of a pod's counters in a second: times in nanoseconds, and numbers of events.
struct Does {
    pod: &'static str,
    workload: &'static str,
    oncpu: u64,
    runqueue: u64,
    throttled: u64,
    blocked: u64,
    counts: [u64; 4],
}

const MS: u64 = 1_000_000;

#[rustfmt::skip]
const PODS: &[Does] = &[
    Does { pod: "web-0", workload: "web", oncpu: 600 * MS, runqueue: 10 * MS, throttled: 0, blocked: 0, counts: [2_000 * MS, 2_000 * MS, 40 * MS, 2 * MS] },
    Does { pod: "web-1", workload: "web", oncpu: 610 * MS, runqueue: 12 * MS, throttled: 0, blocked: 0, counts: [2_020 * MS, 2_000 * MS, 40 * MS, 2 * MS] },
    Does { pod: "web-2", workload: "web", oncpu: 590 * MS, runqueue: 11 * MS, throttled: 0, blocked: 0, counts: [1_980 * MS, 2_000 * MS, 40 * MS, 2 * MS] },
    Does { pod: "web-3", workload: "web", oncpu: 600 * MS, runqueue: 10 * MS, throttled: 0, blocked: 0, counts: [2_010 * MS, 2_000 * MS, 40 * MS, 2 * MS] },
    Does { pod: "web-4", workload: "web", oncpu: 800 * MS, runqueue: 10 * MS, throttled: MS, blocked: 0, counts: [3_900 * MS, 2_000 * MS, 60 * MS, 30 * MS] },
    Does { pod: "held", workload: "batch", oncpu: 200 * MS, runqueue: 400 * MS, throttled: 390 * MS, blocked: 0, counts: [600 * MS, 600 * MS, 4 * MS, MS] },
    Does { pod: "disk", workload: "store", oncpu: 100 * MS, runqueue: MS, throttled: 0, blocked: 700 * MS, counts: [300 * MS, 200 * MS, 4 * MS, MS] },
];

/// Scrapes of a node with these pods. Its counters grow from `begin` on.
pub(crate) struct CountedNode {
    begin: Instant,
    pods: Vec<Arc<Pod>>,
}

impl CountedNode {
    pub(crate) fn new() -> Result<Self> {
        let pods = PODS.iter().enumerate().map(|(index, does)| {
            Ok(Arc::new(Pod {
                uid: Some(format!("6ef0362e-e3b9-43a3-acdb-de4ba71f1f{index:02x}").parse()?),
                config_hash: None,
                namespace: "shop".into(),
                name: does.pod.into(),
                workload: Workload { kind: WorkloadKind::Deployment, name: does.workload.into() },
                qos_class: "burstable".into(),
                priority_class: "high".into(),
                service_name: None,
                scrape: true,
                labels: Vec::new(),
                over: false,
                containers: Vec::new(),
            }))
        });
        Ok(Self { begin: Instant::now(), pods: pods.collect::<Result<_>>()? })
    }

    pub(crate) fn scrape(&self) -> Result<String> {
        let seconds = self.begin.elapsed().as_secs_f64();
        let works = WorkCounts::default();
        let (runs, ns) = (grown(100, seconds), grown(2 * MS, seconds));
        works.add(Some("flush_to_ldisc"), Work { runs, ns, waits: runs, waited_ns: ns });
        let program = ProgramName { name: "tail_handle_ipv4".to_owned(), tag: "1".repeat(16) };
        let held = Held { program, kind: "sched_cls", process: None };
        let facts = AgentFacts {
            sensors: ["calls", "interrupts", "latencies"]
                .into_iter()
                .filter_map(sensors::named)
                .chain(functions::described(&["read".to_owned()]))
                .collect(),
            created_series: false,
            classic_buckets: true,
            all_own: true,
            families: vec![
                FactFamily::OnCpu,
                FactFamily::OffCpu,
                FactFamily::WaitReasons,
                FactFamily::IncompleteStacks,
                FactFamily::ContextSwitches,
            ],
            cpu: &CpuInfo {
                vendor: "GenuineIntel".into(),
                cpuid: "GenuineIntel-6-8F".into(),
                model_name: "Intel(R) Xeon(R)".into(),
            },
            scheduler: None,
            parts: &[Part { part: "counters", state: State::Degraded, detail: String::new() }],
            pods: Some(SourceStats {
                connected: true,
                last_sync: Some(SystemTime::now()),
                pods: PODS.len(),
                ..SourceStats::default()
            }),
            otlp: Some(otlp::Stats {
                exports: grown(1000, seconds),
                failures: otlp::Cause::ALL.map(|cause| (cause, 0)),
                lost: 0,
                dropped: 0,
                rejected_profiles: 0,
                queue_length: 1,
                queue_capacity: 8,
                health: otlp::Health::Healthy,
            }),
            symbols: SymbolStats { symbolized: grown(1000, seconds), ..SymbolStats::default() },
            unread: BTreeMap::from([(FrameOwner::default(), grown(1, seconds))]),
            programs: BTreeMap::from([(BpfProgram::named("tail_handle_ipv4"), grown(20 * MS, seconds))]),
            works,
            holders: Some(HolderFacts { held: [held].into(), ..HolderFacts::default() }),
            debug_files: None,
            logs: &LOGS,
            server: ServerStats::default(),
            answering: Duration::from_millis(grown(1, seconds)),
            access: None,
            reload: (true, SystemTime::now()),
        };
        let text = render(&self.observation(seconds)?, &facts, Format::Text, false)?;
        Ok(String::from_utf8(text)?)
    }

    fn observation(&self, seconds: f64) -> Result<Observation> {
        let mut counters = Vec::new();
        for (slot, name) in EVENTS.iter().enumerate() {
            let event = find(name).with_context(|| format!("no event `{name}`"))?;
            let counter = Counter {
                name: (*name).to_owned(),
                family: event.family,
                help: event.help,
                scale: event.scale,
                event_label: None,
                mode: None,
                source: Source::Unsupported(String::new()),
                cpus: None,
                kernel_event: event.kind.kernel_event(event.config),
            };
            let state = EventState::Placed;
            counters.push(OpenCounter {
                counter,
                slot: Some(slot),
                group: Some(slot / 2),
                state,
                detail: String::new(),
            });
        }
        let mut cpu = CpuTotals { waits: grown(900, seconds), walks: grown(90, seconds), ..CpuTotals::default() };
        (cpu.checks, cpu.checks_wrong) = (grown(50, seconds), grown(1, seconds));
        for (count, per_second) in cpu.counts.iter_mut().zip([12 * SECOND, 12 * SECOND, 300 * MS, 50 * MS]) {
            *count = grown(per_second, seconds);
        }
        let run_time_ns = grown(2 * MS, seconds);
        let mut hard_interrupts = HardInterrupts::default();
        let handled = Handled { count: grown(500, seconds), ns: grown(4 * MS, seconds) };
        hard_interrupts.add(b"eth0-TxRx-0", handled);
        Ok(Observation {
            snapshot: self.snapshot(seconds)?,
            counters: counters.into(),
            overhead: OverheadUse { percent: 0.4, most_percent: 5.0, shed: Vec::new(), memory: MemoryUse::default() },
            cpu,
            hard_interrupts,
            drops: vec![("task_storage", 0), ("cgroup_table", 0), ("event_read", 0)],
            cgroup_rows: 40,
            maps: vec![MapUse { map: "cgroups".into(), max_entries: 4096, bytes: 4_000_000 }],
            programs: vec![ProgramUse {
                program: "sched_switch",
                run_time_ns,
                runs: grown(9000, seconds),
                misses: 0,
                verified_instructions: Some(9000),
            }],
            readings: grown(1, seconds),
            took: Duration::from_millis(2),
            profiles_dropped: 0,
            proofs: Proofs::default(),
            cut_samples: CutSamples::default(),
            seen: SeenTime { all_ns: grown(SECOND, seconds), wrong_ns: grown(MS, seconds) },
            restart: Some(RestartStats {
                starts: [("first".to_owned(), 1)].into(),
                bytes: 40_000,
                took: Duration::from_millis(1),
                failures: 0,
            }),
        })
    }

    fn snapshot(&self, seconds: f64) -> Result<Snapshot> {
        let mut rows = Vec::new();
        for (does, pod) in PODS.iter().zip(&self.pods) {
            let id = pod.uid.map(|uid| uid.to_string().replace('-', "")).unwrap_or_default().repeat(2);
            let container =
                ContainerInfo { pod: Arc::clone(pod), name: "app".into(), image: "shop/app:1".into(), id: id.parse()? };
            let row = Row::Container {
                namespace: Arc::clone(&pod.namespace),
                pod: Arc::clone(&pod.name),
                container: "app".into(),
            };
            let (container, usage) = (Some(Arc::new(container)), does.usage(seconds));
            rows.push(RowUsage { row, started: SystemTime::UNIX_EPOCH, container, usage, shown: Shown::ALL });
        }
        let services = Does { oncpu: 50 * MS, ..PODS[0] }.usage(seconds);
        let row = Row::Cgroup("/system.slice".into());
        rows.push(RowUsage {
            row,
            started: SystemTime::UNIX_EPOCH,
            container: None,
            usage: services,
            shown: Shown::ALL,
        });
        Ok(Snapshot {
            taken: SystemTime::now(),
            started: SystemTime::UNIX_EPOCH,
            counters_started: Vec::new(),
            rows,
            pods: self.pods.clone(),
            elsewhere: Usage::default(),
            idle_ns: grown(2 * SECOND, seconds),
            unaccounted_ns: grown(10 * MS, seconds),
            stolen_ns: Some(grown(5 * MS, seconds)),
            idle: Usage { words: of_sensors(seconds), ..Usage::default() },
            cgroups_tracked: 40,
            cgroups_unresolved: 0,
            forgotten: 0,
            not_exported: [0; NotExported::ALL.len()],
        })
    }
}

impl Does {
    fn usage(&self, seconds: f64) -> Usage {
        let grown = |per_second| u128::from(grown(per_second, seconds));
        let mut facts = Facts::from([
            (Fact::ON_CPU, grown(self.oncpu)),
            (Fact::off_cpu(WaitState::Interruptible), grown(SECOND)),
            (Fact::off_cpu(WaitState::Uninterruptible), grown(self.blocked)),
            (Fact::off_cpu(WaitState::RunQueue), grown(self.runqueue - self.throttled.min(self.runqueue))),
            (Fact::off_cpu(WaitState::Throttled), grown(self.throttled)),
            (Fact::VOLUNTARY_SWITCHES, grown(100)),
            (Fact::INVOLUNTARY_SWITCHES, grown(20)),
            (Fact::wait(WaitReason::Futex), grown(SECOND)),
            (Fact::wait(WaitReason::Disk), grown(self.blocked)),
            (Fact::wait(WaitReason::Throttled), grown(self.throttled)),
        ]);
        Unwind::ALL.into_iter().for_each(|unwind| facts[Fact::unwound(unwind)] = grown(MS));
        Usage {
            facts,
            counts: self.counts.map(grown).to_vec(),
            enabled_ns: vec![grown(self.oncpu); 2],
            running_ns: vec![grown(self.oncpu); 2],
            words: of_sensors(seconds),
        }
    }
}

/// Returns the words of all sensors after `seconds`.
fn of_sensors(seconds: f64) -> SensorWords<u128> {
    SensorWords::of_list(&vec![u128::from(grown(10, seconds)); sensors::words()])
}

/// Returns the value of a counter after `seconds`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "far below 53 bits"
)]
fn grown(per_second: u64, seconds: f64) -> u64 {
    (per_second as f64 * seconds) as u64
}
