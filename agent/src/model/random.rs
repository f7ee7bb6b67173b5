//! Random numbers for delays and nonces. They are well spread, but not fit for keys: `std` seeds the keys of its hasher
//! from the system's random source.

use std::hash::{BuildHasher, RandomState};

/// Returns a random number.
#[must_use]
pub fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// Returns a random number below `below`, which must not be 0.
#[must_use]
pub fn random_below(below: u32) -> u32 {
    u32::try_from(random() % u64::from(below)).unwrap_or(0)
}
