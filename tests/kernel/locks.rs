//! The sensor `locks`. The truth is the clock of the thread that waits.

use std::{fs, path::Path, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent, Metrics},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    http,
    load::locks::LocksReport,
    running::{Load, count, run, time},
    suite::{self, Need, Test},
    tests,
};

use crate::maps::{self, dump};

pub(crate) fn tests() -> Vec<Test> {
    let tests: &[Test] = tests![
        #[land] #[measures] a_mutex_is_waited_for_and_its_holder_is_named,
        a_condition_is_no_lock,
        the_lock_of_a_file_is_waited_for_and_its_holder_is_named,
        waits_for_locks_are_a_profile_with_the_stack_and_the_holder,
        #[land] without_the_sensor_there_is_no_program_and_no_series,
        cgroups_of_one_slot_wait_apart: maps::needs(),
        a_crowd_that_waits_takes_no_wait_of_others: &[Need::Cpus(2)],
        #[exact] no_wait_for_a_mutex_is_lost_over_upgrades_and_kills,
        #[exact] no_wait_in_the_kernel_is_lost_over_upgrades_and_kills,
    ];
    tests.to_vec()
}

const ON: &str = "sensors: {locks: {enabled: true}}";
const USER_WAIT: &str = "podperf_cgroup_user_lock_wait_seconds_total";
const USER_WAITS: &str = "podperf_cgroup_user_lock_waits_total";
const KERNEL_WAIT: &str = "podperf_cgroup_kernel_lock_wait_seconds_total";
const CONTENTIONS: &str = "podperf_cgroup_kernel_lock_contentions_total";
const BLOCKING: &str = "podperf_cgroup_lock_blocking_seconds_total";
const PROGRAMS: [&str; 3] = ["locks_contention_end", "locks_contention_begin", "locks_waking"];

/// The cgroups of the two processes.
struct Both {
    waiter: TestCgroup,
    holder: TestCgroup,
}

impl Both {
    fn new() -> Result<Self> {
        Ok(Self { waiter: TestCgroup::new("waiter")?, holder: TestCgroup::new("holder")? })
    }

    fn arguments(&self, kind: &str, waits: u32) -> String {
        let (waiter, holder) = (self.waiter.path().display(), self.holder.path().display());
        format!("locks --kind {kind} --waits {waits} --cgroup {waiter} --holder {holder}")
    }

    /// Checks the time of the waiter, and the time that the holder has for it.
    fn check(&self, found: Duration, truth: Duration, blocking: Duration, report: &LocksReport) -> Result<()> {
        suite::tell(&format!("waited {found:?}, by its own clock {truth:?}; the holder has {blocking:?}"));
        ensure!(found.abs_diff(truth) <= truth / 100, "{found:?} in the waiter's row, by its own clock {truth:?}");
        // The time in the run queue after the wake-up is nobody's.
        let blocked = report.blocked();
        ensure!(blocking >= blocked * 98 / 100, "{blocking:?} of {blocked:?} in the holder's row");
        Ok(())
    }
}

/// Returns a time that may have no series, because it is 0.
fn time_or_zero(metrics: &Metrics, family: &str, cgroup: &TestCgroup, labels: &[(&str, &str)]) -> Duration {
    time(metrics, family, cgroup, labels).unwrap_or_default()
}

fn a_mutex_is_waited_for_and_its_holder_is_named() -> Result<()> {
    const WAITS: u32 = 50;
    let agent = Agent::start(ON)?;
    for kind in ["mutex", "pi"] {
        let both = Both::new()?;
        let report: LocksReport = run(&both.arguments(kind, WAITS))?;
        let metrics = agent.fresh_metrics()?;
        let found = time(&metrics, USER_WAIT, &both.waiter, &[])?;
        let blocking = time(&metrics, BLOCKING, &both.holder, &[("kind", "user")])?;
        both.check(found, report.blocked(), blocking, &report)?;
        let waits = count(&metrics, USER_WAITS, &both.waiter, &[])?;
        ensure!(waits == f64::from(report.waits), "{waits} waits for a lock: {report:?}");
        ensure!(report.waits > WAITS * 9 / 10, "only {} waits", report.waits);
        ensure!(blocking == found, "{blocking:?} in the holder's row");
        ensure!(time(&metrics, BLOCKING, &both.waiter, &[("kind", "user")]).is_err(), "the waiter blocks");
    }
    Ok(())
}

/// These waits also have the value 2.
fn a_condition_is_no_lock() -> Result<()> {
    let agent = Agent::start(ON)?;
    for kind in ["condition", "frame"] {
        let both = Both::new()?;
        let report: LocksReport = run(&both.arguments(kind, 20))?;
        let metrics = agent.fresh_metrics()?;
        // A notified thread may find the mutex locked, for a moment.
        let found = time_or_zero(&metrics, USER_WAIT, &both.waiter, &[]);
        ensure!(found < report.blocked() / 1000, "{found:?} of waits for a {kind}: {report:?}");
    }
    Ok(())
}

fn the_lock_of_a_file_is_waited_for_and_its_holder_is_named() -> Result<()> {
    const WAITS: u32 = 20;
    let agent = Agent::start(ON)?;
    let both = Both::new()?;
    let report: LocksReport = run(&both.arguments("inode", WAITS))?;
    let metrics = agent.fresh_metrics()?;
    let write = [("lock", "rwsem_write")];
    let found = time(&metrics, KERNEL_WAIT, &both.waiter, &write)?;
    let blocking = time(&metrics, BLOCKING, &both.holder, &[("kind", "kernel")])?;
    both.check(found, report.waited(), blocking, &report)?;
    let contentions = count(&metrics, CONTENTIONS, &both.waiter, &write)?;
    ensure!(contentions == f64::from(report.waits), "{contentions} waits: {report:?}");
    ensure!(report.waits > WAITS * 9 / 10, "only {} waits", report.waits);
    Ok(())
}

/// A recording of waits for locks in one format. It ends when the load has ended.
fn record_locks(agent: &Agent, format: &str) -> Result<String> {
    let path = format!("/debug/profile?activity=locks&seconds=60&id={format}&format={format}");
    let (status, _, body) = http::get_within(Duration::from_secs(90), agent.address(), &path)?;
    let body = String::from_utf8(body)?;
    ensure!(status == 200, "{status}: {body}");
    Ok(body)
}

/// Returns the load's report, the recording as folded stacks, and the recording as a page, which has the wakers.
fn recorded(agent: &Agent, arguments: &str) -> Result<(LocksReport, String, String)> {
    const FORMATS: [&str; 2] = ["folded", "html"];
    let of = |format: &str, method: &str| {
        http::ask(agent.address(), &format!("{method} /debug/recordings/{format}"), &[], "")
    };
    suite::within(Duration::from_secs(60), "names of the first windows", || {
        let (status, ..) = agent.get("/debug/profile?seconds=1", &[])?;
        Ok((status == 200).then_some(()))
    })?;
    thread::scope(|scope| {
        let recordings = FORMATS.map(|format| scope.spawn(move || record_locks(agent, format)));
        let report = suite::within(Duration::from_secs(20), "both recordings begin", || {
            // `seconds` is null before the start.
            let begun = FORMATS.iter().all(|format| {
                of(format, "GET").is_ok_and(|(status, _, body)| {
                    status == 200 && !String::from_utf8_lossy(&body).contains("\"seconds\":null")
                })
            });
            Ok(begun.then_some(()))
        })
        .and_then(|()| {
            let mut load = Load::start(arguments)?;
            // Each scrape is a reading, so a part of a long wait is in a sample before the wait ends.
            thread::scope(|scrapes| {
                let report = scrapes.spawn(move || load.report());
                while !report.is_finished() {
                    agent.fresh_metrics()?;
                    thread::sleep(Duration::from_millis(50));
                }
                report.join().expect("the load's thread panicked")
            })
        });
        for format in FORMATS {
            of(format, "DELETE")?;
        }
        let [folded, page] = recordings.map(|recording| recording.join().expect("the client panicked"));
        Ok((report?, folded?, page?))
    })
}

/// Returns the time of all lines of folded stacks that begin so.
fn folded_time(folded: &str, begin: &str) -> Result<Duration> {
    let lines = folded.lines().filter(|line| line.starts_with(begin));
    let times = lines.filter_map(|line| line.rsplit(' ').next()).map(str::parse::<u64>);
    Ok(Duration::from_nanos(times.sum::<Result<_, _>>()?))
}

/// The holder sleeps while it has the mutex, as long as the waiter waits. Its sleep is no wait for a lock.
fn waits_for_locks_are_a_profile_with_the_stack_and_the_holder() -> Result<()> {
    let agent = Agent::start(ON)?;
    // 20 ms are over before a reading sees them, and 300 ms go on during some readings.
    for (kind, waits, millis, lock, frame) in [
        ("mutex", 50, 20, "user", "futex"),
        ("mutex", 10, 300, "user", "futex"),
        ("inode", 20, 20, "rwsem_write", "rwsem_down_write"),
    ] {
        let both = Both::new()?;
        let (report, folded, page) = recorded(&agent, &format!("{} --millis {millis}", both.arguments(kind, waits)))?;
        let metrics = agent.fresh_metrics()?;
        let (waiter, holder) = (both.waiter.kernel_path(), both.holder.kernel_path());
        let found = folded_time(&folded, &format!("{waiter};{lock};"))?;
        let truth = match lock {
            "user" => time(&metrics, USER_WAIT, &both.waiter, &[])?,
            _ => report.blocked(),
        };
        suite::tell(&format!("{kind}, {millis} ms: {found:?} with stacks of {truth:?}"));
        ensure!(found.abs_diff(truth) <= truth * 3 / 100, "{kind}: {found:?} of {truth:?}: {folded}");
        let all = folded_time(&folded, &format!("{waiter};"))?;
        ensure!(all - found <= truth / 100, "{kind}: {:?} of other locks: {folded}", all - found);
        let slept = folded_time(&folded, &format!("{holder};"))?;
        ensure!(slept <= truth / 50, "{kind}: the holder has {slept:?}: {folded}");
        let begin = format!("{waiter};{lock};");
        let lines: Vec<_> = folded.lines().filter(|line| line.starts_with(&begin)).collect();
        // The load of a guest has no symbols.
        let is_of_load =
            |line: &str| [";podperf_tests::load::locks", ";podperf-load+0x"].iter().any(|of| line.contains(of));
        let with_stack = lines.iter().any(|line| line.contains(frame) && is_of_load(line));
        ensure!(with_stack, "{kind}: no stack with `{frame}`: {lines:#?}");
        let waker = format!("woken by <b>podperf-load</b> of {holder}<");
        ensure!(page.contains(&waker), "{kind}: no `{waker}` in the page");
    }
    Ok(())
}

fn without_the_sensor_there_is_no_program_and_no_series() -> Result<()> {
    let agent = Agent::start("")?;
    let both = Both::new()?;
    let _: LocksReport = run(&both.arguments("mutex", 5))?;
    let metrics = agent.fresh_metrics()?;
    for family in [USER_WAIT, USER_WAITS, KERNEL_WAIT, CONTENTIONS, BLOCKING] {
        ensure!(metrics.samples().iter().all(|sample| sample.name != family), "`{family}` has a series");
    }
    let (status, _, refusal) = agent.get("/debug/profile?activity=locks", &[])?;
    let refusal = String::from_utf8(refusal)?;
    ensure!(status == 409 && refusal.contains("`sensors.locks.enabled: true`"), "{status}: {refusal}");
    for program in PROGRAMS {
        let loaded = metrics.get("podperf_bpf_program_loaded", &[("program", program)]);
        ensure!(loaded.is_none(), "`{program}` is loaded");
    }
    Ok(())
}

/// With 64 slots, some of the cgroups have their row by id.
fn cgroups_of_one_slot_wait_apart() -> Result<()> {
    const CGROUPS: usize = 50;
    let agent = Agent::start(&format!("cgroups: {{max: 256}}\n{ON}"))?;
    let holder = TestCgroup::new("holder")?;
    let mut cgroups = Vec::new();
    for _ in 0..CGROUPS {
        let waiter = TestCgroup::new("waiter")?;
        let (path, of) = (waiter.path().display(), holder.path().display());
        let report: LocksReport =
            run(&format!("locks --kind mutex --waits 2 --millis 3 --cgroup {path} --holder {of}"))?;
        cgroups.push((waiter, report));
    }
    // The kernel cuts names off.
    let by_id = dump(&agent, "locks_rows_by_i")?;
    let sharing = cgroups.iter().filter(|(cgroup, _)| by_id.contains(&format!("\"key\": {},", cgroup.id()))).count();
    ensure!(sharing > 0, "no two cgroups share a slot");
    let metrics = agent.fresh_metrics()?;
    for (cgroup, report) in &cgroups {
        let waits = count(&metrics, USER_WAITS, cgroup, &[])?;
        ensure!(waits == f64::from(report.waits), "{waits} waits: {report:?}");
    }
    let dropped = metrics.get("podperf_bpf_drops_total", &[("reason", "sensor_table")]);
    ensure!(dropped == Some(0.0), "{dropped:?} waits found no row");
    Ok(())
}

/// `locks_waiting` has room for 256 threads. One cgroup has 400 that wait.
fn a_crowd_that_waits_takes_no_wait_of_others() -> Result<()> {
    let agent = Agent::start(&format!("cgroups: {{max: 256}}\n{ON}"))?;
    let (noisy, quiet) = (Both::new()?, Both::new()?);
    let crowd = Load::start(&noisy.arguments("crowd", 1000))?;
    let dropped = || -> Result<f64> {
        let metrics = agent.fresh_metrics()?;
        metrics.get("podperf_bpf_drops_total", &[("reason", "sensor_table")]).context("no drops")
    };
    suite::within(Duration::from_secs(20), "waits of the crowd find no room", || Ok((dropped()? > 0.0).then_some(())))?;
    let report: LocksReport = run(&quiet.arguments("inode", 20))?;
    drop(crowd);
    let contentions = count(&agent.fresh_metrics()?, CONTENTIONS, &quiet.waiter, &[("lock", "rwsem_write")])?;
    ensure!(contentions == f64::from(report.waits), "{contentions} waits beside the crowd: {report:?}");
    ensure!(report.waits > 10, "only {} waits", report.waits);
    Ok(())
}

/// Agents are killed and replaced while the load runs, also by programs of another layout.
fn goes_on(kind: &str, waits: u32, check: impl Fn(&Metrics, &Both, &LocksReport) -> Result<()>) -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let yaml = format!("{}\n{ON}", bpffs.yaml());
    let mut agent = Agent::start(&yaml)?;
    let both = Both::new()?;
    let mut load = Load::start(&both.arguments(kind, waits))?;
    let (ours, theirs) = (agent::binary()?, agent::other_layout()?);
    let mut runs = 0.0;
    for build in [&theirs, &ours, &ours, &theirs, &ours] {
        thread::sleep(Duration::from_secs(1));
        agent.restart_as(build, Signal::SIGKILL, &yaml)?;
        let metrics = agent.fresh_metrics()?;
        let now = metrics.get("podperf_bpf_program_runs_total", &[("program", "locks_waking")]);
        ensure!(now.is_some_and(|now| now > runs), "{now:?} runs after {runs}");
        runs = now.unwrap_or_default();
    }
    ensure!(pinned(bpffs.path())? > 0, "the programs are not pinned");
    let report: LocksReport = load.report()?;
    check(&agent.fresh_metrics()?, &both, &report)?;
    agent.restart_as(&ours, Signal::SIGKILL, &bpffs.yaml())?;
    suite::within(Duration::from_secs(20), "the sensor is off, and none of its programs is pinned", || {
        Ok((pinned(bpffs.path())? == 0).then_some(()))
    })
}

/// Returns the number of pinned programs and links of the sensor.
fn pinned(directory: &Path) -> Result<usize> {
    let mut number = 0;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            number += pinned(&path)?;
        } else if PROGRAMS.iter().any(|program| name == *program) {
            number += 1;
        }
    }
    Ok(number)
}

fn no_wait_for_a_mutex_is_lost_over_upgrades_and_kills() -> Result<()> {
    goes_on("mutex", 800, |metrics, both, report| {
        let waits = count(metrics, USER_WAITS, &both.waiter, &[])?;
        ensure!(waits == f64::from(report.waits), "{waits} waits for a lock: {report:?}");
        let found = time(metrics, USER_WAIT, &both.waiter, &[])?;
        both.check(found, report.blocked(), time(metrics, BLOCKING, &both.holder, &[("kind", "user")])?, report)
    })
}

/// The load nearly always waits, so a takeover comes amid a wait.
fn no_wait_in_the_kernel_is_lost_over_upgrades_and_kills() -> Result<()> {
    // A write takes 0.4 s of an emulated machine, and 0.02 s of another.
    goes_on("inode", if suite::has_own_machine() { 40 } else { 350 }, |metrics, both, report| {
        let write = [("lock", "rwsem_write")];
        let waits = count(metrics, CONTENTIONS, &both.waiter, &write)?;
        ensure!(waits == f64::from(report.waits), "{waits} waits for a lock: {report:?}");
        let found = time(metrics, KERNEL_WAIT, &both.waiter, &write)?;
        both.check(found, report.waited(), time(metrics, BLOCKING, &both.holder, &[("kind", "kernel")])?, report)
    })
}
