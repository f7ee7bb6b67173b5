//! podperf: why is this pod slow?
//!
//! The modules are the data's way: [`kernel`] counts, [`readings`] makes deltas ([`usage`]), [`cgroups`] knows paths and [`pods`]
//! names, [`attribution`] keeps accounts and takes snapshots, [`export`] hands them out; stacks go from [`kernel`]
//! through [`stacks`] and [`recording`] to [`export`]. [`collector`] is the thread that drives this, [`upkeep`] looks after counters,
//! [`overhead`] and [`memory`] after each reading, [`agent`] is what runs around it, [`restart`] what the next one goes on with, and
//! [`check`] says beforehand what of it would work. [`heartbeat`] tells whether its threads turn. [`access`] knows who may read, and [`sandbox`] what the agent may. Only
//! `kernel`, `pods` and `export` do I/O that can fail; what is between is pure.

pub mod access;
pub mod agent;
pub mod attribution;
pub mod cgroups;
pub mod check;
pub mod checkpoint;
pub mod cli;
pub mod collector;
pub mod config;
pub mod events;
pub mod export;
pub mod filter;
pub mod http;
pub mod kernel;
pub mod limits;
pub mod model;
pub mod pods;
pub mod recording;
pub mod sandbox;
pub mod stacks;
pub mod telemetry;
pub mod transport;
