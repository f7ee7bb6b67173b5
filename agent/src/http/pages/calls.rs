//! Recordings of system calls over HTTP.

use std::sync::Arc;

use axum::{
    Extension,
    extract::State as Shared,
    http::{Uri, header},
    response::{IntoResponse, Response},
};

use super::profile::{Query, bad, failed};
use crate::{agent::Agent, export::calls::CallsFormat, http::Source};

/// `GET /debug/syscalls?subject=...&seconds=10&format=table`: answers when the recording has ended. `/debug/recordings`
/// shows its progress and ends it.
pub(in crate::http) async fn record(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(source): Extension<Source>,
    uri: Uri,
) -> Response {
    let query = Query::of(&uri);
    let wanted = || Ok::<_, String>((query.selector()?, query.duration()?, format(&query)?, query.id()?));
    let (selector, duration, format, id) = match wanted() {
        Ok(wanted) => wanted,
        Err(error) => return bad(&agent, &query, error).await,
    };
    let registration = match agent.enter(id) {
        Ok(registration) => registration,
        Err(error) => return failed(&error),
    };
    match agent.record_calls(registration, !source.is_here, &selector, duration).await {
        Ok(report) => {
            let headers = [(header::CONTENT_TYPE, format.content_type()), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
            (headers, format.render(&report)).into_response()
        }
        Err(error) => failed(&error),
    }
}

fn format(query: &Query) -> Result<CallsFormat, String> {
    query.get("format").map_or(Ok(CallsFormat::Table), |name| {
        CallsFormat::named(name).ok_or_else(|| format!("bad `format` `{name}` (`table` or `json`)"))
    })
}
