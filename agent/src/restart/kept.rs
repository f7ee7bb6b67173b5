//! What is kept. Plain values; times are of `CLOCK_MONOTONIC` in nanoseconds unless they say otherwise.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{
    attribution::Row,
    ids::ContainerId,
    pods::{ContainerInfo, Pod},
    stacks::SeenTime,
};

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
    /// What the numbers of usages are, see [`super::Shape`].
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

/// A cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct KeptNode {
    /// Its id.
    pub id: u64,
    /// From the root of the tree.
    #[serde(with = "crate::restart::shared")]
    pub path: Arc<str>,
    /// When it was first seen.
    pub born_ns: u64,
    /// See [`crate::cgroups::Place`].
    pub first_of_pod: bool,
    /// When it was gone.
    pub died_ns: Option<u64>,
}

/// A pod that was told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct KeptPod {
    /// Its place.
    pub pod: usize,
    /// When it was gone.
    pub deleted_ns: Option<u64>,
}

/// The accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct KeptLedger {
    /// Open ones.
    pub accounts: Vec<KeptAccount>,
    /// Counts without a name.
    pub waiting: Vec<KeptWaiting>,
    /// The sum of closed ones.
    pub retired: Vec<u64>,
    /// What was counted while CPUs were idle.
    pub idle: Vec<u64>,
    /// When the last reading was; `None` in files of older versions.
    #[serde(default)]
    pub read_ns: Option<u64>,
    /// Idle time as of the last reading, time that is in no row and not idle, and the excess that is subtracted from that
    /// later; `None` in files of older versions.
    #[serde(default)]
    pub node: Option<(u64, u64, u64)>,
    /// The start of each counter by its name, Unix time in nanoseconds. A counter that is missing here and in the
    /// labels of the numbers was not counted.
    #[serde(default)]
    pub counters_started_unix_ns: BTreeMap<String, u64>,
}

/// An account.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct KeptAccount {
    /// Whose.
    pub row: Row,
    /// See [`super::Shape`].
    pub usage: Vec<u64>,
    /// When its counts were zero, Unix time in nanoseconds. It is missing in files of older versions, which sent
    /// [`Kept::started_unix_ns`] as the start of every series.
    #[serde(default)]
    pub started_unix_ns: Option<u64>,
    /// The pod's place.
    pub pod: Option<usize>,
    /// Its last life.
    pub container: Option<KeptContainer>,
    /// When its cgroup was first missed, and how often it was exported since.
    pub ended: Option<(u64, u32)>,
    /// Whether it is not shown.
    pub hidden: bool,
    /// The places of the numbers that scrapers are shown as they are; `None` is all, as in files of older versions.
    #[serde(default)]
    pub revealed: Option<Vec<usize>>,
}

/// A life of a container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct KeptContainer {
    pod: usize,
    #[serde(with = "crate::restart::shared")]
    name: Arc<str>,
    #[serde(with = "crate::restart::shared")]
    image: Arc<str>,
    id: ContainerId,
}

/// Counts that wait for a name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct KeptWaiting {
    /// Of which cgroup.
    pub cgroup: u64,
    /// See [`super::Shape`].
    pub usage: Vec<u64>,
    /// Since when.
    pub since_ns: u64,
    /// Where the cgroup was, if that is known.
    pub place: Option<KeptNode>,
}

/// The pods by their places: each is kept once, however many name it.
#[derive(Debug, Default)]
pub struct Pods {
    pods: Vec<Arc<Pod>>,
    places: HashMap<*const Pod, usize>,
}

impl Pods {
    /// Those that were kept.
    #[must_use]
    pub fn of(pods: Vec<Pod>) -> Self {
        Self { pods: pods.into_iter().map(Arc::new).collect(), places: HashMap::new() }
    }

    /// All, to be kept.
    #[must_use]
    pub fn into_kept(self) -> Vec<Pod> {
        self.pods.into_iter().map(Arc::unwrap_or_clone).collect()
    }

    /// The place of a pod.
    pub fn place(&mut self, pod: &Arc<Pod>) -> usize {
        *self.places.entry(Arc::as_ptr(pod)).or_insert_with(|| {
            self.pods.push(Arc::clone(pod));
            self.pods.len() - 1
        })
    }

    /// The pod at a place.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<&Arc<Pod>> {
        self.pods.get(place)
    }

    /// A container, to be kept.
    pub fn keep_container(&mut self, info: &ContainerInfo) -> KeptContainer {
        let pod = self.place(&info.pod);
        KeptContainer { pod, name: Arc::clone(&info.name), image: Arc::clone(&info.image), id: info.id }
    }

    /// A container that was kept.
    #[must_use]
    pub fn container(&self, kept: KeptContainer) -> Option<Arc<ContainerInfo>> {
        let KeptContainer { pod, name, image, id } = kept;
        Some(Arc::new(ContainerInfo { pod: Arc::clone(self.at(pod)?), name, image, id }))
    }
}
