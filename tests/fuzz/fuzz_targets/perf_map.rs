//! A JIT compiler's map may be any bytes: whoever may write to a container's `/tmp` writes it.
#![no_main]
#![expect(dead_code, reason = "the agent's modules offer more than is asked of them here")]

#[path = "../../../agent/src/stacks/demangle.rs"]
mod demangle;
#[path = "../../../agent/src/stacks/elf.rs"]
mod elf;
#[path = "../../../agent/src/stacks/go_functions.rs"]
mod go_functions;
#[path = "../../../agent/src/stacks/maps.rs"]
mod maps;
#[path = "../../../agent/src/stacks/nearest.rs"]
mod nearest;
#[path = "../../../agent/src/stacks/perf_map.rs"]
mod perf_map;
#[path = "../../../agent/src/stacks/read_at.rs"]
mod read_at;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let wanted = [0, 1, 0x1000, 0x1018, 0x2001, 0x7f00_0000_0000, u64::MAX];
    let names = perf_map::names(bytes, &wanted);
    assert_eq!(names.len(), wanted.len());
    let text = String::from_utf8_lossy(bytes);
    assert!(names.iter().flatten().all(|name| text.contains(&**name)));
    // A path in `/proc/PID/maps` is as much anybody's.
    let vmas = maps::parse(bytes);
    assert!(vmas.is_sorted_by_key(|vma| vma.start) && vmas.iter().all(|vma| vma.start < vma.end));
});
