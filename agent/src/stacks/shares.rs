//! Shares the time for reading files in a window between pods and cgroups. Pure, except for the clock.
//!
//! All pods and cgroups with stacks in a window share its time. Each owner has a turn with an equal part of the time
//! that is left, so the next owners get the unused time of earlier turns. After all first turns, an owner with too
//! little time gets a second turn. While podperf is over its limit of CPU time, the time is short and not divided:
//! each window begins with another owner.

use std::time::{Duration, Instant};

use super::{
    clock::{Clock, MOST_STILL},
    perf_map,
};

/// The time for reading the files of one window, for all owners together; a window is some seconds long.
const TIME_FOR_FILES: Duration = Duration::from_secs(5);
/// The most of it that one owner gets, also if no other needs it: files that are costly to read must not bring podperf
/// over its limit of CPU time, where all owners lose something.
const TIME_FOR_OWNER: Duration = Duration::from_secs(1);
/// The longest time in which the names of one window are looked up, by a wall clock.
pub const LONGEST_NAMING: Duration = TIME_FOR_FILES.saturating_mul(1 + MOST_STILL);
/// The same time while podperf is over its limit of CPU time.
const LITTLE_TIME_FOR_FILES: Duration = Duration::from_millis(250);
/// The most bytes of JIT compilers' maps that are read for one owner in a window: the largest map, once. A map may
/// change with each window.
const MAP_BYTES: u64 = perf_map::MAX_BYTES;
const TURNS: u32 = 2;

/// The time for the files of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeForFiles {
    /// Enough for nearly all windows.
    Enough,
    /// Little, so that the work is spread over windows; the number of the window.
    Little(usize),
}

/// The limits of time and bytes for one pod or cgroup in a window.
#[derive(Debug)]
pub(super) struct Turn {
    /// The pod or cgroup.
    pub(super) owner: String,
    /// The end, by the clock of reads.
    pub(super) deadline: Instant,
    /// The bytes that may be read from JIT compilers' maps, which are read again when they grow.
    pub(super) map_bytes: u64,
    /// Set if the turn was too short.
    pub(super) late: bool,
}

/// Gives each owner its turns in this time, by the clock of reads. `read` gets the owner's index, and must finish within
/// the turn.
pub(super) fn share(time: TimeForFiles, owners: Vec<String>, clock: &Clock, read: impl FnMut(usize, &mut Turn)) {
    match time {
        TimeForFiles::Enough => {
            clock.begin(TIME_FOR_FILES);
            share_of(TIME_FOR_FILES, TIME_FOR_OWNER / TURNS, owners, || clock.now(), read);
        }
        TimeForFiles::Little(window) => {
            clock.begin(LITTLE_TIME_FOR_FILES);
            in_turn(window, owners, clock.now() + LITTLE_TIME_FOR_FILES, read);
        }
    }
}

/// Lets the owners read until `deadline`, one after the other, beginning with another one in each window.
fn in_turn(window: usize, owners: Vec<String>, deadline: Instant, mut read: impl FnMut(usize, &mut Turn)) {
    let first = window % owners.len().max(1);
    let mut owners: Vec<_> = owners.into_iter().enumerate().collect();
    owners.rotate_left(first);
    for (at, owner) in owners {
        read(at, &mut Turn { owner, deadline, map_bytes: MAP_BYTES, late: false });
    }
}

/// Gives each owner an equal part of the time that is left, and at most `longest`, in each of its turns.
fn share_of(
    time: Duration,
    longest: Duration,
    owners: Vec<String>,
    now: impl Fn() -> Instant,
    mut read: impl FnMut(usize, &mut Turn),
) {
    let start = now();
    let turn = |owner| Turn { owner, deadline: start, map_bytes: MAP_BYTES, late: false };
    let mut waiting: Vec<_> = owners.into_iter().map(turn).enumerate().collect();
    let mut left = time;
    for _ in 0..TURNS {
        let mut late = Vec::new();
        let mut others = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        for (at, mut turn) in waiting {
            let began = now();
            (turn.deadline, turn.late) = (began + longest.min(left / others.max(1)), false);
            read(at, &mut turn);
            left = left.saturating_sub(now().saturating_duration_since(began));
            others -= 1;
            if turn.late {
                late.push((at, turn));
            }
        }
        waiting = late;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns the time that each owner gets, in seconds; `wanted` is the time that each owner can use.
    fn given(time: u64, wanted: &[u64]) -> Vec<u64> {
        given_up_to(time, time, wanted)
    }

    fn given_up_to(longest: u64, time: u64, wanted: &[u64]) -> Vec<u64> {
        let start = Instant::now();
        let clock = Cell::new(start);
        let mut left = wanted.to_vec();
        let owners = wanted.iter().map(ToString::to_string).collect();
        share_of(
            Duration::from_secs(time),
            Duration::from_secs(longest),
            owners,
            || clock.get(),
            |at, turn| {
                let most = (turn.deadline - clock.get()).as_secs();
                let taken = left[at].min(most);
                clock.set(clock.get() + Duration::from_secs(taken));
                left[at] -= taken;
                turn.late = left[at] > 0;
            },
        );
        assert!(clock.get() - start <= Duration::from_secs(time));
        wanted.iter().zip(left).map(|(wanted, left)| wanted - left).collect()
    }

    #[test]
    fn who_wants_all_leaves_the_others_their_share() {
        assert_eq!(given(12, &[1000, 3, 1000, 3]), [3, 3, 3, 3]);
        // The parts are a quarter of 12, a third of 9, half of 8 and all of 4 seconds, then half of 3 and all of 2, in
        // whole seconds.
        assert_eq!(given(12, &[1000, 1, 1000, 1]), [3 + 1, 1, 4 + 2, 1]);
    }

    #[test]
    fn an_owner_alone_gets_a_part_of_the_time() {
        assert_eq!(given_up_to(2, 12, &[1000]), [4]);
        assert_eq!(given_up_to(2, 20, &[1000, 1, 3, 1000]), [4, 1, 3, 4]);
    }

    #[test]
    fn little_time_begins_with_another_owner_in_each_window() {
        let firsts = |window| {
            let mut order = Vec::new();
            in_turn(window, vec!["a".into(), "b".into(), "c".into()], Instant::now(), |at, turn| {
                order.push((at, turn.owner.clone()));
            });
            order.into_iter().map(|(at, owner)| format!("{at}{owner}")).collect::<String>()
        };
        assert_eq!([0, 1, 5].map(firsts), ["0a1b2c", "1b2c0a", "2c0a1b"]);
        in_turn(1, Vec::new(), Instant::now(), |_, _| unreachable!("there is no owner"));
    }

    #[test]
    fn what_nobody_else_wants_is_given_out_in_a_second_turn() {
        assert_eq!(given(12, &[1000, 0, 0, 0]), [12, 0, 0, 0]);
        assert_eq!(given(12, &[2, 2, 2, 2]), [2, 2, 2, 2]);
        assert_eq!(given(12, &[0, 0, 12, 0]), [0, 0, 12, 0]);
        assert_eq!(given(12, &[]), [0; 0]);
    }
}
