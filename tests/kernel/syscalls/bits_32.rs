//! A 32-bit program, made here: no compiler for such programs is needed.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    process::install,
    suite::{Need, Test},
    tests,
};

use super::{calls_are_the_counters, waited};
use crate::calls::calls;

/// A file of kernels that run 32-bit programs.
const COMPATIBLE: Need = Need::Path("/proc/sys/abi/vsyscall32");

pub(super) const TESTS: &[Test] = tests![
    a_32_bit_programs_calls_have_no_name: &[COMPATIBLE],
];

const WAITS: u32 = 100;
const EACH: Duration = Duration::from_millis(5);
/// The address at which the program is loaded.
const BASE: u32 = 0x0804_8000;
/// Sizes of the header of an ELF32 file and of its one program header.
const HEADERS: u32 = 52 + 32;

/// Returns an ELF32 program that sleeps [`WAITS`] times by `nanosleep`, whose number there is that of `sync` here.
fn program() -> Vec<u8> {
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let mut code = Vec::new();
    // mov edi, WAITS
    code.extend([&[0xbf][..], &WAITS.to_le_bytes()].concat());
    // again: mov eax, 162; mov ebx, TIME; xor ecx, ecx; int 0x80; dec edi; jnz again
    let time = BASE + HEADERS + 5 + 17 + 9;
    code.extend([&[0xb8][..], &162_u32.to_le_bytes(), &[0xbb], &time.to_le_bytes(), &[0x31, 0xc9]].concat());
    code.extend([0xcd, 0x80, 0x4f, 0x75, 0xef]);
    // mov eax, 1; xor ebx, ebx; int 0x80
    code.extend([&[0xb8][..], &1_u32.to_le_bytes(), &[0x31, 0xdb, 0xcd, 0x80]].concat());
    code.extend(words(&[0, EACH.subsec_nanos()]));
    let size = HEADERS + u32::try_from(code.len()).unwrap_or(0);
    let mut file = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // An executable for the 80386, its entry, one program header after this header, no sections.
    file.extend(words(&[3 << 16 | 2, 1, BASE + HEADERS, 52, 0, 0, 32 << 16 | 52, 1, 0]));
    // Load the whole file at BASE, readable and executable.
    file.extend(words(&[1, 0, BASE, BASE, size, size, 5, 4096]));
    file.extend(code);
    file
}

fn a_32_bit_programs_calls_have_no_name() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("sleeps-32");
    install(program().as_slice(), &path)?;
    let agent = Agent::start("sensors: {calls: {enabled: true}, syscalls: {enabled: true}}")?;
    let cgroup = TestCgroup::new("bits-32")?;
    let status = cgroup.command().arg(&path).status().context("failed to run a 32-bit program")?;
    ensure!(status.success(), "the 32-bit program ended with {status}");
    let metrics = agent.fresh_metrics()?;
    calls_are_the_counters(&metrics, &cgroup)?;
    let (other, wrong) = (waited(&metrics, &cgroup, &["(other)"]), waited(&metrics, &cgroup, &["sync"]));
    ensure!(wrong.is_zero(), "{wrong:?} in `sync`, and {other:?} in other calls");
    ensure!(other >= EACH * WAITS, "{other:?} in other calls, of {:?}", EACH * WAITS);
    let [other, wrong] = ["(other)", "sync"].map(|call| calls(&metrics, &cgroup, call));
    ensure!(other >= f64::from(WAITS) && wrong == 0.0, "{other} other calls, and {wrong} of `sync`");
    Ok(())
}
