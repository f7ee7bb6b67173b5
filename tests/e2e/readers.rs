//! Only readers pay for their requests: the sensors keep all features, and no reader uses another reader's rate. The
//! limits are the defaults.

use std::{
    fs,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sys::{
        ptrace,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};
use podperf_tests::{
    agent::{Agent, NO_STACKS, SHARES_READINGS},
    cgroup::TestCgroup,
    deadline::Timed,
    http, process,
    suite::{Test, long, within},
    tests,
};

use crate::bounds::Crowd;

pub(crate) const TESTS: &[Test] = tests![
    what_readers_cost_makes_the_sensors_give_up_nothing,
    a_second_scrape_of_a_reading_costs_a_tenth_of_the_first,
    over_the_servers_cap_pages_are_refused_and_scrapes_go_on,
    one_reader_uses_up_nobody_elses_rate,
    an_agent_whose_reading_is_slow_lives_and_one_that_hangs_does_not,
];

/// An empty file's limits and caps.
const DEFAULTS: &str = "server: {}\noverhead: {}\n";
/// About ten series for each cgroup.
const MANY: &str = "counters: {groups: [[cpu-clock], [task-clock], [page-faults], [context-switches]]}\n\
                    cgroups: {depth: 9}\nstacks: {enabled: false}\n";
const CGROUPS: usize = 800;
const SOON: Duration = Duration::from_secs(30);
/// The limit of a try on a machine that may be too busy.
const PATIENCE: Duration = Duration::from_secs(120);
/// Over the cap, the agent answers one scrape per address in this time.
const BETWEEN_SCRAPES: Duration = Duration::from_secs(5);
const SERVER_CPU: &str = "podperf_server_cpu_seconds_total";

fn loopback(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, last])
}

/// Requests from this address until drop. It opens a new connection after the agent closed the previous one.
struct Reader {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Vec<u16>>>,
}

impl Reader {
    fn start(agent: &Agent, source: IpAddr, path: &'static str, pause: Duration) -> Self {
        let (stop, address) = (Arc::<AtomicBool>::default(), agent.address());
        let stopped = Arc::clone(&stop);
        let ask = move || {
            let (mut codes, mut kept) = (Vec::new(), None::<Timed>);
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                let stream = kept.take().map_or_else(|| http::connect_from(source, address), Ok);
                if let Ok(mut stream) = stream
                    && let Ok((code, ..)) = http::get_again(&mut stream, path, &[])
                {
                    codes.push(code);
                    kept = Some(stream);
                }
                thread::sleep(pause.saturating_sub(start.elapsed()));
            }
            codes
        };
        Self { stop, thread: Some(thread::spawn(ask)) }
    }

    /// Ends the reader and returns the status codes of the answers.
    fn end(mut self) -> Result<Vec<u16>> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it has ended")?;
        thread.join().map_err(|_panic| anyhow::anyhow!("a reader panicked"))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn cpu_of(agent: &Agent) -> Result<Duration> {
    Ok(Duration::from_nanos(process::cpu_ns_of(Pid::from_raw(i32::try_from(agent.pid())?))?))
}

#[expect(clippy::print_stdout, reason = "the figures are what is asked for")]
fn what_readers_cost_makes_the_sensors_give_up_nothing() -> Result<()> {
    let parent = TestCgroup::new("readers")?;
    let _crowd = Crowd::start(&parent, CGROUPS)?;
    let agent = Agent::start(&format!("{DEFAULTS}{MANY}{SHARES_READINGS}"))?;
    // No stacks: in a test build, the search for the first symbols goes over the cap without any reader.
    let before = within(Duration::from_secs(60), "its start is over", || {
        let metrics = agent.fresh_metrics()?;
        let ratio = metrics.get("podperf_overhead_ratio", &[]);
        Ok(ratio.is_some_and(|ratio| ratio > 0.0 && ratio < 0.02).then_some(metrics))
    })?;
    ensure!(before.samples().len() > 8 * CGROUPS, "only {} series", before.samples().len());
    let used = cpu_of(&agent)?;
    // Two addresses send 50 requests a second, so the rate refuses none.
    let every = Duration::from_millis(100);
    let readers: Vec<_> =
        (0..5).map(|number| Reader::start(&agent, loopback(2 + number % 2), "/metrics", every)).collect();
    thread::sleep(Duration::from_secs(if long() { 60 } else { 12 }));
    let codes = readers.into_iter().map(Reader::end).collect::<Result<Vec<_>>>()?.concat();
    let used = cpu_of(&agent)?.saturating_sub(used).as_secs_f64();
    let after = agent.fresh_metrics()?;
    let served = codes.iter().filter(|code| **code == 200).count();
    ensure!(codes.iter().all(|code| [200, 503].contains(code)), "{codes:?}");
    let answering = after.sum(SERVER_CPU, &[]) - before.sum(SERVER_CPU, &[]);
    println!(
        "{served} of {} scrapes served: {answering:.2} s of {used:.2} s of CPU time were the readers'",
        codes.len()
    );
    ensure!(served > 100, "{served} served of {}", codes.len());
    ensure!(answering > used / 2.0 && answering < used + 0.5, "{answering} s of {used} s");
    let shed = [&before, &after].map(|metrics| metrics.sum("podperf_overhead_shed", &[("cap", "cpu")]));
    ensure!(shed == [0.0; 2], "{} given up before, {} after:\n{}", shed[0], shed[1], agent.log());
    let ratio = after.get("podperf_overhead_ratio", &[]);
    ensure!(ratio.is_some_and(|ratio| ratio < 0.05), "the sensors are charged with {ratio:?}");
    let (_, _, status) = agent.get("/status", &[])?;
    let status = String::from_utf8_lossy(&status).into_owned();
    ensure!(status.contains("answering takes"), "{status}");
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the figures are what is asked for")]
fn a_second_scrape_of_a_reading_costs_a_tenth_of_the_first() -> Result<()> {
    let parent = TestCgroup::new("readers")?;
    let _crowd = Crowd::start(&parent, CGROUPS)?;
    let agent = Agent::start(&format!("{DEFAULTS}{MANY}{SHARES_READINGS}"))?;
    agent.fresh_metrics()?;
    for (name, headers) in [
        ("text", &[][..]),
        ("text, gzip", &[("Accept-Encoding", "gzip")]),
        ("OpenMetrics", &[("Accept", "application/openmetrics-text;version=1.0.0")]),
        (
            "protobuf",
            &[("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")],
        ),
    ] {
        let (mut first, mut again, mut bytes) = (Vec::new(), Vec::new(), 0);
        within(PATIENCE, "a reading is scraped five times within a second, for the third time", || {
            thread::sleep(agent.coalesced_for());
            let mut stream = http::connect_from(loopback(1), agent.address())?;
            let mut ask = || -> Result<(Duration, Vec<u8>)> {
                let before = cpu_of(&agent)?;
                let (code, _, body) = http::get_again(&mut stream, "/metrics", headers)?;
                ensure!(code == 200, "{code}");
                Ok((cpu_of(&agent)?.saturating_sub(before), body))
            };
            let start = Instant::now();
            let (cost, body) = ask()?;
            let others = (0..4).map(|_| ask()).collect::<Result<Vec<_>>>()?;
            // Scrapes within a second after the reading, which began after `start`, return the same reading.
            if start.elapsed() < Duration::from_millis(900) {
                ensure!(others.iter().all(|(_, other)| *other == body), "other bytes of the same reading");
                bytes = body.len();
                first.push(cost);
                again.extend(others.into_iter().map(|(cost, _)| cost));
            }
            Ok((first.len() == 3).then_some(()))
        })?;
        first.sort_unstable();
        again.sort_unstable();
        let (first, again) = (first[first.len() / 2], again[again.len() / 2]);
        println!("{name}, {bytes} bytes: the first scrape of a reading {first:?} of CPU time, another one {again:?}");
        ensure!(again * 10 <= first, "{name}: another scrape costs {again:?}, and the first {first:?}");
    }
    Ok(())
}

fn over_the_servers_cap_pages_are_refused_and_scrapes_go_on() -> Result<()> {
    let limits = "server: {limits: {maxPercent: 0.01, requestsPerSecond: 0}}\noverhead: {}\n";
    // In a test build, the first stacks may go over the agent's own cap.
    let agent = Agent::start(&format!("{limits}{SHARES_READINGS}{NO_STACKS}"))?;
    let page = || agent.get("/", &[("Accept", "text/html")]);
    let head = within(SOON, "a page is refused", || {
        let (code, head, _) = page()?;
        match code {
            200 => Ok(None),
            503 => Ok(Some(head)),
            code => bail!("{code}: {head}"),
        }
    })?;
    let wait = head.lines().find_map(|line| line.strip_prefix("retry-after: ")).context("no `Retry-After`")?;
    let wait: u64 = wait.trim().parse()?;
    ensure!((1..=60).contains(&wait), "{head}");
    // This reader sends the request of a Prometheus, and more often.
    within(PATIENCE, "two scrapes take less than 5 s", || {
        let start = Instant::now();
        ensure!(agent.get("/metrics", &[])?.0 == 200, "a scrape is refused");
        let second = agent.get("/metrics", &[])?.0;
        if start.elapsed() >= BETWEEN_SCRAPES {
            thread::sleep(BETWEEN_SCRAPES + Duration::from_millis(100));
            return Ok(None);
        }
        ensure!(second == 503, "a second scrape within 5 s is answered {second}");
        Ok(Some(()))
    })?;
    ensure!(agent.get("/livez", &[])?.0 == 200, "a probe is refused");
    thread::sleep(BETWEEN_SCRAPES + Duration::from_millis(100));
    let metrics = agent.metrics().context("a scrape after 5 s")?;
    let refused = metrics.sum("podperf_http_refusals_total", &[("reason", "cpu")]);
    ensure!(refused >= 2.0, "{refused} refused");
    ensure!(metrics.get("podperf_server_overhead_limit_ratio", &[]) == Some(0.0001), "no cap");
    ensure!(metrics.get("podperf_part_state", &[("part", "server"), ("state", "degraded")]) == Some(1.0), "not told");
    ensure!(metrics.sum("podperf_overhead_shed", &[("cap", "cpu")]) == 0.0, "the sensors gave something up");
    Ok(())
}

fn one_reader_uses_up_nobody_elses_rate() -> Result<()> {
    let agent = Agent::start(&format!("{DEFAULTS}{SHARES_READINGS}{NO_STACKS}"))?;
    let scrape = |source: u8| -> Result<u16> {
        let mut stream = http::connect_from(loopback(source), agent.address())?;
        Ok(http::get_again(&mut stream, "/metrics", &[])?.0)
    };
    // The scraper's address sends requests that fail, and another address sends more requests than the rate allows.
    for (asks, path, scrapes) in [(2, "/nothing", 2), (3, "/status", 2)] {
        let asking: Vec<_> = (0..40).map(|_| Reader::start(&agent, loopback(asks), path, Duration::ZERO)).collect();
        thread::sleep(Duration::from_secs(2));
        for _ in 0..20 {
            let code = scrape(scrapes)?;
            ensure!(code == 200, "a scrape beside {path} is {code}");
            thread::sleep(Duration::from_millis(100));
        }
        let codes = asking.into_iter().map(Reader::end).collect::<Result<Vec<_>>>()?.concat();
        let refused = codes.iter().filter(|code| **code == 429).count();
        ensure!(refused > 0, "nothing was refused of {} requests for {path}", codes.len());
    }
    Ok(())
}

fn an_agent_whose_reading_is_slow_lives_and_one_that_hangs_does_not() -> Result<()> {
    let agent = Agent::start(NO_STACKS)?;
    let livez = || http::get_text(agent.address(), "/livez");
    ensure!(livez()?.0 == 200, "{:?}", livez()?);
    let mut collector = None;
    for task in fs::read_dir(format!("/proc/{}/task", agent.pid()))? {
        let task = task?;
        if fs::read_to_string(task.path().join("comm"))?.trim() == "podperf-kernel" {
            collector = Some(Pid::from_raw(task.file_name().to_string_lossy().parse()?));
        }
    }
    let collector = collector.context("no thread `podperf-kernel`")?;
    // A stopped thread stands for a system call that does not return. All other threads run.
    ptrace::seize(collector, ptrace::Options::empty())?;
    ptrace::interrupt(collector)?;
    waitpid(collector, Some(WaitPidFlag::__WALL))?;
    let held = Instant::now();
    let times = if long() { [Duration::from_secs(40), Duration::from_secs(90)] } else { [Duration::from_secs(5); 2] };
    while held.elapsed() < times[0] {
        let (code, says) = livez()?;
        ensure!(code == 200, "after {:?}: {says}", held.elapsed());
        thread::sleep(Duration::from_millis(250));
    }
    if long() {
        let says = within(times[1], "the agent says that it hangs", || {
            let (code, says) = livez()?;
            Ok((code == 503).then_some(says))
        })?;
        ensure!(says.contains("`podperf-kernel` has not turned for 6"), "{says}");
        ensure!(held.elapsed() > Duration::from_secs(59), "after {:?}", held.elapsed());
    }
    ptrace::detach(collector, None)?;
    within(SOON, "the thread turns again", || Ok((livez()?.0 == 200).then_some(())))?;
    agent.metrics().map(drop)
}
