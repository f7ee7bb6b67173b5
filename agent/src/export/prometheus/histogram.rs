//! The forms of a histogram in an exposition: native buckets, classic buckets, or both. Pure.

use std::fmt;

use prometheus_client::encoding::{MetricEncoder, NativeHistogram, NativeHistogramBuckets, NoLabelSet};

use crate::model::sensors::Histogram;

/// Number of lines of a histogram in a text beside its buckets: its sum and its count.
const SUM_AND_COUNT: usize = 2;

/// The buckets that a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// True for native buckets, which only protobuf has.
    pub(super) native: bool,
    /// True for classic buckets: one series each.
    pub(super) classic: bool,
}

impl Form {
    /// Returns the number of series, which is the number of lines in a text.
    pub(super) const fn lines(self, histogram: &Histogram) -> usize {
        if self.classic { SUM_AND_COUNT + histogram.buckets.len() } else { 1 }
    }

    pub(super) fn encode(self, histogram: &Histogram, mut series: MetricEncoder<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "an f64 holds up to 2^53 ns exactly, which is 104 days")]
        let sum = histogram.sum_ns as f64 / 1e9;
        let classic = if self.classic { classic(histogram) } else { Vec::new() };
        if !self.native {
            return series.encode_histogram::<NoLabelSet>(sum, histogram.count(), &classic, None);
        }
        let (spans, deltas) = native(histogram);
        let native = NativeHistogram {
            schema: 0,
            zero_threshold: border(histogram, 0),
            zero_count: histogram.buckets.first().copied().unwrap_or(0),
            negative: NativeHistogramBuckets { spans: &[], deltas: &[] },
            positive: NativeHistogramBuckets { spans: &spans, deltas: &deltas },
            created: None,
        };
        series.encode_histogram_with_native::<NoLabelSet>(sum, histogram.count(), &classic, None, native)
    }
}

/// Returns the upper border of a bucket, in seconds.
fn border(histogram: &Histogram, bucket: usize) -> f64 {
    2_f64.powi(histogram.first.saturating_add(i32::try_from(bucket).unwrap_or(i32::MAX)))
}

/// Returns the upper border of each bucket and the number of its values. The last one has no border.
fn classic(histogram: &Histogram) -> Vec<(f64, u64)> {
    let last = histogram.buckets.len().saturating_sub(1);
    let bucket = |(at, count): (usize, &u64)| (if at == last { f64::INFINITY } else { border(histogram, at) }, *count);
    histogram.buckets.iter().enumerate().map(bucket).collect()
}

/// Returns the span and the deltas from the first to the last bucket with a value, without the zero bucket.
fn native(histogram: &Histogram) -> (Vec<(i32, u32)>, Vec<i64>) {
    let counts = histogram.buckets.get(1..).unwrap_or_default();
    let Some(first) = counts.iter().position(|count| *count > 0) else { return Default::default() };
    let last = counts.iter().rposition(|count| *count > 0).unwrap_or(first);
    let used = &counts[first..=last];
    let offset = histogram.first.saturating_add(1).saturating_add(i32::try_from(first).unwrap_or(i32::MAX));
    let before = std::iter::once(&0).chain(used);
    let deltas = used.iter().zip(before).map(|(count, before)| count.wrapping_sub(*before).cast_signed()).collect();
    (vec![(offset, u32::try_from(used.len()).unwrap_or(u32::MAX))], deltas)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Histogram {
        Histogram { sum_ns: 1_500_000_000, buckets: vec![5, 0, 0, 2, 0, 7, 0], first: -18 }
    }

    #[test]
    fn native_buckets_go_from_the_first_to_the_last_value() {
        // Bucket 3 ends at 2^-15 s, which is index -15 of schema 0.
        assert_eq!(native(&example()), (vec![(-15, 3)], vec![2, -2, 7]));
        let zero = Histogram { buckets: vec![5, 0, 0], ..example() };
        assert_eq!(native(&zero), (vec![], vec![]));
    }

    #[test]
    fn classic_buckets_end_at_powers_of_two_and_the_last_has_no_border() {
        let classic = classic(&example());
        assert_eq!(classic[0], (2_f64.powi(-18), 5));
        assert_eq!(classic[3], (2_f64.powi(-15), 2));
        assert_eq!(classic[6], (f64::INFINITY, 0));
    }
}
