//! podperf: why is this pod slow?
//!
//! The modules are the data's way: [`kernel`] counts, [`readings`] makes deltas, [`cgroups`] knows paths,
//! [`attribution`] keeps accounts and takes snapshots, [`export`] hands them out; stacks go from [`kernel`] through
//! [`stacks`] to [`export`]. [`collector`] is the thread that drives this, [`agent`] what runs around it. Only
//! `kernel` and `export` do I/O that can fail; what is between is pure.

pub mod agent;
pub mod attribution;
pub mod cgroups;
pub mod cli;
pub mod collector;
pub mod config;
pub mod events;
pub mod export;
pub mod ids;
pub mod kernel;
pub mod readings;
pub mod stacks;
pub mod status;
