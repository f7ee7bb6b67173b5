//! A real Prometheus that scrapes agents, with its HTTP API: the distribution's, and a Prometheus 3.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{agent::Sample, http, process, suite::Need};

const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// The builds of Prometheus that tests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The one on the path. It is a Prometheus 2 in Debian.
    Two,
    /// The one that `tests/prometheus/build.sh` builds.
    Three,
}

impl Version {
    /// The needs of a test with a Prometheus 2.
    pub const TWO: &[Need] = &[Need::Program("prometheus"), Need::Program("promtool")];
    /// The needs of a test with a Prometheus 3, which are those of its build.
    pub const THREE: &[Need] = &[Need::Program("go")];

    /// Returns the path of `prometheus` or `promtool`. Builds Prometheus 3 unless it exists.
    pub fn program(self, name: &str) -> Result<PathBuf> {
        if self == Self::Two {
            return Ok(name.into());
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("prometheus/build.sh");
        let built = Command::new(script).stderr(Stdio::inherit()).output()?;
        ensure!(built.status.success(), "failed to build Prometheus (see above)");
        Ok(Path::new(String::from_utf8(built.stdout)?.trim()).join(name))
    }

    /// Returns the start of its versions, such as `3.`.
    #[must_use]
    pub const fn series(self) -> &'static str {
        match self {
            Self::Two => "2.",
            Self::Three => "3.",
        }
    }
}

/// A running Prometheus, which ends on drop.
#[derive(Debug)]
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    directory: TempDir,
}

#[derive(Deserialize)]
struct Answer<T> {
    data: T,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

/// An element of an instant vector: a time, and a number as text.
#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

#[derive(Deserialize)]
struct Ranges {
    result: Vec<Range>,
}

/// An element of a range vector.
#[derive(Deserialize)]
struct Range {
    metric: BTreeMap<String, String>,
    values: Vec<(f64, String)>,
}

/// The labels of a series, and its values with their times in milliseconds.
pub type History = (BTreeMap<String, String>, Vec<(u64, f64)>);

impl Prometheus {
    /// Starts a Prometheus 2 that scrapes `target` once a second. It answers queries a moment later.
    pub fn start(target: SocketAddr) -> Result<Self> {
        Self::start_as(Version::Two, target)
    }

    /// Starts a Prometheus of this version that scrapes `target` once a second.
    pub fn start_as(version: Version, target: SocketAddr) -> Result<Self> {
        Self::launch(version, &each_second(target), None, &[])
    }

    /// Starts a Prometheus that scrapes `target` once a second, and takes native histograms.
    pub fn start_native(version: Version, target: SocketAddr) -> Result<Self> {
        let mut config = each_second(target);
        // Prometheus has this key since 3.8, and ignores the feature since 3.9.
        if version == Version::Three {
            config["global"]["scrape_native_histograms"] = true.into();
            return Self::launch(version, &config, None, &[]);
        }
        Self::launch(version, &config, None, &["--enable-feature=native-histograms"])
    }

    /// Starts a Prometheus 2 with a configuration and, if given, the text of a rule file.
    pub fn start_with(config: &Value, rules: Option<&str>) -> Result<Self> {
        Self::launch(Version::Two, config, rules, &[])
    }

    fn launch(version: Version, config: &Value, rules: Option<&str>, arguments: &[&str]) -> Result<Self> {
        let directory = TempDir::new()?;
        let mut config = config.clone();
        if let Some(rules) = rules {
            let file = directory.path().join("rules.yml");
            fs::write(&file, rules)?;
            config["rule_files"] = json!([file]);
        }
        let file = directory.path().join("prometheus.yml");
        // JSON is YAML.
        fs::write(&file, config.to_string())?;
        let address = http::free_address()?;
        let mut command = Command::new(version.program("prometheus")?);
        process::bind_to_parent(&mut command);
        let child = command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(directory.path().join("log"))?)
            .spawn()
            .context("failed to start prometheus")?;
        Ok(Self { child, address, directory })
    }

    /// Returns the address of the server.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the version that the server reports, such as `2.42.0`.
    pub fn version(&self) -> Result<String> {
        let build: BTreeMap<String, String> = self.ask("status/buildinfo")?;
        build.get("version").cloned().context("no version")
    }

    /// Returns the series of an instant query.
    pub fn query(&self, query: &str) -> Result<Vec<Sample>> {
        let data: Data = self.ask(&format!("query?query={}", encoded(query)))?;
        data.result
            .into_iter()
            .map(|Series { mut metric, value }| {
                let name = metric.remove("__name__").unwrap_or_default();
                Ok(Sample { name, labels: metric, value: value.1.parse()? })
            })
            .collect()
    }

    /// Returns all scraped values of the series of a range vector, such as `up[10m]`.
    pub fn history(&self, range: &str) -> Result<Vec<History>> {
        let ranges: Ranges = self.ask(&format!("query?query={}", encoded(range)))?;
        let value = |(time, value): (f64, String)| -> Result<(u64, f64)> {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "since 1970")]
            Ok(((time * 1000.0).round() as u64, value.parse()?))
        };
        let series = |Range { metric, values }: Range| -> Result<History> {
            Ok((metric, values.into_iter().map(value).collect::<Result<_>>()?))
        };
        ranges.result.into_iter().map(series).collect()
    }

    /// Returns the values of a label in the series of a selector.
    pub fn label_values(&self, selector: &str, label: &str) -> Result<Vec<String>> {
        self.ask(&format!("label/{label}/values?match[]={}", encoded(selector)))
    }

    /// Returns the data in the API's answer.
    fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let (status, body) = http::get_text(self.address, &format!("/api/v1/{path}"))?;
        ensure!(status == 200, "prometheus answered {status} to `{path}`: {body}");
        let answer: Answer<T> = serde_json::from_str(&body).with_context(|| format!("failed to parse `{body}`"))?;
        Ok(answer.data)
    }

    /// Returns the log up to now.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        process::end(&mut self.child, Signal::SIGTERM, STOP_DEADLINE);
    }
}

/// Returns a configuration that scrapes `target` once a second.
fn each_second(target: SocketAddr) -> Value {
    let scrape = json!({"job_name": "podperf", "static_configs": [{"targets": [target]}]});
    let global = json!({"scrape_interval": "1s", "scrape_timeout": "1s"});
    json!({"global": global, "scrape_configs": [scrape]})
}

/// Returns the text in the form of a request's parameter.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
