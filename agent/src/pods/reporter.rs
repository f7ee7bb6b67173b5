//! Reports the findings of a source to its three readers: changes for the index, the state of the part, and the
//! counters.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use tracing::warn;

use super::pod::{Pod, PodChange};
use crate::model::status::{State, Status};

/// State and counters of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceStats {
    /// `true` while no change is missed.
    pub connected: bool,
    /// Complete lists after the first, and watches (or polls) that worked again after an error.
    pub restarts: u64,
    /// Number of failed attempts.
    pub failures: u64,
    /// Time of the last answer that proved the agent up to date.
    pub last_sync: Option<SystemTime>,
    /// Number of pods on the node.
    pub pods: usize,
    /// Reason of the last failed attempt, which stays after a later success.
    pub last_error: Option<String>,
}

/// Name of this part of the agent.
pub(super) const PART: &str = "pods";
/// Detail of the state before the first answer.
pub(super) const WAITING: &str = "waiting for the first list of pods";
/// Largest number of different reasons that are logged as warnings in one outage. Later reasons appear in the state and
/// in the count only.
const REASONS: usize = 16;

/// Callback for changes, which must not block.
pub(super) type Changes = Box<dyn Fn(PodChange) + Send>;
/// Counters, shared with [`super::Source`].
pub(super) type Stats = Arc<Mutex<SourceStats>>;

/// The reporter of a source.
pub(super) struct Reporter {
    status: Status,
    stats: Stats,
    changes: Changes,
    node_name: String,
    /// Kind of source: `watch` or `kubelet`.
    by: &'static str,
    /// Namespaces and names of the existing pods.
    pods: HashSet<(Arc<str>, Arc<str>)>,
    /// `true` once there was a pod, which proves the node's name right.
    found: bool,
    listed: bool,
    /// `true` after a failure, until an attempt works.
    broken: bool,
    connected: bool,
    /// The state last set in [`Status`], which logs each change of the state but no change of the reason.
    state: State,
    warned: HashSet<String>,
}

impl Reporter {
    pub(super) fn new(status: Status, stats: Stats, changes: Changes, node_name: String, by: &'static str) -> Self {
        status.set(PART, State::Degraded, WAITING);
        Self {
            status,
            stats,
            changes,
            node_name,
            by,
            pods: HashSet::new(),
            found: false,
            listed: false,
            broken: false,
            connected: false,
            state: State::Degraded,
            warned: HashSet::new(),
        }
    }

    /// Reports the whole list that starts a watch.
    pub(super) fn listed(&mut self, pods: Vec<Pod>) {
        if self.listed {
            self.broken = false;
            self.stats().restarts += 1;
        }
        self.polled(pods);
    }

    /// Reports the whole list of a poll.
    pub(super) fn polled(&mut self, pods: Vec<Pod>) {
        // A failure before the first list is no restart.
        self.broken &= self.listed;
        self.listed = true;
        self.pods = pods.iter().map(name).collect();
        (self.changes)(PodChange::All(pods));
        self.alive();
    }

    pub(super) fn applied(&mut self, pod: Pod) {
        self.pods.insert(name(&pod));
        (self.changes)(PodChange::Applied(pod));
        self.alive();
    }

    pub(super) fn deleted(&mut self, pod: Pod) {
        self.pods.remove(&name(&pod));
        (self.changes)(PodChange::Deleted(pod));
        self.alive();
    }

    /// Reports that no change will be missed from now on.
    pub(super) fn up(&mut self) {
        if std::mem::take(&mut self.broken) {
            self.stats().restarts += 1;
        }
        if !self.connected {
            self.connected = true;
            self.stats().connected = true;
            self.warned.clear();
            (self.changes)(PodChange::Connected);
        }
        self.alive();
    }

    /// Reports that no change was missed until now.
    pub(super) fn alive(&mut self) {
        let pods = self.pods.len();
        let mut stats = self.stats();
        stats.pods = pods;
        stats.last_sync = Some(SystemTime::now());
        drop(stats);
        if !self.connected {
            return;
        }
        self.found |= pods > 0;
        let Self { node_name, by, found, .. } = self;
        // The agent itself is a pod of its node, except where it runs outside of the cluster.
        let (state, detail) = match pods {
            0 if !*found => (
                State::Degraded,
                format!(
                    "no pods of node `{node_name}` by {by} (is that the node's name? set `nodeName`, or `NODE_NAME` \
                     from `spec.nodeName`)"
                ),
            ),
            pods => (State::Healthy, format!("{pods} pods of node `{node_name}` by {by}")),
        };
        self.set_state(state, detail);
    }

    /// Reports that changes may be missed from now on, although no attempt has failed yet.
    pub(super) fn down(&mut self, reason: &str) {
        self.broken = true;
        if self.connected {
            self.connected = false;
            self.stats().connected = false;
            (self.changes)(PodChange::Disconnected);
        }
        self.set_state(State::Degraded, reason.to_owned());
    }

    /// Reports a failed attempt.
    pub(super) fn failed(&mut self, reason: &str) {
        let mut stats = self.stats();
        stats.failures += 1;
        stats.last_error = Some(reason.to_owned());
        drop(stats);
        self.down(reason);
    }

    fn set_state(&mut self, state: State, detail: String) {
        if state != State::Healthy {
            let news = self.warned.len() < REASONS && self.warned.insert(detail.clone());
            if news && state == self.state {
                warn!(part = PART, state = state.name(), detail, "part");
            }
        }
        self.state = state;
        self.status.set(PART, state, detail);
    }

    fn stats(&self) -> MutexGuard<'_, SourceStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter").field("node_name", &self.node_name).field("by", &self.by).finish_non_exhaustive()
    }
}

fn name(pod: &Pod) -> (Arc<str>, Arc<str>) {
    (Arc::clone(&pod.namespace), Arc::clone(&pod.name))
}

#[cfg(test)]
mod tests {
    use super::super::{
        case::{Case, is_watch, list, quiet_watch, refused},
        played::{Answer, Played},
    };
    use crate::telemetry::test_log::Log;

    #[tokio::test]
    async fn each_reason_is_warned_of_once_and_kube_is_not_heard() {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let server = Played::start(|number, head| match number {
            0 | 2 | 4 => refused(500, "InternalError", "etcd is away"),
            1 | 3 => Answer::Body(200, "<html>secret".into()),
            _ if is_watch(head) => quiet_watch(),
            _ => list("10", &["web"]),
        })
        .await;
        let case = Case::watch(server.address);
        case.sends(&["all web", "connected"]).await;
        assert_eq!(case.source.stats().failures, 5);
        drop(case);
        let log = log.text();
        for (what, times) in
            [("waiting for", 1), ("etcd is away", 1), ("is something else there", 1), ("1 pods of node", 1), ("", 4)]
        {
            assert_eq!(log.lines().filter(|line| line.contains(what)).count(), times, "{what}: {log}");
        }
        assert!(!log.contains("secret") && !log.contains("ERROR"), "{log}");
    }
}
