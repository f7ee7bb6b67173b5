//! Network code that several parts of the agent share.

pub(crate) mod backoff;
pub mod pem;
