//! Full tables and rings of the kernel side, and events in the kernel that affect the counted processes or the agent.

use std::{
    fs,
    os::unix::fs::chown,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{Agent, Metrics, NO_STACKS},
    cgroup::TestCgroup,
    cluster::wait_for_part,
    load::{churn::ChurnReport, cpu::CpuReport, sleepers::SleepersReport},
    process,
    running::{Load, ONCPU, all_rows_are_the_cpus, is_close, oncpu_is_cpu_stat, run, timed_reading},
    suite::{Need, Test, long, within},
    tests,
};

use crate::table::{dropped, nothing_was_lost, row, serves_and_counts};

pub(crate) const TESTS: &[Test] = tests![
    a_storm_of_cgroups_costs_no_count,
    five_thousand_cgroups_of_a_user_take_no_count_of_others,
    #[land] a_full_table_of_cgroups_is_told_with_the_way_out,
    an_agent_that_stood_still_finds_what_it_missed,
    a_process_has_no_names_of_the_one_whose_id_it_got: &[Need::Path(LAST_PID)],
];

const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
const SOON: Duration = Duration::from_secs(15);
/// The pause between two cgroups of a storm: 10,000 in a minute. At thousands a second, names are lost (see the overrun
/// below).
const STORM: Duration = Duration::from_micros(5_800);
/// The time after which counts without a path go to the row of the unresolved, with the time of one reading.
const UNRESOLVED: Duration = Duration::from_secs(45);
const NAMED: Duration = Duration::from_secs(60);
/// Number of attempts: another process may get the wanted id.
const TRIES: usize = 500;

fn churn(below: &Path, count: usize) -> Result<ChurnReport> {
    run(&format!("churn --count {count} --cgroup {}", below.display()))
}

/// Makes and removes cgroups that stay empty, with a pause after each.
fn make_and_remove(below: &Path, count: usize, pause: Duration) -> Result<()> {
    for number in 0..count {
        let path = below.join(format!("empty-{number}"));
        fs::create_dir(&path)?;
        fs::remove_dir(&path)?;
        thread::sleep(pause);
    }
    Ok(())
}

fn a_storm_of_cgroups_costs_no_count() -> Result<()> {
    let (empty, lives) = if long() { (10_000, 1_000) } else { (1_000, 100) };
    let mut agent = Agent::start("")?;
    let parent = TestCgroup::new("storm")?;
    let before = figure(&agent.fresh_metrics()?, "podperf_cgroups_tracked")?;
    let start = Instant::now();
    let storm = parent.path().to_owned();
    let storm = thread::spawn(move || make_and_remove(&storm, empty, STORM));
    let (mut sum, mut truth) = (0.0, Duration::ZERO);
    // Small groups of cgroups, so that the test reads the dead rows before their grace is over.
    for _ in 0..lives / 50 {
        let report = churn(parent.path(), 50)?;
        let metrics = agent.fresh_metrics()?;
        for life in &report.cgroups {
            let found = metrics.get(ONCPU, &[("cgroup", &life.kernel_path)]);
            sum += found.with_context(|| format!("no row for `{}`", life.kernel_path))?;
            truth += Duration::from_nanos(life.usage_ns);
        }
    }
    storm.join().ok().context("the storm panicked")??;
    let took = start.elapsed();
    is_close("all lives together", Duration::try_from_secs_f64(sum)?, truth)?;
    let metrics = serves_and_counts(&mut agent)?;
    nothing_was_lost(&metrics)?;
    let tracked = within(SOON, "the dead are forgotten", || {
        let tracked = figure(&agent.metrics()?, "podperf_cgroups_tracked")?;
        Ok((tracked <= before + 3.0).then_some(tracked))
    })?;
    ensure!(agent.metrics()?.get(ONCPU, &[("cgroup", "(unresolved)")]).is_none(), "counts without a name");
    let overrun = dropped(&metrics, "cgroup_ring")?;
    row(
        &format!("{empty} cgroups made and removed in {:.0} s, {lives} more with a process each", took.as_secs_f64()),
        &format!(
            "a row for each that ran; {tracked} cgroups tracked again; `cgroup_ring` says {overrun}, which a walk mends"
        ),
        "0",
    );
    Ok(())
}

/// A user makes more cgroups than the table has entries by default. Something has run in each, and all of them live on.
fn five_thousand_cgroups_of_a_user_take_no_count_of_others() -> Result<()> {
    const CGROUPS: usize = 5_000;
    const ENTRIES: f64 = 4_096.0;
    let mut agent = Agent::start(&format!("counters: {{groups: [[cpu-clock]]}}\n{NO_STACKS}"))?;
    let (user, other) = (TestCgroup::new("user")?, TestCgroup::new("other")?);
    chown(user.path(), Some(65534), None)?;
    let before = timed_reading(&agent)?;
    let start = Instant::now();
    let crowd = (0..CGROUPS).map(|_| -> Result<_> {
        let cgroup = user.child("crowd")?;
        ensure!(cgroup.command().arg("true").status()?.success(), "`true` in `{}`", cgroup.kernel_path());
        Ok(cgroup)
    });
    let _crowd = crowd.collect::<Result<Vec<_>>>()?;
    let took = start.elapsed();
    let victims = (0..3).map(|_| other.child("victim")).collect::<Result<Vec<_>>>()?;
    for victim in &victims {
        let _: CpuReport = run(&format!("spin --seconds 0.3 --cgroup {}", victim.path().display()))?;
    }
    let after = timed_reading(&agent)?;
    let metrics = &after.1;
    for victim in &victims {
        oncpu_is_cpu_stat(metrics, victim)?;
    }
    all_rows_are_the_cpus(&before, &after)?;
    // No other cgroup has a path that begins like the user's.
    let is_users = |cgroup: &String| cgroup.starts_with(user.kernel_path());
    let rows = metrics.samples().iter().filter(|it| it.name == ONCPU && it.labels.get("cgroup").is_some_and(is_users));
    let of_user: Vec<f64> = rows.map(|it| it.value).collect();
    let sum: f64 = of_user.iter().sum();
    is_close("the user and all of the crowd", Duration::try_from_secs_f64(sum)?, user.cpu_usage()?)?;
    let used = metrics.get("podperf_bpf_map_entries", &[("map", "cgroups")]).context("no entries")?;
    ensure!(used < 0.75 * ENTRIES, "{used} of {ENTRIES} entries are taken");
    let (shared, lost) = (dropped(metrics, "cgroup_share")?, dropped(metrics, "cgroup_table")?);
    ensure!(shared >= 2_500.0, "{shared} of {CGROUPS} cgroups have no row of their own");
    ensure!(lost == 0.0, "{lost} times there was no room");
    serves_and_counts(&mut agent)?;
    row(
        &format!("a user made {CGROUPS} cgroups in {:.0} s, which live on", took.as_secs_f64()),
        &format!("{} rows of the user; new cgroups of others have rows; `cgroup_share` says {shared}", of_user.len()),
        "0; the time of further cgroups is in the user's own row",
    );
    Ok(())
}

fn a_full_table_of_cgroups_is_told_with_the_way_out() -> Result<()> {
    const CGROUPS: usize = 60;
    const ROOM: usize = 16;
    let mut agent = Agent::start(&format!("cgroups: {{max: {ROOM}}}\n"))?;
    let parent = TestCgroup::new("full")?;
    // All cgroups stay alive, so none leaves its row to another.
    let mut cgroups = Vec::new();
    for _ in 0..CGROUPS {
        let cgroup = parent.child("crowd")?;
        let _: CpuReport = run(&format!("spin --seconds 0.01 --cgroup {}", cgroup.path().display()))?;
        cgroups.push(cgroup);
    }
    let metrics = agent.fresh_metrics()?;
    let count = dropped(&metrics, "cgroup_table")?;
    // Each cgroup without a row is counted at least once.
    ensure!(count >= f64::from(u32::try_from(CGROUPS - ROOM)?), "{count} losses of {CGROUPS} cgroups in {ROOM} rows");
    // The loss is reported as long as it goes on: the last cgroup, which has no row, runs again.
    let last = &cgroups[CGROUPS - 1];
    let _: CpuReport = run(&format!("spin --seconds 0.01 --cgroup {}", last.path().display()))?;
    let again = dropped(&agent.fresh_metrics()?, "cgroup_table")?;
    ensure!(again > count, "{again} losses after {count}, though a cgroup without a row ran once more");
    let detail = wait_for_part(&agent, "losses", "degraded", &["cgroup_table", "raise `cgroups.max`"])?;
    agent.wait_for_log("`cgroups.max`", SOON)?;
    agent.check()?;
    for path in ["/livez", "/readyz"] {
        ensure!(agent.get(path, &[])?.0 == 200, "{path} is not 200");
    }
    // Some cgroups have a row before the table is full, and their counts are right.
    let short = cgroups.iter().filter(|cgroup| oncpu_is_cpu_stat(&metrics, cgroup).is_err()).count();
    ensure!(short > 0, "nothing is missing");
    row(
        &format!("{CGROUPS} cgroups, room for {ROOM} (`cgroups.max`)"),
        &format!("`losses degraded {detail}`"),
        &format!("the rows of {short} cgroups, whose time is in rows above them: `cgroup_table` says {count}"),
    );
    Ok(())
}

/// A node that swaps, or a frozen cgroup, stops the agent like SIGSTOP.
fn an_agent_that_stood_still_finds_what_it_missed() -> Result<()> {
    let mut agent = Agent::start("")?;
    let rows = || agent.fresh_metrics()?.get("podperf_bpf_map_entries", &[("map", "cgroups")]).context("no entries");
    let rows_before = rows()?;
    agent.signal(Signal::SIGSTOP)?;
    let parent = TestCgroup::new("missed")?;
    // The ring of births and deaths has room for some thousand events.
    make_and_remove(parent.path(), 4_000, Duration::ZERO)?;
    let living = parent.child("living")?;
    let _: CpuReport = run(&format!("spin --seconds 0.3 --cgroup {}", living.path().display()))?;
    let dead = churn(parent.path(), 20)?;
    let _: SleepersReport = run(&format!("sleepers --waits 50 --millis 2 --cgroup {}", living.path().display()))?;
    agent.signal(Signal::SIGCONT)?;
    let metrics = agent.fresh_metrics()?;
    let overrun = dropped(&metrics, "cgroup_ring")?;
    ensure!(overrun > 0.0, "the ring was not overrun");
    oncpu_is_cpu_stat(&metrics, &living)?;
    let truth: Duration = dead.cgroups.iter().map(|life| Duration::from_nanos(life.usage_ns)).sum();
    if long() {
        let found = within(UNRESOLVED, "what nobody can name is told as such", || {
            Ok(agent.fresh_metrics()?.get(ONCPU, &[("cgroup", "(unresolved)")]))
        })?;
        is_close("the dead that nobody announced", Duration::try_from_secs_f64(found)?, truth)?;
    }
    within(SOON, "the dead that nobody announced leave their rows", || {
        Ok((rows()? < rows_before + 10.0).then_some(()))
    })?;
    nothing_was_lost(&serves_and_counts(&mut agent)?)?;
    row(
        "ring buffer overrun: the agent stood still (SIGSTOP) while 4,000 cgroups came and went",
        &format!("no answer meanwhile; then all that lives has its row, `cgroup_ring` says {overrun}"),
        &format!("0; the names of 20 that came and went meanwhile: their {truth:.2?} are in the row `(unresolved)`"),
    );
    Ok(())
}

fn a_process_has_no_names_of_the_one_whose_id_it_got() -> Result<()> {
    let mut agent = Agent::start("otlp: {interval: 1s}")?;
    let (first, second) = (TestCgroup::new("first")?, TestCgroup::new("second")?);
    let load = Load::start(&format!("sleepers --waits 100000 --millis 5 --cgroup {}", first.path().display()))?;
    let pid = load.pid();
    let stacks = |agent: &Agent, cgroup: &TestCgroup| -> Result<String> {
        let path = format!("/debug/profile?subject={}&seconds=1&format=folded", cgroup.kernel_path());
        // The first names take the longest.
        let answer = within(NAMED, "a recording", || Ok(agent.get(&path, &[]).ok().filter(|answer| answer.0 == 200)))?;
        Ok(String::from_utf8(answer.2)?)
    };
    ensure!(stacks(&agent, &first)?.contains("podperf_wait_inner"), "the first one has no names");
    // The agent knows the process now, and the test kills it.
    drop(load);
    let mut other = Reborn::start(pid, &second)?;
    let text = stacks(&agent, &second)?;
    ensure!(other.0.try_wait()?.is_none() && other.0.id() == pid, "it has ended");
    ensure!(!text.contains("podperf_wait"), "names of another program: {text}");
    ensure!(text.lines().count() > 0, "no stacks");
    drop(other);
    nothing_was_lost(&serves_and_counts(&mut agent)?)?;
    row("a process id is given to another program", "each has its own names in profiles", "0");
    Ok(())
}

/// A shell that waits repeatedly, under an earlier process' id. Drop kills it.
struct Reborn(Child);

impl Reborn {
    fn start(pid: u32, cgroup: &TestCgroup) -> Result<Self> {
        let procs = cgroup.path().join("cgroup.procs");
        for _ in 0..TRIES {
            let mut command = Command::new("sh");
            process::bind_to_parent(&mut command);
            command.args(["-c", "echo 0 >\"$0\"; while :; do sleep 0.02; done"]).arg(&procs);
            fs::write(LAST_PID, (pid - 1).to_string())?;
            let child = command.stdin(Stdio::null()).spawn()?;
            let reborn = Self(child);
            if reborn.0.id() == pid {
                return Ok(reborn);
            }
        }
        anyhow::bail!("others took process id {pid} {TRIES} times")
    }
}

impl Drop for Reborn {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn figure(metrics: &Metrics, name: &str) -> Result<f64> {
    metrics.get(name, &[]).with_context(|| format!("no `{name}`"))
}
