//! A source of pods: its settings, its start and its state.

use super::reporter::SourceStats;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, task::JoinHandle};

use super::{
    credentials::{Credentials, SourceError},
    kubelet::Kubelet,
    pace::Pace,
    pod::PodChange,
    prune::{Origin, PruneRules},
    reporter::{Changes, Reporter, Stats},
    request_failure::ServerKind,
    watch::Watch,
};
use crate::model::status::Status;

/// The server that pods come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A watch on the API server.
    Watch,
    /// Polls of the node's kubelet.
    Kubelet(KubeletSettings),
}

/// Settings of the kubelet source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletSettings {
    /// `http://` for the kubelet's read-only port; `None` for `https://` and port 10250 of `$NODE_IP`, or of 127.0.0.1.
    pub url: Option<String>,
    /// File with the CA of the kubelet's certificate; `None` for the cluster's CA.
    pub ca_file: Option<PathBuf>,
    /// Accepts any certificate, such as the self-signed ones of kubelets.
    pub insecure_skip_verify: bool,
    /// Time between two polls.
    pub interval: Duration,
}

/// Settings of a source of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSettings {
    /// The server that the pods come from.
    pub source: SourceKind,
    /// Name of the node whose pods the source reads. A kubelet has only its own node's pods.
    pub node_name: String,
    /// `None` for the service account of the agent's pod.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; `None` for its current context.
    pub context: Option<String>,
    /// Keys of the labels to keep.
    pub labels: Vec<String>,
    /// Keys of the annotations to keep.
    pub annotations: Vec<String>,
}

/// Handle of the task that requests pods. Dropping the handle ends the task.
#[derive(Debug)]
pub struct Source {
    stats: Stats,
    poke: Arc<Notify>,
    task: JoinHandle<()>,
}

/// Reads the credentials of a source, and sends no request.
///
/// # Errors
///
/// Fails without credentials, or if none of them can be used, as [`start`] does.
pub fn check(settings: &SourceSettings) -> Result<(), SourceError> {
    let (credentials, kind, _) = settings.login();
    credentials.server(kind).map(drop)
}

/// Starts the task that requests pods. Must be called on a tokio runtime with time and I/O. The task calls `changes` on
/// this runtime, so `changes` must not block.
///
/// # Errors
///
/// Fails without credentials, or if none of them can be used. An unreachable server is no error.
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
    let (credentials, kind, by) = settings.login();
    let SourceSettings { source, node_name, labels, annotations, .. } = settings;
    let server = credentials.server(kind)?;

    let origin = match &source {
        SourceKind::Watch => Origin::Api { node: node_name.as_str().into() },
        SourceKind::Kubelet(_) => Origin::Kubelet,
    };
    let (stats, poke, keep) =
        (Stats::default(), Arc::<Notify>::default(), PruneRules::new(&labels, &annotations, origin));
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

impl SourceSettings {
    /// Returns the credentials, the kind of the server, and the word for the way.
    fn login(&self) -> (Credentials, ServerKind, &'static str) {
        match &self.source {
            SourceKind::Watch => {
                let (kubeconfig, context) = (self.kubeconfig.clone(), self.context.clone());
                (Credentials::Api { kubeconfig, context }, ServerKind::Api, "watch")
            }
            SourceKind::Kubelet(KubeletSettings { url, ca_file, insecure_skip_verify, .. }) => {
                let (url, ca_file, insecure_skip_verify) = (url.clone(), ca_file.clone(), *insecure_skip_verify);
                (Credentials::Kubelet { url, ca_file, insecure_skip_verify }, ServerKind::Kubelet, "kubelet")
            }
        }
    }
}

impl Source {
    /// Returns the current state and counters of the source.
    #[must_use]
    pub fn stats(&self) -> SourceStats {
        Mutex::lock(&self.stats).unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks the kubelet for its pods now, but at most once a second. The caller has seen a container that is in no
    /// known pod. A watch ignores this call, because the API server sends each change by itself.
    pub fn poke(&self) {
        self.poke.notify_one();
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.task.abort();
    }
}
