//! Splits requests to a size that receivers accept. Pure.

use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    metrics::v1::{ExponentialHistogram, Metric, Sum, metric::Data},
};
use prost::Message;

/// Halves requests over `limit`: by metric first, then by series. A request without metrics is dropped.
pub(super) fn split(request: ExportMetricsServiceRequest, limit: usize) -> Vec<ExportMetricsServiceRequest> {
    let mut parts = vec![request];
    let mut requests = Vec::new();
    while let Some(mut part) = parts.pop() {
        if metrics(&mut part).is_none_or(|metrics| metrics.is_empty()) {
            continue;
        }
        let second = (part.encoded_len() >= limit).then(|| metrics(&mut part).and_then(take_half)).flatten();
        let Some(second) = second else {
            requests.push(part);
            continue;
        };
        let mut other = part.clone();
        if let Some(metrics) = metrics(&mut other) {
            *metrics = second;
        }
        parts.extend([other, part]);
    }
    requests
}

/// Returns the metrics of a request. The SDK makes one resource with one scope.
pub(super) fn metrics(request: &mut ExportMetricsServiceRequest) -> Option<&mut Vec<Metric>> {
    Some(&mut request.resource_metrics.first_mut()?.scope_metrics.first_mut()?.metrics)
}

/// Removes the second half of the metrics and returns it; `None` if there is nothing to halve.
fn take_half(metrics: &mut Vec<Metric>) -> Option<Vec<Metric>> {
    if metrics.len() > 1 {
        return Some(metrics.split_off(metrics.len() / 2));
    }
    let metric = metrics.first_mut()?;
    let data = match &mut metric.data {
        Some(Data::Sum(sum)) if sum.data_points.len() > 1 => {
            let data_points = sum.data_points.split_off(sum.data_points.len() / 2);
            Data::Sum(Sum { data_points, ..*sum })
        }
        Some(Data::ExponentialHistogram(histogram)) if histogram.data_points.len() > 1 => {
            let data_points = histogram.data_points.split_off(histogram.data_points.len() / 2);
            Data::ExponentialHistogram(ExponentialHistogram { data_points, ..*histogram })
        }
        _ => return None,
    };
    let Metric { name, description, unit, metadata, .. } = &*metric;
    let (name, description, unit) = (name.clone(), description.clone(), unit.clone());
    Some(vec![Metric { name, description, unit, metadata: metadata.clone(), data: Some(data) }])
}
