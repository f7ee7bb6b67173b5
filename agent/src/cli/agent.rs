//! `podperf agent`: configure, build, run, drain.

use std::{
    fs,
    io::{IsTerminal, Seek, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use nix::fcntl::{Flock, FlockArg};
use podperf_ebpf::abi;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};
use tracing::info;
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, reload, util::SubscriberInitExt};

use crate::{
    agent::{self, Agent, Threads},
    config::{Config, Settings},
    events::{
        self,
        plan::{self, Limits, Plan},
    },
    export::{http, prometheus::LogCounts},
    kernel::host::Host,
};

/// Everything is over this long after SIGTERM, sent or not.
const DRAIN: Duration = Duration::from_millis(4500);
/// Of that, what open requests get.
const DRAIN_HTTP: Duration = Duration::from_secs(1);

static LOG_COUNTS: LogCounts = LogCounts::new();

/// The flags of `podperf agent`; they override the configuration file.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Configuration file [default: built-in defaults].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port of the HTTP server; port 0 picks a free one.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// The cgroup2 mount [default: the first one].
    #[arg(long, value_name = "DIR")]
    cgroup_root: Option<PathBuf>,
    /// Where to send profiles.
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// The node's name in profiles [default: $NODE_NAME, else the host name].
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    /// error, warn, info, debug, trace, or a filter such as info,podperf=debug.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

type LogLevel = reload::Handle<EnvFilter, tracing_subscriber::Registry>;

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let settings = settings(arguments)?;
    let plan = plan(&settings.config)?;
    let log_level = start_log(&settings.config.log_level)?;

    let root = Some(settings.config.cgroups.root.as_path()).filter(|root| !root.as_os_str().is_empty());
    let host = Host::read(root);
    let mut problems = host.problems();
    if let Some(first) = (!problems.is_empty()).then(|| problems.remove(0)) {
        for problem in problems {
            tracing::error!("{problem}");
        }
        return Err(first.into());
    }
    let _lock = lock(&settings.config.run_dir)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?
        .block_on(serve(arguments, settings, &plan, &host, &log_level))
}

async fn serve(
    arguments: &Arguments,
    settings: Settings,
    plan: &Plan,
    host: &Host,
    log_level: &LogLevel,
) -> anyhow::Result<()> {
    let listen = settings.config.listen;
    let listener = TcpListener::bind(listen).await.with_context(|| {
        format!("failed to listen on `{listen}` (is the port in use? set `listen` or `--listen ADDR:PORT`)")
    })?;
    let mut hangup = signal(SignalKind::hangup()).context("failed to watch SIGHUP")?;
    let mut terminate = signal(SignalKind::terminate()).context("failed to watch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to watch SIGINT")?;
    let root = host.cgroup_root.as_deref().unwrap_or(Path::new("/sys/fs/cgroup"));
    let (agent, threads) = agent::start(settings, plan, host, root, &LOG_COUNTS)?;

    let address = listener.local_addr().unwrap_or(listen);
    let (stop, stopped) = oneshot::channel::<()>();
    let mut server = tokio::spawn(http::serve(listener, Arc::clone(&agent), async {
        stopped.await.ok();
    }));
    info!("listening on http://{address} (metrics at /metrics, state at /status)");
    let signal = loop {
        tokio::select! {
            _ = terminate.recv() => break "SIGTERM",
            _ = interrupt.recv() => break "SIGINT",
            _ = hangup.recv() => reload(arguments, &agent, log_level),
            ended = &mut server => {
                return ended.context("the HTTP server panicked")?.context("the HTTP server failed");
            }
        }
    };
    info!(signal, "stopping");
    drop(stop);
    drain(server, agent, threads).await;
    info!("stopped");
    Ok(())
}

async fn drain(mut server: tokio::task::JoinHandle<std::io::Result<()>>, agent: Arc<Agent>, threads: Threads) {
    let deadline = Instant::now() + DRAIN;
    if tokio::time::timeout(DRAIN_HTTP, &mut server).await.is_err() {
        server.abort();
        server.await.ok();
    }
    agent::stop(agent, threads, deadline).await;
}

/// The file, or the defaults, with the flags over them, checked.
fn settings(arguments: &Arguments) -> anyhow::Result<Settings> {
    let mut config = arguments.config.clone().map_or_else(|| Ok(Config::default()), Config::read)?;
    if let Some(listen) = arguments.listen {
        config.listen = listen;
    }
    if let Some(root) = &arguments.cgroup_root {
        config.cgroups.root.clone_from(root);
    }
    if let Some(endpoint) = &arguments.otlp_endpoint {
        config.otlp.endpoint.clone_from(endpoint);
    }
    if let Some(name) = &arguments.node_name {
        config.node_name.clone_from(name);
    }
    if let Some(level) = &arguments.log_level {
        config.log_level.clone_from(level);
    }
    Ok(Settings::try_from(config)?)
}

fn plan(config: &Config) -> anyhow::Result<Plan> {
    let groups: &[_] = if config.counters.enabled { &config.counters.groups } else { &[] };
    let limits = Limits { events: abi::PODPERF_MAX_EVENTS as usize, groups: abi::PODPERF_MAX_GROUPS as usize };
    Ok(plan::plan(groups, Path::new(events::SYSFS), limits)?)
}

fn reload(arguments: &Arguments, agent: &Agent, log_level: &LogLevel) {
    let new = settings(arguments);
    if let Ok(settings) = &new
        && let Ok(filter) = EnvFilter::try_new(&settings.config.log_level)
    {
        // It fails only when the subscriber is gone.
        log_level.reload(filter).ok();
    }
    agent.reload(new);
}

fn start_log(level: &str) -> anyhow::Result<LogLevel> {
    let (filter, handle) = reload::Layer::new(EnvFilter::try_new(level)?);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry().with(filter).with(lines.and_then(&LOG_COUNTS)).init();
    Ok(handle)
}

/// Two agents on a node would count everything twice and cost twice: the second is refused while the first lives.
fn lock(run_dir: &Path) -> anyhow::Result<Flock<fs::File>> {
    let path = run_dir.join("agent.lock");
    let open = || {
        fs::create_dir_all(run_dir)?;
        fs::File::options().read(true).write(true).create(true).truncate(false).open(&path)
    };
    let file = open()
        .with_context(|| format!("failed to open lock `{}` (set `runDir` to a writable directory)", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()))?;
            Ok(lock)
        }
        Err(_) => {
            let pid = fs::read_to_string(&path).unwrap_or_default();
            anyhow::bail!("another podperf agent is running, pid {} (stop it, or set another `runDir`)", pid.trim())
        }
    }
}
