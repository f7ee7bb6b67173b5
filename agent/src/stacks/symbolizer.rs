//! The thread that turns windows of addresses into profiles with names, and hands them on.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use super::{
    ProfileSample, RawProfile,
    profile::{Activity, Frame, Profile, Sample, Stack, SubjectProfile, Unwind, WaitState, Waker},
    reason::WaitReason,
    resource::resource,
    symbols::{Frames, Symbols},
};
use crate::{
    attribution::Subject,
    ids::{Pid, StackId},
    kernel::{
        clock,
        records::{RawActivity, RawStack},
    },
};

/// Frames with and without names so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SymbolStats {
    /// With.
    pub symbolized: u64,
    /// Without.
    pub unsymbolized: u64,
}

/// The counts of a symbolizer, shared.
#[derive(Clone, Debug, Default)]
pub struct SymbolCounts(Arc<[AtomicU64; 2]>);

impl SymbolCounts {
    /// As they are now.
    #[must_use]
    pub fn stats(&self) -> SymbolStats {
        let [symbolized, unsymbolized] = &*self.0;
        SymbolStats {
            symbolized: symbolized.load(Ordering::Relaxed),
            unsymbolized: unsymbolized.load(Ordering::Relaxed),
        }
    }

    fn count(&self, frame: &Frame) {
        self.0[usize::from(frame.functions.is_empty())].fetch_add(1, Ordering::Relaxed);
    }
}

/// Starts the thread: it takes windows until their sender is gone, and calls `send` with each profile.
///
/// # Errors
///
/// When the thread cannot be started.
pub fn start(
    windows: mpsc::Receiver<RawProfile>,
    node_name: String,
    counts: SymbolCounts,
    mut send: impl FnMut(Profile) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("podperf-symbols".into()).spawn(move || {
        let mut symbols = Symbols::new();
        for window in windows {
            send(profile(window, &mut symbols, &node_name, &counts));
        }
    })
}

/// One window with names, grouped by whose they are.
fn profile(window: RawProfile, symbols: &mut Symbols, node_name: &str, counts: &SymbolCounts) -> Profile {
    let stacks = name_stacks(&window.samples, symbols, counts);
    let mut losses = window.losses;
    let mut lost_frames = 0;
    let mut subjects: HashMap<Subject, SubjectProfile> = HashMap::new();
    for ProfileSample { subject, stack, reason, waker, sample } in window.samples {
        let (key, count) = (sample.key, sample.count);
        let activity = activity(key.activity, reason, waker);
        // Who was preempted has none by design.
        if stack.is_none() && reason == WaitReason::Unknown {
            lost_frames += count;
        }
        let profile = subjects.entry(subject).or_insert_with_key(|subject| SubjectProfile {
            resource: resource(subject, node_name),
            samples: Vec::new(),
        });
        let stack = stack.and_then(|stack| stacks.get(&(key.process, stack.id)).cloned()).unwrap_or_default();
        let last = clock::wall(sample.last_ns);
        profile.samples.push(Sample { stack, activity, nanoseconds: sample.ns, count, last });
    }
    if lost_frames > 0 {
        losses.push(("stack_frames", lost_frames));
    }
    Profile {
        subjects: subjects.into_values().collect(),
        start: Some(window.start),
        duration: window.duration,
        losses,
        sample_period: window.sample_period,
    }
}

fn activity(raw: RawActivity, reason: WaitReason, waker: Option<Arc<Waker>>) -> Activity {
    match raw {
        RawActivity::OnCpu => Activity::OnCpu,
        RawActivity::Wait(state) => Activity::OffCpu { state, reason, waker },
        RawActivity::Throttled => Activity::OffCpu { state: WaitState::Preempted, reason, waker },
    }
}

/// The stacks of a window with names. One process may share a stack's addresses with another, but not its names.
fn name_stacks(
    samples: &[ProfileSample],
    symbols: &mut Symbols,
    counts: &SymbolCounts,
) -> HashMap<(Pid, StackId), Arc<Stack>> {
    let mut by_process: HashMap<Pid, HashMap<StackId, &RawStack>> = HashMap::new();
    let mut kernel = BTreeSet::new();
    for ProfileSample { stack, sample, .. } in samples {
        if let Some(stack) = stack {
            kernel.extend(&stack.kernel);
            by_process.entry(sample.key.process).or_default().insert(stack.id, stack);
        }
    }
    let mut named = HashMap::new();
    for (process, stacks) in by_process {
        let addresses = stacks.values().flat_map(|stack| &stack.user).copied().collect();
        let user = symbols.user(process, &addresses);
        let kernel = symbols.kernel(&kernel);
        for (id, raw) in stacks {
            let take = |addresses: &[u64], frames: &Frames| {
                addresses.iter().filter_map(|address| frames.get(address).cloned()).collect::<Vec<_>>()
            };
            let mut frames = without_sampler(take(&raw.kernel, kernel));
            frames.extend(take(&raw.user, &user));
            frames.iter().for_each(|frame: &Arc<Frame>| counts.count(frame));
            named.insert((process, id), Arc::new(Stack { frames, unwind: Unwind::Whole }));
        }
    }
    named
}

/// Kernel frames of a wait without the sampler on top: the BPF programs, which need not have names, and the
/// tracepoint that called them. How many there are depends on the kernel and its compiler.
fn without_sampler(mut frames: Vec<Arc<Frame>>) -> Vec<Arc<Frame>> {
    const TRACEPOINT: [&str; 3] = ["bpf_trace_run", "__bpf_trace_", "__traceiter_"];
    const DEEPEST: usize = 8;
    let is_tracepoint = |frame: &Arc<Frame>| {
        let name = frame.functions.last().map_or("", |function| &*function.name);
        TRACEPOINT.iter().any(|prefix| name.starts_with(prefix))
    };
    let own = frames.iter().take(DEEPEST).rposition(is_tracepoint).map_or(0, |last| last + 1);
    frames.split_off(own)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::{
        ids::CgroupId,
        kernel::records::{RawActivity, RawSample, SampleKey},
        stacks::profile::{FrameKind, Function},
    };

    #[test]
    fn the_sampler_is_not_on_top_of_what_it_samples() {
        let named = |names: &[&str]| -> Vec<Arc<Frame>> {
            let function = |name: &&str| Function { name: (*name).into(), file: "".into(), line: 0 };
            let functions = |name: &&str| if name.is_empty() { vec![] } else { vec![function(name)] };
            let frame = |name| {
                let functions = functions(name);
                Arc::new(Frame { address: 1, kind: FrameKind::Kernel, mapping: None, functions })
            };
            names.iter().map(frame).collect()
        };
        let rest = named(&["__schedule", "schedule"]);
        for sampler in [
            &["bpf_prog_1_walk_stack", "bpf_prog_2_sched_switch", "bpf_trace_run4", "__traceiter_sched_switch"][..],
            &["", "", "bpf_trace_run3", "__bpf_trace_sched_switch"],
            &["", "bpf_trace_run4"],
            &[],
        ] {
            let stack = [named(sampler), rest.clone()].concat();
            assert_eq!(without_sampler(stack), rest, "{sampler:?}");
        }
    }

    fn wait(row: &str, stack: Option<&Arc<RawStack>>, ns: u64) -> ProfileSample {
        let key = SampleKey {
            stack: Some(StackId(1)),
            cgroup: CgroupId(1),
            waker: None,
            process: Pid(u32::MAX / 2),
            activity: RawActivity::Wait(WaitState::Interruptible),
            filters: 1,
        };
        ProfileSample {
            subject: Subject::Cgroup(row.into()),
            stack: stack.cloned(),
            reason: if stack.is_some() { WaitReason::Other } else { WaitReason::Unknown },
            waker: None,
            sample: RawSample { key, ns, count: 1, last_ns: 0 },
        }
    }

    #[test]
    fn waits_are_grouped_by_row_and_none_is_lost_with_its_frames() {
        let stack = Arc::new(RawStack { id: StackId(1), process: Pid(1), user: vec![0x10, 0x20], kernel: vec![] });
        let window = RawProfile {
            start: SystemTime::UNIX_EPOCH,
            duration: Duration::from_secs(1),
            samples: vec![
                wait("/a.slice/b.service", Some(&stack), 5),
                wait("/a.slice/b.service", None, 6),
                wait("/", None, 7),
            ],
            losses: vec![],
            sample_period: None,
        };
        let counts = SymbolCounts::default();
        let profile = profile(window, &mut Symbols::new(), "node-1", &counts);
        let sum = |service: &str| -> u64 {
            let named = ("service.name".to_owned(), service.to_owned());
            let subject = profile.subjects.iter().find(|subject| subject.resource.contains(&named)).unwrap();
            subject.samples.iter().map(|sample| sample.nanoseconds).sum()
        };
        assert_eq!((sum("b.service"), sum("/")), (11, 7));
        assert_eq!(profile.losses, [("stack_frames", 2)]);
        assert_eq!(counts.stats(), SymbolStats { symbolized: 0, unsymbolized: 2 });
    }
}
