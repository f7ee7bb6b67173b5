//! A JIT compiler's map may be any bytes: a container writes it to its `/tmp`. So may a path in `/proc/PID/maps`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| podperf::stacks::fuzzing::memory_maps(bytes));
