//! The takeover: programs of a new generation go on where those of the previous one stop, whatever its layout.
//!
//! `pins` keeps generations in the kernel, under the names that `layout` makes. `generations` lets a generation count, and
//! reads the counts of the previous ones. `description` finds the fields in their maps.

pub(super) mod description;
pub(super) mod generations;
pub(super) mod layout;
pub(super) mod pins;

pub use generations::Previous;
pub use pins::{Pins, PinsError};
