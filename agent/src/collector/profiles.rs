//! The collector's part of profiles: reads samples with each reading, and sends them window by window to the
//! symbolizer.

use std::{
    collections::HashMap,
    io,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::{Collector, CollectorSettings, names, reader::FilterReply};
use crate::{
    attribution::{Owner, Subject},
    filter::{Filter, Known},
    kernel::{
        clock::{monotonic_ns, thread_cpu},
        records::RawSample,
        return_free_memory,
        symbols::KernelFunctions,
    },
    model::{feature::Feature, ids::WakerId, sensors, slot::Slot, status::State},
    stacks::{Blocked, ProfileSample, RawProfile, RawProfileWaker, Window, profile::Waker},
};

/// The largest number of windows that may wait for their names.
const WINDOWS_ON_THE_WAY: usize = 2;
/// The same number with windows that end for readers. On a busy node names take longer than a window, so readers would
/// never find room beside the windows that end by themselves.
const WITH_READERS: usize = 4;
/// A window that waits for earlier windows may hold this many times the samples of one reading; beyond that, it is
/// dropped.
const MOST_SUMS: usize = 4;

/// A request for the window to be cut.
#[derive(Debug)]
pub(super) enum Asks {
    Cut(oneshot::Sender<Option<SystemTime>>),
    Filter(Box<Filter>, FilterReply),
}

/// The same request once its filter has a slot.
enum Cut {
    Window(oneshot::Sender<Option<SystemTime>>),
    Filter(Slot, FilterReply),
}

/// Returns `true` if profiles lack what the kernel side drops for this reason.
fn is_of_profiles(reason: &str) -> bool {
    !matches!(reason, "cgroup_table" | "cgroup_share" | "event_read" | "cgroup_ring" | "sensor_table")
        && sensors::drops().all(|own| own.name != reason)
}

/// Returns the functions of the kernel, read again if they may have changed; none without profiles. Reports whether the
/// kernel shows them, and whether files are read.
pub(super) fn learn_functions(samples: &mut Window, settings: &CollectorSettings) -> Arc<KernelFunctions> {
    if settings.profiles.is_none() {
        return Arc::default();
    }
    let functions = samples.learn_functions();
    if let Some([shown, hidden]) = &settings.stacks {
        let (state, detail) = if functions.is_empty() { hidden } else { shown };
        if let Some(why) = settings.blocked.iter().find_map(Blocked::why) {
            let detail = format!("no names or unwind tables are read from files: {why}");
            settings.status.set("stacks", State::Degraded, detail);
        } else {
            settings.status.set("stacks", *state, detail.as_str());
        }
    }
    functions
}

/// Returns the share of a window that was left when it ended before its time.
fn share_left(age: Duration, every: Duration) -> f64 {
    1.0 - (age.as_secs_f64() / every.as_secs_f64()).min(1.0)
}

/// Returns the part of a window's cost that readers pay. `early` is the share by which it ends early for them. The cost
/// contains the time for the filters of their recordings.
fn of_readers(cost: Duration, early: f64, for_filters: Duration) -> Duration {
    let for_end = if early > 0.0 { cost.mul_f64(early) } else { Duration::ZERO };
    for_end.max(for_filters)
}

impl Collector {
    /// Reads the samples since the last call.
    pub(super) fn take_samples(&mut self) -> io::Result<()> {
        if self.settings.profiles.is_none() {
            return self.sensors.charge_waits();
        }
        let samples = self.sensors.take_samples()?;
        // The rings already hold the records that these samples refer to.
        self.drain();
        self.samples.add(samples, monotonic_ns());
        Ok(())
    }

    /// Ends the profile window, sends it to the symbolizer, and returns its start time. The last window includes all
    /// samples that still wait for a name. Readers pay for the filters of their recordings, and for a window that ends for
    /// them before its time.
    pub(super) fn profile(&mut self, last: bool, for_readers: bool) -> Option<SystemTime> {
        let (spent, age) = (thread_cpu(), self.window.1.elapsed());
        let every = self.settings.profiles.as_ref().map_or(Duration::ZERO, |(every, _)| *every);
        let began = self.end_window(last, for_readers);
        let for_filters = std::mem::take(&mut self.for_filters);
        let cost = thread_cpu().saturating_sub(spent);
        let early = if for_readers { share_left(age, every) } else { 0.0 };
        self.settings.answering.charge(of_readers(cost, early, for_filters));
        began
    }

    fn end_window(&mut self, last: bool, for_readers: bool) -> Option<SystemTime> {
        let (_, taker) = self.settings.profiles.as_ref()?;
        let on_their_way = Arc::strong_count(&self.on_the_way) - 1;
        let room = if for_readers { WITH_READERS } else { WINDOWS_ON_THE_WAY };
        if !last && on_their_way >= room && self.samples.len() < MOST_SUMS * self.settings.max_samples {
            // No sample is lost: this window becomes longer.
            return None;
        }
        let taker = taker.clone();
        self.catch_up();
        if let Err(error) = self.take_samples() {
            // The attempt is repeated four times a second.
            if !std::mem::replace(&mut self.samples_fail, true) {
                let error = format!("{:#}", anyhow::Error::new(error));
                warn!(
                    error,
                    "failed to read the samples: they will be in a later profile (is a limit of the agent reached?)"
                );
            }
            return None;
        }
        self.samples_fail = false;
        let drops = self.sensors.drops().unwrap_or_default();
        let mut losses = Vec::new();
        for (reason, count) in drops {
            let new = count - self.drops_then.insert(reason, count).unwrap_or(0);
            if new > 0 && is_of_profiles(reason) {
                losses.push((reason, new));
            }
        }
        let samples = self.samples.end(last);
        let samples = self.name_samples(samples, last);
        let window = std::mem::replace(&mut self.window, (SystemTime::now(), Instant::now()));
        let profile = RawProfile {
            start: window.0,
            duration: window.1.elapsed(),
            samples,
            losses,
            sample_period: self.settings.sample_period,
            functions: learn_functions(&mut self.samples, &self.settings),
            on_its_way: Arc::clone(&self.on_the_way),
        };
        let handed_on = taker.try_send(profile).is_ok();
        self.profiles_dropped += u64::from(!handed_on);
        self.seen_processes.clear();
        let without_stacks = self.settings.memory.given_up.has(Feature::Stacks);
        let forgotten = if without_stacks { self.samples.forget_all() } else { self.samples.forget() };
        if let Err(error) = self.sensors.forget_sent(&forgotten) {
            debug!(%error, "stacks not forgotten");
        }
        self.forget_recipes(&forgotten);
        if without_stacks && !forgotten.is_empty() {
            return_free_memory();
        }
        handed_on.then_some(window.0)
    }

    /// Ends the window for all requests, and applies their filters to later samples: earlier samples have no bits of
    /// these filters. Each request gets the start time of that window; `None` if the window was lost.
    pub(super) fn cut_for(&mut self, waiting: Vec<Asks>, last: bool) {
        let insert = |asks| match asks {
            Asks::Cut(reply) => Some(Cut::Window(reply)),
            Asks::Filter(filter, reply) => match self.filters.insert(*filter) {
                Ok(slot) => Some(Cut::Filter(slot, reply)),
                Err(full) => {
                    reply.refuse(full);
                    None
                }
            },
        };
        let cuts: Vec<_> = waiting.into_iter().filter_map(insert).collect();
        if cuts.is_empty() && !last {
            return;
        }
        // Time that is only in rows arrives with a reading: this reading adds the time before the cut to the window
        // that ends.
        if !cuts.is_empty()
            && let Err(error) = self.observation(Duration::ZERO, true)
        {
            debug!(%error, "no reading before a cut");
        }
        let began = self.profile(last, !cuts.is_empty());
        if began.is_some() {
            self.cuts.done(Instant::now());
        }
        let mut filters = false;
        for cut in cuts {
            match cut {
                Cut::Window(reply) => {
                    reply.send(began).ok();
                }
                Cut::Filter(slot, reply) => {
                    reply.give(slot, began);
                    filters = true;
                }
            }
        }
        if filters {
            self.set_filters();
        }
    }

    pub(super) fn set_filters(&mut self) {
        if let Err(error) = self.sensors.set_filter_terms(&self.filters.kernel_terms()) {
            warn!(%error, "failed to hand over the filters of profiles");
        }
    }

    /// Finds the owners of a window's samples. A sample without a name waits for a later window, unless this window is
    /// the last.
    fn name_samples(&mut self, samples: Vec<RawSample>, last: bool) -> Vec<ProfileSample> {
        let now_ns = monotonic_ns();
        let names = names(&self.tree, self.pods.as_ref(), &self.settings);
        let rules = &self.settings.rules;
        let nameless = std::mem::take(&mut self.nameless);
        let mut named = Vec::with_capacity(samples.len());
        let samples = samples.into_iter().map(|sample| (self.tree.place(sample.key.cgroup).cloned(), sample));
        for (place, sample) in samples.chain(nameless.into_iter().map(|(place, sample)| (Some(place), sample))) {
            let stack = sample.key.stack.and_then(|id| self.samples.stack(id));
            let path = place.as_ref().map(|place| Arc::clone(&place.path));
            let subject = match place {
                Some(place) => {
                    let owner = names.owner(&place, now_ns);
                    let has_room = !last && self.nameless.len() < self.settings.max_samples;
                    if has_room && matches!(owner, Owner::Unknown) {
                        self.nameless.push((place, sample));
                        continue;
                    }
                    Subject::of(&place, &owner, rules)
                }
                None => Subject::unresolved(),
            };
            let reason = self.samples.reason(&sample.key);
            named.push((path, ProfileSample { subject, stack, reason, waker: None, passed: 0, sample }));
        }
        let for_filters = self.filter(&mut named);
        let mut wakers: HashMap<WakerId, Option<Arc<RawProfileWaker>>> = HashMap::new();
        let mut waker = |id| {
            let name = || {
                let waker = self.samples.waker(id)?;
                let place = waker.cgroup.and_then(|cgroup| names.tree.place(cgroup));
                let subject = match (waker.cgroup, place) {
                    (None, _) => Waker::INTERRUPT.into(),
                    (_, None) => Subject::unresolved().to_string(),
                    (_, Some(place)) => Subject::of(place, &names.owner(place, now_ns), rules).to_string(),
                };
                let stack = waker.stack.and_then(|id| self.samples.stack(id));
                Some(Arc::new(RawProfileWaker { thread: waker.thread.clone(), subject, stack }))
            };
            wakers.entry(id).or_insert_with(name).clone()
        };
        let with_waker = |(_, named): (_, ProfileSample)| {
            let waker = named.sample.key.waker.and_then(&mut waker);
            ProfileSample { waker, ..named }
        };
        let named = named.into_iter().map(with_waker).collect();
        self.for_filters = for_filters;
        named
    }

    /// Leaves the samples that pass a filter. Returns the CPU time for the filters of recordings.
    fn filter(&self, named: &mut Vec<(Option<Arc<str>>, ProfileSample)>) -> Duration {
        let pass = |passes: &dyn Fn(u16, &Known<'_>) -> u8, named: &mut [(Option<Arc<str>>, ProfileSample)]| {
            for (path, it) in named {
                let path = path.as_deref().unwrap_or_default();
                let known = Known::new(&it.sample.key, path, &it.subject, it.reason);
                it.passed |= passes(it.sample.key.filters, &known);
            }
        };
        pass(&|bits, known| self.filters.own_passes(bits, known), named);
        let began = thread_cpu();
        if self.filters.has_recordings() {
            pass(&|bits, known| self.filters.recordings_pass(bits, known), named);
        }
        let spent = thread_cpu().saturating_sub(began);
        named.retain(|(_, it)| it.passed != 0);
        spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_pay_for_their_filters_and_for_windows_that_end_early() {
        let [second, half] = [1000, 500].map(Duration::from_millis);
        assert_eq!(of_readers(second, 0.0, half), half, "the window ends by itself");
        assert_eq!(of_readers(second, share_left(second * 2, second * 8), half), second * 3 / 4);
        assert_eq!(of_readers(second, share_left(second * 8, second * 8), Duration::ZERO), Duration::ZERO);
        assert_eq!(of_readers(second, share_left(second, Duration::ZERO), Duration::ZERO), Duration::ZERO);
        assert_eq!(of_readers(second, share_left(Duration::ZERO, Duration::ZERO), half), half);
    }
}
