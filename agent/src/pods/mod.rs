//! Finds the container behind a container id: reads the pods of this node from the API server or the kubelet.
//!
//! Path of a pod: `watch` or `kubelet` requests the pods with `credentials` and parses the API's form (`raw`). `prune`
//! keeps the fields that the agent uses, `report` sends each change as a [`PodChange`], changes queue in [`Pending`],
//! and the [`PodIndex`] returns the container of an id. `failure` describes each error, and the source retries for
//! ever: counts wait for names, never the other way round.
//!
//! The agent requests only pods, and only those of this node. When the agent ends, it also asks whether its own
//! DaemonSet is being deleted (`daemonset`).

mod ask;
#[cfg(test)]
mod case;
mod credentials;
mod daemonset;
pub mod fuzzing;
mod index;
mod kubelet;
mod pace;
mod pending;
#[cfg(test)]
mod played;
mod pod;
mod prune;
mod raw_pod;
mod reporter;
mod request_failure;
pub mod saved_pods;
mod source;
mod trial;
mod watch;
mod workload;

pub(crate) use ask::quietly;
pub(crate) use credentials::Credentials;
pub use credentials::{SourceError, in_cluster};
pub use daemonset::DaemonSet;
pub use index::{Outlook, PodIndex};
pub use pending::Pending;
pub use pod::ContainerInfo;
pub use pod::{Container, ContainerKind, Pod, PodChange};
pub use prune::label_name;
pub use reporter::SourceStats;
pub(crate) use request_failure::{Remedy, Server, ServerKind};
pub use source::{KubeletSettings, Source, SourceKind, SourceSettings, check, start};
pub use trial::{Trial, try_once};
pub use workload::{Workload, WorkloadKind};
