//! The running agent: what its commands and its HTTP server share.

mod history;
mod recordings;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context;
use tokio::sync::watch;
use tracing::{info, warn};

use history::History;

use crate::{
    access::Access,
    attribution::RowRules,
    collector::{self, CollectorSettings, Observation, ReadError, Reader, Resumed},
    config::{Config, Metrics, Settings},
    events::plan::Plan,
    export::{
        facts::FactFamily,
        otlp::{Exporter, Health},
        prometheus::{AgentFacts, LogCounts},
        push::{Push, PushSettings},
        server::ServerCounts,
    },
    kernel::{
        LoadError, OpenCounter, Pins, PinsError, SampleEvent, Sensors, Tracepoint, cpu_info::CpuInfo, host::Host,
    },
    overhead::Overhead,
    parts,
    pods::{self, DaemonSet},
    recording::Windows,
    restart::Keeper,
    stacks::{self, SymbolCounts},
    status::{Part, State, Status},
};

/// How long the agent is not ready while it has heard of no pods.
const WAIT_FOR_PODS: Duration = Duration::from_secs(60);
/// Windows that may wait for the symbolizer; the collector sends fewer, unless they become too large.
const WINDOWS_WAITING: usize = 4;
/// Processes that may wait to be met; of the others less is known if they end soon.
const PROCESSES_WAITING: usize = 256;
/// Of the time that the agent has to stop, what the last push of metrics gets.
const LAST_PUSH: Duration = Duration::from_secs(1);

/// What the parts of the agent share.
#[derive(Debug)]
pub struct Agent {
    /// The node's name.
    pub node_name: String,
    reader: Reader,
    status: Status,
    /// `None` without a cluster.
    pods: Option<pods::Source>,
    windows: Windows,
    cgroup_root: PathBuf,
    cpu: CpuInfo,
    history: History,
    started: Instant,
    exporter: Option<Exporter>,
    /// `None` where no metrics are pushed.
    push: Option<watch::Receiver<Health>>,
    /// As configured at this moment, for what pushes them.
    facts: watch::Sender<Vec<FactFamily>>,
    symbols: SymbolCounts,
    logs: &'static LogCounts,
    server: Arc<ServerCounts>,
    /// `None` where everybody may read.
    access: Option<Arc<Access>>,
    config: Mutex<Config>,
    reload: Mutex<(bool, SystemTime)>,
}

/// The threads of a running agent.
#[derive(Debug)]
pub struct Threads {
    collector: JoinHandle<()>,
    symbolizer: Option<JoinHandle<()>>,
    push: Option<Push>,
    /// No other agent may have them before this one has ended.
    pins: Option<(Pins, Keeper)>,
    /// `None` where none is named.
    daemon_set: Option<DaemonSet>,
}

/// Loads the sensors and starts the threads. Must be called on a tokio runtime.
///
/// # Errors
///
/// When the kernel refuses a program, or the cgroup tree cannot be read.
pub fn start(
    settings: Settings,
    plan: &Plan,
    host: &Host,
    cgroup_root: &Path,
    logs: &'static LogCounts,
) -> anyhow::Result<(Arc<Agent>, Threads)> {
    let Settings { config, node_name, rules, filter } = settings;
    let status = Status::default();
    let profiles = parts::wants_profiles(&config);

    let (sensors, pins) = start_sensors(&config, host, plan, &status)?;
    let keeper = pins.is_some().then(|| Keeper::new(&config.run_dir));
    let resumed = Resumed::find(keeper, &sensors, &status);
    let started = resumed.started();
    let tracepoint = sensors.tracepoint();
    tell_state(&status, &config, tracepoint, &sensors.samples(), host);

    let exporter = parts::sends_profiles(&config).then(|| Exporter::new(config.otlp.settings())).transpose()?;
    let (window_sender, windows) = mpsc::sync_channel(WINDOWS_WAITING);
    let (met_sender, met) = mpsc::sync_channel(PROCESSES_WAITING);
    let (reader, collector) = collector::start(
        sensors,
        CollectorSettings {
            cgroup_root: cgroup_root.to_owned(),
            rules,
            patience: parts::wants_pods(&config).then_some(config.kubernetes.patience),
            status: status.clone(),
            overhead: Overhead::new(config.overhead.max_percent, host.cpus),
            profiles: profiles.then_some((config.otlp.interval, window_sender)),
            filter,
            met: met_sender,
            max_stacks: config.stacks.max_stacks as usize,
            max_samples: config.stacks.max_samples as usize,
            sample_period: config.stacks.sample_period(),
        },
        resumed,
    )
    .with_context(|| format!("failed to walk `{}`", cgroup_root.display()))?;
    let pins = pins.map(|pins| (pins, Keeper::new(&config.run_dir)));
    let daemon_set = pins.is_some().then(|| start_daemon_set(&config)).flatten();
    let pods = start_pods(&config, &node_name, &status, &reader)?;
    let access = parts::access_settings(&config);
    let access = access.map(|settings| Access::new(settings, status.clone())).transpose()?.map(Arc::new);
    let (facts, facts_now) = watch::channel(families(&config));
    let push = config.otlp.metrics.enabled.then(|| {
        let receiver = config.otlp.metrics_settings();
        let interval = config.otlp.metrics.interval;
        let settings = PushSettings { receiver, interval, node_name: node_name.clone(), facts: facts_now, started };
        Push::start(settings, reader.clone())
    });
    let (push, push_health) = push.transpose()?.unzip();
    let symbols = SymbolCounts::default();
    let windows_out = Windows::default();
    let history = History::start(reader.clone());
    let agent = Arc::new(Agent {
        node_name,
        reader,
        status,
        pods,
        windows: windows_out.clone(),
        cgroup_root: cgroup_root.to_owned(),
        cpu: host.cpu.clone(),
        history,
        started: Instant::now(),
        exporter,
        push: push_health,
        facts,
        symbols: symbols.clone(),
        logs,
        server: Arc::default(),
        access,
        config: Mutex::new(config),
        reload: Mutex::new((true, SystemTime::now())),
    });
    let sender = Arc::clone(&agent);
    let symbolizer = profiles
        .then(|| {
            let confined = agent.lock_config().sandbox.syscalls;
            stacks::start(windows, met, agent.node_name.clone(), symbols, confined, move |profile, unwound| {
                sender.reader.tell_unwound(unwound);
                let profile = Arc::new(profile);
                windows_out.publish(&profile);
                if let Some(exporter) = &sender.exporter {
                    exporter.send(Arc::unwrap_or_clone(profile).own());
                }
            })
        })
        .transpose()?;
    Ok((agent, Threads { collector, symbolizer, push, pins, daemon_set }))
}

impl Agent {
    /// Reads the kernel to export it, or takes the reading of less than a second ago.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be read, or the collector has stopped.
    pub async fn export(&self) -> Result<Arc<Observation>, ReadError> {
        let observation = self.reader.read(true).await?;
        if observation.snapshot.cgroups_unresolved > 0
            && let Some(pods) = &self.pods
        {
            pods.poke();
        }
        Ok(observation)
    }

    /// Sets the state of a part that is not the agent's own.
    pub fn tell(&self, part: &'static str, state: State, detail: &str) {
        self.status.set(part, state, detail);
    }

    /// What the HTTP server counts.
    #[must_use]
    pub const fn server(&self) -> &Arc<ServerCounts> {
        &self.server
    }

    /// Who may read; `None` is everybody.
    #[must_use]
    pub const fn access(&self) -> Option<&Arc<Access>> {
        self.access.as_ref()
    }

    /// The windows of profiles, for pages and recordings.
    #[must_use]
    pub const fn windows(&self) -> &Windows {
        &self.windows
    }

    /// What is known now, what was known a while ago, and how long ago that was, for rates. Where the agent has only
    /// begun, that is nothing.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be read, or the collector has stopped.
    pub async fn lately(&self) -> Result<(Arc<Observation>, Option<Arc<Observation>>, Duration), ReadError> {
        let now = self.reader.read(false).await?;
        let Some(before) = self.history.before(&now) else { return Ok((now, None, self.started.elapsed())) };
        let over = now.snapshot.taken.duration_since(before.snapshot.taken).unwrap_or_default();
        Ok((now, Some(before), over))
    }

    /// The configured events and what became of each; none where the kernel cannot be read.
    pub async fn counters(&self) -> Arc<[OpenCounter]> {
        self.reader.read(false).await.map_or_else(|_| Arc::default(), |observation| Arc::clone(&observation.counters))
    }

    /// How the agent is ready, for people. It waits for pods only so long, since counts without names are still of use,
    /// and are kept for them.
    ///
    /// # Errors
    ///
    /// Why it is not: it cannot read the kernel, or has not heard of any pod yet.
    pub async fn ready(&self) -> Result<String, String> {
        self.reader.read(false).await.map_err(|error| error.to_string())?;
        let stats = self.pods.as_ref().map(pods::Source::stats).unwrap_or_default();
        if self.pods.is_none() || stats.last_sync.is_some() {
            return Ok("ok".into());
        }
        let reason = format!("no list of pods yet: {}", stats.last_error.as_deref().unwrap_or("not answered"));
        if self.started.elapsed() > WAIT_FOR_PODS { Ok(format!("ok, but {reason}")) } else { Err(reason) }
    }

    /// The states of all parts, as they are now.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        let mut parts = self.status.parts();
        // The exporters keep their own state, and log its changes themselves.
        let endpoint = self.lock_config().otlp.endpoint.clone();
        let mut tell = |part, health| {
            let (state, detail) = match health {
                Health::Healthy => (State::Healthy, endpoint.clone()),
                Health::Degraded { error, .. } => (State::Degraded, format!("{endpoint}: {error}")),
            };
            parts.push(Part { part, state, detail });
        };
        if let Some(exporter) = &self.exporter {
            tell("profile export", exporter.stats().health);
        }
        if let Some(health) = &self.push {
            tell("metrics export", health.borrow().clone());
        }
        parts
    }

    /// What the agent's own metrics tell.
    #[must_use]
    pub fn facts<'a>(&'a self, parts: &'a [Part]) -> AgentFacts<'a> {
        let config = self.lock_config();
        AgentFacts {
            families: families(&config),
            cpu: &self.cpu,
            parts,
            pods: self.pods.as_ref().map(pods::Source::stats),
            otlp: self.exporter.as_ref().map(Exporter::stats),
            symbols: self.symbols.stats(),
            logs: self.logs,
            server: self.server.stats(),
            access: self.access.as_ref().map(|access| access.stats()),
            reload: *self.lock_reload(),
        }
    }

    /// Takes over what a new configuration can change while running, and says so once it holds, and what it cannot.
    pub async fn reload(&self, settings: anyhow::Result<Settings>) {
        let Settings { config: new, rules, .. } = match settings {
            Ok(settings) => settings,
            Err(error) => {
                self.lock_reload().0 = false;
                warn!(error = format!("{error:#}"), "configuration not reloaded, the old one stays");
                return;
            }
        };
        let level = self.lock_config().metrics.level;
        if let Err(error) = self.reader.set_rules(RowRules { level, ..rules }).await {
            self.lock_reload().0 = false;
            warn!(%error, "configuration not reloaded");
            return;
        }
        let restart = {
            let mut config = self.lock_config();
            let restart = config.needs_restart(&new);
            config.log_level = new.log_level;
            config.cgroups = new.cgroups;
            config.metrics = Metrics { level, ..new.metrics };
            self.facts.send_replace(families(&config));
            restart
        };
        *self.lock_reload() = (true, SystemTime::now());
        if restart.is_empty() {
            info!("configuration reloaded");
        } else {
            warn!(keys = restart.join(", "), "configuration reloaded, but these keys need a restart");
        }
    }

    fn lock_reload(&self) -> MutexGuard<'_, (bool, SystemTime)> {
        self.reload.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_config(&self) -> MutexGuard<'_, Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the threads and sends what they still have, until `deadline`. The HTTP server must have ended.
pub async fn stop(agent: Arc<Agent>, threads: Threads, deadline: Instant) {
    let Threads { collector, symbolizer, push, pins, daemon_set } = threads;
    let going = tokio::spawn(async move {
        match daemon_set {
            Some(daemon_set) => daemon_set.is_going().await,
            None => false,
        }
    });
    // It needs the collector for its last reading.
    if let Some(push) = push {
        push.shutdown(LAST_PUSH).await;
    }
    agent.reader.stop();
    let joined = tokio::task::spawn_blocking(move || {
        let symbolizer = symbolizer.map(JoinHandle::join);
        [Some(collector.join()), symbolizer].into_iter().flatten().all(|result| result.is_ok())
    });
    match tokio::time::timeout_at(deadline.into(), joined).await {
        Ok(Ok(true)) => {}
        Ok(_) => warn!("a thread panicked"),
        Err(_) => warn!("the last profile was not done in time"),
    }
    // The symbolizer held the other reference; if it hangs, so does the exporter's last profile.
    if let Some(exporter) = Arc::into_inner(agent).and_then(|agent| agent.exporter) {
        exporter.shutdown(deadline.saturating_duration_since(Instant::now())).await;
    }
    // The collector has ended: nobody needs them any more.
    if let Some((pins, keeper)) = pins
        && going.await.unwrap_or(false)
    {
        match pins.remove_all().and_then(|_| keeper.forget()) {
            Ok(_) => info!("the DaemonSet is being deleted: unpinned"),
            Err(error) => warn!(%error, "failed to unpin (run `podperf agent --unpin` on this node)"),
        }
    }
}

/// What is asked at the end whether another agent will come.
fn start_daemon_set(config: &Config) -> Option<DaemonSet> {
    let name = config.restart.daemon_set.as_str();
    if name.is_empty() {
        return None;
    }
    let kubernetes = &config.kubernetes;
    let kubeconfig = Some(kubernetes.kubeconfig.clone()).filter(|path| !path.as_os_str().is_empty());
    DaemonSet::new(name, kubeconfig, Some(kubernetes.context.clone()).filter(|context| !context.is_empty()))
}

/// Starts the sensors, pinned if that is wanted and can be.
fn start_sensors(
    config: &Config,
    host: &Host,
    plan: &Plan,
    status: &Status,
) -> anyhow::Result<(Sensors, Option<Pins>)> {
    let settings = parts::sensor_settings(config, host);
    if !config.restart.pin {
        status.set("restart", State::Healthy, "counts end with this agent: `restart.pin` is false");
        return Ok((Sensors::start(&settings, plan, None)?, None));
    }
    let degraded = |error: anyhow::Error| {
        status.set("restart", State::Degraded, format!("counts end with this agent: {error:#}"));
    };
    let pins = match Pins::open(&config.restart.directory) {
        Ok(pins) => pins,
        Err(error @ PinsError::Taken(_)) => return Err(error.into()),
        Err(error) => {
            degraded(error.into());
            return Ok((Sensors::start(&settings, plan, None)?, None));
        }
    };
    match Sensors::start(&settings, plan, Some(&pins)) {
        Err(error @ LoadError::Pins { .. }) => {
            degraded(error.into());
            Ok((Sensors::start(&settings, plan, None)?, None))
        }
        started => Ok((started?, Some(pins))),
    }
}

/// The families of facts that are exported.
fn families(config: &Config) -> Vec<FactFamily> {
    if config.facts.enabled { config.metrics.facts.clone() } else { Vec::new() }
}

/// Starts to listen for pods, where there are any.
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
    Ok(Some(pods::start(settings, status.clone(), move |change| reader.tell(change))?))
}

/// One line per part, in the words that `/status` and the metrics use.
fn tell_state(
    status: &Status,
    config: &Config,
    tracepoint: Tracepoint,
    samples: &Result<Option<SampleEvent>, String>,
    host: &Host,
) {
    let (state, detail) = parts::scheduling(config.scheduling.tracepoint, tracepoint);
    status.set("scheduling sensor", state, detail);
    status.set("cgroup sensor", State::Healthy, "births and deaths from the kernel");
    let (state, detail) = parts::stacks(config, host);
    status.set("stacks", state, detail);
    let (state, detail) = parts::samples(config, samples);
    status.set("cpu samples", state, detail);
}
