//! Many clients request flame graphs at once, on a node with many pods. Each wait of the load has its own stack.

use std::{
    fs,
    process::{Child, Command, Stdio},
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    cluster::{Cluster, SHOP},
    control_plane::NEEDS,
    http,
    kubelet::Qos,
    load, process,
    suite::{Test, tell, within},
    tests,
    waited::Waited,
};

pub(crate) const TESTS: &[Test] = tests![
    flame_graphs_that_64_ask_for_at_once_take_64_mib_at_most: NEEDS,
];

const PODS: u32 = 250;
const CLIENTS: usize = 64;
/// Windows are short, so that they are soon full.
const YAML: &str = "# --testing connections=128\nstacks: {enabled: true}\notlp: {interval: 2s}\nserver: {limits: {requestsPerSecond: 0, maxPercent: 0}}\noverhead: {maxPercent: 0}";
const MOST_ABOVE_REST: u64 = 64 << 20;
/// The time limit of a drawing: it takes seconds in a debug build, and four requests may wait.
const PATIENCE: Duration = Duration::from_secs(120);
/// The limit of a scrape during the requests, without the time in which the agent or the scraper waited for a CPU.
const SCRAPE: Duration = Duration::from_secs(1);
const FULL: Duration = Duration::from_secs(180);
/// The drawings that each client requests in turn. Consecutive drawings differ.
const DRAWINGS: [&str; 6] = [
    "/flamegraph",
    "/flamegraph?format=svg",
    "/flamegraph?format=pb",
    "/flamegraph?format=folded",
    "/debug/waits",
    "/flamegraph?subject=shop/pod-0/app",
];

fn flame_graphs_that_64_ask_for_at_once_take_64_mib_at_most() -> Result<()> {
    let cluster = Cluster::start("", YAML)?;
    let agent = &cluster.agent;
    let mut pods = Vec::new();
    for number in 0..PODS {
        let mut pod = cluster.kubelet.pod(SHOP, &format!("pod-{number}"), Qos::Burstable, &["app"])?;
        let running = pod.start("app", Duration::from_millis(1))?;
        pod.report()?;
        pods.push((pod, running));
    }
    cluster.wait_for("podperf_kube_pods", &[], |there| there == f64::from(PODS))?;
    let load = Thicket::start(pods.first().context("no pod")?.1.cgroup())?;
    within(FULL, "there are more stacks than a file has room for", || {
        let (code, _, body) = http::get_within(PATIENCE, agent.address(), "/flamegraph?format=folded")?;
        Ok((code == 200 && String::from_utf8_lossy(&body).contains(" smaller) ")).then_some(()))
    })
    .with_context(|| agent.log())?;
    // New windows stay for minutes and take memory, with or without flame graphs.
    drop(load);
    at_rest(agent)?;

    for (what, paths) in [("the same page", &DRAWINGS[..1]), ("all that is drawn", &DRAWINGS[..])] {
        let rest = memory(agent, "VmRSS")?;
        // This write resets the peak: see proc(5).
        fs::write(format!("/proc/{}/clear_refs", agent.pid()), "5")?;
        let storm = storm(agent, paths)?;
        let (peak, after) = (memory(agent, "VmHWM")?, memory(agent, "VmRSS")?);
        let above = peak.saturating_sub(rest);
        let refused = storm.codes.len() - storm.drawn();
        tell(&format!(
            "{CLIENTS} at once ask for {what}: {} drawn and {refused} refused; {} MiB at rest, {} MiB more at most, {} MiB \
             after; {} scrapes meanwhile, the slowest {:.2?}, and {:.2?} without waits for a CPU",
            storm.drawn(),
            rest >> 20,
            above >> 20,
            after >> 20,
            storm.scrapes,
            storm.slowest,
            storm.longest,
        ));
        ensure!(storm.codes.iter().all(|code| [200, 503].contains(code)), "{:?}", storm.codes);
        ensure!(storm.drawn() > 0 && storm.scrapes > 0, "{storm:?}");
        ensure!(storm.longest <= SCRAPE, "a scrape took {:?} besides waits for a CPU", storm.longest);
        ensure!(above <= MOST_ABOVE_REST, "{above} bytes above the {rest} at rest");
    }
    Ok(())
}

#[derive(Debug)]
struct Storm {
    codes: Vec<u16>,
    scrapes: u32,
    slowest: Duration,
    /// The longest scrape, without waits for a CPU.
    longest: Duration,
}

impl Storm {
    fn drawn(&self) -> usize {
        self.codes.iter().filter(|code| **code == 200).count()
    }
}

/// Sends all requests at the same moment, and scrapes until all are answered.
fn storm(agent: &Agent, paths: &[&str]) -> Result<Storm> {
    let pid = agent.pid();
    let (address, together, over) = (agent.address(), Barrier::new(CLIENTS), AtomicBool::new(false));
    thread::scope(|scope| {
        let scraper = scope.spawn(|| -> Result<(u32, Duration, Duration)> {
            let (mut scrapes, mut slowest, mut longest) = (0, Duration::ZERO, Duration::ZERO);
            while !over.load(Ordering::Relaxed) {
                let (start, mut waited) = (Instant::now(), Waited::begin(&[pid]));
                let (code, ..) = http::get_within(PATIENCE, address, "/metrics")?;
                let took = start.elapsed();
                ensure!(code == 200, "a scrape was answered {code}");
                (scrapes, slowest) = (scrapes + 1, slowest.max(took));
                longest = longest.max(took.saturating_sub(waited.total()));
                thread::sleep(Duration::from_millis(50));
            }
            Ok((scrapes, slowest, longest))
        });
        let ask = |client: usize| {
            let together = &together;
            scope.spawn(move || -> Result<u16> {
                let path = paths.get(client % paths.len()).context("no path")?;
                together.wait();
                let (code, head, body) = http::get_within(PATIENCE, address, path)?;
                if code == 503 {
                    let says = String::from_utf8_lossy(&body).into_owned();
                    let when = head.to_lowercase().contains("retry-after: ");
                    ensure!(when && says.contains("(ask again"), "no word of when to come back: {head}\n{says}");
                }
                Ok(code)
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(ask).collect();
        let codes = clients.into_iter().map(|client| client.join().expect("a client panicked"));
        let codes = codes.collect::<Result<Vec<_>>>();
        over.store(true, Ordering::Relaxed);
        let (scrapes, slowest, longest) = scraper.join().expect("the scraper panicked")?;
        Ok(Storm { codes: codes?, scrapes, slowest, longest })
    })
}

/// Returns a line of the agent's `/proc/PID/status`, in bytes.
fn memory(agent: &Agent, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib: u64 = line.with_context(|| format!("no `{name}`"))?.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

/// Waits until the agent takes as much memory as five seconds ago, within 4 MiB. By then the last windows have their
/// names.
fn at_rest(agent: &Agent) -> Result<()> {
    let mut before = memory(agent, "VmRSS")?;
    within(FULL, "memory stays as it is", || {
        thread::sleep(Duration::from_secs(5));
        let now = memory(agent, "VmRSS")?;
        Ok((now.abs_diff(std::mem::replace(&mut before, now)) < 4 << 20).then_some(()))
    })
}

/// Sixteen threads. Each of their waits has its own stack. Drop ends them.
struct Thicket(Child);

impl Thicket {
    fn start(cgroup: &TestCgroup) -> Result<Self> {
        let mut command = Command::new(load::binary()?);
        process::bind_to_parent(&mut command);
        command.args(["thicket", "--threads", "16", "--cgroup"]).arg(cgroup.path());
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("failed to start a load")?))
    }
}

impl Drop for Thicket {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
