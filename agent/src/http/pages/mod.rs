//! The pages for people, and the profiles and waits that they request.

mod modes;
pub mod overview;
pub mod profile;
pub mod waits;
