//! The kernel side of podperf: the bytes of the BPF objects, and the types they share with user space.

/// The BPF object, built from `bpf/podperf.bpf.c`, with the alignment that the ELF parser needs.
pub static OBJECT: &[u8] = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/podperf.bpf.o"))).0;

/// The object of a recording of system calls, built from `bpf/recorded_calls.bpf.c`, with the same alignment.
pub static RECORDED_CALLS_OBJECT: &[u8] =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/recorded_calls.bpf.o"))).0;

/// The layout of the data that stays in the kernel, see `build/layout.rs`. Another layout needs another
/// `PODPERF_LAYOUT`.
pub static LAYOUT: &str = include_str!(concat!(env!("OUT_DIR"), "/layout.txt"));

include!(concat!(env!("OUT_DIR"), "/names.rs"));

pub mod sensor;

/// The descriptions of the sensors, which the build finds in the folders of `sensors/`.
pub mod sensors {
    use super::sensor::Sensor;

    include!(concat!(env!("OUT_DIR"), "/sensors/sensors.rs"));
}

#[repr(C, align(32))]
struct Aligned<const N: usize>([u8; N]);

/// The ABI, generated from `bpf/podperf.h`, `bpf/copies.h`, `bpf/recorded_calls.h` and the headers of the sensors, which
/// document each field.
pub mod abi {
    #![allow(missing_docs, non_camel_case_types, non_snake_case, reason = "generated; documented in podperf.h")]
    #![allow(clippy::all, reason = "generated")]
    #![allow(unsafe_code, reason = "the derived bytemuck::Pod, which its macro checks for padding")]
    #![allow(clippy::allow_attributes, reason = "which lints generated code trips depends on the generator")]

    include!(concat!(env!("OUT_DIR"), "/abi.rs"));
}
