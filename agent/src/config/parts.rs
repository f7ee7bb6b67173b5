//! The settings that the configuration gives each part. The agent and `podperf check` share them. Pure, except for the
//! check whether this is a pod.

use std::{collections::BTreeMap, path::Path};

use caps::Capability;

use super::{Config, ConfigError, Identity, LEAST_SAMPLES, Limits, PodSource, ServerLimits, Unwinding};
use crate::{
    access::AccessSettings,
    cgroups::{Choice, Patterns},
    kernel::{PmuSettings, SensorSettings, host::Host},
    limits::memory::{Budget, Mebi, OWN_BYTES},
    model::{
        duration::nanoseconds,
        functions::{self, Code, Function},
        mode::Mode,
        sensors::{ALL, Sensor},
        settings::SettingValues,
    },
    pods,
};

/// The state of an agent in a PID namespace of its own, and the way out.
pub(super) const UNSEEN_PROCESSES: (&str, &str) =
    ("the node's processes are not visible", "set `hostPID: true`, or in Docker `--pid=host`");

/// Returns whether the agent measures facts. Their metrics need them, and so do stacks (for the length of waits) and
/// sensors (for the cgroup that runs).
#[must_use]
pub fn wants_facts(config: &Config) -> bool {
    !config.metrics.facts.is_empty() || wants_profiles(config) || !sensors(config).is_empty()
}

/// Returns whether stacks are taken.
#[must_use]
pub fn wants_profiles(config: &Config) -> bool {
    config.stacks.enabled
}

/// Returns the mode, which follows from the part of stacks that is taken.
#[must_use]
pub const fn mode(config: &Config) -> Mode {
    match (config.stacks.enabled, config.stacks.unwind) {
        (false, _) => Mode::Metrics,
        (true, Unwinding::None) => Mode::Reasons,
        (true, Unwinding::Tables | Unwinding::FramePointers) => Mode::Profiles,
    }
}

/// Returns whether profiles are sent to a receiver.
#[must_use]
pub fn sends_profiles(config: &Config) -> bool {
    wants_profiles(config) && config.otlp.profiles && !config.otlp.endpoint.is_empty()
}

/// Returns whether pods have names.
#[must_use]
pub fn wants_pods(config: &Config) -> bool {
    match config.identity {
        Identity::Auto => pods::in_cluster(),
        Identity::Kubernetes => true,
        Identity::None => false,
    }
}

/// Returns the settings of the sensors.
#[must_use]
pub fn sensor_settings(config: &Config, host: &Host) -> SensorSettings {
    SensorSettings {
        tracepoint: config.testing.tracepoint,
        facts: wants_facts(config),
        stacks: wants_profiles(config),
        long_wait_ns: nanoseconds(config.stacks.long_wait),
        max_cgroups: config.cgroups.max,
        levels: BTreeMap::new(),
        max_stacks: config.max_stacks(),
        waker_after_ns: nanoseconds(config.stacks.waker_after),
        waker_stacks: config.stacks.waker_stacks,
        max_walks: config.stacks.max_walks,
        copies: copies_stacks(config, host),
        refuse_copies: config.testing.refuse_copies,
        user_frames: config.stacks.unwind != Unwinding::None,
        oncpu_hertz: config.stacks.on_cpu_hertz,
        oncpu_event: config.stacks.on_cpu_event,
        tickless: !host.isolation.nohz_full.is_empty(),
        quiet_cpus: quiet_cpus(config, host),
        shadow: config.testing.shadow,
        max_samples: config.stacks.max_samples,
        sensors: sensors(config),
        values: sensor_values(config),
        pmu: pmu_settings(config, host),
    }
}

/// Returns the CPUs that are not sampled, and not interrupted for a reading.
pub(super) fn quiet_cpus(config: &Config, host: &Host) -> Vec<u32> {
    if config.overhead.interrupt_isolated_cpus { Vec::new() } else { all_isolated(config, host) }
}

/// Returns the CPUs that the machine keeps free for some threads.
pub(super) fn all_isolated(config: &Config, host: &Host) -> Vec<u32> {
    let tested = &config.testing.isolated_cpus;
    if tested.is_empty() { host.isolation.cpus() } else { tested.clone() }
}

/// Returns the sensors that are on. The configuration gives the labels of the sensor `functions`.
#[must_use]
pub fn sensors(config: &Config) -> Vec<&'static Sensor> {
    let names: Vec<String> = functions(config).into_iter().map(|function| function.name).collect();
    let described = |sensor: &'static Sensor| match sensor.names.sensor {
        functions::SENSOR => functions::described(&names).unwrap_or(sensor),
        _ => sensor,
    };
    ALL.into_iter().filter(|sensor| super::sensors::is_on(config, sensor)).map(described).collect()
}

/// Returns the values of the settings of the sensors that are on.
#[must_use]
pub fn sensor_values(config: &Config) -> SettingValues {
    let on = ALL.into_iter().filter(|sensor| super::sensors::is_on(config, sensor));
    on.flat_map(|sensor| super::sensors::values(config, sensor)).collect()
}

/// Returns the tables of the sensors that count only some namespaces, each with these namespaces.
#[must_use]
pub fn sensor_choices(config: &Config) -> Vec<(&'static str, Choice)> {
    let choice = |list: &[String]| Choice { include: Patterns::new(list).unwrap_or_default(), ..Choice::default() };
    sensor_values(config).namespaces().map(|(table, list)| (table, choice(list))).collect()
}

/// Returns the functions that the sensor `functions` measures.
#[must_use]
pub fn functions(config: &Config) -> Vec<Function> {
    super::functions::wanted(config)
}

/// Returns whether some of these functions are of programs, and not of the kernel, or readers may name such functions.
#[must_use]
pub fn probes_programs(config: &Config) -> bool {
    let names_some = functions(config).iter().any(|function| matches!(function.code, Code::Program { .. }));
    names_some || config.server.any_function && mode(config) == Mode::Profiles
}

/// Returns the reason why functions of programs cannot be probed on this machine, with the way out; `None` if they can
/// be.
#[must_use]
pub fn unprobed_programs(host: &Host) -> Option<String> {
    if host.filters_returns() {
        let way = "needs Linux 6.12.20, 6.13.8 or 6.14, or one before 6.11";
        return Some(format!("containers that call it would end on kernel `{}` ({way})", host.kernel));
    }
    lacks_for_tables(host).map(|(what, way)| format!("{what} ({way})"))
}

/// The beginning of the message that [`fit_maps`] returns if it gives up unwind tables.
pub const NO_ROOM_FOR_TABLES: &str = "user stacks are found by frame pointers";

/// Compares the sizes of the maps with the budget. If they fit without those for unwind tables, which are a default,
/// stacks are walked by frame pointers, and a message about that is returned. Else, if the budget is only a share of
/// the container's memory limit, the tables of stacks are reduced, too, and a message about that is returned. The
/// tables of counts keep their sizes, and the agent starts in any case.
///
/// # Errors
///
/// When the maps do not fit a configured budget, not even without those for unwind tables.
pub fn fit_maps(
    config: &mut Config,
    budget: Option<Budget>,
    map_bytes: impl Fn(&Config) -> u64,
) -> Result<Option<String>, ConfigError> {
    let Some(budget) = budget else { return Ok(None) };
    let fits = |config: &Config| map_bytes(config).saturating_add(OWN_BYTES) <= budget.bytes;
    if fits(config) {
        return Ok(None);
    }
    let (maps, own) = (Mebi(map_bytes(config)), Mebi(OWN_BYTES));
    let mut walked = config.clone();
    if walked.stacks.unwind == Unwinding::Tables {
        walked.stacks.unwind = Unwinding::FramePointers;
    }
    // Without stacks, and where the agent cannot copy them, there are no such maps.
    let needs_less = map_bytes(&walked) < map_bytes(config);
    if needs_less && fits(&walked) {
        *config = walked;
        return Ok(Some(format!(
            "{NO_ROOM_FOR_TABLES}: with unwind tables the maps would take {maps}, and the agent some {own} by itself \
             (raise `overhead.maxMemory` or the container's limit, or set `stacks.unwind: frame-pointers`)"
        )));
    }
    if budget.limit.is_none() {
        // A number without a unit is a number of bytes.
        let given = match budget.bytes {
            few if few < 1 << 20 => format!("{few} bytes"),
            bytes => Mebi(bytes).to_string(),
        };
        let message = format!(
            "{given} is too little: maps of the configured sizes take {maps}, and the agent some {own} by itself \
             (raise it, as in `200Mi`, or lower `stacks.maxSamples` or `cgroups.max`)"
        );
        return Err(ConfigError::Value { key: "overhead.maxMemory", message });
    }
    let mut without_tables = String::new();
    if needs_less {
        *config = walked;
        without_tables = format!("{NO_ROOM_FOR_TABLES}, and ");
    }
    while !fits(config) && config.stacks.max_samples != LEAST_SAMPLES {
        config.stacks.max_samples = (config.stacks.max_samples / 2).max(LEAST_SAMPLES);
    }
    let (stacks, samples) = (config.max_stacks(), config.stacks.max_samples);
    let enough = if fits(config) { "" } else { ", which is still too much" };
    Ok(Some(format!(
        "{without_tables}maps of the configured sizes would take {maps}, and the agent some {own} by itself: there is \
         room for {stacks} stacks and {samples} samples{enough} (raise the container's limit, or lower \
         `stacks.maxSamples` or `cgroups.max`)"
    )))
}

/// Returns the settings for sharing the PMU.
#[must_use]
pub fn pmu_settings(config: &Config, host: &Host) -> PmuSettings {
    PmuSettings {
        leave_free: config.pmu.leave_free,
        multiplex: config.pmu.multiplex,
        paranoid: host.perf_event_paranoid,
        watchdog: host.nmi_watchdog && host.cpu_pmu.is_some(),
    }
}

/// Returns the settings of the source of pods.
///
/// # Errors
///
/// The reason why there is no source. The agent runs without one.
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

/// Returns the settings of the access check; `None` where everyone may read.
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

/// Returns the limits of the server.
#[must_use]
pub fn server_limits(config: &Config) -> Limits {
    let ServerLimits { requests_per_second, max_percent } = config.server.limits;
    let (connections, header_timeout) = (config.testing.connections, config.testing.header_timeout);
    Limits { connections, requests_per_second, max_percent, header_timeout }
}

/// Returns whether user stacks are copied, and unwound by tables.
#[must_use]
pub fn copies_stacks(config: &Config, host: &Host) -> bool {
    wants_profiles(config) && config.stacks.unwind == Unwinding::Tables && lacks_for_tables(host).is_none()
}

/// Returns what tables lack on this machine, and the way out; `None` if they lack nothing. Without it most copies could
/// not be unwound, and a walk by frame pointers finds more.
pub(super) fn lacks_for_tables(host: &Host) -> Option<(&'static str, &'static str)> {
    if !host.sees_all_processes {
        return Some(UNSEEN_PROCESSES);
    }
    let may_read = host.has(Capability::CAP_SYS_PTRACE);
    (!may_read).then_some(("other users' processes cannot be read", "give it CAP_SYS_PTRACE"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Stacks, limits::max_memory::MaxMemory};

    /// Returns the size of maps with 1 KiB per stack and 4 MiB of fixed size.
    fn map_bytes(config: &Config) -> u64 {
        (4 << 20) + (u64::from(config.max_stacks()) << 10)
    }

    #[test]
    fn programs_are_probed_where_readers_may_name_their_functions() {
        let probes = |yaml: &str| probes_programs(&Config::parse(yaml).unwrap());
        let any = "sensors: {functions: {enabled: true}}\nserver: {anyFunction: true}";
        assert!(probes(any));
        assert!(!probes(&format!("{any}\nstacks: {{unwind: none}}")), "files of programs are not read");
        assert!(!probes("sensors: {functions: {enabled: true}}\nfunctions: [{name: a, kernel: vfs_read}]"));
    }

    #[test]
    fn maps_that_do_not_fit_a_configured_budget_are_refused_with_the_way_out() {
        let mut config = Config::default();
        assert_eq!(fit_maps(&mut config, Budget::of(MaxMemory::Bytes(56 << 20), None), map_bytes).unwrap(), None);
        assert_eq!(fit_maps(&mut config, None, map_bytes).unwrap(), None);
        let error = fit_maps(&mut config, Budget::of(MaxMemory::Bytes(55 << 20), None), map_bytes).unwrap_err();
        let says = error.to_string();
        assert!(says.starts_with("bad value for `overhead.maxMemory`: 55 MiB is too little: maps"), "{says}");
        assert!(says.contains("36 MiB") && says.contains("20 MiB") && says.contains("`stacks.maxSamples`"), "{says}");
        let error = fit_maps(&mut config, Budget::of(MaxMemory::Bytes(200), None), map_bytes).unwrap_err();
        let says = error.to_string();
        assert!(says.contains("200 bytes is too little") && says.contains("as in `200Mi`"), "{says}");
        assert_eq!(config, Config::default());
    }

    #[test]
    fn unwind_tables_are_given_up_before_stacks_and_before_the_start() {
        let map_bytes =
            |config: &Config| map_bytes(config) + if config.stacks.unwind == Unwinding::Tables { 7 << 20 } else { 0 };
        for budget in [Budget::of(MaxMemory::Bytes(62 << 20), None).unwrap(), Budget::share_of(77 << 20)] {
            let mut config = Config::default();
            config.stacks.unwind = Unwinding::Tables;
            let says = fit_maps(&mut config, Some(budget), map_bytes).unwrap().unwrap();
            assert!(says.starts_with(NO_ROOM_FOR_TABLES) && says.contains("43 MiB"), "{says}");
            let expected = Stacks { unwind: Unwinding::FramePointers, ..Stacks::default() };
            assert_eq!(config.stacks, expected);
        }
        let mut config = Config::default();
        config.stacks.unwind = Unwinding::Tables;
        assert_eq!(fit_maps(&mut config, Budget::of(MaxMemory::Bytes(63 << 20), None), map_bytes).unwrap(), None);
        assert!(fit_maps(&mut config, Budget::of(MaxMemory::Bytes(55 << 20), None), map_bytes).is_err());
        assert_eq!(config.stacks.unwind, Unwinding::Tables);
        // Stacks are made smaller only without tables.
        let says = fit_maps(&mut config, Some(Budget::share_of(41 << 20)), map_bytes).unwrap().unwrap();
        assert!(says.starts_with(NO_ROOM_FOR_TABLES) && says.contains("43 MiB"), "{says}");
        assert!(says.contains("8192 stacks and 4096 samples (raise"), "{says}");
        assert_eq!((config.max_stacks(), config.stacks.unwind), (8192, Unwinding::FramePointers));
    }

    #[test]
    fn maps_that_do_not_fit_a_containers_limit_are_made_smaller_and_the_agent_starts() {
        let mut config = Config::default();
        let says = fit_maps(&mut config, Some(Budget::share_of(41 << 20)), map_bytes).unwrap().unwrap();
        assert_eq!((config.max_stacks(), config.stacks.max_samples), (8192, 4096));
        assert!(says.contains("8192 stacks and 4096 samples (raise"), "{says}");
        assert_eq!(config.cgroups, Config::default().cgroups);
        let says = fit_maps(&mut config, Some(Budget::share_of(20 << 20)), map_bytes).unwrap().unwrap();
        assert_eq!((config.max_stacks(), config.stacks.max_samples), (1024, LEAST_SAMPLES));
        assert!(says.contains("still too much"), "{says}");
    }
}
