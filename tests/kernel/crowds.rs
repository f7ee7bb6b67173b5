//! Containers and users that make many cgroups. These take no rows, stacks or time from others.

use std::{os::unix::fs::chown, process};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent, Metrics},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    load::{cpu::CpuReport, sites::SitesReport, sleepers::SleepersReport},
    running::{
        Load, OFFCPU, ONCPU, all_rows_are_the_cpus, cpus, is_close, oncpu_is_cpu_stat, run, time, timed_reading,
    },
    suite::{Test, within},
    tests,
};

use crate::{
    histograms::{ON, sums_are_the_counters},
    maps::{self, dump},
    rows::{FEW, FREED, dropped, nothing_was_dropped},
};

/// More cgroups than the table has entries, and as many as are more than half of them.
const CROWD: usize = 280;
const HALF: usize = 140;
/// Time off the CPU of a row, by reason.
const WAIT: &str = "podperf_cgroup_wait_seconds_total";

pub(crate) fn tests() -> Vec<Test> {
    let tests: &[Test] = tests![
        #[land] #[measures] a_crowd_of_cgroups_takes_no_row_of_another_container,
        #[exact] a_crowd_that_was_there_first_takes_no_row_of_another_container,
        a_crowd_of_cgroups_leaves_room_for_the_stacks_of_another_container,
        #[exact] a_cgroup_without_a_row_is_charged_to_its_container_or_user: maps::needs(),
        #[exact] a_reload_of_the_depth_moves_the_end_of_names: maps::needs(),
    ];
    tests.to_vec()
}

fn spin(cgroup: &TestCgroup) -> Result<()> {
    let _: CpuReport = run(&format!("spin --seconds 0.5 --cgroup {}", cgroup.path().display()))?;
    Ok(())
}

/// Makes cgroups in a cgroup, in each of which something has run.
fn crowd(parent: &TestCgroup, count: usize) -> Result<Vec<TestCgroup>> {
    let mut crowd = Vec::new();
    for _ in 0..count {
        let cgroup = parent.child("crowd")?;
        let status = cgroup.command().arg("true").status()?;
        ensure!(status.success(), "`true` in a cgroup: {status}");
        crowd.push(cgroup);
    }
    Ok(crowd)
}

/// Checks that a crowd has about half of the table, and that nothing is lost.
fn the_crowd_has_half(metrics: &Metrics) -> Result<()> {
    let used = metrics.get("podperf_bpf_map_entries", &[("map", "cgroups")]).context("no entries")?;
    ensure!(used < 0.75 * 256.0, "{used} of 256 entries are taken");
    ensure!(dropped(metrics, "cgroup_share")? >= 100.0, "the whole crowd has rows: {used} entries");
    nothing_was_dropped(metrics)
}

/// Returns whether a map has this value for a cgroup: its outer cgroup, or the one to which its work is charged.
fn has(agent: &Agent, map: &str, cgroup: &TestCgroup, value: &TestCgroup) -> Result<bool> {
    let entries: String = dump(agent, map)?.split_whitespace().collect();
    Ok(entries.contains(&format!("\"key\":{},\"value\":{}}}", cgroup.id(), value.id())))
}

/// A container makes more cgroups than the table has entries, and they live on. The counts of a container that is born
/// later are right, the crowd is counted in its container, and nothing is missing in the sum.
fn a_crowd_of_cgroups_takes_no_row_of_another_container() -> Result<()> {
    let agent = Agent::start(&format!("{FEW}counters: {{groups: [[cpu-clock]]}}\n{ON}\n"))?;
    let (first, second) = (TestCgroup::new("first")?, TestCgroup::new("second")?);
    // Names end at the second level.
    let container = first.child("container")?;
    let before = timed_reading(&agent)?;
    let _crowd = crowd(&container, CROWD)?;
    let (last, sibling) = (container.child("last")?, second.child("sibling")?);
    for cgroup in [&last, &sibling] {
        spin(cgroup)?;
        let _: SleepersReport = run(&format!("sleepers --waits 50 --millis 2 --cgroup {}", cgroup.path().display()))?;
    }
    let after = timed_reading(&agent)?;
    let metrics = &after.1;
    the_crowd_has_half(metrics)?;
    ensure!(dropped(metrics, "sensor_table")? == 0.0, "the crowd took the rows of a sensor");
    for cgroup in [&container, &sibling] {
        oncpu_is_cpu_stat(metrics, cgroup)?;
        // Both are charged to one row, whichever that is.
        sums_are_the_counters(metrics, cgroup)?;
    }
    all_rows_are_the_cpus(&before, &after)
}

/// The crowd runs while the programs start, and while another agent takes them over. Each time it has half of the table.
fn a_crowd_that_was_there_first_takes_no_row_of_another_container() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let yaml = format!("{FEW}{}\n", bpffs.yaml());
    let (first, second) = (TestCgroup::new("first")?, TestCgroup::new("second")?);
    let container = first.child("container")?;
    let numbered = (0..CROWD).map(|number| container.child_named(&number.to_string()));
    let _numbered = numbered.collect::<Result<Vec<_>>>()?;
    let below = container.path().display();
    // Without pauses, Linux 6.18 gives its own workers no time on this CPU for minutes, and no program ends without them.
    let ring = format!("ring --wait --processes {CROWD} --slices 100000 --pause-micros 2000 --cgroups-below {below}");
    let mut ring = Load::start(&ring)?;
    ring.wait_for_word("joined")?;
    ring.go_on()?;
    let mut agent = Agent::start(&yaml)?;
    for start in ["first", "second"] {
        if start == "second" {
            agent.restart(Signal::SIGKILL, &yaml)?;
        }
        let sibling = second.child("sibling")?;
        spin(&sibling)?;
        let metrics = agent.fresh_metrics()?;
        the_crowd_has_half(&metrics).with_context(|| format!("after the {start} start"))?;
        oncpu_is_cpu_stat(&metrics, &sibling)?;
    }
    Ok(())
}

/// Cgroups with rows of their own wait at more places than a table of stacks has room for. As all of them are in one
/// container, half of the table is left for a container that waits at as many places as one of them.
fn a_crowd_of_cgroups_leaves_room_for_the_stacks_of_another_container() -> Result<()> {
    const CGROUPS: usize = 40;
    let agent = Agent::start(&format!("{FEW}stacks: {{maxSamples: 512}}\n"))?;
    let (first, second) = (TestCgroup::new("first")?, TestCgroup::new("second")?);
    let (container, sibling) = (first.child("container")?, second.child("sibling")?);
    let crowd = (0..CGROUPS).map(|_| container.child("crowd")).collect::<Result<Vec<_>>>()?;
    // A reading empties the tables.
    agent.fresh_metrics()?;
    // Sixteen places each.
    let sites = |cgroup: &TestCgroup| format!("sites --waits 320 --threads 16 --cgroup {}", cgroup.path().display());
    for mut load in crowd.iter().map(|cgroup| Load::start(&sites(cgroup))).collect::<Result<Vec<_>>>()? {
        let _: SitesReport = load.report()?;
        load.end()?;
    }
    let _: SitesReport = run(&sites(&sibling))?;
    let metrics = agent.fresh_metrics()?;
    ensure!(dropped(&metrics, "sample_stack")? > 0.0, "there is room for all stacks of the crowd");
    let blocked = time(&metrics, OFFCPU, &sibling, &[("state", "interruptible")])?;
    let unknown = time(&metrics, WAIT, &sibling, &[("reason", "unknown")]).unwrap_or_default();
    ensure!(unknown < blocked / 5, "{unknown:?} of {blocked:?} have no stack");
    Ok(())
}

/// With half of the table in use, a cgroup at any depth is charged to its container, and one in the part of another user
/// to that part. Names of pods end at their containers, wherever `kubepods` is. Cgroups that had a row before have their
/// own time, and nobody else's. A later cgroup has a row again when the crowd is gone.
fn a_cgroup_without_a_row_is_charged_to_its_container_or_user() -> Result<()> {
    let agent = Agent::start(FEW)?;
    let (parent, user) = (TestCgroup::new("parent")?, TestCgroup::new("user")?);
    let container = parent.child("container")?;
    // Another user owns this cgroup, though not those below, which are at a level of names.
    chown(user.path(), Some(65534), None)?;
    let (early, of_user) = (user.child("early")?, user.child("inner")?);
    let mut deep = vec![container.child("deep")?];
    while deep.len() < 20 {
        let deeper = deep[deep.len() - 1].child("deep")?;
        deep.push(deeper);
    }
    let kubepods = parent.child_named("kubepods")?;
    let pod = kubepods.child_named("pod6ef0362e-e3b9-43a3-acdb-de4ba71f1fa4")?;
    let in_pod = pod.child_named(&"4f".repeat(32))?;
    let below = in_pod.child("inner")?;
    // Root owns this container, and its own cgroups are at a level of names.
    let lxc = TestCgroup::named(&format!("lxc.payload.podperf-test-{}", process::id()))?;
    let of_lxc = lxc.child("inner")?;
    spin(&early)?;
    // From here on the programs know where pods and containers are.
    agent.fresh_metrics()?;
    let many = crowd(&container, HALF)?;
    let deepest = &deep[deep.len() - 1];
    for cgroup in [deepest, &of_user, &below, &of_lxc, &early] {
        spin(cgroup)?;
    }
    let metrics = agent.fresh_metrics()?;
    nothing_was_dropped(&metrics)?;
    for cgroup in [&container, &kubepods, &lxc, &early] {
        oncpu_is_cpu_stat(&metrics, cgroup)?;
    }
    // Rows do not overlap.
    is_close("the user", time(&metrics, ONCPU, &user, &[])?, user.cpu_usage()?.saturating_sub(early.cpu_usage()?))?;
    for (inner, outer) in [(deepest, &container), (&of_user, &user), (&below, &in_pod), (&of_lxc, &lxc)] {
        let is_charged = has(&agent, "charged", inner, outer)?;
        ensure!(is_charged, "{} is not charged to {}", inner.kernel_path(), outer.kernel_path());
    }
    drop(many);
    within(FREED, "a cgroup of the container has a row", || {
        agent.fresh_metrics()?;
        let late = container.child("late")?;
        spin(&late)?;
        Ok(dump(&agent, "cgroups")?.contains(&format!("\"key\": {},", late.id())).then_some(()))
    })
}

/// After a reload of the depth, cgroups at the new levels of names are their own outer cgroups: those that had a row,
/// those that had none, and those in which everything sleeps. Some of the crowd run all the time: the programs ask for
/// their rows again as fast as the agent forgets them.
fn a_reload_of_the_depth_moves_the_end_of_names() -> Result<()> {
    let yaml = |depth: u32| format!("cgroups: {{max: 256, depth: {depth}}}\n");
    let agent = Agent::start(&yaml(2))?;
    let parent = TestCgroup::new("parent")?;
    let container = parent.child("container")?;
    let (early, asleep) = (container.child("early")?, container.child("asleep")?);
    spin(&early)?;
    let mut sleeper = Load::start(&format!("sleepers --waits 1 --hold --cgroup {}", asleep.path().display()))?;
    let _: SleepersReport = sleeper.report()?;
    sleeper.wait_until_blocked()?;
    let _many = crowd(&container, HALF)?;
    let late = container.child("late")?;
    spin(&late)?;
    let busy = (0..cpus()?.min(8)).map(|cpu| -> Result<_> {
        let pair = [container.child("busy")?, container.child("busy")?];
        let cgroups = format!("{},{}", pair[0].path().display(), pair[1].path().display());
        Ok((Load::start(&format!("ring --cpu {cpu} --slices 100000 --cgroups {cgroups}"))?, pair))
    });
    let _busy = busy.collect::<Result<Vec<_>>>()?;
    agent.fresh_metrics()?;
    ensure!(has(&agent, "charged", &late, &container)?, "the late cgroup is not charged to its container");
    for cgroup in [&early, &asleep] {
        ensure!(has(&agent, "cgroups", cgroup, &container)?, "the container is not the outer cgroup");
    }
    agent::command(agent.directory(), &yaml(3))?;
    agent.signal(Signal::SIGHUP)?;
    within(FREED, "all are their own outer cgroups", || {
        agent.fresh_metrics()?;
        let of = |cgroup: &TestCgroup| -> Result<bool> {
            let _: CpuReport = run(&format!("spin --seconds 0.02 --cgroup {}", cgroup.path().display()))?;
            has(&agent, "cgroups", cgroup, cgroup)
        };
        let is_found = of(&early)? && of(&late)? && has(&agent, "cgroups", &asleep, &asleep)?;
        Ok(is_found.then_some(()))
    })?;
    nothing_was_dropped(&agent.fresh_metrics()?)
}
