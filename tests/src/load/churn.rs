//! Cgroups that come and go, each with one short process: the view of an agent on a node full of cron jobs and failing
//! containers.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::cgroup::{self, TestCgroup};
use crate::process::{self, Child};

/// CPU time of each process after it has joined.
const LIFE: Duration = Duration::from_millis(3);

/// `podperf-load churn`.
#[derive(Args, Clone, Debug)]
pub struct ChurnArgs {
    /// Cgroup below which the short ones are made
    #[arg(long)]
    pub cgroup: PathBuf,
    /// Number of cgroups, one after another
    #[arg(long, default_value_t = 100)]
    pub count: usize,
    /// Pause between two of them
    #[arg(long, default_value_t = 0)]
    pub pause_millis: u64,
    /// Time that a cgroup stays after its process is gone
    #[arg(long, default_value_t = 0.0)]
    pub linger_seconds: f64,
    /// Go on as long as this file exists, whatever the number
    #[arg(long)]
    pub while_exists: Option<PathBuf>,
    /// Say `ready` on stderr before the first and `done` after the last, and wait for a line on stdin each time
    #[arg(long)]
    pub wait: bool,
}

/// The counts of the short-lived cgroups.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChurnReport {
    /// The cgroups, in the order of their lives.
    pub cgroups: Vec<ShortLife>,
}

/// One cgroup that is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShortLife {
    /// The cgroup's id while it lived.
    pub id: u64,
    /// The cgroup's path from the root of the cgroup2 tree.
    pub kernel_path: String,
    /// `usage_usec` of its `cpu.stat` after its process was gone.
    pub usage_ns: u64,
}

/// Makes, uses and removes the cgroups.
pub fn run(args: &ChurnArgs) -> Result<ChurnReport> {
    if args.wait {
        super::pause("ready")?;
    }
    let mut cgroups = Vec::new();
    let mut lingering = VecDeque::new();
    let goes_on = |made| args.while_exists.as_ref().map_or(made < args.count, |file| file.exists());
    let is_over = |since: &Instant| since.elapsed().as_secs_f64() >= args.linger_seconds;
    while goes_on(cgroups.len()) {
        thread::sleep(Duration::from_millis(args.pause_millis));
        let cgroup = TestCgroup::below(&args.cgroup, "short")?;
        let child = Child::fork(|| {
            cgroup::join(cgroup.path())?;
            process::burn(LIFE)
        })?;
        child.wait()?;
        cgroups.push(ShortLife {
            id: cgroup.id(),
            kernel_path: cgroup.kernel_path().to_owned(),
            usage_ns: process::nanos(cgroup.cpu_usage()?),
        });
        lingering.push_back((Instant::now(), cgroup));
        while lingering.front().is_some_and(|(since, _)| is_over(since)) {
            lingering.pop_front();
        }
    }
    if args.wait {
        super::pause("done")?;
    }
    Ok(ChurnReport { cgroups })
}
