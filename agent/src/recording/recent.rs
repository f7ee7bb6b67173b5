//! The windows of the last minutes, for pages. Pure.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::weight::{Weight, own_bytes};
use crate::stacks::profile::{Profile, Stack};

/// The length of time that all windows together cover.
const KEEP_FOR: Duration = Duration::from_secs(300);
/// The most samples that all windows together hold.
const MOST_SAMPLES: usize = 50_000;
/// The most bytes that all windows together take, with their stacks.
const MOST_BYTES: usize = 24 << 20;

/// The windows of the last minutes; fewer if a limit is reached.
#[derive(Debug, Default)]
pub struct Recent {
    windows: VecDeque<Arc<Profile>>,
    samples: usize,
    duration: Duration,
    /// The size of the windows without their stacks, in bytes.
    own_bytes: usize,
    stacks: Weight,
    version: u64,
}

/// The amount of data to merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Number of samples in all windows.
    pub samples: usize,
    /// The size of the windows with their stacks, in bytes.
    pub bytes: usize,
}

impl Recent {
    /// Adds the newest window, and drops the oldest windows over the limits. The newest window always stays.
    pub fn push(&mut self, profile: Arc<Profile>) {
        self.version += 1;
        self.samples += samples(&profile);
        self.duration += profile.duration;
        self.own_bytes += own_bytes(&profile);
        stacks(&profile).for_each(|stack| self.stacks.add(stack));
        self.windows.push_back(profile);
        while self.windows.len() > 1
            && let Some(oldest) = self.windows.front()
            && (self.samples > MOST_SAMPLES
                || self.size().bytes > MOST_BYTES
                || self.duration - oldest.duration >= KEEP_FOR)
            && let Some(oldest) = self.windows.pop_front()
        {
            self.samples -= samples(&oldest);
            self.duration -= oldest.duration;
            self.own_bytes -= own_bytes(&oldest);
            stacks(&oldest).for_each(|stack| self.stacks.remove(stack));
        }
    }

    /// Returns the size of all windows together.
    #[must_use]
    pub const fn size(&self) -> Size {
        Size { samples: self.samples, bytes: self.own_bytes + self.stacks.bytes() }
    }

    /// Returns a number that changes when the windows change.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Drops all windows but the newest.
    pub fn forget(&mut self) {
        let newest = self.windows.pop_back();
        *self = Self { version: self.version, ..Self::default() };
        newest.into_iter().for_each(|newest| self.push(newest));
    }

    /// Returns all windows, the oldest first.
    #[must_use]
    pub fn windows(&self) -> Vec<Arc<Profile>> {
        self.windows.iter().map(Arc::clone).collect()
    }
}

fn samples(profile: &Profile) -> usize {
    profile.subjects.iter().map(|subject| subject.samples.len()).sum()
}

fn stacks(profile: &Profile) -> impl Iterator<Item = &Arc<Stack>> {
    profile.subjects.iter().flat_map(|subject| &subject.samples).map(|sample| &sample.stack)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::{
        attribution::Subject,
        model::wait::Unwind,
        stacks::profile::{Activity, Frame, FrameKind, Sample, SubjectProfile},
    };

    fn window(seconds: u64, samples: usize) -> Arc<Profile> {
        let sample = Sample {
            stack: Arc::default(),
            activity: Activity::OnCpu,
            nanoseconds: 1,
            count: 1,
            last: SystemTime::UNIX_EPOCH,
            so_far_ns: 0,
            passed: 1,
        };
        let subject = SubjectProfile { subject: Subject::Cgroup("/a".into()), samples: vec![sample; samples] };
        let duration = Duration::from_secs(seconds);
        Arc::new(Profile { subjects: vec![subject], duration, ..Profile::default() })
    }

    #[test]
    fn five_minutes_are_kept_and_no_window_more() {
        let mut recent = Recent::default();
        (0..100).for_each(|_| recent.push(window(10, 1)));
        assert_eq!(recent.windows().len(), 30);
    }

    #[test]
    fn when_all_is_forgotten_the_newest_stays() {
        let mut recent = Recent::default();
        recent.forget();
        (1..=9).for_each(|samples| recent.push(window(10, samples)));
        recent.forget();
        assert_eq!(recent.windows().iter().map(|window| samples(window)).collect::<Vec<_>>(), [9]);
        (0..100).for_each(|_| recent.push(window(10, 1)));
        assert_eq!(recent.windows().len(), 30);
    }

    #[test]
    fn full_windows_reach_less_far_back_and_the_newest_stays() {
        let mut recent = Recent::default();
        (0..9).for_each(|_| recent.push(window(10, MOST_SAMPLES / 4)));
        assert_eq!(recent.windows().len(), 4);
        recent.push(window(10, 2 * MOST_SAMPLES));
        assert_eq!(recent.windows().len(), 1);
    }

    #[test]
    fn windows_of_deep_stacks_reach_less_far_back_and_weigh_what_is_left() {
        let deep = |first: u64| {
            let mut profile = Profile::clone(&window(10, 1000));
            for (at, sample) in profile.subjects[0].samples.iter_mut().enumerate() {
                let frame = |depth: u64| Frame {
                    address: (first + at as u64) << 8 | depth,
                    kind: FrameKind::Native,
                    mapping: None,
                    functions: vec![],
                };
                let frames = (0..100).map(|depth| Arc::new(frame(depth))).collect();
                sample.stack = Arc::new(Stack { frames, unwind: Unwind::Whole });
            }
            Arc::new(profile)
        };
        let mut recent = Recent::default();
        recent.push(deep(0));
        let (one, version) = (recent.size(), recent.version());
        (1..20).for_each(|first| recent.push(deep(first * 1000)));
        let left = recent.windows().len();
        assert!(left < 5 && recent.size().bytes <= MOST_BYTES, "{left} windows: {:?}", recent.size());
        assert_eq!(recent.size(), Size { samples: one.samples * left, bytes: one.bytes * left });
        assert_ne!(recent.version(), version);
        recent.forget();
        assert_eq!(recent.size(), one);
    }
}
