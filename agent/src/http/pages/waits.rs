//! Lists long waits one by one, each with its end, its subject, its reason and its waker. Pure but for [`answer`].

use std::{
    cmp::Reverse,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    extract::State as Shared,
    http::{Uri, header},
    response::{IntoResponse, Response},
};
use serde::{Serialize, Serializer};

use super::profile::{Query, bad, failed};
use crate::export::drawing::{Drawing, DrawingKey, Drawn};
use crate::{
    agent::Agent,
    model::slot::Slot,
    recording::{Selector, SubjectName},
    stacks::profile::{Activity, Profile, Sample, Stack},
};

/// The most waits of an answer; older waits are left out.
const MOST: usize = 1000;

/// A wait of at least `stacks.longWait`. It borrows the sample: copies of a thousand deep stacks would take some
/// megabytes.
#[derive(Debug, Serialize)]
struct LongWait<'a> {
    /// The end of the wait, Unix time in seconds.
    ended: f64,
    seconds: f64,
    #[serde(serialize_with = "as_text")]
    subject: &'a SubjectName,
    state: &'static str,
    reason: &'static str,
    /// The thread that ended the wait, and the subject of that thread; left out if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    waker: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waker_of: Option<&'a str>,
    /// The stack of the waker, outermost function first, if `stacks.wakerStacks` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    waker_stack: Option<&'a str>,
    /// The stack of the wait, leaf first, with files and addresses for frames without a name.
    #[serde(serialize_with = "by_name")]
    stack: &'a Stack,
}

fn as_text<S: Serializer>(name: &SubjectName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(name)
}

fn by_name<S: Serializer>(stack: &Stack, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(stack.frames.iter().map(|frame| frame.name()))
}

/// `GET /debug/waits?subject=...`: returns the long waits of the last minutes, the latest first, as JSON.
pub(in crate::http) async fn answer(Shared(agent): Shared<Arc<Agent>>, uri: Uri) -> Response {
    let query = Query::of(&uri);
    let selector = match query.selector() {
        Ok(selector) => selector,
        Err(error) => return bad(&agent, &query, error).await,
    };
    if let Err(error) = agent.has_memory() {
        return failed(&error);
    }
    let selector = match agent.find(&selector).await {
        Ok(selector) => selector,
        Err(error) => return failed(&error),
    };
    let least = agent.long_wait();
    let key = DrawingKey { what: Drawing::Waits(least), selector: selector.clone() };
    let write = move |windows: &[Arc<Profile>]| Drawn { body: write(windows, &selector, least), nonce: None };
    match agent.drawer().draw_windows(agent.windows(), key, write).await {
        Ok(drawn) => ([(header::CONTENT_TYPE, "application/json")], drawn.body()).into_response(),
        Err(error) => failed(&error),
    }
}

/// Writes the long waits of the windows as JSON. Long waits are never summed, so each is a sample of its own. A shorter
/// wait may be a sample of its own by chance, so the length is checked, too.
fn write(windows: &[Arc<Profile>], selector: &Selector, least: Duration) -> Vec<u8> {
    let least = u64::try_from(least.as_nanos()).unwrap_or(u64::MAX);
    let is_long = |sample: &&Sample| sample.count == 1 && length(sample) >= least && Slot::OWN.let_pass(sample.passed);
    let subjects: Vec<_> = windows
        .iter()
        .flat_map(|window| &window.subjects)
        .filter(|subject| selector.takes(&subject.subject))
        .map(|subject| (SubjectName::from(&subject.subject), subject))
        .collect();
    let mut samples: Vec<_> = subjects
        .iter()
        .flat_map(|(name, subject)| subject.samples.iter().filter(is_long).map(move |sample| (name, sample)))
        .filter(|(_, sample)| matches!(sample.activity, Activity::OffCpu { .. }))
        .collect();
    samples.sort_by_key(|(_, sample)| Reverse(sample.last));
    samples.truncate(MOST);
    let waits: Vec<_> = samples.into_iter().filter_map(|(name, sample)| wait(name, sample)).collect();
    // Writing numbers and strings to memory does not fail.
    serde_json::to_vec(&waits).unwrap_or_default()
}

/// Returns the length of a single wait, in nanoseconds.
const fn length(sample: &Sample) -> u64 {
    sample.nanoseconds.saturating_add(sample.so_far_ns)
}

fn wait<'a>(subject: &'a SubjectName, sample: &'a Sample) -> Option<LongWait<'a>> {
    let Activity::OffCpu { state, reason, waker, .. } = &sample.activity else { return None };
    Some(LongWait {
        ended: seconds(sample.last),
        seconds: Duration::from_nanos(length(sample)).as_secs_f64(),
        subject,
        state: state.name(),
        reason: reason.name(),
        waker: waker.as_ref().map(|waker| &*waker.thread),
        waker_of: waker.as_ref().map(|waker| &*waker.subject),
        waker_stack: waker.as_ref().and_then(|waker| waker.stack.as_deref()),
        stack: &sample.stack,
    })
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attribution::Subject,
        model::wait::{WaitReason, WaitState},
        stacks::profile::{SubjectProfile, Waker},
    };

    fn sample(millis: u64, ended: u64, count: u64, passed: u8) -> Sample {
        let waker = Some(Arc::new(Waker { thread: "writer".into(), subject: "/b".into(), stack: None }));
        Sample {
            stack: Arc::new(Stack::default()),
            activity: Activity::OffCpu { state: WaitState::Interruptible, reason: WaitReason::Pipe, waker, lock: None },
            nanoseconds: millis * 750_000,
            so_far_ns: millis * 250_000,
            count,
            last: UNIX_EPOCH + Duration::from_secs(ended),
            passed,
        }
    }

    #[test]
    fn the_latest_long_wait_comes_first_and_no_other_is_listed() {
        let samples = vec![
            sample(600, 10, 1, 1),
            sample(700, 20, 1, 1),
            sample(9000, 30, 12, 1),
            sample(100, 40, 1, 1),
            sample(800, 50, 1, 2),
            Sample { activity: Activity::OnCpu, ..sample(900, 60, 1, 1) },
        ];
        let subject = SubjectProfile { subject: Subject::Cgroup("/a".into()), samples };
        let window = Arc::new(Profile { subjects: vec![subject], ..Profile::default() });
        let text = write(std::slice::from_ref(&window), &Selector::All, Duration::from_millis(500));
        let found: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
        let told: Vec<_> = found.iter().map(|wait| (wait["ended"].as_f64(), wait["seconds"].as_f64())).collect();
        assert_eq!(told, [(Some(20.0), Some(0.7)), (Some(10.0), Some(0.6))]);
        let text = found[0].to_string();
        assert!(
            text.contains("\"subject\":\"/a\"") && text.contains("\"waker\":\"writer\",\"waker_of\":\"/b\""),
            "{text}"
        );
        assert_eq!(write(&[window], &"/c".parse().unwrap(), Duration::ZERO), b"[]");
    }
}
