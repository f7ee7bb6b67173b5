//! Where stacks on the CPU end that do not reach the outermost function.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::Result;
use podperf_tests::pprof::{Frame, Sample};

use super::Ends;

/// The most places of a load that are printed.
const MOST_PLACES: usize = 5;
/// The ends of stacks that reach the outermost function.
const REACH: [&str; 2] = ["", "guessed"];

/// Returns the rows of a load: its outermost frames by the time of such stacks.
pub(super) fn rows(samples: &[Sample], load: &str, cgroup: &str) -> Result<String> {
    let total = Ends::of(samples, "on-cpu", cgroup).total() as f64;
    let mut places: BTreeMap<(&str, String, bool), u64> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.label("cgroup") == cgroup) {
        let end = sample.label("unwind");
        let mut frames = sample.frames.iter().filter(|frame| frame.file != "[kernel]");
        let Some(first) = frames.next().filter(|_| !REACH.contains(&end)) else { continue };
        let outermost = frames.next_back();
        let [_, ns] = sample.values;
        *places.entry((end, place(outermost.unwrap_or(first)), outermost.is_none())).or_default() += ns;
    }
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let mut text = String::new();
    for ((end, place, is_alone), ns) in places.into_iter().take(MOST_PLACES) {
        let alone = if is_alone { ", alone" } else { "" };
        writeln!(text, "| {load} | {end} | {place}{alone} | {:.2} % |", 100.0 * ns as f64 / total.max(1.0))?;
    }
    Ok(text)
}

fn place(frame: &Frame) -> String {
    let Frame { address, file, function } = frame;
    let file = file.rsplit('/').next().unwrap_or_default();
    if function.is_empty() { format!("`{file}` {address:#x}") } else { format!("`{function}` in `{file}`") }
}
