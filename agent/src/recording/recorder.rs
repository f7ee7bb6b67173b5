//! Makes one recording, from one cut of the windows to a later cut.

use std::{sync::Arc, time::Duration};

use thiserror::Error;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Merged, Merger, Registration, Selector, Side, blocking, windows::ON_THE_WAY};
use crate::{
    collector::{ReadError, Reader},
    filter::{Filter, Full},
    limits::memory::Mebi,
    stacks::profile::Profile,
};

/// The shortest recording: each recording cuts two windows, and windows are cut at most once a second.
pub const SHORTEST: Duration = Duration::from_secs(1);
/// The longest recording.
pub const LONGEST: Duration = Duration::from_secs(300);
/// The reason of a loss: a window whose names came too late.
pub const LOST_WINDOW: &str = "window";

/// The description of a requested recording.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The subjects to record.
    pub selector: Selector,
    /// The side to record: waits, or samples on the CPU.
    pub side: Side,
    /// The filter that samples must pass.
    pub filter: Filter,
    /// The length of the recording.
    pub duration: Duration,
    /// Set if the source lines of user frames are looked up when the recording has ended.
    pub lines: bool,
}

/// The reasons why a recording or a drawing failed.
#[derive(Clone, Debug, Error)]
pub enum RecordError {
    /// There is no subject with this name.
    #[error("no such {what} `{name}` ({hint})")]
    Unknown {
        /// `pod`, `container` or `cgroup`.
        what: &'static str,
        /// The name in the request.
        name: String,
        /// A hint for the user, such as a similar name.
        hint: String,
    },
    /// The agent does not collect the requested data.
    #[error("{0}")]
    NotTaken(String),
    /// The recording ended without a sample.
    #[error("nothing was recorded: {0}")]
    Nothing(String),
    /// The agent is near its memory limit.
    #[error(
        "recordings and flame graphs are given up for now: the agent is near what it may take of memory (see the part \
         `memory` at /status; raise `overhead.maxMemory`, or the container's limit)"
    )]
    Memory,
    /// Too many requests wait for a drawing.
    #[error(
        "too many are waiting for a flame graph or a page, and one is drawn at a time (ask again in a second, or for \
         one pod with `subject`)"
    )]
    Drawing,
    /// Earlier answers are still being sent.
    #[error(
        "the answers to others are still being sent, and hold the memory for this one (ask again in a few seconds)"
    )]
    Unread,
    /// The drawing would take more memory than the limit leaves.
    #[error(
        "this takes up to {needs}, which the agent's budget of memory has no room for now (ask again later, raise \
         `overhead.maxMemory` or the container's limit, or keep less with a smaller `stacks.maxSamples`)"
    )]
    Room {
        /// The memory that the drawing may take.
        needs: Mebi,
    },
    /// The drawing started, and failed.
    #[error("failed to draw (see the log)")]
    Broken,
    /// Too many recordings are in progress, or one has this id, or the one of system calls that there may be.
    #[error("too many recordings are in progress, or one of this id or of system calls (try again when one has ended)")]
    Busy,
    /// Other recordings have all places for functions that the configuration leaves free.
    #[error(
        "no function more can be measured: {configured} of {most} places have functions of the configuration, and \
         others' recordings the rest (try again when one has ended)"
    )]
    Places {
        /// The number of all places.
        most: usize,
        /// The number of functions of the configuration.
        configured: usize,
    },
    /// The filters of other recordings leave no free slot.
    #[error(transparent)]
    Full(#[from] Full),
    /// The symbolizer has not finished the previous windows.
    #[error("the names of earlier windows are still being looked up (try again in a minute)")]
    Behind,
    /// The collector has ended.
    #[error(transparent)]
    Collector(#[from] ReadError),
}

/// Records from now on, until the time is over, a request ends the recording, or the agent ends.
///
/// # Errors
///
/// When the current window cannot be cut.
pub async fn record(reader: &Reader, mut registration: Registration, wanted: &Wanted) -> Result<Merged, RecordError> {
    // Samples are matched against the filter while it lives.
    let (filter, cut) = registration.begin(reader, wanted.filter.clone()).await??;
    let cut = cut.ok_or(RecordError::Behind)?;
    let mut merger = Merger::new(wanted.side, wanted.selector.clone(), filter.slot());
    registration.control.begin();
    let end = Instant::now() + wanted.duration;
    // The window that was cut, and earlier windows still in the symbolizer, belong to the time before the recording.
    let mut before = true;
    loop {
        tokio::select! {
            () = sleep_until(end) => break,
            () = registration.control.wanted_to_end() => break,
            window = registration.windows.recv() => match window {
                Some(window) if before => before = window.start != Some(cut),
                Some(window) => merger = add(merger, window, &registration).await,
                None => return Ok(finish(merger).await),
            },
        }
    }
    let last = registration.cut(reader).await?;
    if last.is_none() {
        merger.lost(LOST_WINDOW);
    }
    while last.is_some() {
        match timeout(ON_THE_WAY, registration.windows.recv()).await {
            Ok(Some(window)) if before => before = window.start != Some(cut),
            Ok(Some(window)) => {
                let is_last = window.start == last;
                merger = add(merger, window, &registration).await;
                if is_last {
                    break;
                }
            }
            Ok(None) => break,
            Err(_) => {
                merger.lost(LOST_WINDOW);
                break;
            }
        }
    }
    Ok(finish(merger).await)
}

/// Adds a window on a blocking thread: a large one takes milliseconds, in which the runtime must answer other requests.
async fn add(mut merger: Merger, window: Arc<Profile>, registration: &Registration) -> Merger {
    let merger = blocking(move || {
        merger.add(&window);
        merger
    })
    .await;
    registration.control.set_count(merger.count());
    merger
}

/// Judges the waits on a blocking thread, since it looks at the functions of each stack.
async fn finish(merger: Merger) -> Merged {
    blocking(move || merger.finish()).await
}
