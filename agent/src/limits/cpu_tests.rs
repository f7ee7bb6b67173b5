use super::*;

const CAP: f64 = 5.0;
/// Number of steps that the simulated agent can give up.
const STEPS: usize = 7;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// An agent on one CPU whose cost is simulated.
struct Simulated {
    overhead: Overhead,
    now: Duration,
    cost: Cost,
    given_up: usize,
    /// Time between two readings.
    every: Duration,
}

impl Simulated {
    fn new(cap: f64) -> Self {
        let mut overhead = Overhead::new(cap, 1);
        overhead.observe(at(0), Cost::default());
        Self { overhead, now: at(0), cost: Cost::default(), given_up: 0, every: at(5) }
    }

    /// Runs for a time. `percent` is the cost, given the time and the number of steps that are given up. Returns the
    /// changes: the time in seconds, and the number of steps that are given up from then on.
    fn run(&mut self, seconds: u64, percent: impl Fn(u64, usize) -> f64) -> Vec<(u64, usize)> {
        let (mut changes, end) = (Vec::new(), self.now + at(seconds));
        while self.now < end {
            let cost = percent(self.now.as_secs(), self.given_up);
            self.now += self.every;
            self.cost.programs += self.every.mul_f64(cost / 100.0);
            let change = self.overhead.observe(self.now, self.cost);
            let Some(change) = change.filter(|change| *change != Change::Shed || self.given_up < STEPS) else {
                continue;
            };
            match change {
                Change::Shed => self.given_up += 1,
                Change::Restore(steps) => self.given_up = self.given_up.saturating_sub(steps),
            }
            self.overhead.done(change);
            changes.push((self.now.as_secs(), self.given_up));
        }
        changes
    }
}

/// Returns the cost after some steps. Each step halves the cost, except for `rest`.
fn halved(all: f64, rest: f64, steps: usize) -> f64 {
    rest + (all - rest) / f64::from(1_u32 << steps)
}

#[test]
fn the_share_is_of_all_cpus_and_of_the_last_window() {
    let mut overhead = Overhead::new(0.0, 2);
    overhead.observe(at(0), Cost::default());
    let cost = |millis, seconds| Cost { programs: Duration::from_millis(millis), process: at(seconds) };
    overhead.observe(at(10), cost(400, 0));
    assert!((overhead.percent() - 2.0).abs() < 1e-9, "{}", overhead.percent());
    overhead.observe(at(20), cost(600, 0));
    assert!((overhead.percent() - 1.0).abs() < 1e-9, "{}", overhead.percent());
    overhead.observe(at(21), cost(600, 1));
    assert!((overhead.percent() - 1.0).abs() < 1e-9, "too short a window");
}

#[test]
fn without_a_cap_nothing_is_given_up() {
    assert_eq!(Simulated::new(0.0).run(600, |_, _| 90.0), []);
}

#[test]
fn a_cold_start_gives_up_little_and_for_less_than_a_minute() {
    assert_eq!(Simulated::new(CAP).run(600, |now, _| if now < 10 { 6.0 } else { 1.0 }), []);
    let changes = Simulated::new(CAP).run(600, |now, _| if now < 15 { 6.0 } else { 1.0 });
    assert_eq!(changes, [(15, 1), (30, 0)]);
}

#[test]
fn a_lasting_overload_takes_as_many_steps_as_it_needs_and_no_other() {
    let mut agent = Simulated::new(CAP);
    let changes = agent.run(3600, |_, steps| halved(22.0, 2.0, steps));
    assert_eq!(changes[..3], [(5, 1), (10, 2), (25, 3)]);
    // The cost stays between the room and the limit. Each attempt takes ten seconds.
    assert_eq!(changes[3..], [(330, 2), (340, 3), (945, 2), (955, 3), (2160, 2), (2170, 3)]);
    // Nothing more can be given up.
    agent.run(3600, |_, _| 20.0);
    assert_eq!(agent.given_up, STEPS);
}

/// Each step halves the cost, which is seen a window later: the steps of a simulation with a delay of one window.
#[test]
fn a_step_that_is_seen_late_is_enough() {
    let mut agent = Simulated::new(CAP);
    let last = std::cell::Cell::new(0);
    let changes = agent.run(60, |_, steps| halved(9.0, 0.0, last.replace(steps)));
    assert_eq!(changes, [(15, 1)], "the cost is 4.5 with one step");
}

#[test]
fn all_is_back_within_a_minute_after_the_cost_has_fallen() {
    for every in [5, 10, 15] {
        let mut agent = Simulated::new(CAP);
        agent.every = at(every);
        agent.run(600, |_, _| 20.0);
        assert_eq!(agent.given_up, STEPS);
        let changes = agent.run(60, |_, steps| halved(2.0, 0.5, steps));
        let numbers: Vec<_> = changes.iter().map(|(_, steps)| *steps).collect();
        assert_eq!(numbers, [6, 3, 0], "each {every} s: {changes:?}");
    }
}

#[test]
fn a_load_that_oscillates_around_the_cap_rarely_makes_steps_come_and_go() {
    // A load that changes slowly is followed.
    for (half_period, most) in [(5, 4), (10, 4), (15, 4), (60, 60), (120, 30)] {
        let high = |now: u64| (now / half_period).is_multiple_of(2);
        let cost = |now, steps| halved(if high(now) { 8.0 } else { 2.0 }, 0.5, steps);
        let mut agent = Simulated::new(CAP);
        agent.run(3 * 3600, cost);
        let changes = agent.run(3600, cost);
        assert!(changes.len() <= most, "each {half_period} s: {changes:?}");
    }
}

#[test]
fn a_load_near_the_cap_does_not_make_steps_come_and_go() {
    let changes = Simulated::new(CAP).run(3600, |now, steps| halved(if now % 10 == 0 { 5.3 } else { 4.9 }, 1.0, steps));
    assert!(changes[0] == (15, 1) && changes.len() < 10, "{changes:?}");
}

/// Profiles are named and sent each 10 s, in one of two windows.
#[test]
fn bursts_are_judged_by_their_mean() {
    assert_eq!(Simulated::new(CAP).run(3600, |now, _| if now % 10 == 0 { 8.5 } else { 1.0 }), []);
    let mut agent = Simulated::new(CAP);
    agent.run(600, |_, _| 20.0);
    agent.run(60, |now, _| if now % 10 == 0 { 4.5 } else { 1.0 });
    assert_eq!(agent.given_up, 0, "there is room in the mean");
}

/// The cost lies between the room and the limit, and each burst gives up two steps.
#[test]
fn rare_bursts_do_not_add_up() {
    let mut agent = Simulated::new(CAP);
    let most = |changes: &[(u64, usize)]| changes.iter().map(|(_, steps)| *steps).max();
    let cost = |every| move |now: u64, _| if now % every < 15 { 8.0 } else { 3.3 };
    for every in [120, 240, 300, 600, 1200] {
        let changes = agent.run(6 * 3600, cost(every));
        assert!(most(&changes) <= Some(2), "each {every} s: {changes:?}");
        agent.run(600, |_, _| 1.0);
        assert_eq!(agent.given_up, 0, "each {every} s: {changes:?}");
    }
}

/// A step is given up for hours, and then the load grows for good.
#[test]
fn a_new_overload_is_answered_within_a_minute() {
    let mut agent = Simulated::new(CAP);
    agent.run(3 * 3600, |_, steps| if steps == 0 { 8.0 } else { 4.0 });
    assert_eq!(agent.given_up, 1);
    agent.run(60, |_, steps| halved(40.0, 1.0, steps));
    assert!(halved(40.0, 1.0, agent.given_up) < CAP, "{} steps", agent.given_up);
}

#[test]
fn attempts_that_are_too_early_become_rare() {
    // Without the step, the cost is four times as high.
    let mut agent = Simulated::new(CAP);
    let changes = agent.run(3600, |_, steps| if steps == 0 { 8.0 } else { 2.0 });
    let restored: Vec<_> = changes.iter().filter(|(_, steps)| *steps == 0).map(|(at, _)| *at).collect();
    assert_eq!(restored, [30, 65, 120, 215, 390, 725, 1380, 2675]);
    // When the load falls, the next attempt does not wait for half an hour.
    let changes = agent.run(80, |_, _| 0.5);
    assert_eq!((changes.len(), agent.given_up), (1, 0), "{changes:?}");
}
