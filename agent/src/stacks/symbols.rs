//! Names of addresses, from blazesym.
//!
//! Names are remembered by file and offset, so that a window costs reading `/proc/PID/maps` and little more; the
//! symbol tables themselves are dropped after each batch, because the kernel's alone would double the agent's memory.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use blazesym::{
    MaybeDefault,
    normalize::{NormalizeOpts, Normalizer, UserMeta},
    symbolize::{
        Input, Sym, Symbolized, Symbolizer,
        source::{Kernel, Process, Source},
    },
};
use tracing::debug;

use super::profile::{Frame, FrameKind, Function, Mapping};
use crate::ids::Pid;

/// Names that are remembered at most; then all are looked up anew.
const MAX_NAMES: usize = 100_000;

/// The names of addresses, remembered where they cannot change.
#[derive(Debug)]
pub(super) struct Symbols {
    kernel: Frames,
    kernel_mapping: Arc<Mapping>,
    files: HashMap<File, Arc<Mapping>>,
    user: HashMap<(File, u64), Vec<Function>>,
}

/// What tells files apart that have the same path in different containers.
type File = (String, Option<String>);

/// Frames by address.
pub(super) type Frames = HashMap<u64, Arc<Frame>>;

impl Symbols {
    pub(super) fn new() -> Self {
        let kernel_mapping = Arc::new(Mapping { path: "[kernel]".into(), ..Mapping::default() });
        Self { kernel: HashMap::new(), kernel_mapping, files: HashMap::new(), user: HashMap::new() }
    }

    /// The frames of kernel addresses. Without `CAP_SYSLOG` the kernel hides its symbols, and frames have no names.
    pub(super) fn kernel(&mut self, addresses: &BTreeSet<u64>) -> &Frames {
        let new: Vec<u64> = addresses.iter().copied().filter(|address| !self.kernel.contains_key(address)).collect();
        if !new.is_empty() {
            let source = Source::Kernel(Kernel {
                kallsyms: MaybeDefault::Default,
                // An image with debug information would cost hundreds of MiB for line numbers.
                vmlinux: MaybeDefault::None,
                kaslr_offset: Some(0),
                debug_syms: false,
                _non_exhaustive: (),
            });
            let names = symbolize(&Symbolizer::new(), &source, &new);
            for (address, functions) in new.into_iter().zip(names) {
                let mapping = Some(Arc::clone(&self.kernel_mapping));
                let frame = Frame { address, kind: FrameKind::Kernel, mapping, functions };
                self.kernel.insert(address, Arc::new(frame));
            }
        }
        &self.kernel
    }

    /// The frames of addresses in one process. A process that has exited leaves them without file and name.
    pub(super) fn user(&mut self, process: Pid, addresses: &BTreeSet<u64>) -> Frames {
        if self.user.len() > MAX_NAMES {
            self.user.clear();
            self.files.clear();
        }
        let addresses: Vec<u64> = addresses.iter().copied().collect();
        // What the return address returns to may be another function: look at the call.
        let calls: Vec<u64> = addresses.iter().map(|address| address.saturating_sub(1)).collect();
        let options = NormalizeOpts { sorted_addrs: true, ..NormalizeOpts::default() };
        let normalizer = Normalizer::builder().enable_build_ids(true).enable_build_id_caching(true).build();
        let normalized = match normalizer.normalize_user_addrs_opts(process.0.into(), &calls, &options) {
            Ok(normalized) => normalized,
            Err(error) => {
                debug!(pid = process.0, %error, "no mappings");
                return addresses.iter().map(|address| (*address, Arc::new(unknown(*address)))).collect();
            }
        };

        let mut frames = Frames::new();
        let mut unnamed = Vec::new();
        for ((address, call), (offset, meta)) in addresses.iter().zip(&calls).zip(&normalized.outputs) {
            let Some(UserMeta::Elf(elf)) = normalized.meta.get(*meta) else {
                unnamed.push((*address, *call, None));
                frames.insert(*address, Arc::new(unknown(*call)));
                continue;
            };
            let build_id = elf.build_id.as_ref().map(|id| hex(id));
            let file = (elf.path.to_string_lossy().into_owned(), build_id);
            let mapping = Arc::clone(self.files.entry(file.clone()).or_insert_with(|| {
                Arc::new(Mapping { path: file.0.clone(), build_id: file.1.clone(), ..Mapping::default() })
            }));
            let place = (file, *offset);
            let functions = self.user.get(&place).cloned();
            if functions.is_none() {
                unnamed.push((*address, *call, Some(place)));
            }
            let functions = functions.unwrap_or_default();
            let frame = Frame { address: *offset, kind: FrameKind::Native, mapping: Some(mapping), functions };
            frames.insert(*address, Arc::new(frame));
        }
        if unnamed.is_empty() {
            return frames;
        }
        // Symbol tables only, for the same reason as for the kernel.
        let source = Source::Process(Process { debug_syms: false, ..Process::new(process.0.into()) });
        let calls: Vec<u64> = unnamed.iter().map(|(_, call, _)| *call).collect();
        let symbolizer = Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).build();
        let names = symbolize(&symbolizer, &source, &calls);
        for ((address, _, place), functions) in unnamed.into_iter().zip(names) {
            if let Some(frame) = frames.get_mut(&address) {
                Arc::make_mut(frame).functions.clone_from(&functions);
            }
            // Code without a file, from a JIT, may be other code tomorrow.
            if let Some(place) = place {
                self.user.insert(place, functions);
            }
        }
        frames
    }
}

fn unknown(address: u64) -> Frame {
    Frame { address, kind: FrameKind::Native, mapping: None, functions: Vec::new() }
}

/// The functions at each address, in order; none where there is no name.
fn symbolize(symbolizer: &Symbolizer, source: &Source<'_>, addresses: &[u64]) -> Vec<Vec<Function>> {
    match symbolizer.symbolize(source, Input::AbsAddr(addresses)) {
        Ok(symbols) => symbols
            .into_iter()
            .map(|symbol| match symbol {
                Symbolized::Sym(symbol) => functions(&symbol),
                Symbolized::Unknown(_) => Vec::new(),
            })
            .collect(),
        Err(error) => {
            debug!(%error, "no symbols");
            vec![Vec::new(); addresses.len()]
        }
    }
}

fn functions(symbol: &Sym<'_>) -> Vec<Function> {
    let inlined = symbol.inlined.iter().rev().map(|inlined| inlined.name.as_ref());
    inlined.chain([symbol.name.as_ref()]).map(|name| Function { name: name.into(), file: "".into(), line: 0 }).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn a_function_of_this_test() -> u64 {
        // Any address inside will do; one behind the entry is what a return address is like.
        a_function_of_this_test as *const () as u64 + 2
    }

    #[test]
    fn a_function_of_this_very_process_is_named_with_its_file() {
        let address = a_function_of_this_test();
        let pid = Pid(std::process::id());
        let mut symbols = Symbols::new();
        for round in ["looked up", "remembered"] {
            let frames = symbols.user(pid, &BTreeSet::from([address]));
            let frame = &frames[&address];
            assert!(frame.functions[0].name.contains("a_function_of_this_test"), "{round}: {frame:?}");
            assert!(frame.mapping.as_ref().unwrap().path.contains("podperf"), "{round}: {frame:?}");
        }
    }

    #[test]
    fn a_process_that_is_gone_leaves_addresses() {
        let frames = Symbols::new().user(Pid(u32::MAX / 2), &BTreeSet::from([0x1234]));
        assert_eq!(*frames[&0x1234], unknown(0x1234));
    }
}
