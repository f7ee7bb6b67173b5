//! Cgroups that come and go, each with one short process: what a node full of
//! cron jobs and failing containers looks like to the agent.

use std::path::PathBuf;
use std::time::Duration;

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
}

/// What happened in the short-lived cgroups.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChurnReport {
    /// In the order of their lives.
    pub cgroups: Vec<ShortLife>,
}

/// One cgroup that is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShortLife {
    /// Its id while it lived.
    pub id: u64,
    /// Its path from the root of the cgroup2 tree.
    pub kernel_path: String,
    /// `usage_usec` of its `cpu.stat` after its process was gone.
    pub usage_ns: u64,
}

/// Makes, uses and removes the cgroups.
pub fn run(args: &ChurnArgs) -> Result<ChurnReport> {
    let mut cgroups = Vec::with_capacity(args.count);
    for _ in 0..args.count {
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
    }
    Ok(ChurnReport { cgroups })
}
