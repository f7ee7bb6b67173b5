//! The time of some subjects in some windows, on or off the CPU, by stack. Pure.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Size, SubjectName};
use crate::stacks::profile::{Activity, Sample, Stack};

/// Which of a profile's samples are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// The waits.
    #[default]
    OffCpu,
    /// The samples on the CPU.
    OnCpu,
}

/// What windows had of the wanted subjects. Immutable once made.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// Which time it is.
    pub side: Side,
    /// Whose it is, as it was asked for.
    pub title: String,
    /// One entry per subject, by name.
    pub subjects: Vec<MergedSubject>,
    /// When the first window began.
    pub start: Option<SystemTime>,
    /// How long all windows were.
    pub duration: Duration,
    /// What is missing, on the whole node: reason and count.
    pub losses: Vec<(&'static str, u64)>,
    /// What one sample on the CPU stands for.
    pub sample_period: Option<Duration>,
    /// How many stacks had no room: their time is in samples that are called `(N smaller)`.
    pub merged: u64,
    /// The bytes of its stacks.
    pub bytes: usize,
}

/// The time of one subject.
#[derive(Clone, Debug)]
pub struct MergedSubject {
    /// Whose it is.
    pub name: SubjectName,
    /// One entry per stack and activity, the longest first.
    pub samples: Vec<MergedSample>,
}

/// Time that shared a stack and an activity.
#[derive(Clone, Debug)]
pub struct MergedSample {
    /// Leaf first.
    pub stack: Arc<Stack>,
    /// What the threads did meanwhile.
    pub activity: Activity,
    /// How long, in nanoseconds.
    pub nanoseconds: u64,
    /// How many waits or samples that was.
    pub count: u64,
}

impl Side {
    /// The value of the argument `activity`, and part of file names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OffCpu => "off-cpu",
            Self::OnCpu => "on-cpu",
        }
    }

    /// The side of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::OffCpu, Self::OnCpu].into_iter().find(|side| side.name() == name)
    }

    pub(super) fn has(self, sample: &Sample) -> bool {
        match sample.activity {
            Activity::OnCpu => self == Self::OnCpu,
            Activity::OffCpu { .. } => self == Self::OffCpu,
        }
    }
}

impl Merged {
    /// All its time, in nanoseconds.
    #[must_use]
    pub fn nanoseconds(&self) -> u64 {
        self.samples().map(|(_, sample)| sample.nanoseconds).sum()
    }

    /// How many waits or samples that is.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.samples().map(|(_, sample)| sample.count).sum()
    }

    /// Returns how much there is to draw.
    #[must_use]
    pub fn size(&self) -> Size {
        Size { samples: self.samples().count(), bytes: self.bytes }
    }

    /// Returns all samples, each with its subject.
    pub fn samples(&self) -> impl Iterator<Item = (&SubjectName, &MergedSample)> {
        self.subjects.iter().flat_map(|subject| subject.samples.iter().map(|sample| (&subject.name, sample)))
    }
}
