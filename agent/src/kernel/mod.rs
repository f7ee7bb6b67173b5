//! Edge 1, the kernel: the only module with `unsafe`, file descriptors and aya.
//!
//! Owns the BPF programs and their maps and the perf counters, and finds the abilities of the host. Returns plain
//! values: [`RawReading`], [`records::StackRecord`], [`records::CgroupRecord`]. Rejects machines that cannot run
//! podperf, with a named reason ([`host::Unsupported`]).
#![expect(unsafe_code, reason = "the kernel boundary: bpf(2) and perf_event_open(2) take raw pointers")]

mod adopt_or_load;
mod answering;
pub mod answers;
mod attach;
mod budget;
#[cfg(test)]
mod call;
mod call_recorder;
pub mod clock;
pub mod copies;
mod cost;
mod counters;
pub mod cpu_info;
mod descriptor;
mod descriptors;
mod error;
mod features;
mod flush;
mod group;
mod hard_interrupts;
mod hash_key;
pub mod host;
mod hotplug;
pub mod isolation;
mod listed;
mod load;
pub mod memory;
mod mounts;
mod object;
mod orders;
mod perf;
pub mod pinned;
mod presence;
mod probes;
pub mod proc;
mod programs;
mod raw;
mod reading;
pub mod records;
mod rows;
mod sample_tables;
mod sampler;
pub mod sched_ext;
mod sensor_programs;
mod sensors;
mod sent;
mod spin;
mod stolen;
pub mod symbols;
mod takeover;
mod trial;
mod works;

pub use answering::AnsweringTime;
#[cfg(test)]
pub(crate) use call::error_of_call;
pub use call_recorder::{CallRecorder, LOADING_BYTES, MOST_CGROUPS, RecorderUse};
pub use cost::{MapUse, ProgramUse};
pub use counters::{OpenCounter, PmuSettings};
pub(crate) use descriptors::{own_descriptors, raise_open_files};
pub use error::LoadError;
pub use load::{SensorSettings, Tracepoint};
pub use orders::Lowered;
pub use probes::{LAST_RECORDING, Place, Probe, Probes};
#[cfg(test)]
pub(crate) use programs::DROPS;
pub(crate) use programs::SAMPLE;
pub(crate) use raw::return_free_memory;
pub use reading::{CpuTotals, RawReading, RawRow};
pub use sampler::SampleEvent;
pub use sensor_programs::SensorState;
pub use sensors::{Begin, Sensors};
pub use takeover::{Pins, PinsError, Previous};
pub use trial::{try_counters, try_perf_event_open};

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// Searches the sources for words, because a lint alone could be allowed in a file.
    #[test]
    fn unsafe_code_is_here_and_nowhere_else() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut directories = vec![sources.clone()];
        let mut files = 0;
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.extend((path != sources.join("kernel")).then_some(path));
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = fs::read_to_string(&path).unwrap();
                    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
                    let found = code.filter(|line| line.contains("unsafe_code") || line.contains("unsafe {"));
                    assert_eq!(found.collect::<Vec<_>>(), [""; 0], "{}", path.display());
                    files += 1;
                }
            }
        }
        assert!(files > 100, "only {files} files");
    }
}
