//! The flags that override the configuration file, and the configuration that results.

use std::{
    error::Error,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::Args;
use podperf_ebpf::abi;

use crate::{
    config::{Config, ConfigError, Identity, Settings, Testing, line_of, parse_listen},
    events::{
        self,
        plan::{self, Limits, Plan},
    },
};

/// Headings in the help. Each stands below the flags of the command itself.
pub(super) const KUBERNETES: &str = "Kubernetes";
pub(super) const CONNECTION: &str = "Connection";

/// Options of all commands that run the agent or look at it.
#[derive(Debug, Args)]
pub(super) struct Overrides {
    #[command(flatten)]
    node: NodeOverrides,
    /// Address and port of the HTTP server; port 0 picks a free one [default: 127.0.0.1:9799].
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_listen, help_heading = CONNECTION)]
    listen: Option<SocketAddr>,
    /// The OTLP receiver of profiles [default: none, profiles are not sent].
    #[arg(long, value_name = "URL", help_heading = CONNECTION)]
    otlp_endpoint: Option<String>,
}

/// The options that concern this node, and not the receivers of numbers.
#[derive(Debug, Args)]
pub(super) struct NodeOverrides {
    /// Configuration file [default: built-in defaults].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The cgroup2 mount [default: the first one].
    #[arg(long, value_name = "DIR")]
    cgroup_root: Option<PathBuf>,
    /// The node's name in the cluster; overrides `nodeName` of the file [default: the host name].
    #[arg(long, value_name = "NAME", env = "NODE_NAME", hide_env_values = true, help_heading = KUBERNETES)]
    node_name: Option<String>,
    /// The source of pods' names [default: auto].
    #[arg(long, value_name = "WHERE", help_heading = KUBERNETES)]
    identity: Option<Identity>,
    /// A kubeconfig file [default: the service account of the agent's pod].
    #[arg(long, value_name = "FILE", help_heading = KUBERNETES)]
    kubeconfig: Option<PathBuf>,
    /// A setting that only the tests of podperf change.
    #[arg(long, value_name = "KEY=VALUE", hide = true)]
    testing: Vec<String>,
}

impl Overrides {
    /// Returns the path of the configuration file, if one is set.
    pub(super) fn file(&self) -> Option<&Path> {
        self.node.file()
    }

    /// Returns the file, or the defaults, completed from OpenTelemetry's variables and overridden by the flags. The
    /// result is not yet checked.
    pub(super) fn config(&self) -> Result<Config, ConfigError> {
        let mut file = self.node.config()?;
        // The flag comes before the variables: `OTEL_EXPORTER_OTLP_INSECURE` adds a scheme to an endpoint without one.
        if let Some(endpoint) = &self.otlp_endpoint {
            file.otlp.endpoint.clone_from(endpoint);
        }
        let mut config = file.with_variables()?;
        if let Some(listen) = self.listen {
            config.listen = listen;
        }
        // An empty flag asks for no endpoint, whatever the variables contain.
        if self.otlp_endpoint.as_deref() == Some("") {
            config.otlp.endpoint.clear();
        }
        Ok(config)
    }
}

impl NodeOverrides {
    /// Returns the path of the configuration file, if one is set.
    pub(super) fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Returns the file, or the defaults, overridden by the flags. The result is not yet checked.
    pub(super) fn config(&self) -> Result<Config, ConfigError> {
        let mut config = self.config.clone().map_or_else(|| Ok(Config::default()), Config::read)?;
        if let Some(root) = &self.cgroup_root {
            config.cgroups.root.clone_from(root);
        }
        // An empty variable counts as not set.
        if let Some(name) = self.node_name.as_ref().filter(|name| !name.is_empty()) {
            config.node_name.clone_from(name);
        }
        if let Some(identity) = self.identity {
            config.identity = identity;
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            config.kubernetes.kubeconfig.clone_from(kubeconfig);
        }
        config.testing = Testing::read(&self.testing)?;
        Ok(config)
    }
}

/// Returns the checked configuration. An error names the file and the line that set the value.
pub(super) fn settings(config: Config, file: Option<&Path>) -> anyhow::Result<Settings> {
    Settings::try_from(config).map_err(|error| {
        let key = if let ConfigError::Value { key, .. } = &error { *key } else { "" };
        located(file, key, error)
    })
}

/// Returns the plan of the configured events. An error names the file and the line that set them.
pub(super) fn plan(config: &Config, file: Option<&Path>) -> anyhow::Result<Plan> {
    let limits = Limits { events: abi::PODPERF_MAX_EVENTS as usize, groups: abi::PODPERF_MAX_GROUPS as usize };
    let plan = plan::plan(&config.counters.groups, Path::new(events::SYSFS), limits);
    plan.map_err(|error| located(file, "counters.groups", error))
}

/// Adds the place of a key to an error about its value. A value that comes from a flag is in no file.
fn located(file: Option<&Path>, key: &str, error: impl Error + Send + Sync + 'static) -> anyhow::Error {
    let place = file.and_then(|file| Some((file, line_of(&fs::read_to_string(file).ok()?, key)?)));
    let error = anyhow::Error::new(error);
    match place {
        Some((file, line)) => error.context(format!("`{}` at line {line}", file.display())),
        None => error,
    }
}

/// Returns the configured cgroup2 mount; with `None` the agent searches for one.
pub(super) fn cgroup_root(config: &Config) -> Option<&Path> {
    Some(config.cgroups.root.as_path()).filter(|root| !root.as_os_str().is_empty())
}
