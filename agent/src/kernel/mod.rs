//! Edge 1, the kernel: the only module with `unsafe`, file descriptors and aya.
//!
//! Owns the BPF programs and their maps, the perf counters, and what the host can and cannot do. Hands out plain
//! values: [`RawReading`], [`records::StackRecord`], [`records::CgroupRecord`]. Refuses machines that cannot run it,
//! by name ([`host::Unsupported`]).
#![expect(unsafe_code, reason = "the kernel boundary: bpf(2) and perf_event_open(2) take raw pointers")]

pub mod clock;
mod cost;
pub mod host;
mod perf;
mod raw;
pub mod records;
mod sensors;

pub use cost::{MapUse, ProgramUse};
pub use perf::OpenCounter;
pub use sensors::{CpuTotals, LoadError, RawReading, RawRow, SensorSettings, Sensors, Tracepoint};
