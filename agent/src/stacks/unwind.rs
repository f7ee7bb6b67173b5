//! Decides whether the walk of a user stack was complete. Pure.
//!
//! A walk by frame pointers ends where the chain of saved pointers ends. In code with frame pointers, this is the
//! function that starts threads; in other code the walk ends anywhere, or at an address that was no frame pointer. The
//! rules, in this order:
//!
//! 1. No user frames: `Whole`. This is a kernel thread, or a thread that never left the kernel.
//! 2. As many frames as the kernel takes: `Truncated`.
//! 3. A frame outside of all executable mappings, and the mappings of the process are known: `Broken`.
//! 4. The outermost frame lies in memory that a JIT compiler wrote, or in the vDSO. No thread begins there:
//!    `NoFramePointers`.
//! 5. The outermost frame has a name: `Whole` if the name is a [root](ROOTS), otherwise `NoFramePointers`.
//! 6. The outermost frame has no name. It is the only frame, or it lies in a shared library other than the C library,
//!    where no thread begins, either: `NoFramePointers`.
//! 7. All other stacks: `Whole`, because nothing contradicts it. This is a stripped program or C library, whose start
//!    functions have no names, or a process that is gone.
//!
//! Stacks whose frames were left out to save CPU time are not judged: they are `Shed`.

use super::profile::Frame;
use crate::model::wait::Unwind;

/// The kind of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The mappings of the process are unknown.
    Unknown,
    /// No executable memory.
    Nowhere,
    /// Memory without a file.
    Memory,
    /// A mapped file.
    File,
}

/// Functions without a caller: threads and programs begin in them.
const ROOTS: &[&str] = &[
    // C libraries: programs, then threads.
    "_start",
    "_start_c",
    "_dl_start",
    "_dl_start_user",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "libc_start_main_stage2",
    "generic_start_main",
    "start_thread",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "thread_start",
    // Go: goroutines, then threads and functions that run on the threads' own stacks.
    "runtime.goexit",
    "runtime.mstart",
    "runtime.mstart0",
    "runtime.mstart1",
    "runtime.mcall",
    "runtime.systemstack",
    "runtime.asmcgocall",
    "runtime.morestack",
    "runtime.rt0_go",
    "runtime.sigtramp",
];

/// C libraries and loaders, by the beginning of their file names.
const C_LIBRARIES: &[&str] =
    &["libc.so", "libc-", "libc.musl-", "libpthread", "ld-linux", "ld-musl-", "ld-2", "ld64.so"];

/// Returns the completeness of a walk that found these user frames, leaf first; the kernel takes at most `most` frames.
pub(super) fn unwind(frames: &[(&Frame, Place)], most: usize) -> Unwind {
    let Some((outermost, place)) = frames.last() else { return Unwind::Whole };
    if frames.len() >= most {
        return Unwind::Truncated;
    }
    if frames.iter().any(|(_, place)| *place == Place::Nowhere) {
        return Unwind::Broken;
    }
    let file = outermost.mapping.as_ref().map_or("", |mapping| mapping.path.rsplit('/').next().unwrap_or_default());
    let ended_early = match (place, outermost.functions.last()) {
        (Place::Unknown | Place::Nowhere, _) => false,
        (Place::Memory, _) => true,
        (Place::File, _) if file.starts_with('[') => true,
        (_, Some(function)) => !is_root(&function.name),
        (Place::File, None) => frames.len() == 1 || is_library(file),
    };
    if ended_early { Unwind::NoFramePointers } else { Unwind::Whole }
}

fn is_root(name: &str) -> bool {
    // Go's assembler functions have a suffix, such as `runtime.goexit.abi0`.
    let name = name.strip_suffix(".abi0").unwrap_or(name);
    ROOTS.contains(&name) || name.starts_with("_rt0_")
}

/// Returns whether a file is a shared library other than the C library.
fn is_library(file: &str) -> bool {
    let is_shared = file.ends_with(".so") || file.contains(".so.");
    is_shared && !C_LIBRARIES.iter().any(|start| file.starts_with(start))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::stacks::profile::{FrameKind, Function, Mapping};

    fn frame(file: &str, name: &str) -> Frame {
        let mapping = (!file.is_empty()).then(|| Arc::new(Mapping { path: file.to_owned(), ..Mapping::default() }));
        let function = Function { name: name.into(), file: "".into(), line: 0 };
        let functions = if name.is_empty() { vec![] } else { vec![function] };
        Frame { address: 1, kind: FrameKind::Native, mapping, functions }
    }

    #[test]
    fn the_outermost_frame_shows_how_far_the_walk_came() {
        use Place::{File, Memory, Nowhere, Unknown};
        use Unwind::{Broken, NoFramePointers, Whole};
        let leaf = ("/usr/lib/libc.so.6", "nanosleep", File);
        for (frames, expected) in [
            (&[][..], Whole),
            // Programs and threads whose start function has a name.
            (&[leaf, ("/bin/app", "main", File), ("/usr/lib/libc.so.6", "__libc_start_call_main", File)], Whole),
            (&[leaf, ("/bin/app", "_start", File)], Whole),
            (&[leaf, ("/lib/ld-musl-x86_64.so.1", "__clone", File)], Whole),
            (&[("/bin/go", "runtime.futex.abi0", File), ("/bin/go", "runtime.goexit.abi0", File)], Whole),
            (&[("/bin/go", "runtime.futex.abi0", File), ("/bin/go", "runtime.mcall", File)], Whole),
            // Walks that ended early.
            (&[leaf], NoFramePointers),
            (&[leaf, ("/bin/app", "main", File)], NoFramePointers),
            (&[leaf, ("/bin/app", "start_thread_pool", File)], NoFramePointers),
            // Code of a JIT compiler calls functions, but no thread begins in it.
            (&[leaf, ("", "", Memory)], NoFramePointers),
            (&[leaf, ("", "Interpreter", Memory)], NoFramePointers),
            (&[leaf, ("", "", Memory), ("/bin/node", "_start", File)], Whole),
            (&[("[vdso]", "", File)], NoFramePointers),
            // Outside of all mappings.
            (&[leaf, ("", "[no code]", Nowhere)], Broken),
            (&[leaf, ("", "[no code]", Nowhere), ("/bin/app", "_start", File)], Broken),
            // Frames without names.
            (&[leaf, ("/bin/app", "main", File), ("/usr/lib/libc.so.6", "", File)], Whole),
            (&[leaf, ("/bin/stripped", "", File)], Whole),
            (&[leaf, ("/usr/lib/libssl.so.3", "", File)], NoFramePointers),
            (&[leaf, ("/usr/lib/libfoo-1.2.so", "", File)], NoFramePointers),
            (&[("/usr/lib/libc.so.6", "", File)], NoFramePointers),
            // Processes that are gone.
            (&[("", "[unknown]", Unknown)], Whole),
            (&[("", "[unknown]", Unknown), ("", "[unknown]", Unknown)], Whole),
        ] {
            let frames: Vec<_> = frames.iter().map(|(file, name, place)| (frame(file, name), *place)).collect();
            let frames: Vec<_> = frames.iter().map(|(frame, place)| (frame, *place)).collect();
            assert_eq!(unwind(&frames, 127), expected, "{frames:?}");
        }
    }

    #[test]
    fn a_stack_as_deep_as_the_kernel_walks_is_truncated() {
        let (frame, root) = (frame("/bin/app", "recurse"), frame("/bin/app", "_start"));
        let frames = |count: usize| [vec![(&frame, Place::File); count - 1], vec![(&root, Place::File)]].concat();
        assert_eq!(unwind(&frames(127), 127), Unwind::Truncated);
        assert_eq!(unwind(&frames(126), 127), Unwind::Whole);
    }
}
