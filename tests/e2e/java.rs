//! Stacks of waits below compiled Java code, which keeps no frame pointers: the virtual machine says how large the frames
//! are.

use std::{collections::BTreeSet, fs, path::Path, process::Command, time::Duration};

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    suite::{Need, Test, tell, within},
    tests,
};

use crate::{musl, recorded::Recording};

pub(crate) const TESTS: &[Test] = tests![
    #[measures] a_stack_of_java_has_each_compiled_frame: &[Need::Program("jcmd")],
];

/// Only the method of the test is compiled, at its first call, and it is not inlined into itself. One compiler does it,
/// for good: a second one would compile it again at another address, perhaps after the names were written.
const FLAGS: &str = "-Xmx64m -XX:+UseSerialGC -Xcomp -XX:TieredStopAtLevel=1 -XX:-Inline \
                     -XX:CompileCommand=compileonly,Deep.descend";
/// The frames of `descend` in `programs/Deep.java`.
const FRAMES: usize = 21;
/// The virtual machine compiles the source as well.
const STARTS: Duration = Duration::from_secs(60);
const RECORDED: Duration = Duration::from_secs(4);
/// The least share of the waiting time with whole stacks.
const LEAST_WHOLE: f64 = 0.95;

fn a_stack_of_java_has_each_compiled_frame() -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/programs/Deep.java");
    let cgroup = TestCgroup::new("java")?;
    let mut load = musl::start(&format!("java {FLAGS} {}", source.display()), cgroup.path())?;
    let pid = load.id().to_string();
    // This writes the names of compiled code.
    let map = format!("/tmp/perf-{pid}.map");
    within(STARTS, "the method is compiled", || {
        let command = Command::new("jcmd").args([&pid, "Compiler.perfmap"]).output()?;
        let names = if command.status.success() { fs::read_to_string(&map).unwrap_or_default() } else { String::new() };
        Ok(names.contains("Deep.descend").then_some(()))
    })?;
    let agent = Agent::start("stacks: {unwind: tables, maxWalks: 0}")?;
    let samples = Recording::of(&agent, &cgroup, RECORDED)?;
    load.stdin.take();
    load.wait()?;
    fs::remove_file(&map)?;

    let (mut whole, mut all, mut others) = (0, 0, BTreeSet::new());
    for sample in samples.iter().filter(|sample| sample.label("reason") == "futex") {
        let of_method = sample.frames.iter().filter(|frame| frame.function.contains("Deep.descend")).count();
        // Other threads wait, too.
        if of_method == 0 {
            others.insert(format!("`{}`: {}", sample.label("unwind"), sample.text()));
            continue;
        }
        let [ns, _] = sample.values;
        all += ns;
        if sample.label("unwind") == "guessed" {
            ensure!(of_method == FRAMES, "{of_method} frames of the method: {}", sample.text());
            whole += ns;
        } else {
            tell(&format!("`{}`: {}", sample.label("unwind"), sample.text()));
        }
    }
    tell(&format!("{whole} of {all} ns are whole"));
    #[expect(clippy::cast_precision_loss, reason = "some seconds of nanoseconds")]
    let share = whole as f64 / all as f64;
    let least = RECORDED.mul_f64(0.5).as_nanos();
    ensure!(
        u128::from(all) > least,
        "{all} ns of waits below the method, and at least {least} were recorded; other waits: {others:#?}"
    );
    ensure!(share >= LEAST_WHOLE, "{share} of the waiting time have whole stacks");
    Ok(())
}
