//! A recording without an agent. It uses the same sensors and threads, for as long as the recording lasts.

use std::{
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use thiserror::Error;
use tokio::time::interval;
use tracing_subscriber::EnvFilter;

use super::{
    super::overrides,
    Form, Recorded,
    progress::{EVERY, Progress},
};
use crate::{
    agent::{self, Agent},
    config::{Identity, Server, Settings},
    export::flamegraph,
    kernel::host::{Host, Unsupported},
    limits::max_memory::MaxMemory,
    model::lock::Lock,
    recording::{Registration, Selector, Side, SubjectName, Wanted},
    telemetry::logs::LogCounts,
};

/// Length of a window: short, so that the progress is shown often.
const WINDOW: Duration = Duration::from_secs(1);
/// The longest wait for the names of pods.
const PODS: Duration = Duration::from_secs(20);
/// The longest time for the end of the recording.
const DRAIN: Duration = Duration::from_secs(3);

static LOG_COUNTS: LogCounts = LogCounts::new();

/// No agent answers, and this user may not start the sensors. The command then exits with code 3.
#[derive(Debug, Error)]
#[error(
    "no agent answers at `http://{0}`, and to record alone takes root, or CAP_BPF and CAP_PERFMON (run it as root, or \
     name an agent with `--agent URL`)"
)]
pub(crate) struct NobodyRecords(SocketAddr);

/// Records, and renders the recording.
pub(super) async fn record(settings: Settings, wanted: &Wanted, form: Form) -> anyhow::Result<Recorded> {
    let listen = settings.config.listen;
    let settings = alone(settings, wanted)?;
    let plan = overrides::plan(&settings.config, None)?;
    let host = Host::read(overrides::cgroup_root(&settings.config));
    match host.problems().into_iter().next() {
        None => {}
        Some(Unsupported::Capabilities(_)) => return Err(NobodyRecords(listen).into()),
        Some(problem) => {
            let says = format!("no agent answers at `http://{listen}`, and this machine cannot record alone");
            return Err(anyhow::Error::new(problem).context(says));
        }
    }
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false);
    log.with_env_filter(EnvFilter::new("warn")).init();
    let root = host.cgroup_root.as_deref().unwrap_or(Path::new("/sys/fs/cgroup"));
    let (agent, threads) = agent::start(settings, &plan, &host, root, &LOG_COUNTS)?;
    wait_for_pods(&agent).await;
    let recorded = watched(&agent, wanted, form).await;
    agent::stop(agent, threads, Instant::now() + DRAIN).await;
    recorded
}

/// Returns the configuration of a recording: stacks only, of cgroups as deep as the selector needs, without a receiver.
fn alone(settings: Settings, wanted: &Wanted) -> anyhow::Result<Settings> {
    let mut config = settings.config;
    config.counters.groups.clear();
    // The pins belong to an agent, so a recording pins nothing.
    config.restart.pin = false;
    config.stacks.enabled = true;
    config.otlp.endpoint.clear();
    // The cache of debug files belongs to an agent, too.
    config.stacks.debuginfod.urls.clear();
    // A recording has no server. The list of functions may be empty where readers may name others.
    config.server = Server { any_function: config.server.any_function, ..Server::default() };
    config.otlp.interval = WINDOW;
    // The user asked for the recording, and it is short: no limits.
    config.overhead.max_percent = 0.0;
    config.overhead.max_memory = MaxMemory::None;
    // Nobody reads what sensors count, and a choice of namespaces would need names of pods.
    config.sensors.values_mut().for_each(|keys| keys.settings.clear());
    if wanted.side == Side::Locks {
        config.sensors.entry(Lock::SENSOR.to_owned()).or_default().enabled = true;
    }
    if let Selector::One(SubjectName::Cgroup(path)) | Selector::Below(path) = &wanted.selector {
        config.cgroups.depth = config.cgroups.depth.max(path.matches('/').count());
        // Time of a container that has a name, or waits for one, would not be in its cgroup. In a pod for debugging,
        // which may not ask for pods, it would wait for ever.
        if config.identity == Identity::Auto {
            config.identity = Identity::None;
        }
    }
    Settings::try_from(config).context("failed to configure the recording")
}

/// Waits until the names of pods are known, because the selector needs them. Names that come later are recorded, too.
async fn wait_for_pods(agent: &Agent) {
    let deadline = Instant::now() + PODS;
    while agent.ready().await.is_err() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn watched(agent: &Agent, wanted: &Wanted, form: Form) -> anyhow::Result<Recorded> {
    let registration = agent.enter(None)?;
    let control = registration.control();
    let recording = made(agent, registration, wanted, form);
    tokio::pin!(recording);
    let mut progress = Progress::new(wanted, form, "alone");
    let mut ticks = interval(EVERY);
    loop {
        tokio::select! {
            recorded = &mut recording => return recorded,
            _ = tokio::signal::ctrl_c() => control.end(),
            _ = ticks.tick() => progress.show(control.elapsed(), control.count()),
        }
    }
}

/// Makes the recording, and renders it.
async fn made(agent: &Agent, registration: Registration, wanted: &Wanted, form: Form) -> anyhow::Result<Recorded> {
    Ok(match form {
        Form::Stacks(format) => {
            let merged = agent.record(registration, wanted).await?;
            Recorded { file: flamegraph::render(&merged, format), stacks: flamegraph::stack_sentence(&merged) }
        }
        Form::Calls(format) => {
            let report = agent.record_calls(registration, false, &wanted.selector, wanted.duration).await?;
            Recorded { file: format.render(&report).into_bytes(), stacks: None }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Config, filter::Filter};

    #[test]
    fn a_cgroup_is_recorded_by_its_path_and_a_pod_by_its_name() {
        let config = |subject: &str| {
            let (selector, filter) = (subject.parse().unwrap(), Filter::default());
            let wanted =
                Wanted { selector, side: Side::OffCpu, filter, duration: Duration::from_secs(1), lines: false };
            let config = Config::parse("stacks: {debuginfod: {urls: ['https://x.example']}}").unwrap();
            alone(Settings::try_from(config).unwrap(), &wanted).unwrap().config
        };
        let of_cgroup = config("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/");
        assert_eq!((of_cgroup.identity, of_cgroup.cgroups.depth), (Identity::None, 3));
        let of_pod = config("shop/cart-0");
        assert_eq!((of_pod.identity, of_pod.cgroups.depth), (Identity::Auto, Config::default().cgroups.depth));
        assert!(!of_pod.restart.pin && of_pod.stacks.enabled && of_pod.counters.groups.is_empty());
        assert!(of_pod.stacks.debuginfod.urls.is_empty());
    }
}
