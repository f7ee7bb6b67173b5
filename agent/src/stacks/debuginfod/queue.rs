//! Decides which debug file is asked for next. Pure.
//!
//! A pod chooses the build ids of its files, and can invent them. So the files wait by owner, owners take turns, and
//! each owner has a share of requests and bytes in an hour. A file that no server has is not asked for again for an
//! hour.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Bound,
    time::{Duration, Instant},
};

/// The most files that wait, of one owner and of all together.
const WAITING_OF_ONE: usize = 64;
const WAITING: usize = 1024;
const HOUR: Duration = Duration::from_secs(3600);
/// The most requests for one owner in an hour.
const REQUESTS: u32 = 120;
/// The time for which a file that no server has is not asked for.
pub(super) const ABSENT_FOR: Duration = HOUR;
/// The same time after a request that failed.
pub(super) const FAILED_FOR: Duration = Duration::from_secs(600);
/// The most files that are known not to be there.
const ABSENT: usize = 4096;

/// A file to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The pod or the row of cgroups that needs the file.
    pub(super) owner: String,
    pub(super) build_id: String,
}

/// The files to ask for, and the shares of their owners.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: BTreeMap<String, VecDeque<String>>,
    /// The owner that had the last turn.
    last: String,
    /// The bytes that an owner may have in an hour. A file that exceeds them is the last one.
    max_bytes: u64,
    hour: Option<Instant>,
    used: HashMap<String, Used>,
    /// The files that are not asked for until this time.
    absent: HashMap<String, Instant>,
}

/// The part of its share that an owner has used in this hour.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    requests: u32,
    bytes: u64,
}

impl Queue {
    pub(super) fn new(max_bytes: u64) -> Self {
        Self {
            waiting: BTreeMap::new(),
            last: String::new(),
            max_bytes,
            hour: None,
            used: HashMap::new(),
            absent: HashMap::new(),
        }
    }

    /// Adds a file, unless it waits for this owner or is known to be absent. Returns false if too many files wait.
    pub(super) fn add(&mut self, wanted: Wanted, now: Instant) -> bool {
        let Wanted { owner, build_id } = wanted;
        if self.absent.get(&build_id).is_some_and(|until| now < *until) {
            return true;
        }
        let all: usize = self.waiting.values().map(VecDeque::len).sum();
        let files = self.waiting.get(&owner);
        if files.is_some_and(|files| files.contains(&build_id)) {
            return true;
        }
        if all >= WAITING || files.is_some_and(|files| files.len() >= WAITING_OF_ONE) {
            return false;
        }
        self.waiting.entry(owner).or_default().push_back(build_id);
        true
    }

    /// Returns whether no file waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the next file, at the cost of the owner whose turn it is. Returns `None` if no file waits, or if the
    /// owners of all waiting files have used up their shares.
    pub(super) fn next(&mut self, now: Instant) -> Option<Wanted> {
        if self.hour.is_none_or(|hour| now.saturating_duration_since(hour) >= HOUR) {
            self.hour = Some(now);
            self.used.clear();
        }
        let after = (Bound::Excluded(self.last.as_str()), Bound::Unbounded);
        let mut turns = self.waiting.range::<str, _>(after).chain(&self.waiting).map(|(owner, _)| owner);
        let owner = turns.find(|owner| self.has_share(owner))?.clone();
        let build_id = self.waiting.get(&owner)?.front()?.clone();
        // Other owners need the same file, and pay nothing for it.
        self.waiting.retain(|_, files| {
            files.retain(|file| *file != build_id);
            !files.is_empty()
        });
        self.used.entry(owner.clone()).or_default().requests += 1;
        self.last.clone_from(&owner);
        Some(Wanted { owner, build_id })
    }

    /// Notes the size of a file that an owner got.
    pub(super) fn pay(&mut self, owner: &str, bytes: u64) {
        self.used.entry(owner.to_owned()).or_default().bytes += bytes;
    }

    /// Notes that a file is not to be asked for until this time is over.
    pub(super) fn absent(&mut self, build_id: String, time: Duration, now: Instant) {
        if self.absent.len() >= ABSENT {
            self.absent.retain(|_, until| now < *until);
        }
        if self.absent.len() >= ABSENT
            && let Some(oldest) = self.absent.iter().min_by_key(|(_, until)| **until).map(|(file, _)| file.clone())
        {
            self.absent.remove(&oldest);
        }
        self.absent.insert(build_id, now + time);
    }

    fn has_share(&self, owner: &str) -> bool {
        self.used.get(owner).is_none_or(|used| used.requests < REQUESTS && used.bytes < self.max_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_BYTES: u64 = 1000;

    fn wanted(owner: &str, build_id: impl ToString) -> Wanted {
        Wanted { owner: owner.into(), build_id: build_id.to_string() }
    }

    fn next(queue: &mut Queue, now: Instant) -> String {
        queue.next(now).map(|wanted| format!("{} {}", wanted.owner, wanted.build_id)).unwrap_or_default()
    }

    #[test]
    fn owners_take_turns_and_a_file_is_asked_for_once() {
        let (mut queue, now) = (Queue::new(MAX_BYTES), Instant::now());
        for (owner, build_id) in [("b", 1), ("b", 2), ("b", 3), ("b", 1), ("a", 4), ("c", 5), ("c", 2)] {
            assert!(queue.add(wanted(owner, build_id), now));
        }
        let order: Vec<_> = (0..6).map(|_| next(&mut queue, now)).collect();
        assert_eq!(order, ["a 4", "b 1", "c 5", "b 2", "b 3", ""]);
        assert!(queue.is_empty());
    }

    #[test]
    fn an_owner_that_invents_build_ids_has_its_share_of_an_hour_and_others_have_theirs() {
        let (mut queue, start) = (Queue::new(MAX_BYTES), Instant::now());
        let mut asked = 0;
        for number in 0..3 * REQUESTS {
            queue.add(wanted("pod", number), start);
            asked += u32::from(queue.next(start).is_some());
        }
        assert_eq!(asked, REQUESTS);
        // The file of the others waits behind none of the pod's.
        let last = format!("{}", 3 * REQUESTS);
        queue.add(wanted("pod", &last), start);
        queue.add(wanted("service", &last), start);
        assert_eq!(next(&mut queue, start), format!("service {last}"));
        assert_eq!(next(&mut queue, start + HOUR / 2), "");
        assert!(next(&mut queue, start + HOUR).starts_with("pod "));
    }

    #[test]
    fn large_files_use_up_a_share_too() {
        let (mut queue, start) = (Queue::new(MAX_BYTES), Instant::now());
        for number in 0..3 {
            queue.add(wanted("pod", number), start);
        }
        assert_eq!(next(&mut queue, start), "pod 0");
        queue.pay("pod", MAX_BYTES - 1);
        assert_eq!(next(&mut queue, start), "pod 1");
        queue.pay("pod", 1);
        assert_eq!(next(&mut queue, start), "");
        assert_eq!(next(&mut queue, start + HOUR), "pod 2");
    }

    #[test]
    fn an_absent_file_is_asked_for_again_after_its_time() {
        let (mut queue, start) = (Queue::new(MAX_BYTES), Instant::now());
        queue.absent("1".into(), ABSENT_FOR, start);
        queue.absent("2".into(), FAILED_FOR, start);
        let mut asked = |at: Instant| {
            for number in [1, 2] {
                queue.add(wanted("a", number), at);
            }
            [next(&mut queue, at), next(&mut queue, at)].concat()
        };
        assert_eq!(asked(start), "");
        assert_eq!(asked(start + FAILED_FOR), "a 2");
        assert_eq!(asked(start + ABSENT_FOR), "a 1a 2");
    }

    #[test]
    fn what_waits_and_what_is_known_is_bounded() {
        let (mut queue, now) = (Queue::new(MAX_BYTES), Instant::now());
        let taken = (0..2 * WAITING_OF_ONE).filter(|number| queue.add(wanted("pod", number), now)).count();
        assert_eq!(taken, WAITING_OF_ONE);
        assert!(queue.add(wanted("service", 1), now));
        let others = (0..2 * WAITING).filter(|number| queue.add(wanted(&format!("{number}"), number), now)).count();
        assert_eq!(others, WAITING - WAITING_OF_ONE - 1);
        for number in 0..2 * ABSENT {
            queue.absent(number.to_string(), ABSENT_FOR, now);
            assert!(queue.absent.len() <= ABSENT);
        }
    }
}
