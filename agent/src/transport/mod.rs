//! Network code that several parts of the agent share.

pub mod pem;
