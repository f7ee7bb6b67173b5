//! The watch and the kubelet report pods, whose owners choose names, labels and annotations.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| podperf::pods::fuzzing::object(text));
