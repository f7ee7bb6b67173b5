#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| podperf_fuzz::check("virtual_machine", bytes));
