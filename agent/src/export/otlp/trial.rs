//! One request without a profile, for `podperf check`: a receiver that takes it would take profiles.

use std::sync::Arc;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use tokio::sync::watch;

use super::{
    EndpointError, Health, Settings,
    client::{Counters, Retry, Worker},
};

/// Connects as [`super::Exporter`] does, TLS and headers included, and sends an empty request. Takes no longer than
/// [`Settings::timeout`], but once more for each compression that the receiver cannot read. Must be called on a tokio runtime.
///
/// # Errors
///
/// As [`super::Exporter::new`].
pub async fn try_once(settings: Settings) -> Result<Result<(), String>, EndpointError> {
    let (health, _) = watch::channel(Health::Healthy);
    let (_stop, stopped) = watch::channel(false);
    let mut worker = Worker::new(settings, Retry::default(), Arc::new(Counters::default()), health, stopped)?;
    Ok(worker.try_once(ExportProfilesServiceRequest::default()).await)
}
