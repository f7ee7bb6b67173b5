//! Faults around the agent: the symptoms that users see, and the losses. Needs root.
//!
//! Each test makes one fault and checks three things: the agent serves, it reports the fault in words, and it lost
//! nothing or counted its losses. The test adds its row to the [`table`], which is printed at the end. Without
//! `PODPERF_LONG` each test is as short as it can be; `make faults` sets it. A fault that another ring makes has no
//! test here.

mod files;
mod kernel_side;
mod limits;
mod neighbours;
mod table;

use std::process::ExitCode;

use podperf_tests::suite;

fn main() -> ExitCode {
    let code = suite::run(&[limits::TESTS, files::TESTS, kernel_side::TESTS, neighbours::TESTS].concat());
    table::print();
    code
}
