//! The stack cache, which saves walks: the share of wrong stacks, and the profiles under a limit of walks.

use std::{
    collections::BTreeMap,
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{Agent, Metrics, STOP_DEADLINE, testing},
    cgroup::TestCgroup,
    collector::{Collector, Sample},
    command::run_load,
    load::{self, sites::SitesReport},
    process,
    suite::{Need, Test, tell, within},
    tests,
};
use tempfile::TempDir;

use crate::profiles::{Held, nanoseconds};

pub(crate) const TESTS: &[Test] = tests![
    remembered_stacks_of_python_are_right: &[Need::Program("python3")] => python_is_right,
    remembered_stacks_of_node_and_its_jit_are_right: &[Need::Program("node")] => node_is_right,
    remembered_stacks_of_go_are_right: &[Need::Program("go")] => go_is_right,
    remembered_stacks_of_rust_are_right => rust_is_right,
    recipes_of_python_prove_the_right_stacks: &[Need::Program("python3")],
    long_waits_at_a_remembered_place_have_their_own_stack => long_waits_have_their_own_stack,
    a_tracer_that_comes_and_goes_makes_no_remembered_stack_wrong: &[Need::Program("python3")] => a_tracer_that_comes_and_goes,
    ten_thousand_threads_lose_no_time,
    ten_thousand_threads_have_their_stacks_where_there_is_room,
    a_tenth_of_the_walks_leaves_totals_as_they_are: &[Need::Program("go")] => a_tenth_of_the_walks_leaves_totals,
];

/// The largest wrong share of the time for which a load was blocked.
const MOST_WRONG: f64 = 0.005;
/// The largest wrong share of the cached stacks.
const MOST_WRONG_STACKS: f64 = 0.02;
/// The least number of stacks that a recipe has proved and that were unwound, and the largest wrong share of them.
const LEAST_PROOFS: f64 = 5000.0;
const MOST_WRONG_PROOFS: f64 = 0.0001;
/// The sums cover the whole machine. Other processes only add wrong stacks, so the smallest share of several runs is
/// closest to the truth.
const RUNS: usize = 4;
/// The largest relative error of a total.
const MOST_OFF: f64 = 0.02;
const DEADLINE: Duration = Duration::from_secs(60);
/// 100,000 waits, by as many threads as have room in the tables of samples. Fewer threads would take longer.
const SITES: [&str; 5] = ["sites", "--waits", "100000", "--threads", "600"];

/// Threads that exchange objects, recurse deeply, and sleep.
const PYTHON: &str = r"
import queue, threading, time
end = time.monotonic() + 4
def deep(n):
    if n: return deep(n - 1)
    time.sleep(0.0005)
def produce(q):
    while time.monotonic() < end: q.put(1); time.sleep(0.0002)
    q.put(None)
def consume(q):
    while q.get() is not None: pass
def recurse():
    while time.monotonic() < end: deep(200); deep(20)
q = [queue.Queue(), queue.Queue()]
threads = [threading.Thread(target=f, args=a) for f, a in
           [(produce, (q[0],)), (produce, (q[1],)), (consume, (q[0],)), (consume, (q[1],)), (recurse, ()), (recurse, ())]]
for t in threads: t.start()
for t in threads: t.join()
";

/// A server, its clients, and code that the runtime compiles again while it runs.
const NODE: &str = r"
const http = require('http');
const end = Date.now() + 4000;
let compiled = 0;
const server = http.createServer((request, response) => {
    const work = new Function('n', `let s = ${compiled++ % 50}; for (let i = 0; i < n; i++) s += i * ${compiled % 7}; return s`);
    response.end(String(work(2000)));
}).listen(0, '127.0.0.1', () => {
    const agent = new http.Agent({ keepAlive: true });
    let open = 8;
    const ask = () => http.get({ port: server.address().port, host: '127.0.0.1', agent }, (response) => {
        response.resume();
        response.on('end', () => Date.now() < end ? setTimeout(ask, Math.random() < 0.1 ? 1 : 0) : --open || process.exit());
    });
    for (let i = 0; i < 8; i++) ask();
});
";

/// Goroutines on channels, timers, a socket and a mutex, on more threads than CPUs.
const GO: &str = r#"
package main

import (
	"net"
	"runtime"
	"sync"
	"time"
)

func main() {
	runtime.GOMAXPROCS(4)
	end := time.Now().Add(4 * time.Second)
	var all sync.WaitGroup
	run := func(body func()) {
		all.Add(1)
		go func() {
			defer all.Done()
			for time.Now().Before(end) {
				body()
			}
		}()
	}
	channel := make(chan int)
	go func() {
		for range channel {
		}
	}()
	var lock sync.Mutex
	for i := 0; i < 4; i++ {
		run(func() { channel <- 1; time.Sleep(100 * time.Microsecond) })
		run(func() { lock.Lock(); time.Sleep(50 * time.Microsecond); lock.Unlock() })
	}
	listener, _ := net.Listen("tcp", "127.0.0.1:0")
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				buffer := make([]byte, 64)
				for {
					n, err := connection.Read(buffer)
					if err != nil {
						return
					}
					connection.Write(buffer[:n])
				}
			}()
		}
	}()
	connection, _ := net.Dial("tcp", listener.Addr().String())
	buffer := make([]byte, 64)
	run(func() { connection.Write(buffer[:8]); connection.Read(buffer) })
	all.Wait()
}
"#;

fn python_is_right() -> Result<()> {
    let scratch = TempDir::new()?;
    is_right("python", Command::new("python3").arg(written(&scratch, "load.py", PYTHON)?))
}

fn node_is_right() -> Result<()> {
    let scratch = TempDir::new()?;
    is_right("node", Command::new("node").arg(written(&scratch, "load.js", NODE)?))
}

fn go_is_right() -> Result<()> {
    let scratch = TempDir::new()?;
    let (source, program) = (written(&scratch, "load.go", GO)?, scratch.path().join("load"));
    let built = Command::new("go").arg("build").arg("-o").arg(&program).arg(source).env("GOFLAGS", "").output()?;
    ensure!(built.status.success(), "failed to build: {}", String::from_utf8_lossy(&built.stderr));
    is_right("go", &mut Command::new(program))
}

fn rust_is_right() -> Result<()> {
    // Each thread waits often enough at each call site to have it in the cache.
    let waits = ["sites", "--waits", "100000", "--threads", "400"];
    is_right("rust", Command::new(load::binary()?).args(waits))
}

/// The agent unwinds many of the stacks that recipes prove.
fn recipes_of_python_prove_the_right_stacks() -> Result<()> {
    let scratch = TempDir::new()?;
    let agent = Agent::start(&(testing("shadow=true") + "stacks: {unwind: tables, maxWalks: 0}"))?;
    let mut load = Command::new("python3");
    load.arg(written(&scratch, "load.py", PYTHON)?).stdin(Stdio::null()).stdout(Stdio::null());
    ensure!(process::bind_to_parent(&mut load).status()?.success(), "the load ended badly");
    let metrics = agent.fresh_metrics()?;
    let proved = value(&metrics, "podperf_stack_shadow_proofs_total")?;
    let wrong = value(&metrics, "podperf_stack_shadow_proofs_wrong_total")?;
    tell(&format!("{proved} stacks that a recipe proved were unwound, and {wrong} of them were others"));
    ensure!(proved >= LEAST_PROOFS && wrong <= MOST_WRONG_PROOFS * proved, "{wrong} of {proved} proofs were wrong");
    Ok(())
}

fn written(scratch: &TempDir, name: &str, text: &str) -> Result<std::path::PathBuf> {
    let path = scratch.path().join(name);
    fs::write(&path, text)?;
    Ok(path)
}

/// The kernel's stack of a walk contains the sensor's caller, which is another function while another tracer is
/// attached.
fn a_tracer_that_comes_and_goes() -> Result<()> {
    let scratch = TempDir::new()?;
    let mut load = Command::new("python3");
    is_right_meanwhile("python", load.arg(written(&scratch, "load.py", PYTHON)?), || {
        drop(Agent::start("stacks: {enabled: false}")?);
        drop(Agent::start("stacks: {enabled: false}")?);
        Ok(())
    })
}

fn is_right(whose: &str, load: &mut Command) -> Result<()> {
    is_right_meanwhile(whose, load, || Ok(()))
}

/// One in four hundred of these waits has another stack than the cached one. These rare waits have most of the time.
fn long_waits_have_their_own_stack() -> Result<()> {
    let mut load = Command::new(load::binary()?);
    is_right_meanwhile("descriptors", load.args(["descriptors", "--rounds", "3", "--late-millis", "4000"]), || Ok(()))
}

/// Runs a load in shadow mode, beside the sampler: each cached stack is walked as well, by frame pointers, and both are
/// compared. With tables, shadow mode compares with recipes, which have a row of their own.
fn is_right_meanwhile(whose: &str, load: &mut Command, mut meanwhile: impl FnMut() -> Result<()>) -> Result<()> {
    let agent = Agent::start(&(testing("shadow=true") + "stacks: {unwind: frame-pointers, maxWalks: 0}"))?;
    process::bind_to_parent(load);
    load.stdin(Stdio::null()).stdout(Stdio::null());
    let mut wrong = Vec::new();
    for _ in 0..RUNS {
        let (of_time, of_stacks) = shares_wrong(whose, &agent, load, &mut meanwhile)?;
        if of_time <= MOST_WRONG && of_stacks <= MOST_WRONG_STACKS {
            return Ok(());
        }
        wrong.push((of_time, of_stacks));
    }
    bail!("of the time, and of the remembered stacks, these shares were wrong: {wrong:?}");
}

/// Returns the wrong shares of the time for which the load was blocked, and of the cached stacks.
fn shares_wrong(
    whose: &str,
    agent: &Agent,
    load: &mut Command,
    meanwhile: &mut impl FnMut() -> Result<()>,
) -> Result<(f64, f64)> {
    let cgroup = TestCgroup::new(whose)?;
    let before = agent.fresh_metrics()?;
    let mut child = load.spawn().context("failed to start the load")?;
    // The load's earlier waits are in no comparison.
    cgroup.add(child.id())?;
    meanwhile()?;
    ensure!(child.wait()?.success(), "the load ended badly");
    let after = agent.fresh_metrics()?;
    let grown = |name| -> Result<f64> { Ok(value(&after, name)? - value(&before, name)?) };
    let (waits, walks) = (grown("podperf_stack_waits_total")?, grown("podperf_stack_walks_total")?);
    let (remembered, wrong) = (grown("podperf_stack_shadow_waits_total")?, grown("podperf_stack_shadow_wrong_total")?);
    let in_state =
        |state| after.sum("podperf_cgroup_offcpu_seconds_total", &[("cgroup", cgroup.kernel_path()), ("state", state)]);
    let blocked = in_state("interruptible") + in_state("uninterruptible");
    // The agent compared long waits too, and each of them has its own stack.
    let off = grown("podperf_stack_shadow_wrong_seconds_total")?;
    tell(&format!(
        "{whose}: {waits} waits, {walks} walked, {remembered} remembered, {wrong} of them wrong; {off:.4} of {blocked:.3} s are wrong"
    ));
    ensure!(remembered > waits / 20.0 && remembered > 500.0, "{remembered} of {waits} waits were remembered");
    ensure!(blocked > 0.0, "the load was never blocked");
    after.ensure_profiles_cover(cgroup.kernel_path())?;
    Ok((off / blocked, wrong / remembered))
}

/// Each thread has its own call sites, far more than the default tables hold. Stacks are lost and counted as lost, but
/// no time.
fn ten_thousand_threads_lose_no_time() -> Result<()> {
    let collector = Collector::start()?;
    let otlp = format!("otlp: {{endpoint: '{}', interval: 2s}}", collector.endpoint());
    let (mut agent, cgroup, _) = of_ten_thousand_threads(&format!("{otlp}\nstacks: {{onCpuHertz: 0}}"))?;
    let metrics = agent.fresh_metrics()?;
    let labels = [("cgroup", cgroup.kernel_path())];
    let counted = metrics.sum("podperf_cgroup_offcpu_seconds_total", &labels);
    let lost = metrics.sum("podperf_bpf_drops_total", &[("reason", "sample_stack")]);
    // The last profile contains waits at call sites whose stack may still come.
    agent.signal(Signal::SIGTERM)?;
    ensure!(agent.wait(STOP_DEADLINE)?.success(), "{}", agent.log());
    let seconds = |samples: &mut dyn Iterator<Item = &Sample>| nanoseconds(samples) / 1e9;
    let mut told = 0.0;
    let samples = within(Duration::from_secs(10), "all time arrives", || {
        let samples = collector.samples_of(cgroup.kernel_path())?;
        told = seconds(&mut samples.iter());
        Ok((told >= 0.999 * counted).then_some(samples))
    });
    let samples = samples.with_context(|| format!("{told} s are told of {counted} s: {}", agent.log()))?;
    let unknown = seconds(&mut samples.iter().filter(|sample| sample.frames.is_empty() && sample.reason == "unknown"));
    tell(&format!("10,000 threads as shipped: {unknown} of {counted} s without a stack, {lost} stacks lost"));
    ensure!(told <= 1.001 * counted, "{told} s are told of {counted} s");
    ensure!(unknown < 0.01 * counted || lost > 0.0, "{unknown} s have no stack, and nothing says why");
    Ok(())
}

fn ten_thousand_threads_have_their_stacks_where_there_is_room() -> Result<()> {
    let room = "stacks: {onCpuHertz: 0, maxWalks: 0, maxSamples: 65536}\noverhead: {maxPercent: 0}";
    let (agent, cgroup, report) = of_ten_thousand_threads(&(testing("maxStacks=262144") + room))?;
    let metrics = agent.fresh_metrics()?;
    metrics.ensure_profiles_cover(cgroup.kernel_path())?;
    let labels = [("cgroup", cgroup.kernel_path())];
    let found = metrics.sum("podperf_cgroup_wait_seconds_total", &[labels[0], ("reason", "sleep")]);
    let truth: u64 = report.sites.iter().map(|site| site.waited_ns).sum();
    let truth = Duration::from_nanos(truth).as_secs_f64();
    // The threads' clocks also have the time on the CPU and in the run queue.
    let queued = [labels[0], ("state", "run_queue")];
    let runnable = metrics.sum("podperf_cgroup_offcpu_seconds_total", &queued)
        + metrics.sum("podperf_cgroup_oncpu_seconds_total", &labels);
    tell(&format!("10,000 threads: {found} s of sleep, {truth} s by their clocks, {runnable} s of them runnable"));
    ensure!(found <= truth * 1.001 && found >= truth - runnable - 0.001 * truth, "{found} s of sleep of {truth} s");
    Ok(())
}

fn of_ten_thousand_threads(yaml: &str) -> Result<(Agent, TestCgroup, SitesReport)> {
    let agent = Agent::start(yaml)?;
    let cgroup = TestCgroup::new("crowd")?;
    let report = run_load(cgroup.path(), &["sites", "--threads", "10000", "--waits", "200000"])?;
    Ok((agent, cgroup, report))
}

fn value(metrics: &Metrics, name: &str) -> Result<f64> {
    metrics.get(name, &[]).with_context(|| format!("no `{name}`"))
}

/// Compares the totals of sixteen functions in the profiles with the threads' own clock. Threads wait in each function
/// for a microsecond to a second. The run has a tenth of the walks that it takes without a limit. Stacks are walked by
/// frame pointers: recipes would leave next to no walks, and of these a tenth tells nothing.
fn a_tenth_of_the_walks_leaves_totals() -> Result<()> {
    let (walks, seconds) = walks_without_a_budget()?;
    let cpus = f64::from(u32::try_from(std::thread::available_parallelism()?.get())?);
    let budget = (walks / seconds / cpus / 10.0).max(1.0).round();
    let cgroup = TestCgroup::new("budget")?;
    let collector = Collector::start()?;
    let agent = Agent::start(&format!(
        "otlp: {{endpoint: '{}', interval: 2s}}\nmetrics: {{facts: [oncpu, offcpu, wait_reasons, profile_samples]}}\nstacks: {{unwind: frame-pointers, maxWalks: {budget}, onCpuHertz: 0}}",
        collector.endpoint()
    ))?;
    let load = Held::start(&cgroup, &SITES)?;
    let waits = || {
        Ok::<_, anyhow::Error>(
            agent.fresh_metrics()?.sum("podperf_cgroup_profile_samples_total", &[("cgroup", cgroup.kernel_path())]),
        )
    };
    // The load's threads have ended when it blocks: profiles have all their waits.
    let mut before = 0.0;
    within(DEADLINE, "the load has done its work", || Ok(load.is_done().then_some(())))?;
    within(DEADLINE, "the waits are over", || {
        let now = waits()?;
        let over = now > 90_000.0 && now == before;
        before = now;
        Ok(over.then_some(()))
    })?;
    let exports = || value(&agent.metrics()?, "podperf_otlp_exports_total");
    let sent = exports()?;
    within(DEADLINE, "two more windows are sent", || Ok((exports()? >= sent + 2.0).then_some(())))?;
    let metrics = agent.fresh_metrics()?;
    let truth: SitesReport = load.finish()?;
    let mut found: BTreeMap<String, f64> = BTreeMap::new();
    for sample in collector.samples_of(cgroup.kernel_path())? {
        let site = sample.functions().into_iter().find(|function| function.starts_with("podperf_site_"));
        #[expect(clippy::cast_precision_loss, reason = "some thousand seconds")]
        let nanoseconds = sample.value as f64;
        *found.entry(site.unwrap_or("").to_owned()).or_default() += nanoseconds;
    }
    let sampled_out = value(&metrics, "podperf_stack_sampled_out_total")?;
    ensure!(sampled_out > 1000.0, "the budget of {budget} walks left no wait out, but {sampled_out}");
    #[expect(clippy::cast_precision_loss, reason = "some thousand seconds")]
    let off = |site: &load::sites::Site| {
        let found = found.get(&site.function).copied().unwrap_or(0.0);
        (found - site.waited_ns as f64) / site.waited_ns as f64
    };
    let worst = truth.sites.iter().map(|site| off(site).abs()).fold(0.0, f64::max);
    tell(&format!(
        "{walks} walks without a budget; with {budget} a second and CPU {} walks, {sampled_out} waits sampled out, the worst of 16 totals off by {:.2} %",
        value(&metrics, "podperf_stack_walks_total")?,
        worst * 100.0
    ));
    for site in &truth.sites {
        let off = off(site);
        ensure!(off.abs() <= MOST_OFF, "{}: off by {:.1} % of {} waits", site.function, off * 100.0, site.waits);
    }
    metrics.ensure_profiles_cover(cgroup.kernel_path())
}

/// Returns the number of walks that the load takes, and its running time.
fn walks_without_a_budget() -> Result<(f64, f64)> {
    let cgroup = TestCgroup::new("unlimited")?;
    let agent = Agent::start("stacks: {unwind: frame-pointers, maxWalks: 0, onCpuHertz: 0}")?;
    let before = value(&agent.fresh_metrics()?, "podperf_stack_walks_total")?;
    let start = std::time::Instant::now();
    let _: SitesReport = run_load(cgroup.path(), &SITES)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok((value(&agent.fresh_metrics()?, "podperf_stack_walks_total")? - before, seconds))
}
