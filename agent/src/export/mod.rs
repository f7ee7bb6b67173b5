//! Edge 3: what leaves the agent. Prometheus metrics and status over HTTP, profiles and pushed metrics over OTLP.

pub mod http;
pub mod otlp;
pub mod prometheus;
pub mod push;
