//! The names of the BPF programs and of the maps that the agent writes orders to.
//!
//! The names of programs with an account, and of the reasons for drops, come from the ABI header, in its order.

pub(crate) use podperf_ebpf::DROPS;
pub(super) use podperf_ebpf::PROGRAMS;

/// The programs in the order in which they are reported as running.
pub(super) const RUN: [&str; 12] = [
    "cgroup_mkdir",
    "cgroup_rename",
    "cgroup_rmdir",
    "cgroup_attach_task",
    "task_newtask",
    "flush",
    "forget",
    "sched_switch",
    "sched_switch_raw",
    COLLECT,
    "sched_waking",
    SAMPLE,
];

/// The program that samples running tasks.
pub(crate) const SAMPLE: &str = "sample";
/// The iterators over tasks.
pub(super) const COLLECT: &str = "collect";
pub(super) const CARRY: &str = "carry";
pub(super) const ADOPT: &str = "adopt";
pub(super) const SEE: &str = "see";

/// The map of the agent's orders.
pub(super) const ORDERS: &str = ".data.orders";
/// The map of the tasks' records.
pub(super) const TASKS: &str = "tasks";
