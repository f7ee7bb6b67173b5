//! The pages for people, and the profiles and waits that they request.

mod modes;
pub mod overview;
pub(super) mod problem;
pub mod profile;
pub(super) mod status;
mod told;
pub mod waits;
