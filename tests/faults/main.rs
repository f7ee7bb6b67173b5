//! Faults: what goes wrong around the agent, what its users then see, and what was lost. Needs root.
//!
//! Each test makes one fault, holds the agent to three things (it serves, it says in words what is wrong, and what was
//! lost is nothing or counted), and hands its row to the [`table`], which is printed at the end. Without
//! `PODPERF_LONG` each is as short as it can be; `make faults` sets it. Faults that other rings make as well are
//! theirs, taken in as they are; where those rings run too, as in `make test`, they make them once.

#[path = "../kube/clock.rs"]
mod clock;
#[path = "../kube/cluster.rs"]
#[expect(dead_code, reason = "ring 4 asks for more of it")]
mod cluster;
#[path = "../e2e/command.rs"]
#[expect(dead_code, reason = "ring 3 asks for more of it")]
mod command;
#[path = "../kernel/conservation.rs"]
#[expect(dead_code, reason = "ring 2 asks for more of it")]
mod conservation;
#[path = "../kernel/hotplug.rs"]
mod hotplug;
#[path = "../kernel/running.rs"]
#[expect(dead_code, reason = "ring 2 asks for more of it")]
mod running;

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
