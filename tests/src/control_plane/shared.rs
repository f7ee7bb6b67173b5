//! Control planes for tests that leave them unchanged, because the start of an etcd and an API server takes seconds.
//! Their number is the number of tests that run at once.
//!
//! Tests use a control plane in turn, each with a client of its own. They share the two processes with their keys, and
//! the namespaces that were made there. A test can neither stop nor restart a shared control plane, since it gets no
//! `mut`. A test that needs this starts a [`ControlPlane`] of its own. After a test all pods are removed and the
//! agent's role is granted again, and the API server is asked to confirm this. If this fails, for example because a
//! server has ended, the next test starts a new control plane. So no test sees the remains of another one.

use std::{
    borrow::Borrow,
    ops::Deref,
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use super::{Client, ControlPlane};
use crate::suite::within;

/// The list of all pods, from the cache that also serves the first list of an agent.
const PODS: &str = "/api/v1/pods?resourceVersion=0";
const CLEAN_DEADLINE: Duration = Duration::from_secs(10);

/// The control planes that no test uses at the moment.
static IDLE: Mutex<Vec<ControlPlane>> = Mutex::new(Vec::new());

/// A control plane without pods, where the agent has its role. It is lent to one test.
#[derive(Debug)]
pub struct SharedPlane(Option<ControlPlane>);

impl SharedPlane {
    /// Takes an idle control plane of this run, or starts a new one.
    pub fn take() -> Result<Self> {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let again = idle.and_then(|mut plane| plane.renew().is_ok().then_some(plane));
        Ok(Self(Some(again.map_or_else(|| on_lasting_thread(ControlPlane::start), Ok)?)))
    }

    /// Ends the idle control planes. Must be called after the last test, because statics are never dropped.
    pub fn end() {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Runs `start` on a thread that lasts as long as this program. The kernel ends a server with the thread that started
/// it, and a test's thread may end before the control plane is lent to the next test.
fn on_lasting_thread<T: Send + 'static>(start: fn() -> Result<T>) -> Result<T> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("control-plane".to_owned()).spawn(move || {
        sender.send(start()).ok();
        loop {
            thread::park();
        }
    })?;
    receiver.recv().context("the control plane's thread panicked")?
}

impl Deref for SharedPlane {
    type Target = ControlPlane;

    #[expect(clippy::expect_used, reason = "it is taken out on drop only")]
    fn deref(&self) -> &ControlPlane {
        self.0.as_ref().expect("a control plane")
    }
}

impl Borrow<ControlPlane> for SharedPlane {
    fn borrow(&self) -> &ControlPlane {
        self
    }
}

impl Drop for SharedPlane {
    fn drop(&mut self) {
        let Some(plane) = self.0.take() else { return };
        if plane.clean().is_ok() {
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(plane);
        }
    }
}

impl ControlPlane {
    /// Makes a new client for the next test, if both servers run.
    fn renew(&mut self) -> Result<()> {
        self.etcd.check()?;
        self.api.as_mut().context("the API server is stopped")?.check()?;
        self.admin = Client::new(&self.admin_credentials.kubeconfig())?;
        ensure!(self.admin.all_pods(PODS)?.is_empty(), "there are pods");
        Ok(())
    }

    /// Removes all pods, grants the agent's role, and waits until the API server acts on both.
    fn clean(&self) -> Result<()> {
        // This makes a separate client, because the test's client may be in the middle of a request.
        let admin = Client::new(&self.admin_credentials.kubeconfig())?;
        for pod in admin.all_pods("/api/v1/pods")? {
            let (namespace, name) = (pod.metadata.namespace.unwrap_or_default(), pod.metadata.name.unwrap_or_default());
            admin.delete_pod(&namespace, &name)?;
        }
        within(CLEAN_DEADLINE, "all pods are gone", || Ok(admin.all_pods(PODS)?.is_empty().then_some(())))?;
        if self.is_granted()? { Ok(()) } else { self.grant() }
    }
}
