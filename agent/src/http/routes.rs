//! The routes: `/metrics`, `/livez`, `/readyz`, `/status`, and the pages of [`profile`], [`calls`], [`waits`],
//! [`latency`] and [`overview`].

use std::{
    fmt::Write,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Extension, Router,
    body::Body,
    extract::State as Shared,
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;

use super::pages::{calls, latency, overview, profile, status, waits};
use super::{
    Source,
    accepts::wants_page,
    peers::Peer,
    rendered::{Encoding, Form, Rendered},
    unread::Unread,
};
use crate::{
    agent::Agent,
    collector::Purpose,
    export::prometheus::{Format, render},
    holders::by_holder,
    telemetry::heartbeat::Pulse,
};

/// The header in which Prometheus, and any scraper that follows it, sends the timeout of a scrape.
const SCRAPE_TIMEOUT: &str = "x-prometheus-scrape-timeout-seconds";
/// The path of scrapes.
pub(super) const METRICS: &str = "/metrics";
/// Browsers ask for it with each page.
const ICON: &str = "/favicon.ico";
const PATHS: [&str; 11] = [
    "/",
    METRICS,
    "/livez",
    "/readyz",
    "/status",
    ICON,
    "/flamegraph",
    "/debug/profile",
    "/debug/syscalls",
    "/debug/waits",
    "/debug/latency",
];
const RECORDINGS: &str = "/debug/recordings/";

/// Returns whether a request with this path begins a recording.
pub(super) fn records(path: &str) -> bool {
    ["/debug/profile", "/debug/syscalls", "/debug/latency"].contains(&path)
}

/// Returns whether a route has this path.
pub(super) fn is_known(path: &str) -> bool {
    PATHS.contains(&path) || path.strip_prefix(RECORDINGS).is_some_and(|id| !id.is_empty() && !id.contains('/'))
}

/// State that the routes share with the server's loop.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) rendered: Rendered,
    pub(super) pulse: Arc<Mutex<Pulse>>,
}

/// Returns the router of health probes.
pub(super) fn probes(agent: Arc<Agent>, shown: &Shown) -> Router {
    let pulse = Arc::clone(&shown.pulse);
    Router::new().route("/livez", get(move || livez(pulse))).route("/readyz", get(readyz)).with_state(agent)
}

/// Returns the router with all paths. None of them accepts a body.
pub(super) fn router(agent: Arc<Agent>, shown: &Shown) -> Router {
    let (rendered, unread) = (shown.rendered.clone(), Unread::default());
    let probes = probes(Arc::clone(&agent), shown);
    Router::new()
        .route("/", get(index))
        .route(METRICS, get(move |agent, from, headers| metrics(agent, from, (rendered, unread), headers)))
        .route("/status", get(state))
        .route(ICON, get(|| async { (StatusCode::NO_CONTENT, [(header::CACHE_CONTROL, "max-age=86400")]) }))
        .route("/flamegraph", get(profile::flamegraph))
        .route("/debug/profile", get(profile::record))
        .route("/debug/syscalls", get(calls::record))
        .route("/debug/waits", get(waits::answer))
        .route("/debug/latency", get(latency::record))
        .route("/debug/recordings/{id}", get(profile::progress).delete(profile::end))
        .with_state(agent)
        .merge(probes)
}

/// Returns the overview page to browsers, and the list of paths to other clients.
async fn index(Shared(agent): Shared<Arc<Agent>>, uri: Uri, headers: HeaderMap) -> Response {
    if wants_page(&headers) {
        return overview::answer(&agent, &uri).await;
    }
    "podperf\n\n/               who waits for what, in a browser\n/flamegraph     stacks of the last minutes: subject, \
     activity\n/debug/profile  a recording: subject, activity, filter, seconds, format\n/debug/syscalls a recording of system \
     calls: subject, seconds, format\n/debug/latency  how long calls of a function take: subject, function, seconds\n/debug/waits    long waits one by one: subject\n/metrics        Prometheus metrics\n\
     /status         the parts of the agent and their states\n/livez          whether the agent's threads turn\n/readyz         \
     whether it counts\n"
        .into_response()
}

async fn metrics(
    Shared(agent): Shared<Arc<Agent>>,
    Extension(Source { from, .. }): Extension<Source>,
    (rendered, unread): (Rendered, Unread),
    headers: HeaderMap,
) -> Response {
    let peer = Peer::of(from);
    if !unread.has_room(peer) {
        let says = "podperf: clients have not read their last answers (read them faster, or ask for gzip)\n";
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "10")], says).into_response();
    }
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = Format::negotiate(header(header::ACCEPT));
    let encoding = Encoding::negotiate(header(header::ACCEPT_ENCODING));
    let scrapes = headers.contains_key(SCRAPE_TIMEOUT);
    let observation = match agent.export(if scrapes { Purpose::Scrape(from) } else { Purpose::Export }).await {
        Ok(observation) => observation,
        Err(error) => return (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    };
    let of = (observation.readings, agent.reloaded());
    let form = Form { format, encoding, zero_first: scrapes };
    let body = rendered.get(of, form, || {
        let parts = agent.parts();
        render(&observation, &agent.facts(&parts), format, scrapes)
    });
    match body {
        Ok(body) => {
            let body = Body::new(unread.answer(peer, body));
            let mut response = ([(header::CONTENT_TYPE, format.content_type())], body).into_response();
            if encoding == Encoding::Gzip {
                response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            response
        }
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("failed to write metrics: {error}\n")).into_response()
        }
    }
}

/// Answers 200 while the agent's loops turn, else 503.
async fn livez(pulse: Arc<Mutex<Pulse>>) -> Response {
    let problem = pulse.lock().unwrap_or_else(PoisonError::into_inner).problem();
    match problem {
        None => "ok\n".into_response(),
        Some(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")).into_response(),
    }
}

/// Answers 200 while the kernel can be read, else 503. The agent is useful without counters or profiles, but not
/// without readings.
async fn readyz(Shared(agent): Shared<Arc<Agent>>) -> Response {
    match agent.ready().await {
        Ok(how) => format!("{how}\n").into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

/// Returns the states of all parts: a page to browsers, and JSON or text to other clients.
async fn state(Shared(agent): Shared<Arc<Agent>>, headers: HeaderMap) -> Response {
    let parts = agent.parts();
    let wants_json = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|accept| accept.contains("application/json"));
    // Without readings the list of events is empty; the parts name the reason.
    let counters = agent.counters().await;
    let holders = agent.holders().await;
    if wants_json {
        let events: Vec<_> = counters
            .iter()
            .map(|open| json!({ "event": open.counter.name, "state": open.state, "detail": open.detail }))
            .collect();
        let body = json!({ "node": agent.node_name, "parts": parts, "events": events, "programs": holders });
        return ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response();
    }
    if wants_page(&headers) {
        return status::answer(&agent.node_name, &parts, &counters, &by_holder(&holders));
    }
    let mut text = format!("podperf {} on node {}\n\n", env!("CARGO_PKG_VERSION"), agent.node_name);
    for part in parts {
        // Writing to a string does not fail.
        writeln!(text, "{:<20} {:<12} {}", part.part, part.state.name(), part.detail).ok();
    }
    if !counters.is_empty() {
        text.push_str("\nevents\n");
    }
    for open in counters.iter() {
        writeln!(text, "  {:<28} {:<12} {}", open.counter.name, open.state.name(), open.detail).ok();
    }
    if !holders.is_empty() {
        text.push_str("\nBPF programs by holder\n");
    }
    for (holder, programs) in by_holder(&holders) {
        writeln!(text, "  {holder}: {programs}").ok();
    }
    text.into_response()
}
