//! The means by which the agent talks to others over a network.

pub mod pem;
