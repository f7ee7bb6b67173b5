//! The cost on a node full of pods: the agent's CPU time for a scrape, the time of a reading, memory, series.
//!
//! A machine without a PMU cannot count the default events, so four software events replace them: they make the same
//! number of series, and the same amount to read. Figures are medians over scrapes that are far enough apart for each
//! to be a reading of its own.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::unistd::Pid;
use podperf_tests::{
    agent::{Agent, Metrics},
    load::ring::Spread,
    process,
    suite::within,
};

use super::{agent::memory_mib, node::Node, progress};

const PODS: usize = 250;
const BESIDE: usize = 5_000;

/// Replaces the four hardware events of the default configuration, in the same number of groups.
const COUNTERS: &str = "counters: {groups: [[cpu-clock, task-clock], [page-faults, minor-faults]]}\n";
/// More than the default of 4,096, so that all 5,000 cgroups have a row.
const ROOM: &str = "cgroups: {max: 16384}\n";
const BY_POD: &str = "metrics: {level: pod}\n";

/// Longer than a reading is reused for scrapes, and longer than a scrape and its aftermath take.
const SCRAPE_EVERY: Duration = Duration::from_millis(1_300);
/// The time after an answer in which the agent frees the memory of the scrape.
const AFTERMATH: Duration = Duration::from_millis(100);
const NAMES_DEADLINE: Duration = Duration::from_secs(60);

/// A format of a scrape: its name, and the value of the `Accept` header.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// The name in the table.
    pub name: &'static str,
    accept: &'static str,
}

const TEXT: Format = Format { name: "text", accept: "text/plain;version=0.0.4" };
const OPEN_METRICS: Format = Format { name: "OpenMetrics", accept: "application/openmetrics-text;version=1.0.0" };
const PROTOBUF: Format = Format {
    name: "protobuf",
    accept: "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
};

/// All rows, and the load of the machine.
#[derive(Clone, Debug)]
pub struct Scale {
    /// The rows, in the order of the table.
    pub rows: Vec<Row>,
    /// The load average over a minute before the node was made: other processes only.
    pub load_before: String,
    /// The load average after the last row, which includes the node's own tasks.
    pub load_after: String,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// The pods and cgroups on the node.
    pub title: &'static str,
    /// The format of the scrapes.
    pub format: Format,
    /// The agent's CPU time for one scrape, the reading and the answer, minus its use at rest in that time.
    pub scrape_ms: Spread,
    /// The CPU time between scrapes, for each second.
    pub rest_ms: f64,
    /// `podperf_scrape_duration_seconds`: flush, reading, roll-up.
    pub reading_ms: Spread,
    /// `VmRSS` after the scrapes.
    pub rss_mib: f64,
    /// `VmHWM`.
    pub peak_mib: f64,
    /// `podperf_exported_series`.
    pub series: f64,
    /// Number of rows in the kernel's table.
    pub table_rows: f64,
    /// Size of the answer in bytes.
    pub bytes: usize,
    /// The time from the agent's start to a scrape with the names of all containers.
    pub names_after: Duration,
}

/// Measures all rows with this number of scrapes each.
pub fn run(program: &Path, scrapes: usize) -> Result<Scale> {
    let load_before = load_average()?;
    let mut node = Node::start()?;
    let mut rows = Vec::new();
    let mut measure = |node: &Node, title, more: &str, formats: &[Format]| -> Result<()> {
        let yaml = node.configuration() + COUNTERS + more;
        let start = Instant::now();
        let mut agent = Agent::start_to_measure(program, &yaml)?;
        let expected = if more == BY_POD { 0 } else { node.containers() };
        wait_for_names(&agent, expected).with_context(|| agent.log())?;
        let names_after = start.elapsed();
        for format in formats {
            progress(&format!("scale: {title}, {}", format.name));
            rows.push(scrape(&agent, title, *format, names_after, scrapes)?);
            agent.check()?;
        }
        Ok(())
    };
    measure(&node, "no pods", "", &[TEXT])?;
    progress(&format!("scale: making {PODS} pods"));
    node.fill(PODS)?;
    measure(&node, FULL, "", &[TEXT, OPEN_METRICS, PROTOBUF])?;
    measure(&node, "the same, level: pod", BY_POD, &[TEXT])?;
    progress(&format!("scale: making {BESIDE} cgroups"));
    node.crowd_beside(BESIDE)?;
    measure(&node, "the same, 5,000 cgroups beside", ROOM, &[TEXT])?;
    Ok(Scale { rows, load_before, load_after: load_average()? })
}

/// The row that the goals apply to.
pub const FULL: &str = "250 pods, 1,000 containers";

fn wait_for_names(agent: &Agent, containers: usize) -> Result<()> {
    within(NAMES_DEADLINE, "all containers have names", || {
        let (_, _, body) = agent.get("/metrics", &[])?;
        let text = String::from_utf8(body)?;
        let named = text.lines().filter(|line| line.starts_with("podperf_container_info{")).count();
        let synced = text.lines().any(|line| line == "podperf_kube_watch_connected 1");
        Ok((synced && named >= containers).then_some(()))
    })
}

fn scrape(agent: &Agent, title: &'static str, format: Format, names_after: Duration, scrapes: usize) -> Result<Row> {
    let cpu = || process::cpu_ns_of(Pid::from_raw(i32::try_from(agent.pid())?));
    let (mut scrape_ms, mut rest_ms, mut reading_ms) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = (0, Metrics::parse(""));
    for _ in 0..scrapes {
        thread::sleep(SCRAPE_EVERY / 2);
        let (rest, at_rest) = (cpu()?, Instant::now());
        thread::sleep(SCRAPE_EVERY / 2);
        let (before, start) = (cpu()?, Instant::now());
        let per_second = ms(before - rest) / (start - at_rest).as_secs_f64();
        let (status, _, body) = agent.get("/metrics", &[("Accept", format.accept)])?;
        thread::sleep(AFTERMATH);
        let (used, took) = (ms(cpu()? - before), start.elapsed());
        ensure!(status == 200, "the agent refused to be scraped");
        scrape_ms.push(used - per_second * took.as_secs_f64());
        rest_ms.push(per_second);
        // Gets the same reading again, in the one format that the benchmark parses.
        last = (body.len(), agent.metrics()?);
        reading_ms.push(1e3 * figure(&last.1, "podperf_scrape_duration_seconds")?);
    }
    let (bytes, metrics) = last;
    let spread = |values| Spread::of(values).context("no scrapes");
    Ok(Row {
        title,
        format,
        scrape_ms: spread(scrape_ms)?,
        rest_ms: spread(rest_ms)?.median,
        reading_ms: spread(reading_ms)?,
        rss_mib: memory_mib(agent.pid(), "VmRSS")?,
        peak_mib: memory_mib(agent.pid(), "VmHWM")?,
        series: figure(&metrics, "podperf_exported_series")?,
        table_rows: figure(&metrics, "podperf_bpf_map_entries")?,
        bytes,
        names_after,
    })
}

fn load_average() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

fn figure(metrics: &Metrics, name: &str) -> Result<f64> {
    metrics.get(name, &[]).with_context(|| format!("no `{name}`"))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn ms(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}
