//! Tests the times of switches, compiled from the header that the programs include.
#![expect(clippy::unwrap_used, reason = "where nothing else can be told, the test fails")]

mod header;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const S: u64 = 1_000 * MS;
/// CLOCK_MONOTONIC when the run queue's clock is 0, in nanoseconds.
const ZERO: u64 = 5 * S;
/// The time from the reading of the run queue's clock to the program, in nanoseconds.
const LATE: u64 = 400;

/// Returns the time of each switch, and whether the clocks were compared for it. Each switch has the time of the run
/// queue and CLOCK_MONOTONIC, in nanoseconds.
fn times(switches: &[(u64, u64)]) -> Vec<(u64, bool)> {
    let lines = switches.iter().map(|(clock, now)| format!("{clock} {now}\n")).collect();
    let text = header::run("clock", lines);
    let parse = |line: &str| {
        let (time, compared) = line.split_once(' ').unwrap();
        (time.parse().unwrap(), compared == "1")
    };
    text.lines().map(parse).collect()
}

#[test]
fn the_clocks_are_compared_once_in_a_millisecond() {
    let switches: Vec<_> = (0..1000).map(|at| S + at * 10 * US).map(|clock| (clock, clock + ZERO + LATE)).collect();
    let times = times(&switches);
    assert!(times.iter().zip(&switches).all(|((time, _), (_, now))| time == now));
    assert_eq!(times.iter().filter(|(_, compared)| *compared).count(), 10);
}

/// The clock of each second comparison was read 300 us before the program ran.
#[test]
fn a_clock_that_was_read_long_before_the_switch_does_not_move_later_switches() {
    let clocks = (0..1000).map(|at| S + at * MS + at);
    let switches: Vec<_> =
        clocks.enumerate().map(|(at, clock)| (clock, clock + ZERO + LATE + at as u64 % 2 * 300 * US)).collect();
    for ((time, compared), (clock, _)) in times(&switches).into_iter().zip(&switches) {
        let wrong = time.abs_diff(clock + ZERO + LATE);
        // In one millisecond the clocks may drift apart by 488 ns.
        assert!(compared && wrong < 500, "{wrong} ns at {clock}");
    }
}

#[test]
fn a_drift_of_the_clocks_is_followed() {
    // CLOCK_MONOTONIC is 400 ppm too fast, then as much too slow.
    for sign in [1_i64, -1] {
        let drifted = |clock: u64| clock.checked_add_signed(sign * i64::try_from(clock / 2500).unwrap()).unwrap();
        let switches: Vec<_> =
            (0..20_000).map(|at| S + at * 500 * US).map(|clock| (clock, drifted(clock) + ZERO + LATE)).collect();
        for ((time, _), (clock, now)) in times(&switches).into_iter().zip(&switches) {
            assert!(time.abs_diff(*now) < 500, "{time} instead of {now} at {clock}");
        }
    }
}

#[test]
fn a_jump_of_a_clock_is_followed_at_once() {
    for jump in [-7_i64, 7] {
        let after = ZERO.checked_add_signed(jump * i64::try_from(MS).unwrap()).unwrap();
        let switches = [(S, S + ZERO), (S + 2 * MS, S + 2 * MS + after), (S + 4 * MS, S + 4 * MS + after)];
        assert_eq!(times(&switches), switches.map(|(_, now)| (now, true)));
    }
}

#[test]
fn after_a_pause_of_an_hour_the_clocks_may_have_drifted() {
    let hour = 3_600 * S;
    let (begin, end) = ((S, S + ZERO), (S + hour, S + hour + ZERO + hour / 5_000));
    assert_eq!(times(&[begin, end]), [(begin.1, true), (end.1, true)]);
}

#[test]
fn a_clock_that_is_ahead_is_a_clock_as_well() {
    let switches = [(9 * S, S), (9 * S + 10 * US, S + 10 * US)];
    assert_eq!(times(&switches), [(S, true), (S + 10 * US, false)]);
}
