//! Counts of the agent's own work: log messages, HTTP requests, and turns of its loops.

pub mod heartbeat;
pub mod http;
pub mod logs;
#[cfg(test)]
pub(crate) mod test_log;
