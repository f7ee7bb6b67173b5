//! What the next agent goes on with. The kernel's part is pinned ([`crate::kernel::Pins`]); what is known in user space
//! only is kept in a file beside the lock of the agent: accounts, names, and up to where the kernel's rows are posted.
//!
//! [`Kept`] is what there is to keep, [`text`] its form with a checksum and [`Shape`] how numbers find their place again
//! in another version (pure); [`Keeper`] reads and writes the file.

mod keeper;
mod kept;
pub mod text;

pub use keeper::{Found, Keeper, RestartStats};
pub use kept::Kept;
