//! Builds a tree of frames from samples: callers, callees and their times. Pure.
//!
//! Only frames that will be visible become nodes. The widest frame is expanded first: its samples are grouped by the
//! function that they call next. Narrow callees are merged into one at once, and wide ones wait for their turn by their
//! width. So memory is a few words a sample and a bounded number of nodes, for any number and depth of stacks.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    ops::Range,
    sync::Arc,
};

use super::{
    tree::{Class, Node, Smaller, Step, class_of, step_of, steps_before, title},
    usual::Usual,
};
use crate::recording::{Merged, MergedSample, SubjectName, smaller};

/// The most frames of a picture: browsers become slow with more.
pub(super) const MOST_FRAMES: usize = 12_000;
/// Frames with less than this part of the total time are merged: they would be narrower than a pixel.
pub(super) const NARROWEST: u64 = 2_000;

/// Returns the tree of a recording. With several subjects, each has a branch.
pub(super) fn tree(merged: &Merged) -> Node {
    let mut entries: Vec<Entry<'_>> = merged.samples().map(|(name, sample)| Entry::new(name, sample)).collect();
    let whole = Smaller::of(&entries);
    let mut growing = Growing {
        several: merged.subjects.len() > 1,
        least: (whole.nanoseconds / NARROWEST).max(1),
        nodes: Vec::new(),
        waiting: BinaryHeap::new(),
        numbered: 0,
        merging: 0,
        by_place: HashMap::new(),
        by_step: HashMap::new(),
    };
    let root = (title(merged).into(), Class::All);
    growing.wait(0, root, whole, 0..entries.len());
    while growing.nodes.len() + growing.merging + growing.waiting.len() < MOST_FRAMES
        && let Some(Waiting { parent, step, sum, range, .. }) = growing.waiting.pop()
    {
        growing.look_into(parent, step, sum, range, &mut entries);
    }
    growing.finish()
}

/// A sample, and the position in its stack that the tree has reached.
#[derive(Clone, Copy)]
struct Entry<'a> {
    name: &'a SubjectName,
    sample: &'a MergedSample,
    /// Number of steps before the frames that were taken.
    steps: u8,
    frames: u32,
    /// Number of functions of the next frame that were taken.
    functions: u32,
    /// The frames that are shown as one.
    usual: Usual,
}

impl<'a> Entry<'a> {
    fn new(name: &'a SubjectName, sample: &'a MergedSample) -> Self {
        Self { name, sample, steps: 0, frames: 0, functions: 0, usual: Usual::of(&sample.stack.frames) }
    }

    /// Returns the key of the next step, equal for equal steps; `None` at the end.
    fn next(&self, several: bool) -> Option<(usize, usize)> {
        if self.steps < steps_before(several, self.sample) {
            let of_subject = several && self.steps == 0;
            // Steps before the frames are few, and are distinguished by their names.
            return of_subject.then(|| (std::ptr::from_ref(self.name).addr(), usize::MAX)).or(Some((0, 0)));
        }
        if self.usual.comes_after(self.frames) {
            // No address is as small.
            return Some((self.usual.count(), usize::MAX));
        }
        let frames = &self.sample.stack.frames;
        let at = frames.len().checked_sub(1 + self.frames as usize)?;
        let frame = frames.get(at).filter(|_| at >= self.usual.leave())?;
        Some((Arc::as_ptr(frame).addr(), self.functions as usize))
    }

    fn step(&self, several: bool) -> Option<Step> {
        if self.steps >= steps_before(several, self.sample) && self.usual.comes_after(self.frames) {
            return Some((self.usual.name().into(), class_of(self.sample, true)));
        }
        step_of(self.name, self.sample, several, self.steps, self.frames as usize, self.functions as usize)
    }

    fn go_on(&mut self, several: bool) {
        if self.steps < steps_before(several, self.sample) {
            self.steps += 1;
            return;
        }
        if self.usual.comes_after(self.frames) {
            self.frames += self.usual.enter();
            return;
        }
        let frames = &self.sample.stack.frames;
        let frame = frames.len().checked_sub(1 + self.frames as usize).and_then(|at| frames.get(at));
        self.functions += 1;
        if frame.is_none_or(|frame| self.functions as usize >= frame.functions.len()) {
            (self.frames, self.functions) = (self.frames + 1, 0);
        }
    }
}

/// A frame that is not expanded yet. The widest frame comes first; of equally wide frames the one found first.
struct Waiting {
    parent: usize,
    step: Step,
    sum: Smaller,
    range: Range<usize>,
    number: Reverse<usize>,
}

impl Waiting {
    const fn order(&self) -> (u64, Reverse<usize>) {
        (self.sum.nanoseconds, self.number)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// A function that samples of a frame call next.
struct Callee<'a> {
    step: Step,
    sum: Smaller,
    entries: Vec<Entry<'a>>,
}

struct Growing {
    several: bool,
    least: u64,
    /// Nodes with the index of their parent, which is smaller than their own.
    nodes: Vec<(usize, Node)>,
    waiting: BinaryHeap<Waiting>,
    numbered: usize,
    /// Number of nodes that have a frame for merged callees.
    merging: usize,
    /// Tables that are reused from node to node.
    by_place: HashMap<(usize, usize), usize>,
    by_step: HashMap<Step, usize>,
}

impl Growing {
    fn wait(&mut self, parent: usize, step: Step, sum: Smaller, range: Range<usize>) {
        self.waiting.push(Waiting { parent, step, sum, range, number: Reverse(self.numbered) });
        self.numbered += 1;
    }

    /// Makes a node, and groups its entries by the function that they call.
    fn look_into(
        &mut self,
        parent: usize,
        (name, class): Step,
        sum: Smaller,
        range: Range<usize>,
        all: &mut [Entry<'_>],
    ) {
        let this = self.nodes.len();
        let Some(entries) = all.get_mut(range.clone()) else { return };
        let callees = self.callees(entries);
        let mut merged = Smaller::default();
        let mut at = range.start;
        for callee in callees {
            if callee.sum.nanoseconds < self.least {
                merged.add(1, &callee.sum);
                continue;
            }
            let end = at + callee.entries.len();
            if let Some(place) = all.get_mut(at..end) {
                place.copy_from_slice(&callee.entries);
            }
            self.wait(this, callee.step, callee.sum, at..end);
            at = end;
        }
        self.merging += usize::from(merged.nanoseconds >= self.least);
        let Smaller { nanoseconds, count, .. } = sum;
        self.nodes.push((parent, Node { name, class, nanoseconds, count, children: Vec::new(), smaller: merged }));
    }

    fn callees<'a>(&mut self, entries: &[Entry<'a>]) -> Vec<Callee<'a>> {
        self.by_place.clear();
        self.by_step.clear();
        let mut callees: Vec<Callee<'a>> = Vec::new();
        for entry in entries {
            let Some(place) = entry.next(self.several) else { continue };
            // A step without a key is found by its name. So is a step with a new key.
            let known = if place == (0, 0) { None } else { self.by_place.get(&place).copied() };
            let callee = match known {
                Some(callee) => callee,
                None => {
                    let Some(step) = entry.step(self.several) else { continue };
                    let callee = *self.by_step.entry(step.clone()).or_insert_with(|| {
                        callees.push(Callee { step, sum: Smaller::default(), entries: Vec::new() });
                        callees.len() - 1
                    });
                    self.by_place.insert(place, callee);
                    callee
                }
            };
            let Some(callee) = callees.get_mut(callee) else { continue };
            let mut entry = *entry;
            entry.go_on(self.several);
            callee.sum.add(0, &Smaller::of(&[entry]));
            callee.entries.push(entry);
        }
        callees
    }

    /// Merges the waiting frames, for which there is no room, and moves nodes to their parents.
    fn finish(mut self) -> Node {
        for Waiting { parent, sum, .. } in self.waiting.drain() {
            if let Some((_, parent)) = self.nodes.get_mut(parent) {
                parent.smaller.add(1, &sum);
            }
        }
        let least = self.least;
        while let Some((parent, mut node)) = self.nodes.pop() {
            node.children.sort_by(|a, b| b.nanoseconds.cmp(&a.nanoseconds).then_with(|| a.name.cmp(&b.name)));
            let Smaller { branches, nanoseconds, count } = node.smaller;
            if branches > 0 && nanoseconds >= least {
                let (name, class) = (smaller(branches).into(), node.class);
                node.children.push(Node { name, class, nanoseconds, count, ..Node::default() });
            }
            match self.nodes.get_mut(parent) {
                Some((_, parent)) => parent.children.push(node),
                None => return node,
            }
        }
        Node::default()
    }
}

impl Smaller {
    fn of(entries: &[Entry<'_>]) -> Self {
        let mut sum = Self::default();
        for Entry { sample, .. } in entries {
            sum.add(0, &Self { branches: 0, nanoseconds: sample.nanoseconds, count: sample.count });
        }
        sum
    }

    fn add(&mut self, branches: u64, other: &Self) {
        self.branches += branches;
        self.nanoseconds = self.nanoseconds.saturating_add(other.nanoseconds);
        self.count = self.count.saturating_add(other.count);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::model::wait::WaitReason;

    fn nodes(node: &Node) -> usize {
        1 + node.children.iter().map(nodes).sum::<usize>()
    }

    /// Checks that callees have no more time than their caller, and that the missing time is too little to be visible.
    fn ensure_exact(node: &Node, least: u64) {
        let named: u64 = node.children.iter().map(|child| child.nanoseconds).sum();
        assert!(named <= node.nanoseconds, "{}: {named} of {}", node.name, node.nanoseconds);
        let shown = node.children.last().is_some_and(|last| last.nanoseconds == node.smaller.nanoseconds);
        assert!(node.smaller.branches == 0 || shown || node.smaller.nanoseconds < least, "{}", node.name);
        node.children.iter().for_each(|child| ensure_exact(child, least));
    }

    #[test]
    fn branches_too_thin_to_see_are_one_frame_with_all_their_time() {
        let mut samples = vec![wait(WaitReason::Disk, &[], &["wide", "main"], 9_000)];
        let names: Vec<String> = (0..1000).map(|number| format!("thin_{number}")).collect();
        samples.extend(names.iter().map(|name| wait(WaitReason::Disk, &[], &["leaf", name, "main"], 1)));
        let root = tree(&recording(samples));
        let main = &root.children[0].children[0];
        let [wide, thin] = &*main.children else { panic!("{main:#?}") };
        assert_eq!((&*wide.name, wide.nanoseconds, &*main.name, main.nanoseconds), ("wide", 9_000, "main", 10_000));
        assert_eq!((&*thin.name, thin.nanoseconds, thin.count), ("(1000 smaller)", 1_000, 1_000));
        assert!(thin.children.is_empty());
        ensure_exact(&root, 5);
    }

    #[test]
    fn a_tree_of_many_deep_and_varied_stacks_is_bounded() {
        // Apart from the outermost functions, no two stacks have a function in common.
        let stacks = (0..5_000_u64).map(|stack| {
            let depth = 120;
            let names: Vec<String> = (0..depth).map(|frame| format!("f{stack}_{frame}")).collect();
            let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
            names.extend([["a", "b", "c"][usize::try_from(stack % 3).unwrap()], "main"]);
            wait(WaitReason::Disk, &["schedule"], &names, 1 + stack % 5 * (stack % 11))
        });
        let merged = recording(stacks.collect());
        let root = tree(&merged);
        assert_eq!((root.nanoseconds, root.count), (merged.nanoseconds(), merged.count()));
        assert!(nodes(&root) <= MOST_FRAMES, "{}", nodes(&root));
        ensure_exact(&root, root.nanoseconds / NARROWEST);
        let main = &root.children[0].children[0];
        let outer: Vec<_> = main.children.iter().map(|child| &*child.name).collect();
        assert!(["a", "b", "c"].iter().all(|name| outer.contains(name)), "{outer:?}");
        let named = |node: &Node| node.children.iter().filter(|child| child.name.starts_with('f')).count() as u64;
        let all: u64 = main.children.iter().map(|child| named(child) + child.smaller.branches).sum();
        assert_eq!(all, 5_000);
    }

    #[test]
    fn wide_frames_come_before_narrow_ones_when_there_is_no_room_for_all() {
        let samples = (0..1000_u64).map(|stack| {
            let names: Vec<String> = (0..60).map(|depth| format!("f{stack}_{depth}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            wait(WaitReason::Disk, &[], &names, 1000 + stack)
        });
        let root = tree(&recording(samples.collect()));
        let all = nodes(&root);
        assert!((MOST_FRAMES - 1000..=MOST_FRAMES).contains(&all), "{all}");
        let disk = &root.children[0];
        assert!(disk.children.iter().any(|child| &*child.name == "f999_59" && child.children.len() == 1));
        ensure_exact(&root, root.nanoseconds / NARROWEST);
    }
}
