//! A recording: the time of the selected subjects in some windows, on or off the CPU or in waits for locks, by
//! stack. Pure.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Coverage, Judgement, Size, SubjectName};
use crate::stacks::{
    FrameOwner, SourceLines, WantedLines,
    profile::{Activity, Sample, Stack},
};

/// The samples that a recording takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Side {
    /// Waits off the CPU.
    #[default]
    OffCpu,
    /// Samples on the CPU.
    OnCpu,
    /// The waits off the CPU that were for a lock, each with its whole length when it has ended.
    Locks,
}

/// The merged samples of the selected subjects. Immutable once made.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// The side that was recorded.
    pub side: Side,
    /// The selector as the user wrote it.
    pub title: String,
    /// One entry per subject, sorted by name.
    pub subjects: Vec<MergedSubject>,
    /// The start of the first window.
    pub start: Option<SystemTime>,
    /// The total length of all windows.
    pub duration: Duration,
    /// How far the stacks of this time reach.
    pub coverage: Coverage,
    /// The way to turn user frames on, for people; `None` if they are on.
    pub user_frames_off: Option<&'static str>,
    /// The number of waits or samples of the whole node in the same windows.
    pub of_node: u64,
    /// The losses on the whole node: reason and count.
    pub losses: Vec<(&'static str, u64)>,
    /// The time that one sample on the CPU stands for.
    pub sample_period: Option<Duration>,
    /// Number of stacks over the limit. Their time is in samples with the name `(N smaller)`.
    pub merged: u64,
    /// The size of all stacks, in bytes.
    pub bytes: usize,
    /// The source lines of user frames, if they were looked up.
    pub lines: SourceLines,
}

/// The time of one subject.
#[derive(Clone, Debug)]
pub struct MergedSubject {
    /// The name of the subject.
    pub name: SubjectName,
    /// One entry per stack and activity, the longest first.
    pub samples: Vec<MergedSample>,
}

/// The time that one stack spent in one activity.
#[derive(Clone, Debug)]
pub struct MergedSample {
    /// The stack, leaf first.
    pub stack: Arc<Stack>,
    /// The activity of the threads during this time.
    pub activity: Activity,
    /// The meaning of the waits off the CPU; `None` for samples on the CPU, and in recordings of waits for locks.
    pub judgement: Option<Arc<Judgement>>,
    /// The length, in nanoseconds.
    pub nanoseconds: u64,
    /// The number of waits or samples.
    pub count: u64,
}

impl Side {
    /// All sides, in the order of pages.
    pub const ALL: [Self; 3] = [Self::OffCpu, Self::OnCpu, Self::Locks];

    /// Returns the value of the argument `activity`, which is also part of file names.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the side with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|side| side.name() == name)
    }

    pub(super) fn has(self, sample: &Sample) -> bool {
        match (self, &sample.activity) {
            (Self::OnCpu, Activity::OnCpu) | (Self::OffCpu, Activity::OffCpu { .. }) => true,
            (Self::Locks, Activity::OffCpu { lock, .. }) => lock.is_some(),
            _ => false,
        }
    }

    /// Returns true if the values of this side's samples are times of waits.
    #[must_use]
    pub const fn is_waits(self) -> bool {
        matches!(self, Self::OffCpu | Self::Locks)
    }
}

impl Merged {
    /// Returns the total time, in nanoseconds.
    #[must_use]
    pub fn nanoseconds(&self) -> u64 {
        self.samples().map(|(_, sample)| sample.nanoseconds).sum()
    }

    /// Returns the total number of waits or samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.samples().map(|(_, sample)| sample.count).sum()
    }

    /// Returns the amount of data to draw.
    #[must_use]
    pub fn size(&self) -> Size {
        Size { samples: self.samples().count(), bytes: self.bytes + self.lines.bytes() }
    }

    /// Returns the addresses of user code whose source lines can be looked up.
    #[must_use]
    pub fn wanted_lines(&self) -> WantedLines {
        let mut wanted = WantedLines::default();
        for MergedSubject { name, samples } in &self.subjects {
            wanted.add(FrameOwner::from(name), samples.iter().flat_map(|sample| &sample.stack.frames));
        }
        wanted
    }

    /// Returns all samples, each with its subject.
    pub fn samples(&self) -> impl Iterator<Item = (&SubjectName, &MergedSample)> {
        self.subjects.iter().flat_map(|subject| subject.samples.iter().map(|sample| (&subject.name, sample)))
    }
}
