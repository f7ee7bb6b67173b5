//! Detects loops of the agent that hang: each loop counts its turns, and the HTTP server checks that the counts change.
//!
//! Each check adds the time since the last check, and at most two periods. So a machine that was suspended, or a
//! process that was stopped, does not look like a thread that hangs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// The period at which the caller must call [`Pulse::look`].
pub const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A loop without a turn for this time hangs. A reading of 10,000 cgroups takes far less.
pub const HANGS_AFTER: Duration = Duration::from_secs(60);

/// The count of a loop's turns. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat(Arc<AtomicU64>);

/// The loops that are watched.
#[derive(Clone, Debug, Default)]
pub struct Heartbeats {
    /// The loop of the thread `podperf-kernel`. It turns at least four times a second between readings.
    pub kernel: Heartbeat,
    /// The loop of the main thread. It turns every five seconds.
    pub main: Heartbeat,
}

/// The state of all loops at the last check.
#[derive(Clone, Debug)]
pub struct Pulse {
    loops: [(&'static str, Heartbeat, u64, Duration); 2],
    looked: Option<Duration>,
}

impl Heartbeat {
    /// Counts a turn of the loop.
    pub fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Pulse {
    /// Returns a pulse that has seen no turns yet.
    #[must_use]
    pub fn new(heartbeats: &Heartbeats) -> Self {
        let Heartbeats { kernel, main } = heartbeats.clone();
        let loops = [("podperf-kernel", kernel, 0, Duration::ZERO), ("main", main, 0, Duration::ZERO)];
        Self { loops, looked: None }
    }

    /// Notes which loops have turned since the last check. `now` is a time of `CLOCK_MONOTONIC`.
    pub fn look(&mut self, now: Duration) {
        let since = now.saturating_sub(self.looked.replace(now).unwrap_or(now)).min(2 * LOOK_EVERY);
        for (_, heartbeat, seen, silent) in &mut self.loops {
            let turns = heartbeat.0.load(Ordering::Relaxed);
            *silent = if std::mem::replace(seen, turns) == turns { *silent + since } else { Duration::ZERO };
        }
    }

    /// Returns a message that names a loop that hangs; `None` if all loops turn.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let (name, _, _, silent) = self.loops.iter().find(|(_, _, _, silent)| *silent >= HANGS_AFTER)?;
        Some(format!("the thread `{name}` has not turned for {} s (restart the agent)", silent.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `look` every period for `time`. The loops in `turning` turn before each call.
    fn watch(pulse: &mut Pulse, now: &mut Duration, time: Duration, turning: &[&Heartbeat]) {
        let end = *now + time;
        while *now < end {
            *now += LOOK_EVERY;
            turning.iter().for_each(|heartbeat| heartbeat.beat());
            pulse.look(*now);
        }
    }

    #[test]
    fn a_loop_that_hangs_is_named_and_one_that_is_slow_is_not() {
        let (heartbeats, mut now) = (Heartbeats::default(), Duration::from_secs(1000));
        let Heartbeats { kernel, main } = &heartbeats;
        let mut pulse = Pulse::new(&heartbeats);
        watch(&mut pulse, &mut now, Duration::from_secs(5), &[kernel, main]);
        assert_eq!(pulse.problem(), None);
        // The kernel thread reads for 50 s.
        watch(&mut pulse, &mut now, Duration::from_secs(50), &[main]);
        assert_eq!(pulse.problem(), None);
        watch(&mut pulse, &mut now, LOOK_EVERY, &[kernel, main]);
        watch(&mut pulse, &mut now, Duration::from_secs(59), &[main]);
        assert_eq!(pulse.problem(), None);
        watch(&mut pulse, &mut now, Duration::from_secs(1), &[main]);
        let problem = pulse.problem().unwrap();
        assert!(problem.starts_with("the thread `podperf-kernel` has not turned for 60 s"), "{problem}");
        watch(&mut pulse, &mut now, LOOK_EVERY, &[kernel]);
        assert_eq!(pulse.problem(), None, "it turns again");
        watch(&mut pulse, &mut now, HANGS_AFTER, &[kernel]);
        assert!(pulse.problem().unwrap().contains("`main`"));
    }

    #[test]
    fn a_process_that_was_stopped_does_not_hang() {
        let (heartbeats, mut now) = (Heartbeats::default(), Duration::from_secs(1000));
        let mut pulse = Pulse::new(&heartbeats);
        watch(&mut pulse, &mut now, Duration::from_secs(2), &[&heartbeats.kernel, &heartbeats.main]);
        for _ in 0..10 {
            now += Duration::from_secs(3600);
            pulse.look(now);
        }
        assert_eq!(pulse.problem(), None);
    }
}
