//! One request without content, for `podperf check`: a receiver that takes it would take the others.

use opentelemetry_proto::tonic::collector::{
    metrics::v1::ExportMetricsServiceRequest, profiles::v1development::ExportProfilesServiceRequest,
};

use super::{EndpointError, Sender, Settings, Signal, one_line};

/// Connects as [`super::Exporter`] does, TLS and headers included, and sends an empty request. Takes no longer than
/// [`Settings::timeout`], but once more for each compression that the receiver cannot read. Must be called on a tokio
/// runtime.
///
/// # Errors
///
/// As [`super::Exporter::new`].
pub async fn try_profiles(settings: &Settings) -> Result<Result<(), String>, EndpointError> {
    try_once(settings, Signal::Profiles(ExportProfilesServiceRequest::default())).await
}

/// The same for metrics.
///
/// # Errors
///
/// As [`try_profiles`].
pub async fn try_metrics(settings: &Settings) -> Result<Result<(), String>, EndpointError> {
    try_once(settings, Signal::Metrics(ExportMetricsServiceRequest::default())).await
}

async fn try_once(settings: &Settings, signal: Signal) -> Result<Result<(), String>, EndpointError> {
    let mut sender = Sender::new(settings)?;
    Ok(sender.send(&signal).await.map(drop).map_err(|failure| one_line(&failure.text)))
}
