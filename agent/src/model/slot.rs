//! The place of a filter among the filters at work.

/// A filter at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub(crate) u8);

impl Slot {
    /// That of the agent's own profiles.
    pub const OWN: Self = Self(0);

    /// Whether a sample passed this filter: bit n is that of slot n.
    #[must_use]
    pub const fn let_pass(self, passed: u8) -> bool {
        passed >> self.0 & 1 == 1
    }
}
