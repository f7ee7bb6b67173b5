//! The loads that tests and benchmarks run: processes with a known truth.
//!
//! Each load is one file and one subcommand of `podperf-load`. Each ends with one line of JSON, the report struct of
//! its file, which tests parse. Loads join a cgroup by writing `0` to its `cgroup.procs`, as container runtimes do, and
//! die with the process that started them.

pub mod blocked;
pub mod calls;
pub mod causes;
pub mod churn;
pub mod cpu;
pub mod crowd;
pub mod descriptors;
pub mod faults;
pub mod flood;
pub mod hoard;
pub mod hog;
pub mod instructions;
pub mod lives;
pub mod locks;
pub mod mixed;
pub mod moved;
pub mod paths;
pub mod repeat;
pub mod ring;
pub mod sites;
pub mod sleepers;
pub mod storm;
pub mod thicket;
pub mod turns;
pub mod wakeups;

use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Prints a word on stderr and waits for a line on stdin. While it blocks, its counts do not change and can be read
/// from outside.
fn pause(word: &str) -> Result<()> {
    writeln!(std::io::stderr(), "{word}")?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

/// Returns the path of the `podperf-load` that was built together with the calling test or bench.
pub fn binary() -> Result<PathBuf> {
    let this = std::env::current_exe().context("failed to find this program's own path")?;
    // Test programs are built into `deps`, a directory below the binaries.
    this.ancestors()
        .skip(1)
        .take(2)
        .map(|directory| directory.join("podperf-load"))
        .find(|candidate| Path::is_file(candidate))
        .context("failed to find `podperf-load` [cargo build -p podperf-tests]")
}
