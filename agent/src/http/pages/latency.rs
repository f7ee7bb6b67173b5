//! Recordings of the length of a function's calls over HTTP.

use std::sync::Arc;

use axum::{
    extract::State as Shared,
    http::{Uri, header},
    response::{IntoResponse, Response},
};

use super::profile::{Query, bad, failed};
use crate::{agent::Agent, export::latency::table};

/// `GET /debug/latency?subject=...&function=...&seconds=10`: answers with a table when the recording has ended. If the
/// client goes away, the recording ends.
pub(in crate::http) async fn record(Shared(agent): Shared<Arc<Agent>>, uri: Uri) -> Response {
    let query = Query::of(&uri);
    let (wanted, id) = match query.wanted_latency() {
        Ok(wanted) => wanted,
        Err(error) => return bad(&agent, &query, error).await,
    };
    let registration = match agent.enter(id) {
        Ok(registration) => registration,
        Err(error) => return failed(&error),
    };
    match agent.measure(registration, &wanted).await {
        Ok(latency) => ([(header::X_CONTENT_TYPE_OPTIONS, "nosniff")], table(&latency)).into_response(),
        Err(error) => failed(&error),
    }
}
