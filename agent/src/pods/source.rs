//! A source of pods: which, and how it is.

use super::report::SourceStats;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, task::JoinHandle};

use super::{
    backoff::Pace,
    credentials::{Credentials, SourceError},
    failure::ServerKind,
    kubelet::Kubelet,
    pod::PodChange,
    prune::{Keep, Teller},
    report::{Changes, Reporter, Stats},
    watch::Watch,
};
use crate::model::status::Status;

/// Where pods come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A watch at the API server.
    Watch,
    /// Polls of the node's kubelet.
    Kubelet(KubeletSettings),
}

/// How to ask the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletSettings {
    /// `http://` for its read-only port; `None` for `https://` and port 10250 of `$NODE_IP`, or of 127.0.0.1.
    pub url: Option<String>,
    /// Whom its certificate is from; `None` for the cluster's CA.
    pub ca_file: Option<PathBuf>,
    /// Takes any certificate, such as the ones that kubelets make for themselves.
    pub insecure_skip_verify: bool,
    /// Between two polls.
    pub interval: Duration,
}

/// Which pods, from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSettings {
    /// Where they come from.
    pub source: SourceKind,
    /// The node whose pods they are; a kubelet has no other.
    pub node_name: String,
    /// `None` for the service account of the agent's pod.
    pub kubeconfig: Option<PathBuf>,
    /// `None` for the kubeconfig's current one.
    pub context: Option<String>,
    /// Keys of labels that are kept.
    pub labels: Vec<String>,
    /// Keys of annotations that are kept.
    pub annotations: Vec<String>,
}

/// A handle on the task that asks; ends it when dropped.
#[derive(Debug)]
pub struct Source {
    stats: Stats,
    poke: Arc<Notify>,
    task: JoinHandle<()>,
}

/// Starts to ask for pods. Must be called on a tokio runtime with time and I/O. `changes` is called on it, and must not
/// block.
///
/// # Errors
///
/// When there are no credentials, or none that can be used. Never because a server is not there.
pub fn start(
    settings: SourceSettings,
    status: Status,
    changes: impl Fn(PodChange) + Send + 'static,
) -> Result<Source, SourceError> {
    start_at(Pace::default(), settings, status, Box::new(changes))
}

pub(super) fn start_at(
    pace: Pace,
    settings: SourceSettings,
    status: Status,
    changes: Changes,
) -> Result<Source, SourceError> {
    let SourceSettings { source, node_name, kubeconfig, context, labels, annotations } = settings;
    let (credentials, kind, by) = match &source {
        SourceKind::Watch => (Credentials::Api { kubeconfig, context }, ServerKind::Api, "watch"),
        SourceKind::Kubelet(KubeletSettings { url, ca_file, insecure_skip_verify, .. }) => {
            let (url, ca_file, insecure_skip_verify) = (url.clone(), ca_file.clone(), *insecure_skip_verify);
            (Credentials::Kubelet { url, ca_file, insecure_skip_verify }, ServerKind::Kubelet, "kubelet")
        }
    };
    let server = credentials.server(kind)?;

    let teller = match &source {
        SourceKind::Watch => Teller::Api { node: node_name.as_str().into() },
        SourceKind::Kubelet(_) => Teller::Kubelet,
    };
    let (stats, poke, keep) = (Stats::default(), Arc::<Notify>::default(), Keep::new(&labels, &annotations, teller));
    let reporter = Reporter::new(status, Arc::clone(&stats), changes, node_name.clone(), by);
    let task = match source {
        SourceKind::Watch => tokio::spawn(Watch { credentials, server, node_name, keep, pace, reporter }.run()),
        SourceKind::Kubelet(KubeletSettings { interval, .. }) => {
            let poke = Arc::clone(&poke);
            tokio::spawn(Kubelet { credentials, server, keep, pace, interval, poke, reporter }.run())
        }
    };
    Ok(Source { stats, poke, task })
}

impl Source {
    /// How it does now.
    #[must_use]
    pub fn stats(&self) -> SourceStats {
        Mutex::lock(&self.stats).unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Someone has seen a container that is in no pod. Asks a kubelet, but once a second at most; a watch tells by
    /// itself.
    pub fn poke(&self) {
        self.poke.notify_one();
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort();
    }
}
