//! Edge 3: the outputs of the agent. Prometheus metrics, status and pages over HTTP, profiles and pushed metrics over
//! OTLP, flame graphs, tables of system calls.

pub mod calls;
pub mod drawing;
pub mod flamegraph;
pub mod latency;
pub mod otlp;
pub mod prometheus;
pub mod push;
mod sink;

pub use drawing::Drawer;
pub use sink::{ProfileSink, Sinks};
