//! Commands and files of the pages and of `config` for a running agent: requests by `curl`, and a scrape configuration.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    cluster::{Cluster, NODE, ONCPU, SHOP},
    control_plane::NEEDS,
    http, pages,
    prometheus::Prometheus,
    rules::{self, root},
    served::Served,
    suite::{Need, Test, within},
    tests,
};
use serde_json::{Value, json};

use crate::counted::CountedNode;

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] every_curl_of_the_pages_is_answered: &[NEEDS[0], NEEDS[1], Need::Program("curl")],
    #[land] #[beside] the_example_for_prometheus_calls_agents_by_their_nodes_and_pods_as_they_do: &[NEEDS[0], NEEDS[1], Need::Program("prometheus")],
];

const DEADLINE: Duration = Duration::from_secs(60);
/// The agent's address on the pages.
const ADDRESS: &str = "localhost:9799";
/// The agent's own pod.
const AGENT: &str = "podperf-x7k2p";

/// Requests that need hardware counters go to a node with hardware counters and invented readings.
fn every_curl_of_the_pages_is_answered() -> Result<()> {
    let cluster = Cluster::start("", "stacks: {enabled: true}")?;
    let finished = cluster.run_once("cart", "web")?;
    cluster.wait_for_cpu("cart", "web", finished.cpu)?;
    let node = CountedNode::new()?;
    let counted = Served::start(move || node.scrape().unwrap_or_else(|error| format!("{error:#}")))?;
    let (mut count, mut by_counters) = (0, 0);
    for command in pages::commands()?.iter().filter(|command| command.program() == "curl") {
        let needs_counters = command.text.contains("_cpu_cycles_total");
        let address = if needs_counters { counted.address() } else { cluster.agent.address() };
        ensure!(command.text.contains(ADDRESS), "{}: `{}` asks somebody else", command.page, command.text);
        let output = Command::new("sh").arg("-c").arg(command.text.replace(ADDRESS, &address.to_string())).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success() && !said.is_empty(), "{}: `{}`: {output:?}", command.page, command.text);
        if needs_counters {
            // The lowest value comes first.
            ensure!(said.starts_with("0.51  ") && said.lines().next().is_some_and(|it| it.contains("web-4")), "{said}");
            let pods = said.lines().filter(|line| line.contains("pod=")).count();
            ensure!(pods == 7, "{pods} pods instead of 7: {said}");
            by_counters += 1;
        }
        count += 1;
    }
    ensure!(count > 5 && by_counters > 0, "only {count} commands, {by_counters} of them with counters");
    Ok(())
}

/// The targets are static, because Debian's Prometheus was built without Kubernetes. They have the labels of
/// Kubernetes' service discovery.
fn the_example_for_prometheus_calls_agents_by_their_nodes_and_pods_as_they_do() -> Result<()> {
    let cluster = Cluster::start("", "stacks: {enabled: true}")?;
    let finished = cluster.run_once("cart", "web")?;
    cluster.wait_for_cpu("cart", "web", finished.cpu)?;
    let directory = root().join("config").canonicalize()?;
    let mut config: Value = serde_yaml::from_str(&fs::read_to_string(directory.join("prometheus.yaml"))?)?;
    config["global"] = json!({"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"});
    let files = config["rule_files"][0].as_str().context("no rules")?.to_owned();
    config["rule_files"] = json!([directory.join(files)]);
    let job = config["scrape_configs"][0].as_object_mut().context("no job")?;
    job.remove("kubernetes_sd_configs").context("no discovery")?;
    let port = |name: &str| {
        json!({"targets": [cluster.agent.address()], "labels": {
            "__meta_kubernetes_namespace": "podperf",
            "__meta_kubernetes_pod_name": AGENT,
            "__meta_kubernetes_pod_node_name": NODE,
            "__meta_kubernetes_pod_container_port_name": name,
        }})
    };
    job.insert("static_configs".to_owned(), json!([port("http"), port("debug")]));
    let prometheus = Prometheus::start_with(&config, None)?;

    let ask = |query: &str| {
        // Prometheus accepts no connections at first.
        let series = within(DEADLINE, query, || Ok(prometheus.query(query).ok().filter(|series| !series.is_empty())));
        series.with_context(|| prometheus.log())
    };
    let up = ask("up == 1")?;
    ensure!(up.len() == 1, "the other port is scraped, too: {up:?}");
    for (label, value) in
        [("job", "podperf"), ("instance", NODE), ("node", NODE), ("namespace", "podperf"), ("pod", AGENT)]
    {
        ensure!(up[0].labels.get(label).is_some_and(|found| found == value), "`{label}` is not `{value}`: {up:?}");
    }
    // The labels name the measured pod, not the agent's pod.
    ask(&format!("{ONCPU}{{namespace=\"{SHOP}\", pod=\"cart\", container=\"web\", node=\"{NODE}\"}}"))?;

    let (status, loaded) = http::get_text(prometheus.address(), "/api/v1/rules")?;
    ensure!(status == 200, "{status}: {loaded}");
    for rule in rules::read()?.iter().flat_map(|file| &file.rules) {
        ensure!(loaded.contains(&format!("\"name\":\"{}\"", rule.name)), "`{}` is not loaded", rule.name);
    }
    Ok(())
}
