//! Sends one empty request, for `podperf check`: a receiver that accepts it would accept the real requests.

use opentelemetry_proto::tonic::collector::{
    metrics::v1::ExportMetricsServiceRequest, profiles::v1development::ExportProfilesServiceRequest,
};

use super::{EndpointError, Sender, Settings, Signal, one_line};

/// Connects as [`super::Exporter`] does, with TLS and headers, and sends an empty request. It takes at most
/// [`Settings::timeout`], and the same again for each compression that the receiver cannot read. Must be called on a
/// tokio runtime.
///
/// # Errors
///
/// The errors of [`super::Exporter::new`].
pub async fn try_profiles(settings: &Settings) -> Result<Result<(), String>, EndpointError> {
    try_once(settings, Signal::Profiles(ExportProfilesServiceRequest::default())).await
}

/// Sends an empty request for metrics, as [`try_profiles`] does for profiles.
///
/// # Errors
///
/// The errors of [`try_profiles`].
pub async fn try_metrics(settings: &Settings) -> Result<Result<(), String>, EndpointError> {
    try_once(settings, Signal::Metrics(ExportMetricsServiceRequest::default())).await
}

async fn try_once(settings: &Settings, signal: Signal) -> Result<Result<(), String>, EndpointError> {
    let mut sender = Sender::new(settings)?;
    Ok(sender.send(&signal).await.map(drop).map_err(|failure| one_line(&failure.text)))
}
