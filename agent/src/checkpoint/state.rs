//! The content of the checkpoint: plain values. Times are `CLOCK_MONOTONIC` in nanoseconds unless the field says
//! otherwise.

use crate::{attribution::saved_ledger::SavedLedger, cgroups::saved_cgroup::SavedCgroup, pods::saved_pods::SavedPod};
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{model::usage::SeenTime, pods::Pod};

/// All values of the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct State {
    /// Identity of the counts in the kernel ([`crate::kernel::Sensors::identity`]).
    pub identity: String,
    /// Identities of earlier counts that are already in the accounts. Their programs may still be pinned.
    #[serde(rename = "folded")]
    pub counted: Vec<String>,
    /// Id of the boot that the times belong to.
    pub boot: String,
    /// Start of the first agent in this series of restarts, Unix time in nanoseconds.
    pub started_unix_ns: u64,
    /// Number of agent starts, by kind of start.
    pub starts: BTreeMap<String, u64>,
    /// Labels of the numbers of usages, see [`crate::attribution::schema::Schema`].
    pub labels: Vec<String>,
    /// The counter's name and its group, by slot.
    pub slots: Vec<(String, Option<usize>)>,
    /// Values of each kernel row that are already in the accounts: the words of `podperf_cgroup`, without the zeros at
    /// the end.
    pub posted: Vec<(u64, Vec<u64>)>,
    /// Totals that are in no map any more.
    pub base: BTreeMap<String, u64>,
    /// Totals that were last shown.
    pub shown: BTreeMap<String, u64>,
    /// Number of readings so far.
    pub readings: u64,
    /// Number of dropped profile windows so far.
    pub profiles_dropped: u64,
    /// Time with stacks from the stack cache that were checked so far.
    #[serde(default)]
    pub seen: SeenTime,
    /// The cgroups.
    pub tree: Vec<SavedCgroup>,
    /// The pods, each once. Other fields refer to a pod by its index in this list.
    pub pods: Vec<Pod>,
    /// The reported pods, with the time of their deletion.
    #[serde(rename = "told")]
    pub reported: Vec<SavedPod>,
    /// The accounts.
    pub ledger: SavedLedger,
}
