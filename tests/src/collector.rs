//! A real OpenTelemetry Collector. It receives profiles and metrics on its own ports and writes them to files, which
//! this module reads.

mod telemetry;
mod wire;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::{agent::Metrics, http, process, suite::within};
pub use telemetry::{Kind, Taken};

const START_DEADLINE: Duration = Duration::from_secs(30);
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// A running Collector, which ends on drop.
#[derive(Debug)]
pub struct Collector {
    child: Child,
    grpc: SocketAddr,
    http: SocketAddr,
    telemetry: SocketAddr,
    scheme: &'static str,
    directory: TempDir,
}

/// One profile that the Collector has received.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The profile's id, in hex.
    pub id: String,
    /// The number of the request that contained the profile, from 0.
    pub request: usize,
    /// The resource's attributes.
    pub resource: BTreeMap<String, String>,
    /// The type of the samples: `off_cpu` or `samples`.
    pub sample_type: String,
    /// The samples of the profile.
    pub samples: Vec<Sample>,
}

/// One sample of a profile.
#[derive(Clone, Debug)]
pub struct Sample {
    /// `podperf.offcpu.state`.
    pub state: String,
    /// `podperf.offcpu.reason`.
    pub reason: String,
    /// The value in nanoseconds.
    pub value: u64,
    /// The frames, leaf first.
    pub frames: Vec<Frame>,
}

/// One frame of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// `profile.frame.type`.
    pub kind: String,
    /// The name of the function; empty without a name.
    pub function: String,
    /// The path of the file that contains the frame; empty if unknown.
    pub file: String,
    /// `process.executable.build_id.gnu` of that file.
    pub build_id: String,
    /// `process.executable.build_id.htlhash` of that file.
    pub htlhash: String,
}

impl Collector {
    /// Builds the Collector if necessary, starts it, and waits until it accepts connections.
    pub fn start() -> Result<Self> {
        Self::start_with(None)
    }

    /// Starts it with TLS. The directory has `server.crt`, `server.key`, and `ca.crt` of the clients that may connect.
    pub fn start_secure(certificates: &Path) -> Result<Self> {
        Self::start_with(Some(certificates))
    }

    /// Starts one with config/otel-collector.yaml. It logs the received data, and forwards them to another Collector.
    pub fn start_example(backend: &Self) -> Result<Self> {
        let configs = [sources().join("../../config/otel-collector.yaml"), sources().join("example.yaml")];
        Self::start_by(&configs, "http", |command| {
            command.env("OTLP_BACKEND", backend.grpc.to_string());
        })
    }

    fn start_with(certificates: Option<&Path>) -> Result<Self> {
        let config = sources().join("config.yaml");
        match certificates {
            None => Self::start_by(&[config], "http", |_| ()),
            Some(directory) => Self::start_by(&[config, sources().join("tls.yaml")], "https", |command| {
                command.env("TLS_DIRECTORY", directory);
            }),
        }
    }

    fn start_by(configs: &[PathBuf], scheme: &'static str, change: impl FnOnce(&mut Command)) -> Result<Self> {
        let built = Command::new(sources().join("build.sh")).stderr(Stdio::inherit()).output()?;
        ensure!(built.status.success(), "failed to build the Collector (see above)");
        let binary = String::from_utf8(built.stdout)?;

        let directory = TempDir::new()?;
        let [grpc, http, telemetry] = [http::free_address()?, http::free_address()?, http::free_address()?];
        let mut command = Command::new(binary.trim());
        process::bind_to_parent(&mut command);
        for config in configs {
            command.arg("--config").arg(config);
        }
        command
            .arg("--feature-gates=+service.profilesSupport")
            .env("OTLP_ENDPOINT", grpc.to_string())
            .env("OTLP_HTTP_ENDPOINT", http.to_string())
            .env("TELEMETRY_PORT", telemetry.port().to_string())
            .env("OUTPUT", directory.path().join("profiles.json"))
            .env("METRICS_OUTPUT", directory.path().join("metrics.json"));
        change(&mut command);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(directory.path().join("log"))?)
            .spawn()
            .context("failed to start the Collector")?;
        let mut collector = Self { child, grpc, http, telemetry, scheme, directory };
        within(START_DEADLINE, "the Collector listens", || {
            if let Some(status) = collector.child.try_wait()? {
                bail!("the Collector ended ({status}):\n{}", collector.log());
            }
            Ok([grpc, http].iter().all(|address| TcpStream::connect(address).is_ok()).then_some(()))
        })
        .with_context(|| collector.log())?;
        Ok(collector)
    }

    /// Returns the address for gRPC.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.grpc
    }

    /// Returns the value for `otlp.endpoint`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.grpc)
    }

    /// Returns the value for `otlp.endpoint` with `otlp.protocol: http/protobuf`.
    #[must_use]
    pub fn http_endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.http)
    }

    /// Returns the newest value of each series of a metric, by its attributes as `key=value` in the order of the keys.
    pub fn metric(&self, name: &str) -> Result<BTreeMap<String, f64>> {
        let text = fs::read_to_string(self.directory.path().join("metrics.json")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut series = BTreeMap::new();
        for line in whole.lines() {
            let request: wire::MetricsRequest =
                serde_json::from_str(line).context("failed to parse what the Collector wrote")?;
            series.extend(request.series(name));
        }
        Ok(series)
    }

    /// Returns all profiles that have arrived up to now.
    pub fn profiles(&self) -> Result<Vec<Profile>> {
        let text = self.text();
        let mut profiles = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let request: wire::Request =
                serde_json::from_str(line).context("failed to parse what the Collector wrote")?;
            profiles.extend(request.profiles(number)?);
        }
        Ok(profiles)
    }

    /// Returns the profiles as the Collector wrote them, in JSON: a line for each request.
    #[must_use]
    pub fn text(&self) -> String {
        let written = fs::read(self.directory.path().join("profiles.json")).unwrap_or_default();
        // The last line may still be incomplete, and end amid a number or a letter.
        let whole = written.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        String::from_utf8_lossy(&written[..whole]).into_owned()
    }

    /// Returns the waits that have arrived for one cgroup, in no order.
    pub fn samples_of(&self, cgroup: &str) -> Result<Vec<Sample>> {
        let waits = |profile: &Profile| profile.sample_type == "off_cpu" && profile.is_of(cgroup);
        Ok(self.profiles()?.into_iter().filter(waits).flat_map(|profile| profile.samples).collect())
    }

    /// Returns the Collector's log up to now.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        process::end(&mut self.child, Signal::SIGTERM, STOP_DEADLINE);
    }
}

/// Returns the directory of the Collector's build and configurations.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("collector")
}

impl Profile {
    /// Returns whether it is one of the cgroup with this path.
    #[must_use]
    pub fn is_of(&self, cgroup: &str) -> bool {
        self.resource.get("podperf.cgroup.path").is_some_and(|path| path == cgroup)
    }
}

/// Returns all samples of the profiles, and what the agent left out: for the error of a test that misses waits.
#[must_use]
pub fn listed(profiles: &[Profile], metrics: &Metrics) -> String {
    let is_told = |name: &str| ["podperf_bpf_drops_total", "podperf_overhead_shed"].contains(&name);
    let left_out: Vec<_> = metrics.samples().iter().filter(|it| is_told(&it.name) && it.value > 0.0).collect();
    let samples = profiles.iter().flat_map(|profile| profile.samples.iter().map(|sample| (profile.request, sample)));
    let samples: Vec<_> = samples
        .map(|(request, it)| format!("{request} {} {} {:?} {:?}", it.value, it.reason, it.state, it.functions()))
        .collect();
    format!("left out: {left_out:?}, samples:\n{}\n", samples.join("\n"))
}

impl Sample {
    /// Returns the names of the frames, leaf first.
    #[must_use]
    pub fn functions(&self) -> Vec<&str> {
        self.frames.iter().map(|frame| frame.function.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_with_its_strings_in_either_place() {
        let request = r#"{"resourceProfiles":[{"resource":{"attributes":[
              {"keyStrindex":1,"value":{"stringValueStrindex":2}},{"key":"a","value":{"stringValue":"b"}}]},
            "scopeProfiles":[{"profiles":[{"profileId":"0f","sampleType":{"typeStrindex":4},"samples":[
              {"stackIndex":1,"attributeIndices":[1],"values":["5"]},{"values":["7"]}]}]}]}],
          "dictionary":{"stringTable":["","podperf.cgroup.path","/x","podperf.offcpu.state","schedule"],
            "attributeTable":[{},{"keyStrindex":3,"value":{"stringValue":"interruptible"}}],
            "stackTable":[{},{"locationIndices":[1,2]}],
            "locationTable":[{},{"lines":[{"functionIndex":1}]},{}],"functionTable":[{},{"nameStrindex":4}]}}"#;
        let request: wire::Request = serde_json::from_str(request).expect("a request");
        let profile = request.profiles(0).expect("profiles").remove(0);
        assert_eq!((profile.id.as_str(), profile.sample_type.as_str()), ("0f", "schedule"));
        assert_eq!(profile.resource["podperf.cgroup.path"], "/x");
        assert_eq!(profile.resource["a"], "b");
        assert_eq!(profile.samples[0].functions(), ["schedule", ""]);
        assert_eq!((profile.samples[0].state.as_str(), profile.samples[0].value), ("interruptible", 5));
        assert_eq!((profile.samples[1].frames.len(), profile.samples[1].value), (0, 7));
    }

    #[test]
    fn the_series_of_a_metric_are_read_by_their_attributes() {
        let request = r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[
          {"name":"a","sum":{"dataPoints":[{"attributes":[{"key":"y","value":{"stringValue":"1"}},
            {"key":"x","value":{"stringValue":"2"}}],"asInt":"7"},{"asDouble":1.5}]}},
          {"name":"b","sum":{"dataPoints":[{"asInt":"9"}]}}]}]}]}"#;
        let request: wire::MetricsRequest = serde_json::from_str(request).expect("a request");
        assert_eq!(request.series("a"), [("x=2 y=1".to_owned(), 7.0), (String::new(), 1.5)]);
    }
}
