//! The frames of podperf beside those of elfutils (`eu-stack`). All threads of the loads are stopped meanwhile, so both
//! unwind the same stacks. Code of JIT compilers is left out: elfutils does not know it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    http,
    pprof::{self, Frame, Sample},
};

use super::ANSWERS;
use crate::{progress, servers::Load};

const TOOL: &str = "eu-stack";
/// The loads without a JIT compiler that have unwind tables.
const NATIVE: [&str; 6] = ["python", "cpp", "cpp-pointers", "nginx", "redis", "postgres"];
/// Each time, threads are stopped at other places.
const TIMES: usize = 20;
const RUNS_FOR: Duration = Duration::from_millis(500);
/// The time in which all threads stop.
const STOPS: Duration = Duration::from_millis(200);
/// The shortest recording, in seconds.
const RECORDED: u64 = 1;
/// The least share of whole stacks whose frames are those of elfutils, in percent.
const LEAST: f64 = 99.9;

/// A frame of elfutils.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    file: String,
    /// The address as a file that may be loaded anywhere counts it, and as one with a fixed place does.
    addresses: [u64; 2],
}

/// A mapping of a process.
#[derive(Debug)]
struct Mapping<'a> {
    start: u64,
    end: u64,
    file: &'a str,
}

/// Stacks of one load.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// Whole stacks.
    whole: u64,
    /// Whole stacks that elfutils found, too.
    equal: u64,
    /// Stacks that podperf does not call whole.
    rest: u64,
    /// The first whole stack that elfutils did not find.
    other: Option<String>,
}

/// The processes of loads. All of them go on when this is dropped.
struct Stopped(Vec<Pid>);

impl Stopped {
    fn signal(&self, signal: Signal) {
        for pid in &self.0 {
            // A process may have ended.
            let _ = kill(*pid, signal);
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
    }
}

impl<'a> Mapping<'a> {
    /// Parses a line of `/proc/PID/maps`.
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).ok());
        Some(Self { start: start?, end: end?, file: words.nth(4).unwrap_or_default() })
    }
}

impl Found {
    fn at(address: u64, mappings: &[Mapping<'_>]) -> Self {
        let mapping = mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&address));
        let file = mapping.map_or("", |mapping| mapping.file);
        let first = mappings.iter().filter(|mapping| mapping.file == file).map(|mapping| mapping.start).min();
        let relative = address.saturating_sub(first.unwrap_or_default());
        Self { file: file.to_owned(), addresses: [relative, address] }
    }

    fn is(&self, frame: &Frame) -> bool {
        self.file == frame.file && self.addresses.contains(&frame.address)
    }
}

impl Counts {
    fn add(&mut self, sample: &Sample, stacks: &[Vec<Found>]) {
        let frames: Vec<&Frame> = sample.frames.iter().filter(|frame| frame.file != "[kernel]").collect();
        if frames.is_empty() || !sample.label("unwind").is_empty() {
            self.rest += 1;
            return;
        }
        self.whole += 1;
        let is_same = |stack: &Vec<Found>| {
            stack.len() == frames.len() && stack.iter().zip(&frames).all(|(found, frame)| found.is(frame))
        };
        if stacks.iter().any(is_same) {
            self.equal += 1;
        } else if self.other.is_none() {
            self.other = Some(sample.text());
        }
    }

    fn percent(&self) -> f64 {
        100.0 * self.equal as f64 / (self.whole as f64).max(1.0)
    }
}

/// Stops the loads again and again, and returns the text to print.
pub(super) fn run(agent: &Agent, loads: &[Load]) -> Result<String> {
    if let Err(error) = Command::new(TOOL).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        return Ok(format!("\nnot measured: the frames of elfutils (`{TOOL}`: {error}; Debian package `elfutils`)\n"));
    }
    progress(&format!("stacks: {TOOL} unwinds stopped threads, {TIMES} times"));
    let mut all = BTreeMap::new();
    for _ in 0..TIMES {
        thread::sleep(RUNS_FOR);
        once(agent, loads, &mut all)?;
    }
    table(&all)
}

/// Stops the loads once, and counts their stacks.
fn once(agent: &Agent, loads: &[Load], all: &mut BTreeMap<&'static str, Counts>) -> Result<()> {
    let native = loads.iter().filter(|load| NATIVE.contains(&load.name));
    let native = native.map(|load| Ok((load, processes(&load.cgroup)?))).collect::<Result<Vec<_>>>()?;
    let stopped = Stopped(native.iter().flat_map(|(_, pids)| pids).copied().collect());
    stopped.signal(Signal::SIGSTOP);
    thread::sleep(STOPS);
    let samples = record(agent)?;
    for (load, pids) in native {
        let found = pids.iter().map(|pid| stacks_of(*pid)).collect::<Result<Vec<_>>>()?.concat();
        let counts = all.entry(load.name).or_default();
        let of_load = samples.iter().filter(|sample| sample.label("cgroup") == load.cgroup.kernel_path());
        for sample in of_load.filter(|sample| sample.label("reason") == "stopped") {
            counts.add(sample, &found);
        }
    }
    Ok(())
}

pub(super) fn processes(cgroup: &TestCgroup) -> Result<Vec<Pid>> {
    let text = fs::read_to_string(cgroup.path().join("cgroup.procs"))?;
    text.lines().map(|pid| Ok(Pid::from_raw(pid.parse()?))).collect()
}

fn record(agent: &Agent) -> Result<Vec<Sample>> {
    let path = format!("/debug/profile?activity=off-cpu&seconds={RECORDED}&format=pb");
    let (status, _, body) = http::get_within(Duration::from_secs(RECORDED) + ANSWERS, agent.address(), &path)?;
    ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(&body));
    pprof::samples(&body)
}

/// Returns the stacks of all threads of a process, by elfutils. A process that has ended has none.
fn stacks_of(pid: Pid) -> Result<Vec<Vec<Found>>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mut command = Command::new(TOOL);
    // No names, no limit of frames, and no debug files of a server.
    command.args(["-q", "-n", "0", "-p"]).arg(pid.to_string()).env_remove("DEBUGINFOD_URLS").stdin(Stdio::null());
    // It fails if one frame of one thread has no tables.
    let output = command.output().with_context(|| format!("failed to run `{TOOL}`"))?;
    Ok(parse(&String::from_utf8_lossy(&output.stdout), &maps))
}

/// Parses the threads of `eu-stack`, leaf first, as `#1  0x00007fed97229f75`.
fn parse(text: &str, maps: &str) -> Vec<Vec<Found>> {
    let mappings: Vec<_> = maps.lines().filter_map(Mapping::parse).collect();
    let mut threads: Vec<Vec<Found>> = Vec::new();
    for line in text.lines() {
        if line.starts_with("TID ") {
            threads.push(Vec::new());
        }
        let address = line.strip_prefix('#').and_then(|rest| rest.split_whitespace().nth(1)?.strip_prefix("0x"));
        let address = address.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        if let (Some(address), Some(thread)) = (address, threads.last_mut()) {
            // Above the leaf it is a return address, and podperf shows the call before it.
            let address = if thread.is_empty() { address } else { address.saturating_sub(1) };
            thread.push(Found::at(address, &mappings));
        }
    }
    threads
}

fn table(all: &BTreeMap<&'static str, Counts>) -> Result<String> {
    let mut text = format!(
        "\nFrames beside those of elfutils: all threads of these loads were stopped {TIMES} times. A stack is equal if \
         the files and the addresses of all its frames are those of a thread that `{TOOL}` unwound.\n\n\
         | load | stacks that are not whole | whole | equal | of the whole ones |\n|---|---|---|---|---|\n"
    );
    let mut sum = Counts::default();
    for (name, counts) in all {
        let Counts { whole, equal, rest, .. } = counts;
        writeln!(text, "| {name} | {rest} | {whole} | {equal} | {:.2} % |", counts.percent())?;
        sum = Counts { whole: sum.whole + whole, equal: sum.equal + equal, rest: sum.rest + rest, other: None };
    }
    let Counts { whole, equal, rest, .. } = sum;
    let holds = if whole > 0 && sum.percent() >= LEAST { "yes" } else { "no" };
    writeln!(text, "| all | {rest} | {whole} | {equal} | {:.2} %; at least {LEAST} %: {holds} |", sum.percent())?;
    for (name, counts) in all {
        if let Some(other) = &counts.other {
            writeln!(text, "\nnot found by elfutils in {name}: `{other}`")?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_eu_stack_are_places_in_files() {
        let maps = "\
00400000-00401000 r--p 00000000 08:01 7    /usr/bin/fixed
00401000-00500000 r-xp 00001000 08:01 7    /usr/bin/fixed
7f0000000000-7f0000001000 r--p 00000000 08:01 9    /lib/libc.so.6
7f0000001000-7f0000002000 r-xp 00001000 08:01 9    /lib/libc.so.6
7f0000002000-7f0000003000 rw-p 00000000 00:00 0
";
        let text = "\
PID 12 - process
TID 12:
#0  0x00007f0000001234
#1  0x0000000000401010
TID 13:
#0  0x00007f0000001234
";
        let found = |file: &str, addresses| Found { file: file.to_owned(), addresses };
        let leaf = found("/lib/libc.so.6", [0x1234, 0x7f00_0000_1234]);
        let caller = found("/usr/bin/fixed", [0x100f, 0x40_100f]);
        assert_eq!(parse(text, maps), [vec![leaf.clone(), caller], vec![leaf]]);
    }
}
