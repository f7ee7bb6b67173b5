//! Other programs check the agent's requests: a real Collector reports requests that it refused, and the profiling
//! group's own checker reads requests as they are on the wire.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics},
    cgroup::TestCgroup,
    collector::{Collector, Kind, Taken},
    command::load_command,
    http, process,
    suite::{self, Test, tell, within},
    tests,
};
use tempfile::TempDir;

use crate::profiles::{DEADLINE, GO};

pub(crate) const TESTS: &[Test] = tests![
    #[beside] a_collector_accepts_all_that_it_is_sent: &[GO],
    #[land] #[beside] a_request_that_a_collector_refuses_is_found: &[GO],
    #[beside] requests_in_the_shape_of_each_preset_pass_profcheck: &[GO] => requests_pass_profcheck,
    #[beside] profcheck_refuses_tables_that_have_rows_twice: &[GO],
];

/// The time for which an agent sends over each protocol.
const SHORT: Duration = Duration::from_secs(8);
const LONG: Duration = Duration::from_secs(5 * 60);
/// Number of requests of each preset that the test checks.
const REQUESTS: usize = 3;

/// A load that burns and sleeps in turn. Drop ends it.
struct Busy(Child);

impl Busy {
    fn start(cgroup: &TestCgroup) -> Result<Self> {
        let mut command = load_command(cgroup.path(), &["mixed", "--seconds", "1200"])?;
        process::bind_to_parent(&mut command);
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns the agent's counts of profiles: accepted requests, and failures of any kind. It does not count pushed
/// metrics.
fn sent(metrics: &Metrics) -> (f64, f64) {
    let trouble = ["export_failures", "lost_requests", "dropped", "rejected"];
    let trouble = trouble.iter().map(|what| metrics.sum(&format!("podperf_otlp_{what}_total"), &[])).sum();
    (metrics.sum("podperf_otlp_exports_total", &[]), trouble)
}

/// Returns a Collector's counts once they cover the same requests as the agent's counts. The agent sends one request
/// each second.
fn agreed(agent: &Agent, collector: &Collector, kind: Kind) -> Result<Taken> {
    let mut last = None;
    let taken = within(DEADLINE, "the agent and the Collector count the same requests", || {
        let (requests, trouble) = sent(&agent.metrics()?);
        let taken = collector.taken(kind)?;
        ensure!(trouble == 0.0, "the agent says that {trouble} failed: {}", agent.log());
        last = Some((requests, taken));
        let same = kind == Kind::Metrics || requests == taken.requests + taken.failed_requests;
        // Skips a moment in which a request is under way.
        Ok((same && taken.written == taken.accepted).then_some(taken))
    });
    let taken = taken.with_context(|| format!("the agent's requests and what the Collector says: {last:?}"))?;
    taken.ensure_nothing_is_refused()?;
    Ok(taken)
}

fn a_collector_accepts_all_that_it_is_sent() -> Result<()> {
    let duration = if suite::long() { LONG } else { SHORT };
    for protocol in ["grpc", "http/protobuf"] {
        let collector = Collector::start()?;
        let endpoint = if protocol == "grpc" { collector.endpoint() } else { collector.http_endpoint() };
        let agent = Agent::start(&format!(
            "otlp: {{endpoint: '{endpoint}', protocol: {protocol}, compression: gzip, interval: 1s, \
             metrics: {{enabled: true, interval: 1s}}}}\n\
             sensors: {{calls: {{enabled: true}}, histograms: {{enabled: true}}, locks: {{enabled: true}}}}"
        ))?;
        let cgroup = TestCgroup::new("conformance")?;
        let _load = Busy::start(&cgroup)?;
        let start = Instant::now();
        while start.elapsed() < duration {
            thread::sleep(Duration::from_secs(1));
            for kind in [Kind::Profiles, Kind::Metrics] {
                let taken = collector.taken(kind)?;
                ensure!(taken.failed_requests + taken.refused + taken.not_written == 0.0, "{kind:?}: {taken:?}");
            }
        }
        for kind in [Kind::Profiles, Kind::Metrics] {
            let taken = agreed(&agent, &collector, kind).with_context(|| format!("{kind:?} over {protocol}"))?;
            let (Taken { requests, accepted, .. }, seconds) = (taken, start.elapsed().as_secs());
            let items = if kind == Kind::Profiles { "samples of profiles" } else { "points of metrics" };
            tell(&format!(
                "{protocol} for {seconds} s: {requests} requests with {accepted} {items} accepted, {} refused",
                taken.failed_requests + taken.refused + taken.not_written,
            ));
        }
        let samples: usize = collector.profiles()?.iter().map(|profile| profile.samples.len()).sum();
        ensure!(samples > 0, "the Collector wrote no sample down");
    }
    Ok(())
}

/// The Collector's own counts show a request that is not a protobuf message. It looks at the development version of
/// profiles before it reads one.
fn a_request_that_a_collector_refuses_is_found() -> Result<()> {
    let collector = Collector::start()?;
    let address: SocketAddr = collector.http_endpoint().trim_start_matches("http://").parse()?;
    for (kind, path) in [(Kind::Profiles, "/v1development/profiles"), (Kind::Metrics, "/v1/metrics")] {
        let content = "no message";
        let length = content.len().to_string();
        let headers = [("Content-Type", "application/x-protobuf"), ("Content-Length", &length)];
        let (status, _, _) = http::ask(address, &format!("POST {path}"), &headers, content)?;
        ensure!(status == 400, "answered {status}");
        let taken = within(DEADLINE, "it is counted", || {
            Ok(Some(collector.taken(kind)?).filter(|taken| taken.failed_requests > 0.0))
        })?;
        ensure!(taken.ensure_nothing_is_refused().is_err() && taken.accepted == 0.0, "{taken:?}");
    }
    for (version, expected) in [("1", 200), ("2", 400)] {
        let headers = [
            ("Content-Type", "application/x-protobuf"),
            ("Content-Length", "0"),
            ("OTLP-Profiles-Development-Version", version),
        ];
        let (status, _, says) = http::ask(address, "POST /v1development/profiles", &headers, "")?;
        let says = String::from_utf8_lossy(&says).into_owned();
        ensure!(status == expected, "version {version} was answered {status}: {says}");
        ensure!(status == 200 || says.contains("otlp-profiles-development-version"), "{says}");
    }
    Ok(())
}

/// Starts a receiver that keeps the bodies of requests.
fn keeper() -> Result<(SocketAddr, mpsc::Receiver<Vec<u8>>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let (sender, bodies) = mpsc::channel();
    // This thread ends with the test program.
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            thread::spawn(move || keep(&stream, &sender));
        }
    });
    Ok((address, bodies))
}

fn keep(stream: &TcpStream, bodies: &mpsc::Sender<Vec<u8>>) -> Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut length, mut line) = (None, String::new());
        while reader.read_line(&mut line)? > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = Some(value.trim().parse()?);
            }
            line.clear();
        }
        let mut body = vec![0; length.context("no length")?];
        reader.read_exact(&mut body)?;
        bodies.send(body)?;
        (&*stream)
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")?;
    }
}

/// Returns requests with samples from an agent with this preset.
fn requests(preset: &str) -> Result<Vec<Vec<u8>>> {
    let (address, bodies) = keeper()?;
    let _agent = Agent::start(&format!(
        "otlp: {{endpoint: 'http://{address}', protocol: http/protobuf, compression: none, preset: {preset}, interval: 1s}}"
    ))?;
    let cgroup = TestCgroup::new("profcheck")?;
    let _load = Busy::start(&cgroup)?;
    (0..REQUESTS).map(|_| bodies.recv_timeout(DEADLINE).context("no request")).collect()
}

/// Returns whether a request passes profcheck, and profcheck's output.
fn profcheck(request: &[u8]) -> Result<(bool, String)> {
    let built = Command::new(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("collector/profcheck.sh"))
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(built.status.success(), "failed to build profcheck (see above)");
    let directory = TempDir::new()?;
    let file = directory.path().join("request");
    std::fs::write(&file, request)?;
    let binary = String::from_utf8(built.stdout)?;
    let output = Command::new(binary.trim()).args(["-check-dupes", "-check-sample-shapes"]).arg(&file).output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn requests_pass_profcheck() -> Result<()> {
    for preset in ["generic", "pyroscope", "parca", "devfiler"] {
        let requests = requests(preset)?;
        let bytes: usize = requests.iter().map(Vec::len).sum();
        for request in requests {
            let (passed, says) = profcheck(&request)?;
            ensure!(passed, "preset {preset}: {says}");
        }
        tell(&format!("preset {preset}: {REQUESTS} requests of {bytes} bytes together pass profcheck"));
    }
    Ok(())
}

/// Two concatenated messages are one message with the rows of both. The signal forbids the repeated rows.
fn profcheck_refuses_tables_that_have_rows_twice() -> Result<()> {
    let request = requests("generic")?.remove(0);
    let (passed, says) = profcheck(&[&request[..], &request].concat())?;
    ensure!(!passed && says.contains("duplicate"), "{says}");
    Ok(())
}
