//! Tracks how long CPUs were online, and the idle time that was counted while they were offline. Pure.
//!
//! The programs know since when a CPU has had nothing to run, but not that it was offline: when it comes back, its idle
//! time includes the time offline. The agent polls the kernel's announcements every 250 ms, so it learns of each change
//! within that time.

use std::collections::BTreeMap;

/// The CPUs, up to the last reading.
#[derive(Debug, Default)]
pub(super) struct Presence {
    cpus: BTreeMap<u32, Cpu>,
}

#[derive(Debug, Default)]
struct Cpu {
    /// The time up to which `online_ns` is counted; `None` while the CPU is offline.
    online_since_ns: Option<u64>,
    /// The time that the CPU was online since the last reading, up to `online_since_ns`.
    online_ns: u64,
    /// True if the CPU was offline at some time since the last reading.
    was_away: bool,
    /// The idle time of the CPU at the last reading.
    idle_ns: Option<u64>,
}

/// Times between two readings, all CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    /// Time that CPUs were online.
    pub(super) online_ns: u64,
    /// Idle time that was counted while they were offline.
    pub(super) offline_idle_ns: u64,
}

impl Cpu {
    fn count(&mut self, now_ns: u64) {
        if let Some(since_ns) = &mut self.online_since_ns {
            self.online_ns += now_ns.saturating_sub(*since_ns);
            *since_ns = now_ns.max(*since_ns);
        }
    }
}

impl Presence {
    /// Begins at the last reading, possibly of the previous agent, with the CPUs that are online now. It assumes that
    /// the same CPUs were online then.
    pub(super) fn since(at_ns: u64, online: &[u32]) -> Self {
        let cpu = |cpu: &u32| (*cpu, Cpu { online_since_ns: Some(at_ns), ..Cpu::default() });
        Self { cpus: online.iter().map(cpu).collect() }
    }

    /// Notes that a CPU went offline or came online.
    pub(super) fn note(&mut self, cpu: u32, is_online: bool, now_ns: u64) {
        let cpu = self.cpus.entry(cpu).or_default();
        cpu.count(now_ns);
        match (is_online, cpu.online_since_ns) {
            (true, None) => (cpu.online_since_ns, cpu.was_away) = (Some(now_ns), true),
            (false, Some(_)) => (cpu.online_since_ns, cpu.was_away) = (None, true),
            _ => {}
        }
    }

    /// Ends the time since the last reading, and returns the sums. `until_ns` returns the time up to which the counts
    /// of a CPU are settled. `online` are the CPUs that are online, and `idle_ns` has the idle time of each CPU by its
    /// number.
    pub(super) fn pass(&mut self, until_ns: impl Fn(u32) -> u64, online: &[u32], idle_ns: &[u64]) -> Passed {
        // At least one CPU runs this code, so an empty list means that it could not be read.
        if online.is_empty() {
            return Passed::default();
        }
        // Notes CPUs that came or went without an announcement.
        for cpu in online {
            self.note(*cpu, true, until_ns(*cpu));
        }
        let known: Vec<u32> = self.cpus.keys().copied().collect();
        for cpu in known.into_iter().filter(|cpu| !online.contains(cpu)) {
            self.note(cpu, false, until_ns(cpu));
        }
        let mut passed = Passed::default();
        // CPUs that have not been online since this began have idle time from before.
        for number in (0_u32..).take(idle_ns.len()) {
            self.cpus.entry(number).or_default();
        }
        for (number, cpu) in &mut self.cpus {
            let is_idle_for = idle_ns.get(*number as usize).copied().unwrap_or(0);
            let grown = cpu.idle_ns.replace(is_idle_for).map_or(0, |before| is_idle_for.saturating_sub(before));
            let is_online = cpu.online_since_ns.is_some();
            if std::mem::replace(&mut cpu.was_away, !is_online) {
                passed.offline_idle_ns += grown.saturating_sub(cpu.online_ns);
            }
            passed.online_ns += std::mem::take(&mut cpu.online_ns);
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All CPUs are settled up to `ns`.
    fn at(ns: u64) -> impl Fn(u32) -> u64 {
        move |_| ns
    }

    #[test]
    fn a_cpu_that_is_settled_later_counts_as_online_only_up_to_then() {
        let mut presence = Presence::since(0, &[0, 1]);
        let settled = |of_1: u64| move |cpu: u32| if cpu == 1 { of_1 } else { 100 };
        // CPU 1 has not switched yet, and then it has, at 90: all of its time until then is run or idle time.
        assert_eq!(presence.pass(settled(0), &[0, 1], &[100, 0]), Passed { online_ns: 100, offline_idle_ns: 0 });
        assert_eq!(presence.pass(settled(90), &[0, 1], &[100, 30]), Passed { online_ns: 90, offline_idle_ns: 0 });
        assert_eq!(presence.pass(settled(90), &[0, 1], &[100, 30]), Passed { online_ns: 0, offline_idle_ns: 0 });
    }

    #[test]
    fn cpus_that_stay_are_online_all_the_time() {
        let mut presence = Presence::since(100, &[0, 1]);
        assert_eq!(presence.pass(at(110), &[0, 1], &[5, 7]), Passed { online_ns: 20, offline_idle_ns: 0 });
        // The idle time may be read a moment after the time of the reading.
        assert_eq!(presence.pass(at(120), &[0, 1], &[16, 8]), Passed { online_ns: 20, offline_idle_ns: 0 });
    }

    #[test]
    fn a_cpu_that_was_offline_was_not_idle() {
        let mut presence = Presence::since(0, &[0, 1]);
        presence.pass(at(10), &[0, 1], &[0, 4]);
        presence.note(1, false, 13);
        assert_eq!(presence.pass(at(20), &[0], &[0, 4]), Passed { online_ns: 10 + 3, offline_idle_ns: 0 });
        assert_eq!(presence.pass(at(1000), &[0], &[0, 4]), Passed { online_ns: 980, offline_idle_ns: 0 });
        presence.note(1, true, 1005);
        // CPU 1 was idle from 11 to 1004, and for another 3 after that.
        assert_eq!(presence.pass(at(1010), &[0, 1], &[0, 1000]), Passed { online_ns: 10 + 5, offline_idle_ns: 991 });
        assert_eq!(presence.pass(at(1020), &[0, 1], &[0, 1010]), Passed { online_ns: 20, offline_idle_ns: 0 });
    }

    #[test]
    fn a_cpu_may_go_and_come_between_two_readings() {
        let mut presence = Presence::since(0, &[0]);
        presence.pass(at(10), &[0], &[0]);
        presence.note(0, false, 20);
        presence.note(0, true, 60);
        assert_eq!(presence.pass(at(100), &[0], &[85]), Passed { online_ns: 50, offline_idle_ns: 35 });
    }

    #[test]
    fn a_cpu_that_is_offline_from_the_start_was_not_idle_before_it_came() {
        let mut presence = Presence::since(0, &[0]);
        presence.pass(at(10), &[0], &[0, 500]);
        presence.note(1, true, 25);
        assert_eq!(presence.pass(at(30), &[0, 1], &[0, 9_002]), Passed { online_ns: 20 + 5, offline_idle_ns: 8_497 });
    }

    #[test]
    fn without_announcements_a_cpu_counts_from_the_reading_that_has_it() {
        let mut presence = Presence::since(0, &[0]);
        presence.pass(at(10), &[0], &[0, 0]);
        assert_eq!(presence.pass(at(20), &[0, 1], &[0, 0]), Passed { online_ns: 10, offline_idle_ns: 0 });
        assert_eq!(presence.pass(at(30), &[0], &[0, 9]), Passed { online_ns: 10 + 10, offline_idle_ns: 0 });
        assert_eq!(presence.pass(at(90), &[0, 1], &[0, 69]), Passed { online_ns: 60, offline_idle_ns: 60 });
    }
}
