//! Who is behind a container: the pods of this node, from the API server or the kubelet.
//!
//! The way of a pod: `watch` or `kubelet` asks with `credentials` for the API's form (`raw`), `prune` keeps
//! what names something, `report` hands it on as a [`PodChange`], which waits in [`Pending`], and the [`PodIndex`] answers whose an id is. What
//! fails is put into words in `failure` and tried again for ever: counts wait for names, never the other way round.
//! Nothing but pods is asked for, and of those only this node's; and at its end the agent asks whether its own DaemonSet
//! goes (`daemonset`).

mod ask;
mod backoff;
#[cfg(test)]
mod case;
mod credentials;
mod daemonset;
mod failure;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod index;
pub mod kept;
mod kubelet;
mod pending;
#[cfg(test)]
mod played;
mod pod;
mod prune;
mod raw;
mod report;
mod source;
mod trial;
mod watch;
mod workload;

pub(crate) use ask::quietly;
pub(crate) use credentials::Credentials;
pub use credentials::{SourceError, in_cluster};
pub use daemonset::DaemonSet;
pub(crate) use failure::{Remedy, Server, ServerKind};
pub use index::{Outlook, PodIndex};
pub use pending::Pending;
pub use pod::ContainerInfo;
pub use pod::{Container, ContainerKind, Pod, PodChange};
pub use prune::label_name;
pub use report::SourceStats;
pub use source::{KubeletSettings, Source, SourceKind, SourceSettings, start};
pub use trial::try_once;
pub use workload::{Workload, WorkloadKind};
