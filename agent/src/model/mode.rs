//! The modes of the agent, by the names that its chart gives them.

/// The part of stacks that the agent takes, and so the privileges that it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Counts and times; no stacks.
    #[default]
    Metrics,
    /// Also the kernel's frames, which have the reasons of waits.
    Reasons,
    /// Also user frames.
    Profiles,
}
