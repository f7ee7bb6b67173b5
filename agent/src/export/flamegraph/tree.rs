//! The frames of a picture, and the steps of a stack. Pure.

use std::sync::Arc;

use crate::{
    model::{
        lock::Lock,
        wait::{Unwind, WaitReason},
    },
    recording::{Cause, Judgement, Merged, MergedSample, SubjectName},
    stacks::profile::Activity,
};

/// The class of a frame, which decides its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Class {
    /// The total time, or the total time of one subject.
    #[default]
    All,
    /// Code in which a thread waited, and the pod lost time.
    Waiting {
        /// The reason whose colour the wait has.
        reason: WaitReason,
        /// True if the code is the kernel's.
        kernel: bool,
    },
    /// Code in which a thread waited, in trouble or without work.
    Unclear {
        /// True if the code is the kernel's.
        kernel: bool,
    },
    /// Code in which a thread waited and had nothing to do.
    Idle {
        /// True if the code is the kernel's.
        kernel: bool,
    },
    /// The program's code.
    User,
    /// The kernel's code.
    Kernel,
}

/// One step of a stack: its name and its class.
pub(super) type Step = (Arc<str>, Class);

/// The total of branches that were too narrow and were merged into one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Smaller {
    pub(super) branches: u64,
    pub(super) nanoseconds: u64,
    pub(super) count: u64,
}

/// A frame, with the time that it and its callees took.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) name: Arc<str>,
    pub(super) class: Class,
    pub(super) nanoseconds: u64,
    pub(super) count: u64,
    /// The children, the longest first. The frame for merged branches comes last, if it is wide enough to be visible.
    pub(super) children: Vec<Self>,
    /// The callees that have no node of their own.
    pub(super) smaller: Smaller,
}

impl Class {
    /// Returns true if a thread waited in code of the kernel.
    pub(super) const fn is_kernel_wait(self) -> bool {
        match self {
            Self::Waiting { kernel, .. } | Self::Unclear { kernel } | Self::Idle { kernel } => kernel,
            Self::All | Self::User | Self::Kernel => false,
        }
    }

    /// Returns true for code of the program.
    pub(super) const fn is_users(self) -> bool {
        match self {
            Self::Waiting { kernel, .. } | Self::Unclear { kernel } | Self::Idle { kernel } => !kernel,
            Self::User => true,
            Self::All | Self::Kernel => false,
        }
    }
}

/// Returns the steps of a sample, outermost first: the cause of the wait, then the functions. The cause has no
/// judgement, since users search folded files for it.
pub(super) fn steps(sample: &MergedSample) -> Vec<Step> {
    let mut steps = Vec::with_capacity(sample.stack.frames.len() + 2);
    if let Some(cause) = cause(sample) {
        steps.push((cause.into(), class_of(sample, false)));
    }
    steps.extend(mark(sample));
    for frame in sample.stack.frames.iter().rev() {
        let class = class_of(sample, frame.kind.is_kernel());
        if frame.functions.is_empty() {
            steps.push((frame.name().into(), class));
        }
        steps.extend(frame.functions.iter().rev().map(|function| (Arc::clone(&function.name), class)));
    }
    steps
}

/// Returns the name of the cause of a wait: the lock in a recording of waits for locks, else the reason.
pub(super) fn cause(sample: &MergedSample) -> Option<&'static str> {
    match &sample.activity {
        Activity::OnCpu => None,
        Activity::OffCpu { reason, lock, .. } => Some(lock.map_or(reason.name(), Lock::name)),
    }
}

/// Returns the name of the branch of a wait in a picture: its cause and its judgement, such as `poll for shop/payments`
/// and `network (idle)`.
pub(super) fn branch(sample: &MergedSample) -> Option<Arc<str>> {
    let cause = cause(sample)?;
    Some(match sample.judgement.as_deref() {
        None | Some(Judgement::Trouble(Cause::Reason(_) | Cause::Kernel)) => cause.into(),
        Some(Judgement::Trouble(thing)) => format!("{cause} for {}", thing.words(true)).into(),
        Some(Judgement::Unclear(thing @ (Cause::Peer(_) | Cause::Lock | Cause::Elsewhere))) => {
            format!("{cause} for {}", thing.words(false)).into()
        }
        Some(judgement) => format!("{cause} ({})", judgement.name()).into(),
    })
}

/// Returns the name of a sample's time in the legend, where its class is known.
pub(super) fn label(sample: &MergedSample, of_class: &'static str) -> &'static str {
    match sample.judgement.as_deref() {
        Some(Judgement::Trouble(Cause::Peer(_))) => "other pods",
        Some(Judgement::Trouble(Cause::Lock)) => "locks of its own",
        None | Some(Judgement::Trouble(_)) => of_class,
        Some(Judgement::Unclear(_)) => "unclear (trouble or idle)",
        Some(Judgement::Idle) => "idle (nothing to do)",
        Some(Judgement::Parked) => "parked (did not end)",
    }
}

/// Returns the number of steps that a stack has before its frames: its subject, the cause of the wait, and where the
/// walk ended.
pub(super) fn steps_before(several: bool, sample: &MergedSample) -> u8 {
    let is_marked = sample.stack.frames.is_empty() || sample.stack.unwind != Unwind::Whole;
    u8::from(several) + u8::from(!matches!(sample.activity, Activity::OnCpu)) + u8::from(is_marked)
}

/// Returns one step of a stack. If `steps` is below the number of steps before the frames, it is the index of such a
/// step; else `frames` and `functions` select a function, counted from the outermost on.
pub(super) fn step_of(
    name: &SubjectName,
    sample: &MergedSample,
    several: bool,
    steps: u8,
    frames: usize,
    functions: usize,
) -> Option<Step> {
    if steps < steps_before(several, sample) {
        let Some(at) = steps.checked_sub(u8::from(several)) else {
            return Some((name.to_string().into(), Class::All));
        };
        let branch = if at == 0 { branch(sample) } else { None };
        return branch.map(|branch| (branch, class_of(sample, false))).or_else(|| mark(sample));
    }
    let from_the_end = |length: usize, at: usize| length.checked_sub(1 + at);
    let stack = &sample.stack.frames;
    let frame = stack.get(from_the_end(stack.len(), frames)?)?;
    let class = class_of(sample, frame.kind.is_kernel());
    if frame.functions.is_empty() {
        return Some((frame.name().into(), class));
    }
    let function = frame.functions.get(from_the_end(frame.functions.len(), functions)?)?;
    Some((Arc::clone(&function.name), class))
}

/// Returns the step that shows where an incomplete stack ends, or that callers were guessed; `None` for a whole stack.
fn mark(sample: &MergedSample) -> Option<Step> {
    let text: Arc<str> = match (sample.stack.frames.is_empty(), sample.stack.unwind) {
        (true, Unwind::Shed) => "[no stack: shed]".into(),
        (true, _) => "[no stack]".into(),
        (false, Unwind::Whole) => return None,
        (false, Unwind::Guessed) => "[callers guessed]".into(),
        (false, unwind) => format!("[callers unknown: {}]", unwind.name()).into(),
    };
    Some((text, class_of(sample, false)))
}

/// Returns the class of a frame of this sample.
pub(super) fn class_of(sample: &MergedSample, kernel: bool) -> Class {
    let Activity::OffCpu { reason, .. } = &sample.activity else {
        return if kernel { Class::Kernel } else { Class::User };
    };
    match sample.judgement.as_deref() {
        None => Class::Waiting { reason: *reason, kernel },
        Some(Judgement::Trouble(cause)) => Class::Waiting { reason: cause.colour(), kernel },
        Some(Judgement::Unclear(_)) => Class::Unclear { kernel },
        Some(Judgement::Idle | Judgement::Parked) => Class::Idle { kernel },
    }
}

/// Returns the title of a recording: its only subject, or else the selector.
pub(super) fn title(merged: &Merged) -> String {
    match &*merged.subjects {
        [only] => only.name.to_string(),
        _ if merged.title == "all" => "all pods and cgroups".into(),
        _ => merged.title.clone(),
    }
}

/// Returns the labels of a subject.
pub(super) fn labels(name: &SubjectName) -> Vec<(&'static str, &str)> {
    match name {
        SubjectName::Cgroup(path) => vec![("cgroup", path)],
        SubjectName::Container { namespace, pod, container } => {
            vec![("namespace", namespace), ("pod", pod), ("container", container)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{fixture::*, grow::tree},
        *,
    };
    use crate::stacks::profile::{Frame, FrameKind, Mapping, Stack};

    #[test]
    fn a_frame_has_the_time_of_what_it_called() {
        let merged = recording(vec![
            wait(WaitReason::Disk, &["io_schedule"], &["read", "main"], 30),
            wait(WaitReason::Disk, &["io_schedule"], &["write", "main"], 50),
            wait(WaitReason::Pipe, &["pipe_read"], &["main"], 10),
        ]);
        let root = tree(&merged);
        assert_eq!((&*root.name, root.nanoseconds, root.count), ("/a", 90, 3));
        let [disk, pipe] = &*root.children else { panic!("{root:#?}") };
        assert_eq!((&*disk.name, disk.nanoseconds, &*pipe.name), ("disk", 80, "pipe"));
        let main = &disk.children[0];
        let callees: Vec<_> = main.children.iter().map(|node| (&*node.name, node.nanoseconds)).collect();
        assert_eq!((&*main.name, callees), ("main", vec![("write", 50), ("read", 30)]));
        let leaf = &main.children[0].children[0];
        assert_eq!(leaf.class, Class::Waiting { reason: WaitReason::Disk, kernel: true });
    }

    #[test]
    fn several_subjects_are_branches() {
        let mut merged = recording(vec![wait(WaitReason::Disk, &[], &["main"], 30)]);
        let mut other = merged.subjects[0].clone();
        other.name = SubjectName::Cgroup("/b".into());
        merged.subjects.push(other);
        let root = tree(&merged);
        assert_eq!((&*root.children[0].name, &*root.children[1].name), ("/a", "/b"));
        assert_eq!(&*root.children[0].children[0].name, "disk");
    }

    #[test]
    fn what_is_not_known_is_said() {
        let nameless = |kind| {
            let mapping = Mapping { path: "/usr/lib/libc.so.6".into(), ..Default::default() };
            Arc::new(Frame { address: 0x12ab, kind, mapping: Some(Arc::new(mapping)), functions: vec![] })
        };
        let mut sample = wait(WaitReason::Other, &[], &[], 1);
        let names =
            |sample: &MergedSample| -> Vec<String> { steps(sample).iter().map(|(name, _)| name.to_string()).collect() };
        assert_eq!(names(&sample), ["other", "[no stack]"]);
        let stack = Stack { frames: vec![nameless(FrameKind::Native)], unwind: Unwind::NoFramePointers };
        sample.stack = Arc::new(stack);
        assert_eq!(names(&sample), ["other", "[callers unknown: no_frame_pointers]", "libc.so.6+0x12ab"]);
        Arc::make_mut(&mut sample.stack).unwind = Unwind::Guessed;
        assert_eq!(names(&sample), ["other", "[callers guessed]", "libc.so.6+0x12ab"]);
    }

    #[test]
    fn inlined_functions_are_frames_of_their_own() {
        let names: Vec<_> = steps(&on_cpu(&["inner", "outer"], 1)).iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(names, ["outer", "inner"]);
    }

    #[test]
    fn one_step_after_the_other_is_all_of_them() {
        let ends = |unwind| {
            let mut sample = wait(WaitReason::Disk, &["io_schedule"], &["read", "main"], 1);
            Arc::make_mut(&mut sample.stack).unwind = unwind;
            sample
        };
        for sample in [
            ends(Unwind::Broken),
            ends(Unwind::Guessed),
            wait(WaitReason::Other, &[], &[], 1),
            on_cpu(&["inner", "outer"], 1),
        ] {
            let name = SubjectName::Cgroup("/a".into());
            let before = (0..steps_before(true, &sample)).filter_map(|at| step_of(&name, &sample, true, at, 0, 0));
            let frames = (0..sample.stack.frames.len()).flat_map(|frame| {
                let (name, sample) = (&name, &sample);
                (0..9)
                    .map_while(move |function| step_of(name, sample, false, 9, frame, function))
                    .take(sample.stack.frames.iter().rev().nth(frame).map_or(1, |frame| frame.functions.len().max(1)))
            });
            let mut expected = vec![(Arc::from("/a"), Class::All)];
            expected.extend(steps(&sample));
            assert_eq!(before.chain(frames).collect::<Vec<_>>(), expected);
        }
    }
}
