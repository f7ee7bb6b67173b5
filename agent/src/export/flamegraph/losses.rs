//! The sentences about what a picture lacks: a warning if it may matter here, and else a note. Pure.

use std::fmt::Write;

use super::formatting::{escape, share};
use crate::{
    model::wait::Unwind,
    recording::{LOST_WINDOW, Merged},
};

/// The share of a picture from which a loss is a warning.
const WARN_FROM: f64 = 0.01;

/// The part of a picture that a loss may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The picture lacks an unknown part of its time.
    Unknown,
    /// The time of these waits or samples is in no picture of the node.
    Missing,
    /// Their time is in the picture, without a stack.
    Stackless,
    /// Their time is in the picture, perhaps without callers.
    Thin,
}

/// Returns what a reason of `podperf_bpf_drops_total`, or of the agent's own, means for a picture, in words; `None` if
/// the same comes later or in another form.
fn meaning(reason: &str) -> Option<(Effect, &'static str)> {
    let meaning = match reason {
        LOST_WINDOW => (Effect::Unknown, "windows whose names came too late"),
        "task_storage" => (Effect::Missing, "threads for whose record there was no memory"),
        "sample_table" => (Effect::Missing, "waits or samples without room in the tables; metrics have their time"),
        "stack_frames" => (Effect::Stackless, "waits or samples whose frames came too late"),
        "stack_walk" => (Effect::Stackless, "waits without any stack"),
        "stack_ring" => (Effect::Stackless, "stacks that are sent the next time"),
        "stack_shed" => (Effect::Stackless, "stacks left out to cost less"),
        "sample_stack" => (Effect::Stackless, "waits or samples of a cgroup with too many stacks"),
        "sample_busy" => (Effect::Stackless, "waits or samples while a table was locked"),
        "copy_ring" => (Effect::Thin, "stacks that were walked by frame pointers"),
        "task_busy" | "stack_cache" | "long_wait" => return None,
        _ => (Effect::Missing, "counts of the node"),
    };
    Some(meaning)
}

/// Returns the largest share of the picture that a loss may have changed. Losses are those of the whole node, so the
/// missing waits are compared with all waits of the node.
fn changed(merged: &Merged, effect: Effect, count: u64) -> f64 {
    let coverage = &merged.coverage;
    match effect {
        Effect::Unknown => 1.0,
        Effect::Missing => share(count, count.saturating_add(merged.of_node)),
        Effect::Stackless => share(coverage.none + coverage.of(Unwind::Shed), coverage.total()),
        Effect::Thin => share(coverage.incomplete(), coverage.total()),
    }
}

/// Adds the losses of a recording to its page.
pub(super) fn write(html: &mut String, merged: &Merged) {
    let (mut warnings, mut notes) = (Vec::new(), Vec::new());
    for (reason, count) in &merged.losses {
        let Some((effect, words)) = meaning(reason) else { continue };
        let matters = changed(merged, effect, *count) >= WARN_FROM;
        let list = if matters { &mut warnings } else { &mut notes };
        list.push(format!("{count} {words} ({reason})"));
    }
    for (class, what, losses) in
        [("warn", "Missing, on the whole node", warnings), ("soft", "Missing, and too little to matter here", notes)]
    {
        if !losses.is_empty() {
            // Writing to a string does not fail.
            writeln!(html, "<p class=\"{class}\">{what}: {}.</p>", escape(&losses.join("; "))).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{super::fixture::*, *};
    use crate::{model::wait::WaitReason, recording::MergedSample, stacks::profile::Stack};

    fn says(samples: Vec<MergedSample>, of_node: u64, losses: &[(&'static str, u64)]) -> String {
        let mut html = String::new();
        write(&mut html, &Merged { of_node, losses: losses.to_vec(), ..recording(samples) });
        html
    }

    fn lost(nanoseconds: u64) -> MergedSample {
        MergedSample { stack: Arc::new(Stack::default()), ..wait(WaitReason::Unknown, &[], &[], nanoseconds) }
    }

    fn whole(nanoseconds: u64) -> MergedSample {
        wait(WaitReason::Disk, &["io_schedule"], &["main"], nanoseconds)
    }

    #[test]
    fn a_lost_stack_is_a_warning_only_where_its_time_is_seen() {
        let elsewhere = says(vec![whole(500)], 9, &[("stack_frames", 1)]);
        let note = "<p class=\"soft\">Missing, and too little to matter here: 1 waits or samples whose frames came \
                    too late (stack_frames).</p>\n";
        assert_eq!(elsewhere, note);
        let here = says(vec![whole(500), lost(6)], 9, &[("stack_frames", 1)]);
        assert!(here.starts_with("<p class=\"warn\">Missing, on the whole node: 1 waits or"), "{here}");
    }

    #[test]
    fn waits_that_are_in_no_picture_are_compared_with_those_of_the_node() {
        let says = |of_node| says(vec![whole(5)], of_node, &[("sample_table", 3)]);
        assert!(says(480_000).starts_with("<p class=\"soft\">"), "{}", says(480_000));
        assert!(says(200).starts_with("<p class=\"warn\">"), "{}", says(200));
    }

    #[test]
    fn a_lost_window_always_matters_and_what_comes_later_never_does() {
        let html = says(vec![whole(5)], 480_000, &[(LOST_WINDOW, 1), ("stack_cache", 999_999)]);
        assert_eq!(html.matches("<p class=").count(), 1, "{html}");
        assert!(html.contains("\"warn\"") && html.contains("1 windows whose names came too late (window)."), "{html}");
    }
}
