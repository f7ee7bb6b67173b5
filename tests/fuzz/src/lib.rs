//! The checks of the fuzz targets: each panics if a parser of foreign input breaks a promise. `tests/src/corpus.rs`
//! includes this file, and replays the inputs in `tests/fuzz/corpus`.

mod cgroup_path;
mod config;
mod filter;
mod pmu_format;
mod request;

use podperf::{pods, stacks};

/// Checks one input, and panics if a promise is broken.
pub type Check = fn(&[u8]);

/// The targets, by the names of their folders in `corpus`.
pub const TARGETS: [(&str, Check); 10] = [
    ("cgroup_path", cgroup_path::check),
    ("config", |bytes| config::check(text(bytes))),
    // A pod's programs and libraries may be any bytes: the agent reads them for their build id, their links and their
    // names.
    ("elf", stacks::fuzzing::object_file),
    ("filter", |bytes| filter::check(text(bytes))),
    // The watch and the kubelet report pods, whose owners choose names, labels and annotations.
    ("kube_object", |bytes| pods::fuzzing::object(text(bytes))),
    // A JIT compiler's map may be any bytes: a container writes it to its `/tmp`. So may a path in `/proc/PID/maps`.
    ("perf_map", stacks::fuzzing::memory_maps),
    ("pmu_format", |bytes| pmu_format::check(text(bytes))),
    ("request", |bytes| request::check(text(bytes))),
    // The unwind tables of a pod's programs may be any bytes, and its stacks as well.
    ("unwind_tables", stacks::fuzzing::unwind_tables),
    // A process that calls itself a Java virtual machine may have anything in its memory.
    ("virtual_machine", stacks::fuzzing::virtual_machine),
];

/// Runs the check of a target on one input.
pub fn check(target: &str, bytes: &[u8]) {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    found.unwrap_or_else(|| panic!("no target `{target}`")).1(bytes);
}

/// Returns the text in front of the first byte that is no UTF-8.
fn text(bytes: &[u8]) -> &str {
    match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    }
}
