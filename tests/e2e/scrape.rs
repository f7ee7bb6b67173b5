//! Answers of `/metrics`, `/status` and the probes, and a check by Prometheus and promtool.

use std::{
    collections::BTreeSet,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics, NO_STACKS, SHARES_READINGS},
    cgroup::TestCgroup,
    command::run_load,
    load::{cpu::CpuReport, sleepers::SleepersReport},
    prometheus::{Prometheus, Version},
    reference::reference,
    running::Load,
    suite::{Test, tell, within},
    tests,
};
use serde_json::Value;

pub(crate) const TESTS: &[Test] = tests![
    #[land] a_started_agent_is_alive_and_ready,
    #[beside] probes_make_no_reading,
    #[land] the_accept_header_chooses_the_format,
    #[land] all_formats_hold_the_same_families,
    #[land] #[measures] scrapes_within_a_second_share_a_reading,
    #[land] #[beside] a_scrape_holds_nothing_that_the_reference_does_not_tell,
    #[beside] promtool_2_has_no_complaints: Version::TWO => || promtool_has_no_complaints(Version::Two),
    #[beside] promtool_3_has_no_complaints: Version::THREE => || promtool_has_no_complaints(Version::Three),
    #[land] status_names_every_part_and_event_with_its_state,
    #[land] #[beside] prometheus_2_scrapes_every_series_unharmed: Version::TWO => || every_series_is_scraped_unharmed(Version::Two),
    prometheus_3_scrapes_every_series_unharmed: Version::THREE => || every_series_is_scraped_unharmed(Version::Three),
    prometheus_2_takes_native_histograms: Version::TWO => || native_histograms_are_taken(Version::Two),
    prometheus_3_takes_native_histograms: Version::THREE => || native_histograms_are_taken(Version::Three),
];

pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0";
pub(crate) const PROTOBUF: &str =
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";

fn a_started_agent_is_alive_and_ready() -> Result<()> {
    let agent = Agent::start("")?;
    for path in ["/livez", "/readyz"] {
        let (status, _, body) = agent.get(path, &[])?;
        ensure!(status == 200 && body == b"ok\n", "{path} answered {status}: {}", String::from_utf8_lossy(&body));
    }
    let (status, _, _) = agent.get("/nothing", &[])?;
    ensure!(status == 404, "an unknown path answered {status}");
    Ok(())
}

fn probes_make_no_reading() -> Result<()> {
    const PROBES: u32 = 50;
    let agent = Agent::start(NO_STACKS)?;
    let readings = || agent.metrics()?.get("podperf_readings_total", &[]).context("no count of readings");
    let before = readings()?;
    for _ in 0..PROBES {
        // The agent returns a reading again for less than this.
        thread::sleep(Duration::from_millis(20));
        ensure!(agent.get("/readyz", &[])?.0 == 200, "not ready");
    }
    // The agent's own readings, and the scrape.
    let new = readings()? - before;
    ensure!(new < f64::from(PROBES / 4), "{new} readings beside {PROBES} probes");
    Ok(())
}

fn the_accept_header_chooses_the_format() -> Result<()> {
    let agent = Agent::start("")?;
    for (accept, content_type) in [
        (None, "text/plain; version=0.0.4"),
        (Some("*/*"), "text/plain; version=0.0.4"),
        (Some(OPEN_METRICS), "application/openmetrics-text; version=1.0.0"),
        (Some(PROTOBUF), "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily"),
    ] {
        let headers: Vec<_> = accept.map(|accept| ("Accept", accept)).into_iter().collect();
        let (status, head, body) = agent.get("/metrics", &headers)?;
        ensure!(status == 200, "{accept:?} got {status}");
        ensure!(head.contains(&format!("content-type: {content_type}")), "{accept:?} got: {head}");
        let ends = body.ends_with(b"\n# EOF\n");
        ensure!(ends == (accept == Some(OPEN_METRICS)), "{accept:?}: the end of OpenMetrics is there: {ends}");
    }
    Ok(())
}

fn all_formats_hold_the_same_families() -> Result<()> {
    const DEADLINE: Duration = Duration::from_secs(30);
    let agent = Agent::start("counters: {groups: [[cpu-clock, page-faults]]}")?;
    let body = |accept: &str| agent.get("/metrics", &[("Accept", accept)]).map(|(_, _, body)| body);
    let text_of = |accept: &str| Ok::<_, anyhow::Error>(String::from_utf8(body(accept)?)?);
    let series = |text: &str| -> BTreeSet<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
    };
    let (text, open_metrics, protobuf) = within(DEADLINE, "no series begins between the scrapes", || {
        let (text, open_metrics, protobuf) = (text_of("text/plain")?, text_of(OPEN_METRICS)?, body(PROTOBUF)?);
        Ok((series(&text) == series(&text_of("text/plain")?)).then_some((text, open_metrics, protobuf)))
    })?;
    let families = |text: &str| -> BTreeSet<String> {
        text.lines().filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split_once(' ')?.0.to_owned())).collect()
    };
    let expected = families(&text);
    for family in ["podperf_cgroup_oncpu_seconds_total", "podperf_cgroup_perf_events_total", "podperf_build_info"] {
        ensure!(expected.contains(family), "no `{family}` in {expected:?}");
    }

    // In OpenMetrics, a counter's family name has no `_total`, and the names of its samples have it.
    let short = |family: &String| family.trim_end_matches("_total").to_owned();
    ensure!(families(&open_metrics) == expected.iter().map(short).collect(), "OpenMetrics differs:\n{open_metrics}");
    ensure!(series(&open_metrics) == series(&text), "OpenMetrics has other series:\n{open_metrics}\n{text}");

    let decoded: BTreeSet<String> = delimited(&protobuf)?.into_iter().map(name_of).collect::<Result<_>>()?;
    ensure!(decoded == expected, "protobuf has other families: {decoded:?}");
    Ok(())
}

/// Splits a stream of messages. A varint before each message is its length.
fn delimited(mut bytes: &[u8]) -> Result<Vec<&[u8]>> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let length = varint(&mut bytes)?;
        let (message, rest) = bytes.split_at_checked(length).context("a message that ends too early")?;
        messages.push(message);
        bytes = rest;
    }
    Ok(messages)
}

/// Returns the first field of a `MetricFamily`.
fn name_of(mut message: &[u8]) -> Result<String> {
    let tag = varint(&mut message)?;
    ensure!(tag == 1 << 3 | 2, "a family that begins with tag {tag}");
    let length = varint(&mut message)?;
    Ok(String::from_utf8(message.get(..length).context("a name that ends too early")?.to_vec())?)
}

fn varint(bytes: &mut &[u8]) -> Result<usize> {
    let mut value = 0;
    for shift in (0..usize::BITS).step_by(7) {
        let (first, rest) = bytes.split_first().context("a number that ends too early")?;
        *bytes = rest;
        value |= usize::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    anyhow::bail!("a number that does not end")
}

fn scrapes_within_a_second_share_a_reading() -> Result<()> {
    let agent = Agent::start(SHARES_READINGS)?;
    let readings = |metrics: Metrics| metrics.get("podperf_readings_total", &[]).context("no count of readings");
    let first = readings(agent.fresh_metrics()?)?;
    let second = readings(agent.metrics()?)?;
    ensure!(first == second, "a scrape at once was a reading of its own: {first}, then {second}");
    let third = readings(agent.fresh_metrics()?)?;
    ensure!(third == first + 1.0, "a scrape a second later was {} readings", third - first);
    Ok(())
}

fn promtool_has_no_complaints(version: Version) -> Result<()> {
    let mut software = String::from(
        "cpu-clock, task-clock, page-faults, context-switches, cpu-migrations, minor-faults, major-faults, \
         alignment-faults, emulation-faults, cgroup-switches",
    );
    if Path::new("/sys/bus/event_source/devices/msr/events/tsc").exists() {
        software.push_str("], [msr/tsc/");
    }
    let everything = format!(
        "counters: {{groups: [[{software}], ['nosuchpmu/event=1/']]}}\notlp: {{endpoint: 'http://127.0.0.1:1', interval: 1s}}"
    );
    for yaml in ["", everything.as_str()] {
        let agent = Agent::start(yaml)?;
        let (_, _, text) = agent.get("/metrics", &[])?;
        let mut promtool = Command::new(version.program("promtool")?)
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        promtool.stdin.take().context("no stdin")?.write_all(&text)?;
        let output = promtool.wait_with_output()?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure!(output.status.success() && said.is_empty(), "with `{yaml}`, promtool: {}: {said}", output.status);
    }
    Ok(())
}

fn status_names_every_part_and_event_with_its_state() -> Result<()> {
    let agent = Agent::start("counters: {groups: [[cpu-clock], ['nosuchpmu/event=1/']]}\nnodeName: node-7")?;
    let (_, head, body) = agent.get("/status", &[("Accept", "application/json")])?;
    ensure!(head.contains("content-type: application/json"), "{head}");
    let status: Value = serde_json::from_slice(&body)?;
    ensure!(status["node"] == "node-7", "{status}");
    let (_, _, text) = agent.get("/status", &[])?;
    let text = String::from_utf8(text)?;
    ensure!(text.contains("on node node-7"), "{text}");

    let state = |list: &str, key: &str, name: &str| -> Option<String> {
        let entry = status[list].as_array()?.iter().find(|entry| entry[key] == name)?;
        Some(entry["state"].as_str()?.to_owned())
    };
    let metrics = agent.metrics()?;
    for (part, expected) in [
        ("scheduling sensor", "healthy"),
        ("cgroup sensor", "healthy"),
        ("counters", "degraded"),
        ("stacks", "healthy"),
        ("losses", "healthy"),
    ] {
        let found = state("parts", "part", part);
        ensure!(found.as_deref() == Some(expected), "`{part}` is {found:?}, not {expected}: {status}");
        let has_line = text.lines().any(|line| line.starts_with(part) && line.contains(expected));
        ensure!(has_line, "no line `{part} {expected}` in: {text}");
        let set: Vec<_> = ["healthy", "degraded", "unsupported", "failed"]
            .into_iter()
            .filter(|state| metrics.get("podperf_part_state", &[("part", part), ("state", state)]) == Some(1.0))
            .collect();
        ensure!(set == [expected], "podperf_part_state of `{part}` says {set:?}");
    }
    for (event, expected, available) in [("cpu-clock", "placed", 1.0), ("nosuchpmu/event=1/", "unsupported", 0.0)] {
        let found = state("events", "event", event);
        ensure!(found.as_deref() == Some(expected), "`{event}` is {found:?}, not {expected}: {status}");
        let has_line = text.lines().any(|line| line.trim().starts_with(event) && line.contains(expected));
        ensure!(has_line, "no line `{event} {expected}` in: {text}");
        let metric = metrics.get("podperf_pmu_event_available", &[("event", event)]);
        ensure!(metric == Some(available), "podperf_pmu_event_available of `{event}` is {metric:?}");
    }
    Ok(())
}

fn every_series_is_scraped_unharmed(version: Version) -> Result<()> {
    const DEADLINE: Duration = Duration::from_secs(30);
    let slice = TestCgroup::new("prometheus")?;
    // systemd escapes a dash in a unit name like this.
    let scope = slice.child_named("a\\x2db.scope")?;
    let agent = Agent::start("")?;
    let truth: CpuReport = run_load(scope.path(), &["spin", "--seconds", "0.3"])?;
    // Waits for the end of the load and its last reading.
    thread::sleep(Duration::from_millis(1100));
    let prometheus = Prometheus::start_as(version, agent.address())?;
    let first = |query: &str| -> Result<f64> {
        let found = within(DEADLINE, query, || {
            // Prometheus accepts no connections at first.
            Ok(prometheus.query(query).ok().and_then(|series| Some(series.first()?.value)))
        });
        found.with_context(|| prometheus.log())
    };
    first("up == 1")?;
    let runs = prometheus.version()?;
    ensure!(runs.starts_with(version.series()), "prometheus is {runs}");
    // On a busy machine a scrape may take longer than its second. One that fails by its content always does.
    first("(min_over_time(up[4s]) == 1) and (count_over_time(up[4s]) >= 3)")?;

    let build = prometheus.query("podperf_build_info")?;
    let version = build.first().and_then(|series| series.labels.get("version")).context("no podperf_build_info")?;
    ensure!(version == env!("CARGO_PKG_VERSION"), "the build is {version}");
    let burnt = Duration::from_nanos(truth.inside.cpu_ns).as_secs_f64();
    let right = 0.98 * burnt..1.02 * burnt + 0.01;
    // The first scrape of a new series of a counter is 0.
    let (mut rows, path) = (Vec::new(), scope.kernel_path());
    within(DEADLINE, "prometheus has the time that was burnt", || {
        rows = prometheus.query("podperf_cgroup_oncpu_seconds_total")?;
        let mut row = rows.iter().filter(|row| row.labels["cgroup"] == path);
        Ok(row.any(|row| right.contains(&row.value)).then_some(()))
    })
    .with_context(|| format!("burnt {burnt} s in `{path}`, and prometheus has {rows:?}"))?;
    // Prometheus counts the accepted series. The agent counts all series but this count itself.
    let missing = first("podperf_exported_series + 1 - on(instance) scrape_samples_scraped")?;
    ensure!(missing == 0.0, "{missing} series did not arrive");
    Ok(())
}

/// A realtime task has the CPU for 6 of 8 ms, and the load wakes up 2 ms after it last ran: it waits for 6 ms.
fn native_histograms_are_taken(version: Version) -> Result<()> {
    const DEADLINE: Duration = Duration::from_secs(30);
    let agent = Agent::start("sensors: {histograms: {enabled: true}}")?;
    let (realtime, cgroup) = (TestCgroup::new("realtime")?, TestCgroup::new("queued")?);
    let fifo =
        format!("fifo --seconds 0.006 --times 5000 --pause-millis 2 --cpu 0 --cgroup {}", realtime.path().display());
    let bursts = Load::start(&fifo)?;
    let sleepers = ["sleepers", "--waits", "300", "--millis", "2", "--cpu", "0"];
    let _: SleepersReport = run_load(cgroup.path(), &sleepers)?;
    drop(bursts);
    let (_, _, text) = agent.get("/metrics", &[])?;
    ensure!(!String::from_utf8(text)?.contains("runqueue_latency"), "a text has histograms without classic buckets");
    let prometheus = Prometheus::start_native(version, agent.address())?;
    let first = |query: &str| -> Result<f64> {
        let found =
            within(DEADLINE, query, || Ok(prometheus.query(query).ok().and_then(|series| Some(series.first()?.value))));
        found.with_context(|| prometheus.log())
    };
    // The first scrape of a new series of a counter is 0.
    first("count_over_time(up[1m]) >= 3")?;
    let of = format!("{{cgroup=\"{}\"}}", cgroup.kernel_path());
    let latency = format!("podperf_cgroup_runqueue_latency_seconds{of}");
    let quantile = first(&format!("histogram_quantile(0.99, {latency})"))?;
    tell(&format!("the 99th percentile is {quantile:.6} s"));
    // One bucket around the 6 ms, which are between 2^-8 and 2^-7 s.
    ensure!((2_f64.powi(-9)..2_f64.powi(-6)).contains(&quantile), "the 99th percentile is {quantile} s");
    let counter =
        format!("podperf_cgroup_offcpu_seconds_total{{cgroup=\"{}\",state=\"run_queue\"}}", cgroup.kernel_path());
    let apart = first(&format!("histogram_sum({latency}) - on(cgroup) {counter}"))?;
    ensure!(apart == 0.0, "the sum is {apart} s from the counter");
    Ok(())
}

fn a_scrape_holds_nothing_that_the_reference_does_not_tell() -> Result<()> {
    let agent = Agent::start(
        "sensors: {histograms: {enabled: true}}\n\
         counters: {groups: [[cpu-clock, 'page-faults:u'], ['nosuchpmu/event=1/']]}\n\
         metrics: {facts: [oncpu, offcpu, wait_reasons, wait_counts, incomplete_stacks, \
         context_switches, cpu_migrations, page_faults, profile_samples], classicBuckets: true}\n\
         otlp: {endpoint: 'http://127.0.0.1:1', interval: 1s}",
    )?;
    let reference = reference()?;
    let metrics = agent.fresh_metrics()?;
    ensure!(metrics.samples().len() > 100, "only {} series", metrics.samples().len());
    for sample in metrics.samples() {
        // The series of a histogram with classic buckets have the names and the label of the format.
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| sample.name.strip_suffix(suffix));
        let labels = reference.get(&sample.name).or_else(|| reference.get(of_histogram?));
        let labels = labels.with_context(|| format!("`{}` is not told of", sample.name))?;
        let of_its_own = |label: &str| of_histogram.is_some() && label == "le";
        let own = |label: &&String| !labels.contains(*label) && !of_its_own(label);
        let unknown: Vec<_> = sample.labels.keys().filter(own).collect();
        ensure!(unknown.is_empty(), "`{}` has the labels {unknown:?}", sample.name);
    }
    Ok(())
}
