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
use crate::{cgroup::TestCgroup, load, process, suite::within};

/// Never pulled.
pub(super) const IMAGE: &str = "none";
/// What a container burns takes less; a loaded machine gets more.
const DEADLINE: Duration = Duration::from_secs(60);

/// A container that runs; killed, and its cgroup removed, on drop.
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
    /// 64 hex digits.
    pub id: String,
    /// Of its cgroup, as the kernel had it.
    pub kernel_path: String,
    /// `usage_usec` of its cgroup's `cpu.stat` after the last process was gone: the truth.
    pub cpu: Duration,
    /// How its process ended.
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

    /// Its name in the pod.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its id: 64 hex digits.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its cgroup.
    #[must_use]
    pub const fn cgroup(&self) -> &TestCgroup {
        &self.cgroup
    }

    /// Waits until it has burnt what it was started for. It lives on, idle.
    pub fn burnt(&self) -> Result<()> {
        within(DEADLINE, "the container has used its CPU time", || {
            Ok((self.cgroup.cpu_usage()? >= self.burns).then_some(()))
        })
    }

    /// Waits for its end, kills it before if asked, and removes its cgroup.
    pub(super) fn end(mut self, kill: bool) -> Result<Finished> {
        if kill {
            self.child.kill()?;
        }
        // It reads its stdin to the end once it has burnt.
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

/// The status of a container that has just started again, or for the first time.
pub(super) fn started(name: &str, container_id: String, before: Option<ContainerStatus>) -> ContainerStatus {
    let running = ContainerStateRunning { started_at: Some(now()) };
    let state = ContainerState { running: Some(running), ..Default::default() };
    // What waits has not run; its last life is the one before.
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

/// The status after the end of a life.
pub(super) fn terminated(before: ContainerStatus, finished: &Finished) -> ContainerStatus {
    use std::os::unix::process::ExitStatusExt as _;
    // As a shell counts: 128 and the signal.
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

/// The status of a container that is to start: the first time, or again.
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

/// In whole seconds, as the API has them.
fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
