//! A real OpenTelemetry Collector: takes profiles and metrics on ports of its own and writes them down, and this reads
//! them back.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde::{Deserialize, Deserializer};
use tempfile::TempDir;

use crate::{http, process};

const START_DEADLINE: Duration = Duration::from_secs(30);
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// A running Collector; ended on drop.
#[derive(Debug)]
pub struct Collector {
    child: Child,
    grpc: SocketAddr,
    http: SocketAddr,
    scheme: &'static str,
    directory: TempDir,
}

/// One profile as it arrived.
#[derive(Clone, Debug)]
pub struct Profile {
    /// In hex.
    pub id: String,
    /// The number of the request that it came in, from 0.
    pub request: usize,
    /// The resource's attributes.
    pub resource: BTreeMap<String, String>,
    /// What its samples are: `off_cpu` or `samples`.
    pub sample_type: String,
    /// Its samples.
    pub samples: Vec<Sample>,
}

/// One sample of a profile.
#[derive(Clone, Debug)]
pub struct Sample {
    /// `podperf.offcpu.state`.
    pub state: String,
    /// `podperf.offcpu.reason`.
    pub reason: String,
    /// Nanoseconds.
    pub value: u64,
    /// Leaf first.
    pub frames: Vec<Frame>,
}

/// One frame of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// `profile.frame.type`.
    pub kind: String,
    /// Empty without a name.
    pub function: String,
    /// The path of the file that it lies in; empty when that is unknown.
    pub file: String,
    /// `process.executable.build_id.gnu` of that.
    pub build_id: String,
    /// `process.executable.build_id.htlhash` of that.
    pub htlhash: String,
}

impl Collector {
    /// Builds it if need be, starts it, and waits until it takes connections.
    pub fn start() -> Result<Self> {
        Self::start_with(None)
    }

    /// The same with TLS: the directory has `server.crt`, `server.key` and the `ca.crt` of those who may connect.
    pub fn start_secure(certificates: &Path) -> Result<Self> {
        Self::start_with(Some(certificates))
    }

    /// One with config/otel-collector.yaml, which shows in its log what it takes, and passes it on to another.
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
        let (grpc, http) = (http::free_address()?, http::free_address()?);
        let mut command = Command::new(binary.trim());
        process::bind_to_parent(&mut command);
        for config in configs {
            command.arg("--config").arg(config);
        }
        command
            .arg("--feature-gates=+service.profilesSupport")
            .env("OTLP_ENDPOINT", grpc.to_string())
            .env("OTLP_HTTP_ENDPOINT", http.to_string())
            .env("OUTPUT", directory.path().join("profiles.json"))
            .env("METRICS_OUTPUT", directory.path().join("metrics.json"));
        change(&mut command);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(directory.path().join("log"))?)
            .spawn()
            .context("failed to start the Collector")?;
        let mut collector = Self { child, grpc, http, scheme, directory };
        let start = Instant::now();
        while [grpc, http].iter().any(|address| TcpStream::connect(address).is_err()) {
            if let Some(status) = collector.child.try_wait()? {
                bail!("the Collector ended ({status}):\n{}", collector.log());
            }
            ensure!(start.elapsed() < START_DEADLINE, "the Collector does not listen:\n{}", collector.log());
            thread::sleep(Duration::from_millis(50));
        }
        Ok(collector)
    }

    /// Where it listens for gRPC.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.grpc
    }

    /// What to set `otlp.endpoint` to.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.grpc)
    }

    /// The same for `otlp.protocol: http/protobuf`.
    #[must_use]
    pub fn http_endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.http)
    }

    /// The newest value of each series of a metric, by its attributes as `key=value` in the order of the keys.
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

    /// All profiles that have arrived so far.
    pub fn profiles(&self) -> Result<Vec<Profile>> {
        let text = fs::read_to_string(self.directory.path().join("profiles.json")).unwrap_or_default();
        // The last line may not be written whole yet.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut profiles = Vec::new();
        for (number, line) in whole.lines().enumerate() {
            let request: wire::Request =
                serde_json::from_str(line).context("failed to parse what the Collector wrote")?;
            profiles.extend(request.profiles(number)?);
        }
        Ok(profiles)
    }

    /// The waits that have arrived for one cgroup, in no order.
    pub fn samples_of(&self, cgroup: &str) -> Result<Vec<Sample>> {
        let of_cgroup =
            |profile: &Profile| profile.resource.get("podperf.cgroup.path").is_some_and(|path| path == cgroup);
        let waits = |profile: &Profile| profile.sample_type == "off_cpu" && of_cgroup(profile);
        Ok(self.profiles()?.into_iter().filter(waits).flat_map(|profile| profile.samples).collect())
    }

    /// What it has logged so far.
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

/// Where its build and its configurations are.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("collector")
}

impl Sample {
    /// The names of the frames, leaf first.
    #[must_use]
    pub fn functions(&self) -> Vec<&str> {
        self.frames.iter().map(|frame| frame.function.as_str()).collect()
    }
}

/// OTLP's JSON, as far as it is looked at. Zeros and empty fields are left out in it.
mod wire {
    use anyhow::Context as _;

    use super::{BTreeMap, Deserialize, Deserializer, Frame, Profile as Arrived, Result, Sample as Taken};

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    pub(super) struct Request {
        resource_profiles: Vec<ResourceProfiles>,
        dictionary: Dictionary,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct ResourceProfiles {
        resource: Resource,
        scope_profiles: Vec<ScopeProfiles>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Resource {
        attributes: Vec<Attribute>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ScopeProfiles {
        profiles: Vec<Profile>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Profile {
        profile_id: String,
        sample_type: ValueType,
        samples: Vec<Sample>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct ValueType {
        type_strindex: usize,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Sample {
        stack_index: usize,
        attribute_indices: Vec<usize>,
        #[serde(deserialize_with = "numbers")]
        values: Vec<u64>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Dictionary {
        string_table: Vec<String>,
        attribute_table: Vec<Attribute>,
        stack_table: Vec<Stack>,
        location_table: Vec<Location>,
        mapping_table: Vec<Mapping>,
        function_table: Vec<Function>,
    }

    /// In the clear from the sender; the Collector moves a resource's strings into the dictionary.
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Attribute {
        key: String,
        key_strindex: usize,
        value: Value,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Value {
        string_value: String,
        string_value_strindex: usize,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Stack {
        location_indices: Vec<usize>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Location {
        mapping_index: usize,
        lines: Vec<Line>,
        attribute_indices: Vec<usize>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Mapping {
        filename_strindex: usize,
        attribute_indices: Vec<usize>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Line {
        function_index: usize,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Function {
        name_strindex: usize,
    }

    impl Request {
        pub(super) fn profiles(&self, number: usize) -> Result<Vec<Arrived>> {
            let dictionary = &self.dictionary;
            let mut arrived = Vec::new();
            for resource in &self.resource_profiles {
                let attributes = resource.resource.attributes.iter();
                let attributes: BTreeMap<_, _> =
                    attributes.map(|attribute| dictionary.attribute(attribute)).collect::<Result<_>>()?;
                for profile in resource.scope_profiles.iter().flat_map(|scope| &scope.profiles) {
                    arrived.push(Arrived {
                        id: profile.profile_id.clone(),
                        request: number,
                        resource: attributes.clone(),
                        sample_type: dictionary.string(profile.sample_type.type_strindex)?,
                        samples: profile.samples.iter().map(|it| dictionary.sample(it)).collect::<Result<_>>()?,
                    });
                }
            }
            Ok(arrived)
        }
    }

    impl Dictionary {
        fn sample(&self, sample: &Sample) -> Result<Taken> {
            let stack = at(&self.stack_table, sample.stack_index)?;
            let locations = stack.location_indices.iter().map(|index| at(&self.location_table, *index));
            let frames = locations.map(|location| self.frames(location?)).collect::<Result<Vec<_>>>()?;
            Ok(Taken {
                state: self.attribute_of(&sample.attribute_indices, "podperf.offcpu.state")?,
                reason: self.attribute_of(&sample.attribute_indices, "podperf.offcpu.reason")?,
                value: sample.values.iter().sum(),
                frames: frames.concat(),
            })
        }

        fn frames(&self, location: &Location) -> Result<Vec<Frame>> {
            let kind = self.attribute_of(&location.attribute_indices, "profile.frame.type")?;
            let unknown = Mapping::default();
            let mapping = self.mapping_table.get(location.mapping_index).unwrap_or(&unknown);
            let nameless = Frame {
                kind,
                function: String::new(),
                file: self.string(mapping.filename_strindex)?,
                build_id: self.attribute_of(&mapping.attribute_indices, "process.executable.build_id.gnu")?,
                htlhash: self.attribute_of(&mapping.attribute_indices, "process.executable.build_id.htlhash")?,
            };
            if location.lines.is_empty() {
                return Ok(vec![nameless]);
            }
            let lines = location.lines.iter();
            let functions = lines.map(|line| {
                let function = at(&self.function_table, line.function_index)?;
                Ok(Frame { function: self.string(function.name_strindex)?, ..nameless.clone() })
            });
            functions.collect()
        }

        /// The value of the one of these attributes that has this key; empty when there is none.
        fn attribute_of(&self, indices: &[usize], key: &str) -> Result<String> {
            for index in indices {
                let (found, value) = self.attribute(at(&self.attribute_table, *index)?)?;
                if found == key {
                    return Ok(value);
                }
            }
            Ok(String::new())
        }

        fn attribute(&self, attribute: &Attribute) -> Result<(String, String)> {
            let text = |plain: &str, index| if plain.is_empty() { self.string(index) } else { Ok(plain.to_owned()) };
            let value = &attribute.value;
            Ok((text(&attribute.key, attribute.key_strindex)?, text(&value.string_value, value.string_value_strindex)?))
        }

        fn string(&self, index: usize) -> Result<String> {
            Ok(at(&self.string_table, index)?.clone())
        }
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    pub(super) struct MetricsRequest {
        resource_metrics: Vec<ResourceMetrics>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct ResourceMetrics {
        scope_metrics: Vec<ScopeMetrics>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ScopeMetrics {
        metrics: Vec<Metric>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Metric {
        name: String,
        sum: Sum,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Sum {
        data_points: Vec<Point>,
    }

    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Point {
        attributes: Vec<Attribute>,
        as_double: f64,
        /// A string, as all 64-bit numbers.
        as_int: String,
    }

    impl MetricsRequest {
        pub(super) fn series(&self, name: &str) -> Vec<(String, f64)> {
            let scopes = self.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
            let metrics = scopes.flat_map(|scope| &scope.metrics).filter(|metric| metric.name == name);
            let points = metrics.flat_map(|metric| &metric.sum.data_points);
            points.map(|point| (point.labels(), point.as_int.parse().unwrap_or(point.as_double))).collect()
        }
    }

    impl Point {
        fn labels(&self) -> String {
            let pairs = self.attributes.iter().map(|it| format!("{}={}", it.key, it.value.string_value));
            let mut pairs: Vec<_> = pairs.collect();
            pairs.sort();
            pairs.join(" ")
        }
    }

    fn at<T>(table: &[T], index: usize) -> Result<&T> {
        table.get(index).with_context(|| format!("index {index} is outside a table of {}", table.len()))
    }

    /// 64-bit numbers are strings in protobuf's JSON.
    fn numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
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
