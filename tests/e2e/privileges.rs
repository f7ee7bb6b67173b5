//! The agent's remaining privileges while it runs, from `/proc` for every thread.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use podperf::model::mode::Mode;
use podperf_tests::{
    agent::{Agent, testing},
    suite::{Test, within},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    #[land]
    #[beside]
    each_mode_has_the_capabilities_that_the_chart_names_and_no_others,
    #[land]
    #[beside]
    the_reader_of_strangers_files_has_a_filter_of_its_own,
    #[land]
    #[beside]
    restrictions_can_be_turned_off,
];

/// The numbers from `linux/capability.h`.
const NUMBERS: &[(&str, u32)] = &[
    ("DAC_READ_SEARCH", 2),
    ("SYS_PTRACE", 19),
    ("SYSLOG", 34),
    ("PERFMON", 38),
    ("BPF", 39),
    ("CHECKPOINT_RESTORE", 40),
];
/// The time limit of the first stack, on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(30);
const MODES: [(&str, Mode); 3] =
    [("stacks: {enabled: false}", Mode::Metrics), ("stacks: {unwind: none}", Mode::Reasons), ("", Mode::Profiles)];

/// Returns the capabilities that the template lists for a mode, as the kernel's bits.
fn of_the_chart(mode: Mode) -> Result<u64> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/podperf/templates/_privileges.tpl");
    let text = fs::read_to_string(path)?;
    let list = text.split("define \"podperf.capabilities\"").nth(1).context("no list")?;
    let (always, rest) =
        list.split_once("{{- if include \"podperf.takesStacks\" . }}").context("no list of reasons")?;
    let (reasons, rest) = rest.split_once("{{- end }}\n{{- if include \"podperf.profiles\" . }}").context("no end")?;
    let (profiles, _) = rest.split_once("{{- end }}").context("no end")?;
    let parts = [(true, always), (mode != Mode::Metrics, reasons), (mode == Mode::Profiles, profiles)];
    let names = parts.iter().filter(|(has, _)| *has).flat_map(|(_, part)| part.lines());
    let mut bits = 0;
    for name in names.filter_map(|line| line.strip_prefix("- ")) {
        let number = NUMBERS.iter().find(|(known, _)| *known == name).with_context(|| format!("what is `{name}`?"))?.1;
        bits |= 1_u64 << number;
    }
    Ok(bits)
}

/// Returns each thread's name, and the lines of its `status`.
fn threads(agent: &Agent) -> Result<Vec<(String, String)>> {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid()))?;
    // A thread may end during the read.
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    statuses.map(|status| Ok((field(&status, "Name")?, status))).collect()
}

fn field(status: &str, name: &str) -> Result<String> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.with_context(|| format!("no `{name}`"))?.trim().to_owned())
}

fn each_mode_has_the_capabilities_that_the_chart_names_and_no_others() -> Result<()> {
    for (yaml, mode) in MODES {
        let agent = Agent::start(yaml)?;
        // The threads that draw pages start later.
        agent.get("/", &[("Accept", "text/html")])?;
        agent.metrics()?;
        let wanted = of_the_chart(mode)?;
        // A thread takes its name when it first runs.
        let threads = within(DEADLINE, "the threads have their names", || {
            let threads = threads(&agent)?;
            let has = |name: &str| threads.iter().any(|(of, _)| of == name);
            let names_stacks = has("podperf-symbols") == (mode != Mode::Metrics);
            Ok((has("podperf") && has("podperf-kernel") && names_stacks).then_some(threads))
        })?;
        let reads_files = threads.iter().any(|(of, _)| of == "podperf-files");
        ensure!(!reads_files || mode == Mode::Profiles, "{mode:?} has a thread for files: {threads:?}");
        for (name, status) in &threads {
            for (set, wanted) in
                [("CapEff", wanted), ("CapPrm", wanted), ("CapBnd", wanted), ("CapInh", 0), ("CapAmb", 0)]
            {
                let has = u64::from_str_radix(&field(status, set)?, 16)?;
                ensure!(has == wanted, "{set} of {name}, {mode:?}: {has:x} instead of {wanted:x}");
            }
            ensure!(field(status, "NoNewPrivs")? == "1", "{name} may get new privileges");
            ensure!(field(status, "Seccomp")? == "2", "{name} has no filter of system calls");
        }
        let (_, _, says) = agent.get("/status", &[])?;
        let says = String::from_utf8(says)?;
        ensure!(says.contains("sandbox") && says.contains("capabilities BPF,"), "{says}");
    }
    Ok(())
}

fn the_reader_of_strangers_files_has_a_filter_of_its_own() -> Result<()> {
    // A thread looks for the file of a function.
    let function = "functions: [{name: none, binary: /none, symbol: none}]";
    let agent = Agent::start(&format!("sensors: {{functions: {{enabled: true}}}}\n{function}"))?;
    // The agent starts the file thread for the first file.
    within(DEADLINE, "there is a thread for files", || {
        Ok(threads(&agent)?.iter().any(|(name, _)| name == "podperf-files").then_some(()))
    })?;
    // The thread for source lines starts with the first recording that has code in a file.
    within(DEADLINE, "there is a thread for source lines", || {
        // Only the thread matters: on a busy machine the answer is late.
        agent.get("/debug/profile?seconds=1&format=pb&lines=1", &[]).ok();
        Ok(threads(&agent)?.iter().any(|(name, _)| name == "podperf-lines").then_some(()))
    })?;
    let filters = |name: &str| -> Result<u32> {
        let threads = threads(&agent)?;
        let (_, status) = threads.iter().find(|(thread, _)| thread == name).with_context(|| format!("no `{name}`"))?;
        Ok(field(status, "Seccomp_filters")?.parse()?)
    };
    let process = filters("podperf")?;
    ensure!(filters("podperf-kernel")? == process, "the thread of the kernel has others than the process");
    ensure!(filters("podperf-readers")? == process, "the thread that makes readers has others than the process");
    ensure!(filters("podperf-probes")? == process, "the thread that makes probes has others than the process");
    for name in ["podperf-symbols", "podperf-files", "podperf-lines", "podperf-find"] {
        // A thread takes its name when it first runs.
        let has_own = || filters(name).is_ok_and(|count| count == process + 1);
        within(DEADLINE, &format!("`{name}` has a filter of its own"), || Ok(has_own().then_some(())))?;
    }
    Ok(())
}

fn restrictions_can_be_turned_off() -> Result<()> {
    let agent = Agent::start(&testing("sandbox=false"))?;
    let own = fs::read_to_string("/proc/self/status")?;
    for (name, status) in threads(&agent)? {
        ensure!(field(&status, "CapEff")? == field(&own, "CapEff")?, "{name} has lost capabilities");
        ensure!(field(&status, "Seccomp_filters")? == field(&own, "Seccomp_filters")?, "{name} has a filter");
    }
    let (_, _, says) = agent.get("/status", &[])?;
    let says = String::from_utf8(says)?;
    ensure!(says.contains("all privileges kept: `--testing sandbox=false`"), "{says}");
    Ok(())
}
