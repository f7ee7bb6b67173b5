//! Folded stacks, as `flamegraph.pl`, inferno and speedscope read them. Pure.

use std::{collections::BTreeMap, fmt::Write};

use super::tree::steps;
use crate::recording::Merged;

/// One line a stack: whose it is, what the wait was for, the functions from the outermost on, and nanoseconds.
pub(super) fn folded(merged: &Merged) -> String {
    let mut lines = BTreeMap::<String, u64>::new();
    for (name, sample) in merged.samples() {
        let mut line = word(&name.to_string());
        for (step, _) in steps(sample) {
            line.push(';');
            line.push_str(&word(&step));
        }
        *lines.entry(line).or_default() += sample.nanoseconds;
    }
    let mut text = String::new();
    for (line, nanoseconds) in lines {
        // Writing to a string does not fail.
        writeln!(text, "{line} {nanoseconds}").ok();
    }
    text
}

/// Without what ends a frame or a line.
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
    use crate::stacks::reason::WaitReason;

    #[test]
    fn a_stack_is_a_line_from_the_outermost_on() {
        let merged = recording(vec![
            wait(WaitReason::Disk, &["io_schedule", "vfs_read"], &["read", "main"], 30),
            wait(WaitReason::Disk, &["io_schedule", "vfs_read"], &["read", "main"], 12),
        ]);
        assert_eq!(folded(&merged), "/a;disk;main;read;vfs_read;io_schedule 42\n");
    }

    #[test]
    fn a_name_ends_neither_frame_nor_line() {
        let merged = recording_of("/a;b\n", vec![wait(WaitReason::Pipe, &[], &["f<(;)>\r\n", "main"], 1)]);
        assert_eq!(folded(&merged), "/a:b ;pipe;main;f<(:)>   1\n");
    }
}
