//! The open groups beside other users of the PMU: groups stop to make room for these users or to reduce the cost, and
//! count again later. The state of each event follows from that.

use std::{os::fd::AsFd, time::Duration};

use podperf_ebpf::abi;
use tracing::debug;

use super::Counters;
use crate::{
    events::{
        neighbour::{Move, WHOLE},
        plausible::implausible,
        state::EventState,
    },
    kernel::{
        group::{Group, kinds_of_cpus},
        spin::spin,
    },
};

/// The time between two loops of known length.
const SPIN_EVERY: Duration = Duration::from_secs(3600);
/// The least CPU time after which a group's share is meaningful.
const LEAST_SHARE_NS: u64 = 50_000_000;

const YIELDED: &str = "not counted for now: others want the PMU's counters (end the other profilers, or set \
                       `pmu.multiplex: true` to take turns with them)";
const SHED: &str = "not counted for now: podperf costs more than `overhead.maxPercent` (raise it, or remove events)";

impl Counters {
    /// Measures the share of time that each group was on the PMU of each CPU, and moves at most one group. `flush` is
    /// called before a group stops, so that none of its counts is lost. The loop of known length runs on no CPU of
    /// `quiet`. Returns whether the state of any event has changed.
    pub(in crate::kernel) fn look(
        &mut self,
        now: Duration,
        cpus: &[abi::podperf_cpu],
        quiet: &[u32],
        flush: impl Fn(),
    ) -> bool {
        self.measure_shares(cpus);
        if !self.settings.multiplex {
            let shares: Vec<_> = self.core.iter().map(|group| self.shares[*group]).collect();
            match self.neighbour.observe(now, &shares) {
                Some(Move::Yield(index)) => self.stop(self.core[index], YIELDED, flush),
                Some(Move::Reclaim(index)) => self.go(self.core[index]),
                None => {}
            }
        }
        if self.spun.is_none_or(|(spun, _)| now.saturating_sub(spun) >= SPIN_EVERY) {
            let online: Vec<u32> = self.boots.keys().filter(|cpu| !quiet.contains(cpu)).copied().collect();
            self.spin(now, &online);
        }
        self.judge()
    }

    /// Marks an event as implausible; the mark stays until the next loop of known length checks the event.
    pub(in crate::kernel) fn doubt(&mut self, slot: usize, reason: &str) {
        let member = self.groups.iter_mut().flat_map(|group| &mut group.members).find(|member| member.slot == slot);
        if let Some(member) = member.filter(|member| member.implausible.is_none()) {
            member.implausible = Some(reason.to_owned());
        }
    }

    /// Takes the last group that still counts off the PMU, to reduce the cost. Returns `false` if there is none.
    pub(in crate::kernel) fn shed_group(&mut self, flush: impl Fn()) -> bool {
        let Some(last) = self.groups.iter().rposition(|group| group.off.is_none()) else { return false };
        self.stop(last, SHED, flush);
        self.judge();
        true
    }

    /// Puts the first group that was removed for its cost back on the PMU. Returns `false` if there is none.
    pub(in crate::kernel) fn restore_group(&mut self) -> bool {
        let Some(first) = self.groups.iter().position(|group| group.off == Some(SHED)) else { return false };
        self.go(first);
        self.judge();
        true
    }

    /// Takes a group off the PMU: first the programs stop reading the group, then the group stops counting.
    fn stop(&mut self, index: usize, why: &'static str, flush: impl Fn()) {
        // The counts so far are charged while the programs still read the group.
        flush();
        self.groups[index].off = Some(why);
        self.publish_everywhere();
        flush();
        self.groups[index].stop(why);
    }

    fn go(&mut self, index: usize) {
        self.groups[index].go();
        self.publish_everywhere();
    }

    fn measure_shares(&mut self, cpus: &[abi::podperf_cpu]) {
        self.shares.fill(None);
        for (index, group) in self.groups.iter().enumerate().filter(|(_, group)| group.hardware && group.off.is_none())
        {
            for (cpu, state) in cpus.iter().enumerate() {
                let now = (state.enabled_ns[group.number], state.running_ns[group.number]);
                let before = self.times.insert((cpu, index), now);
                let Some((enabled, running)) = before else { continue };
                let (enabled, running) = (now.0.saturating_sub(enabled), now.1.saturating_sub(running));
                if enabled >= LEAST_SHARE_NS {
                    let share = share(running, enabled);
                    self.shares[index] = Some(self.shares[index].map_or(share, |least| least.min(share)));
                }
            }
        }
    }

    /// Runs a loop of known length on one CPU of each kind, on the next CPU of the kind each time.
    pub(super) fn spin(&mut self, now: Duration, cpus: &[u32]) {
        let turn = self.spun.map_or(0, |(_, turn)| turn + 1);
        self.spun = Some((now, turn));
        let kinds = kinds_of_cpus(cpus);
        for cpu in kinds.iter().filter_map(|kind| kind.get(turn % kind.len().max(1)).copied()) {
            let placed = |group: &&Group| group.off.is_none() && group.hardware && group.fds.contains_key(&cpu);
            let fds: Vec<_> = self.groups.iter().filter(placed).flat_map(|group| &group.fds[&cpu]).collect();
            if fds.is_empty() {
                continue;
            }
            let fds: Vec<_> = fds.into_iter().map(AsFd::as_fd).collect();
            let (spin, grown) = match spin(cpu, &fds) {
                Ok(spun) => spun,
                Err(error) => {
                    debug!(cpu, %error, "no loop of known length");
                    continue;
                }
            };
            let members = self.groups.iter_mut().filter(|group| placed(&&**group)).flat_map(|group| &mut group.members);
            for (member, grown) in members.zip(grown) {
                let Some(grown) = grown.filter(|grown| grown.running_ns > 0 && member.attr.core) else { continue };
                let mode = self.events[member.event].counter.mode;
                member.implausible = implausible(&member.attr, mode, &spin, grown);
            }
        }
    }

    /// Updates the state of each open event. Returns whether any state has changed.
    pub(super) fn judge(&mut self) -> bool {
        let mut changed = false;
        for (group, share) in self.groups.iter().zip(&self.shares) {
            for member in &group.members {
                let event = &mut self.events[member.event];
                let (state, detail) = match (&member.implausible, group.off, share) {
                    (Some(reason), ..) => (EventState::Implausible, format!("withheld: {reason}")),
                    (None, Some(why), _) => (EventState::Yielded, why.to_owned()),
                    (None, None, Some(share)) if *share < WHOLE => (
                        EventState::Shared,
                        format!("on the PMU {:.0} % of the time beside others, and scaled", share * 100.0),
                    ),
                    _ => (EventState::Placed, event.counter.kernel_event.clone()),
                };
                changed |= state != event.state;
                if state != event.state || state != EventState::Placed {
                    (event.state, event.detail) = (state, detail);
                }
            }
        }
        changed
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
