//! The slot of an active filter.

/// The slot of one active filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub(crate) u8);

impl Slot {
    /// Slot of the filter for the agent's own profiles.
    pub const OWN: Self = Self(0);

    /// Returns `true` if a sample passed this filter; bit n of `passed` belongs to slot n.
    #[must_use]
    pub const fn let_pass(self, passed: u8) -> bool {
        passed >> self.0 & 1 == 1
    }
}
