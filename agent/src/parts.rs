//! What the configuration asks of each part, and what the parts say of themselves: the same in the agent and in
//! `podperf check`. Pure, but for the look whether this is a pod.

use std::{path::Path, time::Duration};

use crate::{
    access::AccessSettings,
    config::{Config, Identity, PodSource},
    kernel::{PmuSettings, SampleEvent, SensorSettings, Tracepoint, host::Host},
    pods,
    status::State,
};

/// Whether stacks are taken.
#[must_use]
pub fn wants_profiles(config: &Config) -> bool {
    config.stacks.enabled && config.facts.enabled
}

/// Whether profiles are sent to a receiver.
#[must_use]
pub fn sends_profiles(config: &Config) -> bool {
    wants_profiles(config) && !config.otlp.endpoint.is_empty()
}

/// Whether pods have names.
#[must_use]
pub fn wants_pods(config: &Config) -> bool {
    match config.identity {
        Identity::Auto => pods::in_cluster(),
        Identity::Kubernetes => true,
        Identity::None => false,
    }
}

/// What the sensors are to do.
#[must_use]
pub fn sensor_settings(config: &Config, host: &Host) -> SensorSettings {
    SensorSettings {
        tracepoint: config.scheduling.tracepoint,
        facts: config.facts.enabled,
        stacks: wants_profiles(config),
        long_wait_ns: nanoseconds(config.stacks.long_wait),
        max_cgroups: config.cgroups.max,
        max_stacks: config.stacks.max_stacks,
        waker_after_ns: nanoseconds(config.stacks.waker_after),
        waker_stacks: config.stacks.waker_stacks,
        max_walks: config.stacks.max_walks,
        oncpu_hertz: config.stacks.on_cpu_hertz,
        oncpu_event: config.stacks.on_cpu_event,
        shadow: config.stacks.shadow,
        max_samples: config.stacks.max_samples,
        pmu: pmu_settings(config, host),
    }
}

/// How the PMU is shared.
#[must_use]
pub fn pmu_settings(config: &Config, host: &Host) -> PmuSettings {
    PmuSettings {
        leave_free: config.pmu.leave_free,
        multiplex: config.pmu.multiplex,
        paranoid: host.perf_event_paranoid,
        watchdog: host.nmi_watchdog && host.cpu_pmu.is_some(),
    }
}

/// Where pods come from.
///
/// # Errors
///
/// Why from nowhere, which is as it should be.
pub fn pod_settings(config: &Config, node_name: &str) -> Result<pods::SourceSettings, &'static str> {
    if !wants_pods(config) {
        return Err(match config.identity {
            Identity::None => "`identity: none`: pods' cgroups are like all others",
            _ => "not in a cluster: pods' cgroups are like all others",
        });
    }
    let kubernetes = &config.kubernetes;
    let path = |path: &Path| (!path.as_os_str().is_empty()).then(|| path.to_owned());
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Ok(pods::SourceSettings {
        source: match kubernetes.source {
            PodSource::Watch => pods::SourceKind::Watch,
            PodSource::Kubelet => pods::SourceKind::Kubelet(pods::KubeletSettings {
                url: text(&kubernetes.kubelet.url),
                ca_file: path(&kubernetes.kubelet.ca_file),
                insecure_skip_verify: kubernetes.kubelet.insecure_skip_verify,
                interval: kubernetes.kubelet.interval,
            }),
        },
        node_name: node_name.to_owned(),
        kubeconfig: path(&kubernetes.kubeconfig),
        context: text(&kubernetes.context),
        labels: kubernetes.pod_labels.clone(),
        annotations: kubernetes.pod_annotations.clone(),
    })
}

/// How to find out who may read; `None` where everybody may.
#[must_use]
pub fn access_settings(config: &Config) -> Option<AccessSettings> {
    let authorization = &config.server.authorization;
    let (kubeconfig, context) = (&config.kubernetes.kubeconfig, &config.kubernetes.context);
    authorization.enabled.then(|| AccessSettings {
        credentials: pods::Credentials::Api {
            kubeconfig: (!kubeconfig.as_os_str().is_empty()).then(|| kubeconfig.clone()),
            context: (!context.is_empty()).then(|| context.clone()),
        },
        audiences: authorization.audiences.clone(),
    })
}

/// What the form of the scheduling tracepoint means, given the one that was wanted.
#[must_use]
pub fn scheduling(wanted: Tracepoint, got: Tracepoint) -> (State, String) {
    match got {
        Tracepoint::Raw if wanted != Tracepoint::Raw => {
            (State::Degraded, "raw tracepoint: wake-ups are told by run times".into())
        }
        _ => (State::Healthy, format!("{got:?} tracepoint").to_lowercase()),
    }
}

/// What becomes of stacks.
#[must_use]
pub fn stacks(config: &Config, host: &Host) -> (State, String) {
    if !config.stacks.enabled {
        return (State::Healthy, "not taken: `stacks.enabled` is false".into());
    }
    if !wants_profiles(config) {
        return (State::Healthy, "not taken: `facts.enabled` is false, and facts measure the waits".into());
    }
    let missing = host.without_names();
    if missing.is_empty() {
        (State::Healthy, "kernel and user stacks of every wait".into())
    } else if sends_profiles(config) {
        (State::Degraded, format!("without {}", missing.join(" and ")))
    } else {
        // Nobody has asked for them yet.
        (State::Healthy, format!("of every wait, without {}", missing.join(" and ")))
    }
}

/// What becomes of samples on the CPU.
#[must_use]
pub fn samples(config: &Config, samples: &Result<Option<SampleEvent>, String>) -> (State, String) {
    match samples {
        Ok(Some(event)) => {
            let event = if *event == SampleEvent::CpuClock { "cpu-clock" } else { "cycles" };
            (State::Healthy, format!("{} a second on each CPU, by {event}", config.stacks.on_cpu_hertz))
        }
        Ok(None) if wants_profiles(config) => (State::Healthy, "not taken: `stacks.onCpuHertz` is 0".into()),
        Ok(None) => (State::Healthy, "not taken: no stacks are".into()),
        Err(error) => (State::Degraded, format!("none: {error}")),
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
