//! The configuration: every key, its default, its check.
//!
//! [`Config`] is the file's form, with the defaults in its `Default`s and nowhere else; [`Settings`] is the checked
//! form that the rest of the agent sees. `config/podperf.yaml` documents each key and equals the defaults.

mod debuginfod;
mod defaults;
mod duration;
mod functions;
mod otlp;
pub mod parts;
mod runner;
mod sensors;
mod server;
pub mod states;
mod testing;
mod text;
mod variables;

use std::{collections::BTreeMap, fs, io, net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use crate::{
    attribution::{Level, RowRules},
    cgroups::{Choice, Patterns, Selection},
    filter::Filter,
    kernel::SampleEvent,
    model::facts::FactFamily,
    pods,
};

use crate::limits::max_memory::MaxMemory;
pub use debuginfod::Debuginfod;
pub use functions::FunctionKeys;
pub use otlp::{Otlp, PushedMetrics, Tls};
pub use runner::Runner;
pub use sensors::SensorKeys;
pub use server::{Authorization, Limits, Server, ServerLimits, ServerTls, TlsFiles, parse_listen};
pub use testing::Testing;
pub use text::{BadText, line_of};

/// The configuration file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Config {
    #[serde(deserialize_with = "server::read_listen")]
    pub listen: SocketAddr,
    pub server: Server,
    pub node_name: String,
    pub log_level: String,
    pub run_dir: PathBuf,
    pub restart: Restart,
    pub cgroups: Cgroups,
    pub identity: Identity,
    pub kubernetes: Kubernetes,
    pub metrics: Metrics,
    pub counters: Counters,
    pub pmu: Pmu,
    pub overhead: Overhead,
    #[serde(deserialize_with = "sensors::read")]
    pub sensors: BTreeMap<String, SensorKeys>,
    pub functions: Vec<FunctionKeys>,
    pub stacks: Stacks,
    pub otlp: Otlp,
    #[serde(skip)]
    pub testing: Testing,
}

/// `restart:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Restart {
    pub pin: bool,
    pub directory: PathBuf,
    pub daemon_set: String,
}

/// `cgroups:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Cgroups {
    pub root: PathBuf,
    pub depth: usize,
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    #[serde(with = "duration")]
    pub grace: Duration,
    pub max: u32,
}

/// `identity:`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Identity {
    /// Kubernetes where the agent runs in a pod, else none.
    Auto,
    /// Pods have their names from the API.
    Kubernetes,
    /// Pods' cgroups are like all others.
    None,
}

/// `kubernetes:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Kubernetes {
    pub source: PodSource,
    pub kubeconfig: PathBuf,
    pub context: String,
    pub kubelet: Kubelet,
    pub pod_labels: Vec<String>,
    pub pod_annotations: Vec<String>,
    #[serde(with = "duration")]
    pub patience: Duration,
}

/// `kubernetes.source:`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PodSource {
    /// The API server, which sends each change at once.
    Watch,
    /// The node's kubelet, which the agent polls.
    Kubelet,
}

/// `kubernetes.kubelet:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Kubelet {
    pub url: String,
    pub ca_file: PathBuf,
    pub insecure_skip_verify: bool,
    #[serde(with = "duration")]
    pub interval: Duration,
}

/// `metrics:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Metrics {
    pub facts: Vec<FactFamily>,
    pub level: Level,
    pub include_namespaces: Vec<String>,
    pub exclude_namespaces: Vec<String>,
    pub max_containers: usize,
    pub created_series: bool,
    pub classic_buckets: bool,
    pub zero_first: bool,
    pub own: OwnSeries,
}

/// `metrics.own:`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnSeries {
    /// The series of the agent itself that alerts, recording rules and the dashboards of pods and nodes need.
    Brief,
    /// All series of the agent itself.
    All,
}

/// `counters:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Counters {
    pub groups: Vec<Vec<String>>,
}

/// `pmu:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Pmu {
    pub leave_free: u32,
    pub multiplex: bool,
}

/// `overhead:`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Overhead {
    pub max_percent: f64,
    pub max_memory: MaxMemory,
    pub interrupt_isolated_cpus: bool,
}

/// `stacks:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Stacks {
    pub enabled: bool,
    #[serde(with = "duration")]
    pub long_wait: Duration,
    #[serde(with = "duration")]
    pub waker_after: Duration,
    pub waker_stacks: bool,
    pub on_cpu_hertz: u32,
    pub on_cpu_event: SampleEvent,
    pub max_walks: u32,
    pub max_samples: u32,
    pub filter: String,
    pub unwind: Unwinding,
    pub debuginfod: Debuginfod,
}

/// `stacks.unwind:`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unwinding {
    /// The agent unwinds copies of user stacks by the tables in the files.
    Tables,
    /// The kernel walks user stacks by frame pointers.
    FramePointers,
    /// Nobody: stacks have no user frames.
    None,
}

/// The smallest `stacks.maxSamples` that can be configured.
pub const LEAST_SAMPLES: u32 = 256;
/// The smallest number of stacks in the stack cache.
const LEAST_STACKS: u32 = 1024;

/// The reasons why a configuration is rejected. The agent then exits with code 2.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file is missing or not readable.
    #[error("failed to read configuration `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The text is no YAML, or has an unknown key or a value of a wrong type.
    #[error("failed to parse configuration `{path}`")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The key or the syntax, with line and column.
        source: BadText,
    },
    /// A key has an impossible value.
    #[error("bad value for `{key}`: {message}")]
    Value {
        /// The key's path.
        key: &'static str,
        /// The error, and the values that are allowed.
        message: String,
    },
    /// `--testing` has an unknown key or an impossible value.
    #[error("bad value for `--testing`: {0} (only tests of podperf use this option: see CONTRIBUTING.md)")]
    Testing(String),
    /// An environment variable has an impossible value.
    #[error("bad value of environment variable `{name}`: {message}")]
    Variable {
        /// The variable.
        name: String,
        /// The error, and the values that are allowed.
        message: String,
    },
}

/// The checked configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The configuration as read, for all keys that need no other form.
    pub config: Config,
    /// The node's name: the configured one, which includes the flag and `$NODE_NAME`, or else the host's name.
    pub node_name: String,
    /// The rules by which pods and cgroups get series of their own.
    pub rules: RowRules,
    /// The filter of profiles.
    pub filter: Filter,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is no YAML, or has an unknown key or a wrong type.
    pub fn read(path: PathBuf) -> Result<Self, ConfigError> {
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text).map_err(|source| ConfigError::Parse { path, source }),
            Err(source) => Err(ConfigError::Read { path, source }),
        }
    }

    /// Sets the keys that the file leaves at their defaults from OpenTelemetry's environment variables.
    ///
    /// # Errors
    ///
    /// When a variable that is used has an impossible value.
    pub fn with_variables(mut self) -> Result<Self, ConfigError> {
        variables::apply(&mut self.otlp, |name| std::env::var(name).ok())?;
        Ok(self)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// When the text is no YAML, or has an unknown key or a wrong type. The error names the place.
    pub fn parse(text: &str) -> Result<Self, BadText> {
        text::read(text)
    }

    /// Returns the number of stacks in the stack cache: two for each sample of the table. A wait at a new place needs an
    /// entry in both, and the cache also keeps the places of earlier samples.
    #[must_use]
    pub fn max_stacks(&self) -> u32 {
        self.testing.max_stacks.unwrap_or_else(|| self.stacks.max_samples.saturating_mul(2).max(LEAST_STACKS))
    }

    /// Returns the keys that differ in `new` and that only a restart can change.
    #[must_use]
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let changed = [
            ("listen", self.listen != new.listen),
            ("server", self.server != new.server),
            ("nodeName", self.node_name != new.node_name),
            ("runDir", self.run_dir != new.run_dir),
            ("restart", self.restart != new.restart),
            ("cgroups.root", self.cgroups.root != new.cgroups.root),
            ("cgroups.max", self.cgroups.max != new.cgroups.max),
            ("identity", self.identity != new.identity),
            ("kubernetes", self.kubernetes != new.kubernetes),
            ("metrics.level", self.metrics.level != new.metrics.level),
            ("counters", self.counters != new.counters),
            ("pmu", self.pmu != new.pmu),
            ("overhead.maxPercent", self.overhead.max_percent != new.overhead.max_percent),
            (
                "overhead.interruptIsolatedCpus",
                self.overhead.interrupt_isolated_cpus != new.overhead.interrupt_isolated_cpus,
            ),
            ("sensors", self.sensors != new.sensors),
            ("functions", self.functions != new.functions),
            ("stacks", self.stacks != new.stacks),
            ("otlp", self.otlp != new.otlp),
        ];
        changed.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
    }
}

impl Stacks {
    /// Returns the time that one sample on the CPU stands for; `None` where no samples are taken.
    #[must_use]
    pub fn sample_period(&self) -> Option<Duration> {
        (self.on_cpu_hertz > 0).then(|| Duration::from_secs(1) / self.on_cpu_hertz)
    }
}

/// Returns the error text for a label that a filter needs and that is not stored for pods.
#[must_use]
pub fn label_not_kept(filter: &Filter, config: &Config) -> Option<String> {
    let kept: Vec<_> = config.kubernetes.pod_labels.iter().map(|key| pods::label_name(key)).collect();
    let label = filter.labels().find(|label| !kept.iter().any(|kept| kept == label))?;
    Some(format!("no label is kept as `{label}` (add it to `kubernetes.podLabels`)"))
}

impl TryFrom<Config> for Settings {
    type Error = ConfigError;

    fn try_from(config: Config) -> Result<Self, ConfigError> {
        let bad = |key: &'static str, message: String| ConfigError::Value { key, message };
        let patterns = |key, list: &[String]| Patterns::new(list).map_err(|error| bad(key, error.to_string()));
        let rules = RowRules {
            selection: Selection {
                depth: config.cgroups.depth,
                paths: Choice {
                    include: patterns("cgroups.include", &config.cgroups.include)?,
                    exclude: patterns("cgroups.exclude", &config.cgroups.exclude)?,
                },
            },
            namespaces: Choice {
                include: patterns("metrics.includeNamespaces", &config.metrics.include_namespaces)?,
                exclude: patterns("metrics.excludeNamespaces", &config.metrics.exclude_namespaces)?,
            },
            level: config.metrics.level,
            max_containers: config.metrics.max_containers,
            grace: config.cgroups.grace,
            zero_first: config.metrics.zero_first,
        };
        EnvFilter::try_new(&config.log_level)
            .map_err(|error| bad("logLevel", format!("{error} (one of error, warn, info, debug, trace)")))?;
        // A single word that is no level would count as a module name, and everything else would be silent.
        let is_filter = config.log_level.contains([',', '=', '[']);
        if !is_filter && config.log_level.parse::<LevelFilter>().is_err() {
            let message = format!("unknown level `{}` (one of error, warn, info, debug, trace)", config.log_level);
            return Err(bad("logLevel", message));
        }
        let filter = Filter::parse(&config.stacks.filter).map_err(|error| bad("stacks.filter", error.to_string()))?;
        if let Some(message) = label_not_kept(&filter, &config) {
            return Err(bad("stacks.filter", message));
        }
        config.otlp.check()?;
        config.stacks.debuginfod.check()?;
        config.server.check()?;
        let daemon_set = &config.restart.daemon_set;
        if !daemon_set.is_empty() && daemon_set.split('/').filter(|part| !part.is_empty()).count() != 2 {
            return Err(bad("restart.daemonSet", format!("`{daemon_set}` (as in `NAMESPACE/NAME`)")));
        }
        sensors::check(&config)?;
        functions::check(&config)?;
        let at_least = [
            ("cgroups.max", config.cgroups.max >= 16, "needs at least 16"),
            // NaN is in no range.
            ("overhead.maxPercent", (0.0..=100.0).contains(&config.overhead.max_percent), "needs 0 to 100"),
            ("pmu.leaveFree", config.pmu.leave_free <= 64, "needs at most 64"),
            ("stacks.maxSamples", config.stacks.max_samples >= LEAST_SAMPLES, "needs at least 256"),
            ("stacks.onCpuHertz", config.stacks.on_cpu_hertz <= 1000, "needs at most 1000"),
            ("otlp.interval", config.otlp.interval >= Duration::from_secs(1), "needs at least 1s"),
            ("otlp.timeout", config.otlp.timeout >= Duration::from_millis(100), "needs at least 100ms"),
            ("otlp.metrics.interval", config.otlp.metrics.interval >= Duration::from_secs(1), "needs at least 1s"),
            ("otlp.queue", config.otlp.queue >= 1, "needs at least 1"),
            (
                "kubernetes.kubelet.interval",
                config.kubernetes.kubelet.interval >= Duration::from_secs(1),
                "needs at least 1s",
            ),
        ];
        if let Some((key, _, message)) = at_least.into_iter().find(|(_, holds, _)| !holds) {
            return Err(bad(key, message.into()));
        }
        let node_name = Some(config.node_name.clone())
            .filter(|name| !name.is_empty())
            .or_else(|| nix::unistd::gethostname().ok().map(|name| name.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "unknown".into());
        Ok(Self { config, node_name, rules, filter })
    }
}

#[cfg(test)]
mod chart_memory;
#[cfg(test)]
mod tests;
