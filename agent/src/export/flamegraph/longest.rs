//! The longest stacks as text, with the wakers that ended their waits. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    fmt::Write,
    sync::Arc,
};

use super::{
    formatting::{escape, percent, time},
    palette,
    tree::{self, Step},
};
use crate::{
    model::{lock::Lock, wait::WaitReason},
    recording::{Judgement, Merged, MergedSample, SubjectName},
    stacks::profile::Activity,
};

/// The largest number of stacks.
const STACKS: usize = 25;
/// Stacks with less than this part of the total time are left out, but for the longest.
const LEAST: u64 = 1000;
/// The largest number of wakers of a stack.
const WAKERS: usize = 3;

/// The samples of one subject, stack, reason, lock and judgement. They differ only in state and waker.
struct Entry<'a> {
    name: &'a SubjectName,
    sample: &'a MergedSample,
    nanoseconds: u64,
    /// The time by waker: thread and subject.
    wakers: BTreeMap<(&'a str, &'a str), u64>,
}

/// Adds the longest stacks to a page.
pub(super) fn stacks(html: &mut String, merged: &Merged) {
    let (whole, several) = (merged.nanoseconds(), merged.subjects.len() > 1);
    html.push_str("<h2>Longest stacks</h2>\n");
    for entry in entries(merged) {
        let steps = tree::steps(entry.sample);
        let reasons = usize::from(merged.side.is_waits());
        let telling = if reasons == 1 { steps.first() } else { steps.last() };
        let class = telling.map_or("all", |(_, class)| palette::class(*class));
        let judged = tree::branch(entry.sample).filter(|_| entry.sample.judgement.is_some());
        let told = escape(judged.as_deref().unwrap_or(class));
        let whose = if several { escape(&entry.name.to_string()) + " " } else { String::new() };
        // Writing to a string does not fail.
        write!(
            html,
            "<details><summary><b>{}</b> <span>{} {whose}<i class=\"{class}\"></i>{told}</span> {}</summary>\n<ol>",
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

/// Returns the entries that are shown, the longest first.
fn entries(merged: &Merged) -> Vec<Entry<'_>> {
    // A recording holds equal stacks once, so the address identifies a stack.
    let mut sums: HashMap<Key<'_>, (u64, &SubjectName, &MergedSample)> = HashMap::new();
    for (name, sample) in merged.samples() {
        let (time, ..) = sums.entry(key(name, sample)).or_insert((0, name, sample));
        *time = time.saturating_add(sample.nanoseconds);
    }
    let mut order: Vec<_> = sums.into_iter().collect();
    order.sort_by_key(|(_, (nanoseconds, ..))| Reverse(*nanoseconds));
    let least = merged.nanoseconds() / LEAST;
    let kept = order.iter().take(STACKS).take_while(|(_, (nanoseconds, ..))| *nanoseconds >= least).count();
    order.truncate(kept.max(1));
    let new = |(key, (nanoseconds, name, sample))| (key, Entry { name, sample, nanoseconds, wakers: BTreeMap::new() });
    let mut entries: Vec<(Key<'_>, Entry<'_>)> = order.into_iter().map(new).collect();
    for (name, sample) in merged.samples() {
        let Activity::OffCpu { waker: Some(waker), .. } = &sample.activity else { continue };
        let key = key(name, sample);
        if let Some((_, entry)) = entries.iter_mut().find(|(of, _)| *of == key) {
            *entry.wakers.entry((&waker.thread, &waker.subject)).or_default() += sample.nanoseconds;
        }
    }
    entries.into_iter().map(|(_, entry)| entry).collect()
}

/// The addresses of a subject and a stack, the reason, the lock, and the judgement.
type Key<'a> = (usize, usize, Option<(WaitReason, Option<Lock>)>, Option<&'a Judgement>);

fn key<'a>(name: &SubjectName, sample: &'a MergedSample) -> Key<'a> {
    let reason = match &sample.activity {
        Activity::OnCpu => None,
        Activity::OffCpu { reason, lock, .. } => Some((*reason, *lock)),
    };
    (std::ptr::from_ref(name).addr(), Arc::as_ptr(&sample.stack).addr(), reason, sample.judgement.as_deref())
}

/// Returns the function that names a stack. A function of the program is better than one of the scheduler, and a name
/// better than an address or `[no code]`.
fn leaf(steps: &[Step]) -> &str {
    let users = |(name, class): &&Step| class.is_users() && !name.contains("+0x") && !name.starts_with('[');
    steps.iter().rev().find(users).or(steps.last()).map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
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
        let mut other = woken("<b>", 25);
        let first = woken("writer", 75);
        other.stack = Arc::clone(&first.stack);
        let html = words(vec![other, first]);
        assert_eq!(html.matches("<details>").count(), 1, "{html}");
        assert!(
            html.contains("<b>100 ns</b> <span>100 % <i class=\"pipe\"></i>pipe</span> read_line</summary>"),
            "{html}"
        );
        let wakers = "<p>75 % woken by <b>writer</b> of shop/cart-0/web</p><p>25 % woken by <b>&lt;b&gt;</b> of";
        assert!(html.contains(wakers), "{html}");
    }

    #[test]
    fn stacks_that_take_nearly_no_time_are_left_out() {
        let times = |times: &[u64]| {
            let wait = |(at, time): (usize, &u64)| wait(WaitReason::Disk, &[], &[&format!("f{at}"), "main"], *time);
            words(times.iter().enumerate().map(wait).collect()).matches("<details>").count()
        };
        assert_eq!((times(&[10_000, 10, 9, 1]), times(&[1; 500]), times(&[1; 2000]), times(&[0])), (2, STACKS, 1, 1));
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
