//! The dashboards on a real Prometheus that scrapes the real agent, with the recording rules: every query of every
//! panel and variable finds data.
//!
//! If the machine has no hardware counters, exactly the panels that need them are empty on the agent's own node. The
//! test lists these panels. They find data on a second node with invented readings (see `counted`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use podperf_tests::{
    bpffs::Bpffs,
    cluster::{Cluster, NODE, SHOP},
    control_plane::NEEDS,
    dashboards::{self, Dashboard},
    http,
    kubelet::Qos,
    load, process,
    prometheus::Prometheus,
    rules,
    served::Served,
    suite::{Need, Test, is_core_pmu, tell},
    tests,
};
use serde_json::json;
use tempfile::TempDir;

use crate::counted::CountedNode;

pub(crate) const TESTS: &[Test] = tests![
    every_query_of_the_dashboards_finds_data: &[NEEDS[0], NEEDS[1], Need::Program("prometheus")],
];

/// The time limit, longer than the pods need until all recorded series exist.
const DEADLINE: Duration = Duration::from_secs(90);
/// The value of `$__rate_interval`, with a margin: Prometheus scrapes once a second.
const RATE_INTERVAL: &str = "10s";

/// Panels that have a query without data on a machine without hardware counters.
#[rustfmt::skip]
const NEED_COUNTERS: &[(&str, &str)] = &[
    ("podperf-agent", "Share of the time that events are on the PMU"),
    ("podperf-cluster", "Cache misses per thousand instructions"),
    ("podperf-cluster", "IPC by node"),
    ("podperf-cluster", "IPC by node, as a heat map"),
    ("podperf-cluster", "IPC of workloads"),
    ("podperf-cluster", "Outliers among replicas"),
    ("podperf-cluster", "Wasted cores"),
    ("podperf-namespace", "Cache misses per thousand instructions"),
    ("podperf-namespace", "IPC"),
    ("podperf-namespace", "IPC of workloads"),
    ("podperf-namespace", "Its workloads"),
    ("podperf-node", "Cache misses by pod"),
    ("podperf-node", "Cache references by pod"),
    ("podperf-node", "Counted all the time"),
    ("podperf-node", "Cycles by pod"),
    ("podperf-node", "IPC by container"),
    ("podperf-node", "Replicas here beside those elsewhere"),
    ("podperf-pod", "Cycles by container"),
    ("podperf-pod", "IPC by container"),
    ("podperf-pod", "Share of cache references that miss"),
    ("podperf-workload", "Cache misses per thousand instructions"),
    ("podperf-workload", "Cycles per instruction of replicas"),
    ("podperf-workload", "z-score of the farthest replica"),
    ("podperf-workload", "IPC"),
    ("podperf-workload", "Instructions per cycle"),
    ("podperf-workload", "IPC beside the last day"),
    ("podperf-workload", "Wasted cores"),
    ("podperf-workload", "z-score of replicas"),
];

/// Panels that have a query without data on the real node for another reason.
#[rustfmt::skip]
const EMPTY: &[(&str, &str, &str)] = &[
    ("podperf-workload", "All replicas", "IPC needs counters"),
    ("podperf-pod", "Stacks that are cut off or guessed", "those of the loads are whole"),
    ("podperf-node", "CPU time in hard interrupts", "the sensor is off"),
    ("podperf-node", "CPU time in interrupts", "the sensor is off"),
    ("podperf-node", "Hard interrupts", "the sensor is off"),
    ("podperf-node", "Interrupts", "the sensor is off"),
    ("podperf-node", "Work queues", "the sensor is off"),
    ("podperf-node", "Wait of work items for a worker", "the sensor is off"),
    ("podperf-pod", "CPU time, of which in interrupts", "the sensor is off"),
    ("podperf-pod", "Length of calls of functions", "the sensor is off"),
    ("podperf-pod", "Length of system calls", "the sensor is off"),
    ("podperf-pod", "System calls", "the sensor is off"),
    ("podperf-pod", "System calls that fail", "the sensor is off"),
];

/// Loads besides the played kubelet's loads. Drop kills them.
struct Loads(Vec<Child>);

impl Drop for Loads {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Returns the pods' series from other exporters: kube-state-metrics, and cAdvisor where there is a quota. None of the
/// chart's alerts fires within a minute, so the text contains one alert as well.
fn others(pods: &[&str], workload: &str) -> String {
    let mut text = String::new();
    let mut tell = |name: &str, kind: &str, labels: &str, value: u32| {
        text.push_str(&format!("# TYPE {name} {kind}\n{name}{{{labels}}} {value}\n"));
    };
    for (name, kind, more, value) in [
        ("kube_pod_container_status_restarts_total", "counter", "", 3),
        ("kube_pod_container_resource_requests", "gauge", ",resource=\"cpu\",unit=\"core\"", 1),
        ("kube_pod_container_resource_limits", "gauge", ",resource=\"cpu\",unit=\"core\"", 2),
        ("container_cpu_cfs_periods_total", "counter", "", 400),
        ("container_cpu_cfs_throttled_periods_total", "counter", "", 40),
        ("container_cpu_cfs_throttled_seconds_total", "counter", "", 4),
        ("container_pressure_cpu_waiting_seconds_total", "counter", "", 4),
    ] {
        for pod in pods {
            let labels = format!("namespace=\"{SHOP}\",pod=\"{pod}\",container=\"app\"{more}");
            tell(name, kind, &labels, value);
        }
    }
    tell("kube_node_info", "gauge", "os_image=\"Debian GNU/Linux 12\"", 1);
    tell("kube_node_status_allocatable", "gauge", "resource=\"cpu\",unit=\"core\"", 2);
    let alert = "alertname=\"PodperfContainerThrottled\",alertstate=\"firing\",severity=\"warning\"";
    let pod = pods.first().copied().unwrap_or_default();
    let of = format!("{alert},namespace=\"{SHOP}\",pod=\"{pod}\",workload=\"{workload}\"");
    tell("ALERTS", "gauge", &of, 1);
    text
}

/// The two nodes: the cluster, and the chosen value of each variable with a single value.
const CHOICES: [(&str, &[(&str, &str)]); 2] = [
    ("here", &[("node", NODE), ("namespace", SHOP), ("workload", "busy"), ("pod", "busy")]),
    ("counted", &[("node", "n1"), ("namespace", SHOP), ("workload", "web"), ("pod", "held")]),
];

fn every_query_of_the_dashboards_finds_data() -> Result<()> {
    let facts = "metrics: {facts: [oncpu, offcpu, wait_reasons, incomplete_stacks, context_switches]}";
    // Any machine counts a software event.
    let counters = "counters: {groups: [[cycles, instructions], [cache-references, cache-misses], [cpu-clock]]}";
    let otlp = "stacks: {enabled: true}\notlp: {endpoint: 'http://127.0.0.1:1', interval: 2s}";
    let bpffs = Bpffs::mount()?;
    let cluster = Cluster::start("", &format!("{facts}\n{counters}\n{otlp}\n{}", bpffs.yaml()))?;
    let mut pods = Vec::new();
    for name in ["busy", "idle"] {
        let mut pod = cluster.kubelet.pod(SHOP, name, Qos::Burstable, &["app"])?;
        let burns = if name == "busy" { Duration::from_millis(100) } else { Duration::from_millis(10) };
        let running = pod.start("app", burns)?;
        pod.report()?;
        pods.push((running, pod));
    }
    // Three threads on two CPUs. One of these threads also waits for a disk.
    let mut loads = Loads(Vec::new());
    let seconds = (DEADLINE.as_secs() + 30).to_string();
    for arguments in
        [["spin", "--seconds", &seconds], ["spin", "--seconds", &seconds], ["mixed", "--seconds", &seconds]]
    {
        let mut command = Command::new(load::binary()?);
        process::bind_to_parent(&mut command);
        command.args(arguments).arg("--cgroup").arg(pods[0].0.cgroup().path());
        loads.0.push(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?);
    }

    let node = CountedNode::new()?;
    let counted = Served::start(move || node.scrape().unwrap_or_else(|error| format!("{error:#}")))?;
    let of_here = Served::start(|| others(&["busy"], "busy"))?;
    let of_counted = Served::start(|| others(&["held", "web-1"], "web"))?;
    let rules = short_rules()?;
    let target = |address: std::net::SocketAddr, cluster: &str, node: &str| json!({"targets": [address], "labels": {"cluster": cluster, "node": node, "instance": node}});
    let job = |name: &str, here: std::net::SocketAddr, counted: std::net::SocketAddr| {
        let targets = [target(here, "here", NODE), target(counted, "counted", "n1")];
        json!({"job_name": name, "honor_labels": true, "static_configs": targets})
    };
    let config = json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [rules.path().join("*.yaml")],
        "scrape_configs": [
            job("podperf", cluster.agent.address(), counted.address()),
            job("others", of_here.address(), of_counted.address()),
        ],
    });
    let prometheus = Prometheus::start_with(&config, None)?;

    let dashboards = dashboards::read()?;
    for (name, choices) in CHOICES {
        let expected: BTreeSet<String> = if name == "here" { empty_here() } else { BTreeSet::new() };
        let start = Instant::now();
        let (empty, queries) = loop {
            // Prometheus accepts no connections at first, and knows no labels.
            let found = empty_panels(&prometheus, &dashboards, name, choices);
            match found {
                Ok((empty, queries)) if empty == expected || start.elapsed() > DEADLINE => break (empty, queries),
                Err(error) if start.elapsed() > DEADLINE => return Err(error.context(prometheus.log())),
                _ => std::thread::sleep(Duration::from_secs(2)),
            }
        };
        let wrong: Vec<_> = empty.symmetric_difference(&expected).collect();
        ensure!(wrong.is_empty(), "in cluster `{name}`, not as it should be: {wrong:#?}\n{}", prometheus.log());
        tell(&format!("cluster `{name}`: {queries} queries, all with data but some of {} panels", empty.len()));
        EMPTY
            .iter()
            .filter(|_| !empty.is_empty())
            .for_each(|(uid, title, why)| tell(&format!("{uid}: {title}: {why}")));
    }
    let (_, text) = http::get_text(prometheus.address(), "/metrics")?;
    let failures = text.lines().filter(|line| line.starts_with("prometheus_rule_evaluation_failures_total"));
    let failures: Vec<_> = failures.filter(|line| !line.ends_with(" 0")).collect();
    ensure!(failures.is_empty(), "rules failed: {failures:#?}\n{}", prometheus.log());
    Ok(())
}

/// Returns the rules with a day and five minutes that last some seconds: with a rate over five minutes, a new pod's
/// rate would reach a quarter of a CPU only after two minutes. All groups have Prometheus' own interval, a second.
fn short_rules() -> Result<TempDir> {
    let directory = TempDir::new()?;
    for file in rules::read()? {
        let mut lines = file.lines;
        lines.retain(|line| !line.trim_start().starts_with("interval: "));
        let text = lines.join("\n").replace("[1d] offset 1h", "[10s] offset 2s").replace("[5m]", "[10s]");
        fs::write(directory.path().join(&file.name), text + "\n")?;
    }
    Ok(directory)
}

/// Returns the panels without data on the agent's own node for a known reason.
fn empty_here() -> BTreeSet<String> {
    let pmus = fs::read_dir("/sys/bus/event_source/devices").into_iter().flatten().flatten();
    let has_pmu = pmus.into_iter().any(|pmu| is_core_pmu(&pmu.file_name().to_string_lossy()));
    let counters = NEED_COUNTERS.iter().filter(|_| !has_pmu).map(|(uid, title)| format!("{uid}: {title}"));
    counters.chain(EMPTY.iter().map(|(uid, title, _)| format!("{uid}: {title}"))).collect()
}

/// Returns the panels with a query that finds nothing, and the number of queries.
fn empty_panels(
    prometheus: &Prometheus,
    dashboards: &[Dashboard],
    cluster: &str,
    choices: &[(&str, &str)],
) -> Result<(BTreeSet<String>, usize)> {
    let (mut empty, mut count) = (BTreeSet::new(), 0);
    for dashboard in dashboards {
        let mut values: BTreeMap<&str, String> =
            [("__rate_interval", RATE_INTERVAL.to_owned()), ("__range", "1m".to_owned())].into();
        for variable in &dashboard.variables {
            let Some((selector, label)) = &variable.label_values else { continue };
            let found = prometheus.label_values(&substituted(selector, &values)?, label)?;
            // The test uses each cluster alone, although dashboards show all clusters by default.
            let many = variable.json["multi"] == true && variable.name != "cluster";
            let wanted = choices.iter().find(|(name, _)| *name == variable.name).map_or(cluster, |(_, value)| value);
            ensure!(
                many && !found.is_empty() || found.iter().any(|value| value == wanted),
                "{}: `{}` has {found:?}",
                dashboard.uid,
                variable.name
            );
            values.insert(&variable.name, if many { ".+".to_owned() } else { wanted.to_owned() });
        }
        for panel in &dashboard.panels {
            for query in &panel.queries {
                count += 1;
                let series = prometheus.query(&substituted(query, &values)?)?;
                if series.is_empty() {
                    empty.insert(format!("{}: {}", dashboard.uid, panel.title));
                }
            }
        }
    }
    Ok((empty, count))
}

/// Returns a query as Grafana would send it.
fn substituted(query: &str, values: &BTreeMap<&str, String>) -> Result<String> {
    let mut text = query.to_owned();
    // Longer names come first, because one name may begin with another.
    let mut names: Vec<_> = values.keys().collect();
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    for name in names {
        text = text.replace(&format!("${name}"), &values[*name]).replace(&format!("${{{name}}}"), &values[*name]);
    }
    ensure!(!text.contains('$'), "what is `$` in `{text}`?");
    Ok(text)
}
