//! Connections to a receiver: compressions, TLS, environment variables, and pushed metrics.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent, STOP_DEADLINE},
    certificates::Authority,
    cgroup::TestCgroup,
    collector::Collector,
    command::Refusal,
    load::{locks::LocksReport, sleepers::SleepersReport},
    running::run,
    suite::{Test, within},
    tests,
};
use tempfile::TempDir;

use crate::profiles::{DEADLINE, GO, Held, is_wait, nanoseconds};

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] profiles_arrive_over_grpc_in_each_compression: &[GO],
    #[land] #[beside] profiles_arrive_over_mutual_tls_and_certificates_may_be_replaced: &[GO],
    #[beside] variables_say_where_profiles_go_and_flags_overrule_them: &[GO],
    #[land] #[beside] metrics_are_pushed_as_they_are_scraped: &[GO],
    #[land] #[beside] totals_of_sensors_are_pushed_as_they_are_scraped: &[GO],
    #[beside] what_ended_in_an_outage_is_pushed_after_it: &[GO],
    #[land] #[beside] bad_variables_and_certificates_are_refused_by_their_name,
];

/// The agent's log text when it switches to a weaker compression.
const GAVE_UP: &str = "does not read this compression";

/// Runs the sleepers under an agent until their samples have arrived at the Collector.
pub(crate) fn arrives(agent: &Agent, collector: &Collector) -> Result<()> {
    let cgroup = TestCgroup::new("receivers")?;
    let load = Held::start(&cgroup, &["sleepers"])?;
    within(DEADLINE, "the waits are in profiles", || {
        let samples = collector.samples_of(cgroup.kernel_path())?;
        Ok((nanoseconds(samples.iter().filter(|it| is_wait(it))) >= 0.9e9).then_some(()))
    })
    .with_context(|| format!("{}\n{}", agent.log(), collector.log()))?;
    load.finish::<SleepersReport>().map(drop)
}

fn profile_export(agent: &Agent) -> Result<String> {
    let (_, _, text) = agent.get("/status", &[])?;
    let text = String::from_utf8(text)?;
    Ok(text.lines().find(|line| line.starts_with("profile export")).context("no `profile export`")?.to_owned())
}

fn profiles_arrive_over_grpc_in_each_compression() -> Result<()> {
    let collector = Collector::start()?;
    for compression in ["gzip", "zstd", "none"] {
        let yaml = format!("endpoint: '{}', compression: {compression}, interval: 1s", collector.endpoint());
        let agent = Agent::start(&format!("otlp: {{{yaml}}}"))?;
        arrives(&agent, &collector).with_context(|| compression.to_owned())?;
        ensure!(!agent.log().contains(GAVE_UP), "not in {compression}: {}", agent.log());
    }
    Ok(())
}

/// The files of a receiver that requires client certificates, and of an agent that has one.
struct Certificates {
    directory: TempDir,
    authority: Authority,
}

impl Certificates {
    fn new() -> Result<Self> {
        let (directory, authority) = (TempDir::new()?, Authority::new("podperf-test-otlp")?);
        authority.write(&directory.path().join("ca.crt"))?;
        authority.issue("collector", directory.path(), "server")?;
        authority.issue("podperf", directory.path(), "client")?;
        Ok(Self { directory, authority })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn yaml(&self) -> String {
        let directory = self.path().display();
        format!("{{caFile: {directory}/ca.crt, certFile: {directory}/client.crt, keyFile: {directory}/client.key}}")
    }
}

fn profiles_arrive_over_mutual_tls_and_certificates_may_be_replaced() -> Result<()> {
    let certificates = Certificates::new()?;
    let collector = Collector::start_secure(certificates.path())?;
    let mut agent = Agent::start(&format!(
        "otlp: {{endpoint: '{}', interval: 1s, tls: {}}}",
        collector.endpoint(),
        certificates.yaml()
    ))?;
    arrives(&agent, &collector)?;

    // One of the two files is new. The agent keeps the previous pair and logs a warning.
    let key = certificates.path().join("client.key");
    fs::write(&key, "")?;
    within(DEADLINE, "the bad file is told", || {
        Ok(profile_export(&agent)?.contains("`otlp.tls.keyFile`").then_some(()))
    })?;
    arrives(&agent, &collector)?;
    ensure!(profile_export(&agent)?.contains("degraded"), "{}", profile_export(&agent)?);

    certificates.authority.issue("podperf", certificates.path(), "client")?;
    within(DEADLINE, "the new ones are taken", || Ok(profile_export(&agent)?.contains("healthy").then_some(())))?;
    agent.wait_for_log("read the changed TLS files", DEADLINE)?;
    arrives(&agent, &collector)
}

fn variables_say_where_profiles_go_and_flags_overrule_them() -> Result<()> {
    let collector = Collector::start()?;
    let nowhere = format!("http://{}", TcpListener::bind(("127.0.0.1", 0))?.local_addr()?);
    let program = agent::binary()?;
    let by_variables = Agent::start_changed(&program, "otlp: {interval: 1s}", |command| {
        command
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &nowhere)
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
            .env(
                "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT",
                format!("{}/v1development/profiles", collector.http_endpoint()),
            )
            .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test");
    })?;
    arrives(&by_variables, &collector)?;
    let profiles = collector.profiles()?;
    let environment = profiles[0].resource.get("deployment.environment.name");
    ensure!(environment.is_some_and(|name| name == "test"), "{:?}", profiles[0].resource);
    drop(by_variables);

    let by_flag = Agent::start_changed(&program, "otlp: {interval: 1s}", |command| {
        command.args(["--otlp-endpoint", &collector.endpoint()]).env("OTEL_EXPORTER_OTLP_ENDPOINT", &nowhere);
    })?;
    arrives(&by_flag, &collector)
}

fn metrics_are_pushed_as_they_are_scraped() -> Result<()> {
    for protocol in ["grpc", "http/protobuf"] {
        let collector = Collector::start()?;
        let endpoint = if protocol == "grpc" { collector.endpoint() } else { collector.http_endpoint() };
        let cgroup = TestCgroup::new("pushed")?;
        let mut agent = Agent::start(&format!(
            "otlp: {{endpoint: '{endpoint}', protocol: {protocol}, metrics: {{enabled: true, interval: 1s}}}}\n\
             stacks: {{enabled: false}}"
        ))?;
        let load = Held::start(&cgroup, &["sleepers"])?;
        let label = format!("podperf.cgroup.path={} podperf.offcpu.state=interruptible", cgroup.kernel_path());
        let pushed = || Ok::<_, anyhow::Error>(collector.metric("podperf.cgroup.offcpu.time")?.get(&label).copied());
        within(DEADLINE, "the waits are pushed", || Ok(pushed()?.filter(|seconds| *seconds >= 0.98)))
            .with_context(|| format!("{}\n{}", agent.log(), collector.log()))?;
        ensure!(agent.get("/status", &[])?.2.windows(14).any(|word| word == b"metrics export"), "no `metrics export`");
        // The last push is later than the last scrape, so no value is in a scrape only.
        let labels = [("cgroup", cgroup.kernel_path()), ("state", "interruptible")];
        load.finish::<SleepersReport>()?;
        let scraped = agent.fresh_metrics()?.sum("podperf_cgroup_offcpu_seconds_total", &labels);
        agent.signal(Signal::SIGTERM)?;
        ensure!(agent.wait(STOP_DEADLINE)?.success(), "{}", agent.log());
        within(DEADLINE, "the last push arrives", || {
            Ok(pushed()?.filter(|seconds| *seconds >= scraped && *seconds <= scraped + 0.01))
        })
        .with_context(|| format!("scraped {scraped}, pushed {:?}", pushed()))?;
    }
    Ok(())
}

fn totals_of_sensors_are_pushed_as_they_are_scraped() -> Result<()> {
    const WAITS: u32 = 30;
    let collector = Collector::start()?;
    let (waiter, holder) = (TestCgroup::new("waiter")?, TestCgroup::new("holder")?);
    let agent = Agent::start(&format!(
        "otlp: {{endpoint: '{}', metrics: {{enabled: true, interval: 1s}}}}\n\
         sensors: {{histograms: {{enabled: true}}, locks: {{enabled: true}}}}\nstacks: {{enabled: false}}",
        collector.endpoint()
    ))?;
    let report: LocksReport = run(&format!(
        "locks --kind mutex --waits {WAITS} --cgroup {} --holder {}",
        waiter.path().display(),
        holder.path().display()
    ))?;
    let metrics = agent.fresh_metrics()?;
    let (waiter, holder) = (waiter.kernel_path(), holder.kernel_path());
    for (cgroup, scraped, kind, pushed, more) in [
        (waiter, "user_lock_waits_total", None, "user_lock.waits", ""),
        (waiter, "user_lock_wait_seconds_total", None, "user_lock.wait", ""),
        (holder, "lock_blocking_seconds_total", Some("user"), "lock.blocking", " podperf.lock.kind=user"),
    ] {
        let labels: Vec<_> = [("cgroup", cgroup)].into_iter().chain(kind.map(|kind| ("kind", kind))).collect();
        let truth = metrics.get(&format!("podperf_cgroup_{scraped}"), &labels);
        let truth = truth.with_context(|| format!("`{scraped}` is not scraped: {report:?}"))?;
        let series = format!("podperf.cgroup.path={cgroup}{more}");
        let read =
            || Ok::<_, anyhow::Error>(collector.metric(&format!("podperf.cgroup.{pushed}"))?.get(&series).copied());
        within(DEADLINE, "the total is pushed", || Ok(read()?.filter(|total| (total - truth).abs() < 1e-9)))
            .with_context(|| format!("{pushed}: scraped {truth}, pushed {:?}\n{}", read(), collector.log()))?;
    }
    Ok(())
}

/// Returns the address of a proxy to `receiver` that forwards nothing until the flag opens it.
fn gate(receiver: SocketAddr) -> Result<(String, Arc<AtomicBool>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let open = Arc::new(AtomicBool::new(false));
    let opened = Arc::clone(&open);
    // This thread ends with the test program.
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            if !opened.load(Ordering::Relaxed) {
                continue;
            }
            let Ok(onward) = TcpStream::connect(receiver) else { continue };
            for (from, to) in [(stream.try_clone(), onward.try_clone()), (onward.try_clone(), stream.try_clone())] {
                let (Ok(mut from), Ok(mut to)) = (from, to) else { continue };
                thread::spawn(move || io::copy(&mut from, &mut to).ok());
            }
        }
    });
    Ok((endpoint, open))
}

fn what_ended_in_an_outage_is_pushed_after_it() -> Result<()> {
    let collector = Collector::start()?;
    let (endpoint, open) = gate(collector.address())?;
    let cgroup = TestCgroup::new("outage")?;
    let path = cgroup.kernel_path().to_owned();
    let agent = Agent::start(&format!(
        "otlp: {{endpoint: '{endpoint}', metrics: {{enabled: true, interval: 1s}}}}\n\
         stacks: {{enabled: false}}\ncgroups: {{grace: 1s}}"
    ))?;
    Held::start(&cgroup, &["sleepers"])?.finish::<SleepersReport>()?;
    drop(cgroup);
    // The pause is much longer than the grace and two exports. An ended row would go after that, if exports arrived.
    thread::sleep(Duration::from_secs(8));
    let (_, _, status) = agent.get("/status", &[])?;
    let status = String::from_utf8(status)?;
    let line = status.lines().find(|line| line.starts_with("metrics export")).context("no `metrics export`")?;
    ensure!(line.contains("degraded"), "{line}");
    open.store(true, Ordering::Relaxed);
    let label = format!("podperf.cgroup.path={path} podperf.offcpu.state=interruptible");
    within(DEADLINE, "the row that ended arrives", || {
        Ok(collector.metric("podperf.cgroup.offcpu.time")?.get(&label).copied().filter(|seconds| *seconds >= 0.98))
    })
    .with_context(|| format!("{}\n{}", agent.log(), collector.log()))?;
    Ok(())
}

fn bad_variables_and_certificates_are_refused_by_their_name() -> Result<()> {
    const BAD_CONFIGURATION: i32 = 2;
    let directory = TempDir::new()?;
    let mut command = agent::command(directory.path(), "otlp: {endpoint: 'http://localhost:1'}")?;
    command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json");
    let says = ["environment variable `OTEL_EXPORTER_OTLP_PROTOCOL`", "http/json", "http/protobuf"];
    Refusal::of(&mut command)?.expect(BAD_CONFIGURATION, &says)?;
    let tls = "otlp: {endpoint: 'https://localhost:1', tls: {caFile: /nowhere/ca.crt}}";
    let refusal = Refusal::of(&mut agent::command(directory.path(), tls)?)?;
    refusal.expect(BAD_CONFIGURATION, &["`otlp.tls.caFile`", "/nowhere/ca.crt", "No such file"])
}
