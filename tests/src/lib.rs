//! What podperf's tests and benchmarks share: the agent as a process, cgroups of their own, loads with a known truth,
//! and the side-by-side benchmark.

pub mod agent;
pub mod bench;
pub mod cgroup;
pub mod collector;
pub mod http;
pub mod load;
pub mod process;
pub mod prometheus;
pub mod suite;
