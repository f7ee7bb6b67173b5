//! The sensor `interrupts`. The truth is the clock of a thread that is interrupted, and the kernel's counts of soft and
//! of hard interrupts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics},
    cgroup::TestCgroup,
    load::{self, flood::FloodReport},
    running::{Load, cpus, run, time},
    suite::{Need, Test, tell, within},
    tests,
};

use crate::{conservation::idle_ticks, pmu::PERF};

pub(crate) const TESTS: &[Test] = tests![
    #[land]
    #[measures]
    a_flood_is_interrupted_for_as_long_as_its_packets_are_filtered,
    rows_and_idle_are_the_node,
    each_soft_interrupt_is_counted_once_by_its_kind,
    hard_interrupts_are_counted_by_the_names_of_the_kernel,
    interrupts_take_the_time_and_the_count_of_perf_kwork: &[Need::OwnMachine, PERF],
];

const ON: &str = "sensors: {interrupts: {enabled: true}}\nstacks: {enabled: false}\n";
const OF_CGROUPS: &str = "podperf_cgroup_interrupted_seconds_total";
const OF_IDLE: &str = "podperf_node_idle_interrupted_seconds_total";
const OF_NODE: &str = "podperf_node_interrupted_seconds_total";
const COUNT: &str = "podperf_node_interrupts_total";
const HARD: &str = "podperf_node_hard_interrupts_total";
const HARD_TIME: &str = "podperf_node_hard_interrupts_seconds_total";
/// The name of all hard interrupts without a series of their own.
const OTHER: &str = "(other)";
/// Divisions in a filter that take longer than to send a packet and to receive it. Linux before 6.7 takes filters of up to
/// 20 KiB.
const STEPS: u16 = 2500;
/// Pairs of floods. Other virtual machines disturb some of them.
const PAIRS: usize = 3;

fn received(metrics: &Metrics, cgroup: &TestCgroup) -> Result<Duration> {
    time(metrics, OF_CGROUPS, cgroup, &[("kind", "net_rx")])
}

/// Sends packets from a new cgroup. Returns the time of the sender, and the part of it in interrupts. This is mostly the
/// reception of the packets, and what interrupts that: a hard interrupt is no part of the soft one below it.
fn flood(agent: &Agent, steps: u16) -> Result<(Duration, Duration)> {
    let cgroup = TestCgroup::new("flood")?;
    let report: FloodReport = run(&format!("flood --cpu 0 --steps {steps} --cgroup {}", cgroup.path().display()))?;
    let metrics = agent.fresh_metrics()?;
    let (received, all) = (received(&metrics, &cgroup)?, metrics.sum(OF_CGROUPS, &[("cgroup", cgroup.kernel_path())]));
    let interrupted = Duration::try_from_secs_f64(all)?;
    ensure!(received > interrupted / 2, "{received:?} of {interrupted:?} in interrupts are the packets");
    Ok((Duration::from_nanos(report.on_cpu_ns), interrupted))
}

/// Two floods differ only in the length of the filter, which runs in the soft interrupt. A burner on the same CPU sends
/// nothing.
fn a_flood_is_interrupted_for_as_long_as_its_packets_are_filtered() -> Result<()> {
    let agent = Agent::start(ON)?;
    let burner = TestCgroup::new("burner")?;
    let _burner = Load::start(&format!("spin --cpu 0 --seconds 60 --cgroup {}", burner.path().display()))?;
    let (mut ratios, mut in_all) = (Vec::new(), Duration::ZERO);
    for _ in 0..PAIRS {
        let (short, in_short) = flood(&agent, 0)?;
        let (long, in_long) = flood(&agent, STEPS)?;
        tell(&format!("{in_short:?} of {short:?} without steps, {in_long:?} of {long:?} with {STEPS}"));
        for (interrupted, all) in [(in_short, short), (in_long, long)] {
            ensure!(interrupted < all, "{interrupted:?} in interrupts of {all:?}");
        }
        let truth = long.saturating_sub(short);
        ensure!(truth > short / 4, "the filter takes only {truth:?}, and the packets {short:?}");
        ratios.push(in_long.saturating_sub(in_short).as_secs_f64() / truth.as_secs_f64());
        in_all += in_long;
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[PAIRS / 2];
    ensure!((median - 1.0).abs() < 0.05, "times in interrupts, over those of the sender's clock: {ratios:?}");
    let astray = received(&agent.fresh_metrics()?, &burner).unwrap_or_default();
    ensure!(astray < in_all / 50, "{astray:?} in the row of the burner");
    Ok(())
}

/// Returns the nanoseconds of each kind, all series of a family together.
fn by_kind(metrics: &Metrics, family: &str) -> Result<BTreeMap<String, u128>> {
    by_label(metrics, family, "kind")
}

/// Returns the nanoseconds for each value of a label, all series of a family together.
fn by_label(metrics: &Metrics, family: &str, label: &str) -> Result<BTreeMap<String, u128>> {
    let mut sums: BTreeMap<String, u128> = BTreeMap::new();
    for sample in metrics.samples().iter().filter(|sample| sample.name == family) {
        let value = sample.labels.get(label).with_context(|| format!("no label `{label}`"))?.clone();
        // A series has whole nanoseconds, and their sum shall have no rounding.
        *sums.entry(value).or_default() += Duration::try_from_secs_f64(sample.value)?.as_nanos();
    }
    Ok(sums)
}

/// The agent gives the sensor up, because its cost is over the cap. From then on the counts stand still, and all words of
/// a reading belong together.
fn rows_and_idle_are_the_node() -> Result<()> {
    let agent = Agent::start(&format!("{ON}overhead: {{maxPercent: 0.00001}}"))?;
    let idle_before = idle_ticks()?;
    let cgroup = TestCgroup::new("flood")?;
    run::<FloodReport>(&format!("flood --cgroup {}", cgroup.path().display()))?;
    // On a busy machine no CPU is idle.
    let was_idle = idle_ticks()? > idle_before;
    agent.wait_until_sensors_are_shed(true)?;
    // Counts of a cgroup without a path wait for it, and are in no row until then.
    let mut last = String::new();
    let kinds = within(Duration::from_secs(60), "rows and idle are the node", || {
        let metrics = agent.fresh_metrics()?;
        let mut sums = by_kind(&metrics, OF_CGROUPS)?;
        for (kind, ns) in by_kind(&metrics, OF_IDLE)? {
            *sums.entry(kind).or_default() += ns;
        }
        let node = by_kind(&metrics, OF_NODE)?;
        let same = sums == node;
        last = format!("rows and idle {sums:?}, node {node:?}");
        Ok(same.then_some(node))
    })
    .with_context(|| last.clone())?;
    ensure!(kinds.get("net_rx").is_some_and(|ns| *ns > 0), "no packet was received: {kinds:?}");
    let metrics = agent.fresh_metrics()?;
    ensure!(by_kind(&metrics, OF_NODE)? == kinds, "the counts do not stand still");
    let names = by_label(&metrics, HARD_TIME, "interrupt")?;
    let hard = kinds.get("hardirq").copied().unwrap_or_default();
    ensure!(names.values().sum::<u128>() == hard, "hard interrupts by name {names:?}, as a kind {hard}");
    let counts = [metrics.sum(HARD, &[]), metrics.sum(COUNT, &[("kind", "hardirq")])];
    ensure!(counts[0] == counts[1], "{} hard interrupts by name, {} as a kind", counts[0], counts[1]);
    let of_idle: u128 = by_kind(&metrics, OF_IDLE)?.values().sum();
    ensure!(of_idle > 0 || !was_idle, "no idle CPU was interrupted");
    Ok(())
}

/// Returns the number of soft interrupts of all CPUs since boot, by kind.
fn soft_interrupts() -> Result<BTreeMap<String, f64>> {
    let table = fs::read_to_string("/proc/softirqs")?;
    let of_line = |line: &str| {
        let (kind, counts) = line.split_once(':').context("a line without a name")?;
        let counts = counts.split_whitespace().map(|count| Ok(count.parse::<f64>()?));
        Ok((kind.trim().to_lowercase(), counts.sum::<Result<f64>>()?))
    };
    table.lines().skip(1).map(of_line).collect()
}

fn each_soft_interrupt_is_counted_once_by_its_kind() -> Result<()> {
    let agent = Agent::start(ON)?;
    let earliest = soft_interrupts()?;
    let before = agent.fresh_metrics()?;
    let early = soft_interrupts()?;
    run::<FloodReport>("flood")?;
    let late = soft_interrupts()?;
    let after = agent.fresh_metrics()?;
    let latest = soft_interrupts()?;
    // One may go on on each CPU: the kernel counts it when it begins.
    let going_on = f64::from(u32::try_from(cpus()?)?);
    for (kind, first) in &earliest {
        let of = |counts: &BTreeMap<String, f64>| counts.get(kind).copied().context("a kind is gone");
        let (least, most) = (of(&late)? - of(&early)? - going_on, of(&latest)? - first + going_on);
        let labels = [("kind", kind.as_str())];
        let found = after.sum(COUNT, &labels) - before.sum(COUNT, &labels);
        tell(&format!("{found} soft interrupts {kind}, by the kernel {least} to {most}"));
        ensure!((least..=most).contains(&found), "{found} soft interrupts {kind}, by the kernel {least} to {most}");
    }
    let received = after.sum(COUNT, &[("kind", "net_rx")]);
    ensure!(received > 0.0, "no packet was received");
    Ok(())
}

/// The hard interrupts that have handlers, as the kernel counts them.
struct HardInterrupts {
    /// The names of the handlers.
    names: BTreeSet<String>,
    /// The number of interrupts since boot, once for each handler.
    count: f64,
}

impl HardInterrupts {
    fn read() -> Result<Self> {
        let mut this = Self { names: BTreeSet::new(), count: 0.0 };
        for interrupt in fs::read_dir("/sys/kernel/irq").context("failed to list `/sys/kernel/irq`")? {
            let path = interrupt?.path();
            let actions = fs::read_to_string(path.join("actions"))?;
            let names: Vec<_> = actions.trim().split(',').filter(|name| !name.is_empty()).collect();
            let counts = fs::read_to_string(path.join("per_cpu_count"))?;
            let counts = counts.trim().split(',').map(|count| Ok(count.parse::<f64>()?));
            let count: f64 = counts.sum::<Result<f64>>()?;
            this.count += count * f64::from(u32::try_from(names.len())?);
            this.names.extend(names.into_iter().map(str::to_owned));
        }
        Ok(this)
    }

    /// Returns whether a handler has this name, in which `*` is a number.
    fn has(&self, name: &str) -> bool {
        let Some((begin, end)) = name.split_once('*') else { return self.names.contains(name) };
        let number = |of: &String| Some(of.strip_prefix(begin)?.strip_suffix(end)?.parse::<u32>().is_ok());
        self.names.iter().any(|of| number(of) == Some(true))
    }
}

/// A console, a clock or a virtual device interrupts each machine. The kernel counts an interrupt when it begins, and a
/// handler may be called again for one that came meanwhile.
fn hard_interrupts_are_counted_by_the_names_of_the_kernel() -> Result<()> {
    let agent = Agent::start(ON)?;
    let mut last = String::new();
    let deadline = Duration::from_secs(60);
    within(deadline, "hard interrupts come", || {
        let earliest = HardInterrupts::read()?.count;
        let before = agent.fresh_metrics()?;
        let early = HardInterrupts::read()?.count;
        run::<FloodReport>("flood")?;
        // Guests have no other device that interrupts.
        fs::OpenOptions::new()
            .write(true)
            .open("/dev/console")
            .and_then(|mut to| to.write_all(b"hard interrupts\n"))
            .ok();
        thread::sleep(Duration::from_secs(1));
        let late = HardInterrupts::read()?;
        let after = agent.fresh_metrics()?;
        let latest = HardInterrupts::read()?.count;
        let found = after.sum(HARD, &[]) - before.sum(HARD, &[]);
        let (least, most) = (late.count - early, latest - earliest);
        let slack = f64::from(u32::try_from(cpus()?)?) + most / 20.0;
        last = format!("{found} hard interrupts, by the kernel {least} to {most}");
        let names = by_label(&after, HARD_TIME, "interrupt")?;
        let strange: Vec<_> = names.keys().filter(|name| *name != OTHER && !late.has(name)).collect();
        ensure!(strange.is_empty(), "no handler has these names: {strange:?}");
        ensure!((least - slack..=most + slack).contains(&found), "{last}");
        Ok((names.keys().any(|name| name != OTHER) && found > 0.0).then_some(()))
    })
    .with_context(|| last.clone())?;
    tell(&last);
    Ok(())
}

/// perf records the same soft interrupts at the same tracepoints. It counts hard interrupts within them, too.
fn interrupts_take_the_time_and_the_count_of_perf_kwork() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let agent = Agent::start(ON)?;
    let load = load::binary()?.display().to_string();
    let of_packets = |metrics: &Metrics, family| metrics.sum(family, &[("kind", "net_rx")]);
    let before = agent.fresh_metrics()?;
    let recorded = ["kwork", "-k", "softirq", "record", "-o", "perf.data", "--", &load, "flood"];
    perf(directory.path(), &recorded)?;
    let after = agent.fresh_metrics()?;
    let report = perf(directory.path(), &["kwork", "-k", "softirq", "report", "-i", "perf.data"])?;
    let (mut seconds, mut count) = (0.0, 0.0);
    for line in report.lines().filter(|line| line.contains("NET_RX")) {
        let mut cells = line.split('|').map(str::trim).skip(2);
        let mut number = || cells.next().and_then(|cell| cell.trim_end_matches(" ms").parse::<f64>().ok());
        let (ms, times) = number().zip(number()).with_context(|| format!("no time and count in perf's `{line}`"))?;
        (seconds, count) = (seconds + ms / 1000.0, count + times);
    }
    let found = [OF_NODE, COUNT].map(|family| of_packets(&after, family) - of_packets(&before, family));
    tell(&format!("podperf {:.3} s in {} receptions, perf {seconds:.3} s in {count}", found[0], found[1]));
    ensure!(count >= 10_000.0, "perf saw {count} receptions of 20,000 packets:\n{report}");
    // Before and after perf's recording come more. Each tool's interval may have the other's program in it.
    ensure!((count..count * 1.05).contains(&found[1]), "{} receptions, by perf {count}", found[1]);
    ensure!((found[0] - seconds).abs() < seconds / 5.0, "{} s, by perf {seconds} s", found[0]);
    Ok(())
}

/// Runs perf in a directory, where it leaves its file. Returns its output.
fn perf(directory: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("perf").args(arguments).current_dir(directory).output().context("failed to run perf")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`perf {}` failed: {errors}", arguments.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
