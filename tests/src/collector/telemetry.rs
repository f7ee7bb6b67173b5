//! A Collector's metrics of itself: the data that it accepted, refused, or failed to write.

use anyhow::{Result, ensure};

use super::Collector;
use crate::{agent::Metrics, http};

/// A kind of data for a Collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counted in samples.
    Profiles,
    /// Counted in points.
    Metrics,
}

/// A Collector's counts of one kind since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Taken {
    /// Requests that it answered with success.
    pub requests: f64,
    /// Requests that it answered with an error, including requests that it could not read.
    pub failed_requests: f64,
    /// Samples or points that it accepted.
    pub accepted: f64,
    /// Samples or points that it refused, or failed to pass on.
    pub refused: f64,
    /// Samples or points that it wrote to its files.
    pub written: f64,
    /// Samples or points that it failed to write.
    pub not_written: f64,
}

impl Kind {
    /// The name of samples or points in its metrics.
    const fn items(self) -> &'static str {
        match self {
            Self::Profiles => "profile_samples",
            Self::Metrics => "metric_points",
        }
    }

    /// The labels of this kind in metrics of gRPC and HTTP.
    const fn ways(self) -> [(&'static str, &'static str); 2] {
        match self {
            Self::Profiles => [
                ("rpc_method", "opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"),
                ("http_route", "/v1development/profiles"),
            ],
            Self::Metrics => [
                ("rpc_method", "opentelemetry.proto.collector.metrics.v1.MetricsService/Export"),
                ("http_route", "/v1/metrics"),
            ],
        }
    }
}

impl Taken {
    fn read(metrics: &Metrics, kind: Kind) -> Self {
        let [rpc, route] = kind.ways();
        let (mut requests, mut all) = (0.0, 0.0);
        for (family, way, code, success) in [
            ("rpc_server_call_duration_count", rpc, "rpc_response_status_code", "OK"),
            ("http_server_request_duration_count", route, "http_response_status_code", "200"),
        ] {
            requests += metrics.sum(family, &[way, (code, success)]);
            all += metrics.sum(family, &[way]);
        }
        let receiver = |what| metrics.sum(&format!("otelcol_receiver_{what}_{}", kind.items()), &[]);
        let exporter = |what| metrics.sum(&format!("otelcol_exporter_{what}_{}", kind.items()), &[]);
        Self {
            requests,
            failed_requests: all - requests,
            accepted: receiver("accepted"),
            refused: receiver("refused") + receiver("failed"),
            written: exporter("sent"),
            not_written: exporter("send_failed"),
        }
    }

    /// Returns an error if the Collector accepted nothing, or refused or lost anything.
    pub fn ensure_nothing_is_refused(&self) -> Result<()> {
        ensure!(self.requests > 0.0 && self.accepted > 0.0, "nothing was accepted: {self:?}");
        ensure!(self.failed_requests + self.refused + self.not_written == 0.0, "some was refused: {self:?}");
        ensure!(self.written == self.accepted, "some was not written down: {self:?}");
        Ok(())
    }
}

impl Collector {
    /// Returns the Collector's counts up to now.
    pub fn taken(&self, kind: Kind) -> Result<Taken> {
        let (status, text) = http::get_text(self.telemetry, "/metrics")?;
        ensure!(status == 200, "the Collector's own metrics answered {status}: {text}");
        Ok(Taken::read(&Metrics::parse(&text), kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
otelcol_receiver_accepted_profile_samples{receiver="otlp",transport="grpc"} 7
otelcol_receiver_refused_profile_samples{receiver="otlp",transport="grpc"} 0
otelcol_exporter_sent_profile_samples{exporter="file"} 7
rpc_server_call_duration_count{rpc_method="opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",rpc_response_status_code="OK"} 2
rpc_server_call_duration_count{rpc_method="opentelemetry.proto.collector.metrics.v1.MetricsService/Export",rpc_response_status_code="OK"} 3
"#;

    fn taken(more: &str) -> Taken {
        Taken::read(&Metrics::parse(&format!("{TEXT}{more}\n")), Kind::Profiles)
    }

    #[test]
    fn what_is_accepted_is_counted_by_its_kind() {
        let all = taken("");
        assert_eq!((all.requests, all.accepted, all.written), (2.0, 7.0, 7.0));
        all.ensure_nothing_is_refused().expect("nothing is");
        assert!(Taken::default().ensure_nothing_is_refused().is_err(), "nothing is not enough");
    }

    #[test]
    fn each_refusal_is_an_error() {
        for line in [
            r#"otelcol_receiver_refused_profile_samples{transport="http"} 1"#,
            r#"otelcol_receiver_failed_profile_samples{transport="http"} 1"#,
            r#"otelcol_exporter_send_failed_profile_samples{exporter="file"} 1"#,
            r#"otelcol_exporter_sent_profile_samples{exporter="other"} 1"#,
            r#"http_server_request_duration_count{http_response_status_code="400",http_route="/v1development/profiles"} 1"#,
        ] {
            taken(line).ensure_nothing_is_refused().expect_err(line);
        }
    }
}
