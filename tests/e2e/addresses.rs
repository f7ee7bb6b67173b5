//! Profiles have neither addresses nor contents of memory, in any of their forms.

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    collector::Collector,
    pprof,
    suite::{Test, within},
    tests,
};

use crate::profiles::{DEADLINE, Held};

pub(crate) const TESTS: &[Test] = tests![
    #[land]
    #[beside]
    no_reader_learns_where_code_is_or_what_memory_holds
];

/// The text to which the load's frame pointer points, and the number that a walk would show: a return address, less one.
const PLANTED: &str = "hunter2";
const AS_ADDRESS: u64 = 0x0032_7265_746e_7568 - 1;
/// Addresses of the kernel, of shared libraries and of stacks are above this one, and those within files, the kernel or a
/// mapping below it.
const HIGHEST: u64 = 1 << 36;
/// Only the kernel has addresses from here on. Times in nanoseconds are below it.
const OF_KERNEL: u64 = 1 << 63;

fn no_reader_learns_where_code_is_or_what_memory_holds() -> Result<()> {
    let cgroup = TestCgroup::new("planted")?;
    let collector = Collector::start()?;
    // Only a walk by frame pointers follows what the load has planted.
    let stacks = "stacks: {unwind: frame-pointers}";
    let agent = Agent::start(&format!("otlp: {{endpoint: '{}', interval: 1s}}\n{stacks}", collector.endpoint()))?;
    let load = Held::start(&cgroup, &["sleepers", "--planted", PLANTED])?;
    let flamegraph = |format: &str| -> Result<Vec<u8>> {
        let path = format!("/flamegraph?subject={}&format={format}", cgroup.kernel_path());
        let (status, head, body) = agent.get(&path, &[])?;
        ensure!(status == 200, "{format}: {status} {head}");
        Ok(body)
    };
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
        is_clean(&String::from_utf8_lossy(&agent.get(path, &[])?.2)).context(path)?;
    }
    is_clean(&agent.log()).context("the log")?;
    // This profile has the kernel and all processes that have waited.
    let (status, _, body) = agent.get("/flamegraph?format=pb", &[])?;
    ensure!(status == 200, "{status}");
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
fn is_clean(text: &str) -> Result<()> {
    let planted =
        [PLANTED.to_owned(), format!("{AS_ADDRESS:x}"), format!("{:x}", AS_ADDRESS + 1), AS_ADDRESS.to_string()];
    ensure!(!planted.iter().any(|planted| text.contains(planted)), "has what memory holds");
    for digits in text.split("0x").skip(1) {
        let digits: String = digits.chars().take_while(char::is_ascii_hexdigit).collect();
        let address = u64::from_str_radix(&digits, 16).unwrap_or(u64::from(!digits.is_empty()) * HIGHEST);
        ensure!(address < HIGHEST, "has an address of memory: 0x{digits}");
    }
    Ok(())
}
