//! Why a thread waited, told from the kernel functions in which it did. Pure.

use std::sync::Arc;

use super::profile::{Frame, FrameKind, WaitState};

/// What a wait was for. The innermost kernel function that a row of the table names decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// Another thread of the program: locks, condition variables, joins, idle workers.
    Futex,
    /// Any of several files or events: epoll, poll, select, io_uring, eventfd.
    Poll,
    /// Storage: reads, writes, fsync, the file system's journal.
    Disk,
    /// A socket's peer.
    Network,
    /// A page of memory that had to be read or made, whoever touched it.
    PageFault,
    /// The other end of a pipe.
    Pipe,
    /// Time to pass.
    Sleep,
    /// Another thread in the kernel.
    KernelLock,
    /// A child process to end or to start its program.
    Child,
    /// The CPU: it was still runnable, but another task had it.
    Preempted,
    /// Something else, or the kernel functions have no names (`kernel.kptr_restrict`).
    Other,
}

/// One row a reason: the functions that wait for nothing else, without what the compiler adds to their names. Names of
/// several kernels stand side by side; a trailing `*` stands for any end.
const TABLE: &[(WaitReason, &[&str])] = &[
    (WaitReason::Futex, &["futex_*", "do_futex", "__futex_wait", "__x64_sys_futex", "__arm64_sys_futex"]),
    (
        WaitReason::Poll,
        &[
            "ep_poll",
            "do_epoll_wait",
            "do_poll",
            "do_sys_poll",
            "do_select",
            "io_cqring_wait",
            "read_events",
            "eventfd_read",
        ],
    ),
    (
        WaitReason::Disk,
        &[
            "io_schedule*",
            "bit_wait_io*",
            "folio_wait_*",
            "wait_on_page_*",
            "__wait_on_buffer",
            "submit_bio_wait",
            "blk_mq_get_tag",
            "blk_execute_rq",
            "rq_qos_wait",
            "blkdev_*",
            "wait_for_completion_io*",
            "balance_dirty_pages*",
            "jbd2_*",
            "xfs_log_*",
            "btrfs_*",
            "file_write_and_wait_range",
            "wb_wait_for_completion",
        ],
    ),
    (
        WaitReason::Network,
        &[
            "sk_wait_data",
            "sk_stream_wait_*",
            "__lock_sock",
            "lock_sock_nested",
            "__skb_wait_for_more_packets",
            "sock_alloc_send_pskb",
            "unix_stream_*",
            "unix_dgram_*",
            "inet_csk_accept",
            "inet_csk_wait_for_connect",
            "inet_wait_for_connect",
            "__inet_stream_connect",
            "tcp_*",
            "udp_*",
            "sock_recvmsg*",
            "sock_sendmsg*",
            "sock_read_iter",
            "sock_write_iter",
            "__sys_accept4",
            "__sys_connect",
            "rpc_wait_*",
        ],
    ),
    (
        WaitReason::PageFault,
        &[
            "handle_mm_fault",
            "handle_userfault",
            "do_user_addr_fault",
            "exc_page_fault",
            "do_page_fault",
            "do_mem_abort",
        ],
    ),
    (WaitReason::Pipe, &["pipe_*", "anon_pipe_*", "fifo_open", "wait_for_partner"]),
    (WaitReason::Sleep, &["hrtimer_nanosleep", "do_nanosleep", "common_nsleep*", "timerfd_read*"]),
    (
        WaitReason::KernelLock,
        &[
            "mutex_lock*",
            "__mutex_lock*",
            "rwsem_down_*",
            "down_read*",
            "down_write*",
            "down_interruptible",
            "down_killable",
            "__down*",
            "percpu_rwsem_wait",
            "percpu_down_*",
            "__percpu_down_read",
            "rt_mutex_*",
            "rtlock_*",
            "synchronize_rcu*",
            "__wait_rcu_gp",
            "synchronize_srcu*",
        ],
    ),
    (WaitReason::Child, &["do_wait", "kernel_wait4", "kernel_waitid", "wait_for_vfork_done", "kernel_clone"]),
];

impl WaitReason {
    /// In the order of the type.
    pub const ALL: [Self; 11] = [
        Self::Futex,
        Self::Poll,
        Self::Disk,
        Self::Network,
        Self::PageFault,
        Self::Pipe,
        Self::Sleep,
        Self::KernelLock,
        Self::Child,
        Self::Preempted,
        Self::Other,
    ];

    /// What a wait in `state` with these frames, leaf first, was for.
    #[must_use]
    pub fn of(state: WaitState, frames: &[Arc<Frame>]) -> Self {
        if state == WaitState::Preempted {
            return Self::Preempted;
        }
        let kernel = frames.iter().filter(|frame| frame.kind == FrameKind::Kernel);
        let mut reasons = kernel.flat_map(|frame| &frame.functions).filter_map(|function| named(&function.name));
        match reasons.next() {
            // A page of a file that is not in memory: what was asked for is the page.
            Some(Self::Disk) if reasons.any(|outer| outer == Self::PageFault) => Self::PageFault,
            Some(reason) => reason,
            None => Self::Other,
        }
    }

    /// The label value in profiles.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Futex => "futex",
            Self::Poll => "poll",
            Self::Disk => "disk",
            Self::Network => "network",
            Self::PageFault => "page_fault",
            Self::Pipe => "pipe",
            Self::Sleep => "sleep",
            Self::KernelLock => "kernel_lock",
            Self::Child => "child",
            Self::Preempted => "preempted",
            Self::Other => "other",
        }
    }
}

fn named(function: &str) -> Option<WaitReason> {
    // `do_poll.constprop.0`
    let function = function.split('.').next().unwrap_or(function);
    let is = |name: &&str| name.strip_suffix('*').map_or(*name == function, |start| function.starts_with(start));
    TABLE.iter().find(|(_, functions)| functions.iter().any(is)).map(|(reason, _)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::profile::Function;

    fn reason(functions: &[&str]) -> WaitReason {
        let frame = |name: &&str| {
            let functions = vec![Function { name: (*name).into(), file: "".into(), line: 0 }];
            Arc::new(Frame { address: 1, kind: FrameKind::Kernel, mapping: None, functions })
        };
        let frames: Vec<_> = functions.iter().map(frame).collect();
        WaitReason::of(WaitState::Interruptible, &frames)
    }

    /// Stacks as kernels from 6.1 to 6.18 give them.
    #[test]
    fn the_innermost_function_of_the_table_decides() {
        let entry = ["do_syscall_64", "entry_SYSCALL_64_after_hwframe"];
        for (functions, expected) in [
            (&["futex_wait_queue", "__futex_wait", "futex_wait", "do_futex"][..], WaitReason::Futex),
            (&["schedule_hrtimeout_range", "ep_poll", "do_epoll_wait"], WaitReason::Poll),
            (&["schedule_hrtimeout_range_clock", "do_poll.constprop.0", "do_sys_poll"], WaitReason::Poll),
            (&["io_schedule", "folio_wait_bit_common", "filemap_read", "vfs_read"], WaitReason::Disk),
            (&["jbd2_log_wait_commit", "ext4_sync_file", "do_fsync"], WaitReason::Disk),
            (&["schedule_timeout", "wait_woken", "sk_wait_data", "tcp_recvmsg_locked"], WaitReason::Network),
            (&["schedule_timeout", "unix_stream_read_generic", "sock_recvmsg"], WaitReason::Network),
            (&["io_schedule", "folio_wait_bit_common", "filemap_fault", "handle_mm_fault"], WaitReason::PageFault),
            (&["anon_pipe_read", "vfs_read"], WaitReason::Pipe),
            (&["do_nanosleep", "hrtimer_nanosleep", "common_nsleep"], WaitReason::Sleep),
            (&["schedule_preempt_disabled", "__mutex_lock.constprop.0", "pipe_read"], WaitReason::KernelLock),
            (&["rwsem_down_read_slowpath", "down_read", "do_user_addr_fault"], WaitReason::KernelLock),
            (&["do_wait", "kernel_wait4"], WaitReason::Child),
            (&["schedule_timeout", "wait_for_completion_state", "kernel_clone"], WaitReason::Child),
            (&["do_sigtimedwait", "__x64_sys_rt_sigtimedwait"], WaitReason::Other),
            (&[], WaitReason::Other),
        ] {
            let functions = [&["__schedule", "schedule"], functions, &entry].concat();
            assert_eq!(reason(&functions), expected, "{functions:?}");
        }
    }

    #[test]
    fn a_user_function_with_a_kernel_functions_name_decides_nothing() {
        let frame = Frame {
            address: 1,
            kind: FrameKind::Native,
            mapping: None,
            functions: vec![Function { name: "do_wait".into(), file: "".into(), line: 0 }],
        };
        assert_eq!(WaitReason::of(WaitState::Interruptible, &[Arc::new(frame)]), WaitReason::Other);
    }

    #[test]
    fn who_was_preempted_waited_for_the_cpu() {
        assert_eq!(WaitReason::of(WaitState::Preempted, &[]), WaitReason::Preempted);
    }

    #[test]
    fn no_row_hides_behind_another() {
        for (reason, functions) in TABLE {
            for function in *functions {
                let name = function.trim_end_matches('*');
                assert_eq!(named(name), Some(*reason), "{function}");
            }
        }
    }
}
