//! The numbers that the kernel hands out, each as a type of its own.

use std::fmt;

/// A cgroup2 id: the inode number of the cgroup's directory (`cgrp->kn->id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CgroupId(pub u64);

/// A CPU's number, as in `/sys/devices/system/cpu/cpuN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cpu(pub u32);

/// A process id (the kernel's `tgid`) in the initial pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid(pub u32);

/// What the kernel side names a stack by: a hash of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u64);

impl CgroupId {
    /// The root of the cgroup2 tree.
    pub const ROOT: Self = Self(1);
    /// No cgroup, but the idle task (`PODPERF_IDLE`).
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
