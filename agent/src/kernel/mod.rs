//! Edge 1, the kernel: the only module with `unsafe`, file descriptors and aya.
//!
//! Owns the BPF programs and their maps, the perf counters, and what the host can and cannot do. Hands out plain
//! values: [`RawReading`], [`records::StackRecord`], [`records::CgroupRecord`]. Refuses machines that cannot run it,
//! by name ([`host::Unsupported`]).
#![expect(unsafe_code, reason = "the kernel boundary: bpf(2) and perf_event_open(2) take raw pointers")]

mod attach;
mod budget;
pub mod clock;
mod cost;
mod counters;
pub mod cpu_info;
mod group;
mod handover;
pub mod host;
mod hotplug;
mod layout;
mod load;
mod object;
mod perf;
mod pins;
mod raw;
mod reading;
pub mod records;
mod rows;
mod sampler;
mod sensors;
mod spin;
mod start;
pub mod symbols;
mod trial;

pub use cost::{MapUse, ProgramUse};
pub use counters::{OpenCounter, PmuSettings};
pub use handover::Before;
pub use load::{LoadError, SensorSettings, Tracepoint};
pub use pins::{Pins, PinsError};
pub(crate) use raw::return_free_memory;
pub use reading::{CpuTotals, RawReading, RawRow};
pub use sampler::SampleEvent;
pub use sensors::{Begin, Sensors};
pub use trial::{try_counters, try_perf_event_open};
