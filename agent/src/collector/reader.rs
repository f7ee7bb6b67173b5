//! What others ask of the collector's thread.

use std::{
    io,
    sync::{Arc, mpsc},
    time::SystemTime,
};

use thiserror::Error;
use tokio::sync::oneshot;

use super::Observation;
use crate::{
    attribution::{RowRules, Subject},
    config::MaxMemory,
    filter::{Filter, Full, Slot},
    pods::PodChange,
    readings::UnwoundTime,
};

/// Why a reading failed.
#[derive(Clone, Debug, Error)]
pub enum ReadError {
    /// A map could not be read.
    #[error("failed to read the kernel's maps: {0}")]
    Kernel(Arc<io::Error>),
    /// The collector has stopped.
    #[error("the collector has stopped (see the log)")]
    Stopped,
}

pub(super) enum Request {
    Read { exports: bool, reply: oneshot::Sender<Result<Arc<Observation>, ReadError>> },
    Cut(oneshot::Sender<Option<SystemTime>>),
    Filter(Box<Filter>, oneshot::Sender<Result<(Slot, Option<SystemTime>), Full>>),
    Unfilter(Slot),
    Rules(Box<RowRules>, oneshot::Sender<()>),
    MaxMemory(MaxMemory),
    Pods(Box<PodChange>),
    Unwound(Vec<(Subject, UnwoundTime)>),
    Stop,
}

/// The other end of the collector's requests; cheap to clone.
#[derive(Clone, Debug)]
pub struct Reader(pub(super) mpsc::Sender<Request>);

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read { .. } => "Read",
            Self::Cut(_) => "Cut",
            Self::Filter(..) => "Filter",
            Self::Unfilter(_) => "Unfilter",
            Self::Rules(..) => "Rules",
            Self::MaxMemory(_) => "MaxMemory",
            Self::Pods(_) => "Pods",
            Self::Unwound(_) => "Unwound",
            Self::Stop => "Stop",
        })
    }
}

impl Reader {
    /// Reads the kernel, or takes the reading of less than a second ago. What is exported counts for the rows that have
    /// ended: they stay until they were exported twice.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be read, or the collector has stopped.
    pub async fn read(&self, exports: bool) -> Result<Arc<Observation>, ReadError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Request::Read { exports, reply }).map_err(|mpsc::SendError(_)| ReadError::Stopped)?;
        answer.await.unwrap_or(Err(ReadError::Stopped))
    }

    /// Ends the current profile window now, and says when it had begun, by which it is known again. `None` when it could
    /// not be handed on, or none is made.
    ///
    /// # Errors
    ///
    /// When the collector has stopped.
    pub async fn cut(&self) -> Result<Option<SystemTime>, ReadError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Request::Cut(reply)).map_err(|mpsc::SendError(_)| ReadError::Stopped)?;
        answer.await.map_err(|oneshot::error::RecvError { .. }| ReadError::Stopped)
    }

    /// Cuts the window as [`Reader::cut`] does, and looks at samples by one more filter from then on.
    ///
    /// # Errors
    ///
    /// When the collector has stopped. The inner one is that there is no room.
    pub async fn add_filter(&self, filter: Filter) -> Result<Result<(Slot, Option<SystemTime>), Full>, ReadError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Request::Filter(Box::new(filter), reply)).map_err(|mpsc::SendError(_)| ReadError::Stopped)?;
        answer.await.map_err(|oneshot::error::RecvError { .. }| ReadError::Stopped)
    }

    /// No longer looks at samples by this filter.
    pub fn remove_filter(&self, slot: Slot) {
        self.0.send(Request::Unfilter(slot)).ok();
    }

    /// Changes which cgroups are rows: the next reading is by these rules, and existing rows keep what they have.
    ///
    /// # Errors
    ///
    /// When the collector has stopped.
    pub async fn set_rules(&self, rules: RowRules) -> Result<(), ReadError> {
        let (reply, answer) = oneshot::channel();
        let request = Request::Rules(Box::new(rules), reply);
        self.0.send(request).map_err(|mpsc::SendError(_)| ReadError::Stopped)?;
        answer.await.map_err(|oneshot::error::RecvError { .. }| ReadError::Stopped)
    }

    /// Sets what podperf may take of memory, from the next reading on.
    pub fn set_max_memory(&self, max: MaxMemory) {
        self.0.send(Request::MaxMemory(max)).ok();
    }

    /// Tells of pods.
    pub fn tell(&self, change: PodChange) {
        self.0.send(Request::Pods(Box::new(change))).ok();
    }

    /// Tells how far the walks of a window's stacks came.
    pub fn tell_unwound(&self, times: Vec<(Subject, UnwoundTime)>) {
        self.0.send(Request::Unwound(times)).ok();
    }

    /// Asks the collector to send its last profile and end.
    pub fn stop(&self) {
        self.0.send(Request::Stop).ok();
    }
}
