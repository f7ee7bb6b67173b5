//! The kernel's numbers and Kubernetes' ids, each as a type of its own.
//!
//! Ids are stored as the bytes of their digits. Only the spelling of their makers is accepted: an id in upper case, for
//! example, is rejected.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A cgroup2 id: the inode number of the cgroup's directory (`cgrp->kn->id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CgroupId(pub u64);

/// A CPU's number, as in `/sys/devices/system/cpu/cpuN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cpu(pub u32);

/// A process id (the kernel's `tgid`) in the initial pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid(pub u32);

/// The kernel side's id of a stack or of a call site. A stack's id is a hash of its frames, and is odd. A call site's
/// id is a hash of the registers there, and is even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u64);

impl StackId {
    /// Returns the id of a stack that consists of two parts.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0.rotate_left(17) ^ other.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
}

/// The kernel side's id of the waker that ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WakerId(pub u64);

/// A container's id as its runtime made it: 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub struct ContainerId([u8; 32]);

/// A pod's UID, `metadata.uid`: lower-case hex digits in groups of 8-4-4-4-12.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub struct PodUid([u8; 16]);

/// A static pod's UID on its node, and its mirror's annotation `kubernetes.io/config.hash`: 32 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub struct ConfigHash([u8; 16]);

/// Error for a text that is not an id of the expected kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not {0}")]
pub struct IdError(&'static str);

impl StackId {
    /// The stack of a wait whose stack was not taken, because podperf was over its limit (`PODPERF_NOT_TAKEN`).
    pub const NOT_TAKEN: Self = Self(u64::MAX);

    /// Returns `true` for a call site, whose stack may come later.
    #[must_use]
    pub const fn is_call_site(self) -> bool {
        self.0 & 1 == 0
    }
}

impl CgroupId {
    /// The root of the cgroup2 tree.
    pub const ROOT: Self = Self(1);
    /// Not a cgroup, but the idle task (`PODPERF_IDLE`).
    pub const IDLE: Self = Self(u64::MAX);
}

impl fmt::Display for CgroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ContainerId {
    /// Parses the id in a container status, `containerd://<id>`; `None` for a container that never ran, which has no
    /// id.
    #[must_use]
    pub fn from_status(text: &str) -> Option<Self> {
        text.split_once("://")?.1.parse().ok()
    }
}

impl PodUid {
    /// Parses the UID in the spelling of the systemd cgroup driver, with `_`: a slice's name would be split at `-`.
    #[must_use]
    pub fn from_systemd(text: &str) -> Option<Self> {
        Self::split(text, '_')
    }

    fn split(text: &str, separator: char) -> Option<Self> {
        let mut uid = [0; 16];
        let mut groups = text.split(separator);
        for bytes in [0..4, 4..6, 6..8, 8..10, 10..16] {
            decode(groups.next()?, &mut uid[bytes])?;
        }
        groups.next().is_none().then_some(Self(uid))
    }
}

impl FromStr for ContainerId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut id = [0; 32];
        decode(text, &mut id).ok_or(IdError("a container id (64 lower-case hex digits)"))?;
        Ok(Self(id))
    }
}

impl FromStr for PodUid {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::split(text, '-').ok_or(IdError("a pod's UID (lower-case hex digits in groups of 8-4-4-4-12)"))
    }
}

impl FromStr for ConfigHash {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut hash = [0; 16];
        decode(text, &mut hash).ok_or(IdError("a config hash (32 lower-case hex digits)"))?;
        Ok(Self(hash))
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ConfigHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContainerId({self})")
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PodUid({self})")
    }
}

impl fmt::Debug for ConfigHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConfigHash({self})")
    }
}

/// Fills `bytes` from exactly as many pairs of lower-case hex digits.
fn decode(text: &str, bytes: &mut [u8]) -> Option<()> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(())
}

/// The id in the name of a pod's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PodRef {
    /// UID of a pod that the API server made.
    Uid(PodUid),
    /// Hash of a static pod: the API server knows the pod by its mirror, which has another UID.
    Static(ConfigHash),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uuid() -> impl Strategy<Value = String> {
        "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    }

    proptest! {
        #[test]
        fn an_id_is_shown_as_it_was_parsed(id in "[0-9a-f]{64}", uid in uuid(), hash in "[0-9a-f]{32}") {
            prop_assert_eq!(id.parse::<ContainerId>().unwrap().to_string(), id);
            prop_assert_eq!(uid.parse::<PodUid>().unwrap().to_string(), uid);
            prop_assert_eq!(hash.parse::<ConfigHash>().unwrap().to_string(), hash);
        }

        #[test]
        fn the_two_spellings_of_a_uid_are_one_and_never_mixed(uid in uuid(), at in prop::sample::select(vec![8, 13, 18, 23])) {
            let systemd = uid.replace('-', "_");
            prop_assert_eq!(PodUid::from_systemd(&systemd), uid.parse().ok());
            prop_assert!(PodUid::from_systemd(&uid).is_none() && systemd.parse::<PodUid>().is_err());
            let mut mixed = uid;
            mixed.replace_range(at..=at, "_");
            prop_assert!(PodUid::from_systemd(&mixed).is_none() && mixed.parse::<PodUid>().is_err());
        }

        #[test]
        fn what_parses_is_shown_the_same(text in "[0-9a-fA-Fg_-]{30,70}|\\PC*") {
            for shown in [
                text.parse::<ContainerId>().map(|id| id.to_string()),
                text.parse::<PodUid>().map(|uid| uid.to_string()),
                text.parse::<ConfigHash>().map(|hash| hash.to_string()),
            ].into_iter().flatten() {
                prop_assert_eq!(&shown, &text);
            }
        }

        #[test]
        fn ids_are_ordered_as_their_texts(a in "[0-9a-f]{64}", b in "[0-9a-f]{64}") {
            prop_assert_eq!(a.parse::<ContainerId>().unwrap().cmp(&b.parse().unwrap()), a.cmp(&b));
        }
    }

    #[test]
    fn a_status_names_the_runtime_before_the_id() {
        let id = "0123456789abcdef".repeat(4);
        for runtime in ["containerd", "cri-o", "docker"] {
            assert_eq!(ContainerId::from_status(&format!("{runtime}://{id}")), id.parse().ok());
        }
        for before in ["", "containerd:", "containerd:/", "docker://x/", "docker://docker://", "docker://0"] {
            assert_eq!(ContainerId::from_status(&format!("{before}{id}")), None, "{before}");
        }
        assert_eq!(ContainerId::from_status("containerd://"), None);
    }

    #[test]
    fn a_uid_has_five_groups() {
        let uid = "01234567-89ab-cdef-0123-456789abcdef";
        for text in [&uid[..23], &format!("{uid}-"), &format!("{uid}-01"), &format!("-{uid}"), &uid.replace('-', "")] {
            assert!(text.parse::<PodUid>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_error_says_what_it_is_not() {
        let error = "ABC".parse::<ConfigHash>().unwrap_err().to_string();
        assert_eq!(error, "not a config hash (32 lower-case hex digits)");
    }

    #[test]
    fn debug_is_readable() {
        let uid: PodUid = "01234567-89ab-cdef-0123-456789abcdef".parse().unwrap();
        assert_eq!(format!("{uid:?}"), "PodUid(01234567-89ab-cdef-0123-456789abcdef)");
    }
}
