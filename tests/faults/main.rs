//! Faults around the agent: the symptoms that users see, and the losses. Needs root.
//!
//! Each test makes one fault and checks three things: the agent serves, it reports the fault in words, and it lost
//! nothing or counted its losses. The test adds its row to the [`table`], which is printed at the end. Without
//! `PODPERF_LONG` each test is as short as it can be; `make faults` sets it. This ring includes the tests of other
//! rings for faults that they make as well. If those rings run too, as in `make test`, the tests run once, there.

mod files;
mod kernel_side;
mod limits;
mod neighbours;
mod outages;
mod table;

use std::process::ExitCode;

use podperf_tests::suite;

fn main() -> ExitCode {
    let own = [limits::TESTS, files::TESTS, kernel_side::TESTS, neighbours::TESTS, outages::TESTS].concat();
    let of_others = if suite::long() { [kernel_side::OF_OTHERS, outages::OF_OTHERS].concat() } else { Vec::new() };
    let code = suite::run(&[own, of_others].concat());
    table::print();
    code
}
