//! The running agent: the state that its commands and its HTTP server share.

mod calls;
mod history;
mod latency;
mod recordings;
mod start;
mod stop;
mod suggestions;

use crate::model::facts::FactFamily;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use tokio::sync::{Semaphore, watch};
use tracing::{info, warn};

use history::History;

use crate::{
    access::Access,
    attribution::RowRules,
    collector::{Observation, Purpose, ReadError, Reader},
    config::{Config, Metrics, OwnSeries, Runner, Settings, parts, states},
    export::{
        Drawer,
        otlp::{Exporter, Health},
        prometheus::AgentFacts,
    },
    holders::{Holders, NamedHolder, named},
    kernel::{AnsweringTime, OpenCounter, cpu_info::CpuInfo, sched_ext},
    model::{
        status::{Part, State, Status},
        works::WorkCounts,
    },
    pods,
    recording::Windows,
    stacks::{LineFinder, SymbolCounts, debuginfod::FetchCounts, lending::Spare},
    telemetry::{heartbeat::Heartbeats, http::ServerCounts, logs::LogCounts},
};

pub use start::start;
pub use stop::{Threads, stop};

/// Time for which the agent is not ready while it has received no list of pods.
const WAIT_FOR_PODS: Duration = Duration::from_secs(60);
/// A ready agent has read the kernel within this time.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// State that the parts of the agent share.
#[derive(Debug)]
pub struct Agent {
    /// The node's name.
    pub node_name: String,
    reader: Reader,
    status: Status,
    /// `None` without a cluster.
    pods: Option<pods::Source>,
    windows: Windows,
    drawer: Drawer,
    cgroup_root: PathBuf,
    cpu: CpuInfo,
    history: History,
    started: Instant,
    exporter: Option<Arc<Exporter>>,
    /// `None` if no metrics are pushed.
    push: Option<watch::Receiver<Health>>,
    /// The currently configured families, for the metrics push.
    facts: watch::Sender<Vec<FactFamily>>,
    /// True if the programs measure facts, which is fixed at the start.
    measures_facts: bool,
    symbols: SymbolCounts,
    works: WorkCounts,
    /// `None` in a mode without the privilege to look into processes.
    holders: Option<Holders>,
    /// `None` without `stacks.debuginfod.urls`, or in a mode without user frames.
    debug_files: Option<FetchCounts>,
    lines: LineFinder,
    /// The places for functions of recordings; `None` if the sensor `functions` does not run.
    spare: Option<Spare>,
    /// The turn of a recording of system calls.
    calls_turn: Arc<Semaphore>,
    logs: &'static LogCounts,
    server: Arc<ServerCounts>,
    answering: AnsweringTime,
    heartbeats: Heartbeats,
    cpus: u32,
    /// `None` if every client may read.
    access: Option<Arc<Access>>,
    config: Mutex<Config>,
    runner: Runner,
    reload: Mutex<(bool, SystemTime)>,
}
impl Agent {
    /// Reads the kernel for metrics, or returns the last reading if it is less than a second old.
    ///
    /// # Errors
    ///
    /// Fails if the kernel's maps cannot be read, or if the collector has stopped.
    pub async fn export(&self, purpose: Purpose) -> Result<Arc<Observation>, ReadError> {
        let observation = self.reader.read(purpose).await?;
        if observation.snapshot.cgroups_unresolved > 0
            && let Some(pods) = &self.pods
        {
            pods.poke();
        }
        Ok(observation)
    }

    /// Sets the state of a part that is outside of the agent.
    pub fn set_state(&self, part: &'static str, state: State, detail: &str) {
        self.status.set(part, state, detail);
    }

    /// Returns the counts of the HTTP server.
    #[must_use]
    pub const fn server(&self) -> &Arc<ServerCounts> {
        &self.server
    }

    /// Returns the account of the CPU time that readers cost.
    #[must_use]
    pub const fn answering(&self) -> &AnsweringTime {
        &self.answering
    }

    /// Returns the heartbeats of the agent's loops.
    #[must_use]
    pub const fn heartbeats(&self) -> &Heartbeats {
        &self.heartbeats
    }

    /// Returns the number of CPUs of the node.
    #[must_use]
    pub const fn cpus(&self) -> u32 {
        self.cpus
    }

    /// Returns whether the last reload succeeded, and its time: a rendered scrape is valid until this changes.
    #[must_use]
    pub fn reloaded(&self) -> (bool, SystemTime) {
        *self.lock_reload()
    }

    /// Returns the access control; `None` if every client may read.
    #[must_use]
    pub const fn access(&self) -> Option<&Arc<Access>> {
        self.access.as_ref()
    }

    /// Returns the windows of profiles, for pages and recordings.
    #[must_use]
    pub const fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Returns the drawer of flame graphs.
    #[must_use]
    pub const fn drawer(&self) -> &Drawer {
        &self.drawer
    }

    /// Returns the present observation, an earlier one, and the time between them, for rates: `None` and no time if the
    /// agent has just started, or if the clock was set back.
    ///
    /// # Errors
    ///
    /// Fails if the kernel's maps cannot be read, or if the collector has stopped.
    pub async fn lately(&self) -> Result<(Arc<Observation>, Option<Arc<Observation>>, Duration), ReadError> {
        let now = self.reader.read(Purpose::Look).await?;
        let before = self.history.before(&now);
        let over = before.as_ref().and_then(|before| now.snapshot.taken.duration_since(before.snapshot.taken).ok());
        Ok((now, before.filter(|_| over.is_some()), over.unwrap_or_default()))
    }

    /// Returns the configured events, each with its state; empty if the kernel cannot be read.
    pub async fn counters(&self) -> Arc<[OpenCounter]> {
        self.reader
            .read(Purpose::Look)
            .await
            .map_or_else(|_| Arc::default(), |observation| Arc::clone(&observation.counters))
    }

    /// Returns the holders of the node's BPF programs; empty if the agent looks for none, or cannot read the kernel.
    pub async fn holders(&self) -> Vec<NamedHolder> {
        let Some(holders) = &self.holders else { return Vec::new() };
        let held = holders.facts().held;
        let observation = self.reader.read(Purpose::Look).await;
        observation.map_or_else(|_| Vec::new(), |observation| named(&held, &observation.snapshot))
    }

    /// Returns a text for people if the agent is ready. The agent waits for pods only for `WAIT_FOR_PODS`, since
    /// counts without names are still useful, and wait for their names.
    ///
    /// # Errors
    ///
    /// Returns the reason if the agent is not ready: it cannot read the kernel, or has received no list of pods yet.
    pub async fn ready(&self) -> Result<String, String> {
        // Everybody may ask, as often as they like, so an answer makes no reading while there is one.
        if !self.reader.has_read_within(READ_WITHIN) {
            self.reader.read(Purpose::Look).await.map_err(|error| error.to_string())?;
        }
        let stats = self.pods.as_ref().map(pods::Source::stats).unwrap_or_default();
        if self.pods.is_none() || stats.last_sync.is_some() {
            return Ok("ok".into());
        }
        let reason = format!("no list of pods yet: {}", stats.last_error.as_deref().unwrap_or("not answered"));
        if self.started.elapsed() > WAIT_FOR_PODS { Ok(format!("ok, but {reason}")) } else { Err(reason) }
    }

    /// Returns the present states of all parts.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        let mut parts = self.status.parts();
        // A BPF scheduler comes and goes while the agent runs.
        if let Some(name) = sched_ext::scheduler() {
            let (state, detail) = states::bpf_scheduler(&name);
            parts.push(Part { part: "scheduler", state, detail });
        }
        // The exporters keep their own state, and log its changes themselves.
        let endpoint = self.lock_config().otlp.endpoint.clone();
        let mut push = |part, health| {
            let (state, detail) = match health {
                Health::Healthy => (State::Healthy, endpoint.clone()),
                Health::Degraded { error, .. } => (State::Degraded, format!("{endpoint}: {error}")),
            };
            parts.push(Part { part, state, detail });
        };
        if let Some(exporter) = &self.exporter {
            push("profile export", exporter.stats().health);
        }
        if let Some(health) = &self.push {
            push("metrics export", health.borrow().clone());
        }
        parts
    }

    /// Returns the data of the agent's own metrics.
    #[must_use]
    pub fn facts<'a>(&'a self, parts: &'a [Part]) -> AgentFacts<'a> {
        let config = self.lock_config();
        AgentFacts {
            families: config.metrics.facts.clone(),
            sensors: parts::sensors(&config),
            created_series: config.metrics.created_series,
            classic_buckets: config.metrics.classic_buckets,
            all_own: config.metrics.own == OwnSeries::All,
            cpu: &self.cpu,
            scheduler: sched_ext::scheduler(),
            parts,
            pods: self.pods.as_ref().map(pods::Source::stats),
            otlp: self.exporter.as_deref().map(Exporter::stats),
            symbols: self.symbols.stats(),
            unread: self.symbols.unread().sums_and_rest(),
            programs: self.symbols.programs().sums(),
            works: self.works.clone(),
            holders: self.holders.as_ref().map(Holders::facts),
            debug_files: self.debug_files.as_ref().map(FetchCounts::stats),
            logs: self.logs,
            server: self.server.stats(),
            answering: self.answering.total(),
            access: self.access.as_ref().map(|access| access.stats()),
            reload: *self.lock_reload(),
        }
    }

    /// Applies the settings of a new configuration that can change while the agent runs. Logs the success, and the keys
    /// that need a restart.
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
        self.reader.set_max_memory(new.overhead.max_memory);
        let restart = {
            let mut config = self.lock_config();
            let mut restart = config.needs_restart(&new);
            config.log_level = new.log_level;
            config.cgroups = new.cgroups;
            config.overhead.max_memory = new.overhead.max_memory;
            config.metrics = Metrics { level, ..new.metrics };
            if !self.measures_facts && !config.metrics.facts.is_empty() {
                // Facts that are not measured would be exported as zero.
                config.metrics.facts.clear();
                restart.push("metrics.facts");
            }
            self.facts.send_replace(config.metrics.facts.clone());
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
