//! The records of the two rings, decoded. Pure: bytes in, values out; records that are too short are refused.

use podperf_ebpf::abi;

use crate::{
    ids::{CgroupId, Pid, StackId},
    stacks::profile::WaitState,
};

/// What comes through `stack_ring`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackRecord {
    /// The frames of a stack that was not sent before.
    Stack(RawStack),
    /// A wait over the threshold.
    LongWait(RawWait),
}

/// Addresses of a stack, both parts leaf first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawStack {
    /// Its name in [`WaitKey`].
    pub id: StackId,
    /// Return addresses in user space.
    pub user: Vec<u64>,
    /// Return addresses in the kernel.
    pub kernel: Vec<u64>,
}

/// Whose waits, where and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WaitKey {
    /// Where.
    pub stack: StackId,
    /// The cgroup in which the waits ended.
    pub cgroup: CgroupId,
    /// The process.
    pub process: Pid,
    /// How it went to sleep.
    pub state: WaitState,
}

/// Waits with one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawWait {
    /// Whose, where and how.
    pub key: WaitKey,
    /// Time off the CPU, all together.
    pub ns: u64,
    /// How many.
    pub waits: u64,
    /// When the last ended, `CLOCK_MONOTONIC`.
    pub last_ns: u64,
}

/// A change of the cgroup2 tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupRecord {
    /// A new cgroup, or a new name for one; the path is from the root of the tree. `None` when the kernel cut it
    /// short: the tree must be walked.
    Named(CgroupId, Option<String>),
    /// The cgroup was removed.
    Died(CgroupId),
}

impl WaitKey {
    /// `None` for a state that this version does not know.
    #[must_use]
    pub fn from_abi(key: &abi::podperf_wait_key) -> Option<Self> {
        Some(Self {
            stack: StackId(key.stack),
            cgroup: CgroupId(key.cgroup),
            process: Pid(key.tgid),
            state: *WaitState::ALL.get(key.state as usize)?,
        })
    }
}

impl StackRecord {
    /// Decodes one record of `stack_ring`.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match u32_at(bytes, 0)? {
            abi::PODPERF_RECORD_STACK => {
                let (header, frames) = bytes.split_at_checked(16)?;
                let user = usize::from(u16::from_ne_bytes(header.get(4..6)?.try_into().ok()?));
                let kernel = usize::from(u16::from_ne_bytes(header.get(6..8)?.try_into().ok()?));
                let id = StackId(u64_at(header, 8)?);
                let (user, kernel) = frames.get(..(user + kernel) * 8)?.split_at(user * 8);
                Some(Self::Stack(RawStack { id, user: addresses(user), kernel: addresses(kernel) }))
            }
            abi::PODPERF_RECORD_LONG_WAIT => {
                let bytes = bytes.get(..size_of::<abi::podperf_long_wait>())?;
                let wait: abi::podperf_long_wait = bytemuck::pod_read_unaligned(bytes);
                let key = WaitKey::from_abi(&wait.key)?;
                Some(Self::LongWait(RawWait { key, ns: wait.ns, waits: 1, last_ns: wait.end_ns }))
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
        bytes.extend(user.iter().chain(kernel).flat_map(|address| address.to_ne_bytes()));
        bytes
    }

    #[test]
    fn user_and_kernel_frames_are_told_apart() {
        let record = StackRecord::decode(&stack_record(&[1, 2], &[3])).unwrap();
        assert_eq!(record, StackRecord::Stack(RawStack { id: StackId(77), user: vec![1, 2], kernel: vec![3] }));
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
