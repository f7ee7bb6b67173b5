//! What is kept. Plain values; times are of `CLOCK_MONOTONIC` in nanoseconds unless they say otherwise.

use crate::{attribution::kept::KeptLedger, cgroups::kept::KeptNode, pods::kept::KeptPod};
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{model::usage::SeenTime, pods::Pod};

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Kept {
    /// Of the counts in the kernel ([`crate::kernel::Sensors::identity`]).
    pub identity: String,
    /// Of counts that are in the accounts, though those who counted them may still be pinned.
    pub folded: Vec<String>,
    /// The boot that the times are of.
    pub boot: String,
    /// When the first agent of this row began, Unix time in nanoseconds.
    pub started_unix_ns: u64,
    /// How many agents began, by how they did.
    pub starts: BTreeMap<String, u64>,
    /// What the numbers of usages are, see [`crate::attribution::shape::Shape`].
    pub labels: Vec<String>,
    /// By slot: the counter's name, and its group.
    pub slots: Vec<(String, Option<usize>)>,
    /// Up to where each row of the kernel's is posted: the words of `podperf_cgroup`, zeros at the end left out.
    pub posted: Vec<(u64, Vec<u64>)>,
    /// Totals that are in no map any more.
    pub base: BTreeMap<String, u64>,
    /// Totals as they were last shown.
    pub shown: BTreeMap<String, u64>,
    /// Readings so far.
    pub readings: u64,
    /// Profile windows that were given up so far.
    pub profiles_dropped: u64,
    /// Time with remembered stacks that were looked at, so far.
    #[serde(default)]
    pub seen: SeenTime,
    /// The cgroups.
    pub tree: Vec<KeptNode>,
    /// The pods, each once; the others name them by their place here.
    pub pods: Vec<Pod>,
    /// Those that were told, and when they were gone.
    pub told: Vec<KeptPod>,
    /// The accounts.
    pub ledger: KeptLedger,
}
