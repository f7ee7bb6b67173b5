//! A hanging pod is visible while it hangs: in its times and in the chart's rules. The end of the wait causes no jump.

use std::{
    fmt::Write as _,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    cluster::{Cluster, NODE, SHOP, Spoilt, configuration, is_close},
    control_plane::NEEDS,
    kubelet::Qos,
    load::{self, sleepers::SleepersReport},
    process,
    prometheus::Prometheus,
    rules,
    suite::{Need, Test, long, tell},
    tests,
};
use serde_json::json;

pub(crate) const TESTS: &[Test] = tests![
    #[beside] a_pod_that_hangs_is_told_while_it_does: &[NEEDS[0], NEEDS[1], Need::Program("prometheus")],
];

const OFFCPU: &str = "podperf_container_offcpu_seconds_total";
const POD: &str = "stuck";
/// The length of the wait. The load has one thread.
const HANGS: Duration = Duration::from_secs(90);
const HANGS_LONG: Duration = Duration::from_secs(3600);
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The time between the last check and the end of the wait.
const REST: Duration = Duration::from_secs(10);
/// The largest difference between a series and the clock, in seconds.
const OFF: f64 = 2.0;

fn a_pod_that_hangs_is_told_while_it_does() -> Result<()> {
    let hangs = if long() { HANGS_LONG } else { HANGS };
    let cluster = Cluster::join(Spoilt::start(2 * HANGS_LONG)?, "", "stacks: {enabled: true}")?;
    cluster.wait_for_connection()?;
    let without_stacks = Agent::start(&configuration(&cluster.credentials, NODE, "", "stacks: {enabled: false}"))?;
    let agents = [("stacks", &cluster.agent), ("counts", &without_stacks)];
    let prometheus = scraped_with_the_charts_rules(&agents)?;
    let mut pod = cluster.kubelet.pod(SHOP, POD, Qos::Burstable, &["app"])?;
    let running = pod.start("app", Duration::ZERO)?;
    pod.report()?;
    cluster.wait_for(OFFCPU, &[("namespace", SHOP), ("pod", POD)], |_| true)?;

    let mut hanging = Hanging::start(running.cgroup(), hangs)?;
    let began = now()?;
    let mut last = [Read::default(); 2];
    let mut farthest: f64 = 0.0;
    while now()? - began < hangs - REST {
        thread::sleep(LOOK_EVERY);
        for ((mode, agent), last) in agents.iter().zip(&mut last) {
            *last = Read::of(agent)?;
            let off = last.hung - (last.at - began.as_secs_f64());
            ensure!(off.abs() < OFF, "{mode}: {last:?}, and it hangs since {began:?}");
            farthest = farthest.max(off.abs());
        }
    }
    tell(&format!("a wait of {hangs:?}: its series were at most {farthest:.2} s from the clock"));
    let state = if long() { "firing" } else { "pending" };
    for (mode, _) in agents {
        for query in [
            format!("namespace_pod:podperf_verdict:info{{cluster=\"{mode}\",pod=\"{POD}\",verdict=\"blocked\"}} == 1"),
            format!(
                "ALERTS{{cluster=\"{mode}\",pod=\"{POD}\",alertname=\"PodperfContainerBlockedOffCPU\",alertstate=\"{state}\"}}"
            ),
        ] {
            ensure!(prometheus.query(&query)?.len() == 1, "no `{query}`; {}", told(&prometheus)?);
        }
    }

    let report = hanging.end()?;
    for ((mode, agent), last) in agents.iter().zip(last) {
        let ended = Read::of(agent)?;
        let (grown, passed) = (ended.hung - last.hung, ended.at - last.at);
        ensure!((0.0..passed + OFF).contains(&grown), "{mode}: {grown} s more when it was over, after {passed} s");
        ensure!(is_close(ended.hung, report.blocked()), "{mode}: {ended:?} in all, and it hung for {report:?}");
        let later = Read::of(agent)?;
        ensure!(later.hung <= ended.hung, "{mode}: {ended:?} when it was over, and then {later:?}");
    }
    Ok(())
}

/// One reading of the pod's series.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    /// The time of the reading since the epoch, in seconds.
    at: f64,
    hung: f64,
}

impl Read {
    fn of(agent: &Agent) -> Result<Self> {
        let metrics = agent.fresh_metrics()?;
        let at = metrics.get("podperf_reading_timestamp_seconds", &[]).context("no time of the reading")?;
        Ok(Self { at, hung: metrics.sum(OFFCPU, &[("namespace", SHOP), ("pod", POD), ("state", "uninterruptible")]) })
    }
}

/// A process that waits once, uninterruptibly, from the call of `start` on.
struct Hanging(Child);

impl Hanging {
    fn start(cgroup: &TestCgroup, hangs: Duration) -> Result<Self> {
        let mut command = Command::new(load::binary()?);
        process::bind_to_parent(&mut command);
        command.args(["sleepers", "--wait", "--uninterruptible", "--waits", "1"]);
        command.args(["--millis", &hangs.as_millis().to_string(), "--cgroup"]).arg(cgroup.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut hanging = Self(command.spawn().context("failed to start a load")?);
        hanging.says("ready")?;
        Ok(hanging)
    }

    /// Waits until the process prints this word, and lets it continue.
    fn says(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        let mut stderr = BufReader::with_capacity(1, self.0.stderr.take().context("no stderr")?);
        stderr.read_line(&mut line)?;
        ensure!(line.trim() == word, "a load said `{}` and not `{word}`", line.trim());
        self.0.stderr = Some(stderr.into_inner());
        Ok(self.0.stdin.as_mut().context("no stdin")?.write_all(b"\n")?)
    }

    fn end(&mut self) -> Result<SleepersReport> {
        self.says("done")?;
        let mut text = String::new();
        self.0.stdout.take().context("no stdout")?.read_to_string(&mut text)?;
        serde_json::from_str(&text).context("a load ended without a report")
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts a Prometheus with the chart's rules. Each agent is a cluster of its own.
fn scraped_with_the_charts_rules(agents: &[(&str, &Agent)]) -> Result<Prometheus> {
    let targets: Vec<_> = agents
        .iter()
        .map(|(mode, agent)| {
            json!({"targets": [agent.address()], "labels": {"cluster": mode, "node": NODE, "instance": NODE}})
        })
        .collect();
    let config = json!({
        "global": {"scrape_interval": "5s", "scrape_timeout": "5s", "evaluation_interval": "5s"},
        "rule_files": [rules::root().join(rules::RULES).join("*.yaml")],
        "scrape_configs": [{"job_name": "podperf", "honor_labels": true, "static_configs": targets}],
    });
    Prometheus::start_with(&config, None)
}

/// Returns the rules' results for the pod, for an error message.
fn told(prometheus: &Prometheus) -> Result<String> {
    let mut text = String::new();
    for sample in prometheus.query(&format!("{{__name__=~\"ALERTS|namespace_pod:.+\",pod=\"{POD}\"}}"))? {
        writeln!(text, "{} {:?} {}", sample.name, sample.labels, sample.value)?;
    }
    Ok(text)
}

fn now() -> Result<Duration> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}
