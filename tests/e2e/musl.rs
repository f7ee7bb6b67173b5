//! Stacks of waits in musl, which has no unwind tables: the agent guesses the callers from musl's instructions.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    pprof::Sample,
    process,
    suite::{Need, Test, tell, within},
    tests,
};
use tempfile::TempDir;

use crate::recorded::Recording;

pub(crate) const TESTS: &[Test] = tests![
    #[measures] waits_in_musl_are_guessed_up_to_the_outermost_function: &[Need::Program("musl-gcc")],
];

/// The functions of `programs/musl.c` on each stack, outermost first.
const PATHS: [&str; 6] = [
    "main;podperf_by_read",
    "main;podperf_by_poll",
    "main;podperf_by_semaphore",
    "podperf_thread;podperf_by_sleep",
    "podperf_thread;podperf_by_condition",
    "podperf_thread;podperf_by_sort;podperf_compare",
];
/// The reasons of its waits.
const REASONS: [&str; 4] = ["sleep", "poll", "futex", "pipe"];
/// The time of waits that is recorded.
const RECORDED: Duration = Duration::from_secs(4);
/// The time limit for the agent to read the code, and the time of the recordings that look for it.
const READ: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_secs(1);
/// The least share of the waiting time with whole stacks.
const LEAST_WHOLE: f64 = 0.95;

fn waits_in_musl_are_guessed_up_to_the_outermost_function() -> Result<()> {
    let directory = TempDir::new()?;
    for flags in [&[][..], &["-static"]] {
        let program = directory.path().join(format!("musl{}", flags.join("")));
        build(&program, flags)?;
        let cgroup = TestCgroup::new("musl")?;
        let mut load = start(&program.display().to_string(), cgroup.path())?;
        let agent = Agent::start("stacks: {unwind: tables, maxWalks: 0}")?;
        // Stacks are cut until the agent has read the code, and recordings of first windows may fail.
        within(READ, "the agent has read the code", || {
            let samples = Recording::of(&agent, &cgroup, LOOK).unwrap_or_default();
            Ok((share_of_whole(&samples) >= LEAST_WHOLE).then_some(()))
        })?;
        let samples = Recording::of(&agent, &cgroup, RECORDED)?;
        load.stdin.take();
        ensure!(load.wait()?.success(), "the program failed");

        let (mut whole, mut other, mut all) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new(), 0);
        for sample in samples.iter().filter(|sample| REASONS.contains(&sample.label("reason"))) {
            let [ns, _] = sample.values;
            all += ns;
            let unwind = sample.label("unwind");
            let names = || sample.frames.iter().rev().map(|frame| frame.function.as_str());
            // No function of the program or of musl calls itself here: a frame too many would be there twice, or unnamed.
            let mut named: Vec<_> = names().filter(|name| !name.is_empty()).collect();
            named.sort_unstable();
            ensure!(named.windows(2).all(|pair| pair[0] != pair[1]), "a function is there twice: {}", sample.text());
            let own: Vec<_> = names().filter(|name| *name == "main" || name.starts_with("podperf_")).collect();
            let path = own.join(";");
            if unwind == "guessed" {
                ensure!(PATHS.contains(&path.as_str()), "the program has no such stack: {}", sample.text());
                *whole.entry(path).or_default() += ns;
            } else {
                ensure!(!unwind.is_empty(), "a stack through musl is not marked as guessed: {}", sample.text());
                let is_part = PATHS.iter().any(|of| of.ends_with(&path));
                ensure!(is_part, "`{unwind}`, and the program has no such stack: {}", sample.text());
                *other.entry(format!("{unwind} at {}", sample.text())).or_default() += ns;
            }
        }
        let sum: u64 = whole.values().sum();
        tell(&format!("{flags:?}: {sum} of {all} ns are whole"));
        for path in PATHS {
            ensure!(whole.contains_key(path), "no whole stack of `{path}`: {whole:?}, and not {other:#?}");
        }
        #[expect(clippy::cast_precision_loss, reason = "some seconds of nanoseconds")]
        let share = sum as f64 / all as f64;
        ensure!(share >= LEAST_WHOLE, "{share} of the waiting time have whole stacks, and not {other:#?}");
    }
    Ok(())
}

/// Returns the share of the waiting time with whole stacks; NaN without waits.
fn share_of_whole(samples: &[Sample]) -> f64 {
    let time = |is_wanted: &dyn Fn(&Sample) -> bool| {
        let waits = samples.iter().filter(|sample| REASONS.contains(&sample.label("reason")));
        let ns: u64 = waits.filter(|&sample| is_wanted(sample)).map(|sample| sample.values[0]).sum();
        Duration::from_nanos(ns).as_secs_f64()
    };
    time(&|sample| sample.label("unwind") == "guessed") / time(&|_| true)
}

fn build(program: &Path, flags: &[&str]) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/programs/musl.c");
    let mut command = Command::new("musl-gcc");
    command.args(["-O2", "-fomit-frame-pointer"]).args(flags).arg("-o").arg(program).arg(source);
    let output = command.output().context("failed to run `musl-gcc` (Debian package `musl-tools`)")?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Starts a command line in a cgroup. The program ends when its stdin does.
pub(crate) fn start(program: &str, cgroup: &Path) -> Result<Child> {
    let joined = format!("echo $$ > {}/cgroup.procs && exec {program}", cgroup.display());
    let mut command = Command::new("sh");
    process::bind_to_parent(&mut command);
    Ok(command.args(["-c", &joined]).stdin(Stdio::piped()).spawn()?)
}
