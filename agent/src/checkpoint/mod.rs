//! The checkpoint, from which the next agent continues. The kernel's part stays pinned ([`crate::kernel::Pins`]). The
//! state of user space is saved in a file beside the agent's lock: accounts, names, and how far the kernel's rows were
//! added to the accounts.
//!
//! [`State`] is the content, [`mod@format`] its form with a checksum.
//! [`Schema`](crate::attribution::schema::Schema) finds the place of each number in another version (pure). [`Store`]
//! reads and writes the file.

pub mod format;
mod state;
mod store;

pub use state::State;
pub use store::{Found, RestartStats, Store};
