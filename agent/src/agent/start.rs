//! Start of the agent: first the sensors, then the threads and tasks around them.

use crate::limits::memory::Budget;
use std::{
    io,
    path::Path,
    sync::{Arc, Mutex, mpsc},
    time::{Instant, SystemTime},
};

use anyhow::Context;
use tokio::sync::{Semaphore, watch};

use super::{Agent, Threads, history::History};
use crate::{
    access::Access,
    checkpoint::Store,
    collector::{self, Checkpoint, CollectorSettings, Reader, UnwinderChannels},
    config::{Config, Runner, Settings, parts, states},
    events::plan::Plan,
    export::{
        Drawer, Sinks,
        otlp::Exporter,
        push::{Push, PushSettings},
    },
    holders::{self, HolderSettings, Holders},
    kernel::{
        self, AnsweringTime, LoadError, Pins, PinsError, SensorSettings, SensorState, Sensors, host::Host,
        memory::Limit, pinned::is_bpffs, symbols::KernelNames,
    },
    limits::{MemorySettings, cpu::Overhead, memory::GivenUp},
    model::{
        mode::Mode,
        status::{State, Status},
    },
    pods::{self, DaemonSet},
    recording::Windows,
    stacks::{self, Blocked, LineFinder, Naming, SymbolCounts, debuginfod, lending::Spare, probing, unwinder},
    telemetry::{heartbeat::Heartbeats, logs::LogCounts},
};

/// Largest number of windows that wait for the symbolizer. The collector sends fewer, unless they become too large.
const WINDOWS_WAITING: usize = 4;
/// Largest number of new processes that wait for the symbolizer. Above it, less is known about a process that ends
/// soon.
const PROCESSES_WAITING: usize = 256;
/// Largest number of batches of unwound stacks that wait for the collector.
const UNWOUND_WAITING: usize = 16;

/// Loads the sensors and starts the threads. Must be called on a tokio runtime.
///
/// # Errors
///
/// Fails if the kernel rejects a program, or if the cgroup tree cannot be read.
pub fn start(
    settings: Settings,
    plan: &Plan,
    host: &Host,
    cgroup_root: &Path,
    logs: &'static LogCounts,
) -> anyhow::Result<(Arc<Agent>, Threads)> {
    let Settings { config: asked, node_name, rules, filter } = settings;
    let mut config = asked.clone();
    let status = Status::default();
    let (profiles, mode) = (parts::wants_profiles(&config), parts::mode(&config));
    let limit = Limit::find();
    let budget = Budget::of(config.overhead.max_memory, limit.bytes());
    let map_bytes = |config: &Config| kernel::memory::map_bytes(&parts::sensor_settings(config, host));
    let reduced = parts::fit_maps(&mut config, budget, map_bytes)?;
    let given_up = GivenUp::default();
    let (answering, heartbeats) = (AnsweringTime::default(), Heartbeats::default());

    // All that can be refused is read before the first program is loaded: a pinned one would stay in the kernel.
    if let Ok(settings) = parts::pod_settings(&config, &node_name) {
        pods::check(&settings)?;
    }
    let access = parts::access_settings(&config);
    let access = access.map(|settings| Access::new(settings, status.clone())).transpose()?.map(Arc::new);
    let exporter = parts::sends_profiles(&config).then(|| Exporter::new(config.otlp.settings(), node_name.clone()));
    let exporter = exporter.transpose()?.map(Arc::new);

    let levels = collector::find_levels(cgroup_root, rules.selection.depth)
        .with_context(|| format!("failed to walk `{}`", cgroup_root.display()))?;
    let settings = SensorSettings { levels, ..parts::sensor_settings(&config, host) };
    let (mut sensors, pins) = start_sensors(&config, &settings, plan, &status)?;
    let store = pins.is_some().then(|| Store::new(&config.run_dir));
    let checkpoint = Checkpoint::find(store, &sensors, &status);
    set_states(&status, &config, &sensors, host);
    if config.stacks.unwind != asked.stacks.unwind {
        let (state, detail) = states::unwinding_without_room();
        status.set("unwinding", state, detail);
    }
    let samples = states::sampling(&config, host, &sensors.samples());
    let spare = sensors.probes().map(|probes| {
        let (configured, refused) = (parts::functions(&config).len(), parts::unprobed_programs(host));
        Spare::new(probes, configured, refused, config.testing.sandbox)
    });
    if let Some(probes) = sensors.probes() {
        let (functions, refused) = (parts::functions(&config), parts::unprobed_programs(host));
        probing::start(probes, functions, refused, status.clone(), config.testing.sandbox)
            .context("failed to start a thread for the probes of functions")?;
    }

    let works = sensors.work_counts();
    let holders = start_holders(&config, mode, &status).context("failed to start a thread for BPF programs")?;

    let (window_sender, windows) = mpsc::sync_channel(WINDOWS_WAITING);
    let (process_sender, processes) = mpsc::sync_channel(PROCESSES_WAITING);
    let blocked = [Blocked::default(), Blocked::default()];
    let [blocked_names, blocked_tables] = blocked.clone();
    let (unwinder, unwound) = match sensors.take_copies() {
        Some(copies) => {
            let (results, unwound) = mpsc::sync_channel(UNWOUND_WAITING);
            let (orders, ordered) = mpsc::channel();
            let (given_up, confined) = (given_up.clone(), config.testing.sandbox);
            let thread = unwinder::start(copies, results, ordered, given_up, confined, blocked_tables)?;
            (Some(thread), Some(UnwinderChannels { unwound, orders }))
        }
        None => (None, None),
    };
    let stacks_with = |kernel_names| states::stacks(&config, &Host { kernel_names, ..host.clone() });
    let (reader, collector) = collector::start(
        sensors,
        CollectorSettings {
            cgroup_root: cgroup_root.to_owned(),
            rules,
            choices: parts::sensor_choices(&config),
            patience: parts::wants_pods(&config).then_some(config.kubernetes.patience),
            status: status.clone(),
            overhead: Overhead::new(config.overhead.max_percent, host.cpus),
            coalesce: config.testing.coalesce,
            answering: answering.clone(),
            heartbeat: heartbeats.kernel.clone(),
            memory: MemorySettings {
                max: config.overhead.max_memory,
                limit,
                reduced,
                given_up: given_up.clone(),
                stacks: profiles,
            },
            profiles: profiles.then_some((config.otlp.interval, window_sender)),
            mode,
            stacks: profiles.then(|| [KernelNames::Shown, host.kernel_names.hidden()].map(stacks_with)),
            filter,
            new_processes: process_sender,
            unwinder: unwound,
            blocked,
            max_stacks: config.max_stacks() as usize,
            max_samples: config.stacks.max_samples as usize,
            sample_period: config.stacks.sample_period(),
            samples,
        },
        checkpoint,
    )
    .with_context(|| format!("failed to walk `{}`", cgroup_root.display()))?;
    let pins = pins.map(|pins| (pins, Store::new(&config.run_dir)));
    let daemon_set = pins.is_some().then(|| start_daemon_set(&config)).flatten();
    let pods = start_pods(&config, &node_name, &status, &reader)?;
    let (facts, facts_now) = watch::channel(config.metrics.facts.clone());
    let push = config.otlp.metrics.enabled.then(|| {
        let receiver = config.otlp.metrics_settings();
        let interval = config.otlp.metrics.interval;
        let sensors = parts::sensors(&config);
        let settings = PushSettings { receiver, interval, node_name: node_name.clone(), sensors, facts: facts_now };
        Push::start(settings, reader.clone())
    });
    let (push, push_health) = push.transpose()?.unzip();
    let symbols = SymbolCounts::default();
    let servers = config.stacks.debuginfod.settings(mode);
    let (fetcher, debug_files) = servers.map(|settings| debuginfod::start(settings, status.clone())).unzip();
    let (lines, files) = LineFinder::new(given_up.clone(), config.testing.sandbox);
    let windows_out = Windows::new(given_up.clone());
    let mut sinks = Sinks::default();
    sinks.add(Arc::new(windows_out.clone()));
    if let Some(exporter) = &exporter {
        sinks.add(exporter.clone());
    }
    let history = History::start(reader.clone());
    let agent = Arc::new(Agent {
        node_name,
        reader,
        status,
        pods,
        windows: windows_out,
        drawer: Drawer::new(given_up.clone()),
        cgroup_root: cgroup_root.to_owned(),
        cpu: host.cpu.clone(),
        history,
        started: Instant::now(),
        exporter,
        push: push_health,
        facts,
        measures_facts: parts::wants_facts(&config),
        symbols: symbols.clone(),
        works,
        holders,
        debug_files,
        lines,
        spare,
        calls_turn: Arc::new(Semaphore::new(1)),
        logs,
        server: Arc::default(),
        answering,
        heartbeats,
        cpus: host.cpus,
        access,
        config: Mutex::new(asked),
        runner: Runner::find(),
        reload: Mutex::new((true, SystemTime::now())),
    });
    let reader = agent.reader.clone();
    let symbolizer = profiles
        .then(|| {
            let confined = agent.lock_config().testing.sandbox;
            let (tables, fetcher) = (unwinder.is_some(), fetcher.flatten());
            let naming = Naming { mode, confined, tables, fetcher, blocked: blocked_names };
            stacks::start(windows, processes, files, symbols, given_up, naming, move |profile, unwound| {
                reader.send_unwound(unwound);
                sinks.take(profile);
            })
        })
        .transpose()?;
    Ok((agent, Threads { collector, unwinder, symbolizer, push, pins, daemon_set }))
}
/// Returns the handle that finds out at the end whether the DaemonSet is being deleted; `None` without a configured
/// name.
fn start_daemon_set(config: &Config) -> Option<DaemonSet> {
    let name = config.restart.daemon_set.as_str();
    if name.is_empty() {
        return None;
    }
    let kubernetes = &config.kubernetes;
    let kubeconfig = Some(kubernetes.kubeconfig.clone()).filter(|path| !path.as_os_str().is_empty());
    DaemonSet::new(name, kubeconfig, Some(kubernetes.context.clone()).filter(|context| !context.is_empty()))
}

/// Starts the sensors, pinned if the configuration asks for it and the kernel allows it.
fn start_sensors(
    config: &Config,
    settings: &SensorSettings,
    plan: &Plan,
    status: &Status,
) -> anyhow::Result<(Sensors, Option<Pins>)> {
    if !config.restart.pin {
        status.set("restart", State::Healthy, "counts end with this agent: `restart.pin` is false");
        return Ok((Sensors::start(settings, plan, None)?, None));
    }
    let degraded = |error: anyhow::Error| {
        status.set("restart", State::Degraded, format!("counts end with this agent: {error:#}"));
    };
    let pins = match Pins::open(&config.restart.directory, &config.run_dir) {
        Ok(pins) => pins,
        Err(error @ PinsError::Taken(_)) => return Err(error.into()),
        Err(error) => {
            degraded(error.into());
            return Ok((Sensors::start(settings, plan, None)?, None));
        }
    };
    match Sensors::start(settings, plan, Some(&pins)) {
        Err(error @ LoadError::Pins { .. }) => {
            degraded(error.into());
            Ok((Sensors::start(settings, plan, None)?, None))
        }
        started => Ok((started?, Some(pins))),
    }
}

/// Starts the search for holders of BPF programs; `None` in a mode without the privilege to look into processes.
fn start_holders(config: &Config, mode: Mode, status: &Status) -> io::Result<Option<Holders>> {
    if mode != Mode::Profiles {
        return Ok(None);
    }
    // The pins of other agents are beside this agent's, unless only the agent's own are mounted.
    let own = &config.restart.directory;
    let pins = own.parent().filter(|parent| is_bpffs(parent)).unwrap_or(own).to_owned();
    holders::start(HolderSettings { every: config.testing.holders_every, pins }, status.clone()).map(Some)
}

/// Starts the source of pods; `None` if the configuration has none.
fn start_pods(
    config: &Config,
    node_name: &str,
    status: &Status,
    reader: &Reader,
) -> anyhow::Result<Option<pods::Source>> {
    let settings = match parts::pod_settings(config, node_name) {
        Ok(settings) => settings,
        Err(reason) => {
            status.set("pods", State::Healthy, reason);
            return Ok(None);
        }
    };
    let reader = reader.clone();
    Ok(Some(pods::start(settings, status.clone(), move |change| reader.send_pod(change))?))
}

/// Sets the first state of each part, in the words that `/status` and the metrics use.
fn set_states(status: &Status, config: &Config, sensors: &Sensors, host: &Host) {
    let (wanted, got) = (config.testing.tracepoint, sensors.tracepoint());
    let (state, detail) = states::scheduling(wanted, got, host.sees_all_processes);
    status.set("scheduling sensor", state, detail);
    let (state, detail) = states::cgroup2(host);
    status.set("cgroup2", state, detail);
    status.set("cgroup sensor", State::Healthy, "births and deaths from the kernel");
    let (state, detail) = states::stacks(config, host);
    status.set("stacks", state, detail);
    if let Some((state, detail)) = states::unwinding(config, host, sensors.copies_refused()) {
        status.set("unwinding", state, detail);
    }
    let (state, detail) = states::samples(config, host, &sensors.samples());
    status.set("cpu samples", state, detail);
    if let Some((state, detail)) = states::isolated_cpus(config, host) {
        status.set("isolated cpus", state, detail);
    }
    for SensorState { sensor, state, detail } in sensors.sensor_states() {
        status.set(sensor.names.sensor, *state, detail);
    }
}
