//! Finds the reason of a wait from the kernel functions on its stack. Pure.

use std::collections::HashMap;

use crate::model::wait::WaitReason;

/// One row per reason: functions that wait only for this reason, without suffixes of the compiler. A row contains the
/// names of several kernel versions; a trailing `*` stands for any rest.
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
            // Idle threads of io_uring. A busy io_uring thread waits for the reason of its work.
            "io_wq_worker",
            "io_sq_thread",
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
            // FUSE, 9P, SMB and Ceph. An idle FUSE server waits in another function.
            "request_wait_answer",
            "p9_client_rpc",
            "wait_for_response",
            "ceph_mdsc_wait_request",
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
    (
        WaitReason::Stopped,
        &["do_signal_stop", "ptrace_stop", "do_jobctl_trap", "do_freezer_trap", "get_signal", "__refrigerator"],
    ),
    (WaitReason::MemoryLimit, &["mem_cgroup_handle_over_high", "__mem_cgroup_handle_over_high"]),
];

/// The table, prepared for a lookup of each function of a kernel.
struct Names {
    whole: HashMap<&'static str, WaitReason>,
    /// Beginnings of names, by their first byte.
    beginnings: HashMap<u8, Vec<(&'static str, WaitReason)>>,
}

impl Names {
    fn new() -> Self {
        let mut names = Self { whole: HashMap::new(), beginnings: HashMap::new() };
        for (reason, functions) in TABLE {
            for function in *functions {
                match function.strip_suffix('*') {
                    Some(beginning) => {
                        let first = beginning.bytes().next().unwrap_or_default();
                        names.beginnings.entry(first).or_default().push((beginning, *reason));
                    }
                    None => {
                        names.whole.insert(function, *reason);
                    }
                }
            }
        }
        names
    }

    fn reason(&self, function: &str) -> Option<WaitReason> {
        // `do_poll.constprop.0`
        let function = function.split('.').next().unwrap_or(function);
        let beginnings = || self.beginnings.get(&function.bytes().next()?);
        self.whole.get(function).copied().or_else(|| {
            beginnings()?.iter().find(|(beginning, _)| function.starts_with(beginning)).map(|(_, reason)| *reason)
        })
    }
}

/// The addresses of the table's functions in the running kernel.
#[derive(Debug, Default)]
pub struct Reasons {
    /// The start, the end and the reason of each range of addresses, in order.
    ranges: Vec<(u64, u64, WaitReason)>,
}

/// The assumed length of the kernel's last function, in bytes.
const LONGEST_FUNCTION: u64 = 1 << 16;

impl Reasons {
    /// Builds the ranges from the address and the name of every kernel function, in any order.
    pub fn new<'a>(functions: impl Iterator<Item = (u64, &'a str)>) -> Self {
        let names = Names::new();
        let mut found: Vec<_> = functions.map(|(address, name)| (address, names.reason(name))).collect();
        // If several names share an address, a name in the table wins.
        found.sort_unstable_by_key(|(address, reason)| (*address, reason.is_none()));
        found.dedup_by_key(|(address, _)| *address);
        let ends = found.iter().skip(1).map(|(address, _)| Some(*address)).chain([None]);
        let ranges = found.iter().zip(ends).filter_map(|((start, reason), end)| {
            Some((*start, end.unwrap_or(start.saturating_add(LONGEST_FUNCTION)), (*reason)?))
        });
        Self { ranges: ranges.collect() }
    }

    /// Returns the reason of a wait with these return addresses in the kernel, leaf first.
    #[must_use]
    pub fn of(&self, kernel: &[u64]) -> WaitReason {
        let mut reasons = kernel.iter().filter_map(|address| self.at(*address));
        match reasons.next() {
            // The thread needs a page of a file that is not in memory, so the page fault is the reason.
            Some(WaitReason::Disk) if reasons.any(|outer| outer == WaitReason::PageFault) => WaitReason::PageFault,
            Some(reason) => reason,
            None if self.is_empty() => WaitReason::Unknown,
            None => WaitReason::Other,
        }
    }

    /// Returns true if no function is known, because the kernel hides them.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    fn at(&self, returns_to: u64) -> Option<WaitReason> {
        // The return address may already be the next function; the call is before it.
        let call = returns_to.checked_sub(1)?;
        let after = self.ranges.partition_point(|(start, ..)| *start <= call);
        let (_, end, reason) = self.ranges.get(after.checked_sub(1)?)?;
        (call < *end).then_some(*reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the reason for a kernel with these functions, each 16 bytes long, and `futex_wait`. Its only stack contains
    /// all of them, leaf first.
    fn reason(functions: &[&str]) -> WaitReason {
        let address = |index: usize| 0xffff_ffff_8100_0000 + 16 * u64::try_from(index).unwrap();
        let kernel = functions.iter().enumerate().map(|(index, name)| (address(index), *name));
        let reasons = Reasons::new(kernel.chain([(address(functions.len()), "futex_wait")]));
        let stack: Vec<u64> = (0..functions.len()).map(|index| address(index) + 8).collect();
        reasons.of(&stack)
    }

    /// Stacks of kernels from 6.1 to 6.18.
    #[test]
    fn the_innermost_function_of_the_table_decides() {
        let entry = ["do_syscall_64", "entry_SYSCALL_64_after_hwframe"];
        for (functions, expected) in [
            (&["futex_wait_queue", "__futex_wait", "futex_wait", "do_futex"][..], WaitReason::Futex),
            (&["schedule_hrtimeout_range", "ep_poll", "do_epoll_wait"], WaitReason::Poll),
            (&["schedule_hrtimeout_range_clock", "do_poll.constprop.0", "do_sys_poll"], WaitReason::Poll),
            (&["io_schedule", "folio_wait_bit_common", "filemap_read", "vfs_read"], WaitReason::Disk),
            (&["request_wait_answer", "__fuse_simple_request", "fuse_readahead", "read_pages"], WaitReason::Disk),
            (&["fuse_dev_do_read", "fuse_dev_read", "vfs_read"], WaitReason::Other),
            (&["jbd2_log_wait_commit", "ext4_sync_file", "do_fsync"], WaitReason::Disk),
            (&["schedule_timeout", "wait_woken", "sk_wait_data", "tcp_recvmsg_locked"], WaitReason::Network),
            (&["schedule_timeout", "unix_stream_read_generic", "sock_recvmsg"], WaitReason::Network),
            (&["io_schedule", "folio_wait_bit_common", "filemap_fault", "handle_mm_fault"], WaitReason::PageFault),
            (&["anon_pipe_read", "vfs_read"], WaitReason::Pipe),
            (&["do_nanosleep", "hrtimer_nanosleep", "common_nsleep"], WaitReason::Sleep),
            (&["schedule_preempt_disabled", "__mutex_lock.constprop.0", "pipe_read"], WaitReason::KernelLock),
            (&["rwsem_down_read_slowpath", "down_read", "do_user_addr_fault"], WaitReason::KernelLock),
            (&["do_wait", "kernel_wait4"], WaitReason::Child),
            (&["schedule", "do_signal_stop", "get_signal", "arch_do_signal_or_restart"], WaitReason::Stopped),
            (&["schedule", "get_signal", "arch_do_signal_or_restart"], WaitReason::Stopped),
            (&["schedule_timeout_killable", "__mem_cgroup_handle_over_high"], WaitReason::MemoryLimit),
            (&["schedule_timeout", "wait_for_completion_state", "kernel_clone"], WaitReason::Child),
            (&["schedule_timeout", "io_wq_worker"], WaitReason::Poll),
            (&["schedule", "io_sq_thread"], WaitReason::Poll),
            (&["io_schedule", "folio_wait_bit_common", "io_read", "io_wq_worker"], WaitReason::Disk),
            (&["do_sigtimedwait", "__x64_sys_rt_sigtimedwait"], WaitReason::Other),
            (&[], WaitReason::Other),
        ] {
            let functions = [&["__schedule", "schedule"], functions, &entry].concat();
            assert_eq!(reason(&functions), expected, "{functions:?}");
        }
    }

    #[test]
    fn a_call_at_the_end_of_a_function_is_in_it() {
        let kernel = [(0x100, "do_wait"), (0x200, "do_exit"), (0x200, "do_exit_alias")];
        let reasons = Reasons::new(kernel.into_iter().rev());
        let found = [0x100, 0x101, 0x200, 0x201].map(|address| reasons.at(address));
        assert_eq!(found, [None, Some(WaitReason::Child), Some(WaitReason::Child), None]);
    }

    #[test]
    fn a_function_of_the_table_is_found_by_any_of_its_names() {
        let kernel = [(0x100, "alias"), (0x100, "do_wait"), (0x100, "zzz")];
        let reasons = Reasons::new(kernel.into_iter());
        assert_eq!(reasons.of(&[0x110]), WaitReason::Child);
    }

    #[test]
    fn the_reason_is_unknown_if_the_kernel_hides_its_functions() {
        let reasons = Reasons::new(std::iter::empty());
        assert_eq!(reasons.of(&[0, 1, u64::MAX]), WaitReason::Unknown);
    }

    #[test]
    fn no_row_hides_behind_another() {
        let names = Names::new();
        for (reason, functions) in TABLE {
            for function in *functions {
                assert_eq!(names.reason(function.trim_end_matches('*')), Some(*reason), "{function}");
            }
        }
    }

    #[test]
    fn the_order_is_that_of_the_type() {
        assert!(WaitReason::ALL.iter().enumerate().all(|(index, reason)| *reason as usize == index));
    }
}
