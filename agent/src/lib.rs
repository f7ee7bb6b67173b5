//! podperf counts what each pod does, and why it waits.
//!
//! [`kernel`] reads the maps of the BPF programs, and [`collector`] is the one thread that drives it. The collector
//! makes deltas of the readings, and posts them to the accounts in [`attribution`], with paths from [`cgroups`] and
//! names from [`pods`]. [`export`] renders snapshots of the accounts, and [`http`] serves them. Stacks go from
//! [`kernel`] through [`stacks`] and [`recording`] to [`export`]; [`filter`] chooses the samples. [`limits`] keeps
//! the cost low after each reading, [`checkpoint`] saves the accounts for the next agent, and [`telemetry`] counts
//! the agent's own work. [`holders`] finds who holds the node's BPF programs. [`access`] decides who may read, and
//! [`sandbox`] restricts the agent itself. [`events`] plans the configured perf events, [`model`] has the plain types
//! that modules share, and [`transport`] connects out of the agent. [`cli`] reads the command line, [`config`] reads
//! the settings, [`agent`] starts and stops the parts, and [`check`] tries them once. `agent/layers.txt` has their
//! order.

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
pub mod holders;
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
