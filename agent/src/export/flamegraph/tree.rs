//! Samples into a tree of frames: who called what, and for how long. Pure.

use std::{collections::HashMap, sync::Arc};

use crate::{
    recording::{Merged, MergedSample, SubjectName},
    stacks::{
        profile::{Activity, FrameKind, Unwind},
        reason::WaitReason,
    },
};

/// What a frame is, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Class {
    /// All time, or that of one subject.
    All,
    /// Code in which a thread waited.
    Waiting {
        /// What for.
        reason: WaitReason,
        /// Whether it is the kernel's code.
        kernel: bool,
    },
    /// The program's code.
    User,
    /// The kernel's.
    Kernel,
}

/// One step of a stack.
pub(super) type Step = (Arc<str>, Class);

/// A frame, with what was in it and in those that it called.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: Arc<str>,
    pub(super) class: Class,
    pub(super) nanoseconds: u64,
    pub(super) count: u64,
    /// The longest first.
    pub(super) children: Vec<Self>,
}

/// The steps of a sample, outermost first: what it was for, then the functions.
pub(super) fn steps(sample: &MergedSample) -> Vec<Step> {
    let mut steps = Vec::with_capacity(sample.stack.frames.len() + 2);
    let reason = match &sample.activity {
        Activity::OnCpu => None,
        Activity::OffCpu { reason, .. } => Some(*reason),
    };
    let class = |kernel| match (reason, kernel) {
        (Some(reason), kernel) => Class::Waiting { reason, kernel },
        (None, true) => Class::Kernel,
        (None, false) => Class::User,
    };
    if let Some(reason) = reason {
        steps.push((reason.name().into(), class(false)));
    }
    if sample.stack.frames.is_empty() {
        steps.push(("[no stack]".into(), class(false)));
    } else if sample.stack.unwind != Unwind::Whole {
        steps.push((format!("[callers unknown: {}]", sample.stack.unwind.name()).into(), class(false)));
    }
    for frame in sample.stack.frames.iter().rev() {
        let class = class(frame.kind == FrameKind::Kernel);
        if frame.functions.is_empty() {
            steps.push((frame.name().into(), class));
        }
        steps.extend(frame.functions.iter().rev().map(|function| (Arc::clone(&function.name), class)));
    }
    steps
}

/// The tree of a recording. With several subjects, each has a branch.
pub(super) fn tree(merged: &Merged) -> Node {
    let several = merged.subjects.len() > 1;
    let mut root = Growing::default();
    for (name, sample) in merged.samples() {
        let mut node = root.grow(sample);
        if several {
            node = node.child((name.to_string().into(), Class::All)).grow(sample);
        }
        for step in steps(sample) {
            node = node.child(step).grow(sample);
        }
    }
    root.finish((title(merged).into(), Class::All))
}

/// Whose it is: the only subject, or what was asked for.
pub(super) fn title(merged: &Merged) -> String {
    match &*merged.subjects {
        [only] => only.name.to_string(),
        _ if merged.title == "all" => "all pods and cgroups".into(),
        _ => merged.title.clone(),
    }
}

/// The labels of a subject.
pub(super) fn labels(name: &SubjectName) -> Vec<(&'static str, &str)> {
    match name {
        SubjectName::Cgroup(path) => vec![("cgroup", path)],
        SubjectName::Container { namespace, pod, container } => {
            vec![("namespace", namespace), ("pod", pod), ("container", container)]
        }
    }
}

#[derive(Debug, Default)]
struct Growing {
    nanoseconds: u64,
    count: u64,
    children: HashMap<Step, Self>,
}

impl Growing {
    fn grow(&mut self, sample: &MergedSample) -> &mut Self {
        self.nanoseconds = self.nanoseconds.saturating_add(sample.nanoseconds);
        self.count = self.count.saturating_add(sample.count);
        self
    }

    fn child(&mut self, step: Step) -> &mut Self {
        self.children.entry(step).or_default()
    }

    /// Stacks have a few hundred frames at most.
    fn finish(self, (name, class): Step) -> Node {
        let mut children: Vec<_> = self.children.into_iter().map(|(step, child)| child.finish(step)).collect();
        children.sort_by(|a, b| b.nanoseconds.cmp(&a.nanoseconds).then_with(|| a.name.cmp(&b.name)));
        Node { name, class, nanoseconds: self.nanoseconds, count: self.count, children }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::stacks::profile::{Frame, Mapping, Stack};

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
    }

    #[test]
    fn inlined_functions_are_frames_of_their_own() {
        let names: Vec<_> = steps(&on_cpu(&["inner", "outer"], 1)).iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(names, ["outer", "inner"]);
    }
}
