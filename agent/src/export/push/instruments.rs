//! Converts observations to metrics with the instruments of OpenTelemetry's SDK. The SDK keeps the start of the
//! counters, and leaves out a series that is no longer observed.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock, Weak},
    time::Duration,
};

use opentelemetry::{
    KeyValue,
    metrics::{Meter, MeterProvider},
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{
        Instrument, InstrumentKind, ManualReader, Pipeline, SdkMeterProvider, Stream, Temporality,
        data::ResourceMetrics, reader::MetricReader,
    },
};

use super::points::{Observed, Values};

/// The largest number of series of one instrument. The SDK adds up the series over this limit, and their sum could
/// fall. The limits on rows are far below it.
const MAX_SERIES: usize = 32_768;

/// The instruments, each made when it first has a value.
#[derive(Debug)]
pub(super) struct Instruments {
    /// Held since the instruments end with their provider.
    _provider: SdkMeterProvider,
    meter: Meter,
    reader: SharedReader,
    known: BTreeSet<String>,
    observed: Arc<RwLock<Observed>>,
}

impl Instruments {
    /// Returns a set without instruments. The resource attributes in `more` override podperf's own.
    pub(super) fn new(node_name: &str, more: &[(String, String)]) -> Self {
        let own = [
            ("service.name", "podperf"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("host.name", node_name),
            ("k8s.node.name", node_name),
        ];
        let own = own.map(|(key, value)| KeyValue::new(key, value.to_owned()));
        let more = more.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
        let resource = Resource::builder_empty().with_attributes(own.into_iter().chain(more)).build();
        let reader = SharedReader(Arc::new(ManualReader::builder().with_temporality(Temporality::Cumulative).build()));
        let provider = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_reader(reader.clone())
            .with_view(|_: &Instrument| Stream::builder().with_cardinality_limit(MAX_SERIES).build().ok())
            .build();
        let meter = provider.meter("podperf");
        Self { _provider: provider, meter, reader, known: BTreeSet::new(), observed: Arc::default() }
    }

    /// Returns the metrics of one observation.
    pub(super) fn collect(&mut self, observed: Observed) -> Result<ResourceMetrics, String> {
        for (name, points) in &observed {
            if self.known.insert(name.clone()) {
                self.make(name.clone(), points.unit);
            }
        }
        *self.observed.write().unwrap_or_else(PoisonError::into_inner) = observed;
        let mut collected = ResourceMetrics::default();
        self.reader.collect(&mut collected).map_err(|error| error.to_string())?;
        Ok(collected)
    }

    fn make(&self, name: String, unit: &'static str) {
        let (observed, own) = (Arc::clone(&self.observed), name.clone());
        let read = move || observed.read().unwrap_or_else(PoisonError::into_inner).get(&own).cloned();
        if unit == "s" {
            let instrument = self.meter.f64_observable_counter(name).with_unit(unit);
            let observe = instrument.with_callback(move |observer| {
                if let Some(Values::Seconds(points)) = read().map(|points| points.values) {
                    points.iter().for_each(|(attributes, value)| observer.observe(*value, attributes));
                }
            });
            observe.build();
        } else {
            let instrument = self.meter.u64_observable_counter(name).with_unit(unit);
            let observe = instrument.with_callback(move |observer| {
                if let Some(Values::Counts(points)) = read().map(|points| points.values) {
                    points.iter().for_each(|(attributes, value)| observer.observe(*value, attributes));
                }
            });
            observe.build();
        }
    }
}

/// A reader that is shared, since the SDK takes ownership of its reader.
#[derive(Clone, Debug)]
struct SharedReader(Arc<ManualReader>);

impl MetricReader for SharedReader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::{
        collector::metrics::v1::ExportMetricsServiceRequest,
        common::v1::any_value::Value,
        metrics::v1::{AggregationTemporality, NumberDataPoint, Sum, metric::Data, number_data_point},
    };
    use prost::Message;

    use super::{
        super::{points::Points, split::split},
        *,
    };

    fn seconds(paths: &[(&'static str, f64)]) -> Observed {
        let values = paths.iter().map(|(path, value)| (vec![KeyValue::new("podperf.cgroup.path", *path)], *value));
        let points = Points { unit: "s", values: Values::Seconds(values.collect()) };
        Observed::from([("podperf.cgroup.oncpu.time".to_owned(), points)])
    }

    fn request(instruments: &mut Instruments, observed: Observed) -> ExportMetricsServiceRequest {
        ExportMetricsServiceRequest::from(&instruments.collect(observed).unwrap())
    }

    fn sums(requests: &[ExportMetricsServiceRequest]) -> Vec<(String, String, Sum)> {
        let metrics = requests.iter().flat_map(|it| it.resource_metrics[0].scope_metrics[0].metrics.clone());
        let sums = metrics.map(|metric| match metric.data {
            Some(Data::Sum(sum)) => (metric.name, metric.unit, sum),
            other => panic!("not a sum: {other:?}"),
        });
        sums.collect()
    }

    fn point(point: &NumberDataPoint) -> (String, f64) {
        let Some(Value::StringValue(path)) = point.attributes[0].value.clone().unwrap().value else { panic!() };
        let Some(number_data_point::Value::AsDouble(value)) = point.value else { panic!("{point:?}") };
        (path, value)
    }

    #[test]
    fn totals_are_cumulative_from_one_start_and_what_has_ended_is_left_out() {
        let mut instruments = Instruments::new("node-1", &[("service.name".to_owned(), "other".to_owned())]);
        let first = request(&mut instruments, seconds(&[("/a", 1.5), ("/b", 2.0)]));
        let attributes = first.resource_metrics[0].resource.clone().unwrap().attributes;
        let service = attributes.iter().find(|it| it.key == "service.name").unwrap().value.clone().unwrap();
        assert_eq!(service.value, Some(Value::StringValue("other".to_owned())));
        let (name, unit, first) = sums(&[first]).remove(0);
        assert_eq!((name.as_str(), unit.as_str()), ("podperf.cgroup.oncpu.time", "s"));
        assert!(first.is_monotonic && first.aggregation_temporality == AggregationTemporality::Cumulative as i32);
        assert_eq!(first.data_points.len(), 2);
        let second = sums(&[request(&mut instruments, seconds(&[("/a", 4.0)]))]).remove(0).2;
        assert_eq!(second.data_points.iter().map(point).collect::<Vec<_>>(), [("/a".to_owned(), 4.0)]);
        assert_eq!(second.data_points[0].start_time_unix_nano, first.data_points[0].start_time_unix_nano);
    }

    #[test]
    fn more_series_than_the_sdk_takes_by_default_are_all_there_and_split_by_size() {
        let rows: u32 = 6_000;
        let values = (0..rows).map(|row| (vec![KeyValue::new("row", i64::from(row))], u64::from(row)));
        let points = Points { unit: "{switch}", values: Values::Counts(values.collect()) };
        let mut instruments = Instruments::new("node-1", &[]);
        let observed = ["a", "b", "c"].map(|name| (name.to_owned(), points.clone())).into_iter().collect();
        let requests = split(request(&mut instruments, observed), 100_000);
        assert!(requests.len() > 5 && requests.iter().all(|request| request.encoded_len() < 100_000));
        let sums = sums(&requests);
        let series = sums.iter().map(|(_, _, sum)| sum.data_points.len()).sum::<usize>();
        assert_eq!(series, 3 * rows as usize);
    }
}
