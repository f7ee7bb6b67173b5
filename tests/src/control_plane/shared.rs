//! Control planes for the tests of a run that leave them as they were: an etcd and an API server take seconds to start.
//! There are as many as tests that run at once.
//!
//! Tests have one in turn, each by a client of its own. Two tests share the two processes with their keys, and the
//! namespaces that were made in it. A test can neither stop nor restart it, since it is lent without `mut`; those that
//! do start a [`ControlPlane`] of their own. Afterwards all pods are removed and the agent's role is given back, and
//! the API server itself is asked whether that is so. Where it is not, as where a server has ended, the next test
//! starts another one: no test sees what another has left.

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

/// The pods that the API server has, from the cache by which it answers the first list of an agent, too.
const PODS: &str = "/api/v1/pods?resourceVersion=0";
const CLEAN_DEADLINE: Duration = Duration::from_secs(10);

/// The ones that no test has at the moment.
static IDLE: Mutex<Vec<ControlPlane>> = Mutex::new(Vec::new());

/// A control plane without pods, where the agent has its role; lent to one test.
#[derive(Debug)]
pub struct SharedPlane(Option<ControlPlane>);

impl SharedPlane {
    /// Takes an idle one of this run, or starts another one.
    pub fn take() -> Result<Self> {
        let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let again = idle.and_then(|mut plane| plane.renew().is_ok().then_some(plane));
        Ok(Self(Some(again.map_or_else(|| on_lasting_thread(ControlPlane::start), Ok)?)))
    }

    /// Ends what no test has. To be called when all are over: what is static is never dropped.
    pub fn end() {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Runs `start` on a thread that lasts as long as this program. The kernel ends a server with the thread that has started it,
/// and the thread of a test may be over before the plane is lent to the next one.
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
    /// Another client for another test, if both servers run.
    fn renew(&mut self) -> Result<()> {
        self.etcd.check()?;
        self.api.as_mut().context("the API server is stopped")?.check()?;
        self.admin = Client::new(&self.admin_credentials.kubeconfig())?;
        ensure!(self.admin.all_pods(PODS)?.is_empty(), "there are pods");
        Ok(())
    }

    /// Removes all pods and grants the agent's role, and waits until the API server acts on both.
    fn clean(&self) -> Result<()> {
        // One of its own: that of the test may be in the middle of something.
        let admin = Client::new(&self.admin_credentials.kubeconfig())?;
        for pod in admin.all_pods("/api/v1/pods")? {
            let (namespace, name) = (pod.metadata.namespace.unwrap_or_default(), pod.metadata.name.unwrap_or_default());
            admin.delete_pod(&namespace, &name)?;
        }
        within(CLEAN_DEADLINE, "all pods are gone", || Ok(admin.all_pods(PODS)?.is_empty().then_some(())))?;
        if self.is_granted()? { Ok(()) } else { self.grant() }
    }
}
