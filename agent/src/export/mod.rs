//! Edge 3: what leaves the agent. Prometheus metrics, status and pages over HTTP, profiles and pushed metrics over OTLP,
//! flame graphs.

pub mod facts;
pub mod flamegraph;
pub mod http;
pub mod otlp;
pub mod overview;
pub mod profile;
pub mod prometheus;
pub mod push;
mod waits;

pub(crate) use profile::file_name;
