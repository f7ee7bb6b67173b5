//! The thread that turns windows of addresses into profiles with names, and sends them to the exporters.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{
    ProfileSample, RawProfile, RawProfileWaker, bpf_programs,
    counts::{Cause, SymbolCounts},
    debuginfod::Fetcher,
    lines::FilesRequest,
    profile::{Activity, Profile, Sample, Stack, SubjectProfile, Waker},
    reader::{Blocked, Reader},
    shares::{TimeForFiles, share},
    symbols::{NamedStack, Symbols},
    unread::FrameOwner,
};
use crate::model::wait::{Unwind, WaitReason};
use crate::{
    attribution::Subject,
    kernel::{
        clock,
        records::{RawActivity, RawStack, SampleKey},
        return_free_memory,
    },
    limits::memory::GivenUp,
    model::{
        facts::{Fact, Facts},
        feature::Feature,
        ids::{Pid, StackId},
        mode::Mode,
    },
    sandbox::confine_reader,
};

/// The longest time that a window waits while no process arrives.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The way to find names.
#[derive(Debug)]
pub struct Naming {
    /// A mode without user frames needs no files, and then none are read.
    pub mode: Mode,
    /// Set if this thread and the thread for files can only read, because the files are untrusted.
    pub confined: bool,
    /// Set if stacks are unwound by tables.
    pub tables: bool,
    /// The source of missing debug files, if there is one.
    pub fetcher: Option<Fetcher>,
    /// Told whether files are read.
    pub blocked: Blocked,
}

/// Starts the thread: it takes windows until their sender is gone, and calls `send` with each profile and the
/// completeness of its stack walks. Between windows, it reads the mappings of `processes` with a new stack, so that
/// they have names even if they end before their window does, and answers requests for `files`. While caches are
/// `given_up`, it remembers nothing between windows.
///
/// # Errors
///
/// When the thread cannot be started.
pub fn start(
    windows: mpsc::Receiver<RawProfile>,
    processes: mpsc::Receiver<Pid>,
    files: mpsc::Receiver<FilesRequest>,
    counts: SymbolCounts,
    given_up: GivenUp,
    naming: Naming,
    mut send: impl FnMut(Profile, Vec<(Subject, Facts)>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let Naming { mode, confined, tables, fetcher, blocked } = naming;
    let reader = (mode == Mode::Profiles).then(|| Reader::start(confined)).transpose()?;
    let reader = reader.map(|reader| reader.telling(blocked));
    thread::Builder::new().name("podperf-symbols".into()).spawn(move || {
        if confined && let Err(error) = confine_reader() {
            tracing::warn!(error = format!("{:#}", anyhow::Error::from(error)), "stacks are named without a sandbox");
        }
        let mut symbols = Symbols::new(reader).with_fetcher(fetcher).with_tables(tables);
        let mut number = 0_usize;
        while let Some(work) = next(&windows, &files, &processes) {
            let forgets = given_up.has(Feature::Caches);
            match work {
                Work::Window(window) => {
                    let on_its_way = Arc::clone(&window.on_its_way);
                    number = number.wrapping_add(1);
                    let time =
                        if given_up.spreads_symbols() { TimeForFiles::Little(number) } else { TimeForFiles::Enough };
                    let (profile, unwound) = profile(window, &mut symbols, &counts, time);
                    send(profile, unwound);
                    drop(on_its_way);
                    if forgets {
                        symbols = symbols.forget();
                    }
                    if forgets || symbols.has_read_files() {
                        return_free_memory();
                    }
                }
                Work::Files(FilesRequest { wanted, answer }) => {
                    // The client may have gone.
                    answer.send(symbols.files_of(wanted)).ok();
                }
                Work::Process(_) if forgets => {}
                Work::Process(process) => symbols.prefetch(process),
            }
        }
    })
}

enum Work {
    Window(RawProfile),
    Files(FilesRequest),
    Process(Pid),
}

/// Returns the next work: a waiting window comes first, and processes last. Returns `None` when no more windows come.
fn next(
    windows: &mpsc::Receiver<RawProfile>,
    files: &mpsc::Receiver<FilesRequest>,
    processes: &mpsc::Receiver<Pid>,
) -> Option<Work> {
    loop {
        match windows.try_recv() {
            Ok(window) => return Some(Work::Window(window)),
            Err(mpsc::TryRecvError::Disconnected) => return None,
            Err(mpsc::TryRecvError::Empty) => {}
        }
        if let Ok(request) = files.try_recv() {
            return Some(Work::Files(request));
        }
        match processes.recv_timeout(LOOK_EVERY) {
            Ok(process) => return Some(Work::Process(process)),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return windows.recv().ok().map(Work::Window),
        }
    }
}

/// Names one window and groups it by owner.
fn profile(
    window: RawProfile,
    symbols: &mut Symbols,
    counts: &SymbolCounts,
    time_for_files: TimeForFiles,
) -> (Profile, Vec<(Subject, Facts)>) {
    bpf_programs::add(counts.programs(), &window.samples, &window.functions);
    symbols.next_window(&window.functions);
    let stacks = name_stacks(&window.samples, symbols, counts, time_for_files);
    let wakers = name_wakers(&window.samples, &stacks);
    let mut losses = window.losses;
    let mut lost_frames = 0;
    let mut subjects: HashMap<Subject, Vec<Sample>> = HashMap::new();
    for ProfileSample { subject, stack, reason, waker, passed, sample } in window.samples {
        let (key, count) = (sample.key, sample.count);
        let waker = waker.and_then(|waker| wakers.get(&Arc::as_ptr(&waker)).cloned());
        let activity = activity(key, reason, waker);
        // A preempted thread has no stack by design.
        if stack.is_none() && reason == WaitReason::Unknown {
            lost_frames += count;
        }
        let stack = stack.and_then(|stack| stacks.get(&(key.process, stack.id)).cloned()).unwrap_or_default();
        let last = clock::wall(sample.last_ns);
        subjects.entry(subject).or_default().push(Sample {
            stack,
            activity,
            nanoseconds: sample.ns,
            so_far_ns: sample.so_far_ns,
            count,
            last,
            passed,
        });
    }
    if lost_frames > 0 {
        losses.push(("stack_frames", lost_frames));
    }
    let unwound = subjects.iter().map(|(subject, samples)| (subject.clone(), unwound(samples))).collect();
    let profile = Profile {
        subjects: subjects.into_iter().map(|(subject, samples)| SubjectProfile { subject, samples }).collect(),
        start: Some(window.start),
        duration: window.duration,
        losses,
        sample_period: window.sample_period,
    };
    (profile, unwound)
}

/// Returns the time by the completeness of the walk. Samples without a stack were not walked. If that was to save CPU
/// time, their time counts nevertheless.
fn unwound(samples: &[Sample]) -> Facts {
    let mut times = Facts::default();
    let counts = |stack: &Stack| !stack.frames.is_empty() || stack.unwind == Unwind::Shed;
    for sample in samples.iter().filter(|sample| counts(&sample.stack)) {
        times[Fact::unwound(sample.stack.unwind)] += u128::from(sample.nanoseconds);
    }
    times
}

fn activity(key: SampleKey, reason: WaitReason, waker: Option<Arc<Waker>>) -> Activity {
    match key.activity {
        RawActivity::OnCpu => Activity::OnCpu,
        RawActivity::Wait(state) => Activity::OffCpu { state, reason, waker, lock: key.lock },
    }
}

/// Returns the wakers of a window with named stacks.
fn name_wakers(
    samples: &[ProfileSample],
    stacks: &HashMap<(Pid, StackId), Arc<Stack>>,
) -> HashMap<*const RawProfileWaker, Arc<Waker>> {
    let mut wakers = HashMap::new();
    for raw in samples.iter().filter_map(|sample| sample.waker.as_ref()) {
        wakers.entry(Arc::as_ptr(raw)).or_insert_with(|| {
            let stack = raw.stack.as_ref().and_then(|stack| stacks.get(&(stack.process, stack.id)));
            let stack = stack.map(|stack| stack.folded());
            Arc::new(Waker { thread: raw.thread.clone(), subject: raw.subject.clone(), stack })
        });
    }
    wakers
}

/// The stacks of a window, by process.
type RawStacks<'a> = HashMap<Pid, HashMap<StackId, &'a RawStack>>;

/// Names the stacks of a window. Two processes may share the addresses of a stack, but not its names.
fn name_stacks(
    samples: &[ProfileSample],
    symbols: &mut Symbols,
    counts: &SymbolCounts,
    time_for_files: TimeForFiles,
) -> HashMap<(Pid, StackId), Arc<Stack>> {
    let mut named: HashMap<(Pid, StackId), NamedStack> = HashMap::new();
    let owners: Vec<(FrameOwner, RawStacks<'_>)> = by_owner(samples).into_iter().collect();
    let clock = symbols.clock();
    share(time_for_files, owners.iter().map(|(owner, _)| owner.text()).collect(), &clock, |at, turn| {
        let Some((_, processes)) = owners.get(at) else { return };
        let processes: Vec<(Pid, Vec<&RawStack>)> =
            processes.iter().map(|(pid, stacks)| (*pid, stacks.values().copied().collect())).collect();
        for ((_, raw), (pid, stacks)) in processes.iter().zip(symbols.name(&processes, turn)) {
            named.extend(raw.iter().zip(stacks).map(|(raw, stack)| ((pid, raw.id), stack)));
        }
    });
    for (owner, processes) in &owners {
        let ids = processes.iter().flat_map(|(pid, stacks)| stacks.keys().map(|id| (*pid, *id)));
        for stack in ids.filter_map(|id| named.get(&id)) {
            counts.add(&stack.frames);
            counts.unread().add(owner, stack.frames.unsymbolized[Cause::FileUnreadable as usize]);
        }
    }
    named.into_iter().map(|(id, stack)| (id, stack.stack)).collect()
}

/// Returns the stacks by owner. A process with threads in several cgroups belongs to the cgroup of its first sample.
fn by_owner<'a>(samples: &'a [ProfileSample]) -> BTreeMap<FrameOwner, RawStacks<'a>> {
    let mut owners: HashMap<Pid, FrameOwner> = HashMap::new();
    for sample in samples {
        owners.entry(sample.sample.key.process).or_insert_with(|| FrameOwner::of(&sample.subject));
    }
    let mut stacks: BTreeMap<FrameOwner, RawStacks<'a>> = BTreeMap::new();
    let mut add = |process: Pid, owner: &FrameOwner, stack: &'a RawStack| {
        let owner = owners.get(&process).unwrap_or(owner).clone();
        stacks.entry(owner).or_default().entry(process).or_default().insert(stack.id, stack);
    };
    for ProfileSample { subject, stack, sample, waker, .. } in samples {
        if let Some(stack) = stack {
            add(sample.key.process, &FrameOwner::of(subject), stack);
        }
        if let Some(waker) = waker
            && let Some(stack) = &waker.stack
        {
            // A waker without samples of its own is known only by the text of its owner.
            add(stack.process, &FrameOwner::named(&waker.subject), stack);
        }
    }
    stacks
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::sync::oneshot;

    use super::*;
    use crate::model::{lock::Lock, wait::WaitState};
    use crate::{
        kernel::records::RawSample,
        model::ids::CgroupId,
        stacks::{counts::SymbolStats, lines::WantedLines},
    };

    fn wait(row: &str, stack: Option<&Arc<RawStack>>, ns: u64) -> ProfileSample {
        let key = SampleKey {
            stack: Some(StackId(1)),
            seen: None,
            cgroup: CgroupId(1),
            waker: None,
            process: Pid(u32::MAX / 2),
            activity: RawActivity::Wait(WaitState::Interruptible),
            lock: None,
            filters: 1,
        };
        ProfileSample {
            subject: Subject::Cgroup(row.into()),
            stack: stack.cloned(),
            reason: if stack.is_some() { WaitReason::Other } else { WaitReason::Unknown },
            waker: None,
            passed: 1,
            sample: RawSample { key, ns, queued_ns: 0, so_far_ns: 0, count: 1, last_ns: 0 },
        }
    }

    #[test]
    fn waits_are_grouped_by_row_and_none_is_lost_with_its_frames() {
        let (user, kernel) = (vec![0x10, 0x20], vec![]);
        let stack = Arc::new(RawStack { id: StackId(1), process: Pid(1), user, kernel, end: None });
        let id = StackId::NOT_TAKEN;
        let not_taken =
            Arc::new(RawStack { id, process: Pid(0), user: vec![], kernel: vec![], end: Some(Unwind::Shed) });
        let window = RawProfile {
            start: SystemTime::UNIX_EPOCH,
            duration: Duration::from_secs(1),
            samples: vec![
                wait("/a.slice/b.service", Some(&stack), 5),
                wait("/a.slice/b.service", None, 6),
                wait("/", None, 7),
                wait("/shed", Some(&not_taken), 8),
            ],
            losses: vec![],
            sample_period: None,
            functions: Arc::default(),
            on_its_way: Arc::default(),
        };
        let counts = SymbolCounts::default();
        let mut symbols = Symbols::new(Some(Reader::start(true).unwrap()));
        let (profile, unwound) = profile(window, &mut symbols, &counts, TimeForFiles::Enough);
        assert!(unwound.iter().any(|(subject, times)| *subject == Subject::Cgroup("/a.slice/b.service".into())
            && Unwind::ALL.iter().map(|unwind| times[Fact::unwound(*unwind)]).sum::<u128>() == 5));
        assert!(
            unwound.iter().any(|(subject, times)| *subject == Subject::Cgroup("/shed".into())
                && times[Fact::unwound(Unwind::Shed)] == 8)
        );
        let sum = |path: &str| -> u64 {
            let of = Subject::Cgroup(path.into());
            let subject = profile.subjects.iter().find(|subject| subject.subject == of).unwrap();
            subject.samples.iter().map(|sample| sample.nanoseconds).sum()
        };
        assert_eq!((sum("/a.slice/b.service"), sum("/")), (11, 7));
        assert_eq!(profile.losses, [("stack_frames", 2)]);
        assert_eq!(counts.stats(), SymbolStats { symbolized: 0, unsymbolized: [2, 0, 0, 0] });
    }

    #[test]
    fn a_wait_keeps_its_lock() {
        let mut key = wait("/", None, 1).sample.key;
        key.lock = Lock::from_abi(12);
        let Activity::OffCpu { lock, .. } = activity(key, WaitReason::Futex, None) else { panic!() };
        assert_eq!(lock.map(Lock::name), Some("user"));
        assert_eq!(
            activity(SampleKey { activity: RawActivity::OnCpu, ..key }, WaitReason::Futex, None),
            Activity::OnCpu
        );
    }

    #[test]
    fn windows_do_not_wait_for_files_and_processes() {
        let (window_sender, windows) = mpsc::sync_channel(2);
        let (process_sender, processes) = mpsc::sync_channel(8);
        let window = || RawProfile {
            start: SystemTime::UNIX_EPOCH,
            duration: Duration::ZERO,
            samples: vec![],
            losses: vec![],
            sample_period: None,
            functions: Arc::default(),
            on_its_way: Arc::default(),
        };
        let (file_sender, files) = mpsc::sync_channel(2);
        let next = || next(&windows, &files, &processes);
        for pid in 0..3 {
            process_sender.send(Pid(pid)).unwrap();
        }
        assert!(matches!(next(), Some(Work::Process(Pid(0)))));
        let (answer, _answered) = oneshot::channel();
        file_sender.send(FilesRequest { wanted: WantedLines::default(), answer }).unwrap();
        window_sender.send(window()).unwrap();
        assert!(matches!(next(), Some(Work::Window(_))));
        assert!(matches!(next(), Some(Work::Files(_))));
        assert!(matches!(next(), Some(Work::Process(Pid(1)))));
        // Windows are still processed after the channel of processes has closed.
        drop(process_sender);
        window_sender.send(window()).unwrap();
        assert!(matches!(next(), Some(Work::Window(_))));
        assert!(matches!(next(), Some(Work::Process(Pid(2)))));
        drop(window_sender);
        assert!(next().is_none());
    }
}
