//! What is there: looked up, loaded, opened, asked. All the I/O of a check, and each part of it bounded in time.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::Duration,
};

use crate::{
    config::{Config, ConfigError, Settings, parts},
    events::plan::Plan,
    export::otlp,
    kernel::{
        self, OpenCounter, Pins, SampleEvent, SensorSettings, Sensors, Tracepoint,
        host::Host,
        memory::{Limit, map_bytes},
    },
    limits::memory::Budget,
    model::status::State,
    pods,
};

/// For the API server or the kubelet, and for the OTLP receiver at most; they are asked at the same time.
const PATIENCE: Duration = Duration::from_secs(5);
/// For the server that has the port.
const NEIGHBOUR: Duration = Duration::from_secs(1);
/// Of its answer, at most.
const ANSWER_BYTES: u64 = 64 * 1024;
/// Of the kernel's tables, which are gone a moment later.
const SMALLEST: u32 = 256;

/// All that was found.
#[derive(Debug)]
pub struct Findings {
    /// What the machine offers.
    pub host: Host,
    /// The form in which the scheduling tracepoint was attached, or why not; `None` if the host lacks what that needs.
    pub programs: Option<anyhow::Result<Started>>,
    /// Whether `perf_event_open(2)` is allowed, or why not.
    pub perf_event_open: Result<(), String>,
    /// The configured events and what became of each.
    pub counters: Vec<OpenCounter>,
    /// How the part `pods` would be, or why the agent would not start.
    pub pods: Result<(State, String), pods::SourceError>,
    /// Whether the receiver of profiles answers; `None` if there is none.
    pub export: Option<Result<(), NoExport>>,
    /// The same for metrics that are pushed.
    pub metrics_export: Option<Result<(), NoExport>>,
    /// Who has the address to listen on, or why it cannot be had.
    pub listen: anyhow::Result<Listen>,
    /// What it may take of memory, and what it makes smaller for that; or that it would not start.
    pub memory: Result<(Option<Budget>, Option<String>), ConfigError>,
    /// The pid of the agent that holds the run directory's lock, or why it cannot be had.
    pub run_dir: anyhow::Result<Option<u32>>,
    /// How many generations of programs are pinned, or why none can be; `None` where none is to be.
    pub pins: Option<anyhow::Result<usize>>,
}

/// Why nothing can be sent, in the agent's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoExport {
    /// The receiver does not take it, or not now.
    Receiver(String),
    /// The agent would refuse to start.
    Configuration(String),
}

/// Who has the address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nobody.
    Free,
    /// An agent, which says this of itself.
    Podperf(String),
}

impl Findings {
    /// Looks and tries. Must be called on a tokio runtime with time and I/O.
    /// `run_dir` is the pid of the agent that holds the run directory, and `bind` takes the address to listen on.
    pub async fn gather(
        settings: &Settings,
        plan: &Plan,
        host: Host,
        run_dir: anyhow::Result<Option<u32>>,
        bind: impl Future<Output = anyhow::Result<()>>,
    ) -> Self {
        let config = &settings.config;
        let programs = host.problems().is_empty().then(|| try_programs(config, &host));
        let perf_event_open = kernel::try_perf_event_open(host.perf_event_paranoid);
        let counters = kernel::try_counters(plan, parts::pmu_settings(config, &host));
        let (pods, export, metrics_export, listen) = tokio::join!(
            try_pods(config, &settings.node_name),
            try_export(config),
            try_metrics_export(config),
            try_listen(config.listen, bind)
        );
        let memory = try_memory(config, &host);
        let pins = config.restart.pin.then(|| Ok(Pins::look(&config.restart.directory)?));
        Self { host, programs, perf_event_open, counters, pods, export, metrics_export, listen, memory, run_dir, pins }
    }
}

/// Sizes the maps, as the agent does.
fn try_memory(config: &Config, host: &Host) -> Result<(Option<Budget>, Option<String>), ConfigError> {
    let budget = Budget::of(config.overhead.max_memory, Limit::find().bytes());
    let map_bytes = |config: &Config| map_bytes(&parts::sensor_settings(config, host));
    Ok((budget, parts::fit_maps(&mut config.clone(), budget, map_bytes)?))
}

/// What became of the programs.
#[derive(Clone, Debug)]
pub struct Started {
    /// Which form of the scheduling tracepoint was attached.
    pub tracepoint: Tracepoint,
    /// What makes samples on the CPU, or why nothing does.
    pub samples: Result<Option<SampleEvent>, String>,
}

/// Loads and attaches the programs, as the agent does, and takes them away again.
fn try_programs(config: &Config, host: &Host) -> anyhow::Result<Started> {
    let settings = SensorSettings {
        max_cgroups: SMALLEST,
        max_stacks: SMALLEST,
        max_samples: SMALLEST,
        ..parts::sensor_settings(config, host)
    };
    let sensors = Sensors::start(&settings, &Plan::default(), None)?;
    Ok(Started { tracepoint: sensors.tracepoint(), samples: sensors.samples() })
}

async fn try_pods(config: &Config, node_name: &str) -> Result<(State, String), pods::SourceError> {
    match parts::pod_settings(config, node_name) {
        Ok(settings) => pods::try_once(settings, PATIENCE).await,
        Err(reason) => Ok((State::Healthy, reason.into())),
    }
}

async fn try_export(config: &Config) -> Option<Result<(), NoExport>> {
    if !parts::sends_profiles(config) {
        return None;
    }
    Some(told(otlp::try_profiles(&in_time(config.otlp.settings())).await))
}

async fn try_metrics_export(config: &Config) -> Option<Result<(), NoExport>> {
    if !config.otlp.metrics.enabled {
        return None;
    }
    Some(told(otlp::try_metrics(&in_time(config.otlp.metrics_settings())).await))
}

fn in_time(settings: otlp::Settings) -> otlp::Settings {
    otlp::Settings { timeout: settings.timeout.min(PATIENCE), ..settings }
}

fn told(tried: Result<Result<(), String>, otlp::EndpointError>) -> Result<(), NoExport> {
    match tried {
        Ok(answer) => answer.map_err(NoExport::Receiver),
        Err(error) => Err(NoExport::Configuration(error.to_string())),
    }
}

/// With its certificate, if it is to have one.
async fn try_listen(listen: SocketAddr, bind: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<Listen> {
    let error = match bind.await {
        Ok(()) => return Ok(Listen::Free),
        Err(error) => error,
    };
    let in_use = error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse);
    let asked = tokio::time::timeout(NEIGHBOUR, tokio::task::spawn_blocking(move || ask_neighbour(listen)));
    if in_use && let Ok(Ok(Some(agent))) = asked.await {
        return Ok(Listen::Podperf(agent));
    }
    Err(error)
}

/// The first line of the agent's `/status`, if it is an agent that answers.
fn ask_neighbour(mut address: SocketAddr) -> Option<String> {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::LOCALHOST),
        });
    }
    let mut stream = TcpStream::connect_timeout(&address, NEIGHBOUR).ok()?;
    stream.set_read_timeout(Some(NEIGHBOUR)).ok()?;
    stream.set_write_timeout(Some(NEIGHBOUR)).ok()?;
    stream.write_all(b"GET /status HTTP/1.1\r\nhost: podperf\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (_, body) = answer.split_once("\r\n\r\n")?;
    body.lines().next().filter(|line| line.starts_with("podperf ")).map(str::to_owned)
}
