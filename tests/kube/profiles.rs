//! Profiles are separate for each container. They have the names that receivers know, even if these come late.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use podperf_tests::{
    agent::{self, Metrics},
    cgroup::TestCgroup,
    cluster::{Cluster, NODE, SHOP},
    collector::{self, Collector, Profile},
    control_plane::NEEDS,
    kubelet::{self, Qos},
    load::{self, sleepers::SleepersReport},
    process,
    suite::Test,
    tests,
};
use serde_json::json;

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] #[measures] the_waits_of_each_container_arrive_under_its_own_names: NEEDS,
    #[beside] the_annotation_names_the_service_of_a_profile: NEEDS,
    a_pod_is_recorded_and_shown_by_its_name: NEEDS,
    #[beside] waits_whose_name_comes_later_than_their_window_lose_nothing: NEEDS,
];

const EXPORTS: &str = "podperf_otlp_exports_total";
const OFFCPU: &str = "podperf_container_offcpu_seconds_total";
/// The load's functions, leaf first.
const WAIT_STACK: [&str; 3] = ["podperf_wait_inner", "podperf_wait_middle", "podperf_wait_outer"];

fn the_waits_of_each_container_arrive_under_its_own_names() -> Result<()> {
    let (collector, cluster) = start()?;
    let mut pod = cluster.kubelet.run(of_deployment("cart", &["web", "log"])?)?;
    let running = [pod.start("web", Duration::ZERO)?, pod.start("log", Duration::ZERO)?];
    pod.report()?;
    let sleepers = [
        Sleeper::start(running[0].cgroup(), &["--waits", "60"])?,
        Sleeper::start(running[1].cgroup(), &["--waits", "20"])?,
    ];
    let told = Told::begin(&cluster)?;
    for (running, sleeper) in running.iter().zip(&sleepers) {
        let container = running.name();
        let profiles = profiles_of(&collector, container)?;
        ensure_near(container, waits(&profiles), sleeper.blocked).with_context(|| all_of(&cluster, &profiles))?;
        told.ensure_as_metrics_have_it(&cluster, container, &profiles)?;
        for profile in &profiles {
            for (key, value) in [
                ("service.name", "web"),
                ("service.instance.id", &format!("shop.cart.{container}")),
                ("k8s.namespace.name", SHOP),
                ("k8s.pod.name", "cart"),
                ("k8s.pod.uid", pod.uid()),
                ("k8s.container.name", container),
                ("k8s.node.name", NODE),
                ("k8s.deployment.name", "web"),
                ("container.id", running.id()),
            ] {
                let found = profile.resource.get(key).map(String::as_str);
                ensure!(found == Some(value), "`{key}` is {found:?} and not `{value}`: {:?}", profile.resource);
            }
        }
        // In one window, a container is one resource, with a profile for each of its kinds of samples.
        let kinds: BTreeSet<_> = profiles.iter().map(|profile| (profile.request, &profile.sample_type)).collect();
        ensure!(kinds.len() == profiles.len(), "{} profiles, and {} kinds in all windows", profiles.len(), kinds.len());
    }
    Ok(())
}

fn the_annotation_names_the_service_of_a_profile() -> Result<()> {
    let (collector, cluster) = start()?;
    let mut specification = of_deployment("cart", &["web"])?;
    let annotation = ("resource.opentelemetry.io/service.name".into(), "checkout".into());
    specification.metadata.annotations = Some([annotation].into());
    let mut pod = cluster.kubelet.run(specification)?;
    let running = pod.start("web", Duration::ZERO)?;
    pod.report()?;
    let sleeper = Sleeper::start(running.cgroup(), &["--waits", "20"])?;
    wait_for_windows(&cluster)?;
    let profiles = profiles_of(&collector, "web")?;
    ensure_near("web", waits(&profiles), sleeper.blocked).with_context(|| all_of(&cluster, &profiles))?;
    for profile in &profiles {
        let name = |key| profile.resource.get(key).map(String::as_str);
        let names = (name("service.name"), name("k8s.deployment.name"));
        ensure!(names == (Some("checkout"), Some("web")), "{:?}", profile.resource);
    }
    Ok(())
}

fn a_pod_is_recorded_and_shown_by_its_name() -> Result<()> {
    let cluster = Cluster::start("", "stacks: {enabled: true}\notlp: {interval: 1s}")?;
    let mut pod = cluster.kubelet.run(of_deployment("cart", &["web", "log"])?)?;
    let running = [pod.start("web", Duration::ZERO)?, pod.start("log", Duration::ZERO)?];
    pod.report()?;
    cluster.wait_for(OFFCPU, &[("namespace", SHOP), ("pod", "cart"), ("container", "log")], |_| true)?;
    let url = cluster.agent.address().to_string();
    let record = |subject: &str| -> Result<(Child, String)> {
        let mut command = Command::new(agent::binary()?);
        process::bind_to_parent(&mut command);
        command.args(["record", subject, "--agent", &url, "--duration", "6s", "-o", "-"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        // The load prints a line once it has begun.
        let mut says = String::new();
        let mut stderr = BufReader::new(child.stderr.take().context("no stderr")?);
        stderr.read_line(&mut says)?;
        child.stderr = Some(stderr.into_inner());
        Ok((child, says))
    };
    // No pod has the name of the Deployment, so it stands for its pods.
    let recordings = [record("shop/cart")?, record("shop/cart/web")?, record("shop/web")?];
    let sleepers = [
        Sleeper::start(running[0].cgroup(), &["--waits", "40"])?,
        Sleeper::start(running[1].cgroup(), &["--waits", "20"])?,
    ];
    let [of_pod, of_web, of_workload] = recordings.map(|(recording, _)| recording.wait_with_output());
    let (of_pod, of_web) = (String::from_utf8(of_pod?.stdout)?, String::from_utf8(of_web?.stdout)?);
    let of_workload = String::from_utf8(of_workload?.stdout)?;
    for (container, folded, truth) in [
        ("web", &of_pod, sleepers[0].blocked),
        ("log", &of_pod, sleepers[1].blocked),
        ("web", &of_web, sleepers[0].blocked),
        ("log", &of_web, Duration::ZERO),
        ("web", &of_workload, sleepers[0].blocked),
        ("log", &of_workload, sleepers[1].blocked),
    ] {
        let start = format!("{SHOP}/cart/{container};sleep;");
        let lines = folded.lines().filter(|line| line.starts_with(&start) && line.contains(WAIT_STACK[0]));
        let nanoseconds = lines.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<u64>());
        ensure_near(container, Duration::from_nanos(nanoseconds.sum::<Result<_, _>>()?), truth)
            .with_context(|| folded.clone())?;
    }
    let (refused, says) = record("shop/carts")?;
    ensure!(!refused.wait_with_output()?.status.success(), "what nobody has was recorded");
    ensure!(says.contains("no such pod `shop/carts` (did you mean `shop/cart`?)"), "{says}");
    let (refused, says) = record("cart")?;
    ensure!(refused.wait_with_output()?.status.code() == Some(2), "a word was recorded");
    ensure!(says.contains("bad subject `cart`") && says.contains("did you mean `shop/cart`?"), "{says}");
    for (subject, expected) in [("shop/web", 200), ("shop/cart/web", 200), ("shop/nobody", 404), ("web", 400)] {
        let (code, _, _) = cluster.agent.get(&format!("/flamegraph?subject={subject}"), &[])?;
        ensure!(code == expected, "`{subject}` is answered with {code}");
    }
    let (_, _, page) = cluster.agent.get("/", &[("Accept", "text/html")])?;
    let page = String::from_utf8(page)?;
    ensure!(page.contains("/flamegraph?subject=shop%2Fcart%2Fweb&amp;activity=off-cpu\">shop/cart/web</a>"), "{page}");
    Ok(())
}

fn waits_whose_name_comes_later_than_their_window_lose_nothing() -> Result<()> {
    let (collector, cluster) = start()?;
    let mut pod = cluster.kubelet.run(of_deployment("cart", &["web", "log"])?)?;
    let lives = pod.start("web", Duration::ZERO)?;
    // Many short waits, and one long wait with a sample of its own.
    let sleepers = [&["--waits", "30"][..], &["--waits", "1", "--millis", "700"]];
    let sleepers = sleepers.map(|arguments| Sleeper::start(lives.cgroup(), arguments));
    let ended = pod.start("log", Duration::ZERO)?;
    let short = Sleeper::start(ended.cgroup(), &["--waits", "30"])?.blocked;
    // The cgroup is gone before the container's name comes.
    let ended = pod.finish(ended)?;
    wait_for_windows(&cluster)?;
    wait_for_windows(&cluster)?;
    let early = waits(&collector.profiles()?);
    ensure!(early.is_zero(), "{early:?} of waits arrived without a name");

    pod.report()?;
    cluster.wait_for_cpu("cart", "log", ended.cpu)?;
    let told = Told::begin(&cluster)?;
    let profiles = profiles_of(&collector, "web")?;
    let mut truth = Duration::ZERO;
    for sleeper in sleepers {
        truth += sleeper?.blocked;
    }
    ensure_near("web", waits(&profiles), truth).with_context(|| all_of(&cluster, &profiles))?;
    told.ensure_as_metrics_have_it(&cluster, "web", &profiles)?;
    // The functions of a process that has ended have no names. Its time is there.
    let profiles = profiles_of(&collector, "log")?;
    let found = time_in(&profiles, "interruptible");
    ensure!(found >= short, "log: profiles hold {found:?}, and it has waited for {short:?} and more");
    told.ensure_as_metrics_have_it(&cluster, "log", &profiles)
}

/// Starts a receiver of profiles, and an agent that sends one each second.
fn start() -> Result<(Collector, Cluster)> {
    let collector = Collector::start()?;
    let otlp = format!("stacks: {{enabled: true}}\notlp: {{endpoint: '{}', interval: 1s}}", collector.endpoint());
    let cluster = Cluster::start("", &otlp)?;
    Ok((collector, cluster))
}

/// Returns a pod as the Deployment `web` would create it.
fn of_deployment(name: &str, containers: &[&str]) -> Result<Pod> {
    let mut pod = kubelet::pod(SHOP, name, Qos::Burstable, containers)?;
    let owner = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f8c7b9", "uid": "made-up", "controller": true,
    }]);
    pod.metadata.owner_references = serde_json::from_value(owner)?;
    pod.metadata.labels = Some([("pod-template-hash".into(), "5d4f8c7b9".into())].into());
    Ok(pod)
}

/// A load that has waited and stays alive, so that its stacks have names.
struct Sleeper {
    child: Child,
    blocked: Duration,
}

impl Sleeper {
    /// Waits in a cgroup: 20 ms each, unless the arguments set another time.
    fn start(cgroup: &TestCgroup, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(load::binary()?);
        process::bind_to_parent(&mut command);
        command.args(["sleepers", "--hold"]).args(arguments).arg("--cgroup").arg(cgroup.path());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("failed to start a load")?;
        let mut sleeper = Self { child, blocked: Duration::ZERO };
        let mut line = String::new();
        BufReader::new(sleeper.child.stdout.take().context("no stdout")?).read_line(&mut line)?;
        let report: SleepersReport = serde_json::from_str(&line).context("a load ended without a report")?;
        sleeper.blocked = report.blocked();
        Ok(sleeper)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Waits until all earlier samples have been sent and have arrived.
fn wait_for_windows(cluster: &Cluster) -> Result<()> {
    // A fresh scrape is necessary: a scrape of the last second would have an old number. One of
    // the next three requests may be on its way already, and one may contain a window that has just ended.
    let sent = cluster.agent.fresh_metrics()?.sum(EXPORTS, &[]);
    cluster.wait_for(EXPORTS, &[], |now| now >= sent + 3.0).map(drop)
}

fn profiles_of(collector: &Collector, container: &str) -> Result<Vec<Profile>> {
    let is_its = |profile: &Profile| profile.resource.get("k8s.container.name").is_some_and(|name| name == container);
    Ok(collector.profiles()?.into_iter().filter(is_its).collect())
}

/// Returns the time of the load's own waits.
fn waits(profiles: &[Profile]) -> Duration {
    let samples = profiles.iter().flat_map(|profile| &profile.samples);
    let own = samples.filter(|sample| sample.functions().windows(WAIT_STACK.len()).any(|names| names == WAIT_STACK));
    Duration::from_nanos(own.map(|sample| sample.value).sum())
}

/// Returns what arrived and what the agent left out: for the error of a test that misses waits.
fn all_of(cluster: &Cluster, profiles: &[Profile]) -> String {
    collector::listed(profiles, &cluster.agent.metrics().unwrap_or_default())
}

fn time_in(profiles: &[Profile], state: &str) -> Duration {
    let samples = profiles.iter().flat_map(|profile| &profile.samples).filter(|sample| sample.state == state);
    Duration::from_nanos(samples.map(|sample| sample.value).sum())
}

/// The metrics before the windows that the test checks. Unfinished waits grow in metrics and profiles.
struct Told(Metrics);

impl Told {
    /// Returns after the profiles of all these metrics have arrived.
    fn begin(cluster: &Cluster) -> Result<Self> {
        let metrics = cluster.agent.fresh_metrics()?;
        wait_for_windows(cluster)?;
        Ok(Self(metrics))
    }

    /// Checks that the profiles have at least the time of these metrics, and at most the time of the current metrics.
    fn ensure_as_metrics_have_it(&self, cluster: &Cluster, container: &str, profiles: &[Profile]) -> Result<()> {
        let now = cluster.agent.fresh_metrics()?;
        for state in ["interruptible", "uninterruptible"] {
            let labels = [("namespace", SHOP), ("pod", "cart"), ("container", container), ("state", state)];
            let of = |metrics: &Metrics| {
                let seconds = metrics.get(OFFCPU, &labels).with_context(|| format!("no series {labels:?}"))?;
                anyhow::Ok(Duration::from_secs_f64(seconds))
            };
            let found = time_in(profiles, state);
            ensure_near(&format!("{container}, {state}"), found, found.clamp(of(&self.0)?, of(&now)?))?;
        }
        Ok(())
    }
}

/// Checks that both are equal within 2 %, or within 0.1 ms where the time is nearly zero.
fn ensure_near(what: &str, found: Duration, truth: Duration) -> Result<()> {
    let off = found.abs_diff(truth);
    ensure!(off <= truth / 50 + Duration::from_micros(100), "{what}: profiles hold {found:?}, the truth is {truth:?}");
    Ok(())
}
