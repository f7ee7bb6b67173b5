//! Makes a recording of system calls. Its programs are in the kernel only while it goes on.

use std::{collections::HashSet, io, time::Duration};

use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until},
};

use super::{RecordError, Registration, Selector, blocking};
use crate::{
    collector::Reader,
    kernel::{CallRecorder, MOST_CGROUPS},
    model::{ids::CgroupId, recorded_calls::RecordedCalls},
};

/// The time between two looks at the programs' cost and at new cgroups.
const EVERY: Duration = Duration::from_millis(250);
/// The recording is at least this long before its cost is judged.
const JUDGED_AFTER: Duration = Duration::from_secs(1);
/// The time after which no program still runs that began while calls counted.
const QUIET: Duration = Duration::from_millis(20);

/// A requested recording of system calls.
#[derive(Clone, Debug)]
pub struct CallsWanted {
    /// The subjects to record.
    pub selector: Selector,
    /// The length of the recording.
    pub duration: Duration,
    /// The most CPU time that the programs may take, as a share of all CPUs' time; `None` without a limit.
    pub most: Option<f64>,
    /// The number of CPUs of the node.
    pub cpus: u32,
}

/// The reasons for which a recording ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedEarly {
    /// A request ended it, or the agent is near its memory limit, or ends.
    Asked,
    /// Its programs took more CPU time than `overhead.maxPercent`.
    Cost,
}

/// A finished recording of system calls.
#[derive(Clone, Debug)]
pub struct CallReport {
    /// The selector as the user wrote it.
    pub title: String,
    /// The length of the recording.
    pub duration: Duration,
    /// The reason for which it was shorter than requested.
    pub ended_early: Option<EndedEarly>,
    /// The calls.
    pub calls: RecordedCalls,
    /// The number of cgroups that were there when it began; `None` if all cgroups of the node were recorded.
    pub cgroups: Option<usize>,
    /// The number of cgroups that came later. Their calls are missing for up to half a second.
    pub came_later: usize,
    /// The number of cgroups that were left out, because there were too many.
    pub left_out: usize,
}

/// The cgroups of a recording.
#[derive(Debug, Default)]
struct Cgroups {
    known: HashSet<CgroupId>,
    left_out: HashSet<CgroupId>,
}

impl Cgroups {
    /// Notes the cgroups of the subjects that there are now, and returns the new ones for which there is room.
    fn add(&mut self, now: impl IntoIterator<Item = CgroupId>) -> Vec<CgroupId> {
        let mut new = Vec::new();
        for id in now {
            if self.known.contains(&id) {
                continue;
            }
            if self.known.len() < MOST_CGROUPS {
                self.known.insert(id);
                new.push(id);
            } else {
                self.left_out.insert(id);
            }
        }
        new
    }
}

/// Records system calls from now on, until the time is over, a request ends the recording, or the agent ends. `turn` is
/// held until the programs are unloaded, also if the request is given up while they are loaded.
///
/// # Errors
///
/// When the kernel cannot run the programs, or its maps cannot be read.
pub async fn record_calls(
    reader: &Reader,
    mut registration: Registration,
    turn: OwnedSemaphorePermit,
    wanted: &CallsWanted,
) -> Result<CallReport, RecordError> {
    let all = wanted.selector == Selector::All;
    let mut cgroups = Cgroups::default();
    let new = new_cgroups(reader, wanted, &mut cgroups).await?;
    let at_begin = new.len();
    let recorder = blocking(move || {
        let recorder = CallRecorder::load(all)?;
        recorder.add(&new).and_then(|()| recorder.begin()).map_err(|error| error.to_string())?;
        Ok::<_, String>((turn, recorder))
    });
    let (turn, recorder) = recorder.await.map_err(|why| RecordError::NotTaken(cannot(&why)))?;
    registration.control.begin();
    let start = Instant::now();
    let end = start + wanted.duration;
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended_early = loop {
        tokio::select! {
            () = sleep_until(end) => break None,
            () = registration.control.wanted_to_end() => break Some(EndedEarly::Asked),
            window = registration.windows.recv() => if window.is_none() {
                break Some(EndedEarly::Asked);
            },
            _ = ticks.tick() => {
                let new = new_cgroups(reader, wanted, &mut cgroups).await?;
                recorder.add(&new).map_err(unreadable)?;
                let used = recorder.used().map_err(unreadable)?;
                registration.control.set_count(used.calls);
                if is_over(Duration::from_nanos(used.run_ns), start.elapsed(), wanted) {
                    break Some(EndedEarly::Cost);
                }
            }
        }
    };
    recorder.end().map_err(unreadable)?;
    let duration = start.elapsed();
    sleep(QUIET).await;
    // With many CPUs these are some megabytes, and to unload programs takes milliseconds.
    let calls = blocking(move || {
        let calls = recorder.read();
        drop(recorder);
        drop(turn);
        calls
    });
    let calls = calls.await.map_err(unreadable)?;
    Ok(CallReport {
        title: wanted.selector.to_string(),
        duration,
        ended_early,
        calls,
        cgroups: (!all).then_some(at_begin),
        came_later: cgroups.known.len() - at_begin,
        left_out: cgroups.left_out.len(),
    })
}

/// Returns the cgroups of the selected subjects that are not recorded yet. A recording of all needs none.
async fn new_cgroups(
    reader: &Reader,
    wanted: &CallsWanted,
    cgroups: &mut Cgroups,
) -> Result<Vec<CgroupId>, RecordError> {
    if wanted.selector == Selector::All {
        return Ok(Vec::new());
    }
    let subjects = reader.subjects().await?;
    Ok(cgroups.add(subjects.iter().filter(|(_, subject)| wanted.selector.takes(subject)).map(|(id, _)| *id)))
}

/// Returns whether the programs took too much CPU time.
fn is_over(ran: Duration, elapsed: Duration, wanted: &CallsWanted) -> bool {
    let may = wanted.most.map(|most| elapsed.as_secs_f64() * f64::from(wanted.cpus) * most);
    elapsed >= JUDGED_AFTER && may.is_some_and(|may| ran.as_secs_f64() > may)
}

fn cannot(why: &str) -> String {
    format!("system calls cannot be recorded here: {why}")
}

fn unreadable(error: io::Error) -> RecordError {
    RecordError::NotTaken(format!("the recording of system calls failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_beyond_the_room_are_counted_and_none_twice() {
        let mut cgroups = Cgroups::default();
        let ids = |number: u64| (0..number).map(CgroupId);
        assert_eq!(cgroups.add(ids(2)), [CgroupId(0), CgroupId(1)]);
        assert_eq!(cgroups.add(ids(3)), [CgroupId(2)]);
        let most = u64::try_from(MOST_CGROUPS).unwrap();
        assert_eq!(cgroups.add(ids(most + 5)).len(), MOST_CGROUPS - 3);
        assert!(cgroups.add(ids(most + 5)).is_empty());
        assert_eq!((cgroups.known.len(), cgroups.left_out.len()), (MOST_CGROUPS, 5));
    }

    #[test]
    fn a_recording_over_the_limit_is_judged_after_a_second() {
        let wanted = |most| CallsWanted { selector: Selector::All, duration: Duration::from_secs(9), most, cpus: 4 };
        let (limited, free) = (wanted(Some(0.05)), wanted(None));
        let is_over = |wanted: &CallsWanted, ran, elapsed| {
            super::is_over(Duration::from_millis(ran), Duration::from_millis(elapsed), wanted)
        };
        assert!(!is_over(&limited, 500, 900) && is_over(&limited, 500, 2000) && !is_over(&limited, 300, 2000));
        assert!(!is_over(&free, 9000, 2000));
    }
}
