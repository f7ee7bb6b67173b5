//! `podperf agent`: configure, build, run, drain.

use std::{
    io::IsTerminal,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::MissedTickBehavior,
};
use tracing::{info, warn};
use tracing_subscriber::{EnvFilter, Layer, filter::ParseError, layer::SubscriberExt, reload, util::SubscriberInitExt};

use super::{
    follow::Follower,
    overrides::{self, Overrides},
    run_dir, unpin,
};
use crate::{
    agent::{self, Agent, Threads},
    config::{Settings, parts},
    events::plan::Plan,
    http,
    kernel::{self, host::Host},
    model::status::State,
    sandbox::{self, Extras},
    telemetry::logs::LogCounts,
};

/// The longest time from SIGTERM to the end of the process. Data that is not sent by then is lost.
const DRAIN: Duration = Duration::from_millis(4500);
/// The part of [`DRAIN`] in which recordings get their last window.
const DRAIN_RECORDINGS: Duration = Duration::from_secs(2);
/// The part of [`DRAIN`] after that in which open requests may finish.
const DRAIN_HTTP: Duration = Duration::from_secs(1);

/// The longest time between two turns of the main loop. A change of a followed configuration file is noticed within
/// this time.
const LOOK_EVERY: Duration = Duration::from_secs(5);

static LOG_COUNTS: LogCounts = LogCounts::new();

/// The flags of `podperf agent`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Log level: error, warn, info, debug, trace, or a filter such as info,podperf=debug [default: info].
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Read the configuration file again when it changes, as on SIGHUP. For files that others replace, such as a mounted
    /// ConfigMap.
    #[arg(long, requires = "config")]
    follow_config: bool,
    /// The former name of `podperf unpin`.
    #[arg(long, hide = true)]
    unpin: bool,
    #[command(flatten)]
    overrides: Overrides,
}

type LogLevel = reload::Handle<EnvFilter, tracing_subscriber::Registry>;

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let settings = settings(arguments)?;
    if arguments.unpin {
        return unpin::remove(&settings.config);
    }
    let plan = overrides::plan(&settings.config, arguments.overrides.file())?;
    let log_level = start_log(&settings.config.log_level)?;

    let host = Host::read(overrides::cgroup_root(&settings.config));
    let mut problems = host.problems();
    if let Some(first) = (!problems.is_empty()).then(|| problems.remove(0)) {
        for problem in problems {
            tracing::error!("{problem}");
        }
        return Err(first.into());
    }
    let _lock = run_dir::lock(&settings.config.run_dir)?;
    if let Err(error) = kernel::raise_open_files() {
        warn!(%error, "failed to raise the soft limit of open files");
    }
    // This runs before the first thread is made, so that all threads inherit the limits.
    let config = &settings.config;
    // A kubeconfig may name programs that make tokens.
    let has_kubeconfig = !config.kubernetes.kubeconfig.as_os_str().is_empty();
    let extras = Extras { programs: has_kubeconfig, probes: parts::probes_programs(config) };
    let confined = sandbox::enter(config.testing.sandbox, parts::mode(config), &host, extras)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("failed to start the runtime")?;
    let served = runtime.block_on(serve(arguments, settings, &plan, &host, &log_level, &confined));
    // Tasks that still resolve symbols are abandoned: their time is over.
    runtime.shutdown_background();
    served
}

async fn serve(
    arguments: &Arguments,
    settings: Settings,
    plan: &Plan,
    host: &Host,
    log_level: &LogLevel,
    confined: &str,
) -> anyhow::Result<()> {
    let config = &settings.config;
    let bound = http::bind(config.listen, config.server.tls_files(), parts::server_limits(config))?;
    let mut hangup = signal(SignalKind::hangup()).context("failed to watch SIGHUP")?;
    let mut terminate = signal(SignalKind::terminate()).context("failed to watch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to watch SIGINT")?;
    let root = host.cgroup_root.as_deref().unwrap_or(Path::new("/sys/fs/cgroup"));
    let (agent, threads) = agent::start(settings, plan, host, root, &LOG_COUNTS)?;

    agent.set_state("sandbox", State::Healthy, confined);

    let url = bound.url();
    let mut server = bound.start(Arc::clone(&agent))?;
    let mut follower = Follower::new(arguments.overrides.file());
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    info!("listening on {url} (metrics at /metrics, state at /status)");
    let mut ended = std::pin::pin!(async {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    });
    let signal = loop {
        let is_asked = tokio::select! {
            signal = &mut ended => break signal,
            _ = hangup.recv() => true,
            _ = looks.tick() => {
                agent.heartbeats().main.beat();
                arguments.follow_config && follower.changed()
            }
            () = server.ended() => anyhow::bail!("the HTTP server ended (see the log)"),
        };
        if is_asked {
            // A reload waits for the collector, which may take long to read. A signal to stop does not wait for the
            // reload.
            tokio::select! {
                signal = &mut ended => break signal,
                () = reload(arguments, &agent, log_level) => {}
            }
        }
    };
    let start = Instant::now();
    info!(signal, "stopping");
    drain(server, agent, threads).await;
    info!(took = ?start.elapsed(), "stopped");
    Ok(())
}

async fn drain(server: http::Running, agent: Arc<Agent>, threads: Threads) {
    let deadline = Instant::now() + DRAIN;
    agent.windows().end(DRAIN_RECORDINGS).await;
    server.stop(DRAIN_HTTP).await;
    agent::stop(agent, threads, deadline).await;
}

/// Returns the checked configuration: the file, or the defaults, overridden by the flags.
fn settings(arguments: &Arguments) -> anyhow::Result<Settings> {
    let mut config = arguments.overrides.config()?;
    if let Some(level) = &arguments.log_level {
        config.log_level.clone_from(level);
    }
    overrides::settings(config, arguments.overrides.file())
}

async fn reload(arguments: &Arguments, agent: &Agent, log_level: &LogLevel) {
    let new = settings(arguments);
    if let Ok(settings) = &new
        && let Ok(filter) = log_filter(&settings.config.log_level)
    {
        // A reload of the filter fails only when the subscriber is gone.
        log_level.reload(filter).ok();
    }
    agent.reload(new).await;
}

/// Returns the filter of a level. Any client causes warnings of the TLS library, as many as it likes and before it shows
/// a token, so only its errors are logged unless the level names it.
fn log_filter(level: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::try_new(format!("rustls=error,{level}"))
}

fn start_log(level: &str) -> anyhow::Result<LogLevel> {
    let (filter, handle) = reload::Layer::new(log_filter(level)?);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry().with(filter).with(lines.and_then(&LOG_COUNTS)).init();
    Ok(handle)
}
