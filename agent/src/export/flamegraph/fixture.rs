//! Recordings for the tests of the formats.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    model::{
        lock::Lock,
        wait::{Unwind, WaitReason, WaitState},
    },
    recording::{Coverage, Merged, MergedSample, MergedSubject, Side, SubjectName},
    stacks::{
        SourceLines,
        profile::{Activity, Frame, FrameKind, Function, Stack},
    },
};

/// A hostile name of a function or cgroup. The formats must write it as text only.
pub(super) const HOSTILE: &str = "</text></svg><script>alert('1')</script>\";]]>";

pub(super) fn recording(samples: Vec<MergedSample>) -> Merged {
    recording_of("/a", samples)
}

pub(super) fn recording_of(path: &str, samples: Vec<MergedSample>) -> Merged {
    let mut coverage = Coverage::default();
    samples.iter().for_each(|sample| coverage.add(&sample.stack, &sample.activity, sample.nanoseconds));
    let on_cpu = samples.iter().any(|sample| sample.activity == Activity::OnCpu);
    Merged {
        side: if on_cpu { Side::OnCpu } else { Side::OffCpu },
        title: path.into(),
        subjects: vec![MergedSubject { name: SubjectName::Cgroup(path.into()), samples }],
        start: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
        duration: Duration::from_secs(10),
        coverage,
        user_frames_off: None,
        of_node: 0,
        losses: vec![],
        sample_period: on_cpu.then_some(Duration::from_millis(10)),
        merged: 0,
        bytes: 0,
        lines: SourceLines::default(),
    }
}

fn frames(kind: FrameKind, names: &[&str]) -> Vec<Arc<Frame>> {
    let function = |name: &str| Function { name: name.into(), file: "".into(), line: 0 };
    let frame = |(at, name): (usize, &&str)| {
        let address = 0x1000 + at as u64;
        Arc::new(Frame { address, kind, mapping: None, functions: vec![function(name)] })
    };
    names.iter().enumerate().map(frame).collect()
}

/// Returns a wait. Both stacks are leaf first.
pub(super) fn wait(reason: WaitReason, kernel: &[&str], user: &[&str], nanoseconds: u64) -> MergedSample {
    let frames = [frames(FrameKind::Kernel, kernel), frames(FrameKind::Native, user)].concat();
    MergedSample {
        stack: Arc::new(Stack { frames, unwind: Unwind::Whole }),
        activity: Activity::OffCpu { state: WaitState::Interruptible, reason, waker: None, lock: None },
        judgement: None,
        nanoseconds,
        count: 1,
    }
}

/// Returns a recording of one wait for a mutex of the kernel.
pub(super) fn waiting_for_mutex(nanoseconds: u64) -> Merged {
    let mut sample = wait(WaitReason::KernelLock, &["mutex_lock"], &["main"], nanoseconds);
    if let Activity::OffCpu { lock, .. } = &mut sample.activity {
        *lock = Lock::from_abi(8);
    }
    Merged { side: Side::Locks, ..recording(vec![sample]) }
}

/// Returns a sample with one frame of these functions, the innermost first.
pub(super) fn on_cpu(functions: &[&str], nanoseconds: u64) -> MergedSample {
    let function = |name: &&str| Function { name: (*name).into(), file: "src/x.rs".into(), line: 7 };
    let functions = functions.iter().map(function).collect();
    let frame = Frame { address: 0x2000, kind: FrameKind::Native, mapping: None, functions };
    MergedSample {
        stack: Arc::new(Stack { frames: vec![Arc::new(frame)], unwind: Unwind::Whole }),
        activity: Activity::OnCpu,
        judgement: None,
        nanoseconds,
        count: 1,
    }
}
