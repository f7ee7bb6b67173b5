//! One attempt to read the pods of this node, for `podperf check`: runs the source itself until it has an answer.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    credentials::SourceError,
    pace::Pace,
    reporter::{PART, WAITING},
    source::{SourceSettings, start_at},
};
use crate::model::status::{State, Status};

/// Time between two looks for an answer.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Share of the patience that the source gets as timeouts, so that the source itself can report the timeout.
const SHARE: f64 = 0.9;

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The state that the part `pods` would have.
    pub state: State,
    /// The detail of that state.
    pub detail: String,
    /// The server has answered, and would send changes.
    pub connected: bool,
}

/// Requests the pods as the agent does. Returns the state and detail of the part `pods` once it has pods and would
/// receive changes, or after the first failure. Takes no longer than `patience`. Must be called on a tokio runtime with
/// time and I/O.
///
/// # Errors
///
/// Fails without credentials, or if none of them can be used: the agent would not start.
pub async fn try_once(settings: SourceSettings, patience: Duration) -> Result<Trial, SourceError> {
    let deadline = Instant::now() + patience;
    let asked = patience.mul_f64(SHARE);
    let pace = Pace { list: asked, open: asked, hesitate: asked, ..Pace::default() };
    let status = Status::default();
    let source = start_at(pace, settings, status.clone(), Box::new(|_| ()))?;
    while Instant::now() < deadline {
        let stats = source.stats();
        if stats.connected || stats.failures > 0 {
            break;
        }
        sleep(LOOK_EVERY).await;
    }
    let part = status.parts().into_iter().find(|part| part.part == PART);
    let (state, detail) = part.map_or((State::Degraded, String::new()), |part| (part.state, part.detail));
    let connected = source.stats().connected;
    if detail == WAITING {
        // Name lookups and credential plugins run without a timeout.
        let detail = format!("no answer within {patience:?} (is the name server, or a credential plugin, slow?)");
        return Ok(Trial { state, detail, connected });
    }
    Ok(Trial { state, detail, connected })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{
        super::{
            case::{TOKEN, is_watch, kubeconfig_for, list, quiet_watch, refused, settings},
            played::{Answer, Played},
            source::{KubeletSettings, SourceKind},
        },
        *,
    };

    const PATIENCE: Duration = Duration::from_millis(500);

    async fn tries(answer: impl Fn(usize, &str) -> Answer + Send + Sync + 'static) -> Trial {
        let server = Played::start(answer).await;
        let (url, interval) = (Some(format!("http://{}", server.address)), Duration::from_secs(10));
        let kubelet = KubeletSettings { url, ca_file: None, insecure_skip_verify: false, interval };
        try_once(settings(SourceKind::Kubelet(kubelet), None), PATIENCE).await.unwrap()
    }

    #[tokio::test]
    async fn a_list_is_enough_and_one_failure_too() {
        let Trial { state, detail, .. } = tries(|_, _| list("1", &["web"])).await;
        assert_eq!((state, detail.as_str()), (State::Healthy, "1 pods of node `node-1` by kubelet"));
        let Trial { state, detail, .. } = tries(|_, _| list("1", &[])).await;
        assert!(state == State::Degraded && detail.contains("is that the node's name?"), "{detail}");
        let Trial { state, detail, .. } =
            tries(|_, _| refused(403, "Forbidden", "Forbidden (user=bob, verb=get)")).await;
        assert!(state == State::Degraded && detail.starts_with("may not get the pods of"), "{detail}");
    }

    #[tokio::test]
    async fn a_server_that_never_answers_costs_no_more_than_the_patience() {
        let start = Instant::now();
        let Trial { state, detail, .. } = tries(|_, _| Answer::Nothing).await;
        assert!(state == State::Degraded && detail.contains("(is it overloaded?)"), "{detail}");
        assert!(start.elapsed() <= PATIENCE + LOOK_EVERY * 5, "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn the_watch_is_tried_as_well_as_the_list() {
        let server = Played::start(|_, head| if is_watch(head) { quiet_watch() } else { list("1", &["web"]) }).await;
        let kubeconfig = tempfile::NamedTempFile::new().unwrap();
        fs::write(&kubeconfig, kubeconfig_for(server.address, TOKEN)).unwrap();
        let watch = |kubeconfig| settings(SourceKind::Watch, Some(kubeconfig));
        let Trial { state, detail, .. } = try_once(watch(kubeconfig.path().to_owned()), PATIENCE).await.unwrap();
        assert_eq!((state, detail.as_str()), (State::Healthy, "1 pods of node `node-1` by watch"));
        assert_eq!(server.seen("watch=").len(), 1);
        assert!(try_once(watch("/nonexistent".into()), PATIENCE).await.is_err());
    }
}
