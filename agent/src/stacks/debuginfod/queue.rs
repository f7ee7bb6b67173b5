//! Decides which debug file is asked for next. Pure.
//!
//! A pod chooses the build ids of its files, and can invent them. So the files wait by owner, owners take turns, and
//! each owner has a share of requests, bytes and time in an hour. Where too many files wait, the owner with the most of
//! them loses one. A file that no server has is not asked for again for an hour.

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
/// The longest time of requests for one owner in an hour. A request that exceeds it is the last one.
const TIME: Duration = Duration::from_secs(600);
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
    /// The file that a server is asked for now.
    asking: Option<String>,
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
    time: Duration,
}

impl Queue {
    pub(super) fn new(max_bytes: u64) -> Self {
        Self {
            waiting: BTreeMap::new(),
            asking: None,
            last: String::new(),
            max_bytes,
            hour: None,
            used: HashMap::new(),
            absent: HashMap::new(),
        }
    }

    /// Adds a file, unless it waits for this owner, is asked for now, or is known to be absent. Returns false if a file
    /// will not be asked for because too many wait: this one, or the last one of the owner with the most files.
    pub(super) fn add(&mut self, wanted: Wanted, now: Instant) -> bool {
        let Wanted { owner, build_id } = wanted;
        let is_asked = self.asking.as_ref() == Some(&build_id);
        if is_asked || self.absent.get(&build_id).is_some_and(|until| now < *until) {
            return true;
        }
        let files = self.waiting.get(&owner);
        if files.is_some_and(|files| files.contains(&build_id)) {
            return true;
        }
        let own = files.map_or(0, VecDeque::len);
        if own >= WAITING_OF_ONE {
            return false;
        }
        let has_room = self.waiting.values().map(VecDeque::len).sum::<usize>() < WAITING;
        if !has_room {
            let longest = self.waiting.values_mut().max_by_key(|files| files.len());
            let Some(longest) = longest.filter(|files| files.len() > own + 1) else { return false };
            longest.pop_back();
        }
        self.waiting.entry(owner).or_default().push_back(build_id);
        has_room
    }

    /// Returns whether no file waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes the next file, at the cost of the owner whose turn it is. It counts as asked for until [`Self::asked`].
    /// Returns `None` if no file waits, or if the owners of all waiting files have used up their shares.
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
        self.asking = Some(build_id.clone());
        Some(Wanted { owner, build_id })
    }

    /// Notes that the request for the last file has ended.
    pub(super) fn asked(&mut self) {
        self.asking = None;
    }

    /// Notes the bytes and the time of a request for an owner, with or without a file in the end.
    pub(super) fn pay(&mut self, owner: &str, bytes: u64, time: Duration) {
        let used = self.used.entry(owner.to_owned()).or_default();
        used.bytes += bytes;
        used.time += time;
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
        let has = |used: &Used| used.requests < REQUESTS && used.bytes < self.max_bytes && used.time < TIME;
        self.used.get(owner).is_none_or(has)
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
    fn large_files_and_slow_requests_use_up_a_share_too() {
        for most in [(MAX_BYTES, Duration::ZERO), (0, TIME)] {
            let (mut queue, start) = (Queue::new(MAX_BYTES), Instant::now());
            for number in 0..3 {
                queue.add(wanted("pod", number), start);
            }
            assert_eq!(next(&mut queue, start), "pod 0");
            queue.pay("pod", most.0.saturating_sub(1), most.1 / 2);
            assert_eq!(next(&mut queue, start), "pod 1");
            queue.pay("pod", 1, most.1 / 2);
            assert_eq!(next(&mut queue, start), "", "{most:?}");
            assert_eq!(next(&mut queue, start + HOUR), "pod 2");
        }
    }

    #[test]
    fn a_file_does_not_wait_while_it_is_asked_for() {
        let (mut queue, now) = (Queue::new(MAX_BYTES), Instant::now());
        queue.add(wanted("a", 1), now);
        assert_eq!(next(&mut queue, now), "a 1");
        assert!(queue.add(wanted("a", 1), now) && queue.add(wanted("b", 1), now) && queue.is_empty());
        queue.asked();
        queue.add(wanted("b", 1), now);
        assert_eq!(next(&mut queue, now), "b 1");
    }

    #[test]
    fn an_absent_file_is_asked_for_again_after_its_time() {
        let (mut queue, start) = (Queue::new(MAX_BYTES), Instant::now());
        queue.absent("1".into(), ABSENT_FOR, start);
        queue.absent("2".into(), FAILED_FOR, start);
        let mut asked = |at: Instant| {
            queue.asked();
            for number in [1, 2] {
                queue.add(wanted("a", number), at);
            }
            [next(&mut queue, at), next(&mut queue, at)].concat()
        };
        assert_eq!(asked(start), "");
        assert_eq!(asked(start + FAILED_FOR), "a 2");
        assert_eq!(asked(start + ABSENT_FOR), "a 1a 2");
    }

    fn waiting(queue: &Queue) -> usize {
        queue.waiting.values().map(VecDeque::len).sum()
    }

    #[test]
    fn owners_with_many_files_leave_room_for_one_with_few() {
        let (mut queue, now) = (Queue::new(MAX_BYTES), Instant::now());
        let noisy = WAITING / WAITING_OF_ONE;
        for owner in 0..noisy {
            for number in 0..WAITING_OF_ONE {
                assert!(queue.add(wanted(&format!("noisy {owner:02}"), format!("{owner}.{number}")), now));
            }
        }
        assert!(!queue.add(wanted("quiet", "its own"), now), "a file of another owner is not asked for");
        assert_eq!((waiting(&queue), queue.waiting["quiet"].len()), (WAITING, 1));
        let turns: Vec<_> = (0..=noisy).map(|_| next(&mut queue, now)).collect();
        assert_eq!(turns.last().map(String::as_str), Some("quiet its own"));
    }

    #[test]
    fn what_waits_and_what_is_known_is_bounded() {
        let (mut queue, now) = (Queue::new(MAX_BYTES), Instant::now());
        let taken = (0..2 * WAITING_OF_ONE).filter(|number| queue.add(wanted("pod", number), now)).count();
        assert_eq!(taken, WAITING_OF_ONE);
        let others = (0..2 * WAITING).filter(|number| queue.add(wanted(&format!("{number}"), number), now)).count();
        assert_eq!(others, WAITING - WAITING_OF_ONE);
        // Each owner has one file by now, so nobody has one to lose.
        assert_eq!((waiting(&queue), queue.waiting["pod"].len()), (WAITING, 1));
        for number in 0..2 * ABSENT {
            queue.absent(number.to_string(), ABSENT_FOR, now);
            assert!(queue.absent.len() <= ABSENT);
        }
    }
}
