//! The exposition formats, and which one a client gets.

use std::fmt;

use prometheus_client::{
    encoding::{prometheus_protobuf, text},
    registry::Registry,
};

use super::{Families, Family};

/// An exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4: what a client gets that asks for nothing.
    Text,
    /// OpenMetrics text 1.0.0.
    OpenMetrics,
    /// Prometheus protobuf, length-delimited.
    Protobuf,
}

impl Format {
    /// The format that an `Accept` header prefers; the first of equals.
    #[must_use]
    pub fn negotiate(accept: &str) -> Self {
        let mut best = (0.0, Self::Text);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let (mut quality, mut version, mut proto) = (1.0, None, None);
            for (name, value) in parts.filter_map(|parameter| parameter.split_once('=')) {
                match name.trim() {
                    "q" => quality = value.trim().parse().unwrap_or(0.0),
                    "version" => version = Some(value.trim()),
                    "proto" => proto = Some(value.trim()),
                    _ => {}
                }
            }
            let format = match (media_type, version) {
                ("application/openmetrics-text", None | Some("1.0.0")) => Self::OpenMetrics,
                ("application/vnd.google.protobuf", _) if proto == Some("io.prometheus.client.MetricFamily") => {
                    Self::Protobuf
                }
                ("text/plain" | "text/*" | "*/*", None | Some("0.0.4")) => Self::Text,
                _ => continue,
            };
            if quality > best.0 {
                best = (quality, format);
            }
        }
        best.1
    }

    /// The `Content-Type` of an answer.
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

    /// Writes families.
    pub(super) fn encode(self, families: Vec<Family>) -> Result<Vec<u8>, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Families(families)));
        if self == Self::Protobuf {
            // Its only error is the encoders' fmt::Error; a Vec grows as needed.
            return prometheus_protobuf::encode_to_vec(&registry).map_err(|_error| fmt::Error);
        }
        let mut open_metrics = String::new();
        text::encode(&mut open_metrics, &registry)?;
        Ok(if self == Self::OpenMetrics { open_metrics } else { to_text_0_0_4(&open_metrics) }.into_bytes())
    }
}

/// OpenMetrics into the older text: there the family of a counter is named as its samples are, with `_total`, and
/// units and the end mark are not known.
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
        BaseUnit, Kind, Value,
        families::{CGROUPS_TRACKED, Definition},
    };
    use super::*;

    static ONCPU: Definition = Definition {
        name: "podperf_cgroup_oncpu",
        kind: Kind::Counter,
        unit: Some(BaseUnit::Seconds),
        labels: &["cgroup"],
        help: "Time on a CPU",
        when: "",
    };

    fn example() -> Vec<Family> {
        vec![ONCPU.with(&["/a\\x2db\"c\n"], Value::seconds(1_500_000_000)), CGROUPS_TRACKED.of(Value::Count(3))]
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
        ] {
            assert_eq!(Format::negotiate(accept), format, "{accept}");
        }
    }

    #[test]
    fn openmetrics_has_units_and_an_end() {
        let text = String::from_utf8(Format::OpenMetrics.encode(example()).unwrap()).unwrap();
        assert_eq!(
            text,
            "# HELP podperf_cgroup_oncpu_seconds Time on a CPU\n\
             # TYPE podperf_cgroup_oncpu_seconds counter\n\
             # UNIT podperf_cgroup_oncpu_seconds seconds\n\
             podperf_cgroup_oncpu_seconds_total{cgroup=\"/a\\\\x2db\\\"c\\n\"} 1.5\n\
             # HELP podperf_cgroups_tracked Cgroups that live\n\
             # TYPE podperf_cgroups_tracked gauge\n\
             podperf_cgroups_tracked 3\n\
             # EOF\n"
        );
    }

    #[test]
    fn text_0_0_4_names_families_as_samples() {
        let text = String::from_utf8(Format::Text.encode(example()).unwrap()).unwrap();
        assert_eq!(
            text,
            "# HELP podperf_cgroup_oncpu_seconds_total Time on a CPU\n\
             # TYPE podperf_cgroup_oncpu_seconds_total counter\n\
             podperf_cgroup_oncpu_seconds_total{cgroup=\"/a\\\\x2db\\\"c\\n\"} 1.5\n\
             # HELP podperf_cgroups_tracked Cgroups that live\n\
             # TYPE podperf_cgroups_tracked gauge\n\
             podperf_cgroups_tracked 3\n"
        );
    }

    #[test]
    fn protobuf_is_delimited_metric_families() {
        use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::MetricFamily;
        use prost::Message;

        let bytes = Format::Protobuf.encode(example()).unwrap();
        let mut rest = bytes.as_slice();
        let first = MetricFamily::decode_length_delimited(&mut rest).unwrap();
        assert_eq!(first.name, "podperf_cgroup_oncpu_seconds_total");
        assert_eq!(first.metric[0].label[0].value, "/a\\x2db\"c\n");
        assert_eq!(first.metric[0].counter.as_ref().unwrap().value, 1.5);
        let second = MetricFamily::decode_length_delimited(&mut rest).unwrap();
        assert_eq!(second.metric[0].gauge.as_ref().unwrap().value, 3.0);
        assert!(rest.is_empty());
    }
}
