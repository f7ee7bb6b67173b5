//! A source under test, connected to a played server, and the messages of both.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::{
    pace::Pace,
    played::{Answer, End},
    pod::PodChange,
    source::{KubeletSettings, Source, SourceKind, SourceSettings, start_at},
};
use crate::model::status::{Part, Status};

pub(super) const TOKEN: &str = "ey.secret-token.x";

/// Short delays and timeouts: a test's faults end within milliseconds.
pub(super) fn pace() -> Pace {
    Pace {
        first: Duration::from_millis(5),
        most: Duration::from_millis(20),
        list: Duration::from_millis(300),
        open: Duration::from_millis(300),
        hesitate: Duration::from_millis(100),
        idle: Duration::from_secs(20),
        brief: Duration::ZERO,
        settled: Duration::ZERO,
        polls: Duration::from_millis(50),
    }
}

/// A source under test and the changes that it has sent.
pub(super) struct Case {
    pub(super) source: Source,
    pub(super) kubeconfig: NamedTempFile,
    status: Status,
    sent: Arc<Mutex<Vec<String>>>,
}

impl Case {
    pub(super) fn watch(address: SocketAddr) -> Self {
        Self::watch_with(pace(), address)
    }

    pub(super) fn watch_with(pace: Pace, address: SocketAddr) -> Self {
        let kubeconfig = NamedTempFile::new().unwrap();
        fs::write(&kubeconfig, kubeconfig_for(address, TOKEN)).unwrap();
        let settings = settings(SourceKind::Watch, Some(kubeconfig.path().to_owned()));
        Self::start(pace, settings, kubeconfig)
    }

    pub(super) fn kubelet(address: SocketAddr, interval: Duration) -> Self {
        let url = Some(format!("http://{address}"));
        let kubelet = KubeletSettings { url, ca_file: None, insecure_skip_verify: false, interval };
        Self::start(pace(), settings(SourceKind::Kubelet(kubelet), None), NamedTempFile::new().unwrap())
    }

    fn start(pace: Pace, settings: SourceSettings, kubeconfig: NamedTempFile) -> Self {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let status = Status::default();
        let changes = {
            let sent = Arc::clone(&sent);
            move |change: PodChange| sent.lock().unwrap().push(describe(&change))
        };
        let source = start_at(pace, settings, status.clone(), Box::new(changes)).unwrap();
        Self { source, status, sent, kubeconfig }
    }

    pub(super) fn sent(&self) -> Vec<String> {
        self.sent.lock().unwrap().clone()
    }

    pub(super) fn part(&self) -> Part {
        self.status.parts().pop().unwrap()
    }

    pub(super) async fn until(&self, what: &str, reached: impl Fn(&Self) -> bool) {
        for _ in 0..2000 {
            if reached(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("not {what}: {:?}\n{:?}\n{:?}", self.sent(), self.part(), self.source.stats());
    }

    /// Waits until the source has sent exactly these changes.
    pub(super) async fn sends(&self, expected: &[&str]) {
        self.until("told", |case| case.sent().len() >= expected.len()).await;
        assert_eq!(self.sent(), expected);
    }
}

fn describe(change: &PodChange) -> String {
    match change {
        PodChange::All(pods) => {
            format!("all {}", pods.iter().map(|pod| pod.name.to_string()).collect::<Vec<_>>().join(" "))
        }
        PodChange::Applied(pod) => format!("applied {}", pod.name),
        PodChange::Deleted(pod) => format!("deleted {}", pod.name),
        PodChange::Connected => "connected".into(),
        PodChange::Disconnected => "disconnected".into(),
    }
}

pub(super) fn settings(source: SourceKind, kubeconfig: Option<PathBuf>) -> SourceSettings {
    let node_name = "node-1".into();
    SourceSettings { source, node_name, kubeconfig, context: None, labels: Vec::new(), annotations: Vec::new() }
}

pub(super) fn kubeconfig_for(address: SocketAddr, token: &str) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "test", "user": {"token": token}}],
    })
    .to_string()
}

pub(super) fn pod(name: &str, version: &str) -> Value {
    json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}"), "resourceVersion": version},
    })
}

pub(super) fn list(version: &str, names: &[&str]) -> Answer {
    let items: Vec<_> = names.iter().map(|name| pod(name, version)).collect();
    let body = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items});
    Answer::Body(200, body.to_string())
}

pub(super) fn event(kind: &str, object: Value) -> String {
    json!({"type": kind, "object": object}).to_string()
}

pub(super) fn bookmark(version: &str) -> String {
    event("BOOKMARK", json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": version}}))
}

pub(super) fn refusal(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

pub(super) fn refused(code: u16, reason: &str, message: &str) -> Answer {
    Answer::Body(code, refusal(code, reason, message).to_string())
}

pub(super) fn quiet_watch() -> Answer {
    Answer::Lines(Vec::new(), End::Stay)
}

pub(super) fn is_watch(head: &str) -> bool {
    head.contains("watch=true")
}
