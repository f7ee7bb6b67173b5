//! Windows added up: the time of the wanted subjects, on or off the CPU. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Selector, SubjectName};
use crate::{
    filter::Slot,
    stacks::profile::{Activity, Profile, Sample, Stack},
};

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

/// Nanoseconds and counts.
type Sums = HashMap<(Arc<Stack>, Activity), (u64, u64)>;

/// Adds windows up.
#[derive(Debug)]
pub struct Merger {
    side: Side,
    selector: Selector,
    slot: Slot,
    subjects: BTreeMap<SubjectName, Sums>,
    start: Option<SystemTime>,
    duration: Duration,
    losses: BTreeMap<&'static str, u64>,
    sample_period: Option<Duration>,
    count: u64,
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

    fn has(self, sample: &Sample) -> bool {
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

    /// All its samples, each with whose it is.
    pub fn samples(&self) -> impl Iterator<Item = (&SubjectName, &MergedSample)> {
        self.subjects.iter().flat_map(|subject| subject.samples.iter().map(|sample| (&subject.name, sample)))
    }
}

impl Merger {
    /// Nothing yet. Of the samples it takes those that the filter of this slot let pass.
    #[must_use]
    pub const fn new(side: Side, selector: Selector, slot: Slot) -> Self {
        Self {
            side,
            selector,
            slot,
            subjects: BTreeMap::new(),
            start: None,
            duration: Duration::ZERO,
            losses: BTreeMap::new(),
            sample_period: None,
            count: 0,
        }
    }

    /// Adds a window.
    pub fn add(&mut self, profile: &Profile) {
        self.start = [self.start, profile.start].into_iter().flatten().min();
        self.duration += profile.duration;
        self.sample_period = profile.sample_period.or(self.sample_period);
        for (reason, count) in &profile.losses {
            *self.losses.entry(reason).or_default() += count;
        }
        for subject in &profile.subjects {
            let name = SubjectName::of(&subject.resource);
            if !self.selector.has(&name) {
                continue;
            }
            let sums = self.subjects.entry(name).or_default();
            for sample in
                subject.samples.iter().filter(|sample| self.side.has(sample) && self.slot.let_pass(sample.passed))
            {
                let sum = sums.entry((Arc::clone(&sample.stack), sample.activity.clone())).or_default();
                sum.0 = sum.0.saturating_add(sample.nanoseconds);
                sum.1 = sum.1.saturating_add(sample.count);
                self.count = self.count.saturating_add(sample.count);
            }
        }
    }

    /// Says that something is missing.
    pub fn lost(&mut self, reason: &'static str) {
        *self.losses.entry(reason).or_default() += 1;
    }

    /// Waits or samples so far.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The sum.
    #[must_use]
    pub fn finish(self) -> Merged {
        let subjects = self.subjects.into_iter().filter(|(_, sums)| !sums.is_empty()).map(|(name, sums)| {
            let mut samples: Vec<_> = sums
                .into_iter()
                .map(|((stack, activity), (nanoseconds, count))| MergedSample { stack, activity, nanoseconds, count })
                .collect();
            samples.sort_by_key(|sample| std::cmp::Reverse(sample.nanoseconds));
            MergedSubject { name, samples }
        });
        Merged {
            side: self.side,
            title: self.selector.to_string(),
            subjects: subjects.collect(),
            start: self.start,
            duration: self.duration,
            losses: self.losses.into_iter().collect(),
            sample_period: self.sample_period,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::{
        profile::{SubjectProfile, WaitState},
        reason::WaitReason,
    };

    fn sample(activity: Activity, nanoseconds: u64) -> Sample {
        Sample { stack: Arc::default(), activity, nanoseconds, count: 2, last: SystemTime::UNIX_EPOCH, passed: 1 }
    }

    fn wait(reason: WaitReason) -> Activity {
        Activity::OffCpu { state: WaitState::Interruptible, reason, waker: None }
    }

    fn window(second: u64, path: &str, samples: Vec<Sample>) -> Profile {
        Profile {
            subjects: vec![SubjectProfile { resource: vec![("podperf.cgroup.path".into(), path.into())], samples }],
            start: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(second)),
            duration: Duration::from_secs(1),
            losses: vec![("stack_walk", 3)],
            sample_period: None,
        }
    }

    #[test]
    fn equal_samples_of_windows_are_one_and_nothing_else_is_taken() {
        let mut merger = Merger::new(Side::OffCpu, "/a".parse().unwrap(), Slot::OWN);
        merger.add(&window(1, "/a", vec![sample(wait(WaitReason::Disk), 5), sample(Activity::OnCpu, 100)]));
        merger.add(&window(2, "/a", vec![sample(wait(WaitReason::Disk), 7), sample(wait(WaitReason::Pipe), 30)]));
        merger.add(&window(3, "/b", vec![sample(wait(WaitReason::Disk), 1000)]));
        assert_eq!(merger.count(), 6);
        let merged = merger.finish();
        let sums: Vec<_> = merged.samples().map(|(_, sample)| (sample.nanoseconds, sample.count)).collect();
        assert_eq!(sums, [(30, 2), (12, 4)]);
        assert_eq!((merged.nanoseconds(), merged.duration), (42, Duration::from_secs(3)));
        assert_eq!(merged.start, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1)));
        assert_eq!(merged.losses, [("stack_walk", 9)]);
    }

    #[test]
    fn the_other_side_is_a_recording_of_its_own() {
        let mut merger = Merger::new(Side::OnCpu, Selector::All, Slot::OWN);
        merger.add(&window(1, "/a", vec![sample(wait(WaitReason::Disk), 5), sample(Activity::OnCpu, 100)]));
        assert_eq!(merger.finish().nanoseconds(), 100);
    }
}
