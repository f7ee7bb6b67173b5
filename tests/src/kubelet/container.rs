//! One life of a container: a cgroup of its own and a process in it.

use std::{
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};

use super::directories::{Naming, random_id};
use crate::{cgroup::TestCgroup, load, process, running::is_blocked, suite::within};

/// An image that is never pulled.
pub(super) const IMAGE: &str = "none";
/// The longest wait for a container to burn its time. It takes less; a loaded machine gets more.
const DEADLINE: Duration = Duration::from_secs(60);

/// A running container. It is killed, and its cgroup removed, on drop.
#[derive(Debug)]
pub struct Running {
    name: String,
    id: String,
    burns: Duration,
    child: Child,
    cgroup: TestCgroup,
}

/// A container that has run.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The container's id: 64 hex digits.
    pub id: String,
    /// The path of its cgroup in the kernel's form.
    pub kernel_path: String,
    /// `usage_usec` of its cgroup's `cpu.stat` after the last process was gone: the truth.
    pub cpu: Duration,
    /// The exit status of its process.
    pub status: ExitStatus,
}

impl Running {
    /// Starts a load in a new cgroup below the pod's: it burns CPU time and then waits.
    pub(super) fn start(name: &str, burns: Duration, pod: &TestCgroup, naming: Naming) -> Result<Self> {
        let id = random_id()?;
        let cgroup = pod.child_named(&naming.container(&id))?;
        let mut command = Command::new(load::binary()?);
        process::bind_to_parent(&mut command);
        command.args(["spin", "--hold", "--seconds", &burns.as_secs_f64().to_string(), "--cgroup"]).arg(cgroup.path());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("failed to start a load")?;
        Ok(Self { name: name.to_owned(), id, burns, child, cgroup })
    }

    /// Returns the container's name in the pod.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the container's id: 64 hex digits.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the container's cgroup.
    #[must_use]
    pub const fn cgroup(&self) -> &TestCgroup {
        &self.cgroup
    }

    /// Waits until the container has burnt its CPU time. The container then stays idle.
    pub fn burnt(&self) -> Result<()> {
        let pid = self.child.id();
        within(DEADLINE, "the container has used its CPU time", || {
            let has_burnt = self.cgroup.cpu_usage()? >= self.burns && is_blocked(pid)?;
            Ok(has_burnt.then_some(()))
        })
    }

    /// Waits for the container's end, and removes its cgroup. If `kill` is true, kills the container first.
    pub(super) fn end(mut self, kill: bool) -> Result<Finished> {
        if kill {
            self.child.kill()?;
        }
        // The load reads its stdin to the end after it has burnt its time.
        drop(self.child.stdin.take());
        let status = within(DEADLINE, "the container ends", || Ok(self.child.try_wait()?))?;
        Ok(Finished {
            id: self.id.clone(),
            kernel_path: self.cgroup.kernel_path().to_owned(),
            cpu: self.cgroup.cpu_usage()?,
            status,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Returns the status of a container that has just started, for the first time or again.
pub(super) fn started(name: &str, container_id: String, before: Option<ContainerStatus>) -> ContainerStatus {
    let running = ContainerStateRunning { started_at: Some(now()) };
    let state = ContainerState { running: Some(running), ..Default::default() };
    // A waiting container has not run, so its last life is the previous one.
    let (last_state, restart_count) = match before {
        Some(before) if before.container_id.is_some() => {
            let last = before.state.filter(|state| state.terminated.is_some()).or(before.last_state);
            (last, before.restart_count + 1)
        }
        _ => (None, 0),
    };
    ContainerStatus {
        container_id: Some(container_id),
        last_state,
        ready: true,
        restart_count,
        started: Some(true),
        state: Some(state),
        ..named(name)
    }
}

/// Returns the status after the end of a container's life.
pub(super) fn terminated(before: ContainerStatus, finished: &Finished) -> ContainerStatus {
    use std::os::unix::process::ExitStatusExt as _;
    // A signal gives the exit code 128 plus the signal's number, as in a shell.
    let exit_code = finished.status.code().unwrap_or_else(|| 128 + finished.status.signal().unwrap_or_default());
    let running = before.state.and_then(|state| state.running);
    let terminated = ContainerStateTerminated {
        container_id: before.container_id.clone(),
        exit_code,
        finished_at: Some(now()),
        reason: Some(if exit_code == 0 { "Completed" } else { "Error" }.into()),
        started_at: running.and_then(|running| running.started_at),
        ..Default::default()
    };
    let state = ContainerState { terminated: Some(terminated), ..Default::default() };
    ContainerStatus { ready: false, started: Some(false), state: Some(state), ..before }
}

/// Returns the status of a container that will start, for the first time or again.
pub(super) fn waiting(name: &str, reason: &str, before: Option<ContainerStatus>) -> ContainerStatus {
    let waiting = ContainerStateWaiting { reason: Some(reason.into()), ..Default::default() };
    let state = ContainerState { waiting: Some(waiting), ..Default::default() };
    let before = before.unwrap_or_else(|| named(name));
    let last_state = before.state.filter(|state| state.terminated.is_some()).or(before.last_state);
    ContainerStatus { last_state, ready: false, started: Some(false), state: Some(state), ..before }
}

fn named(name: &str) -> ContainerStatus {
    ContainerStatus { image: IMAGE.into(), name: name.into(), ..Default::default() }
}

/// Returns the time in whole seconds, as the API has it.
fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
