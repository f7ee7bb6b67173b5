//! Limits the requests for pages of the stacks on a path. Pure.

use std::collections::HashMap;

use crate::model::ids::StackId;

/// The most paths whose requests are known, and the most requests of one.
const MAX_PATHS: usize = 4096;
const MAX_ASKED: u8 = 16;

/// The requests so far: for each path the time of the last one, and their number.
#[derive(Debug, Default)]
pub(super) struct Asking(HashMap<StackId, (u64, u8)>);

/// The next step for a stack that does not fit into its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Ask for the missing pages.
    Ask,
    /// Wait for a copy that is newer than the last request.
    Wait,
    /// Give up: the pages did not come.
    GiveUp,
}

impl Asking {
    /// Decides about a copy that was made at `at_ns`, and notes a request.
    pub(super) fn next(&mut self, path: StackId, at_ns: u64, now_ns: u64) -> Next {
        if self.0.len() >= MAX_PATHS && !self.0.contains_key(&path) {
            // Some go, so that others are still known.
            let mut number = 0_usize;
            self.0.retain(|_, _| {
                number += 1;
                !number.is_multiple_of(8)
            });
        }
        let (asked_ns, times) = self.0.entry(path).or_default();
        // A copy that is older than the last request says nothing about its success.
        if at_ns <= *asked_ns {
            return Next::Wait;
        }
        if *times >= MAX_ASKED {
            return Next::GiveUp;
        }
        (*asked_ns, *times) = (now_ns, *times + 1);
        Next::Ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_from_before_a_request_do_not_count_against_it() {
        let mut asking = Asking::default();
        let path = StackId(2);
        assert_eq!(asking.next(path, 10, 20), Next::Ask);
        for at_ns in 11..=20 {
            assert_eq!(asking.next(path, at_ns, 30), Next::Wait);
        }
        assert_eq!(asking.next(StackId(4), 11, 30), Next::Ask);
        assert_eq!(asking.next(path, 21, 30), Next::Ask);
    }

    #[test]
    fn a_path_whose_pages_never_come_is_given_up() {
        let mut asking = Asking::default();
        let answers: Vec<_> = (1..=18).map(|at| asking.next(StackId(2), 2 * at, 2 * at + 1)).collect();
        assert_eq!(answers[..16], [Next::Ask; 16]);
        assert_eq!(answers[16..], [Next::GiveUp; 2]);
    }

    #[test]
    fn few_paths_are_known() {
        let mut asking = Asking::default();
        for path in 0..3 * MAX_PATHS as u64 {
            asking.next(StackId(path), 1, 2);
            assert!(asking.0.len() <= MAX_PATHS);
        }
    }
}
