//! The functions of the kernel that nearly every stack has: those that enter it, and those that give up the CPU. A
//! picture shows them as one frame, so that its rows are left for the functions that differ. Pure.

use std::sync::Arc;

use crate::stacks::profile::Frame;

/// The functions before that of the system call on x86-64 and on arm64, and those in which kernel threads begin.
const ENTER: [&str; 13] = [
    "entry_SYSCALL_64_after_hwframe",
    "entry_SYSCALL_64",
    "do_syscall_64",
    "x64_sys_call",
    "el0t_64_sync",
    "el0t_64_sync_handler",
    "el0_svc",
    "do_el0_svc",
    "el0_svc_common",
    "invoke_syscall",
    "ret_from_fork_asm",
    "ret_from_fork",
    "kthread",
];
/// The functions that give up the CPU.
const LEAVE: [&str; 2] = ["__schedule", "schedule"];

/// The frames of a stack that a picture shows as one, in the place where the stack enters the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usual {
    /// The index of the first of them, counted from the outermost frame on.
    first: u16,
    /// The number of frames that enter the kernel. 0 if nothing is folded.
    enter: u8,
    /// The number of frames at the leaf that give up the CPU.
    leave: u8,
}

impl Usual {
    /// Returns what to fold in a stack, whose frames are leaf first. A single frame stays as it is.
    pub(super) fn of(frames: &[Arc<Frame>]) -> Self {
        let kernel = frames.iter().take_while(|frame| frame.kind.is_kernel()).count();
        let of_kernel = || frames.iter().take(kernel);
        let enter = of_kernel().rev().take_while(|frame| is_one_of(frame, &ENTER)).count();
        let leave = of_kernel().take_while(|frame| is_one_of(frame, &LEAVE)).count();
        if enter == 0 || enter + leave < 2 {
            return Self::default();
        }
        match (u16::try_from(frames.len() - kernel), u8::try_from(enter), u8::try_from(leave)) {
            (Ok(first), Ok(enter), Ok(leave)) => Self { first, enter, leave },
            _ => Self::default(),
        }
    }

    /// Returns whether the folded frame comes after so many frames, counted from the outermost one.
    pub(super) fn comes_after(self, frames: u32) -> bool {
        self.enter > 0 && frames == u32::from(self.first)
    }

    /// Returns the number of frames that enter the kernel.
    pub(super) fn enter(self) -> u32 {
        self.enter.into()
    }

    /// Returns the number of frames at the leaf that are folded.
    pub(super) fn leave(self) -> usize {
        self.leave.into()
    }

    /// Returns the number of all folded frames.
    pub(super) fn count(self) -> usize {
        usize::from(self.enter) + usize::from(self.leave)
    }

    /// Returns the name of the frame that stands for them.
    pub(super) fn name(self) -> String {
        format!("({} usual kernel frames)", self.count())
    }
}

/// Returns whether a frame is one of these functions. Compilers add suffixes such as `.constprop.0`.
fn is_one_of(frame: &Frame, names: &[&str]) -> bool {
    let is_listed = |name: &str| name.split('.').next().is_some_and(|plain| names.contains(&plain));
    frame.functions.first().is_some_and(|function| is_listed(&function.name))
}

#[cfg(test)]
mod tests {
    use super::super::{fixture::*, folded::folded, grow::tree, tree::Node};
    use crate::model::wait::WaitReason;

    /// Returns the names of a tower, from the outermost frame below the reason on.
    fn tower(kernel: &[&str], user: &[&str]) -> Vec<String> {
        fn walk(node: &Node, names: &mut Vec<String>) {
            let [child] = &*node.children else { return };
            names.push(child.name.to_string());
            walk(child, names);
        }
        let mut names = Vec::new();
        walk(&tree(&recording(vec![wait(WaitReason::Futex, kernel, user, 42)])), &mut names);
        names.split_off(1)
    }

    const KERNEL: [&str; 6] =
        ["__schedule", "schedule", "futex_wait", "__x64_sys_futex", "do_syscall_64", "entry_SYSCALL_64_after_hwframe"];

    #[test]
    fn the_frames_that_each_tower_has_are_one_and_no_file_lacks_them() {
        let expected = ["main", "read", "(4 usual kernel frames)", "__x64_sys_futex", "futex_wait"];
        assert_eq!(tower(&KERNEL, &["read", "main"]), expected);
        let folded = folded(&recording(vec![wait(WaitReason::Futex, &KERNEL, &["main"], 42)]));
        let names: Vec<_> = KERNEL.iter().rev().copied().collect();
        assert_eq!(folded, format!("/a;futex;main;{} 42\n", names.join(";")));
    }

    #[test]
    fn suffixes_of_compilers_and_threads_of_the_kernel_are_known() {
        let arm64 = ["schedule", "do_nanosleep", "invoke_syscall.constprop.0", "el0_svc", "el0t_64_sync"];
        assert_eq!(tower(&arm64, &["main"]), ["main", "(4 usual kernel frames)", "do_nanosleep"]);
        let thread = ["__schedule", "schedule", "worker_thread", "kthread", "ret_from_fork", "ret_from_fork_asm"];
        assert_eq!(tower(&thread, &[]), ["(5 usual kernel frames)", "worker_thread"]);
    }

    #[test]
    fn a_frame_alone_and_one_of_a_program_stay() {
        let tower_of = |kernel: &[&str], user: &[&str]| {
            let whole: Vec<_> = user.iter().rev().chain(kernel.iter().rev()).map(ToString::to_string).collect();
            assert_eq!(tower(kernel, user), whole);
        };
        tower_of(&["io_schedule", "do_syscall_64"], &["main"]);
        tower_of(&["__schedule", "schedule", "io_schedule"], &["main"]);
        tower_of(&["pipe_read"], &["schedule", "kthread", "ret_from_fork"]);
    }

    #[test]
    fn towers_that_differ_only_in_their_program_share_no_time() {
        let samples = vec![
            wait(WaitReason::Futex, &KERNEL, &["a", "main"], 30),
            wait(WaitReason::Futex, &KERNEL, &["b", "main"], 12),
            wait(WaitReason::Futex, &KERNEL, &["a", "main"], 8),
        ];
        let root = tree(&recording(samples));
        let main = &root.children[0].children[0];
        let callees: Vec<_> = main.children.iter().map(|node| (&*node.name, node.children[0].nanoseconds)).collect();
        assert_eq!(callees, [("a", 38), ("b", 12)]);
        assert_eq!(&*main.children[0].children[0].name, "(4 usual kernel frames)");
        assert_eq!(main.children[0].children[0].children.len(), 1, "{main:#?}");
    }
}
