//! Adds up the waits of each container, pod and cgroup, judged by [`Peers`]. Pure.
//!
//! A wait that goes on is in each window with its part so far. When a long wait ends, its earlier parts are judged as
//! its end is. A wait between 0.1 s and `stacks.longWait` leaves its part before a reading among the parked ones.

use std::{
    cmp::Reverse,
    collections::HashMap,
    ops::Range,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    Coverage, SubjectName,
    trouble::{Cause, Judgement, Peers, Wait, pod_of},
};
use crate::{
    model::{
        slot::Slot,
        wait::{WaitReason, WaitState},
    },
    stacks::profile::{Profile, Sample},
};

/// The means of sleeps that count as work, in nanoseconds: the program does something in short steps. Sleeps of up to
/// 10 ms are often those of a runtime that watches its own threads, as Go's does while Go code runs.
const STEPS_NS: Range<u64> = 15_000_000..100_000_000;
/// The share of one CPU from which on a pod is named as the one that has the CPUs.
const LEAST_CPU: f64 = 0.25;

/// The time of one container, pod or cgroup off the CPU. Numbers are threads on average.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    over: Duration,
    /// Trouble of threads that could run, or that no signal could wake.
    held: HashMap<Cause, u64>,
    /// Trouble of other threads. The key is false for time that may be idleness.
    asleep: HashMap<(Cause, bool), u64>,
    idle: HashMap<WaitReason, u64>,
    /// The parts of waits that went on.
    open: HashMap<WaitReason, u64>,
    /// Those of these parts whose waits ended in the windows.
    closed: HashMap<WaitReason, u64>,
    steps_ns: u64,
    on_cpu_ns: u64,
    /// How far the stacks of this time reach.
    pub coverage: Coverage,
}

/// The threads that wait for one thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The thing.
    pub cause: Cause,
    /// False for time that may be idleness.
    pub sure: bool,
    /// The number of threads.
    pub threads: f64,
}

impl Part {
    /// Returns the number of threads in trouble. Time that may be idleness counts half if it was spent on another pod
    /// or on the program's own threads, and not at all if nothing is known of it.
    #[must_use]
    pub fn trouble(&self) -> f64 {
        match (&self.cause, self.sure) {
            (_, true) => self.threads,
            (Cause::Lock | Cause::Peer(_), false) => self.threads / 2.0,
            (_, false) => 0.0,
        }
    }
}

/// Sorts the most trouble first, and then the most threads.
pub fn sort_parts(parts: &mut [Part]) {
    parts.sort_by(|a, b| {
        let by_threads = b.trouble().total_cmp(&a.trouble()).then(b.threads.total_cmp(&a.threads));
        by_threads.then_with(|| a.cause.cmp(&b.cause))
    });
}

impl Waiting {
    /// Returns the waits in these windows by the names of containers, pods and cgroups.
    #[must_use]
    pub fn by_name(windows: &[Arc<Profile>]) -> HashMap<String, Self> {
        let peers = Peers::of(windows);
        let since = windows.iter().filter_map(|window| window.start).min();
        let over: Duration = windows.iter().map(|window| window.duration).sum();
        let mut all: HashMap<String, Self> = HashMap::new();
        for subject in windows.iter().flat_map(|window| &window.subjects) {
            let name = SubjectName::from(&subject.subject);
            let owner = name.to_string();
            let pod = match &name {
                SubjectName::Container { .. } => Some(pod_of(&owner).to_owned()),
                SubjectName::Cgroup(_) => None,
            };
            for name in [Some(owner.clone()), pod].into_iter().flatten() {
                let waiting = all.entry(name).or_default();
                for sample in subject.samples.iter().filter(|sample| Slot::OWN.let_pass(sample.passed)) {
                    waiting.add(&peers, &owner, sample, since);
                }
            }
        }
        all.values_mut().for_each(|waiting| waiting.over = over);
        if windows.iter().any(|window| window.sample_period.is_some()) {
            for (name, cause, most) in bounds(&all) {
                if let Some(waiting) = all.get_mut(&name) {
                    waiting.bound(cause, most);
                }
            }
        }
        all
    }

    fn add(&mut self, peers: &Peers, owner: &str, sample: &Sample, since: Option<SystemTime>) {
        let Some(wait) = Wait::of(owner, sample) else {
            self.on_cpu_ns += sample.nanoseconds;
            return;
        };
        self.coverage.add(&sample.stack, &sample.activity, sample.nanoseconds);
        let judgement = peers.judge(&wait);
        let mut nanoseconds = sample.nanoseconds;
        if judgement == Judgement::Parked {
            *self.open.entry(wait.reason).or_default() += nanoseconds;
            return;
        }
        let earlier = earlier(sample, since);
        // The sensor `locks` names the lock when the wait ends: the earlier parts have none.
        if earlier > 0 && peers.judge(&Wait { ended: false, lock: None, ..wait }) == Judgement::Parked {
            *self.closed.entry(wait.reason).or_default() += earlier;
            nanoseconds += earlier;
        }
        let sum = match judgement {
            Judgement::Trouble(cause) if wait.state == WaitState::Interruptible => {
                self.asleep.entry((cause, true)).or_default()
            }
            Judgement::Trouble(cause) => self.held.entry(cause).or_default(),
            Judgement::Unclear(cause) => self.asleep.entry((cause, false)).or_default(),
            Judgement::Idle | Judgement::Parked => {
                if wait.reason == WaitReason::Sleep && STEPS_NS.contains(&(nanoseconds / sample.count.max(1))) {
                    self.steps_ns += nanoseconds;
                }
                self.idle.entry(wait.reason).or_default()
            }
        };
        *sum += nanoseconds;
    }

    /// Returns the time of threads that certainly do something or are kept from it, in nanoseconds. Threads that wait
    /// for `other`, its pod or its containers are left out.
    fn active(&self, other: &str) -> u64 {
        let is_other = |cause: &Cause| match cause {
            Cause::Peer(name) => {
                let rest = other.strip_prefix(&**name);
                pod_of(name) == other || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            _ => false,
        };
        let asleep = self.asleep.iter().filter(|((cause, sure), _)| *sure && !is_other(cause)).map(|(_, time)| *time);
        let held = self.held.values().copied();
        asleep.chain(held).chain([self.steps_ns, self.on_cpu_ns]).sum()
    }

    /// Leaves at most this many nanoseconds of the time that may have been spent on a cause. The rest is idleness.
    fn bound(&mut self, cause: Cause, most: u64) {
        let reason = cause.colour();
        let Some(time) = self.asleep.get_mut(&(cause, false)) else { return };
        let left = most.min(*time);
        *self.idle.entry(reason).or_default() += *time - left;
        *time = left;
    }

    fn threads(&self, nanoseconds: u64) -> f64 {
        Duration::from_nanos(nanoseconds).as_secs_f64() / self.over.as_secs_f64().max(0.001)
    }

    /// Returns the threads in trouble, and those that may be, by what they wait for; the most trouble first.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        let mut sums: HashMap<(&Cause, bool), u64> = HashMap::new();
        for (cause, time) in &self.held {
            *sums.entry((cause, true)).or_default() += time;
        }
        for ((cause, sure), time) in &self.asleep {
            *sums.entry((cause, *sure)).or_default() += time;
        }
        let part = |((cause, sure), time): ((&Cause, bool), u64)| Part {
            cause: cause.clone(),
            sure,
            threads: self.threads(time),
        };
        let mut parts: Vec<Part> = sums.into_iter().map(part).collect();
        sort_parts(&mut parts);
        parts
    }

    /// Returns the threads in trouble that slept and could have been woken by a signal: see [`Part::trouble`].
    #[must_use]
    pub fn asleep(&self) -> f64 {
        let part = |((cause, sure), time): (&(Cause, bool), &u64)| {
            Part { cause: cause.clone(), sure: *sure, threads: self.threads(*time) }.trouble()
        };
        self.asleep.iter().map(part).sum()
    }

    /// Returns the threads that had nothing to do until something came.
    #[must_use]
    pub fn idle(&self) -> f64 {
        self.threads(self.idle.values().sum())
    }

    /// Returns the reason of most of the idleness that ended.
    #[must_use]
    pub fn idle_for(&self) -> Option<WaitReason> {
        self.idle.iter().max_by_key(|(reason, time)| (**time, Reverse(**reason))).map(|(reason, _)| *reason)
    }

    /// Returns the threads whose waits went on.
    #[must_use]
    pub fn parked(&self) -> f64 {
        let closed = |reason| self.closed.get(reason).copied().unwrap_or_default();
        self.threads(self.open.iter().map(|(reason, time)| time.saturating_sub(closed(reason))).sum())
    }

    /// Returns the CPUs that it had, by samples.
    #[must_use]
    pub fn on_cpu(&self) -> f64 {
        self.threads(self.on_cpu_ns)
    }
}

/// Returns limits for the time that may be trouble: name, cause, and nanoseconds. A lock has a holder, and a pod keeps
/// others waiting only while it does something: it runs, waits for something else, or sleeps for a moment. Each of its
/// threads that does so keeps one thread waiting: more may wait for it, but a hundred idle connections look the same.
fn bounds(all: &HashMap<String, Waiting>) -> Vec<(String, Cause, u64)> {
    let mut bounds = Vec::new();
    for (name, waiting) in all {
        for (cause, _) in waiting.asleep.keys().filter(|(_, sure)| !sure) {
            let most = match cause {
                Cause::Lock => Some(waiting.active("")),
                // Samples of a peer that a filter leaves out are not in these windows.
                Cause::Peer(peer) => all.get(peer).map(|peer| peer.active(name)),
                _ => None,
            };
            bounds.extend(most.map(|most| (name.clone(), cause.clone(), most)));
        }
    }
    bounds
}

/// Returns the part of a wait that earlier samples of these windows contain.
pub(super) fn earlier(sample: &Sample, since: Option<SystemTime>) -> u64 {
    let within = since.and_then(|since| sample.last.duration_since(since).ok()).unwrap_or_default();
    let within = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
    sample.so_far_ns.min(within.saturating_sub(sample.nanoseconds))
}

/// Returns the pod that has most of the CPUs, and how many, if that is another one than `own`. `on_cpu` has the CPUs of
/// each pod.
#[must_use]
pub fn holder<'a>(on_cpu: &HashMap<&'a str, f64>, own: &str) -> Option<(&'a str, f64)> {
    let (name, most) = on_cpu.iter().max_by(|a, b| a.1.total_cmp(b.1).then_with(|| b.0.cmp(a.0)))?;
    (*name != own && *most >= LEAST_CPU).then_some((*name, *most))
}

#[cfg(test)]
#[path = "waiting_tests.rs"]
mod tests;
