//! One recording: from a cut of the windows to another.

use std::{sync::Arc, time::Duration};

use thiserror::Error;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Merged, Merger, Selector, Side, Ticket};
use crate::{
    collector::{ReadError, Reader},
    filter::{Filter, Full},
    limits::memory::Mebi,
    model::slot::Slot,
    stacks::profile::Profile,
};

/// The shortest recording: each recording cuts two windows, and windows are cut at most once a second.
pub const SHORTEST: Duration = Duration::from_secs(1);
/// How long a recording may be.
pub const LONGEST: Duration = Duration::from_secs(300);
/// How long a window may be on its way through the symbolizer.
const ON_THE_WAY: Duration = Duration::from_secs(20);

/// What is to be recorded.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Whose time.
    pub selector: Selector,
    /// Which time.
    pub side: Side,
    /// What of it.
    pub filter: Filter,
    /// How much of it.
    pub duration: Duration,
}

/// Why there is no recording.
#[derive(Clone, Debug, Error)]
pub enum RecordError {
    /// Nobody of this name.
    #[error("no such {what} `{name}` ({hint})")]
    Unknown {
        /// `pod`, `container` or `cgroup`.
        what: &'static str,
        /// As it was asked for.
        name: String,
        /// Who is meant, perhaps.
        hint: String,
    },
    /// The agent does not take what is asked for.
    #[error("{0}")]
    NotTaken(String),
    /// It took all that there was, which was nothing.
    #[error("nothing was recorded: {0}")]
    Nothing(String),
    /// The agent is near its budget of memory.
    #[error(
        "recordings and flame graphs are given up for now: the agent is near what it may take of memory (see the part \
         `memory` at /status; raise `overhead.maxMemory`, or the container's limit)"
    )]
    Memory,
    /// Too many requests wait for a drawing.
    #[error(
        "too many are waiting for a flame graph, which is drawn one at a time (ask again in a second, or for one pod \
         with `subject`)"
    )]
    Drawing,
    /// Earlier answers are still being sent.
    #[error(
        "the answers to others are still being sent, and hold the memory for this one (ask again in a few seconds)"
    )]
    Unread,
    /// The drawing would take more memory than is left.
    #[error(
        "this takes up to {needs}, which the agent's budget of memory has no room for now (ask again later, raise \
         `overhead.maxMemory` or the container's limit, or keep less with a smaller `stacks.maxSamples`)"
    )]
    Room {
        /// The memory that it may take.
        needs: Mebi,
    },
    /// The drawing was begun, and failed.
    #[error("failed to draw (see the log)")]
    Broken,
    /// Others are recording.
    #[error("too many recordings are in progress, or one of this id (try again when one has ended)")]
    Busy,
    /// The filters of others leave no room.
    #[error(transparent)]
    Full(#[from] Full),
    /// The windows before have not been worked off.
    #[error("the names of earlier windows are still being looked up (try again in a minute)")]
    Behind,
    /// The collector has ended.
    #[error(transparent)]
    Collector(#[from] ReadError),
}

/// A filter that is looked at as long as this lives.
struct AtWork<'a> {
    reader: &'a Reader,
    slot: Slot,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.reader.remove_filter(self.slot);
    }
}

/// Records from now on, until the time is over, the recording is asked to end, or the agent ends.
///
/// # Errors
///
/// When the current window cannot be cut.
pub async fn record(reader: &Reader, mut ticket: Ticket, wanted: &Wanted) -> Result<Merged, RecordError> {
    let (slot, cut) = ticket.begin(reader, wanted.filter.clone()).await??;
    let _filter = AtWork { reader, slot };
    let cut = cut.ok_or(RecordError::Behind)?;
    let mut merger = Merger::new(wanted.side, wanted.selector.clone(), slot);
    ticket.control.begin();
    let end = Instant::now() + wanted.duration;
    // The window that was cut, and those before it that are still on their way, were before the recording.
    let mut before = true;
    loop {
        tokio::select! {
            () = sleep_until(end) => break,
            () = ticket.control.wanted_to_end() => break,
            window = ticket.windows.recv() => match window {
                Some(window) if before => before = window.start != Some(cut),
                Some(window) => merger = add(merger, window, &ticket).await,
                None => return Ok(merger.finish()),
            },
        }
    }
    let last = ticket.cut(reader).await?;
    if last.is_none() {
        merger.lost("window");
    }
    while last.is_some() {
        match timeout(ON_THE_WAY, ticket.windows.recv()).await {
            Ok(Some(window)) if before => before = window.start != Some(cut),
            Ok(Some(window)) => {
                let is_last = window.start == last;
                merger = add(merger, window, &ticket).await;
                if is_last {
                    break;
                }
            }
            Ok(None) => break,
            Err(_) => {
                merger.lost("window");
                break;
            }
        }
    }
    Ok(merger.finish())
}

/// Adding up a large window takes milliseconds, in which the runtime is to answer others.
async fn add(mut merger: Merger, window: Arc<Profile>, ticket: &Ticket) -> Merger {
    let added = tokio::task::spawn_blocking(move || {
        merger.add(&window);
        merger
    });
    match added.await {
        Ok(merger) => {
            ticket.control.set_count(merger.count());
            merger
        }
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
