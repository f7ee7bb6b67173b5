//! A pod's programs and libraries may be any bytes: the agent reads them for their build id, their links and their
//! names.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| podperf::stacks::fuzzing::object_file(bytes));
