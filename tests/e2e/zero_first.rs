//! New series start at zero, so `increase()` has the counts of a job between two scrapes.

use std::{
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics, SHARES_READINGS},
    cgroup::TestCgroup,
    command::run_load,
    load::cpu::CpuReport,
    prometheus::{History, Prometheus},
    suite::{Need, Test, tell, within},
    tests,
};
use serde_json::json;

pub(crate) const TESTS: &[Test] = tests![
    #[beside] a_job_between_two_scrapes_is_in_its_increase: &[Need::Program("prometheus")],
    #[beside] each_of_two_scrapers_meets_the_zero_first: &[Need::Program("curl")],
];

const ONCPU: &str = "podperf_cgroup_oncpu_seconds_total";
const OFFCPU: &str = "podperf_cgroup_offcpu_seconds_total";
const WAIT: &str = "podperf_cgroup_wait_seconds_total";
/// The header of a scraper.
const SCRAPE_TIMEOUT: &str = "X-Prometheus-Scrape-Timeout-Seconds: 10";
const DEADLINE: Duration = Duration::from_secs(90);
/// The scrape interval, which is longer than the life of a job.
const INTERVAL: Duration = Duration::from_secs(6);
const BURNS: &str = "1.5";
const SLEEPS: Duration = Duration::from_millis(1500);

/// Sleeps and burns in its own cgroup, and removes it. Returns the cgroup's path and its CPU time.
fn job(name: &str) -> Result<(String, Duration)> {
    let cgroup = TestCgroup::new(name)?;
    let seconds = SLEEPS.as_secs_f64().to_string();
    let status = cgroup.command().args(["sleep", &seconds]).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "the sleeper ended badly: {status}");
    let _: CpuReport = run_load(cgroup.path(), &["spin", "--seconds", BURNS])?;
    Ok((cgroup.kernel_path().to_owned(), cgroup.cpu_usage()?))
}

fn a_job_between_two_scrapes_is_in_its_increase() -> Result<()> {
    // Windows of profiles give waits their reasons, and these windows end before the scrapes are over.
    let agent = Agent::start("otlp: {interval: 2s}")?;
    let scrape = json!({"job_name": "podperf", "static_configs": [{"targets": [agent.address()]}]});
    let global = json!({"scrape_interval": format!("{}s", INTERVAL.as_secs()), "scrape_timeout": "3s"});
    let prometheus = Prometheus::start_with(&json!({"global": global, "scrape_configs": [scrape]}), None)?;
    let scrapes =
        || Ok::<_, anyhow::Error>(prometheus.history("up[10m]")?.first().map_or(0, |(_, values)| values.len()));
    let begun = within(DEADLINE, "it scrapes", || Ok(scrapes().ok().filter(|scrapes| *scrapes > 0)))?;
    within(DEADLINE, "it has just scraped", || Ok((scrapes()? > begun).then_some(())))?;
    let (path, cpu) = job("job")?;

    // The test waits for the first scrape of each series.
    let series = [
        (format!("{ONCPU}{{cgroup=\"{path}\"}}"), cpu.as_secs_f64()),
        (format!("{OFFCPU}{{cgroup=\"{path}\",state=\"interruptible\"}}"), SLEEPS.as_secs_f64()),
        (format!("{WAIT}{{cgroup=\"{path}\",reason=\"sleep\"}}"), SLEEPS.as_secs_f64()),
    ];
    for (selector, truth) in series {
        let is_whole = |(_, values): &History| {
            let (first, last) = (values.first().map(|first| first.1), values.last().map(|last| last.1));
            first == Some(0.0) && last.is_some_and(|last| (last / truth - 1.0).abs() < 0.02)
        };
        let whole = within(DEADLINE, "the series is whole", || {
            Ok(prometheus.history(&format!("{selector}[10m]"))?.into_iter().find(is_whole))
        });
        let (_, values) =
            whole.with_context(|| format!("{selector}: {:?}", prometheus.history(&format!("{selector}[10m]"))))?;
        let (last, _) = values.last().context("no value")?;
        // The time of the query is the last scrape: Prometheus extrapolates at later times.
        let at = format!("{}.{:03}", last / 1000, last % 1000);
        let increase = prometheus.query(&format!("increase({selector}[10m] @ {at})"))?;
        let increase = increase.first().with_context(|| format!("no increase of {selector}: {values:?}"))?.value;
        tell(&format!("{selector}: increase {increase:.4} s, truth {truth:.4} s"));
        ensure!((increase / truth - 1.0).abs() < 0.02, "{increase} s of {truth} s: {values:?}");
    }
    Ok(())
}

fn each_of_two_scrapers_meets_the_zero_first() -> Result<()> {
    // A scraper that is silent for two of its intervals is not expected, and the job takes longer than two short ones.
    let agent = Agent::start(SHARES_READINGS)?;
    let url = format!("http://{}/metrics", agent.address());
    let scrape = |from: &str| -> Result<Metrics> {
        let output = Command::new("curl")
            .args(["--silent", "--fail", "--interface", from, "--header", SCRAPE_TIMEOUT, &url])
            .output()?;
        ensure!(output.status.success(), "curl ended badly: {}", output.status);
        Ok(Metrics::parse(&String::from_utf8(output.stdout)?))
    };
    // After two scrapes of each scraper, the agent expects both again.
    let scrapers = ["127.0.0.1", "127.0.0.2"];
    let mut seen = [Vec::new(), Vec::new()];
    let mut path = None;
    for round in 0..8 {
        if round == 3 {
            path = Some(job("twice")?);
        }
        for (scraper, seen) in scrapers.iter().zip(&mut seen) {
            thread::sleep(agent.coalesced_for());
            let metrics = scrape(scraper)?;
            if let Some((path, _)) = &path {
                seen.extend(metrics.get(ONCPU, &[("cgroup", path)]));
            }
        }
    }
    let (_, cpu) = path.context("no job")?;
    for (scraper, seen) in scrapers.iter().zip(seen) {
        let last = seen.last().copied().unwrap_or_default();
        let whole = (last / cpu.as_secs_f64() - 1.0).abs() < 0.02;
        ensure!(seen.first() == Some(&0.0) && whole, "{scraper} saw {seen:?}, and the truth is {cpu:?}");
    }
    Ok(())
}
