//! The copies of user stacks, and the agent's answers to them (`ebpf/bpf/copies.bpf.h`).

use std::{collections::HashSet, io, mem::offset_of, os::fd::AsFd as _};

use aya::maps::{MapData, RingBuf};
use podperf_ebpf::abi;

use super::{
    answers::{Answers, Asker},
    attach::take_ring,
    error::LoadError,
    object::Object,
    raw,
    records::{RawSample, SampleKey},
};
use crate::model::ids::{CgroupId, Pid, StackId};

pub(super) const RING: &str = "copy_ring";
pub(super) const RECIPES: &str = "recipes";
pub(super) const PAGES: &str = "copy_pages";
pub(super) const STACKS: &str = "copied_stacks";
/// The maps with a buffer for each CPU.
pub(super) const BUFFERS: [&str; 3] = ["copy_buffer", "sampler_copy", "recipe_words"];

/// The smallest size of a ring, in bytes, on a kernel with pages of any size.
const LEAST_RING: u32 = 64 << 10;

/// Number of bytes of a page in a copy.
pub const PAGE: u64 = abi::PODPERF_PAGE as u64;
/// The largest number of pages in a copy.
pub const MOST_PAGES: usize = abi::PODPERF_COPY_PAGES as usize;
/// The largest distance of a page above the page with the stack pointer.
pub const PAGES_SPAN: u64 = abi::PODPERF_COPY_SPAN as u64;
/// Number of bytes below the stack pointer that a copy has, as far as they are in the first page.
pub const RED_ZONE: u64 = abi::PODPERF_RED_ZONE as u64;
/// The largest number of words of a recipe.
pub const MOST_WORDS: usize = abi::PODPERF_MAX_FRAMES as usize;

/// The registers and a part of the stack of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The wait or the sample that the stack belongs to.
    pub of: CopyOf,
    /// The id of the kernel's part of the stack; `None` if there is none.
    pub kernel: Option<StackId>,
    /// The process.
    pub process: Pid,
    /// The cgroup that the process was in.
    pub cgroup: CgroupId,
    /// The time of the copy, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The addresses of the program's code and of the process' stack (start_code, end_code, start_stack), which an exec
    /// changes.
    pub program: [u64; 3],
    /// The user registers, by their numbers in DWARF; on arm64 the last two are sp and pc.
    pub registers: [u64; REGISTERS],
    /// The pages, counted from the page with the stack pointer, in the order of their bytes in `stack`.
    pub pages: Vec<u16>,
    /// The bytes of the pages. In the first page, those before the red zone are not valid.
    pub stack: Vec<u8>,
}

/// Number of registers in a copy.
pub const REGISTERS: usize = abi::PODPERF_REGISTERS as usize;

/// The wait or the sample of a copied stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyOf {
    /// A wait: samples have the id of the copy instead of a stack.
    Wait {
        /// The id of the copy.
        id: StackId,
        /// The call site.
        site: StackId,
        /// The path: recipes and requests for pages are found by it.
        path: StackId,
        /// Set if samples have named the call site before, and wait for its stack.
        is_named: bool,
    },
    /// A sample on the CPU, which is in no table.
    Sample(RawSample),
    /// A wait for which a recipe has proved this stack, in shadow mode: the copy is only compared.
    Proved(StackId),
}

impl Copy {
    /// Decodes one record of `copy_ring`.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, stack) = bytes.split_at_checked(offset_of!(abi::podperf_copy, stack))?;
        let key: abi::podperf_sample_key = bytemuck::pod_read_unaligned(
            header.get(..size_of::<abi::podperf_sample_key>()).filter(|_| offset_of!(abi::podperf_copy, key) == 0)?,
        );
        let words = |at: usize, count: usize| {
            let words = header.get(at..at + 8 * count).unwrap_or_default().chunks_exact(8);
            words.filter_map(|word| word.try_into().ok()).map(u64::from_ne_bytes)
        };
        let word = |at| words(at, 1).next();
        let short = |at: usize| Some(u16::from_ne_bytes(header.get(at..at + 2)?.try_into().ok()?));
        let (mut program, mut registers) = ([0; 3], [0; REGISTERS]);
        for (to, word) in program.iter_mut().zip(words(offset_of!(abi::podperf_copy, code), 3)) {
            *to = word;
        }
        for (to, word) in registers.iter_mut().zip(words(offset_of!(abi::podperf_copy, registers), REGISTERS)) {
            *to = word;
        }
        let count = usize::from(short(offset_of!(abi::podperf_copy, pages))?).min(MOST_PAGES);
        let page = |at: usize| short(offset_of!(abi::podperf_copy, page) + 2 * at);
        let further = (0..count.saturating_sub(1)).map(page).collect::<Option<Vec<u16>>>()?;
        let pages = (count > 0).then_some(0).into_iter().chain(further).collect();
        let (site, path) = (word(offset_of!(abi::podperf_copy, site))?, word(offset_of!(abi::podperf_copy, path))?);
        let at_ns = word(offset_of!(abi::podperf_copy, at_ns))?;
        let stack_at = |at| word(at).filter(|id| *id != 0).map(StackId);
        let of = if u32::from(key.activity) == abi::PODPERF_ON_CPU {
            let (key, ns) = (SampleKey::from_abi(&key)?, word(offset_of!(abi::podperf_copy, ns))?);
            CopyOf::Sample(RawSample { key, ns, queued_ns: 0, so_far_ns: 0, count: 1, last_ns: at_ns })
        } else if let Some(proved) = stack_at(offset_of!(abi::podperf_copy, proved)) {
            CopyOf::Proved(proved)
        } else {
            let at = offset_of!(abi::podperf_copy, is_named);
            let is_named = header.get(at..at + 4)?.iter().any(|byte| *byte != 0);
            CopyOf::Wait { id: StackId(key.stack), site: StackId(site), path: StackId(path), is_named }
        };
        Some(Self {
            of,
            kernel: stack_at(offset_of!(abi::podperf_copy, kernel)),
            process: Pid(key.tgid),
            cgroup: CgroupId(key.cgroup),
            at_ns,
            program,
            registers,
            pages,
            stack: stack.to_vec(),
        })
    }
}

/// A description by which later waits on a path prove that they have the same stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The stack.
    pub stack: StackId,
    /// The kernel's part of the stack.
    pub kernel: Option<StackId>,
    /// The words that prove the stack. At most [`MOST_WORDS`].
    pub words: Vec<Word>,
    /// Set if callers of the stack are missing: other stacks may have these words, too.
    pub is_part: bool,
    /// The number of words above the stack pointer that were in memory together. They can be read at once.
    pub together: u32,
}

/// A word of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// The place, in words above the stack pointer.
    pub at: u32,
    /// The value, or its distance to the stack pointer.
    pub value: u64,
    /// Set if the value is a distance: the word points to the stack.
    pub is_pointer: bool,
}

impl Recipe {
    /// Returns the recipe of a path in the form of the kernel side.
    fn to_abi(&self, path: StackId) -> abi::podperf_recipe {
        let mut recipe: abi::podperf_recipe = bytemuck::Zeroable::zeroed();
        (recipe.stack, recipe.kernel) = (self.stack.0, self.kernel.map_or(0, |id| id.0));
        recipe.is_part = self.is_part.into();
        recipe.hash = hash_slot(0, path.0);
        for (slot, word) in recipe.at.iter_mut().zip(&self.words).take(MOST_WORDS) {
            let mark = if word.is_pointer { abi::PODPERF_POINTER } else { 0 };
            *slot = word.at | mark | tag(word.value) << abi::PODPERF_TAG_SHIFT;
            recipe.hash = hash_slot(recipe.hash, word.value);
            recipe.words += 1;
            if word.at < self.together.min(abi::PODPERF_RECIPE_NEAR - 1) {
                recipe.near = recipe.near.max(word.at + 1);
            }
        }
        recipe.hash = [recipe.kernel, recipe.stack].into_iter().fold(recipe.hash, hash_slot);
        recipe
    }
}

/// Returns the bits of a word's value by which the kernel side tells most stacks apart before it has the hash.
#[expect(clippy::cast_possible_truncation, reason = "the low bits are wanted")]
const fn tag(value: u64) -> u32 {
    value as u32 & abi::PODPERF_TAG_MASK
}

/// Adds a word to the hash of a recipe, by the rule of `hash_slot` in `ebpf/bpf/hash.h`.
const fn hash_slot(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash ^ hash >> 29
}

/// The ring of copies, and the maps with the answers.
pub struct Copies {
    ring: RingBuf<MapData>,
    recipes: Answers,
    pages: Answers,
    stacks: Answers,
    /// The number of the recipe of a full path that is replaced next.
    next: u64,
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copies").finish_non_exhaustive()
    }
}

impl Copies {
    /// Opens the maps of the object.
    pub(super) fn of(object: &mut Object) -> Result<Self, LoadError> {
        let ring = take_ring(object, RING)?;
        let answers = |name| -> Result<Answers, LoadError> {
            let data = object.map(name).and_then(raw::data).ok_or(LoadError::Missing(name))?;
            let fd = data.fd().as_fd().try_clone_to_owned().map_err(LoadError::Counter)?;
            let map = MapData::from_fd(fd).map_err(|error| LoadError::Object(Box::new(error.into())))?;
            let info = map.info().map_err(|error| LoadError::Object(Box::new(error.into())))?;
            Ok(Answers::new(map, info.max_entries() as usize))
        };
        Ok(Self { ring, recipes: answers(RECIPES)?, pages: answers(PAGES)?, stacks: answers(STACKS)?, next: 0 })
    }

    /// Takes at most `most` copies from the ring.
    pub fn take(&mut self, most: usize) -> Vec<Copy> {
        let mut copies = Vec::new();
        while copies.len() < most
            && let Some(record) = self.ring.next()
        {
            copies.extend(Copy::decode(&record));
        }
        copies
    }

    /// Adds a recipe to those of a path, in the first empty place: the kernel side looks no further.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn teach(&mut self, asker: &Asker, path: StackId, recipe: &Recipe) -> io::Result<()> {
        let new = recipe.to_abi(path);
        let mut empty = None;
        for at in 0..u64::from(abi::PODPERF_RECIPES) {
            let key = path.0.wrapping_add(2 * at);
            let Some(stack) = self.recipes.stack(key) else {
                empty = Some(key);
                break;
            };
            let is_same = |known: abi::podperf_recipe| known.hash == new.hash;
            if stack == recipe.stack && self.recipes.get(key).is_ok_and(is_same) {
                return Ok(());
            }
        }
        self.next = self.next.wrapping_add(1);
        let replaced = path.0.wrapping_add(2 * (self.next % u64::from(abi::PODPERF_RECIPES)));
        let removed = self.recipes.set(asker, empty.unwrap_or(replaced), recipe.stack, new)?;
        self.recipes.close::<abi::podperf_recipe>(removed.into_iter().collect())
    }

    /// Tells the stack of the copy of a wait: the rest of the wait is charged under it.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn name(&mut self, asker: &Asker, copy: StackId, stack: StackId) -> io::Result<()> {
        self.stacks.set(asker, copy.0, stack, stack.0).map(drop)
    }

    /// Removes what names these stacks.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn forget(&mut self, stacks: &HashSet<StackId>) -> io::Result<()> {
        let removed = self.recipes.forget(stacks)?;
        self.recipes.close::<abi::podperf_recipe>(removed)?;
        self.stacks.forget(stacks).map(drop)
    }

    /// Removes the answers for processes that have ended.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn forget_ended(&mut self, has_ended: impl Fn(Pid) -> bool) -> io::Result<()> {
        self.recipes.forget_ended(&has_ended)?;
        self.pages.forget_ended(&has_ended)?;
        self.stacks.forget_ended(&has_ended)
    }

    /// Asks for these pages of the next stack on a path. The page with the stack pointer is always copied.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn want(&mut self, asker: &Asker, path: StackId, pages: &[u16]) -> io::Result<()> {
        let mut wanted: abi::podperf_copy_pages = bytemuck::Zeroable::zeroed();
        for (slot, page) in wanted.page.iter_mut().zip(pages.iter().filter(|page| **page > 0)) {
            *slot = *page;
        }
        self.pages.set(asker, path.0, path, wanted).map(drop)
    }
}

/// Removes all answers: they name stacks that this agent does not know.
pub(super) fn forget_all(object: &Object) -> io::Result<()> {
    for name in [RECIPES, PAGES, STACKS] {
        if let Some(data) = object.map(name).and_then(raw::data) {
            raw::clear::<u64>(data.fd().as_fd())?;
        }
    }
    Ok(())
}

/// The sizes of the maps, in entries, and of the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Bytes of the ring.
    pub(super) ring: u32,
    pub(super) recipes: u32,
    /// Requests for pages.
    pub(super) pages: u32,
    /// Stacks of copies.
    pub(super) stacks: u32,
    /// The size of each of [`BUFFERS`].
    pub(super) buffers: u32,
}

impl Sizes {
    /// Returns the sizes for this many stacks and CPUs.
    pub(super) fn of(max_stacks: u32, cpus: u32, copies: bool) -> Self {
        if !copies {
            return Self { ring: LEAST_RING, recipes: 1, pages: 1, stacks: 1, buffers: 1 };
        }
        // A recipe takes some 600 bytes. Few call sites need more than the first pages.
        let part = |divisor: u32| (max_stacks / divisor).max(64);
        Self { ring: abi::PODPERF_COPY_RING, recipes: part(8), pages: part(32), stacks: part(2), buffers: cpus }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::records::RawActivity;

    fn record(activity: u32, pages: &[u16]) -> Vec<u8> {
        let mut copy: abi::podperf_copy = bytemuck::Zeroable::zeroed();
        copy.key.activity = u8::try_from(activity).unwrap();
        (copy.key.stack, copy.key.tgid, copy.key.cgroup) = (10, 7, 3);
        copy.path = 14;
        (copy.site, copy.kernel, copy.ns, copy.at_ns, copy.is_named) = (12, 15, 20, 30, 1);
        copy.code = [1, 2, 3];
        copy.registers[32] = 4;
        copy.pages = u16::try_from(pages.len()).unwrap();
        copy.page[..pages.len().saturating_sub(1)].copy_from_slice(pages.get(1..).unwrap_or_default());
        let used = offset_of!(abi::podperf_copy, stack) + pages.len() * 4096;
        bytemuck::bytes_of(&copy)[..used].to_vec()
    }

    #[test]
    fn a_copy_of_a_wait_is_decoded() {
        let copy = Copy::decode(&record(0, &[0, 5])).unwrap();
        assert_eq!(copy.of, CopyOf::Wait { id: StackId(10), site: StackId(12), path: StackId(14), is_named: true });
        assert_eq!((copy.kernel, copy.process), (Some(StackId(15)), Pid(7)));
        assert_eq!((copy.cgroup, copy.program), (CgroupId(3), [1, 2, 3]));
        assert_eq!((copy.registers[32], &copy.pages[..], copy.stack.len()), (4, &[0, 5][..], 8192));
    }

    #[test]
    fn a_copy_of_a_proved_stack_names_it() {
        let mut bytes = record(0, &[0]);
        bytes[offset_of!(abi::podperf_copy, proved)..][..8].copy_from_slice(&9_u64.to_ne_bytes());
        assert_eq!(Copy::decode(&bytes).unwrap().of, CopyOf::Proved(StackId(9)));
    }

    #[test]
    fn a_copy_of_a_sample_has_its_time() {
        let copy = Copy::decode(&record(abi::PODPERF_ON_CPU, &[])).unwrap();
        let CopyOf::Sample(sample) = copy.of else { panic!("{copy:?}") };
        assert_eq!((sample.ns, sample.count, sample.last_ns), (20, 1, 30));
        assert_eq!((sample.key.cgroup, sample.key.activity), (CgroupId(3), RawActivity::OnCpu));
        assert!(copy.pages.is_empty() && copy.stack.is_empty());
    }

    #[test]
    fn a_copy_cut_in_its_head_is_refused() {
        let whole = record(0, &[0]);
        for length in 0..offset_of!(abi::podperf_copy, stack) {
            assert_eq!(Copy::decode(&whole[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn a_recipe_reads_at_once_only_what_is_near() {
        let word = |(at, is_pointer)| Word { at, value: 0x7_4010, is_pointer };
        let near = |together| {
            let words = [(3, false), (1022, true), (1023, false)].map(word).to_vec();
            let recipe =
                Recipe { stack: StackId(9), kernel: None, words, is_part: false, together }.to_abi(StackId(14));
            (recipe.words, recipe.near, recipe.at[1], recipe.at[2])
        };
        let tag = 0x10 << abi::PODPERF_TAG_SHIFT;
        let (pointer, address) = (1022 | tag | abi::PODPERF_POINTER, 1023 | tag);
        assert_eq!(near(4096), (3, 1023, pointer, address));
        assert_eq!(near(512), (3, 4, pointer, address), "the page behind 512 words was not in memory");
        assert_eq!(near(3), (3, 0, pointer, address));
    }
}
