//! Collects the findings: all the I/O of a check. Each part is bounded in time.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use http::{
    Request, Version,
    header::{CONNECTION, HOST},
};

use crate::{
    config::{Config, ConfigError, Settings, parts},
    events::plan::Plan,
    export::otlp,
    kernel::{
        self, OpenCounter, Pins, SampleEvent, SensorSettings, SensorState, Sensors, Tracepoint,
        host::{Host, in_initial_pid_namespace},
        memory::{Limit, map_bytes},
    },
    limits::memory::Budget,
    model::functions::SENSOR,
    pods,
    stacks::probing,
    transport::http::{Client, connector},
};

/// The longest wait for the API server or the kubelet, and for the OTLP receiver. All are asked at the same time.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest wait for the server that has the port.
const NEIGHBOUR: Duration = Duration::from_secs(1);
/// The largest answer that is read from that server, in bytes.
const ANSWER_BYTES: usize = 1 << 20;
/// Number of entries in the kernel's tables. The tables are removed a moment later.
const SMALLEST: u32 = 256;

/// All findings of a check.
#[derive(Debug)]
pub struct Findings {
    /// The features of the machine.
    pub host: Host,
    /// The form in which the scheduling tracepoint was attached, or why not; `None` if the host lacks what that needs.
    pub programs: Option<anyhow::Result<Started>>,
    /// `Ok` if `perf_event_open(2)` is allowed, or else the reason.
    pub perf_event_open: Result<(), String>,
    /// The configured events and the state of each.
    pub counters: Vec<OpenCounter>,
    /// The answer about the node's pods, or the reason why the agent would not start.
    pub pods: Result<Pods, pods::SourceError>,
    /// The answer of the receiver of profiles; `None` without a receiver.
    pub export: Option<Result<(), NoExport>>,
    /// The answer of the receiver of pushed metrics; `None` without a receiver.
    pub metrics_export: Option<Result<(), NoExport>>,
    /// The holder of the address to listen on, or the reason why the agent cannot bind it.
    pub listen: anyhow::Result<Listen>,
    /// The memory budget and the sizes that are reduced for it, or the reason why the agent would not start.
    pub memory: Result<(Option<Budget>, Option<String>), ConfigError>,
    /// The pid of the agent that holds the run directory's lock, or the reason why the lock cannot be taken.
    pub run_dir: anyhow::Result<Option<u32>>,
    /// The number of pinned generations of programs, or the reason why none can be pinned; `None` where pinning is off.
    pub pins: Option<anyhow::Result<usize>>,
}

/// The answer about the node's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pods {
    /// Names of pods are not asked for, and why.
    Off(&'static str),
    /// The outcome of one attempt.
    Tried(pods::Trial),
}

/// The reason why nothing can be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoExport {
    /// The receiver does not take the signal, or not now.
    Receiver(String),
    /// The agent would refuse to start.
    Configuration(String),
}

/// The holder of the address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// The address is free.
    Free,
    /// An agent, with its introduction.
    Podperf(String),
}

impl Findings {
    /// Looks and tries. Must be called on a tokio runtime with time and I/O. `run_dir` is the pid of the agent that
    /// holds the run directory, and `bind` takes the address to listen on.
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

/// Computes the sizes of the maps, as the agent does.
fn try_memory(config: &Config, host: &Host) -> Result<(Option<Budget>, Option<String>), ConfigError> {
    let budget = Budget::of(config.overhead.max_memory, Limit::find().bytes());
    let map_bytes = |config: &Config| map_bytes(&parts::sensor_settings(config, host));
    Ok((budget, parts::fit_maps(&mut config.clone(), budget, map_bytes)?))
}

/// The programs after a successful start.
#[derive(Clone, Debug)]
pub struct Started {
    /// The form in which the scheduling tracepoint was attached.
    pub tracepoint: Tracepoint,
    /// The processes of the whole node are visible here.
    pub sees_all_tasks: bool,
    /// The event that makes samples on the CPU, or the reason why there are no samples.
    pub samples: Result<Option<SampleEvent>, String>,
    /// The error of the program that the kernel refused while it copied stacks.
    pub copies_refused: Option<String>,
    /// The sensors that the configuration turns on.
    pub sensors: Vec<SensorState>,
}

/// Loads and attaches the programs, as the agent does, and removes them again.
fn try_programs(config: &Config, host: &Host) -> anyhow::Result<Started> {
    let settings = SensorSettings {
        max_cgroups: SMALLEST,
        max_stacks: SMALLEST,
        max_samples: SMALLEST,
        ..parts::sensor_settings(config, host)
    };
    let sensors = Sensors::start(&settings, &Plan::default(), None)?;
    let mut states = sensors.sensor_states().to_vec();
    if let Some(probes) = sensors.probes() {
        let tried = probing::try_once(probes, parts::functions(config), parts::unprobed_programs(host));
        let own = states.iter_mut().filter(|of| of.sensor.names.sensor == SENSOR);
        own.for_each(|of| (of.state, of.detail) = tried.clone());
    }
    Ok(Started {
        tracepoint: sensors.tracepoint(),
        sees_all_tasks: in_initial_pid_namespace(),
        samples: sensors.samples(),
        copies_refused: sensors.copies_refused().map(str::to_owned),
        sensors: states,
    })
}

async fn try_pods(config: &Config, node_name: &str) -> Result<Pods, pods::SourceError> {
    match parts::pod_settings(config, node_name) {
        Ok(settings) => pods::try_once(settings, PATIENCE).await.map(Pods::Tried),
        Err(reason) => Ok(Pods::Off(reason)),
    }
}

async fn try_export(config: &Config) -> Option<Result<(), NoExport>> {
    if !parts::sends_profiles(config) {
        return None;
    }
    Some(outcome(otlp::try_profiles(&in_time(config.otlp.settings())).await))
}

async fn try_metrics_export(config: &Config) -> Option<Result<(), NoExport>> {
    if !config.otlp.metrics.enabled {
        return None;
    }
    Some(outcome(otlp::try_metrics(&in_time(config.otlp.metrics_settings())).await))
}

fn in_time(settings: otlp::Settings) -> otlp::Settings {
    otlp::Settings { timeout: settings.timeout.min(PATIENCE), ..settings }
}

fn outcome(tried: Result<Result<(), String>, otlp::EndpointError>) -> Result<(), NoExport> {
    match tried {
        Ok(answer) => answer.map_err(NoExport::Receiver),
        Err(error) => Err(NoExport::Configuration(error.to_string())),
    }
}

/// Binds the address, with the server's certificate if it has one. If the address is in use, asks its holder.
async fn try_listen(listen: SocketAddr, bind: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<Listen> {
    let error = match bind.await {
        Ok(()) => return Ok(Listen::Free),
        Err(error) => error,
    };
    let in_use = error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse);
    if in_use && let Ok(Some(agent)) = tokio::time::timeout(NEIGHBOUR, ask_neighbour(listen)).await {
        return Ok(Listen::Podperf(agent));
    }
    Err(error)
}

/// Returns the first line of the agent's `/status`, if an agent answers.
async fn ask_neighbour(listen: SocketAddr) -> Option<String> {
    let request = Request::get(format!("http://{}/status", reachable(listen)));
    let request = request.header(HOST, "localhost").header(CONNECTION, "close").body(Bytes::new()).ok()?;
    let client = Client::new(connector(None, Version::HTTP_11, None).ok()?, ANSWER_BYTES);
    introduction(&client.send(request).await.ok()?.1.ok()?)
}

/// Returns an address at which a server of this node answers: the loopback if it listens on all addresses. `[::]`
/// includes IPv4, which is there also on a node without IPv6.
pub(crate) fn reachable(mut listen: SocketAddr) -> SocketAddr {
    if listen.ip().is_unspecified() {
        listen.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    listen
}

/// Returns `podperf VERSION on node NAME`, the first line of an agent's `/status`; `None` for other programs.
pub(crate) fn introduction(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    text.lines().next().filter(|line| line.starts_with("podperf ")).map(str::to_owned)
}
