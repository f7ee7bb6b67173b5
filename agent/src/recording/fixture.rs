//! Waits of invented pods, for tests.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    attribution::Subject,
    model::wait::{Unwind, WaitReason, WaitState},
    pods::{ContainerInfo, Pod},
    stacks::profile::{Activity, Frame, FrameKind, Function, Profile, Sample, Stack, SubjectProfile, Waker},
};

/// The length of a window.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

pub(crate) fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1000)
}

/// Returns a stack of these functions, each list with the leaf first.
pub(crate) fn stack(kernel: &[&str], user: &[&str]) -> Arc<Stack> {
    let function = |name: &str| Function { name: name.into(), file: "".into(), line: 0 };
    let frame = |kind, name: &str| Arc::new(Frame { address: 1, kind, mapping: None, functions: vec![function(name)] });
    let kernel = kernel.iter().map(|name| frame(FrameKind::Kernel, name));
    let user = user.iter().map(|name| frame(FrameKind::Native, name));
    Arc::new(Stack { frames: kernel.chain(user).collect(), unwind: Unwind::Whole })
}

/// Returns waits of so many threads all the time, which ended. A wait is 20 ms long.
pub(crate) fn waits(reason: WaitReason, threads: f64) -> Sample {
    let nanoseconds = u64::try_from(WINDOW.mul_f64(threads).as_nanos()).unwrap_or(u64::MAX);
    Sample {
        stack: Arc::default(),
        activity: Activity::OffCpu { state: WaitState::Interruptible, reason, waker: None, lock: None },
        nanoseconds,
        so_far_ns: 0,
        count: (nanoseconds / 20_000_000).max(1),
        last: start() + WINDOW,
        passed: 1,
    }
}

/// Returns waits in this state.
pub(crate) fn in_state(is: WaitState, mut sample: Sample) -> Sample {
    if let Activity::OffCpu { state, .. } = &mut sample.activity {
        *state = is;
    }
    sample
}

/// Returns waits that a thread of this owner ended.
pub(crate) fn ended_by(owner: &str, mut sample: Sample) -> Sample {
    if let Activity::OffCpu { waker, .. } = &mut sample.activity {
        *waker = Some(Arc::new(Waker { thread: "python3".into(), subject: owner.into(), stack: None }));
    }
    sample
}

/// Returns waits of this mean length.
pub(crate) fn each_of(milliseconds: u64, sample: Sample) -> Sample {
    Sample { count: (sample.nanoseconds / (milliseconds * 1_000_000)).max(1), ..sample }
}

/// Returns waits on this stack.
pub(crate) fn on_stack(stack: Arc<Stack>, sample: Sample) -> Sample {
    Sample { stack, ..sample }
}

/// Returns the parts of waits that go on.
pub(crate) fn that_go_on(sample: Sample) -> Sample {
    Sample { count: 0, ..sample }
}

/// Returns samples of so many CPUs all the time.
pub(crate) fn on_cpu(cpus: f64) -> Sample {
    Sample { activity: Activity::OnCpu, ..waits(WaitReason::Other, cpus) }
}

/// Returns the samples of the container `app` of a pod, which is written as `namespace/pod`.
pub(crate) fn pod(name: &str, samples: Vec<Sample>) -> SubjectProfile {
    container(name, "app", samples)
}

/// Returns the samples of a container of a pod.
pub(crate) fn container(pod: &str, container: &str, samples: Vec<Sample>) -> SubjectProfile {
    let (namespace, name) = pod.split_once('/').unwrap_or(("", pod));
    let info = ContainerInfo {
        pod: Arc::new(Pod { namespace: namespace.into(), name: name.into(), ..Pod::example() }),
        name: container.into(),
        image: "image".into(),
        id: "ab".repeat(32).parse().unwrap(),
    };
    SubjectProfile { subject: Subject::Container(Arc::new(info)), samples }
}

/// Returns a window with these subjects.
pub(crate) fn window(subjects: Vec<SubjectProfile>) -> Arc<Profile> {
    let sample_period = Some(Duration::from_millis(20));
    Arc::new(Profile { subjects, start: Some(start()), duration: WINDOW, losses: vec![], sample_period })
}
