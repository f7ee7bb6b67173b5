//! Tests the times that samples stand for, compiled from the header that the programs include.
#![expect(clippy::unwrap_used, reason = "where nothing else can be told, the test fails")]

mod header;

const MS: u64 = 1_000_000;
/// The time between two samples of a busy CPU, in nanoseconds.
const SAMPLE: u64 = 20 * MS;

/// Returns the times that samples on one CPU stand for. Each sample has its time and the CPU's idle time until then,
/// both in nanoseconds.
fn times(samples: &[(u64, u64)]) -> Vec<u64> {
    let lines = samples.iter().map(|(now, idle)| format!("{now} {idle} {SAMPLE}\n")).collect();
    let text = header::run("sample_time", lines);
    text.lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn samples_of_a_busy_cpu_stand_for_the_time_between_them() {
    let samples: Vec<_> = (1..=50).map(|at| (at * SAMPLE, 0)).collect();
    assert_eq!(times(&samples), [SAMPLE; 50]);
}

/// There are as many samples a second as of a busy CPU, each after 18 ms of idle time and 2 ms of work.
#[test]
fn samples_of_a_cpu_at_a_tenth_of_its_load_stand_for_a_tenth_of_the_time() {
    let samples: Vec<_> = (1..=50).map(|at| (at * SAMPLE, at * 18 * MS)).collect();
    let times = times(&samples);
    assert_eq!((times[0], &times[1..]), (SAMPLE, &[2 * MS; 49][..]));
}

#[test]
fn idle_time_that_is_charged_late_is_taken_back() {
    // The third sample is the first with 600 ms of idle time, more than the 20 ms that passed since the second one.
    let times =
        times(&[(SAMPLE, 0), (700 * MS, 0), (720 * MS, 600 * MS), (1400 * MS, 600 * MS), (1420 * MS, 600 * MS)]);
    assert_eq!(times[1..], [680 * MS, 0, 100 * MS, 20 * MS]);
}

#[test]
fn time_without_a_sampler_is_nobodys() {
    let hour = 3_600_000 * MS;
    let times = times(&[(SAMPLE, 0), (hour, 0), (hour + SAMPLE, 0), (hour + SAMPLE + 1000 * MS, 0)]);
    assert_eq!(times[1..], [SAMPLE, SAMPLE, 1000 * MS]);
}
