//! `podperf record`, alone and through an agent: the load's own time in every format, and the error messages.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{Agent, STOP_DEADLINE},
    cgroup::TestCgroup,
    command::Refusal,
    load::sleepers::SleepersReport,
    suite::{Need, Test, within},
    tests,
};
use tempfile::TempDir;

use crate::{
    nobody::ForNobody,
    profiles::{Held, ensure_near},
    recorded::{Recording, command, slept},
};

pub(crate) const TESTS: &[Test] = tests![
    #[beside] recordings_have_the_loads_own_time_in_every_format: &[Need::Program("go")],
    #[land] #[measures] a_recording_has_only_its_own_time,
    #[beside] a_recording_is_answered_when_the_agent_ends,
    #[beside] a_deep_cgroup_is_recorded_alone,
    #[land] #[beside] what_cannot_be_recorded_is_said_with_the_way_out,
    #[land] #[beside] an_agent_that_cannot_record_is_named,
    #[land] #[beside] a_recording_alone_takes_root: &[Need::Program("setpriv")],
];

const DEADLINE: Duration = Duration::from_secs(30);
const FAILED: i32 = 1;
const BAD_ARGUMENTS: i32 = 2;
const UNSUPPORTED: i32 = 3;
/// Longer than any load here takes.
const UNTIL_INTERRUPTED: [&str; 2] = ["--duration", "2m"];

/// Runs the sleepers during these recordings, and returns the sleepers' report.
fn slept_meanwhile(cgroup: &TestCgroup, recordings: &mut [Recording]) -> Result<SleepersReport> {
    for recording in &mut *recordings {
        recording.begun()?;
    }
    let load = Held::start(cgroup, &["sleepers"])?;
    let where_it_waits = format!("/proc/{}/wchan", load.pid());
    within(DEADLINE, "the load has slept", || {
        Ok(fs::read_to_string(&where_it_waits)?.contains("pipe_write").then_some(()))
    })?;
    for recording in &*recordings {
        recording.interrupt()?;
    }
    for recording in recordings {
        recording.ended()?;
    }
    load.finish()
}

fn recordings_have_the_loads_own_time_in_every_format() -> Result<()> {
    // The interval is short, so windows also end in the middle of a recording.
    let agent = Agent::start("otlp: {interval: 1s}")?;
    knows_its_node(&agent)?;
    let (address, url) = (agent.address().to_string(), format!("http://{}", agent.address()));
    let cgroup = TestCgroup::new("recorded")?;
    let start = |extension: &str, arguments: &[&str]| {
        Recording::start("", extension, &[&[cgroup.kernel_path()][..], &UNTIL_INTERRUPTED, arguments].concat())
    };
    let off_cpu = ["--off-cpu", "--agent", &address];
    let mut recordings = [
        start("folded", &[])?,
        start("folded", &["--agent", &url])?,
        start("svg", &off_cpu)?,
        start("html", &off_cpu)?,
        start("pb.gz", &[&off_cpu[..], &["--lines"]].concat())?,
    ];
    let truth = slept_meanwhile(&cgroup, &mut recordings)?;
    let logs: Vec<_> = recordings.iter().map(Recording::log).collect();
    ensure!(logs.iter().all(|log| log.contains("Stacks, by time: ")), "not all say how whole stacks are: {logs:?}");
    let files = recordings.into_iter().map(Recording::finish).collect::<Result<Vec<_>>>()?;
    let [alone, folded, svg, html, pprof] = &*files else { anyhow::bail!("not five files") };
    for folded in [alone, folded] {
        ensure_near(slept(folded)?, truth.blocked(), "the load's own account")?;
        let whose = format!("{};sleep;", cgroup.kernel_path());
        let text = std::str::from_utf8(folded)?;
        ensure!(text.lines().any(|line| line.starts_with(&whose) && line.contains("nanosleep")), "{text}");
        ensure!(text.lines().all(|line| line.starts_with(cgroup.kernel_path())), "others are in it: {text}");
    }
    for picture in [svg, html] {
        let text = std::str::from_utf8(picture)?;
        let frame = text.lines().find(|line| line.contains("<title>podperf_wait_inner: "));
        let frame = frame.with_context(|| format!("no frame: {text}"))?;
        ensure!(frame.contains(" waits</title><rect class=\"idle\""), "{frame}");
    }
    ensure!(svg.starts_with(b"<svg ") && html.starts_with(b"<!doctype html>"), "wrong formats");
    let lines = pprof_top(pprof, "-lines")?;
    let is_line = |line: &str| line.contains(" podperf_wait_middle ") && line.contains("load/sleepers.rs:");
    ensure!(lines.lines().any(is_line), "{lines}");
    let top = pprof_top(pprof, "-functions")?;
    ensure!(top.contains("Type: off_cpu"), "{top}");
    let line = top.lines().find(|line| line.ends_with(" podperf_wait_inner")).with_context(|| top.clone())?;
    // The columns are the flat time, its share, the sum of shares, and the cumulated time.
    let seconds: f64 =
        line.split_whitespace().nth(3).and_then(|text| text.strip_suffix('s')).context("no time")?.parse()?;
    ensure_near(seconds * 1e9, truth.blocked(), "the load's own account")
}

/// Waits until the agent has looked up the names of its first windows. On a busy machine that takes seconds, and a
/// recording that begins before is refused.
fn knows_its_node(agent: &Agent) -> Result<()> {
    within(DEADLINE, "names", || Ok((agent.get("/debug/profile?seconds=1", &[])?.0 == 200).then_some(())))
}

/// Returns the output of Go's `pprof -top` for a file. `unit` says what a row is: a function or a line.
fn pprof_top(pprof: &[u8], unit: &str) -> Result<String> {
    let directory = TempDir::new()?;
    let file = directory.path().join("out.pb.gz");
    fs::write(&file, pprof)?;
    let output =
        Command::new("go").args(["tool", "pprof", "-top", "-unit=s", unit]).arg(&file).stdin(Stdio::null()).output()?;
    let says = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{says}{}", String::from_utf8_lossy(&output.stderr));
    Ok(says)
}

fn a_recording_has_only_its_own_time() -> Result<()> {
    let agent = Agent::start("")?;
    let cgroup = TestCgroup::new("before")?;
    let _load = Held::start(&cgroup, &["sleepers", "--waits", "100000"])?;
    // This time is in the window that the recording cuts.
    thread::sleep(Duration::from_secs(2));
    let path = format!("/debug/profile?subject={}&seconds=1&format=folded", cgroup.kernel_path());
    let start = Instant::now();
    let (status, _, folded) = agent.get(&path, &[])?;
    // On a busy machine a second takes longer, and the sleepers wait for only part of it.
    let most = start.elapsed().as_secs_f64() + 0.1;
    ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(&folded));
    let seconds = slept(&folded)? / 1e9;
    ensure!((0.5..=most).contains(&seconds), "one second has {seconds} s, and took {most} s");
    Ok(())
}

/// The windows are a minute long. The cuts of another recording end them, and so does the end of the agent.
fn a_recording_is_answered_when_the_agent_ends() -> Result<()> {
    let mut agent = Agent::start("otlp: {interval: 60s}")?;
    knows_its_node(&agent)?;
    let url = agent.address().to_string();
    let cgroup = TestCgroup::new("ending")?;
    let _load = Held::start(&cgroup, &["sleepers", "--waits", "100000"])?;
    let arguments = [&[cgroup.kernel_path(), "--agent", &url][..], &UNTIL_INTERRUPTED].concat();
    let mut recording = Recording::start("", "folded", &arguments)?;
    recording.begun()?;
    knows_its_node(&agent)?;
    thread::sleep(Duration::from_secs(2));
    agent.signal(Signal::SIGTERM)?;
    let status = agent.wait(STOP_DEADLINE)?;
    ensure!(status.success(), "{status}: {}", agent.log());
    let seconds = slept(&recording.finish()?)? / 1e9;
    // On a busy machine, the last window may come too late.
    ensure!(seconds > 0.8, "of three seconds it has {seconds} s");
    Ok(())
}

fn a_deep_cgroup_is_recorded_alone() -> Result<()> {
    let (a, b) = ("a", "b");
    let top = TestCgroup::new("deep")?;
    let deep = top.child(a)?;
    let deep = deep.child(b)?;
    let _load = Held::start(&deep, &["sleepers", "--waits", "100000"])?;
    let recording = Recording::start("", "folded", &[deep.kernel_path(), "--duration", "1s"])?;
    ensure!(slept(&recording.finish()?)? > 0.5e9, "nothing of `{}`", deep.kernel_path());
    // An agent has no row for this cgroup, and names the row that has its time.
    let agent = Agent::start("")?;
    let directory = TempDir::new()?;
    let url = agent.address().to_string();
    let mut command = command(directory.path(), "", &[deep.kernel_path(), "--agent", &url])?;
    let row = deep.kernel_path().rsplit_once('/').context("no parent")?.0;
    Refusal::of(&mut command)?.expect(FAILED, &["no such row", &format!("it is counted in `{row}`"), "cgroups.depth"])
}

fn what_cannot_be_recorded_is_said_with_the_way_out() -> Result<()> {
    let agent = Agent::start("")?;
    let url = agent.address().to_string();
    let cgroup = TestCgroup::new("idle")?;
    let ran = Held::start(&cgroup, &["sleepers", "--waits", "1"])?;
    let mistyped = format!("{}x", cgroup.kernel_path());
    let nearest = format!("did you mean `{}`", cgroup.kernel_path());
    let nothing = TestCgroup::new("nothing")?;
    let outer = TestCgroup::new("outer")?;
    let inner = outer.child("inner")?;
    let ran_inside = Held::start(&inner, &["sleepers", "--waits", "1"])?;
    // A wait that ended later would be recorded.
    within(DEADLINE, "both have slept", || Ok((ran.is_done() && ran_inside.is_done()).then_some(())))?;
    let all_below = format!("record `{}/`", outer.kernel_path());
    for (arguments, code, says) in [
        (&["/a", "-o", "x.png"][..], BAD_ARGUMENTS, &["unknown extension of `x.png`", ".pb.gz"][..]),
        (&["/a", "--lines", "-o", "x.svg"], BAD_ARGUMENTS, &["`--lines` needs a file for pprof", "-o FILE.pb.gz"]),
        (&["/a", "-o", "/nonexistent/x.svg"], FAILED, &["failed to write `/nonexistent/x.svg`", "-o FILE"]),
        (&["cart"], BAD_ARGUMENTS, &["bad subject `cart`", "`namespace/pod`"]),
        (&[], BAD_ARGUMENTS, &["POD|CGROUP"]),
        (&["/a", "--all"], BAD_ARGUMENTS, &["cannot be used with"]),
        (&["/a", "--off-cpu", "--on-cpu"], BAD_ARGUMENTS, &["cannot be used with"]),
        (&["/a", "--duration", "6m"], BAD_ARGUMENTS, &["at least 1s and at most 5m"]),
        (&["/a", "--duration", "10ms"], BAD_ARGUMENTS, &["at least 1s and at most 5m"]),
        (&["/a", "--agent", "ftp://x:1"], BAD_ARGUMENTS, &["bad agent `ftp://x:1`", "http://127.0.0.1:9799"]),
        (&["/a", "--agent", "127.0.0.1:1"], FAILED, &["failed to reach the agent at `http://127.0.0.1:1`", "refused"]),
        (&[&mistyped, "--agent", &url], FAILED, &["no such cgroup", &nearest]),
        (
            &["shop/cart", "--agent", &url],
            FAILED,
            &["no such pod `shop/cart`", "`--identity kubernetes --kubeconfig FILE`"],
        ),
        (&["shop/cart/web", "--agent", &url], FAILED, &["no such container `shop/cart/web`"]),
        (
            &[nothing.kernel_path(), "--duration", "1s", "--agent", &url],
            FAILED,
            &["nothing was recorded", "ended no wait in ", "(record for longer)"],
        ),
        (
            &[outer.kernel_path(), "--duration", "1s", "--agent", &url],
            FAILED,
            &["ended no wait in ", "(record for longer, or ", &all_below],
        ),
        (&["--all", "--filter", "state == X"], BAD_ARGUMENTS, &["`X` is no state", "\n           ^"]),
        (
            &["--all", "--filter", "label.team == a", "--agent", &url],
            FAILED,
            &["no label is kept as `label_team`", "kubernetes.podLabels"],
        ),
    ] {
        let directory = TempDir::new()?;
        Refusal::of(&mut command(directory.path(), "", arguments)?)?.expect(code, says)?;
        let files = fs::read_dir(directory.path())?.count();
        ensure!(files == 1, "{arguments:?}: {files} files are left");
    }
    Ok(())
}

fn an_agent_that_cannot_record_is_named() -> Result<()> {
    let refusal = |address: SocketAddr, says: &[&str]| {
        let directory = TempDir::new()?;
        let url = format!("http://{address}");
        Refusal::of(&mut command(directory.path(), "", &["/", "--agent", &url])?)?.expect(FAILED, says)
    };
    let agent = Agent::start("stacks: {enabled: false}")?;
    refusal(agent.address(), &["no off-cpu stacks are taken", "set `stacks.enabled: true`"])?;
    let old = server("podperf 0.0.1 on node a\n")?;
    refusal(old, &["too old to record", "podperf 0.0.1 on node a", "upgrade it"])?;
    refusal(server("nginx")?, &["no podperf agent answers", "another program"])
}

/// Starts a server that answers `/status` with this text, and all other paths as unknown. It ends with the test
/// program.
fn server(status: &'static str) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 1024];
            let length = stream.read(&mut request).unwrap_or(0);
            let is_status = request[..length].starts_with(b"GET /status ");
            let (code, body) = if is_status { ("200 OK", status) } else { ("404 Not Found", "") };
            write!(stream, "HTTP/1.1 {code}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len()).ok();
        }
    });
    Ok(address)
}

fn a_recording_alone_takes_root() -> Result<()> {
    let nobody = ForNobody::new()?;
    let output = nobody.directory().join("out.svg").display().to_string();
    let command = command(nobody.directory(), "", &["/", "-o", &output])?;
    let says = ["no agent answers at `http://127.0.0.1:0`", "run it as root", "CAP_BPF"];
    Refusal::of(&mut nobody.command(&command, None)?)?.expect(UNSUPPORTED, &says)
}
