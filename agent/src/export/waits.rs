//! Long waits one by one: when each ended, whose it was, what for and by whom it was ended. Pure but for [`answer`].

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    extract::State as Shared,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::profile::{Query, failed, refusal};
use crate::{
    agent::Agent,
    filter::Slot,
    recording::{Selector, SubjectName},
    stacks::profile::{Activity, Profile, Sample},
};

/// So many are told, the latest.
const MOST: usize = 1000;

/// One wait of at least `stacks.longWait`.
#[derive(Debug, Serialize)]
struct LongWait {
    /// When it ended, Unix time in seconds.
    ended: f64,
    seconds: f64,
    subject: String,
    state: &'static str,
    reason: &'static str,
    /// The thread that ended it, and whose that is; left out where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    waker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waker_of: Option<String>,
    /// From where it did, outermost function first, if `stacks.wakerStacks` has that taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    waker_stack: Option<String>,
    /// Leaf first; files and addresses where there are no names.
    stack: Vec<String>,
}

/// `GET /debug/waits?subject=...`: those of the last minutes, the latest first, as JSON.
pub(super) async fn answer(Shared(agent): Shared<Arc<Agent>>, uri: Uri) -> Response {
    let selector = match Query::of(&uri).selector() {
        Ok(selector) => selector,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, &error),
    };
    if let Err(error) = agent.has_memory() {
        return failed(&error);
    }
    let (windows, least) = (agent.windows().recent(), agent.long_wait());
    let write = move || serde_json::to_vec(&waits(&windows, &selector, least));
    match tokio::task::spawn_blocking(write).await {
        Ok(Ok(body)) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        _ => refusal(StatusCode::INTERNAL_SERVER_ERROR, "failed to write the waits"),
    }
}

/// Long waits are never summed, so each is a sample of its own; shorter ones may be one by chance.
fn waits(windows: &[Arc<Profile>], selector: &Selector, least: Duration) -> Vec<LongWait> {
    let least = u64::try_from(least.as_nanos()).unwrap_or(u64::MAX);
    let is_long =
        |sample: &&Sample| sample.count == 1 && sample.nanoseconds >= least && Slot::OWN.let_pass(sample.passed);
    let mut waits = Vec::new();
    for subject in windows.iter().flat_map(|window| &window.subjects) {
        let name = SubjectName::of(&subject.resource);
        if selector.has(&name) {
            let name = name.to_string();
            waits.extend(subject.samples.iter().filter(is_long).filter_map(|sample| wait(&name, sample)));
        }
    }
    waits.sort_by(|a, b| b.ended.total_cmp(&a.ended));
    waits.truncate(MOST);
    waits
}

fn wait(subject: &str, sample: &Sample) -> Option<LongWait> {
    let Activity::OffCpu { state, reason, waker } = &sample.activity else { return None };
    Some(LongWait {
        ended: seconds(sample.last),
        seconds: Duration::from_nanos(sample.nanoseconds).as_secs_f64(),
        subject: subject.to_owned(),
        state: state.name(),
        reason: reason.name(),
        waker: waker.as_ref().map(|waker| waker.thread.clone()),
        waker_of: waker.as_ref().map(|waker| waker.subject.clone()),
        waker_stack: waker.as_ref().and_then(|waker| waker.stack.clone()),
        stack: sample.stack.frames.iter().map(|frame| frame.name().into_owned()).collect(),
    })
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::{
        profile::{Stack, SubjectProfile, WaitState, Waker},
        reason::WaitReason,
    };

    fn sample(millis: u64, ended: u64, count: u64, passed: u8) -> Sample {
        let waker = Some(Arc::new(Waker { thread: "writer".into(), subject: "/b".into(), stack: None }));
        Sample {
            stack: Arc::new(Stack::default()),
            activity: Activity::OffCpu { state: WaitState::Interruptible, reason: WaitReason::Pipe, waker },
            nanoseconds: millis * 1_000_000,
            count,
            last: UNIX_EPOCH + Duration::from_secs(ended),
            passed,
        }
    }

    #[test]
    fn the_latest_long_wait_comes_first_and_no_other_is_told() {
        let samples = vec![
            sample(600, 10, 1, 1),
            sample(700, 20, 1, 1),
            sample(9000, 30, 12, 1),
            sample(100, 40, 1, 1),
            sample(800, 50, 1, 2),
            Sample { activity: Activity::OnCpu, ..sample(900, 60, 1, 1) },
        ];
        let resource = vec![("podperf.cgroup.path".to_owned(), "/a".to_owned())];
        let subject = SubjectProfile { resource, samples };
        let window = Arc::new(Profile { subjects: vec![subject], ..Profile::default() });
        let found = waits(std::slice::from_ref(&window), &Selector::All, Duration::from_millis(500));
        let told: Vec<_> = found.iter().map(|wait| (wait.ended, wait.seconds)).collect();
        assert_eq!(told, [(20.0, 0.7), (10.0, 0.6)]);
        let text = serde_json::to_string(&found[0]).unwrap();
        assert!(
            text.contains("\"subject\":\"/a\"") && text.contains("\"waker\":\"writer\",\"waker_of\":\"/b\""),
            "{text}"
        );
        assert!(waits(&[window], &"/c".parse().unwrap(), Duration::ZERO).is_empty());
    }
}
