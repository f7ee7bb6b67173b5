//! Finds out whether the DaemonSet that runs this agent is being deleted: then no agent follows, and this agent must
//! remove its pins.
//!
//! The agent requests the DaemonSet when it receives the signal to end. An uninstall also removes the agent's
//! permissions, in no reliable order. So an agent that had the permission before, and lost it, also counts the
//! DaemonSet as being deleted.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::Deserialize;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    ask::quietly,
    credentials::Credentials,
    request_failure::{Server, ServerKind},
};

/// Timeout of one request.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two attempts to find out whether the agent may request the DaemonSet.
const AGAIN: Duration = Duration::from_secs(10);

/// The DaemonSet that runs this agent.
#[derive(Debug)]
pub struct DaemonSet {
    asked: Asked,
    could_ask: Arc<AtomicBool>,
    first: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct Asked {
    credentials: Credentials,
    path: String,
}

#[derive(Debug, Default, Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    deletion_timestamp: Option<String>,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    There,
    BeingDeleted,
    /// The server has rejected the request, with this HTTP status code.
    Refused(u16),
    Silent,
}

impl DaemonSet {
    /// Creates the handle from `NAMESPACE/NAME`; returns `None` for a name of another form. Starts a task that finds
    /// out whether the agent may request the DaemonSet. Must be called on a tokio runtime with time and I/O.
    #[must_use]
    pub fn new(name: &str, kubeconfig: Option<PathBuf>, context: Option<String>) -> Option<Self> {
        let (namespace, name) = name.split_once('/')?;
        let path = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
        let asked = Asked { credentials: Credentials::Api { kubeconfig, context }, path };
        let could_ask = Arc::<AtomicBool>::default();
        let first = tokio::spawn(find_out(asked.clone(), Arc::clone(&could_ask)));
        Some(Self { asked, could_ask, first })
    }

    /// Returns `true` if the DaemonSet is being deleted, or no longer exists; `false` if the agent cannot find out.
    pub async fn is_going(&self) -> bool {
        let could_ask = self.could_ask.load(Ordering::Relaxed);
        let answer = self.asked.ask().await;
        debug!(?answer, could_ask, "asked for the DaemonSet");
        is_going(answer, could_ask)
    }
}

impl Drop for DaemonSet {
    fn drop(&mut self) {
        self.first.abort();
    }
}

async fn find_out(asked: Asked, could_ask: Arc<AtomicBool>) {
    let mut warned = false;
    loop {
        match asked.ask().await {
            Answer::There | Answer::BeingDeleted => {
                could_ask.store(true, Ordering::Relaxed);
                info!("pins go when the DaemonSet does");
                return;
            }
            Answer::Refused(code) if !warned => {
                warned = true;
                warn!(
                    code,
                    path = asked.path,
                    "may not ask for the DaemonSet: pins stay when it is deleted (grant `get` on it, or run `podperf unpin` on \
                     each node)"
                );
            }
            Answer::Refused(_) | Answer::Silent => {}
        }
        sleep(AGAIN).await;
    }
}

impl Asked {
    async fn ask(&self) -> Answer {
        timeout(PATIENCE, quietly(self.request())).await.unwrap_or(Answer::Silent)
    }

    async fn request(&self) -> Answer {
        let server = Server { url: String::new(), kind: ServerKind::Api };
        let Ok(client) = self.credentials.login(&server).await else { return Answer::Silent };
        let Ok(request) = http::Request::get(&self.path).body(Vec::new()) else { return Answer::Silent };
        match client.request::<Object>(request).await {
            Ok(object) if object.metadata.deletion_timestamp.is_some() => Answer::BeingDeleted,
            Ok(_) => Answer::There,
            Err(kube::Error::Api(status)) => Answer::Refused(status.code),
            Err(_) => Answer::Silent,
        }
    }
}

/// Interprets an answer; `could_ask` is `true` if an earlier request succeeded.
const fn is_going(answer: Answer, could_ask: bool) -> bool {
    match answer {
        Answer::BeingDeleted => true,
        Answer::Refused(404) => true,
        Answer::Refused(401 | 403) => could_ask,
        Answer::There | Answer::Refused(_) | Answer::Silent => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{
        super::{
            case::{TOKEN, kubeconfig_for, refused},
            played::{Answer as Reply, Played},
        },
        *,
    };

    async fn goes(first: Reply, then: Reply) -> bool {
        let server = Played::start(move |number, head| {
            assert!(head.starts_with("GET /apis/apps/v1/namespaces/perf/daemonsets/podperf "), "{head}");
            if number == 0 { first.clone() } else { then.clone() }
        })
        .await;
        let kubeconfig = tempfile::NamedTempFile::new().unwrap();
        fs::write(&kubeconfig, kubeconfig_for(server.address, TOKEN)).unwrap();
        let own = DaemonSet::new("perf/podperf", Some(kubeconfig.path().to_owned()), None).unwrap();
        while server.requests.lock().unwrap().is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
        sleep(Duration::from_millis(100)).await;
        own.is_going().await
    }

    fn object(metadata: &str) -> Reply {
        Reply::Body(200, format!(r#"{{"kind":"DaemonSet","apiVersion":"apps/v1","metadata":{metadata}}}"#))
    }

    #[tokio::test]
    async fn one_that_is_deleted_or_gone_goes_and_one_that_is_there_stays() {
        let there = || object("{}");
        assert!(!goes(there(), there()).await);
        assert!(goes(there(), object(r#"{"deletionTimestamp":"2026-01-01T00:00:00Z"}"#)).await);
        assert!(goes(there(), refused(404, "NotFound", "not found")).await);
        assert!(!goes(there(), refused(500, "InternalError", "no")).await);
    }

    #[tokio::test]
    async fn who_may_no_longer_ask_is_being_uninstalled_and_who_never_might_is_not() {
        let refused = || refused(403, "Forbidden", "Forbidden (user=bob, verb=get)");
        assert!(goes(object("{}"), refused()).await);
        assert!(!goes(refused(), refused()).await);
    }

    #[tokio::test]
    async fn a_name_has_a_namespace() {
        assert!(DaemonSet::new("podperf", None, None).is_none());
    }
}
