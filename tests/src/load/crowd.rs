//! A crowd: one tiny task in each of many cgroups, like a node full of containers that mostly wait.
//!
//! The list of cgroups comes on stdin, one directory a line, up to an empty line. When all tasks are in their cgroups,
//! the load writes the report. The crowd then stays until stdin ends, and its tasks for a given time at most.

use std::{
    io::{self, Read as _, Write as _},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::Args;
use nix::sys::signal::{Signal, kill};
use serde::{Deserialize, Serialize};

use crate::{
    cgroup,
    process::{self, Child},
};

/// The smallest amount of work; in practice it takes about 100 us.
const WORK: Duration = Duration::from_micros(1);

/// `podperf-load crowd`.
#[derive(Args, Clone, Copy, Debug)]
pub struct CrowdArgs {
    /// Time that a task sleeps before it works again
    #[arg(long, default_value_t = 1_000)]
    pub every_millis: u64,
    /// Longest life of a task
    #[arg(long, default_value_t = 600)]
    pub seconds: u64,
}

/// The size of the crowd.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CrowdReport {
    /// Number of tasks, each in its own cgroup.
    pub tasks: usize,
}

/// A running crowd.
#[derive(Debug)]
pub struct Crowd(Vec<Child>);

/// Forks the tasks and waits until each has joined its cgroup.
pub fn gather(args: CrowdArgs) -> Result<(Crowd, CrowdReport)> {
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let (mut arrivals, mut arrived) = io::pipe()?;
    let mut tasks = Vec::new();
    for directory in io::stdin().lines() {
        let directory = directory?;
        if directory.is_empty() {
            break;
        }
        tasks.push(Child::fork(|| {
            let joined = cgroup::join(Path::new(&directory));
            arrived.write_all(&[joined.is_ok().into()])?;
            joined?;
            while Instant::now() < end {
                process::burn(WORK)?;
                thread::sleep(Duration::from_millis(args.every_millis));
            }
            Ok(())
        })?);
    }
    let mut joined = vec![0; tasks.len()];
    arrivals.read_exact(&mut joined)?;
    ensure!(!joined.contains(&0), "a task did not join its cgroup");
    let report = CrowdReport { tasks: tasks.len() };
    Ok((Crowd(tasks), report))
}

/// Waits until stdin ends, and then ends the tasks.
pub fn stay(crowd: Crowd) -> Result<()> {
    io::copy(&mut io::stdin(), &mut io::sink())?;
    for task in crowd.0 {
        kill(task.pid(), Signal::SIGKILL)?;
        // The task has just been killed, or its time was over.
        task.wait().ok();
    }
    Ok(())
}
