//! Edge 3: what leaves the agent. Prometheus metrics, status and pages over HTTP, profiles and pushed metrics over OTLP,
//! flame graphs.

mod drawing;
pub mod facts;
pub mod flamegraph;
pub mod otlp;
pub mod overview;
pub mod pem;
pub mod profile;
pub mod prometheus;
pub mod push;
pub mod server;
mod waits;

pub use drawing::Drawer;
pub(crate) use profile::file_name;
