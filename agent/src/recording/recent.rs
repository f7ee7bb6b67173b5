//! The windows of the last minutes, for pages. Pure.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use crate::stacks::profile::Profile;

/// How far back they go.
const KEEP_FOR: Duration = Duration::from_secs(300);
/// Samples in all windows together, at most: some 100 bytes each, and 300 for a stack, which samples share.
const MOST_SAMPLES: usize = 50_000;

/// The windows of the last minutes; fewer where they are full.
#[derive(Debug, Default)]
pub struct Recent {
    windows: VecDeque<Arc<Profile>>,
    samples: usize,
    duration: Duration,
}

impl Recent {
    /// Adds the newest window, and drops the oldest beyond the bounds. The newest always stays.
    pub fn push(&mut self, profile: Arc<Profile>) {
        self.samples += samples(&profile);
        self.duration += profile.duration;
        self.windows.push_back(profile);
        while self.windows.len() > 1
            && let Some(oldest) = self.windows.front()
            && (self.samples > MOST_SAMPLES || self.duration - oldest.duration >= KEEP_FOR)
        {
            self.samples -= samples(oldest);
            self.duration -= oldest.duration;
            self.windows.pop_front();
        }
    }

    /// Drops all but the newest.
    pub fn forget(&mut self) {
        let newest = self.windows.pop_back();
        *self = Self::default();
        newest.into_iter().for_each(|newest| self.push(newest));
    }

    /// All of them, the oldest first.
    #[must_use]
    pub fn windows(&self) -> Vec<Arc<Profile>> {
        self.windows.iter().map(Arc::clone).collect()
    }
}

fn samples(profile: &Profile) -> usize {
    profile.subjects.iter().map(|subject| subject.samples.len()).sum()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::stacks::profile::{Activity, Sample, SubjectProfile};

    fn window(seconds: u64, samples: usize) -> Arc<Profile> {
        let sample = Sample {
            stack: Arc::default(),
            activity: Activity::OnCpu,
            nanoseconds: 1,
            count: 1,
            last: SystemTime::UNIX_EPOCH,
            passed: 1,
        };
        let subject = SubjectProfile { resource: vec![], samples: vec![sample; samples] };
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
}
