//! Names stacks. Named stacks are remembered while they are used, within a memory budget.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use podperf_ebpf::abi;

use super::{
    clock::Clock,
    counts::{Cause, SymbolStats},
    debuginfod::Fetcher,
    lines::{WantedFile, WantedLines},
    profile::{Frame, FrameKind, Function, Mapping, Stack},
    reader::Reader,
    remembered::Remembered,
    shares::Turn,
    unwind::unwind,
    user::{Named, User, is_in},
};
use crate::model::wait::Unwind;
use crate::{
    kernel::{records::RawStack, symbols::KernelFunctions},
    model::ids::{Pid, StackId},
};

/// The most memory for stacks, kernel frames and twins, in bytes; [`super::user`] has the other limits.
const STACKS_BYTES: usize = 8 << 20;
const KERNEL_BYTES: usize = 4 << 20;
const TWINS_BYTES: usize = 2 << 20;
/// The approximate memory of an entry without its frames, in bytes.
const STACK_BYTES: usize = 160;
const TWIN_BYTES: usize = 64;
const FRAME_BYTES: usize = 256;
/// The largest number of new processes that are read in a second: each may take half a millisecond.
const PREFETCHES_PER_SECOND: u32 = 50;

/// The names of addresses, remembered as long as they cannot change.
#[derive(Debug)]
pub(super) struct Symbols {
    /// `None` if stacks have no user frames.
    user: Option<User>,
    functions: Arc<KernelFunctions>,
    kernel: Remembered<u64, Arc<Frame>>,
    kernel_mapping: Arc<Mapping>,
    /// The named stacks, by the number of the process and its mappings.
    stacks: Remembered<(u64, StackId), NamedStack>,
    /// The number of the process that last had a stack: a process that is gone may have been forked from it.
    twins: Remembered<StackId, u64>,
    prefetches: (Instant, u32),
    /// Set if files were read: this takes memory that is freed again.
    read_files: bool,
    /// See `with_tables`.
    has_tables: bool,
}

/// A named stack, and the counts of its frames.
#[derive(Clone, Debug)]
pub(super) struct NamedStack {
    pub(super) stack: Arc<Stack>,
    pub(super) frames: SymbolStats,
}

impl Symbols {
    /// Returns a symbolizer that reads the files of processes with `reader`; without one, it names kernel frames only.
    pub(super) fn new(reader: Option<Reader>) -> Self {
        Self::of(reader.map(User::new))
    }

    /// Also takes names from the debug files that this fetches.
    pub(super) fn with_fetcher(self, fetcher: Option<Fetcher>) -> Self {
        Self { user: self.user.map(|user| user.with_fetcher(fetcher)), ..self }
    }

    /// Takes whole walks by frame pointers for guessed ones: with unwind tables, the kernel side walks only stacks that it
    /// cannot copy, and most programs have no frame pointers.
    pub(super) fn with_tables(self, has_tables: bool) -> Self {
        Self { has_tables, ..self }
    }

    /// Returns the clock of the time for files.
    pub(super) fn clock(&self) -> Clock {
        self.user.as_ref().map(User::clock).unwrap_or_default()
    }

    /// Returns the same symbolizer without remembered symbols.
    pub(super) fn forget(self) -> Self {
        let (prefetches, read_files, has_tables) = (self.prefetches, self.read_files, self.has_tables);
        Self { prefetches, read_files, has_tables, ..Self::of(self.user.map(User::forget)) }
    }

    fn of(user: Option<User>) -> Self {
        Self {
            user,
            functions: Arc::default(),
            kernel: Remembered::new(KERNEL_BYTES),
            kernel_mapping: Arc::new(Mapping { path: "[kernel]".into(), ..Mapping::default() }),
            stacks: Remembered::new(STACKS_BYTES),
            twins: Remembered::new(TWINS_BYTES),
            prefetches: (Instant::now(), 0),
            read_files: false,
            has_tables: false,
        }
    }

    /// Begins a window. The kernel has these functions in it.
    pub(super) fn next_window(&mut self, functions: &Arc<KernelFunctions>) {
        if !Arc::ptr_eq(&self.functions, functions) {
            // An address may belong to another function now.
            self.kernel = Remembered::new(KERNEL_BYTES);
            self.stacks = Remembered::new(STACKS_BYTES);
            self.functions = Arc::clone(functions);
        }
        let arrived = self.user.as_mut().map(User::next_window).unwrap_or_default();
        if !arrived.is_empty() {
            let is_as_before = |named: &NamedStack| !named.stack.frames.iter().any(|frame| is_in(frame, &arrived));
            self.stacks.retain(|_, named| is_as_before(named));
        }
        self.kernel.next_window();
        self.stacks.next_window();
        self.twins.next_window();
    }

    /// Returns whether files were read since the last call: then there is memory to return to the system.
    pub(super) fn has_read_files(&mut self) -> bool {
        std::mem::take(&mut self.read_files)
    }

    /// Reads the mappings of a process with a new stack, before it ends.
    pub(super) fn prefetch(&mut self, process: Pid) {
        let Some(user) = &mut self.user else { return };
        let (since, prefetches) = &mut self.prefetches;
        if since.elapsed() >= Duration::from_secs(1) {
            (*since, *prefetches) = (Instant::now(), 0);
        }
        if *prefetches < PREFETCHES_PER_SECOND {
            *prefetches += u32::from(user.prefetch(process));
        }
    }

    /// Returns the wanted files that processes have mapped, or had mapped when they were last seen.
    pub(super) fn files_of(&self, wanted: WantedLines) -> Vec<WantedFile> {
        self.user.as_ref().map(|user| user.files_of(wanted)).unwrap_or_default()
    }

    /// Returns the named stacks of processes, in their order. All processes must belong to the one pod or cgroup of
    /// this turn.
    pub(super) fn name(&mut self, processes: &[(Pid, Vec<&RawStack>)], turn: &mut Turn) -> Vec<(Pid, Vec<NamedStack>)> {
        let (mut parts, mut wanted) = (Vec::new(), Vec::new());
        for (process, stacks) in processes {
            let number = self.number(*process, turn);
            let named: Vec<_> = stacks.iter().map(|stack| self.remembered(number, stack)).collect();
            let new = stacks.iter().zip(&named).filter(|(_, named)| named.is_none());
            let calls: BTreeSet<u64> = new.flat_map(|(stack, _)| calls(&stack.user)).collect();
            if !calls.is_empty() {
                wanted.push((*process, calls));
            }
            parts.push((*process, stacks, number, named));
        }
        self.read_files |= !wanted.is_empty();
        let frames = self.user.as_mut().map(|user| user.frames(&wanted, turn)).unwrap_or_default();
        let none = HashMap::new();
        let mut named_stacks = Vec::new();
        for (process, stacks, number, named) in parts {
            let user = frames.get(&process).unwrap_or(&none);
            let has_all = named.iter().all(Option::is_some);
            // The mappings may have been read again meanwhile.
            let number = number.filter(|_| !has_all).and_then(|_| self.number(process, turn));
            let stacks = stacks.iter().zip(named);
            let named = stacks.map(|(raw, named)| named.unwrap_or_else(|| self.name_stack(raw, number, user)));
            named_stacks.push((process, named.collect()));
        }
        named_stacks
    }

    /// Returns the number of a process with its mappings; `None` if they are unknown. Kernel frames are the same in all
    /// processes, so without user frames all of them have one number.
    fn number(&mut self, process: Pid, turn: &mut Turn) -> Option<u64> {
        const ANY: u64 = 0;
        self.user.as_mut().map_or(Some(ANY), |user| user.number(process, turn))
    }

    fn name_stack(&mut self, raw: &RawStack, number: Option<u64>, user: &HashMap<u64, Named>) -> NamedStack {
        let mut counts = SymbolStats::default();
        let mut frames = without_sampler(raw.kernel.iter().map(|address| self.kernel_frame(*address)).collect());
        for frame in &frames {
            counts.count(if frame.functions.is_empty() { Err(Cause::NoSymbol) } else { Ok(()) });
        }
        if self.user.is_none() && raw.kernel.is_empty() && raw.end.is_none() {
            frames.push(user_code());
        }
        let found: Vec<_> = calls(&raw.user).filter_map(|call| user.get(&call)).collect();
        found.iter().for_each(|named| counts.count(named.outcome));
        let walked: Vec<_> = found.iter().map(|named| (&*named.frame, named.place)).collect();
        let kernel_is_whole = raw.kernel.len() < abi::PODPERF_MAX_FRAMES as usize;
        let unwind = match (raw.end, kernel_is_whole) {
            (Some(Unwind::Shed), _) => Unwind::Shed,
            (_, false) => Unwind::Truncated,
            (Some(end), true) => end,
            (None, true) => match unwind(&walked, abi::PODPERF_MAX_FRAMES as usize) {
                Unwind::Whole if self.has_tables && !walked.is_empty() => Unwind::Guessed,
                end => end,
            },
        };
        frames.extend(found.iter().map(|named| Arc::clone(&named.frame)));
        let of_frames: usize = found.iter().map(|named| named.cost).sum();
        let cost = STACK_BYTES + size_of_val(&frames[..]) + of_frames;
        let stack = NamedStack { stack: Arc::new(Stack { frames, unwind }), frames: counts };
        if let Some(number) = number
            && found.iter().all(|named| named.lasts)
            && (raw.end.is_some() || !self.has_tables)
        {
            self.stacks.insert((number, raw.id), stack.clone(), cost);
            self.twins.insert(raw.id, number, TWIN_BYTES);
        }
        stack
    }

    /// Returns a remembered stack. If the process is gone, the stack of a process with the same addresses is returned:
    /// that is almost certainly its parent before a fork, because programs are mapped at random addresses.
    fn remembered(&mut self, number: Option<u64>, stack: &RawStack) -> Option<NamedStack> {
        let number = number.or_else(|| self.twins.get(&stack.id).copied())?;
        self.stacks.get(&(number, stack.id)).cloned()
    }

    /// Returns a kernel frame. Without `CAP_SYSLOG` the kernel hides its symbols, and frames have neither names nor
    /// addresses.
    fn kernel_frame(&mut self, address: u64) -> Arc<Frame> {
        if let Some(frame) = self.kernel.get(&address) {
            return Arc::clone(frame);
        }
        let function = |name: &str| Function { name: name.into(), file: "".into(), line: 0 };
        let functions = self.functions.at(address).map(function).into_iter().collect();
        let mapping = Some(Arc::clone(&self.kernel_mapping));
        let within = self.functions.origin(address).map_or(0, |origin| address - origin);
        let frame = Arc::new(Frame { address: within, kind: FrameKind::Kernel, mapping, functions });
        self.kernel.insert(address, Arc::clone(&frame), FRAME_BYTES);
        frame
    }
}

/// Returns the frame that stands for all code of programs if stacks have no user frames.
fn user_code() -> Arc<Frame> {
    let function = Function { name: "[user code]".into(), file: "".into(), line: 0 };
    Arc::new(Frame { address: 0, kind: FrameKind::Native, mapping: None, functions: vec![function] })
}

/// Returns the addresses of a user stack's frames: the leaf, and the calls before the return addresses of the outer
/// frames. A return address itself may belong to the next function.
fn calls(user: &[u64]) -> impl Iterator<Item = u64> {
    user.iter().enumerate().map(|(at, address)| if at == 0 { *address } else { address.saturating_sub(1) })
}

/// Removes the sampler's frames from the top of a kernel stack: the BPF programs, which may have no names, and the
/// tracepoint that called them. Their number depends on the kernel and its compiler.
fn without_sampler(mut frames: Vec<Arc<Frame>>) -> Vec<Arc<Frame>> {
    const TRACEPOINT: [&str; 3] = ["bpf_trace_run", "__bpf_trace_", "__traceiter_"];
    const DEEPEST: usize = 8;
    let is_tracepoint = |frame: &Arc<Frame>| {
        let name = frame.functions.last().map_or("", |function| &*function.name);
        TRACEPOINT.iter().any(|prefix| name.starts_with(prefix))
    };
    let own = frames.iter().take(DEEPEST).rposition(is_tracepoint).map_or(0, |last| last + 1);
    frames.split_off(own)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::stacks::{
        maps::{Backing, Vma},
        process::read_vmas,
    };

    #[test]
    fn the_sampler_is_not_on_top_of_what_it_samples() {
        let named = |names: &[&str]| -> Vec<Arc<Frame>> {
            let function = |name: &&str| Function { name: (*name).into(), file: "".into(), line: 0 };
            let functions = |name: &&str| if name.is_empty() { vec![] } else { vec![function(name)] };
            let frame = |name| {
                let functions = functions(name);
                Arc::new(Frame { address: 1, kind: FrameKind::Kernel, mapping: None, functions })
            };
            names.iter().map(frame).collect()
        };
        let rest = named(&["__schedule", "schedule"]);
        for sampler in [
            &["bpf_prog_1_walk_stack", "bpf_prog_2_sched_switch", "bpf_trace_run4", "__traceiter_sched_switch"][..],
            &["", "", "bpf_trace_run3", "__bpf_trace_sched_switch"],
            &["", "bpf_trace_run4"],
            &[],
        ] {
            let stack = [named(sampler), rest.clone()].concat();
            assert_eq!(without_sampler(stack), rest, "{sampler:?}");
        }
    }

    #[inline(never)]
    fn a_function_of_this_test() -> u64 {
        // Any address inside the function will do; an address behind the entry resembles a return address.
        a_function_of_this_test as *const () as u64 + 2
    }

    fn own() -> Pid {
        Pid(std::process::id())
    }

    fn symbols() -> Symbols {
        Symbols::new(Some(Reader::start(true).unwrap()))
    }

    fn turn() -> Turn {
        let deadline = Instant::now() + Duration::from_secs(3600);
        Turn { owner: "a".into(), deadline, map_bytes: u64::MAX, late: false }
    }

    fn name(symbols: &mut Symbols, process: Pid, stack: &RawStack) -> NamedStack {
        let functions = Arc::clone(&symbols.functions);
        symbols.next_window(&functions);
        let (_, mut stacks) = symbols.name(&[(process, vec![stack])], &mut turn()).pop().unwrap();
        stacks.pop().unwrap()
    }

    fn stack(user: Vec<u64>) -> RawStack {
        RawStack { id: StackId(user.iter().sum()), process: Pid(1), user, kernel: vec![], end: None }
    }

    #[test]
    fn without_user_frames_nothing_of_a_process_is_read_and_its_code_is_one_frame() {
        let mut symbols = Symbols::new(None);
        symbols.prefetch(own());
        let kernel = RawStack { kernel: vec![0x10], ..stack(vec![]) };
        let first = name(&mut symbols, own(), &kernel);
        assert_eq!((first.stack.frames.len(), first.stack.frames[0].kind), (1, FrameKind::Kernel));
        assert_eq!(first.stack.unwind, Unwind::Whole);
        // Another process, which does not exist, has the same stack.
        assert!(Arc::ptr_eq(&name(&mut symbols, Pid(u32::MAX / 2), &kernel).stack, &first.stack));
        let code = name(&mut symbols, own(), &RawStack { id: StackId(9), ..stack(vec![]) });
        assert_eq!(code.stack.folded(), "[user code]");
        let not_taken = RawStack { id: StackId::NOT_TAKEN, end: Some(Unwind::Shed), ..stack(vec![]) };
        assert!(name(&mut symbols, own(), &not_taken).stack.frames.is_empty());
    }

    #[test]
    fn a_stack_that_comes_again_is_the_same_stack() {
        let raw = stack(vec![a_function_of_this_test(), a_function_of_this_test()]);
        let mut symbols = symbols();
        let first = name(&mut symbols, own(), &raw);
        let [frame, _] = &first.stack.frames[..] else { panic!("{first:?}") };
        assert!(frame.functions[0].name.contains("a_function_of_this_test"), "{frame:?}");
        assert_eq!(frame.kind, FrameKind::Rust);
        let mapping = frame.mapping.as_ref().unwrap();
        assert!(mapping.path.contains("podperf") && mapping.htlhash.as_ref().is_some_and(|hash| hash.len() == 32));
        assert_ne!(frame.address, raw.user[0], "the process' own address");
        assert_eq!(first.frames, SymbolStats { symbolized: 2, unsymbolized: [0; 4] });
        for _ in 0..3 {
            let again = name(&mut symbols, own(), &raw);
            assert!(Arc::ptr_eq(&again.stack, &first.stack));
            assert_eq!(again.frames, first.frames);
        }
    }

    #[test]
    fn an_address_without_code_is_looked_up_each_time() {
        let raw = stack(vec![a_function_of_this_test(), 0x10]);
        let mut symbols = symbols();
        let first = name(&mut symbols, own(), &raw);
        assert_eq!(first.stack.unwind, Unwind::Broken);
        // The value may be the program's own.
        assert_eq!((&*first.stack.frames[1].name(), first.stack.frames[1].address), ("[no code]", 0));
        assert_eq!(first.frames, SymbolStats { symbolized: 1, unsymbolized: [0, 1, 0, 0] });
        assert!(!Arc::ptr_eq(&name(&mut symbols, own(), &raw).stack, &first.stack));
    }

    /// Returns the address of the C library's code in an idle process.
    fn code_of(child: &Child) -> u64 {
        let is_library = |vma: &&Vma| matches!(&vma.backing, Backing::File(file) if file.path.contains("libc"));
        loop {
            let vmas = read_vmas(Pid(child.id()), || Ok(())).unwrap_or_default();
            if let Some(vma) = vmas.iter().find(is_library) {
                return vma.start + 0x1000;
            }
        }
    }

    #[test]
    fn a_process_that_is_gone_has_the_names_that_were_prefetched() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let address = code_of(&child);
        let pid = Pid(child.id());
        let mut symbols = symbols();
        symbols.prefetch(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        let named = name(&mut symbols, pid, &stack(vec![address]));
        let mapping = named.stack.frames[0].mapping.as_ref().unwrap();
        assert!(mapping.path.contains("libc") && mapping.htlhash.is_some(), "{mapping:?}");
        // The file itself is read from the host.
        assert_eq!(named.frames.unsymbolized[Cause::FileUnreadable as usize], 0, "{named:?}");
    }

    #[test]
    fn a_process_that_is_gone_has_the_names_of_its_twin() {
        let raw = stack(vec![a_function_of_this_test(), a_function_of_this_test() + 1]);
        let gone = Pid(u32::MAX / 2);
        let mut symbols = symbols();
        let unknown = name(&mut symbols, gone, &raw);
        assert_eq!(unknown.frames, SymbolStats { symbolized: 0, unsymbolized: [2, 0, 0, 0] });
        let frame = &unknown.stack.frames[0];
        assert_eq!((&*frame.name(), frame.address, unknown.stack.unwind), ("[unknown]", 0, Unwind::Whole));
        let own = name(&mut symbols, own(), &raw);
        assert!(Arc::ptr_eq(&name(&mut symbols, gone, &raw).stack, &own.stack));
    }
}
