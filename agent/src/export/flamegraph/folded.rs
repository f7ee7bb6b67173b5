//! Writes folded stacks, in the form that `flamegraph.pl`, inferno and speedscope read. Pure.

use std::{cmp::Reverse, collections::BTreeMap, fmt::Write};

use super::tree::{cause, steps};
use crate::recording::{Merged, smaller};

/// The most bytes of all lines. The stacks with the least time are over the limit.
const MOST_BYTES: usize = 8 << 20;

/// Writes one line a stack: its subject, the cause of the wait, the functions from the outermost on, and nanoseconds.
/// Stacks over the limit become one line for each subject and cause, so that the sum of all lines is the total time.
pub(super) fn folded(merged: &Merged) -> String {
    folded_within(merged, MOST_BYTES)
}

fn folded_within(merged: &Merged, most: usize) -> String {
    let mut samples: Vec<_> = merged.samples().collect();
    samples.sort_by_key(|(_, sample)| Reverse(sample.nanoseconds));
    let mut lines = BTreeMap::<String, u64>::new();
    let mut beyond = BTreeMap::<String, (u64, u64)>::new();
    let mut bytes = 0;
    let mut line = String::new();
    for (name, sample) in samples {
        line.clear();
        line.push_str(&word(&name.to_string()));
        let subject = line.len();
        for (step, _) in steps(sample) {
            line.push(';');
            line.push_str(&word(&step));
        }
        if let Some(time) = lines.get_mut(&line) {
            *time = time.saturating_add(sample.nanoseconds);
        } else if bytes + line.len() <= most {
            bytes += line.len();
            lines.insert(line.clone(), sample.nanoseconds);
        } else {
            line.truncate(subject);
            if let Some(cause) = cause(sample) {
                line.push(';');
                line.push_str(cause);
            }
            let (stacks, time) = beyond.entry(line.clone()).or_default();
            (*stacks, *time) = (*stacks + 1, time.saturating_add(sample.nanoseconds));
        }
    }
    let mut text = String::with_capacity(bytes + 32 * lines.len());
    for (line, nanoseconds) in lines {
        // Writing to a string does not fail.
        writeln!(text, "{line} {nanoseconds}").ok();
    }
    for (line, (stacks, nanoseconds)) in beyond {
        writeln!(text, "{line};{} {nanoseconds}", smaller(stacks)).ok();
    }
    text
}

/// Replaces the characters that would end a frame or a line.
fn word(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c == ';' {
                ':'
            } else if c.is_control() {
                ' '
            } else {
                c
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::model::wait::WaitReason;

    #[test]
    fn a_stack_is_a_line_from_the_outermost_on() {
        let merged = recording(vec![
            wait(WaitReason::Disk, &["io_schedule", "vfs_read"], &["read", "main"], 30),
            wait(WaitReason::Disk, &["io_schedule", "vfs_read"], &["read", "main"], 12),
        ]);
        assert_eq!(folded(&merged), "/a;disk;main;read;vfs_read;io_schedule 42\n");
    }

    #[test]
    fn below_the_subject_is_the_lock_where_waits_for_locks_were_recorded() {
        assert_eq!(folded(&waiting_for_mutex(42)), "/a;mutex;main;mutex_lock 42\n");
        assert_eq!(folded_within(&waiting_for_mutex(42), 0), "/a;mutex;(1 smaller) 42\n");
    }

    #[test]
    fn a_name_ends_neither_frame_nor_line() {
        let merged = recording_of("/a;b\n", vec![wait(WaitReason::Pipe, &[], &["f<(;)>\r\n", "main"], 1)]);
        assert_eq!(folded(&merged), "/a:b ;pipe;main;f<(:)>   1\n");
    }

    #[test]
    fn beyond_the_bound_the_shortest_are_one_line_with_all_their_time() {
        let names: Vec<String> = (1..=100).map(|number| format!("f{number:03}")).collect();
        let samples = names.iter().zip(1..).map(|(name, time)| wait(WaitReason::Disk, &[], &[name, "main"], time));
        let text = folded_within(&recording(samples.collect()), 170);
        assert_eq!(text.lines().count(), 11, "{text}");
        assert!(text.contains("/a;disk;main;f100 100\n") && text.contains("/a;disk;(90 smaller) 4095\n"), "{text}");
    }
}
