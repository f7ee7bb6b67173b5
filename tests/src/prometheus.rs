//! A real Prometheus that scrapes one agent, asked over its HTTP API.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde::Deserialize;
use tempfile::TempDir;

use crate::{agent::Sample, http, process};

const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// A running Prometheus; ended on drop.
#[derive(Debug)]
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    directory: TempDir,
}

#[derive(Deserialize)]
struct Answer {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

/// An instant vector's element: a time and a number, the latter as text.
#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

impl Prometheus {
    /// Starts it: it scrapes `target` once a second. It answers queries a moment later.
    pub fn start(target: SocketAddr) -> Result<Self> {
        let directory = TempDir::new()?;
        let config = directory.path().join("prometheus.yml");
        fs::write(
            &config,
            format!(
                "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
                 scrape_configs: [{{job_name: podperf, static_configs: [{{targets: ['{target}']}}]}}]\n"
            ),
        )?;
        let address = http::free_address()?;
        let mut command = Command::new("prometheus");
        process::bind_to_parent(&mut command);
        let child = command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(directory.path().join("log"))?)
            .spawn()
            .context("failed to start prometheus")?;
        Ok(Self { child, address, directory })
    }

    /// The series of an instant query.
    pub fn query(&self, query: &str) -> Result<Vec<Sample>> {
        let mut encoded = String::new();
        for byte in query.bytes() {
            write!(encoded, "%{byte:02X}")?;
        }
        let (status, body) = http::get_text(self.address, &format!("/api/v1/query?query={encoded}"))?;
        ensure!(status == 200, "prometheus answered {status} to `{query}`: {body}");
        let answer: Answer = serde_json::from_str(&body).with_context(|| format!("failed to parse `{body}`"))?;
        answer
            .data
            .result
            .into_iter()
            .map(|Series { mut metric, value }| {
                let name = metric.remove("__name__").unwrap_or_default();
                Ok(Sample { name, labels: metric, value: value.1.parse()? })
            })
            .collect()
    }

    /// What it has logged so far.
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
