//! Profiles have neither addresses nor contents of memory, in any of their forms. The reader is a user without
//! privileges.

use std::{fs, ops::RangeInclusive, process::Command};

use anyhow::{Context as _, Result, bail, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    collector::Collector,
    command::through,
    pprof,
    suite::{Need, Test, within},
    tests,
};

use crate::{
    nobody::as_nobody,
    profiles::{DEADLINE, GO, Held},
};

pub(crate) const TESTS: &[Test] = tests![
    #[land]
    #[beside]
    no_reader_learns_where_code_is_or_what_memory_holds: &[GO, Need::Program("setpriv"), Need::Program("curl")],
];

/// The text to which the load's frame pointer points, and the number that a walk would show: a return address, less one.
const PLANTED: &str = "hunter2";
const AS_ADDRESS: u64 = 0x0032_7265_746e_7568 - 1;
/// Addresses of the kernel, of shared libraries and of stacks are above this one, and those within files, the kernel or a
/// mapping below it.
const HIGHEST: u64 = 1 << 36;
/// Only the kernel has addresses from here on. Times in nanoseconds are below it.
const OF_KERNEL: u64 = 1 << 63;

/// Sends a request as the unprivileged user, and returns the body of the answer.
fn get(agent: &Agent, path: &str) -> Result<Vec<u8>> {
    let mut curl = Command::new("curl");
    let url = format!("http://{}{path}", agent.address());
    curl.args(["--silent", "--show-error", "--fail", "--noproxy", "*", &url]);
    let output = through(&as_nobody(), &curl)?.output()?;
    ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

/// The addresses of the kernel and its modules, from the first to the last one that root sees. Return addresses are
/// between those of functions.
struct KernelAddresses(RangeInclusive<u64>);

impl KernelAddresses {
    fn read() -> Result<Self> {
        let symbols = fs::read("/proc/kallsyms")?;
        let symbols = String::from_utf8_lossy(&symbols);
        let numbers = symbols.lines().filter_map(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok());
        // Offsets of variables of each CPU are small numbers.
        let mut found: Vec<u64> = numbers.filter(|number| *number >= OF_KERNEL).collect();
        found.sort_unstable();
        let [first, .., last] = found[..] else { bail!("root sees no addresses of the kernel") };
        Ok(Self(first..=last))
    }

    /// Checks that no word of a text is one of them, as a hexadecimal or decimal number.
    fn are_not_in(&self, text: &str) -> Result<()> {
        for word in text.split(|letter: char| !letter.is_ascii_alphanumeric()) {
            let digits = word.strip_prefix("0x").unwrap_or(word);
            let numbers = [u64::from_str_radix(digits, 16), digits.parse()];
            let shown = numbers.iter().flatten().any(|number| self.0.contains(number));
            ensure!(!shown, "has an address of the kernel: {word}");
        }
        Ok(())
    }
}

fn no_reader_learns_where_code_is_or_what_memory_holds() -> Result<()> {
    let (cgroup, kernel) = (TestCgroup::new("planted")?, KernelAddresses::read()?);
    let collector = Collector::start()?;
    // Only a walk by frame pointers follows what the load has planted.
    let stacks = "stacks: {unwind: frame-pointers}";
    let agent = Agent::start(&format!("otlp: {{endpoint: '{}', interval: 1s}}\n{stacks}", collector.endpoint()))?;
    let load = Held::start(&cgroup, &["sleepers", "--planted", PLANTED])?;
    let flamegraph = |format: &str| -> Result<Vec<u8>> {
        get(&agent, &format!("/flamegraph?subject={}&format={format}", cgroup.kernel_path()))
    };
    let is_clean = |text: &str| is_clean(text, &kernel);
    let shown = |text: &str| text.contains("[no code]").then_some(());
    within(DEADLINE, "the frame is there without its address", || {
        Ok(flamegraph("folded").ok().and_then(|body| shown(&String::from_utf8_lossy(&body))))
    })?;
    for format in ["folded", "svg", "html"] {
        let text = String::from_utf8(flamegraph(format)?)?;
        shown(&text).with_context(|| format!("{format}: {text}"))?;
        is_clean(&text).with_context(|| format.to_owned())?;
    }
    for path in ["/flamegraph?activity=on-cpu&format=folded", "/debug/waits", "/status"] {
        is_clean(&String::from_utf8_lossy(&get(&agent, path)?)).context(path)?;
    }
    is_clean(&agent.log()).context("the log")?;
    // This profile has the kernel and all processes that have waited.
    let body = get(&agent, "/flamegraph?format=pb")?;
    let samples = pprof::samples(&body)?;
    let frames: Vec<_> = samples.iter().flat_map(|sample| &sample.frames).collect();
    ensure!(frames.iter().any(|frame| frame.file == "[kernel]" && frame.address > 0), "no frames of the kernel");
    let integers = pprof::integers(&body)?;
    let secret = integers.iter().find(|integer| **integer >= OF_KERNEL || **integer == AS_ADDRESS);
    ensure!(secret.is_none(), "an address or a word of memory: {secret:x?}");
    for frame in frames {
        ensure!(frame.address < HIGHEST && frame.address != AS_ADDRESS, "an address of memory: {frame:x?}");
        is_clean(&frame.function)?;
    }
    let arrived = || Ok(shown(&collector.text()));
    within(DEADLINE, "the waits are in profiles", arrived)?;
    let text = collector.text();
    for field in ["\"address\":\"", "\"memoryStart\":\"", "\"memoryLimit\":\""] {
        for number in text.split(field).skip(1) {
            let number: u64 = number.split('"').next().unwrap_or_default().parse()?;
            ensure!(number < HIGHEST && number != AS_ADDRESS, "{field}{number}");
        }
    }
    ensure!(text.contains("\"address\":\""), "OTLP has no addresses: {text}");
    is_clean(&text)?;
    drop(load);
    Ok(())
}

/// Checks that no address is written out, and the planted text neither as text nor as a number.
fn is_clean(text: &str, kernel: &KernelAddresses) -> Result<()> {
    let planted =
        [PLANTED.to_owned(), format!("{AS_ADDRESS:x}"), format!("{:x}", AS_ADDRESS + 1), AS_ADDRESS.to_string()];
    ensure!(!planted.iter().any(|planted| text.contains(planted)), "has what memory holds");
    for digits in text.split("0x").skip(1) {
        let digits: String = digits.chars().take_while(char::is_ascii_hexdigit).collect();
        let address = u64::from_str_radix(&digits, 16).unwrap_or(u64::from(!digits.is_empty()) * HIGHEST);
        ensure!(address < HIGHEST, "has an address of memory: 0x{digits}");
    }
    kernel.are_not_in(text)
}
