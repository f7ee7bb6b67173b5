//! Two functions that wait in turn. They have frames of one size and call the same function, so their waits have one
//! call site and two stacks.

#![expect(unsafe_code, reason = "functions that keep their names")]

use std::{
    hint::black_box,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::Args;

use super::{
    paths::{NotedPath, PathsReport},
    sleepers::sleep,
};
use crate::{
    cgroup,
    process::{self, Usage},
};

/// The number and the length of the first waits of each function. Meanwhile the agent answers the first copies.
const EARLY_ROUNDS: u32 = 20;
const EARLY: Duration = Duration::from_millis(12);
/// The length of the other waits.
const LENGTH: Duration = Duration::from_millis(1);

/// `podperf-load turns`.
#[derive(Args, Clone, Debug)]
pub struct TurnsArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Number of waits of each function
    #[arg(long, default_value_t = 1500)]
    pub rounds: u32,
    /// After the report, block until stdin ends
    #[arg(long)]
    pub hold: bool,
}

/// Functions that differ by their names, and by a number, so that the compiler keeps all of them. They return the
/// address of the number.
macro_rules! turns {
    ($($name:ident: $number:literal),* $(,)?) => {
        $(
            #[inline(never)]
            #[unsafe(no_mangle)]
            fn $name(length: Duration) -> Result<usize> {
                let number = black_box($number);
                sleep(length)?;
                Ok((&raw const number).addr())
            }
        )*
        const TURNS: [(&str, fn(Duration) -> Result<usize>); 2] = [$((stringify!($name), $name)),*];
    };
}

turns! {
    podperf_turn_first: 1, podperf_turn_second: 2,
}

/// Makes the waits. Each path of the report is one function.
pub fn run(args: &TurnsArgs) -> Result<PathsReport> {
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    let path = |function: &str| NotedPath { path: function.to_owned(), count: 0, ns: 0, queued_ns: 0, stack_bytes: 0 };
    let mut paths = TURNS.map(|(function, _)| path(function));
    let mut place = None;
    for round in 0..args.rounds {
        let length = if round < EARLY_ROUNDS { EARLY } else { LENGTH };
        for ((_, turn), path) in TURNS.iter().zip(&mut paths) {
            let before = Usage::of_self()?;
            let start = Instant::now();
            let address = turn(length)?;
            path.ns += process::nanos(start.elapsed());
            let usage = Usage::of_self()?.since(before);
            path.count += usage.voluntary_switches;
            path.queued_ns += usage.wait_ns;
            ensure!(*place.get_or_insert(address) == address, "the functions have frames of different sizes");
        }
    }
    Ok(PathsReport { paths: paths.into(), functions: Vec::new() })
}
