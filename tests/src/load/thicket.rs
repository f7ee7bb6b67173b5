//! Threads that wait at the end of deep stacks that change each time: nearly every wait has a stack of its own.
//!
//! Sixteen functions call each other in random order: there are few functions, but about one stack for each wait.

#![expect(unsafe_code, reason = "functions that keep their names")]

use std::{
    hint::black_box,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::sleepers::sleep;
use crate::cgroup;

/// The stack of each thread: a hundred frames of less than 512 bytes, and some more.
const STACK_BYTES: usize = 256 << 10;
const SHALLOWEST: u32 = 64;
/// The number of further depths. The deepest stack stays below the 127 frames that the kernel walks.
const DEEPER: u64 = 32;

/// `podperf-load thicket`.
#[derive(Args, Clone, Debug)]
pub struct ThicketArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Threads
    #[arg(long, default_value_t = 16)]
    pub threads: u32,
    /// Length of each wait
    #[arg(long, default_value_t = 500)]
    pub micros: u64,
    /// Length of the run, in seconds
    #[arg(long, default_value_t = 600)]
    pub seconds: u64,
}

/// The report of the load.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ThicketReport {
    /// Number of waits of all threads.
    pub waits: u64,
}

macro_rules! functions {
    ($($name:ident: $room:literal),* $(,)?) => {
        $(
            #[inline(never)]
            #[unsafe(no_mangle)]
            extern "C" fn $name(depth: u32, random: u64, micros: u64) -> bool {
                let room = black_box([0_u8; $room]);
                let done = deeper(depth, random, micros);
                black_box(room);
                done
            }
        )*
        const FUNCTIONS: [extern "C" fn(u32, u64, u64) -> bool; 16] = [$($name),*];
    };
}

functions! {
    podperf_thicket_00: 16, podperf_thicket_01: 32, podperf_thicket_02: 48, podperf_thicket_03: 64,
    podperf_thicket_04: 80, podperf_thicket_05: 96, podperf_thicket_06: 112, podperf_thicket_07: 128,
    podperf_thicket_08: 144, podperf_thicket_09: 160, podperf_thicket_10: 176, podperf_thicket_11: 192,
    podperf_thicket_12: 208, podperf_thicket_13: 224, podperf_thicket_14: 240, podperf_thicket_15: 256,
}

/// Calls any of the functions, or waits at the end.
#[inline(always)]
fn deeper(depth: u32, random: u64, micros: u64) -> bool {
    if depth == 0 {
        return sleep(Duration::from_micros(micros)).is_ok();
    }
    let next = black_box(FUNCTIONS)[usize::try_from(random >> 60).unwrap_or(0)];
    next(depth - 1, step(random), micros)
}

/// A step of the PCG generator. The high bits have the better randomness.
const fn step(random: u64) -> u64 {
    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// Waits until the time is over.
pub fn run(args: &ThicketArgs) -> Result<ThicketReport> {
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let micros = args.micros;
    let start = |thread: u32| {
        let work = move || {
            let (mut random, mut waits) = (step(u64::from(thread) + 1), 0);
            while Instant::now() < end {
                random = step(random);
                let depth = SHALLOWEST + u32::try_from(random >> 32 & (DEEPER - 1)).unwrap_or(0);
                waits += u64::from(deeper(depth, random, micros));
            }
            waits
        };
        thread::Builder::new().stack_size(STACK_BYTES).spawn(work).context("failed to start a thread")
    };
    let threads: Vec<_> = (0..args.threads).map(start).collect::<Result<_>>()?;
    let mut waits = 0;
    for thread in threads {
        waits += thread.join().map_err(|_panic| anyhow!("a thread panicked"))?;
    }
    Ok(ThicketReport { waits })
}
