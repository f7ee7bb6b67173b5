//! Sensors that the cap has given up, and that come back: meanwhile their counts stand still, and then they go on without
//! a jump.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use podperf_ebpf::sensors;
use podperf_tests::{
    agent::{Agent, Metrics},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    load::{self, calls::CallsReport, flood::FloodReport, sleepers::SleepersReport},
    running::{count, cpus, run, time},
    suite::{Test, tell},
    tests,
};

use crate::{functions, latencies, workqueues};

pub(crate) const TESTS: &[Test] = tests![
    #[exact]
    shed_sensors_stand_still_and_go_on_without_a_jump,
];

const FUNCTION: &str = "podperf_wait_outer";
const LENGTHS: &str = "podperf_cgroup_syscall_latency_seconds";
const CALLS: &str = "podperf_cgroup_function_latency_seconds";
const INTERRUPTS: &str = "podperf_node_interrupts_total";
const INTERRUPTED: &str = "podperf_node_interrupted_seconds_total";
const ITEMS: &str = "podperf_node_workqueue_latency_seconds_count";
const PACKETS: [(&str, &str); 1] = [("kind", "net_rx")];
const WRITES: u32 = 200;

/// Returns the counts of the sensors: calls of `fsync` and of a function in a cgroup, received packets, and items of
/// work queues.
fn counts(metrics: &Metrics, cgroup: &TestCgroup) -> [f64; 4] {
    let of = |family: &str, labels| count(metrics, &format!("{family}_count"), cgroup, labels).unwrap_or_default();
    [
        of(LENGTHS, &[("syscall", "fsync")]),
        of(CALLS, &[("function", FUNCTION)]),
        metrics.sum(INTERRUPTS, &PACKETS),
        metrics.sum(ITEMS, &[]),
    ]
}

/// Does some of all of it. Returns the least counts.
fn work(cgroup: &TestCgroup) -> Result<[f64; 4]> {
    let path = cgroup.path().display();
    let calls: CallsReport = run(&format!("calls --rounds 1000 --cgroup {path}"))?;
    run::<SleepersReport>(&format!("sleepers --waits 40 --millis 5 --depth 3 --cgroup {path}"))?;
    run::<FloodReport>("flood --packets 1000")?;
    workqueues::write_to_a_terminal(WRITES)?;
    // One soft interrupt may receive several packets.
    Ok([f64::from(calls.rounds), 40.0, 500.0, f64::from(WRITES) * 0.9])
}

/// Returns the series of the sensors' families that never fall.
fn counters(metrics: &Metrics) -> BTreeMap<String, f64> {
    let words = ["_total", "_count", "_sum", "_bucket"];
    let families = ["_interrupt", "_workqueue_", "_function_latency_", "_syscall", "_lock_"];
    let is_counter = |name: &str| words.iter().any(|word| name.ends_with(word));
    let is_sensors = |name: &str| families.iter().any(|family| name.contains(family));
    let of_sensors = metrics.samples().iter().filter(|of| is_counter(&of.name) && is_sensors(&of.name));
    of_sensors.map(|sample| (format!("{} {:?}", sample.name, sample.labels), sample.value)).collect()
}

/// A thread is in a call of `read` when the sensors are given up. It ends unseen, and so does the begin of the call in
/// which the thread is when they come back.
fn shed_sensors_stand_still_and_go_on_without_a_jump() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let all = sensors::ALL.map(|sensor| format!("{}: {{enabled: true}}", sensor.names.sensor)).join(", ");
    let binary = load::binary()?;
    let function = functions::of_program(&binary, FUNCTION);
    let yaml = |cap| {
        let pins = bpffs.yaml();
        format!(
            "{pins}\nsensors: {{{all}}}\nfunctions: [{function}]\nmetrics: {{classicBuckets: true}}\n\
             overhead: {{maxPercent: {cap}}}\n"
        )
    };
    let mut agent = Agent::start(&yaml(0.00001))?;
    let [asleep, meanwhile, later] = ["asleep", "meanwhile", "later"].map(TestCgroup::new);
    let (asleep, meanwhile, later) = (asleep?, meanwhile?, later?);
    let (mut load, _) = latencies::blocked_in(&asleep)?;
    agent.wait_until_sensors_are_shed(true)?;
    let before = counts(&agent.fresh_metrics()?, &meanwhile);
    work(&meanwhile)?;
    load.go_on()?;
    load.wait_for_word("done")?;
    load.wait_until_blocked()?;
    let (still, since) = (agent.fresh_metrics()?, Instant::now());
    let found = counts(&still, &meanwhile);
    ensure!(found == before, "{found:?} while sensors are given up, and {before:?} before");

    agent.restart(Signal::SIGKILL, &yaml(0.0))?;
    agent.wait_until_sensors_are_shed(false)?;
    functions::wait_until_told(&agent, "healthy", &format!("`{FUNCTION}` in 1 file"))?;
    let back = Instant::now();
    load.go_on()?;
    load.end()?;
    let least = work(&later)?;
    let after = agent.fresh_metrics()?;
    let took = since.elapsed();
    let found = counts(&after, &later);
    tell(&format!("{found:?} after the sensors came back, at least {least:?}"));
    ensure!(found[..2] == least[..2], "{found:?} after the sensors came back, by the loads {least:?}");
    let grown = [found[2] - before[2], found[3] - before[3]];
    ensure!(grown[0] >= least[2] && grown[1] >= least[3], "{grown:?} packets and items, by the loads {least:?}");
    let interrupted = after.sum(INTERRUPTED, &[]) - still.sum(INTERRUPTED, &[]);
    let most = took.as_secs_f64() * f64::from(u32::try_from(cpus()?)?);
    ensure!(interrupted <= most, "{interrupted} s in interrupts in {most} s of all CPUs");
    let read = time(&after, &format!("{LENGTHS}_sum"), &asleep, &[("syscall", "read")]).unwrap_or_default();
    ensure!(read <= back.elapsed(), "{read:?} in calls of `read` that no program saw begin");
    let now = counters(&after);
    for (series, value) in counters(&still) {
        // The cgroup of another program may have gone.
        let later = now.get(&series).copied().unwrap_or(value);
        ensure!(later >= value, "`{series}` fell from {value} to {later}");
    }
    Ok(())
}
