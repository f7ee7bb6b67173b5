//! The configuration: every key, its default, its check.
//!
//! [`Config`] is the file's form, with the defaults in its `Default`s and nowhere else; [`Settings`] is the checked
//! form that the rest of the agent sees. `config/podperf.yaml` documents each key and equals the defaults.

use std::{collections::BTreeMap, fs, io, net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use crate::{
    cgroups::{Selection, SelectionError},
    export::otlp,
    kernel::Tracepoint,
};

/// The configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Config {
    pub listen: SocketAddr,
    pub node_name: String,
    pub log_level: String,
    pub run_dir: PathBuf,
    pub cgroups: Cgroups,
    pub scheduling: Scheduling,
    pub facts: Facts,
    pub counters: Counters,
    pub stacks: Stacks,
    pub otlp: Otlp,
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
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    pub max: u32,
}

/// `scheduling:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Scheduling {
    pub tracepoint: Tracepoint,
}

/// `facts:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Facts {
    pub enabled: bool,
}

/// `counters:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Counters {
    pub enabled: bool,
    pub groups: Vec<Vec<String>>,
}

/// `stacks:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Stacks {
    pub enabled: bool,
    #[serde(with = "humantime_serde")]
    pub long_wait: Duration,
    pub max_stacks: u32,
    pub max_waits: u32,
}

/// `otlp:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Otlp {
    pub endpoint: String,
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    pub queue: usize,
    pub headers: BTreeMap<String, String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9799)),
            node_name: String::new(),
            log_level: "info".into(),
            run_dir: "/run/podperf".into(),
            cgroups: Cgroups::default(),
            scheduling: Scheduling::default(),
            facts: Facts::default(),
            counters: Counters::default(),
            stacks: Stacks::default(),
            otlp: Otlp::default(),
        }
    }
}

impl Default for Cgroups {
    fn default() -> Self {
        Self {
            root: PathBuf::new(),
            depth: 4,
            include: Vec::new(),
            exclude: Vec::new(),
            grace: Duration::from_secs(300),
            max: 4096,
        }
    }
}

impl Default for Scheduling {
    fn default() -> Self {
        Self { tracepoint: Tracepoint::Auto }
    }
}

impl Default for Facts {
    fn default() -> Self {
        Self { enabled: true }
    }
}

impl Default for Counters {
    fn default() -> Self {
        let group = |events: [&str; 2]| events.map(str::to_owned).to_vec();
        Self {
            enabled: true,
            groups: vec![group(["cycles", "instructions"]), group(["cache-references", "cache-misses"])],
        }
    }
}

impl Default for Stacks {
    fn default() -> Self {
        Self { enabled: true, long_wait: Duration::from_millis(500), max_stacks: 32_768, max_waits: 16_384 }
    }
}

impl Default for Otlp {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(5),
            queue: 8,
            headers: BTreeMap::new(),
        }
    }
}

/// What is wrong with a configuration. The agent then exits with code 2.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file is not there, or not readable.
    #[error("failed to read configuration `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not YAML, an unknown key, a wrong type: the library's message has the key's path, line and column.
    #[error("failed to parse configuration `{path}`: {message} (every key is explained in config/podperf.yaml)")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What and where.
        message: String,
    },
    /// A value that cannot be.
    #[error("bad value for `{key}`: {message}")]
    Value {
        /// The key's path.
        key: &'static str,
        /// What is wrong, and what would be right.
        message: String,
    },
}

/// The checked configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// As configured, for all that needs no more than its type.
    pub config: Config,
    /// The node's name: configured, else `$NODE_NAME`, else the host's name.
    pub node_name: String,
    /// Which cgroups are rows.
    pub selection: Selection,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is no YAML, or has an unknown key or a wrong type.
    pub fn read(path: PathBuf) -> Result<Self, ConfigError> {
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text).map_err(|message| ConfigError::Parse { path, message }),
            Err(source) => Err(ConfigError::Read { path, source }),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        // An empty file is a file without changes to the defaults.
        let config: Option<Self> = serde_yaml::from_str(text).map_err(|error| with_nearest_key(&error.to_string()))?;
        Ok(config.unwrap_or_default())
    }

    /// The keys in which `new` differs that only a restart can change.
    #[must_use]
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let changed = [
            ("listen", self.listen != new.listen),
            ("nodeName", self.node_name != new.node_name),
            ("runDir", self.run_dir != new.run_dir),
            ("cgroups.root", self.cgroups.root != new.cgroups.root),
            ("cgroups.max", self.cgroups.max != new.cgroups.max),
            ("scheduling", self.scheduling != new.scheduling),
            ("facts", self.facts != new.facts),
            ("counters", self.counters != new.counters),
            ("stacks", self.stacks != new.stacks),
            ("otlp", self.otlp != new.otlp),
        ];
        changed.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key).collect()
    }
}

impl Otlp {
    /// What the exporter takes.
    #[must_use]
    pub fn settings(&self) -> otlp::Settings {
        otlp::Settings {
            endpoint: self.endpoint.clone(),
            timeout: self.timeout,
            queue: self.queue,
            headers: self.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        }
    }
}

impl TryFrom<Config> for Settings {
    type Error = ConfigError;

    fn try_from(config: Config) -> Result<Self, ConfigError> {
        let bad = |key: &'static str, message: String| ConfigError::Value { key, message };
        let selection = |include: &[String], exclude: &[String]| Selection::new(config.cgroups.depth, include, exclude);
        // Each list alone first: the error is then the list's own.
        let pattern = |key| move |error: SelectionError| bad(key, error.to_string());
        selection(&config.cgroups.include, &[]).map_err(pattern("cgroups.include"))?;
        selection(&[], &config.cgroups.exclude).map_err(pattern("cgroups.exclude"))?;
        let selection =
            selection(&config.cgroups.include, &config.cgroups.exclude).map_err(pattern("cgroups.include"))?;

        EnvFilter::try_new(&config.log_level)
            .map_err(|error| bad("logLevel", format!("{error} (one of error, warn, info, debug, trace)")))?;
        // One word that is no level would be taken for a module, and everything else would be silent.
        let is_filter = config.log_level.contains([',', '=', '[']);
        if !is_filter && config.log_level.parse::<LevelFilter>().is_err() {
            let message = format!("unknown level `{}` (one of error, warn, info, debug, trace)", config.log_level);
            return Err(bad("logLevel", message));
        }
        if !config.otlp.endpoint.is_empty() {
            config.otlp.settings().check().map_err(|error| bad("otlp", error.to_string()))?;
        }
        let at_least = [
            ("cgroups.max", config.cgroups.max >= 16, "needs at least 16"),
            ("stacks.maxStacks", config.stacks.max_stacks >= 1024, "needs at least 1024"),
            ("stacks.maxWaits", config.stacks.max_waits >= 256, "needs at least 256"),
            ("otlp.interval", config.otlp.interval >= Duration::from_secs(1), "needs at least 1s"),
            ("otlp.timeout", config.otlp.timeout >= Duration::from_millis(100), "needs at least 100ms"),
            ("otlp.queue", config.otlp.queue >= 1, "needs at least 1"),
        ];
        if let Some((key, _, message)) = at_least.into_iter().find(|(_, holds, _)| !holds) {
            return Err(bad(key, message.into()));
        }
        if !config.facts.enabled && config.stacks.enabled && !config.otlp.endpoint.is_empty() {
            return Err(bad("stacks.enabled", "stacks need `facts.enabled: true`, which measures the waits".into()));
        }
        let node_name = [config.node_name.clone(), std::env::var("NODE_NAME").unwrap_or_default()]
            .into_iter()
            .find(|name| !name.is_empty())
            .or_else(|| nix::unistd::gethostname().ok().map(|name| name.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "unknown".into());
        Ok(Self { config, node_name, selection })
    }
}

/// Adds the nearest key to the library's ``unknown field `x`, expected one of `a`, `b` at line 3``.
fn with_nearest_key(message: &str) -> String {
    let Some((before, after)) = message.split_once("unknown field `") else { return message.to_owned() };
    let Some((unknown, rest)) = after.split_once('`') else { return message.to_owned() };
    let known = rest.split('`').skip(1).step_by(2);
    let nearest = known.max_by(|a, b| strsim::jaro(unknown, a).total_cmp(&strsim::jaro(unknown, b)));
    let position = rest.rfind(" at line").map_or("", |at| &rest[at..]);
    match nearest {
        Some(nearest) => format!("{before}unknown key `{unknown}`{position} (did you mean `{nearest}`?)"),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../config/podperf.yaml");

    fn refusal(yaml: &str) -> String {
        match Config::parse(yaml) {
            Err(message) => message,
            Ok(config) => Settings::try_from(config).unwrap_err().to_string(),
        }
    }

    #[test]
    fn the_example_equals_the_defaults() {
        assert_eq!(Config::parse(EXAMPLE).unwrap(), Config::default());
    }

    #[test]
    fn the_example_holds_every_key_and_explains_it() {
        fn keys(value: &serde_yaml::Value, prefix: &str, into: &mut Vec<String>) {
            for (key, value) in value.as_mapping().into_iter().flatten() {
                let path = format!("{prefix}{}", key.as_str().unwrap());
                keys(value, &format!("{path}."), into);
                into.push(path);
            }
        }
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        keys(&serde_yaml::to_value(Config::default()).unwrap(), "", &mut expected);
        keys(&serde_yaml::from_str(EXAMPLE).unwrap(), "", &mut found);
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
        let lines: Vec<_> = EXAMPLE.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let is_key = !line.trim_start().starts_with(['#', '-']) && line.contains(':');
            assert!(!is_key || lines[index - 1].trim_start().starts_with('#'), "no comment above `{line}`");
        }
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        assert_eq!(Config::parse("# nothing\n").unwrap(), Config::default());
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_path_and_the_nearest() {
        let message = refusal("cgroups:\n  dept: 3\n");
        assert_eq!(message, "cgroups: unknown key `dept` at line 2 column 3 (did you mean `depth`?)");
    }

    #[test]
    fn a_wrong_type_is_refused_with_its_path() {
        let message = refusal("cgroups:\n  depth: many\n");
        assert!(message.starts_with("cgroups.depth: invalid type: string \"many\""), "{message}");
        let message = refusal("otlp:\n  interval: 10 parsecs\n");
        assert!(message.starts_with("otlp.interval:"), "{message}");
    }

    #[test]
    fn values_that_cannot_be_are_refused_with_their_key() {
        for (yaml, start) in [
            ("otlp: {interval: 10ms}", "bad value for `otlp.interval`: needs at least 1s"),
            ("cgroups: {max: 0}", "bad value for `cgroups.max`"),
            ("cgroups: {exclude: ['(']}", "bad value for `cgroups.exclude`: failed to parse pattern `(`"),
            ("logLevel: '=x='", "bad value for `logLevel`"),
            ("logLevel: loud", "bad value for `logLevel`: unknown level `loud`"),
            ("otlp: {endpoint: 'ftp://x'}", "bad value for `otlp`: endpoint `ftp://x`"),
            ("{facts: {enabled: false}, otlp: {endpoint: 'http://x:1'}}", "bad value for `stacks.enabled`"),
        ] {
            assert!(refusal(yaml).starts_with(start), "{yaml}: {}", refusal(yaml));
        }
    }

    #[test]
    fn keys_that_need_a_restart_are_named() {
        let old = Config::default();
        let mut new = Config { log_level: "debug".into(), ..Config::default() };
        new.cgroups.depth = 1;
        assert!(old.needs_restart(&new).is_empty());
        new.cgroups.max = 17;
        new.listen = SocketAddr::from(([127, 0, 0, 1], 1));
        assert_eq!(old.needs_restart(&new), ["listen", "cgroups.max"]);
    }
}
