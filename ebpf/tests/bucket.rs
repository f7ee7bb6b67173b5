//! Tests the buckets of waits, compiled from the header that the programs include.
#![expect(clippy::unwrap_used, reason = "where nothing else can be told, the test fails")]

mod header;

/// The last bucket.
const LAST: u32 = 27;

fn buckets(waits: &[u64]) -> Vec<u32> {
    let lines: String = waits.iter().map(|ns| format!("{ns}\n")).collect();
    header::run("bucket", lines).lines().map(|line| line.parse().unwrap()).collect()
}

/// Returns the first bucket whose upper border, 2^(bucket - 18) s, is not below `ns`, in 128-bit arithmetic.
fn expected(ns: u64) -> u32 {
    let fits = |bucket: &u32| u128::from(ns) << 18 <= 1_000_000_000_u128 << bucket;
    (0..LAST).find(fits).unwrap_or(LAST)
}

#[test]
fn each_wait_is_below_the_border_of_its_bucket_and_above_the_one_before() {
    let mut waits = vec![0, 1, 3_814, 3_815, u64::from(u32::MAX), 1 << 31, (1 << 39) - 1, 1 << 39, u64::MAX];
    for bucket in 0..=LAST {
        let border = (1_000_000_000_u64 << bucket) >> 18;
        // The border in units is rounded, by less than a nanosecond below 4 s and by 256 ns above.
        let apart = if border < 1 << 31 { 1 } else { 256 };
        waits.extend([border - apart, border + apart, border + border / 3]);
    }
    let found = buckets(&waits);
    for (ns, found) in waits.iter().zip(found) {
        assert_eq!(found, expected(*ns), "{ns} ns");
    }
}

#[test]
fn whole_powers_of_two_of_a_second_belong_to_the_bucket_that_ends_there() {
    let waits: Vec<u64> = (0..=9).map(|power| 1_000_000_000_u64 >> power).collect();
    assert_eq!(buckets(&waits), waits.iter().map(|ns| expected(*ns)).collect::<Vec<_>>());
}
