//! The longest stacks in words, with who ended their waits. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    fmt::Write,
};

use super::{
    palette,
    text::{escape, percent, time},
    tree::{self, Class, Step},
};
use crate::{
    recording::{Merged, MergedSample, Side, SubjectName},
    stacks::{
        profile::{Activity, Stack},
        reason::WaitReason,
    },
};

/// Stacks, at most.
const STACKS: usize = 25;
/// Wakers of each, at most.
const WAKERS: usize = 3;

/// Samples that differ in state and waker alone.
struct Entry<'a> {
    name: &'a SubjectName,
    sample: &'a MergedSample,
    nanoseconds: u64,
    /// Thread and subject.
    wakers: BTreeMap<(&'a str, &'a str), u64>,
}

/// Adds them to a page.
pub(super) fn stacks(html: &mut String, merged: &Merged) {
    let (whole, several) = (merged.nanoseconds(), merged.subjects.len() > 1);
    html.push_str("<h2>Longest stacks</h2>\n");
    for entry in entries(merged).iter().take(STACKS) {
        let steps = tree::steps(entry.sample);
        let reasons = usize::from(merged.side == Side::OffCpu);
        let telling = if reasons == 1 { steps.first() } else { steps.last() };
        let class = telling.map_or("all", |(_, class)| palette::class(*class));
        let whose = if several { escape(&entry.name.to_string()) + " " } else { String::new() };
        // Writing to a string does not fail.
        write!(
            html,
            "<details><summary><b>{}</b> <span>{} {whose}<i class=\"{class}\"></i>{class}</span> {}</summary>\n<ol>",
            time(entry.nanoseconds),
            percent(entry.nanoseconds, whole),
            escape(leaf(&steps[reasons.min(steps.len())..])),
        )
        .ok();
        for (step, _) in steps.iter().skip(reasons) {
            write!(html, "<li>{}</li>", escape(step)).ok();
        }
        html.push_str("</ol>");
        let mut wakers: Vec<_> = entry.wakers.iter().collect();
        wakers.sort_by_key(|(_, nanoseconds)| Reverse(**nanoseconds));
        for ((thread, subject), nanoseconds) in wakers.into_iter().take(WAKERS) {
            let share = percent(*nanoseconds, entry.nanoseconds);
            write!(html, "<p>{share} woken by <b>{}</b> of {}</p>", escape(thread), escape(subject)).ok();
        }
        html.push_str("</details>\n");
    }
}

/// The longest first.
fn entries(merged: &Merged) -> Vec<Entry<'_>> {
    let mut entries: HashMap<(&SubjectName, &Stack, Option<WaitReason>), Entry<'_>> = HashMap::new();
    for (name, sample) in merged.samples() {
        let (reason, waker) = match &sample.activity {
            Activity::OnCpu => (None, None),
            Activity::OffCpu { reason, waker, .. } => (Some(*reason), waker.as_deref()),
        };
        let new = || Entry { name, sample, nanoseconds: 0, wakers: BTreeMap::new() };
        let entry = entries.entry((name, &*sample.stack, reason)).or_insert_with(new);
        entry.nanoseconds = entry.nanoseconds.saturating_add(sample.nanoseconds);
        if let Some(waker) = waker {
            *entry.wakers.entry((&waker.thread, &waker.subject)).or_default() += sample.nanoseconds;
        }
    }
    let mut entries: Vec<_> = entries.into_values().collect();
    entries.sort_by_key(|entry| Reverse(entry.nanoseconds));
    entries
}

/// The program's own function says more than the scheduler's, and a name more than an address.
fn leaf(steps: &[Step]) -> &str {
    let is_users = |class: &Class| matches!(class, Class::User | Class::Waiting { kernel: false, .. });
    let users = |(name, class): &&Step| is_users(class) && !name.contains("+0x");
    steps.iter().rev().find(users).or(steps.last()).map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{super::fixture::*, *};
    use crate::stacks::profile::Waker;

    fn woken(by: &str, nanoseconds: u64) -> MergedSample {
        let mut sample = wait(WaitReason::Pipe, &["pipe_read"], &["read_line", "main"], nanoseconds);
        if let Activity::OffCpu { waker, .. } = &mut sample.activity {
            *waker = Some(Arc::new(Waker { thread: by.into(), subject: "shop/cart-0/web".into(), stack: None }));
        }
        sample
    }

    fn words(samples: Vec<MergedSample>) -> String {
        let mut html = String::new();
        stacks(&mut html, &recording(samples));
        html
    }

    #[test]
    fn a_stack_is_there_once_with_all_who_ended_its_waits() {
        let html = words(vec![woken("<b>", 25), woken("writer", 75)]);
        assert_eq!(html.matches("<details>").count(), 1, "{html}");
        assert!(
            html.contains("<b>100 ns</b> <span>100 % <i class=\"pipe\"></i>pipe</span> read_line</summary>"),
            "{html}"
        );
        let wakers = "<p>75 % woken by <b>writer</b> of shop/cart-0/web</p><p>25 % woken by <b>&lt;b&gt;</b> of";
        assert!(html.contains(wakers), "{html}");
    }

    #[test]
    fn the_longest_come_first_and_the_callers_above() {
        let other = wait(WaitReason::Disk, &["io_schedule"], &["flush"], 500);
        let html = words(vec![woken("writer", 5), other]);
        let (first, second) = (html.find("flush</summary>").unwrap(), html.find("read_line</summary>").unwrap());
        assert!(first < second, "{html}");
        assert!(html.contains("<ol><li>main</li><li>read_line</li><li>pipe_read</li></ol>"), "{html}");
    }
}
