//! A node of many pods whose causes of waits are known. The agent's list begins with the pods that lose time, each with
//! its cause, and what it tells of them is what they tell of themselves.
//!
//! `make kube ARGS=the_pods_that_lose_time` keeps the pods for two minutes and prints the address of the pages.

use std::{
    collections::HashMap,
    io::Read as _,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    browser::{BROWSER, PHONE, told_on},
    cluster::{Cluster, SHOP, Spoilt},
    control_plane::NEEDS,
    kubelet::{Kubelet, PodHandle, Qos, Running},
    load::{
        self,
        causes::{CausesReport, Waits},
    },
    process,
    suite::{Need, Test, long, tell},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    the_pods_that_lose_time_are_the_first_rows_each_with_its_cause:
        &[NEEDS[0], NEEDS[1], Need::Cpus(2), Need::Disk(DIRECTORY), BROWSER],
];

const DIRECTORY: &str = env!("CARGO_TARGET_TMPDIR");
const AN_HOUR: Duration = Duration::from_secs(3600);
const YAML: &str = "stacks: {enabled: true}\notlp: {interval: 2s}\noverhead: {maxPercent: 0}";
/// The longest time that the pods wait for an agent, beside the time in which it watches them.
const START: Duration = Duration::from_secs(90);
/// The largest share of the lost time that may be told wrongly, in each direction. The pods count from their start, and
/// the page has the last windows.
const MOST_WRONG: f64 = 0.1;
/// The value of a number that the page shows as `<0.01`.
const LEAST: f64 = 0.005;

/// The loads with their threads and their pods.
const LOADS: &[(&str, u32, &[&str])] = &[
    ("lock", 8, &["inventory"]),
    ("peer", 2, &["checkout", "payments"]),
    ("cpu", 2, &["search", "nightly-report"]),
    ("storage", 1, &["ledger-db"]),
    ("keep-alive", 8, &["gateway", "browser"]),
    ("condition", 60, &["session-cache"]),
];
/// The loads that have nothing to do, with the threads of a pod. There are some pods of each.
const IDLE: [(&str, u32); 4] = [("condition", 24), ("events", 8), ("timer", 4), ("jobs", 8)];
const IDLE_PODS_OF_EACH: usize = 6;

/// The rows of the pods that lose time, and their words. The word `threads` is before the first cause of a row only.
const FIRST: [(&str, &str); 4] = [
    ("shop/checkout/app", " threads for shop/payments</span>"),
    ("shop/inventory/app", " threads for a lock of its own</span>"),
    ("shop/ledger-db/app", " threads for storage</span>"),
    ("shop/search/app", " threads for a CPU (shop/nightly-report has "),
];

fn the_pods_that_lose_time_are_the_first_rows_each_with_its_cause() -> Result<()> {
    let watched = Duration::from_secs(if long() { 120 } else { 12 });
    let spoilt = Spoilt::start(AN_HOUR)?;
    let mut loads = Vec::new();
    for number in 0..IDLE_PODS_OF_EACH {
        for (of, count) in IDLE {
            loads.push(Load::start(&spoilt.kubelet, of, count, &[&format!("{of}-{number}")], watched)?);
        }
    }
    for (of, count, pods) in LOADS {
        loads.push(Load::start(&spoilt.kubelet, of, *count, pods, watched)?);
    }
    // Connections, pools and the convoy are older than the agent, as on a real node.
    let cluster = Cluster::join(spoilt, "", YAML)?;
    cluster.wait_for_connection()?;
    if long() {
        tell(&format!("http://{}/ has the pods for {watched:?}", cluster.agent.address()));
    }
    thread::sleep(watched);
    let (_, _, page) = cluster.agent.get("/", &[("Accept", "text/html")])?;
    let page = String::from_utf8(page)?;
    let rows = rows(&page)?;

    let mut truth: HashMap<String, Waits> = HashMap::new();
    loads.iter_mut().for_each(Load::stop);
    for load in &mut loads {
        truth.extend(load.report()?);
    }
    ensure!(truth.len() >= 30, "only {} pods", truth.len());
    let listed: Vec<_> = rows.iter().map(|row| (&row.name, row.lost, truth.get(&row.name).map(Waits::lost))).collect();
    for row in rows.iter().take(FIRST.len()) {
        let says = FIRST.iter().find(|(name, _)| *name == row.name).map(|(_, says)| *says);
        let says = says.with_context(|| format!("`{}` is one of the first rows: {listed:?}", row.name))?;
        ensure!(row.html.contains(says), "a row does not say `{says}`: {}", row.html);
    }
    let end = last_of_first(&page)?;
    ensure!(end <= f64::from(PHONE.1), "a phone shows {} pixels, and the first rows end at {end}: {page}", PHONE.1);

    let lost: f64 = truth.values().map(Waits::lost).sum();
    let idle: f64 = truth.values().map(Waits::idle).sum();
    let told = |name: &String| rows.iter().filter(|row| row.name == *name).map(|row| row.lost).sum::<f64>();
    let off: Vec<f64> = truth.iter().map(|(name, waits)| told(name) - waits.lost()).collect();
    let as_lost: f64 = off.iter().filter(|off| **off > 0.0).sum();
    let as_idle: f64 = -off.iter().filter(|off| **off < 0.0).sum::<f64>();
    let says = format!(
        "{lost:.2} threads of {} pods lost their time and {idle:.0} were idle; the page has {as_lost:.2} of the idle \
         ones as lost, and {as_idle:.2} of the lost ones as idle: {:.1} % of all waiting time",
        truth.len(),
        (as_lost + as_idle) / (lost + idle) * 100.0,
    );
    tell(&says);
    ensure!(as_lost.max(as_idle) <= MOST_WRONG * lost, "{says}: {listed:?}");
    Ok(())
}

/// A load with its pods. Drop kills it.
struct Load {
    child: Child,
    pods: Vec<(Running, PodHandle)>,
}

impl Load {
    /// Makes the pods and starts their load.
    fn start(kubelet: &Kubelet, of: &str, threads: u32, names: &[&str], watched: Duration) -> Result<Self> {
        let mut pods = Vec::new();
        for name in names {
            let mut pod = kubelet.pod(SHOP, name, Qos::Burstable, &["app"])?;
            let running = pod.start("app", Duration::ZERO)?;
            pod.report()?;
            pods.push((running, pod));
        }
        let mut command = Command::new(load::binary()?);
        process::bind_to_parent(&mut command);
        let seconds = (watched + START).as_secs().to_string();
        command.args(["causes", "--of", of, "--threads", &threads.to_string(), "--seconds", &seconds]);
        command.args(["--directory", DIRECTORY]);
        for (option, (running, _)) in ["--cgroup", "--other"].into_iter().zip(&pods) {
            command.arg(option).arg(running.cgroup().path());
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("failed to start a load")?;
        Ok(Self { child, pods })
    }

    fn stop(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Returns the account of each pod by the name of its row, once the load has ended.
    fn report(&mut self) -> Result<Vec<(String, Waits)>> {
        let mut line = String::new();
        self.child.stdout.take().context("no stdout")?.read_to_string(&mut line)?;
        let CausesReport { own, other } = serde_json::from_str(&line).context("a load ended without a report")?;
        let name = |(running, pod): &(Running, PodHandle)| format!("{SHOP}/{}/{}", pod.name(), running.name());
        Ok(self.pods.iter().map(name).zip([own, other]).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A row of the list.
struct Row {
    name: String,
    /// The threads in trouble.
    lost: f64,
    html: String,
}

/// Returns where the last of the first rows ends on a phone that shows the top of the page, in pixels.
fn last_of_first(page: &str) -> Result<f64> {
    let rows = "document.querySelectorAll('.rows tbody tr')";
    let script = format!("return {rows}[{}].getBoundingClientRect().bottom", FIRST.len() - 1);
    let told = told_on(page, PHONE.0, &script)?;
    told.parse::<f64>().with_context(|| format!("no number: {told}"))
}

/// Returns the rows in the order of the page.
fn rows(page: &str) -> Result<Vec<Row>> {
    let row = |html: &str| {
        let name = html.split("</td>").next()?.trim_end_matches("</a>").rsplit('>').next()?;
        let lost = html.split("data-n=\"in trouble\">").nth(1)?.split('<').next()?;
        let lost = if lost.starts_with("&lt;") { LEAST } else { lost.parse().ok()? };
        Some(Row { name: name.to_owned(), lost, html: html.to_owned() })
    };
    page.split("<tr><td>").skip(1).map(|html| row(html).with_context(|| format!("no number in {html}"))).collect()
}
