//! The pages for people, and the profiles, waits and system calls that they request.

pub(super) mod calls;
pub(super) mod latency;
mod modes;
pub mod overview;
pub(super) mod problem;
pub mod profile;
pub(super) mod status;
mod told;
pub mod waits;
