//! Many threads that wait in sixteen functions with known names, from a microsecond to a second each time.
//!
//! Times are log-uniform: most waits are short, but most of the time is in the few long waits. Real programs have this
//! distribution, and it is the hardest to sample.

#![expect(unsafe_code, reason = "functions that keep their names, and a system call from a named frame")]

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
use crate::{cgroup, process};

/// The shortest wait in nanoseconds; the longest is a million times as long.
const SHORTEST_NS: f64 = 1e3;
const LONGEST_NS: f64 = 1e9;
/// Stack size of each thread: far more than its frames need.
const STACK_BYTES: usize = 128 << 10;

/// `podperf-load sites`.
#[derive(Args, Clone, Debug)]
pub struct SitesArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Waits of all threads together
    #[arg(long, default_value_t = 100_000)]
    pub waits: u32,
    /// Threads
    #[arg(long, default_value_t = 400)]
    pub threads: u32,
}

/// The threads' measurements of themselves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SitesReport {
    /// The waits by function.
    pub sites: Vec<Site>,
}

/// The waits in one function.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Site {
    /// The function's name.
    pub function: String,
    /// Number of waits.
    pub waits: u64,
    /// Wall time from before each wait to after it, summed.
    pub waited_ns: u64,
}

/// Functions that differ by their names and by the size of their frames, as the functions of a program do.
macro_rules! sites {
    ($($name:ident: $room:literal),* $(,)?) => {
        $(
            #[inline(never)]
            #[unsafe(no_mangle)]
            extern "C" fn $name(nanoseconds: u64) -> bool {
                let room = black_box([0_u8; $room]);
                let done = sleep(Duration::from_nanos(nanoseconds)).is_ok();
                black_box(room);
                done
            }
        )*
        const SITES: &[(&str, extern "C" fn(u64) -> bool)] = &[$((stringify!($name), $name)),*];
    };
}

sites! {
    podperf_site_00: 16, podperf_site_01: 32, podperf_site_02: 48, podperf_site_03: 64,
    podperf_site_04: 80, podperf_site_05: 96, podperf_site_06: 112, podperf_site_07: 128,
    podperf_site_08: 144, podperf_site_09: 160, podperf_site_10: 176, podperf_site_11: 192,
    podperf_site_12: 208, podperf_site_13: 224, podperf_site_14: 240, podperf_site_15: 256,
}

/// Makes the given number of waits.
pub fn run(args: &SitesArgs) -> Result<SitesReport> {
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    let each = args.waits / args.threads.max(1);
    let start = |thread: u32| {
        let work = move || wait_about(each, u64::from(thread));
        thread::Builder::new().stack_size(STACK_BYTES).spawn(work).context("failed to start a thread")
    };
    let threads: Vec<_> = (0..args.threads).map(start).collect::<Result<_>>()?;
    let name = |(function, _): &(&str, _)| Site { function: (*function).to_owned(), waits: 0, waited_ns: 0 };
    let mut sites: Vec<Site> = SITES.iter().map(name).collect();
    for thread in threads {
        let waited = thread.join().map_err(|_panic| anyhow!("a thread panicked"))?;
        for (site, (waits, waited)) in sites.iter_mut().zip(waited) {
            site.waits += waits;
            site.waited_ns += process::nanos(waited);
        }
    }
    Ok(SitesReport { sites })
}

/// Runs the waits of one thread, and returns their number and length by site.
fn wait_about(waits: u32, seed: u64) -> Vec<(u64, Duration)> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut waited = vec![(0, Duration::ZERO); SITES.len()];
    for _ in 0..waits {
        let index = usize::try_from(random.next() % 16).unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "53 bits of chance")]
        let unit = (random.next() % (1 << 53)) as f64 / (1_u64 << 53) as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a second of nanoseconds")]
        let nanoseconds = (SHORTEST_NS * (LONGEST_NS / SHORTEST_NS).powf(unit)) as u64;
        let start = Instant::now();
        if SITES[index].1(nanoseconds) {
            waited[index].0 += 1;
            waited[index].1 += start.elapsed();
        }
    }
    waited
}

/// A xorshift generator: the waits are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 3
    }
}
