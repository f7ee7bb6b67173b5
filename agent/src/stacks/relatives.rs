//! Finds a process that has the same program as one that has ended, with the same addresses and in the same cgroup: its
//! parent, or another child of that. Pure.
//!
//! A child that is forked has the mappings of its parent until it starts another program. It may live for some
//! milliseconds only, such as one that writes a snapshot of a database.

use std::collections::HashMap;

use crate::model::ids::{CgroupId, Pid};

/// The most programs that are remembered.
const MOST_PROGRAMS: usize = 4096;

/// A program in a cgroup: start_code, end_code and start_stack.
type Program = (CgroupId, [u64; 3]);

/// A process of each program. The addresses of a program are random, so only processes that were forked share them.
/// Without random addresses, a process of another pod may have them as well. It is no relative: its files would name
/// the frames, and its pod would pay for the time.
#[derive(Debug, Default)]
pub(super) struct Relatives(HashMap<Program, Pid>);

impl Relatives {
    /// Notes a process that runs a program. The first one stays, since children come and go.
    pub(super) fn note(&mut self, process: Pid, program: Program) {
        if self.0.len() >= MOST_PROGRAMS {
            self.0.clear();
        }
        self.0.entry(program).or_insert(process);
    }

    /// Returns another process that runs the program of a process that has ended.
    pub(super) fn of(&mut self, ended: Pid, program: Program, runs: impl Fn(Pid) -> bool) -> Option<Pid> {
        let relative = *self.0.get(&program)?;
        if relative != ended && runs(relative) {
            return Some(relative);
        }
        self.0.remove(&program);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_is_another_process_that_still_runs_the_program() {
        let mut relatives = Relatives::default();
        let (program, parent, child) = ((CgroupId(4), [1, 2, 3]), Pid(7), Pid(8));
        assert_eq!(relatives.of(child, program, |_| true), None);
        relatives.note(parent, program);
        relatives.note(child, program);
        for other in [(CgroupId(4), [1, 2, 4]), (CgroupId(5), [1, 2, 3])] {
            assert_eq!(relatives.of(child, other, |_| true), None);
        }
        assert_eq!(relatives.of(child, program, |process| process == parent), Some(parent));
        assert_eq!(relatives.of(child, program, |_| false), None);
        // The next process that is seen takes the place of one that has ended.
        relatives.note(child, program);
        assert_eq!(relatives.of(child, program, |_| true), None);
        relatives.note(Pid(9), program);
        assert_eq!(relatives.of(child, program, |_| true), Some(Pid(9)));
    }
}
