//! Converts the histograms of an observation to exponential histograms. Pure.
//!
//! OpenTelemetry's SDK has no instrument that observes a whole histogram, so [`super::exporter`] adds these metrics to
//! the request that the SDK makes.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use opentelemetry::KeyValue;
use opentelemetry_proto::tonic::{
    common::v1::KeyValue as Attribute,
    metrics::v1::{
        AggregationTemporality, ExponentialHistogram, ExponentialHistogramDataPoint, Metric,
        exponential_histogram_data_point::Buckets, metric::Data,
    },
};

use super::names::{self, RowKind};
use crate::{
    attribution::Snapshot,
    model::sensors::{Histogram, Sensor},
};

/// Returns one metric for each family of histograms and each kind of row or the node. Leaves out histograms without a
/// value, and totals, which are in [`super::points`].
pub(super) fn observed(snapshot: &Snapshot, on: &[&'static Sensor]) -> Vec<Metric> {
    let mut points: BTreeMap<(String, &str, &str), Vec<ExponentialHistogramDataPoint>> = BTreeMap::new();
    for sensor in on {
        let of_rows = snapshot.rows.iter().map(|of| (Some(&of.row), sensor.families, &of.usage, of.started));
        let of_node = (None, sensor.node, &snapshot.idle, snapshot.started);
        for (row, families, usage, started) in of_rows.chain([of_node]) {
            let Some(words) = usage.words.of(sensor) else { continue };
            for family in families {
                for series in family.series {
                    let Some(histogram) = Histogram::of(words, series.words) else { continue };
                    let own = family.labels_of(series).map(|(of, value)| KeyValue::new(of.attribute, value));
                    let attributes = row.map(names::attributes).unwrap_or_default().into_iter().chain(own);
                    let name = row.map_or(RowKind::Node, RowKind::of).instrument(family.instrument);
                    let of = (name, family.help, names::of_unit(family.unit));
                    points.entry(of).or_default().push(point(&histogram, attributes, [started, snapshot.taken]));
                }
            }
        }
    }
    points.into_iter().map(metric).collect()
}

fn metric(((name, help, unit), data_points): ((String, &str, &str), Vec<ExponentialHistogramDataPoint>)) -> Metric {
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    let data = Data::ExponentialHistogram(ExponentialHistogram { data_points, aggregation_temporality });
    Metric { name, description: help.to_owned(), unit: unit.to_owned(), data: Some(data), ..Metric::default() }
}

fn point(
    histogram: &Histogram,
    attributes: impl Iterator<Item = KeyValue>,
    [started, taken]: [SystemTime; 2],
) -> ExponentialHistogramDataPoint {
    #[expect(clippy::cast_precision_loss, reason = "an f64 holds up to 2^53 ns exactly, which is 104 days")]
    let sum = histogram.sum_ns as f64 / 1e9;
    ExponentialHistogramDataPoint {
        attributes: attributes.map(|attribute| Attribute::from(&attribute)).collect(),
        start_time_unix_nano: unix_ns(started),
        time_unix_nano: unix_ns(taken),
        count: histogram.count(),
        sum: Some(sum),
        // Bucket n ends at 2^(first+n) s. Here a bucket of index i ends at 2^(i+1) s.
        scale: 0,
        zero_count: histogram.buckets.first().copied().unwrap_or(0),
        zero_threshold: 2_f64.powi(histogram.first),
        positive: Some(Buckets {
            offset: histogram.first,
            bucket_counts: histogram.buckets.get(1..).unwrap_or_default().to_vec(),
        }),
        ..ExponentialHistogramDataPoint::default()
    }
}

fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attribution::{Row, RowUsage, Shown},
        model::{
            sensor_words::SensorWords,
            sensors::{self, Words},
            usage::Usage,
        },
    };

    fn snapshot(words: SensorWords<u128>) -> Snapshot {
        let row = Row::Cgroup("/a".into());
        let usage = Usage { words, ..Usage::default() };
        let started = UNIX_EPOCH + std::time::Duration::from_secs(6);
        let rows = vec![RowUsage { row, started, container: None, usage, shown: Shown::ALL }];
        let taken = UNIX_EPOCH + std::time::Duration::from_secs(9);
        Snapshot { taken, ..Snapshot::of_rows(started, rows) }
    }

    #[test]
    fn a_bucket_has_the_borders_of_its_index() {
        let sensor = sensors::named("histograms").unwrap();
        let family = &sensor.families[0];
        let Words::Histogram { sum, first, .. } = family.series[0].words else { panic!("no histogram") };
        let mut words = SensorWords::default();
        let row = words.row_mut(sensors::place_of(sensor));
        // Two waits of at most 2^-18 s, and three between 2^-16 and 2^-15 s.
        (row[sum], row[sum + 1], row[sum + 4]) = (70_000, 2, 3);
        let metrics = observed(&snapshot(words), &[sensor]);
        assert_eq!(metrics.iter().map(|metric| &*metric.name).collect::<Vec<_>>(), ["podperf.cgroup.runqueue.latency"]);
        let Some(Data::ExponentialHistogram(histogram)) = &metrics[0].data else { panic!("{metrics:?}") };
        let point = &histogram.data_points[0];
        assert_eq!(
            (point.count, point.sum, point.zero_count, point.zero_threshold),
            (5, Some(7e-5), 2, 2_f64.powi(-18))
        );
        let positive = point.positive.as_ref().unwrap();
        // Index i of scale 0 is above 2^i and up to 2^(i+1).
        let used = positive.bucket_counts.iter().zip(positive.offset..).find(|(count, _)| **count > 0);
        assert_eq!((used, first), (Some((&3, -16)), -18));
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (6_000_000_000, 9_000_000_000));
        assert_eq!(observed(&snapshot(SensorWords::default()), &[sensor]), []);
    }

    #[test]
    fn a_histogram_of_the_node_is_in_the_words_of_the_idle_row() {
        let sensor = sensors::named("workqueues").unwrap();
        let Words::Histogram { sum, .. } = sensor.node[0].series[0].words else { panic!("no histogram") };
        let mut words = SensorWords::default();
        let row = words.row_mut(sensors::place_of(sensor));
        (row[sum], row[sum + 1]) = (3_000, 2);
        let mut snapshot = snapshot(SensorWords::default());
        snapshot.idle.words = words;
        let metrics = observed(&snapshot, &[sensor]);
        assert_eq!(metrics.iter().map(|metric| &*metric.name).collect::<Vec<_>>(), ["podperf.node.workqueue.latency"]);
        let Some(Data::ExponentialHistogram(histogram)) = &metrics[0].data else { panic!("{metrics:?}") };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.attributes.len()), (2, 0));
    }
}
