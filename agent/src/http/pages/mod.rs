//! The pages for people and the profiles that they ask for.

pub mod overview;
pub mod profile;
pub mod waits;
