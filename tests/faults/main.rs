//! Faults: what goes wrong around the agent, what its users then see, and what was lost. Needs root.
//!
//! Each test makes one fault, holds the agent to three things (it serves, it says in words what is wrong, and what was
//! lost is nothing or counted), and hands its row to the [`table`], which is printed at the end. Without
//! `PODPERF_LONG` each is as short as it can be; `make faults` sets it. Faults that other rings make as well are
//! theirs, taken in as they are; where those rings run too, as in `make test`, they make them once.

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
