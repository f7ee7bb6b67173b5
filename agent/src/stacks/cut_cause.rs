//! The causes of copied stacks that are cut. Pure.

/// The cause why the stack of a copy is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum CutCause {
    /// The process had ended, or ran another program, and no process of the same program was known.
    ProcessGone,
    /// The pod or cgroup had no time left.
    NoTime,
    /// The mappings or a file could not be read.
    Unreadable,
    /// The stack could not be copied.
    NoCopy,
    /// A caller is on a page that was not copied.
    NotCopied,
    /// A caller is on another stack, more than 1 MiB away, or in the part of the red zone that is not copied.
    Elsewhere,
}

impl CutCause {
    /// All causes, in the order of [`CutSamples`].
    pub const ALL: [Self; 6] =
        [Self::ProcessGone, Self::NoTime, Self::Unreadable, Self::NoCopy, Self::NotCopied, Self::Elsewhere];

    /// Returns the label value in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Number of samples on the CPU whose stack is cut, in the order of [`CutCause::ALL`].
pub type CutSamples = [u64; CutCause::ALL.len()];
