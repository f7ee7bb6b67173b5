//! The checkpoint, from which the next agent continues. The kernel's part stays pinned ([`crate::kernel::Pins`]). The
//! state of user space is saved in a file beside the agent's lock: accounts, names, and how far the kernel's rows were
//! added to the accounts.
//!
//! [`Kept`] is the content, [`text`] its form with a checksum. [`Shape`](crate::attribution::shape::Shape) finds the
//! place of each number in another version (pure). [`Keeper`] reads and writes the file.

mod keeper;
mod kept;
pub mod text;

pub use keeper::{Found, Keeper, RestartStats};
pub use kept::Kept;
