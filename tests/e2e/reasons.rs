//! Without user frames: three capabilities give all reasons of waits, and the agent opens no file of another process.
//! The list of pods says what its mode does not show, and no link of it is refused.

use std::{fs, net::SocketAddr, process::Command, time::Duration};

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::{self, Agent, Metrics},
    cgroup::TestCgroup,
    command::{Started, run_load},
    http::{get_text, get_within},
    load::blocked::BlockedReport,
    pprof,
    running::ONCPU,
    suite::{Need, Test, within},
    tests,
};
use tempfile::NamedTempFile;

use crate::{
    checked::{Report, command},
    nobody::ForNobody,
    profiles::Held,
};

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] three_capabilities_give_all_reasons_and_no_user_frame: &[SETPRIV, Need::Disk(DIRECTORY)],
    code_of_programs_is_one_frame_on_the_cpu: &[SETPRIV],
    #[land] #[beside] without_user_frames_no_file_of_another_process_is_opened: &[SETPRIV, STRACE],
    #[land] #[beside] no_link_of_the_list_is_refused,
];

const SETPRIV: Need = Need::Program("setpriv");
const STRACE: Need = Need::Program("strace");
const DIRECTORY: &str = env!("CARGO_TARGET_TMPDIR");
/// The limit covers several windows of a second each, on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(30);
/// The chart's mode `reasons`, without a limit of walks: other processes must not turn these waits into a sample.
const REASONS: &str = "stacks: {unwind: none, maxWalks: 0}\notlp: {interval: 1s}";
/// The same waits with user frames.
const PROFILES: &str = "stacks: {maxWalks: 0}\notlp: {interval: 1s}";
const THREE: Option<&str> = Some("+bpf,+perfmon,+syslog");
/// The bits of SYSLOG, PERFMON and BPF.
const THREE_BITS: &str = "CapEff:\t000000c400000000";
const SLEEPERS: [&str; 3] = ["sleepers", "--waits", "100000"];
const WAIT: &str = "podperf_cgroup_wait_seconds_total";

/// Starts an agent with the three capabilities, and without root.
fn start(nobody: &ForNobody, yaml: &str) -> Result<(Started, SocketAddr)> {
    let mut agent = Started::new(&mut nobody.agent(yaml, THREE)?)?;
    let address = agent.address()?;
    Ok((agent, address))
}

/// Records a cgroup for two seconds, once its load has begun: on a busy machine that may take a while.
fn record(address: SocketAddr, cgroup: &TestCgroup, activity: &str, format: &str) -> Result<Vec<u8>> {
    let subject = cgroup.kernel_path();
    let family = if activity == "on-cpu" { ONCPU } else { WAIT };
    within(DEADLINE, "the load has begun", || {
        let metrics = Metrics::parse(&get_text(address, "/metrics")?.1);
        Ok((metrics.sum(family, &[("cgroup", subject)]) > 0.0).then_some(()))
    })?;
    let path = format!("/debug/profile?subject={subject}&activity={activity}&format={format}&seconds=2");
    let (status, _, body) = get_within(DEADLINE, address, &path)?;
    ensure!(status == 200, "{path} answered {status}: {}", String::from_utf8_lossy(&body));
    Ok(body)
}

fn flamegraph(cgroup: &TestCgroup) -> String {
    format!("/flamegraph?subject={}&activity=off-cpu", cgroup.kernel_path())
}

fn three_capabilities_give_all_reasons_and_no_user_frame() -> Result<()> {
    let nobody = ForNobody::new()?;
    let without_events = format!("{REASONS}\ncounters: {{groups: []}}");
    let report = Report::of(|| nobody.command(&command(nobody.directory(), &without_events)?, THREE))?;
    ensure!(report.verdict == "usable", "{report:#?}");
    let (agent, address) = start(&nobody, REASONS)?;
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    ensure!(status.contains(THREE_BITS), "{status}");

    // A part of the time of a write or a page fault is on a CPU.
    let of_disk = [("disk", "disk", 0.1), ("page-fault", "page_fault", 0.1)];
    let reasons = ["futex", "network", "pipe", "poll", "sleep"].map(|reason| (reason, reason, 0.5));
    for (on, reason, share) in reasons.into_iter().chain(of_disk) {
        let cgroup = TestCgroup::new(reason)?;
        let arguments = ["blocked", "--on", on, "--millis", "500", "--directory", DIRECTORY];
        let load: BlockedReport = run_load(cgroup.path(), &arguments)?;
        let least = Duration::from_nanos(load.waited_ns).as_secs_f64() * share;
        let labels = [("cgroup", cgroup.kernel_path()), ("reason", reason)];
        within(DEADLINE, &format!("the waits for `{reason}` are there"), || {
            let metrics = Metrics::parse(&get_text(address, "/metrics")?.1);
            Ok((metrics.sum(WAIT, &labels) >= least).then_some(()))
        })?;
    }

    let cgroup = TestCgroup::new("reasons")?;
    let _load = Held::start(&cgroup, &SLEEPERS)?;
    let samples = pprof::samples(&record(address, &cgroup, "off-cpu", "pb")?)?;
    let sleeps = |sample: &pprof::Sample| sample.label("reason") == "sleep" && sample.text().contains("nanosleep");
    ensure!(samples.iter().any(sleeps), "no names of the kernel: {samples:#?}");
    for sample in &samples {
        ensure!(sample.frames.iter().all(|frame| frame.file == "[kernel]"), "a user frame: {sample:#?}");
        ensure!(sample.label("unwind").is_empty(), "nothing is missing that was asked for: {sample:#?}");
    }
    let says = "User frames are off (delete `stacks.unwind: none` and restart the agent).";
    within(DEADLINE, "the page says that user frames are off", || {
        Ok(get_text(address, &flamegraph(&cgroup))?.1.contains(says).then_some(()))
    })
}

fn code_of_programs_is_one_frame_on_the_cpu() -> Result<()> {
    let nobody = ForNobody::new()?;
    let (_agent, address) = start(&nobody, REASONS)?;
    let cgroup = TestCgroup::new("burner")?;
    let _load = Held::start(&cgroup, &["spin", "--seconds", "20"])?;
    let text = String::from_utf8(record(address, &cgroup, "on-cpu", "folded")?)?;
    let (mut all, mut in_code) = (0, 0);
    for line in text.lines() {
        let Some((stack, nanoseconds)) = line.rsplit_once(' ') else { continue };
        let nanoseconds: u64 = nanoseconds.parse()?;
        all += nanoseconds;
        in_code += if stack.ends_with(";[user code]") { nanoseconds } else { 0 };
    }
    ensure!(all > 200_000_000 && in_code >= all / 10 * 8, "{in_code} of {all} ns in the code of the burner:\n{text}");
    let metrics = Metrics::parse(&get_text(address, "/metrics")?.1);
    let drops = metrics.sum("podperf_bpf_drops_total", &[("reason", "stack_walk")]);
    ensure!(drops < 10.0, "{drops} samples count as lost, and their code is known to be a program's");
    Ok(())
}

/// Returns the calls of an agent that name a file below `/proc` of another process, while a load sleeps.
fn calls_for_files_of_others(yaml: &str) -> Result<Vec<String>> {
    let nobody = ForNobody::new()?;
    let (agent, address) = start(&nobody, yaml)?;
    let trace = NamedTempFile::new()?;
    let mut strace = Command::new("strace");
    strace.args(["-f", "-e", "trace=%file", "-o"]).arg(trace.path()).args(["-p", &agent.pid().to_string()]);
    let strace = Started::new(&mut strace)?;
    within(DEADLINE, "strace is attached", || Ok(strace.log().contains("attached").then_some(())))?;
    let cgroup = TestCgroup::new("opened")?;
    let _load = Held::start(&cgroup, &SLEEPERS)?;
    within(DEADLINE, "the page has the sleepers", || {
        Ok(get_text(address, &flamegraph(&cgroup))?.1.contains("nanosleep").then_some(()))
    })?;
    drop(strace);
    // Its own files are below `/proc/self` and `/proc/thread-self`.
    let is_others = |rest: &str| rest.starts_with(|letter: char| letter.is_ascii_digit());
    let calls = fs::read_to_string(trace.path())?;
    Ok(calls.lines().filter(|call| call.split("\"/proc/").skip(1).any(is_others)).map(str::to_owned).collect())
}

fn without_user_frames_no_file_of_another_process_is_opened() -> Result<()> {
    let calls = calls_for_files_of_others(REASONS)?;
    ensure!(calls.is_empty(), "{calls:#?}");
    // This shows that such calls would be seen.
    ensure!(!calls_for_files_of_others(PROFILES)?.is_empty(), "user frames need no file of their process");
    Ok(())
}

fn no_link_of_the_list_is_refused() -> Result<()> {
    for (yaml, more) in [("stacks: {enabled: false}", "mode: reasons"), ("stacks: {unwind: none}", "mode: profiles")] {
        let agent = Agent::start_changed(&agent::binary()?, yaml, |command| {
            command.env("PODPERF_RUN_BY", "chart");
        })?;
        let get = |path: &str| -> Result<(u16, String)> {
            let (status, _, body) = agent.get(path, &[("Accept", "text/html")])?;
            Ok((status, String::from_utf8(body)?))
        };
        let (_, page) = get("/")?;
        ensure!(page.contains(&format!("<code>{more}</code>")), "`{yaml}` has no `{more}`: {page}");
        let links = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
        let to_graphs: Vec<_> = links.filter(|link| link.starts_with("/flamegraph")).collect();
        ensure!(to_graphs.is_empty() == yaml.contains("enabled: false"), "{to_graphs:?}");
        for link in to_graphs.iter().take(6) {
            let (status, text) = get(&link.replace("&amp;", "&"))?;
            ensure!(status == 200, "`{link}` answered {status}: {text}");
        }
        let (status, text) = get("/flamegraph")?;
        let refused = status == 409 && text.contains("`mode: reasons`");
        ensure!(refused == to_graphs.is_empty(), "{status}: {text}");
    }
    Ok(())
}
