//! Limits the time for reading new processes of one owner between two windows. Pure.

use std::{
    collections::{HashMap, HashSet},
    mem,
    time::Duration,
};

use crate::model::ids::Pid;

/// The limit for one owner, enough for some 2000 processes. A read that exceeds it is the last one.
const TIME: Duration = Duration::from_secs(1);
/// The limit for one process without a cgroup of its own.
const TIME_ALONE: Duration = Duration::from_secs(5);
/// The largest number of skipped processes that are remembered.
const MAX_SKIPPED: usize = 4096;

/// The time that was used since the last window.
#[derive(Debug, Default)]
pub(super) struct PrefetchTime {
    used: HashMap<String, Duration>,
    skipped: HashSet<Pid>,
    /// Processes that were skipped before the last window; the stacks of that window are named now.
    skipped_before: HashSet<Pid>,
}

impl PrefetchTime {
    pub(super) fn next_window(&mut self) {
        self.used.clear();
        self.skipped_before = mem::take(&mut self.skipped);
    }

    /// Returns the time that an owner has left to read a process. Returns `None` if no time is left; then the process
    /// is skipped.
    pub(super) fn time_for(&mut self, owner: &str, pid: Pid) -> Option<Duration> {
        if !shares(owner) {
            return Some(TIME_ALONE);
        }
        let left = TIME.saturating_sub(self.used.get(owner).copied().unwrap_or_default());
        if left.is_zero() {
            if self.skipped.len() < MAX_SKIPPED {
                self.skipped.insert(pid);
            }
            return None;
        }
        Some(left)
    }

    pub(super) fn used(&mut self, owner: String, time: Duration) {
        if !shares(&owner) {
            return;
        }
        *self.used.entry(owner).or_default() += time;
    }

    /// Returns whether a process of this window was skipped, so that it was unknown when it ended.
    pub(super) fn has_skipped(&self, pid: Pid) -> bool {
        self.skipped_before.contains(&pid)
    }
}

/// Returns whether the processes of an owner have one limit together. All processes without a cgroup of their own would
/// share the root's.
fn shares(owner: &str) -> bool {
    !matches!(owner, "" | "/")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, process::Command, time::Instant};

    use super::*;
    use crate::stacks::{counts::Cause, reader::Reader, shares::Turn, user::User};

    #[test]
    fn frames_of_a_process_that_was_skipped_are_unread() {
        let mut children = [(); 2].map(|()| Command::new("sleep").arg("1000").spawn().unwrap());
        let [skipped, unseen] = [children[0].id(), children[1].id()].map(Pid);
        let mut user = User::new(Reader::start(true).unwrap());
        user.prefetch_time.used("pod a".into(), TIME);
        assert_eq!(user.prefetch_time.time_for("pod a", skipped), None);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        user.next_window();
        let deadline = Instant::now() + Duration::from_secs(3600);
        let mut turn = Turn { owner: "a".into(), deadline, map_bytes: 0, late: false };
        let frames = user.frames(&[skipped, unseen].map(|pid| (pid, BTreeSet::from([7]))), &mut turn);
        let outcome = |pid| frames[&pid][&7].outcome;
        assert_eq!(outcome(skipped), Err(Cause::FileUnreadable));
        assert_eq!(outcome(unseen), Err(Cause::ProcessGone));
        // The process is read in the next window.
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(user.prefetch(Pid(child.id())));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn one_owner_uses_up_its_own_time_only_and_has_it_again_in_the_next_window() {
        let mut prefetch = PrefetchTime::default();
        assert_eq!(prefetch.time_for("pod a", Pid(1)), Some(TIME));
        prefetch.used("pod a".into(), TIME / 4);
        assert_eq!(prefetch.time_for("pod a", Pid(1)), Some(TIME / 4 * 3));
        // A read may exceed the limit.
        prefetch.used("pod a".into(), TIME * 3);
        assert_eq!(prefetch.time_for("pod a", Pid(2)), None);
        assert_eq!(prefetch.time_for("pod b", Pid(3)), Some(TIME));
        prefetch.used("/system.slice/a.service".into(), TIME * 3);
        assert_eq!(prefetch.time_for("/system.slice/a.service", Pid(5)), None);
        prefetch.used("/".into(), TIME * 3);
        assert_eq!(prefetch.time_for("/", Pid(3)), Some(TIME_ALONE));
        prefetch.next_window();
        assert_eq!(prefetch.time_for("pod a", Pid(4)), Some(TIME));
        assert_eq!([1, 2, 3, 4].map(|pid| prefetch.has_skipped(Pid(pid))), [false, true, false, false]);
        prefetch.next_window();
        assert!(!prefetch.has_skipped(Pid(2)));
    }

    #[test]
    fn few_skipped_processes_are_remembered() {
        let mut prefetch = PrefetchTime::default();
        prefetch.used("pod a".into(), TIME);
        for pid in 0..2 * MAX_SKIPPED {
            assert_eq!(prefetch.time_for("pod a", Pid(pid.try_into().unwrap())), None);
        }
        assert_eq!(prefetch.skipped.len(), MAX_SKIPPED);
    }
}
