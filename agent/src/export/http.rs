//! The HTTP server: `/metrics`, `/livez`, `/readyz`, `/status`.

use std::{fmt::Write, sync::Arc};

use axum::{
    Router,
    extract::State as Shared,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;

use super::prometheus::{Format, render};
use crate::{agent::Agent, status::State};

/// Answers until `stop` resolves; then takes no new connections.
///
/// # Errors
///
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    agent: Arc<Agent>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .with_state(agent);
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}

async fn index() -> &'static str {
    "podperf\n\n/metrics  Prometheus metrics\n/status   the parts of the agent and their states\n\
     /livez    whether the agent runs\n/readyz   whether it counts\n"
}

async fn metrics(Shared(agent): Shared<Arc<Agent>>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = Format::negotiate(accept);
    let observation = match agent.reader.read().await {
        Ok(observation) => observation,
        Err(error) => return (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    };
    let parts = agent.parts();
    match render(&observation, &agent.counters, &agent.facts(&parts), format) {
        Ok(body) => ([(header::CONTENT_TYPE, format.content_type())], body).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("failed to write metrics: {error}\n")).into_response()
        }
    }
}

/// Ready while the kernel can be read: without counters or profiles the agent is of use, without readings it is not.
async fn readyz(Shared(agent): Shared<Arc<Agent>>) -> Response {
    match agent.reader.read().await {
        Ok(_) => "ok\n".into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn status(Shared(agent): Shared<Arc<Agent>>, headers: HeaderMap) -> Response {
    let parts = agent.parts();
    let wants_json = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|accept| accept.contains("application/json"));
    if wants_json {
        let events: Vec<_> = agent
            .counters
            .iter()
            .map(|open| {
                serde_json::json!({
                    "event": open.counter.name,
                    "state": if open.slot.is_ok() { State::Healthy } else { State::Unsupported },
                    "detail": open.slot.as_ref().err(),
                })
            })
            .collect();
        let body = serde_json::json!({ "node": agent.node_name, "parts": parts, "events": events });
        return ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response();
    }
    let mut text = format!("podperf {} on node {}\n\n", env!("CARGO_PKG_VERSION"), agent.node_name);
    for part in parts {
        // Writing to a string does not fail.
        writeln!(text, "{:<20} {:<12} {}", part.part, part.state.name(), part.detail).ok();
    }
    if !agent.counters.is_empty() {
        text.push_str("\nevents\n");
    }
    for open in agent.counters.iter() {
        let (state, detail) = match &open.slot {
            Ok(_) => (State::Healthy, open.counter.kernel_event.as_str()),
            Err(reason) => (State::Unsupported, reason.as_str()),
        };
        writeln!(text, "  {:<28} {:<12} {detail}", open.counter.name, state.name()).ok();
    }
    text.into_response()
}
