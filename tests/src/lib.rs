//! Shared code of podperf's tests and benchmarks: the agent as a process, cgroups, loads with a known truth, a real
//! Kubernetes API server with a played kubelet, and the runner for a ring of tests.

pub mod agent;
pub mod bpf;
pub mod bpffs;
pub mod browser;
pub mod certificates;
pub mod cgroup;
pub mod clock;
pub mod cluster;
pub mod collector;
pub mod command;
pub mod control_plane;
#[cfg(test)]
mod corpus;
pub mod dashboards;
pub mod deadline;
pub mod golden;
pub mod hotplug;
pub mod http;
pub mod https;
pub mod hung_fs;
pub mod ignored;
pub mod kubelet;
pub mod load;
pub mod node;
pub mod pages;
pub mod pprof;
pub mod process;
pub mod programs;
pub mod prometheus;
pub mod reference;
pub mod rules;
pub mod running;
pub mod served;
pub mod suite;
pub mod system_programs;
pub mod vm;
pub mod waited;
pub mod weather;
