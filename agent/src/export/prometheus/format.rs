//! The exposition formats, and the choice of one for a client.

use std::{
    fmt::{self, Write as _},
    time::{Duration, UNIX_EPOCH},
};

use prometheus_client::{
    encoding::{
        prometheus_protobuf::{self, prometheus_data_model::MetricFamily},
        text,
    },
    registry::Registry,
};
use prost::Message as _;

use super::{Families, Family, Kind, Sample, Value, histogram::Form};

/// An exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4, the default.
    Text,
    /// OpenMetrics text 1.0.0.
    OpenMetrics,
    /// Prometheus protobuf, length-delimited.
    Protobuf,
}

impl Format {
    /// Returns the format that an `Accept` header prefers; of equally preferred formats the first one.
    #[must_use]
    pub fn negotiate(accept: &str) -> Self {
        let mut best = (0.0, Self::Text);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            // The case of types and of the names of parameters does not count (RFC 9110).
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut quality, mut version, mut proto, mut encoding) = (1.0, None, None, "delimited");
            for (name, value) in parts.filter_map(|parameter| parameter.split_once('=')) {
                let value = value.trim();
                match name.trim().to_ascii_lowercase().as_str() {
                    "q" => quality = value.parse().unwrap_or(0.0),
                    "version" => version = Some(value),
                    "proto" => proto = Some(value),
                    "encoding" => encoding = value,
                    _ => {}
                }
            }
            let is_delimited = proto == Some("io.prometheus.client.MetricFamily") && encoding == "delimited";
            let format = match (media_type.as_str(), version) {
                ("application/openmetrics-text", None | Some("1.0.0")) => Self::OpenMetrics,
                ("application/vnd.google.protobuf", _) if is_delimited => Self::Protobuf,
                ("text/plain" | "text/*" | "*/*", None | Some("0.0.4")) => Self::Text,
                _ => continue,
            };
            if quality > best.0 {
                best = (quality, format);
            }
        }
        best.1
    }

    /// Returns the `Content-Type` of an answer.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// Writes families. Protobuf always has the starts of counters; with `with_created` OpenMetrics has them, too.
    pub(super) fn encode(self, families: Vec<Family>, form: Form, with_created: bool) -> Result<Vec<u8>, fmt::Error> {
        // The encoders of prometheus-client do not write starts of counters. They keep the order of series, so the
        // starts can be added afterwards.
        let lines = (self != Self::Protobuf).then_some(form);
        let starts: Vec<_> = families.iter().flat_map(|family| starts(family, lines)).collect();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Families(families, form)));
        if self == Self::Protobuf {
            return to_protobuf(prometheus_protobuf::encode(&registry)?, &starts);
        }
        let mut open_metrics = String::new();
        text::encode(&mut open_metrics, &registry)?;
        let text = match self {
            Self::Text => to_text_0_0_4(&open_metrics),
            _ if with_created => add_created(&open_metrics, &starts)?,
            _ => open_metrics,
        };
        Ok(text.into_bytes())
    }
}

/// Returns the start of each series, since the epoch, in the order in which series are written; `None` if the start is
/// unknown or not possible. In a text, which `lines` is for, a histogram has several lines, and no start.
fn starts(family: &Family, lines: Option<Form>) -> impl Iterator<Item = Option<Duration>> {
    let since_epoch = |sample: &Sample| sample.created?.duration_since(UNIX_EPOCH).ok();
    let has_start = family.kind == Kind::Counter || (family.kind == Kind::Histogram && lines.is_none());
    family.samples.iter().flat_map(move |sample| {
        let lines = match (&sample.value, lines) {
            (Value::Histogram(histogram), Some(form)) => form.lines(histogram),
            _ => 1,
        };
        std::iter::repeat_n(since_epoch(sample).filter(|_| has_start), lines)
    })
}

/// Encodes length-delimited families, and adds the starts of counters and histograms.
fn to_protobuf(mut families: Vec<MetricFamily>, starts: &[Option<Duration>]) -> Result<Vec<u8>, fmt::Error> {
    let metrics = families.iter_mut().flat_map(|family| &mut family.metric);
    for (metric, start) in metrics.zip(starts) {
        let Some(start) = start else { continue };
        let of_counter = metric.counter.as_mut().map(|counter| &mut counter.start_timestamp);
        let of_histogram = metric.histogram.as_mut().map(|histogram| &mut histogram.start_timestamp);
        if let Some(timestamp) = of_counter.or(of_histogram) {
            let timestamp = timestamp.get_or_insert_default();
            timestamp.seconds = start.as_secs().try_into().unwrap_or(i64::MAX);
            timestamp.nanos = start.subsec_nanos().try_into().unwrap_or(0);
        }
    }
    let mut bytes = Vec::new();
    for family in families {
        // A `Vec` grows, so encoding does not fail.
        family.encode_length_delimited(&mut bytes).map_err(|_error| fmt::Error)?;
    }
    Ok(bytes)
}

/// Adds a line `_created` after each counter whose start is known.
fn add_created(open_metrics: &str, starts: &[Option<Duration>]) -> Result<String, fmt::Error> {
    let mut text = String::with_capacity(2 * open_metrics.len());
    let mut starts = starts.iter();
    for line in open_metrics.lines() {
        text.push_str(line);
        text.push('\n');
        // Each series is one line: line breaks in labels are escaped.
        let Some(Some(start)) = (if line.starts_with('#') { None } else { starts.next() }) else { continue };
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let labels = line[name.len()..].rsplit_once(' ').map_or("", |(labels, _)| labels);
        let name = name.trim_end_matches("_total");
        writeln!(text, "{name}_created{labels} {}.{:03}", start.as_secs(), start.subsec_millis())?;
    }
    Ok(text)
}

/// Converts OpenMetrics to the older text format. There a counter's family has the name of its samples, with `_total`,
/// and there are no units and no end mark.
fn to_text_0_0_4(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap_or((help, ""));
            let kind = lines
                .next_if(|next| next.starts_with("# TYPE "))
                .and_then(|next| next.rsplit(' ').next())
                .unwrap_or("untyped");
            let suffix = if kind == "counter" { "_total" } else { "" };
            text.push_str(&format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{
        BaseUnit, Kind,
        families::{CGROUPS_TRACKED, Definition, READINGS},
    };
    use super::*;
    use crate::model::sensors::Histogram;
    use std::sync::Arc;

    const NATIVE: Form = Form { native: true, classic: false };

    static ONCPU: Definition = Definition {
        name: "podperf_cgroup_oncpu",
        kind: Kind::Counter,
        unit: Some(BaseUnit::Seconds),
        labels: &["cgroup"],
        help: "Time on a CPU",
        when: "",
        detail: false,
    };

    /// Returns families for the tests. The start of the gauge is not written: only counters have one.
    fn example() -> Vec<Family> {
        let started = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
        let oncpu = ONCPU.with(&["/a\\x2db\"c\n"], Value::seconds(1_500_000_000_u64)).created(started);
        vec![CGROUPS_TRACKED.of(Value::Count(3)).created(started), oncpu, READINGS.of(Value::Count(7))]
    }

    #[test]
    fn clients_get_what_they_prefer() {
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;\
                            q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                            encoding=delimited;q=0.6,text/plain;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4";
        for (accept, format) in [
            (prometheus_2, Format::OpenMetrics),
            (prometheus_3, Format::Protobuf),
            ("*/*", Format::Text),
            ("", Format::Text),
            ("text/plain;version=0.0.4;q=0.5, application/openmetrics-text;q=0.4", Format::Text),
            ("application/json", Format::Text),
            ("Application/OpenMetrics-Text; Version=1.0.0", Format::OpenMetrics),
            ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily", Format::Protobuf),
            ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text", Format::Text),
        ] {
            assert_eq!(Format::negotiate(accept), format, "{accept}");
        }
    }

    #[test]
    fn openmetrics_has_units_and_an_end_and_starts_where_they_are_asked_for() {
        let text =
            |created| String::from_utf8(Format::OpenMetrics.encode(example(), NATIVE, created).unwrap()).unwrap();
        let expected = "# HELP podperf_cgroups_tracked Cgroups that live\n\
             # TYPE podperf_cgroups_tracked gauge\n\
             podperf_cgroups_tracked 3\n\
             # HELP podperf_cgroup_oncpu_seconds Time on a CPU\n\
             # TYPE podperf_cgroup_oncpu_seconds counter\n\
             # UNIT podperf_cgroup_oncpu_seconds seconds\n\
             podperf_cgroup_oncpu_seconds_total{cgroup=\"/a\\\\x2db\\\"c\\n\"} 1.5\n\
             podperf_cgroup_oncpu_seconds_created{cgroup=\"/a\\\\x2db\\\"c\\n\"} 1700000000.123\n\
             # HELP podperf_readings Readings of the kernel's maps; scrapes within a second share one\n\
             # TYPE podperf_readings counter\n\
             podperf_readings_total 7\n\
             # EOF\n";
        assert_eq!(text(true), expected);
        let without: Vec<_> = expected.lines().filter(|line| !line.contains("_created")).collect();
        assert_eq!(text(false).lines().collect::<Vec<_>>(), without);
    }

    #[test]
    fn a_start_stands_behind_a_series_without_labels_and_one_with_spaces_in_them() {
        let started = UNIX_EPOCH + Duration::from_secs(5);
        let families = vec![
            READINGS.of(Value::Count(7)).created(started),
            ONCPU.with(&["/a b_total 1"], Value::Count(2)).created(started),
        ];
        let text = String::from_utf8(Format::OpenMetrics.encode(families, NATIVE, true).unwrap()).unwrap();
        for line in
            ["podperf_readings_created 5.000", "podperf_cgroup_oncpu_seconds_created{cgroup=\"/a b_total 1\"} 5.000"]
        {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }

    #[test]
    fn text_0_0_4_names_families_as_samples() {
        let text = String::from_utf8(Format::Text.encode(example(), NATIVE, true).unwrap()).unwrap();
        assert_eq!(
            text,
            "# HELP podperf_cgroups_tracked Cgroups that live\n\
             # TYPE podperf_cgroups_tracked gauge\n\
             podperf_cgroups_tracked 3\n\
             # HELP podperf_cgroup_oncpu_seconds_total Time on a CPU\n\
             # TYPE podperf_cgroup_oncpu_seconds_total counter\n\
             podperf_cgroup_oncpu_seconds_total{cgroup=\"/a\\\\x2db\\\"c\\n\"} 1.5\n\
             # HELP podperf_readings_total Readings of the kernel's maps; scrapes within a second share one\n\
             # TYPE podperf_readings_total counter\n\
             podperf_readings_total 7\n"
        );
    }

    #[test]
    fn protobuf_is_delimited_metric_families_and_counters_have_their_starts() {
        let bytes = Format::Protobuf.encode(example(), NATIVE, false).unwrap();
        let mut rest = bytes.as_slice();
        let mut next = || MetricFamily::decode_length_delimited(&mut rest).unwrap();
        let [gauge, counter, without] = [next(), next(), next()];
        assert!(rest.is_empty());
        assert_eq!(gauge.metric[0].gauge.as_ref().unwrap().value, 3.0);
        assert_eq!(counter.name, "podperf_cgroup_oncpu_seconds_total");
        assert_eq!(counter.metric[0].label[0].value, "/a\\x2db\"c\n");
        let value = counter.metric[0].counter.as_ref().unwrap();
        let start = value.start_timestamp.unwrap();
        assert_eq!((value.value, start.seconds, start.nanos), (1.5, 1_700_000_000, 123_456_789));
        assert_eq!(without.metric[0].counter.as_ref().unwrap().start_timestamp, None);
        let histogram = Histogram { sum_ns: 7, buckets: vec![1, 2], first: -18 };
        let latency = Definition { name: "latency", kind: Kind::Histogram, ..ONCPU };
        let latency = latency.with(&["/a"], Value::Histogram(Arc::new(histogram)));
        let bytes = Format::Protobuf.encode(vec![latency.created(UNIX_EPOCH + Duration::from_secs(5))], NATIVE, false);
        let family = MetricFamily::decode_length_delimited(bytes.unwrap().as_slice()).unwrap();
        let histogram = family.metric[0].histogram.as_ref().unwrap();
        assert_eq!((histogram.sample_count, histogram.start_timestamp.unwrap().seconds), (3, 5));
    }
}
