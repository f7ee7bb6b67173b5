//! Decodes the records of the two rings. Pure: bytes in, values out; records that are too short are rejected.

use std::mem::offset_of;

use podperf_ebpf::abi;

use crate::model::{
    ids::{CgroupId, Pid, StackId, WakerId},
    lock::Lock,
    wait::{Unwind, WaitState},
};

/// A record of `stack_ring`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackRecord {
    /// The frames of a stack that was not sent before.
    Stack(RawStack),
    /// A call site (first) and its stack (second), after samples named the call site before its stack was known.
    CallSite(StackId, StackId),
    /// A wait longer than the threshold.
    LongWait(RawSample),
    /// A waker, which ends waits.
    Waker(RawWaker),
}

/// The addresses of a stack. Both parts begin with the leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawStack {
    /// The id of the stack in [`SampleKey`].
    pub id: StackId,
    /// The process in which the stack was walked; other processes may share the stack.
    pub process: Pid,
    /// Return addresses in user space.
    pub user: Vec<u64>,
    /// Return addresses in the kernel.
    pub kernel: Vec<u64>,
    /// The end of the user part, if it is known: the agent has unwound it, or podperf was over its limit of CPU time
    /// and left it out. `None` if the kernel walked it by frame pointers.
    pub end: Option<Unwind>,
}

/// A waker: a thread or an interrupt that ends waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawWaker {
    /// The id of the waker in [`SampleKey`].
    pub id: WakerId,
    /// The cgroup of the waker; `None` for an interrupt, such as a timer or a network packet.
    pub cgroup: Option<CgroupId>,
    /// The thread's name.
    pub thread: String,
    /// The stack at the wakeup; `None` if it was not walked.
    pub stack: Option<StackId>,
}

/// The key of a sample: process, cgroup, stacks, waker, activity, lock and filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleKey {
    /// A stack, or a call site whose stack may be known later; `None` when neither is known.
    pub stack: Option<StackId>,
    /// The kernel part of the stack, taken while the thread slept, without the scheduler's functions. If it differs
    /// from `stack`, which may come from the stack cache, then `seen` is right. `None` if it was not taken.
    pub seen: Option<StackId>,
    /// The cgroup in which the wait or the sample ended.
    pub cgroup: CgroupId,
    /// The waker that ended the wait; `None` if it is not known. `PODPERF_GOES_ON` is the id of no waker: it keeps
    /// parts of waits that go on apart from waits that ended.
    pub waker: Option<WakerId>,
    /// The process.
    pub process: Pid,
    /// The activity of the thread.
    pub activity: RawActivity,
    /// The lock that the thread waited for; `None` for other waits, and while the sensor `locks` is off.
    pub lock: Option<Lock>,
    /// The filters that match: bit n for filter n.
    pub filters: u16,
}

/// An activity on which a thread spent time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RawActivity {
    /// A wait of this kind.
    Wait(WaitState),
    /// Running on the CPU.
    OnCpu,
}

/// The time with one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawSample {
    /// The key of the time.
    pub key: SampleKey,
    /// The sum of the times, in nanoseconds, without `queued_ns`.
    pub ns: u64,
    /// The time from the ends of these waits until the threads had a CPU, in nanoseconds.
    pub queued_ns: u64,
    /// The part of these waits that previous samples contain, in nanoseconds; 0 for a sum of the kernel's.
    pub so_far_ns: u64,
    /// Number of waits, or of samples on the CPU.
    pub count: u64,
    /// The end of the last wait or sample, in nanoseconds of `CLOCK_MONOTONIC`.
    pub last_ns: u64,
}

/// A change of the cgroup2 tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupRecord {
    /// A new cgroup, or a new name of a cgroup, with the path from the root of the tree. The path is `None` when the
    /// kernel truncated it: the tree must be walked.
    Named(CgroupId, Option<String>),
    /// The cgroup was removed.
    Died(CgroupId),
}

impl SampleKey {
    /// Converts the key of a map; returns `None` for an activity that this version does not know.
    #[must_use]
    pub fn from_abi(key: &abi::podperf_sample_key) -> Option<Self> {
        let activity = match u32::from(key.activity) {
            abi::PODPERF_ON_CPU => RawActivity::OnCpu,
            _ => RawActivity::Wait(*WaitState::ALL.get(usize::from(key.activity))?),
        };
        Some(Self {
            stack: Some(StackId(key.stack)).filter(|id| id.0 != 0),
            seen: Some(StackId(key.seen)).filter(|id| id.0 != 0),
            cgroup: CgroupId(key.cgroup),
            waker: Some(WakerId(key.waker)).filter(|id| id.0 != 0),
            process: Pid(key.tgid),
            activity,
            lock: Lock::from_abi(key.lock),
            filters: key.filters,
        })
    }
}

impl StackRecord {
    /// Decodes one record of `stack_ring`.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match u32_at(bytes, 0)? {
            abi::PODPERF_RECORD_STACK => {
                let (header, frames) = bytes.split_at_checked(offset_of!(abi::podperf_stack, frames))?;
                let user = usize::from(u16::from_ne_bytes(header.get(4..6)?.try_into().ok()?));
                let kernel = usize::from(u16::from_ne_bytes(header.get(6..8)?.try_into().ok()?));
                let id = StackId(u64_at(header, offset_of!(abi::podperf_stack, id))?);
                let process = Pid(u32_at(header, offset_of!(abi::podperf_stack, tgid))?);
                let end = match u32_at(header, offset_of!(abi::podperf_stack, cut))? {
                    abi::PODPERF_CUT_NOT => None,
                    abi::PODPERF_CUT_SHED => Some(Unwind::Shed),
                    _ => Some(Unwind::Cut),
                };
                let (user, kernel) = frames.get(..(user + kernel) * 8)?.split_at(user * 8);
                Some(Self::Stack(RawStack { id, process, user: addresses(user), kernel: addresses(kernel), end }))
            }
            abi::PODPERF_RECORD_SITE => {
                let record: abi::podperf_site = whole(bytes)?;
                Some(Self::CallSite(StackId(record.site), StackId(record.stack)))
            }
            abi::PODPERF_RECORD_LONG_WAIT => {
                let wait: abi::podperf_long_wait = whole(bytes)?;
                let key = SampleKey::from_abi(&wait.key)?;
                let (ns, queued_ns, so_far_ns) = (wait.ns, wait.queued_ns, wait.so_far_ns);
                Some(Self::LongWait(RawSample { key, ns, queued_ns, so_far_ns, count: 1, last_ns: wait.end_ns }))
            }
            abi::PODPERF_RECORD_WAKER => {
                let waker: abi::podperf_waker = whole(bytes)?;
                let comm: &[u8] = bytemuck::cast_slice(&waker.comm);
                let thread = comm.split(|byte| *byte == 0).next().unwrap_or_default();
                Some(Self::Waker(RawWaker {
                    id: WakerId(waker.id),
                    cgroup: Some(CgroupId(waker.cgroup)).filter(|cgroup| cgroup.0 != 0),
                    thread: String::from_utf8_lossy(thread).into_owned(),
                    stack: Some(StackId(waker.stack)).filter(|stack| stack.0 != 0),
                }))
            }
            _ => None,
        }
    }
}

impl CgroupRecord {
    /// Decodes one record of `cgroup_ring`.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let id = CgroupId(u64_at(bytes, 0)?);
        match u32_at(bytes, 8)? {
            abi::PODPERF_CGROUP_DIED => Some(Self::Died(id)),
            abi::PODPERF_CGROUP_BORN | abi::PODPERF_CGROUP_RENAMED => {
                let length = u32_at(bytes, 12)?;
                let path = bytes.get(16..16 + length as usize)?;
                let whole = length > 0 && length < abi::PODPERF_PATH_MAX - 1;
                let path = whole.then(|| String::from_utf8_lossy(path).into_owned());
                Some(Self::Named(id, path))
            }
            _ => None,
        }
    }
}

fn whole<T: bytemuck::Pod>(bytes: &[u8]) -> Option<T> {
    bytes.get(..size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn addresses(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(u64::from_ne_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack_record(user: &[u64], kernel: &[u64]) -> Vec<u8> {
        let mut bytes = abi::PODPERF_RECORD_STACK.to_ne_bytes().to_vec();
        bytes.extend(u16::try_from(user.len()).unwrap().to_ne_bytes());
        bytes.extend(u16::try_from(kernel.len()).unwrap().to_ne_bytes());
        bytes.extend(77_u64.to_ne_bytes());
        bytes.extend(4711_u64.to_ne_bytes());
        bytes.extend(user.iter().chain(kernel).flat_map(|address| address.to_ne_bytes()));
        bytes
    }

    #[test]
    fn user_and_kernel_frames_are_distinguished() {
        let record = StackRecord::decode(&stack_record(&[1, 2], &[3])).unwrap();
        let stack = RawStack { id: StackId(77), process: Pid(4711), user: vec![1, 2], kernel: vec![3], end: None };
        assert_eq!(record, StackRecord::Stack(stack));
    }

    #[test]
    fn a_record_cut_anywhere_is_refused() {
        let whole = stack_record(&[1, 2], &[3]);
        for length in 0..whole.len() {
            assert_eq!(StackRecord::decode(&whole[..length]), None, "{length} bytes");
            assert_eq!(CgroupRecord::decode(&whole[..length.min(15)]), None, "{length} bytes");
        }
    }

    #[test]
    fn an_interrupt_is_nobodys_and_a_thread_has_its_name() {
        let record = |cgroup: u64, name: &str| {
            let mut waker: abi::podperf_waker = bytemuck::Zeroable::zeroed();
            (waker.record, waker.id, waker.cgroup) = (abi::PODPERF_RECORD_WAKER, 5, cgroup);
            bytemuck::cast_slice_mut(&mut waker.comm)[..name.len()].copy_from_slice(name.as_bytes());
            StackRecord::decode(bytemuck::bytes_of(&waker)).unwrap()
        };
        let waker = |cgroup, thread: &str| RawWaker { id: WakerId(5), cgroup, thread: thread.into(), stack: None };
        assert_eq!(record(0, ""), StackRecord::Waker(waker(None, "")));
        assert_eq!(record(9, "nginx"), StackRecord::Waker(waker(Some(CgroupId(9)), "nginx")));
    }

    #[test]
    fn samples_with_and_without_a_stack_are_distinguished() {
        let mut key: abi::podperf_sample_key = bytemuck::Zeroable::zeroed();
        assert_eq!(SampleKey::from_abi(&key).unwrap().stack, None);
        key.activity = u8::try_from(abi::PODPERF_ACTIVITIES).unwrap();
        assert_eq!(SampleKey::from_abi(&key), None);
        (key.activity, key.stack) = (u8::try_from(abi::PODPERF_ON_CPU).unwrap(), 3);
        let key = SampleKey::from_abi(&key).unwrap();
        assert_eq!((key.stack, key.activity), (Some(StackId(3)), RawActivity::OnCpu));
    }

    #[test]
    fn a_lock_that_this_version_does_not_know_is_no_lock() {
        let lock = |number| {
            let key = abi::podperf_sample_key { lock: number, ..bytemuck::Zeroable::zeroed() };
            SampleKey::from_abi(&key).unwrap().lock.map(Lock::name)
        };
        assert_eq!([0, 1, 12, 13].map(lock), [None, Some("mmap_lock"), Some("user"), None]);
    }

    #[test]
    fn a_path_that_the_kernel_cut_is_not_taken_for_whole() {
        let record = |path: &str| {
            let mut bytes = 9_u64.to_ne_bytes().to_vec();
            bytes.extend(abi::PODPERF_CGROUP_BORN.to_ne_bytes());
            bytes.extend(u32::try_from(path.len()).unwrap().to_ne_bytes());
            bytes.extend(path.bytes().chain([0]));
            CgroupRecord::decode(&bytes).unwrap()
        };
        assert_eq!(record("/a/b"), CgroupRecord::Named(CgroupId(9), Some("/a/b".into())));
        assert_eq!(record(&"x".repeat(1023)), CgroupRecord::Named(CgroupId(9), None));
    }
}
