//! The sensor `functions`. The truth is the clock of the load that calls them.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{Agent, Metrics, Sample},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    http,
    load::{self, sleepers::SleepersReport},
    process::{bind_to_parent, end},
    running::{Load, count, run, time},
    suite::{self, Need, Test, tell},
    tests,
};

use crate::pmu::PERF;

pub(crate) const TESTS: &[Test] = tests![
    #[land]
    calls_of_a_program_are_counted_with_their_length,
    a_function_is_found_in_the_file_system_of_a_container: &[Need::Program("unshare"), Need::Program("mount")],
    a_pod_with_many_files_takes_no_probes_from_others: &[Need::Program("unshare"), Need::Program("mount")],
    #[exact]
    counts_follow_the_name_of_a_function_when_the_list_changes,
    a_function_of_the_kernel_is_measured_or_refused_by_its_name,
    calls_of_the_kernel_have_the_histogram_of_perf_ftrace: &[Need::OwnMachine, PERF, Need::Path(KPROBES)],
    a_recording_measures_a_function_of_its_subject_and_nothing_after_it,
    a_recording_ends_early_by_calls_of_its_own_function_alone,
    readers_have_no_function_measured_that_the_configuration_does_not_allow,
    #[land]
    a_function_that_is_not_in_the_file_is_refused_and_the_others_are_measured,
];

const LATENCY: &str = "podperf_cgroup_function_latency_seconds";
const KPROBES: &str = "/sys/bus/event_source/devices/kprobe/type";
const WAITS: u32 = 40;
const MILLIS: u64 = 5;

/// Returns the configuration that measures these functions.
fn yaml(functions: &[String]) -> String {
    let list = functions.join(", ");
    format!("sensors: {{functions: {{enabled: true}}}}\nfunctions: [{list}]\nmetrics: {{classicBuckets: true}}")
}

/// Returns an item of the list: a function of this file, with its symbol as its name.
pub(crate) fn of_program(binary: &Path, symbol: &str) -> String {
    format!("{{name: {symbol}, binary: {}, symbol: {symbol}}}", binary.display())
}

/// Returns state and detail of the part `functions`.
fn part(agent: &Agent) -> Result<(String, String)> {
    let (_, _, body) = agent.get("/status", &[("Accept", "application/json")])?;
    let status: serde_json::Value = serde_json::from_slice(&body)?;
    let mut parts = status["parts"].as_array().context("no parts at /status")?.iter();
    let part = parts.find(|part| part["part"] == "functions").context("no part `functions`")?;
    let text = |key: &str| part[key].as_str().unwrap_or_default().to_owned();
    Ok((text("state"), text("detail")))
}

/// Waits until the part `functions` says this.
pub(crate) fn wait_until_told(agent: &Agent, state: &str, says: &str) -> Result<()> {
    suite::within(Duration::from_secs(60), &format!("`functions` is {state}: {says}"), || {
        let (found, detail) = part(agent)?;
        Ok((found == state && detail.contains(says)).then_some(()))
    })
}

fn sleepers(cgroup: &TestCgroup) -> String {
    format!("sleepers --waits {WAITS} --millis {MILLIS} --depth 3 --cgroup {}", cgroup.path().display())
}

/// Checks that there are these calls, not shorter than the sleeps in them, and not longer than they took by the load's
/// own clock. Returns their time.
fn calls_are(metrics: &Metrics, cgroup: &TestCgroup, function: &str, waits: u32, waited: Duration) -> Result<Duration> {
    let labels = [("function", function)];
    let found = count(metrics, &format!("{LATENCY}_count"), cgroup, &labels)?;
    ensure!(found == f64::from(waits), "{found} calls of `{function}`, and the load made {waits}");
    let sum = time(metrics, &format!("{LATENCY}_sum"), cgroup, &labels)?;
    let slept = Duration::from_millis(MILLIS) * waits;
    ensure!(
        (slept..=waited).contains(&sum),
        "`{function}` took {sum:?} in sleeps of {slept:?}, by the load {waited:?}"
    );
    let border = 2_f64.powi(-8).to_string();
    let short = count(metrics, &format!("{LATENCY}_bucket"), cgroup, &[labels[0], ("le", border.as_str())])?;
    ensure!(short == 0.0, "{short} calls of `{function}` are shorter than the sleep in them");
    Ok(sum)
}

/// `podperf_recurse` calls itself three times, and only the outermost call counts.
fn calls_of_a_program_are_counted_with_their_length() -> Result<()> {
    let binary = load::binary()?;
    let (inner, outer) = ("podperf_wait_outer", "podperf_recurse");
    let agent = Agent::start(&yaml(&[of_program(&binary, inner), of_program(&binary, outer)]))?;
    wait_until_told(&agent, "healthy", &format!("`{inner}` in 1 file, `{outer}` in 1 file"))?;
    let cgroup = TestCgroup::new("called")?;
    let report: SleepersReport = run(&sleepers(&cgroup))?;
    let metrics = agent.fresh_metrics()?;
    let waited = Duration::from_nanos(report.waited_ns);
    let in_inner = calls_are(&metrics, &cgroup, inner, WAITS, waited)?;
    let in_outer = calls_are(&metrics, &cgroup, outer, WAITS, waited)?;
    ensure!(in_outer > in_inner, "{in_outer:?} with the calls inside, which took {in_inner:?}");
    let lost = metrics.get("podperf_bpf_drops_total", &[("reason", "functions_missed_end")]);
    ensure!(lost == Some(0.0), "ends of calls are missed: {lost:?}");
    let runs = |program| metrics.get("podperf_bpf_program_runs_total", &[("program", program)]);
    // Four calls of the outer function and one of the inner, for each wait.
    let expected = Some(f64::from(5 * WAITS));
    ensure!(runs("functions_begin") == expected && runs("functions_end") == expected, "not {expected:?} runs");
    Ok(())
}

/// The file is in a mount namespace of its own, under a path that nobody else has.
fn a_function_is_found_in_the_file_system_of_a_container() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (binary, function) = (directory.path().join("program"), "podperf_wait_outer");
    let agent = Agent::start(&yaml(&[of_program(&binary, function)]))?;
    wait_until_told(&agent, "healthy", &format!("`{function}` nowhere"))?;
    let cgroup = TestCgroup::new("contained")?;
    let script = format!(
        "mount -t tmpfs tmpfs {} && cp {} {} && echo ready && read go && exec {} {}",
        directory.path().display(),
        load::binary()?.display(),
        binary.display(),
        binary.display(),
        sleepers(&cgroup)
    );
    let mut command = Command::new("unshare");
    bind_to_parent(&mut command);
    command.args(["-m", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut contained = command.spawn().context("failed to start unshare")?;
    let mut output = BufReader::new(contained.stdout.take().context("no stdout")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    ensure!(line == "ready\n", "the container said `{line}`");
    wait_until_told(&agent, "healthy", &format!("`{function}` in 1 file"))?;
    contained.stdin.take().context("no stdin")?.write_all(b"go\n")?;
    let mut report = String::new();
    output.read_to_string(&mut report)?;
    ensure!(contained.wait()?.success(), "the load failed");
    let report: SleepersReport = serde_json::from_str(&report)?;
    calls_are(&agent.fresh_metrics()?, &cgroup, function, WAITS, Duration::from_nanos(report.waited_ns))?;
    // The probe would keep the file system in use.
    wait_until_told(&agent, "healthy", &format!("`{function}` nowhere"))
}

/// A pod has more mount namespaces than there are probes, with another file in each. Another pod starts after that.
fn a_pod_with_many_files_takes_no_probes_from_others() -> Result<()> {
    let (directory, load) = (tempfile::tempdir()?, load::binary()?);
    let (binary, function) = (directory.path().join("program"), "podperf_wait_outer");
    let (load, file, mount) = (load.display(), binary.display(), directory.path().display());
    let (many, one) = (TestCgroup::new("many")?, TestCgroup::new("one")?);
    let agent = Agent::start(&yaml(&[of_program(&binary, function)]))?;
    let start = |cgroup: &TestCgroup, script: &str| {
        cgroup.command().args(["sh", "-c", script]).spawn().context("failed to start sh")
    };
    let contained = format!("mount -t tmpfs tmpfs {mount} && echo $1 >{file} && exec sleep 600");
    let script = format!("for file in $(seq 70); do unshare -m sh -c '{contained}' sh $file & done; wait");
    let mut noisy = start(&many, &script)?;
    wait_until_told(&agent, "degraded", "8 files of a function")?;
    let calls = format!("while {file} {} >/dev/null; do sleep 1; done", sleepers(&one));
    let script = format!("exec unshare -m sh -c 'mount -t tmpfs tmpfs {mount} && cp {load} {file} && {calls}'");
    let mut quiet = start(&one, &script)?;
    let counted = suite::within(Duration::from_secs(60), "calls in the other pod are counted", || {
        let metrics = agent.fresh_metrics()?;
        let found = count(&metrics, &format!("{LATENCY}_count"), &one, &[("function", function)]);
        Ok(found.is_ok_and(|calls| calls > 0.0).then_some(()))
    });
    end(&mut noisy, Signal::SIGKILL, Duration::from_secs(5));
    end(&mut quiet, Signal::SIGKILL, Duration::from_secs(5));
    counted
}

fn counts_follow_the_name_of_a_function_when_the_list_changes() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let binary = load::binary()?;
    let (inner, outer) = ("podperf_wait_outer", "podperf_recurse");
    let of = |functions: &[String]| format!("{}\n{}", bpffs.yaml(), yaml(functions));
    let mut agent = Agent::start(&of(&[of_program(&binary, inner), of_program(&binary, outer)]))?;
    wait_until_told(&agent, "healthy", &format!("`{inner}` in 1 file, `{outer}` in 1 file"))?;
    let cgroup = TestCgroup::new("renamed")?;
    let mut waited = Duration::ZERO;
    let report: SleepersReport = run(&sleepers(&cgroup))?;
    waited += Duration::from_nanos(report.waited_ns);
    // The second function becomes the first: its histogram has another place in the row.
    agent.restart(Signal::SIGTERM, &of(&[of_program(&binary, outer)]))?;
    wait_until_told(&agent, "healthy", &format!("measures `{outer}` in 1 file"))?;
    let report: SleepersReport = run(&sleepers(&cgroup))?;
    waited += Duration::from_nanos(report.waited_ns);
    let metrics = agent.fresh_metrics()?;
    calls_are(&metrics, &cgroup, outer, 2 * WAITS, waited)?;
    let gone = count(&metrics, &format!("{LATENCY}_count"), &cgroup, &[("function", inner)]);
    ensure!(gone.is_err(), "`{inner}` is no longer measured, and has a series");
    Ok(())
}

fn a_function_of_the_kernel_is_measured_or_refused_by_its_name() -> Result<()> {
    let list = ["{name: sleep, kernel: hrtimer_nanosleep}".to_owned(), "{name: none, kernel: podperf_none}".to_owned()];
    if !Path::new(KPROBES).exists() {
        let agent = Agent::start(&yaml(&list))?;
        return wait_until_told(&agent, "degraded", "`sleep` is not measured: this kernel has no kprobes");
    }
    let agent = Agent::start(&yaml(&list))?;
    wait_until_told(&agent, "degraded", "`none` is not measured: the kernel has no function of this name")?;
    let cgroup = TestCgroup::new("kernel")?;
    let report: SleepersReport = run(&sleepers(&cgroup))?;
    let metrics = agent.fresh_metrics()?;
    calls_are(&metrics, &cgroup, "sleep", WAITS, Duration::from_nanos(report.waited_ns)).map(drop)
}

/// Reads of zeroes take some time each; reads of a pipe also wait for its writer.
fn calls_of_the_kernel_have_the_histogram_of_perf_ftrace() -> Result<()> {
    let agent = Agent::start(&yaml(&["{name: read, kernel: vfs_read}".to_owned()]))?;
    wait_until_told(&agent, "healthy", "measures `read`")?;
    let directory = tempfile::tempdir()?;
    let pipe = directory.path().join("pipe").display().to_string();
    let write = format!("mkfifo {pipe}; (for i in $(seq 60); do sleep 0.01; echo -n x; done >{pipe}) &");
    for (before, read) in [
        ("", "dd if=/dev/zero of=/dev/null bs=1M count=300"),
        (&*write, &*format!("dd if={pipe} of=/dev/null bs=1 count=60")),
    ] {
        let cgroup = TestCgroup::new("read")?;
        let script = format!("{before} echo $$ >{}/cgroup.procs; exec {read}", cgroup.path().display());
        let mut perf = Command::new("perf");
        perf.args(["ftrace", "latency", "-T", "vfs_read", "--", "sh", "-c", &script]);
        let output = perf.output().context("failed to run perf")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "perf failed: {}", String::from_utf8_lossy(&output.stderr));
        let theirs = buckets_of_perf(&text);
        let ours = buckets(&agent.fresh_metrics()?, &cgroup, "read");
        for share in [0.1, 0.5, 0.9] {
            let (ours, theirs) = (border_of(&ours, share), border_of(&theirs, share));
            tell(&format!("{read}: {share} of the reads are below {ours:?} s, by perf {theirs:?} s"));
            let (ours, theirs) = ours.zip(theirs).with_context(|| format!("no reads of `{read}`:\n{text}"))?;
            // The borders of perf are powers of two of a microsecond, and ours of a second.
            ensure!((0.45..2.2).contains(&(ours / theirs)), "below {ours} s, by perf {theirs} s, of `{read}`:\n{text}");
        }
    }
    Ok(())
}

/// Returns the upper border of each bucket in seconds, and the calls in it, from perf's lines such as
/// `     4 - 8    us |         17 | ###`.
fn buckets_of_perf(text: &str) -> Vec<(f64, f64)> {
    let bucket = |line: &str| {
        let (range, rest) = line.split_once('|')?;
        let (_, above) = range.split_once('-')?;
        let (border, unit) = above.trim().split_once(' ')?;
        let unit = match unit.trim() {
            "us" => 1e-6,
            "ms" => 1e-3,
            _ => 1.0,
        };
        Some((border.parse::<f64>().unwrap_or(f64::INFINITY) * unit, rest.split('|').next()?.trim().parse().ok()?))
    };
    text.lines().filter_map(bucket).collect()
}

/// Returns the same of a function's histogram.
fn buckets(metrics: &Metrics, cgroup: &TestCgroup, function: &str) -> Vec<(f64, f64)> {
    let (family, path) = (format!("{LATENCY}_bucket"), cgroup.kernel_path());
    let labels = [("cgroup", path), ("function", function)];
    let has =
        |sample: &&Sample| labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|it| it == value));
    let ours = metrics.samples().iter().filter(|sample| sample.name == family).filter(has);
    let mut sums: Vec<(f64, f64)> =
        ours.filter_map(|it| Some((it.labels.get("le")?.parse().ok()?, it.value))).collect();
    sums.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut below = 0.0;
    sums.into_iter().map(|(border, sum)| (border, sum - std::mem::replace(&mut below, sum))).collect()
}

/// Returns the border below which this share of the calls is.
fn border_of(buckets: &[(f64, f64)], share: f64) -> Option<f64> {
    let all: f64 = buckets.iter().map(|(_, calls)| calls).sum();
    let mut below = 0.0;
    let found = buckets.iter().find(|(_, calls)| {
        below += calls;
        below > 0.0 && below >= all * share
    });
    found.map(|(border, _)| *border)
}

fn a_function_that_is_not_in_the_file_is_refused_and_the_others_are_measured() -> Result<()> {
    let (binary, function) = (load::binary()?, "podperf_wait_outer");
    let agent = Agent::start(&yaml(&[of_program(&binary, "podperf_none"), of_program(&binary, function)]))?;
    wait_until_told(&agent, "degraded", "the file has no function `podperf_none` in its symbol tables")?;
    let cgroup = TestCgroup::new("refused")?;
    let report: SleepersReport = run(&sleepers(&cgroup))?;
    let waited = Duration::from_nanos(report.waited_ns);
    calls_are(&agent.fresh_metrics()?, &cgroup, function, WAITS, waited).map(drop)
}

/// Any function, for recordings: none is in the list.
const ANY: &str = "sensors: {functions: {enabled: true}}\nserver: {anyFunction: true}";

/// Asks for the calls of a function, and runs a load when the recording has begun. Returns the status and the text, and
/// the report of the load, if the recording began.
fn recorded(agent: &Agent, cgroup: &TestCgroup, function: &str) -> Result<(u16, String, Option<SleepersReport>)> {
    let path = format!("/debug/latency?subject={}&function={function}&seconds=60&id=calls", cgroup.kernel_path());
    let of = |method: &str| http::ask(agent.address(), &format!("{method} /debug/recordings/calls"), &[], "");
    thread::scope(|scope| {
        let recording = scope.spawn(|| http::get_within(Duration::from_secs(120), agent.address(), &path));
        let begun = suite::within(Duration::from_secs(60), "the recording begins or is refused", || {
            // `seconds` is null before the start.
            let has_begun = |body: &[u8]| !String::from_utf8_lossy(body).contains("\"seconds\":null");
            let begun = of("GET").is_ok_and(|(status, _, body)| status == 200 && has_begun(&body));
            Ok((begun || recording.is_finished()).then_some(begun))
        });
        let report = begun.and_then(|begun| if begun { run(&sleepers(cgroup)).map(Some) } else { Ok(None) });
        of("DELETE").ok();
        let (status, _, body) = recording.join().expect("the client panicked")?;
        Ok((status, String::from_utf8(body)?, report?))
    })
}

/// Another cgroup has the same file in use, and calls the same function: its calls are not those of the subject.
fn a_recording_measures_a_function_of_its_subject_and_nothing_after_it() -> Result<()> {
    let agent = Agent::start(ANY)?;
    let (cgroup, other) = (TestCgroup::new("measured")?, TestCgroup::new("other")?);
    // A process of the subject sees the file before the load starts.
    let mut sees = cgroup.command().args(["sleep", "600"]).spawn().context("failed to start sleep")?;
    let function = format!("{}:podperf_wait_outer", load::binary()?.display());
    let beside = format!("sleepers --waits 1000 --millis 1 --depth 1 --cgroup {}", other.path().display());
    for round in 0..2 {
        let mut beside = Load::start(&beside)?;
        let (status, text, report) = recorded(&agent, &cgroup, &function)?;
        beside.report::<SleepersReport>()?;
        ensure!(status == 200, "round {round}: {status}: {text}");
        let waited = Duration::from_nanos(report.context("no load")?.waited_ns);
        let counted = Counted::of(&text).with_context(|| text.clone())?;
        ensure!(counted.calls == u64::from(WAITS), "{} calls, and the load made {WAITS}: {text}", counted.calls);
        // The bucket below ends at 2^-8 s, and sleeps of 5 ms are above that.
        ensure!(counted.first == "3.9 ms", "a call is shorter than the sleep in it: {text}");
        let slept = Duration::from_millis(MILLIS) * WAITS;
        let around = slept.saturating_sub(counted.step)..=waited + counted.step;
        ensure!(around.contains(&counted.total), "{:?} in sleeps of {slept:?}, {waited:?}: {text}", counted.total);
    }
    let runs = |agent: &Agent| -> Result<Option<f64>> {
        Ok(agent.fresh_metrics()?.get("podperf_bpf_program_runs_total", &[("program", "functions_begin")]))
    };
    let before = runs(&agent)?;
    let _: SleepersReport = run(&sleepers(&cgroup))?;
    let after = runs(&agent)?;
    ensure!(before.is_some() && before == after, "the probe is still there: {before:?} runs, then {after:?}");
    end(&mut sees, Signal::SIGKILL, Duration::from_secs(5));
    Ok(())
}

/// `podperf_recurse` calls itself once for each level, and `podperf_wait_outer` at the last level.
fn a_recording_ends_early_by_calls_of_its_own_function_alone() -> Result<()> {
    const SECONDS: f64 = 4.0;
    let agent = Agent::start(&format!("{ANY}\noverhead: {{maxPercent: 0}}"))?;
    let cgroup = TestCgroup::new("recursive")?;
    let _load =
        Load::start(&format!("sleepers --waits 100000 --millis 1 --depth 50 --cgroup {}", cgroup.path().display()))?;
    let mut sees = cgroup.command().args(["sleep", "600"]).spawn().context("failed to start sleep")?;
    let binary = load::binary()?;
    let begins = || -> Result<f64> {
        Ok(agent.fresh_metrics()?.sum("podperf_bpf_program_runs_total", &[("program", "functions_begin")]))
    };
    let record = |symbol: &str| -> Result<String> {
        let function = format!("{}:{symbol}", binary.display());
        let path = format!("/debug/latency?subject={}&function={function}&seconds={SECONDS}", cgroup.kernel_path());
        let (status, _, body) = http::get_within(Duration::from_secs(120), agent.address(), &path)?;
        let text = String::from_utf8(body)?;
        ensure!(status == 200, "{status}: {text}");
        Ok(text)
    };
    let before = begins()?;
    let (often, seldom) = thread::scope(|scope| {
        let often = scope.spawn(|| record("podperf_recurse"));
        let seldom = record("podperf_wait_outer");
        (often.join().expect("the client panicked"), seldom)
    });
    let (often, seldom, rate) = (often?, seldom?, (begins()? - before) / SECONDS);
    let is_early = |text: &str| text.contains("# ended early: the node calls it");
    suite::tell(&format!("{rate} begins a second, the recursive function ended early: {}", is_early(&often)));
    ensure!(!is_early(&seldom), "the recording of the other function ended early: {seldom}");
    // A slow machine does not make so many calls.
    ensure!(is_early(&often) || rate < 15_000.0, "{rate} calls a second were measured: {often}");
    end(&mut sees, Signal::SIGKILL, Duration::from_secs(5));
    Ok(())
}

/// A table of calls as a recording returns it.
struct Counted {
    calls: u64,
    /// The lower border of the first bucket.
    first: String,
    total: Duration,
    /// The total is rounded to this.
    step: Duration,
}

impl Counted {
    fn of(text: &str) -> Result<Self> {
        let bucket = text.lines().find(|line| !line.starts_with('#')).context("no bucket")?;
        let first = bucket.split_once(" - ").context("no border")?.0.trim().to_owned();
        let sums = text.lines().find_map(|line| line.strip_prefix("# calls ")).context("no sums")?;
        let (calls, rest) = sums.split_once(", total ").context("no total")?;
        let (total, unit) = rest.split_once(',').context("no average")?.0.split_once(' ').context("no unit")?;
        let unit = match unit {
            "us" => 1e-6,
            "ms" => 1e-3,
            _ => 1.0,
        };
        let (total, step) =
            (Duration::from_secs_f64(total.parse::<f64>()? * unit), Duration::from_secs_f64(unit / 10.0));
        Ok(Self { calls: calls.parse()?, first, total, step })
    }
}

fn readers_have_no_function_measured_that_the_configuration_does_not_allow() -> Result<()> {
    let (binary, function) = (load::binary()?, "podperf_wait_outer");
    let agent = Agent::start(&yaml(&[of_program(&binary, function)]))?;
    wait_until_told(&agent, "healthy", &format!("`{function}` in 1 file"))?;
    let cgroup = TestCgroup::new("allowed")?;
    let mut sees = cgroup.command().args(["sleep", "600"]).spawn().context("failed to start sleep")?;
    let refused = |agent: &Agent, function: &str, code: u16, says: &str| -> Result<()> {
        let (status, text, _) = recorded(agent, &cgroup, function)?;
        ensure!(status == code && text.contains(says), "`{function}` is not refused: {status}: {text}");
        Ok(())
    };
    refused(&agent, &format!("{}:podperf_recurse", binary.display()), 409, "`server.anyFunction: true`")?;
    let (status, text, report) = recorded(&agent, &cgroup, function)?;
    ensure!(status == 200 && report.is_some(), "{status}: {text}");
    ensure!(Counted::of(&text)?.calls == u64::from(WAITS), "{text}");
    drop(agent);
    let agent = Agent::start(ANY)?;
    refused(&agent, &format!("{}:podperf_none", binary.display()), 409, "the file has no function `podperf_none`")?;
    refused(&agent, "/nonexistent/program:main", 409, "no process of the subject sees a file")?;
    let kernel = if Path::new(KPROBES).exists() { "no function of this name" } else { "this kernel has no kprobes" };
    refused(&agent, "podperf_none", 409, kernel)?;
    refused(&Agent::start("")?, "vfs_read", 409, "the sensor `functions` is off")?;
    end(&mut sees, Signal::SIGKILL, Duration::from_secs(5));
    Ok(())
}
