//! The running agent: what its commands and its HTTP server share.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context;
use tracing::{info, warn};

use crate::{
    collector::{self, CollectorSettings, Reader, RowSettings},
    config::{Config, Settings},
    events::plan::Plan,
    export::{
        otlp::{Exporter, Health},
        prometheus::{AgentFacts, LogCounts},
    },
    kernel::{OpenCounter, SensorSettings, Sensors, Tracepoint, host::Host},
    stacks::{self, SymbolCounts},
    status::{Part, State, Status},
};

/// Windows that may wait for the symbolizer.
const WINDOWS_WAITING: usize = 2;

/// What the parts of the agent share.
#[derive(Debug)]
pub struct Agent {
    /// The node's name.
    pub node_name: String,
    /// Where readings come from.
    pub reader: Reader,
    /// The configured events and what became of each.
    pub counters: Arc<[OpenCounter]>,
    status: Status,
    exporter: Option<Exporter>,
    symbols: SymbolCounts,
    logs: &'static LogCounts,
    config: Mutex<Config>,
    reload: Mutex<(bool, SystemTime)>,
}

/// The threads of a running agent.
#[derive(Debug)]
pub struct Threads {
    collector: JoinHandle<()>,
    symbolizer: Option<JoinHandle<()>>,
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
    let Settings { config, node_name, selection } = settings;
    let status = Status::default();
    let profiles = config.stacks.enabled && !config.otlp.endpoint.is_empty();

    let sensors = Sensors::start(
        &SensorSettings {
            tracepoint: config.scheduling.tracepoint,
            facts: config.facts.enabled,
            stacks: profiles,
            long_wait_ns: nanoseconds(config.stacks.long_wait),
            max_cgroups: config.cgroups.max,
            max_stacks: config.stacks.max_stacks,
            max_waits: config.stacks.max_waits,
            perf_event_paranoid: host.perf_event_paranoid,
        },
        plan,
    )?;
    let tracepoint = sensors.tracepoint();
    let counters: Arc<[OpenCounter]> = sensors.counters().into();
    tell_state(&status, &config, tracepoint, &counters, profiles, host);

    let exporter = profiles.then(|| Exporter::new(config.otlp.settings())).transpose()?;
    let (window_sender, windows) = mpsc::sync_channel(WINDOWS_WAITING);
    let (reader, collector) = collector::start(
        sensors,
        CollectorSettings {
            cgroup_root: cgroup_root.to_owned(),
            rows: RowSettings { selection, grace: config.cgroups.grace },
            profiles: profiles.then_some((config.otlp.interval, window_sender)),
            max_stacks: config.stacks.max_stacks as usize,
        },
    )
    .with_context(|| format!("failed to walk `{}`", cgroup_root.display()))?;
    let symbols = SymbolCounts::default();
    let agent = Arc::new(Agent {
        node_name,
        reader,
        counters,
        status,
        exporter,
        symbols: symbols.clone(),
        logs,
        config: Mutex::new(config),
        reload: Mutex::new((true, SystemTime::now())),
    });
    let sender = Arc::clone(&agent);
    let symbolizer = profiles
        .then(|| {
            stacks::start(windows, agent.node_name.clone(), symbols, move |profile| {
                if let Some(exporter) = &sender.exporter {
                    exporter.send(profile);
                }
            })
        })
        .transpose()?;
    Ok((agent, Threads { collector, symbolizer }))
}

impl Agent {
    /// The states of all parts, as they are now.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        let mut parts = self.status.parts();
        // The exporter keeps its own state, and logs its changes itself.
        parts.extend(self.exporter.as_ref().map(|exporter| {
            let endpoint = self.lock_config().otlp.endpoint.clone();
            let (state, detail) = match exporter.stats().health {
                Health::Healthy => (State::Healthy, endpoint),
                Health::Degraded { error, .. } => (State::Degraded, format!("{endpoint}: {error}")),
            };
            Part { part: "profile export", state, detail }
        }));
        parts
    }

    /// What the agent's own metrics tell.
    #[must_use]
    pub fn facts<'a>(&'a self, parts: &'a [Part]) -> AgentFacts<'a> {
        AgentFacts {
            facts_enabled: self.lock_config().facts.enabled,
            parts,
            otlp: self.exporter.as_ref().map(Exporter::stats),
            symbols: self.symbols.stats(),
            logs: self.logs,
            reload: *self.reload.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Takes over what a new configuration can change while running, and says what it cannot.
    pub fn reload(&self, settings: anyhow::Result<Settings>) {
        let mut reload = self.reload.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = match settings {
            Ok(settings) => settings,
            Err(error) => {
                reload.0 = false;
                warn!(error = format!("{error:#}"), "configuration not reloaded, the old one stays");
                return;
            }
        };
        let new = settings.config;
        let mut config = self.lock_config();
        let restart = config.needs_restart(&new);
        if restart.is_empty() {
            info!("configuration reloaded");
        } else {
            warn!(keys = restart.join(", "), "configuration reloaded, but these keys need a restart");
        }
        self.reader.set_rows(RowSettings { selection: settings.selection, grace: new.cgroups.grace });
        config.log_level = new.log_level;
        config.cgroups = new.cgroups;
        *reload = (true, SystemTime::now());
    }

    fn lock_config(&self) -> std::sync::MutexGuard<'_, Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the threads and sends what they still have, until `deadline`. The HTTP server must have ended.
pub async fn stop(agent: Arc<Agent>, threads: Threads, deadline: Instant) {
    agent.reader.stop();
    let joined = tokio::task::spawn_blocking(move || {
        let symbolizer = threads.symbolizer.map(JoinHandle::join);
        [Some(threads.collector.join()), symbolizer].into_iter().flatten().all(|result| result.is_ok())
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
}

/// One line per part, in the words that `/status` and the metrics use.
fn tell_state(
    status: &Status,
    config: &Config,
    tracepoint: Tracepoint,
    counters: &[OpenCounter],
    profiles: bool,
    host: &Host,
) {
    match tracepoint {
        Tracepoint::Raw if config.scheduling.tracepoint != Tracepoint::Raw => {
            status.set("scheduling sensor", State::Degraded, "raw tracepoint: wake-ups are told by run times");
        }
        _ => status.set("scheduling sensor", State::Healthy, format!("{tracepoint:?} tracepoint").to_lowercase()),
    }
    status.set("cgroup sensor", State::Healthy, "births and deaths from the kernel");
    if config.counters.enabled {
        let open = counters.iter().filter(|counter| counter.slot.is_ok()).count();
        let state = match open {
            0 if counters.is_empty() => State::Healthy,
            0 => State::Unsupported,
            open if open < counters.len() => State::Degraded,
            _ => State::Healthy,
        };
        status.set("counters", state, describe(counters));
    }
    if profiles {
        // CAP_SYSLOG for kernel names; CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH for other users' files.
        let missing: Vec<String> = [
            (caps::Capability::CAP_SYSLOG, "kernel names"),
            (caps::Capability::CAP_SYS_PTRACE, "names in other users' processes"),
        ]
        .into_iter()
        .filter(|(capability, _)| !host.has(*capability))
        .map(|(capability, purpose)| format!("{purpose} (needs {capability})"))
        .collect();
        if missing.is_empty() {
            status.set("stacks", State::Healthy, "kernel and user stacks of every wait");
        } else {
            status.set("stacks", State::Degraded, format!("without {}", missing.join(" and ")));
        }
    } else if config.stacks.enabled {
        status.set("stacks", State::Healthy, "not taken: no `otlp.endpoint` to send them to");
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What the events of the configuration became, in a line.
fn describe(counters: &[OpenCounter]) -> String {
    let (open, refused): (Vec<_>, Vec<_>) = counters.iter().partition(|counter| counter.slot.is_ok());
    let names = |counters: &[&OpenCounter]| {
        counters.iter().map(|counter| counter.counter.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    match (open.as_slice(), refused.as_slice()) {
        ([], []) => "no events configured".into(),
        (open, []) => format!("counting {}", names(open)),
        ([], refused) => format!("{}: {}", names(refused), refused[0].slot.as_ref().err().cloned().unwrap_or_default()),
        (open, refused) => format!("counting {}; unsupported: {}", names(open), names(refused)),
    }
}
