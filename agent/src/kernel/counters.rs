//! The configured events on the PMUs of all CPUs: opens their counters, also on CPUs that come online, and passes the
//! counters to the programs. [`sharing`] stops and continues them.

mod sharing;

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use aya::maps::Map;
use podperf_ebpf::abi;
use tracing::{info, warn};

use super::{
    budget::{Budget, Reserve},
    group::{Failed, Group, Member, one_of_each_kind},
    perf, raw,
    spin::most_ghz,
};
use crate::events::{
    self,
    hint::perf_error_hint,
    neighbour::Neighbour,
    plan::{Attr, Counter, Plan, Source},
    state::EventState,
};

/// The settings for sharing the PMU with other users.
#[derive(Clone, Copy, Debug, Default)]
pub struct PmuSettings {
    /// Number of counters of each CPU that are left to other users.
    pub leave_free: u32,
    /// Set if groups that do not fit at the same time take turns. No group then makes room for other users.
    pub multiplex: bool,
    /// `kernel.perf_event_paranoid`, for messages.
    pub paranoid: Option<i32>,
    /// Set if the kernel's watchdog holds a counter.
    pub watchdog: bool,
}

/// A configured event and its state.
#[derive(Clone, Debug)]
pub struct OpenCounter {
    /// The event as configured.
    pub counter: Counter,
    /// Index of the event in `podperf_cgroup.counts`; `None` if it was not opened.
    pub slot: Option<usize>,
    /// Index of the event's group in `podperf_cgroup.enabled_ns`; only for hardware groups, which may be multiplexed.
    pub group: Option<usize>,
    /// State of the event: it shows if the event counts.
    pub state: EventState,
    /// The event that was requested from the kernel, or the reason why it does not count, with a remedy.
    pub detail: String,
}

/// All counters. On drop they close and stop counting.
#[derive(Debug)]
pub(super) struct Counters {
    settings: PmuSettings,
    events: Vec<OpenCounter>,
    groups: Vec<Group>,
    /// Slot -> 1 + group, for leaders of hardware groups; see `leader_of` in counters.bpf.h.
    leader_of: Vec<u8>,
    /// Indexes of the groups that take counters of the CPUs.
    core: Vec<usize>,
    neighbour: Neighbour,
    /// CPU -> number of times that it has come online.
    boots: BTreeMap<u32, u32>,
    /// Enabled and running times at the last look, by CPU and group.
    times: BTreeMap<(usize, usize), (u64, u64)>,
    /// The smallest share of time that each group had on the PMU of any CPU, at the last look.
    shares: Vec<Option<f64>>,
    spun: Option<(Duration, usize)>,
    maps: Option<Maps>,
}

#[derive(Debug)]
struct Maps {
    /// Slot -> its array of counters, by CPU.
    events: Vec<Map>,
    controls: Map,
}

impl Counters {
    /// Opens the groups that can be opened and that fit. An event that the machine lacks is left out of its group,
    /// and its `detail` has the reason.
    pub(super) fn open(plan: &Plan, cpus: &[u32], settings: PmuSettings, now: Duration) -> Self {
        let mut this = Self {
            settings,
            events: Vec::new(),
            groups: Vec::new(),
            leader_of: Vec::new(),
            core: Vec::new(),
            neighbour: Neighbour::new(0, now),
            boots: BTreeMap::new(),
            times: BTreeMap::new(),
            shares: Vec::new(),
            spun: None,
            maps: None,
        };
        let reserve = Reserve { free: settings.leave_free, watchdog: settings.watchdog };
        let mut budget = Budget::new(&one_of_each_kind(cpus), reserve);
        for (number, counters) in plan.groups.iter().enumerate() {
            this.open_group(number, counters, cpus, &mut budget);
        }
        this.core = (0..this.groups.len()).filter(|group| this.groups[*group].takes_core_counters()).collect();
        this.neighbour = Neighbour::new(this.core.len(), now);
        this.shares = vec![None; this.groups.len()];
        this.spin(now, cpus);
        this.judge();
        this
    }

    /// Returns the number of counters that the programs read.
    pub(super) fn slots(&self) -> usize {
        self.leader_of.len()
    }

    /// Returns the value of `leader_of` in counters.bpf.h.
    pub(super) fn leader_of(&self) -> [u8; abi::PODPERF_MAX_EVENTS as usize] {
        let mut leader_of = [0; abi::PODPERF_MAX_EVENTS as usize];
        leader_of.iter_mut().zip(&self.leader_of).for_each(|(to, from)| *to = *from);
        leader_of
    }

    /// Returns the names of the counters that the programs read, by slot.
    pub(super) fn names(&self) -> Vec<&str> {
        self.events.iter().filter(|open| open.slot.is_some()).map(|open| open.counter.name.as_str()).collect()
    }

    /// Returns all configured events with their states.
    pub(super) fn events(&self) -> &[OpenCounter] {
        &self.events
    }

    /// Puts the counters into the maps that the programs read.
    pub(super) fn pass(&mut self, events: Vec<Map>, controls: Map, cpus: &[u32]) -> io::Result<()> {
        self.maps = Some(Maps { events, controls });
        cpus.iter().try_for_each(|cpu| self.publish(*cpu))
    }

    /// Puts the counters into the maps of programs that a previous agent left running, in place of that agent's
    /// counters. `flush` is called before and after on each CPU; only the counts between the two calls are lost.
    pub(super) fn replace(
        &mut self,
        events: Vec<Map>,
        controls: Map,
        cpus: &[u32],
        flush: impl Fn(u32),
    ) -> io::Result<()> {
        self.maps = Some(Maps { events, controls });
        cpus.iter().try_for_each(|cpu| self.replace_on(*cpu, &flush))
    }

    fn replace_on(&mut self, cpu: u32, flush: impl Fn(u32)) -> io::Result<()> {
        let Some(controls) = self.maps.as_ref().and_then(|maps| raw::data(&maps.controls)) else { return Ok(()) };
        let mut control = [abi::podperf_control { events: 0, boot: 0 }];
        raw::lookup(controls.fd().as_fd(), cpu, &mut control)?;
        let boot = control[0].boot;
        flush(cpu);
        // While the counters are replaced, no program may read them.
        raw::update(controls.fd().as_fd(), cpu, abi::podperf_control { events: 0, boot })?;
        self.boots.insert(cpu, boot.wrapping_add(1));
        self.publish(cpu)?;
        flush(cpu);
        Ok(())
    }

    /// Follows CPUs that went offline since the last call (`gone`), and opens counters on CPUs of `online` that lack
    /// them. The counters of a CPU end when it goes offline.
    pub(super) fn follow(&mut self, gone: &[u32], online: &[u32]) {
        let lost: Vec<u32> = self
            .boots
            .keys()
            .filter(|cpu| gone.contains(cpu) || !online.contains(cpu))
            .copied()
            .chain(gone.iter().copied())
            .collect();
        for cpu in lost {
            if self.groups.iter_mut().filter_map(|group| group.fds.remove(&cpu)).count() > 0 {
                info!(cpu, "CPU went offline");
                self.times.retain(|(of, _), _| u32::try_from(*of) != Ok(cpu));
            }
        }
        for &cpu in online {
            if !self.groups.iter().any(|group| group.belongs_on(cpu) && !group.fds.contains_key(&cpu)) {
                continue;
            }
            *self.boots.entry(cpu).or_default() += 1;
            for group in &mut self.groups {
                if let Err(error) = group.open_on(cpu) {
                    warn!(cpu, group = group.number, %error, "no counters on a CPU that came online");
                }
            }
            match self.publish(cpu) {
                Ok(()) => info!(cpu, "CPU came online: its counters count"),
                Err(error) => warn!(cpu, %error, "the counters of a CPU that came online were not handed over"),
            }
        }
    }

    fn open_group(&mut self, number: usize, counters: &[Counter], cpus: &[u32], budget: &mut Budget) {
        let paranoid = self.settings.paranoid;
        let explain = |error: &io::Error, counter: &Counter| {
            perf_error_hint(error.raw_os_error().unwrap_or(0), counter, paranoid)
        };
        // Each event is opened alone first, so that one event that this CPU lacks does not fail its whole group.
        let mut members: Vec<(&Counter, Attr)> = Vec::new();
        let mut on: Option<Option<Vec<u32>>> = None;
        for counter in counters {
            let own = counter.cpus.clone().filter(|own| !cpus.iter().all(|cpu| own.contains(cpu)));
            let first = cpus.iter().find(|cpu| own.as_ref().is_none_or(|own| own.contains(cpu)));
            let refusal = match (&counter.source, first) {
                (Source::Unsupported(reason), _) => Err(reason.clone()),
                (Source::Attr(_), None) => {
                    Err(format!("none of its PMU's CPUs is online (see {}: its `cpus` file)", events::SYSFS))
                }
                (Source::Attr(_), Some(_)) if on.as_ref().is_some_and(|on| *on != own) => {
                    Err("its group has events of other CPUs too (give each PMU a group of its own)".to_owned())
                }
                (Source::Attr(attr), Some(cpu)) => match perf::open_group(*cpu, std::slice::from_ref(attr)) {
                    Ok(_) => Ok(*attr),
                    Err((_, error)) => Err(explain(&error, counter)),
                },
            };
            match refusal {
                Ok(attr) => {
                    on = Some(own);
                    members.push((counter, attr));
                }
                Err(reason) => self.refuse(counter, EventState::Unsupported, reason),
            }
        }
        let attrs: Vec<Attr> = members.iter().map(|(_, attr)| *attr).collect();
        let on = on.flatten();
        if !budget.is_possible(&attrs, on.as_deref()) {
            let too_large = io::Error::from_raw_os_error(libc::EINVAL);
            for (counter, _) in members {
                self.refuse(counter, EventState::Unsupported, explain(&too_large, counter));
            }
            return;
        }
        let mut group = Group {
            number,
            members: Vec::new(),
            cpus: on,
            fds: BTreeMap::new(),
            off: None,
            hardware: attrs.iter().any(|attr| !attr.is_software()),
        };
        let slot = self.slots();
        let event = self.events.len();
        group.members = attrs
            .iter()
            .enumerate()
            .map(|(index, attr)| Member { slot: slot + index, event: event + index, attr: *attr, implausible: None })
            .collect();
        // The group is opened on all of its CPUs, or not at all.
        for &cpu in cpus {
            if let Err(Failed { member, error }) = group.open_on(cpu) {
                let reason = members.get(member).map(|(counter, _)| explain(&error, counter)).unwrap_or_default();
                members.iter().for_each(|(counter, _)| self.refuse(counter, EventState::Unsupported, reason.clone()));
                return;
            }
            self.boots.entry(cpu).or_default();
        }
        if !self.settings.multiplex && !budget.take(&attrs, group.cpus.as_deref()) {
            let reason = self.does_not_fit();
            members.iter().for_each(|(counter, _)| self.refuse(counter, EventState::Yielded, reason.clone()));
            return;
        }
        for (index, (counter, _)) in members.into_iter().enumerate() {
            let leads = group.hardware && index == 0;
            self.leader_of.push(if leads { u8::try_from(number + 1).unwrap_or(0) } else { 0 });
            self.events.push(OpenCounter {
                counter: counter.clone(),
                slot: Some(slot + index),
                group: group.hardware.then_some(number),
                state: EventState::Placed,
                detail: counter.kernel_event.clone(),
            });
        }
        if !group.members.is_empty() {
            self.groups.push(group);
        }
    }

    fn does_not_fit(&self) -> String {
        let watchdog = if self.settings.watchdog { "; `sysctl kernel.nmi_watchdog=0` frees one" } else { "" };
        format!(
            "does not fit beside the groups before it with {} of the PMU's counters left free (remove events, lower \
             `pmu.leaveFree`, or let groups take turns by `pmu.multiplex: true`{watchdog})",
            self.settings.leave_free
        )
    }

    fn refuse(&mut self, counter: &Counter, state: EventState, detail: String) {
        self.events.push(OpenCounter { counter: counter.clone(), slot: None, group: None, state, detail });
    }

    /// Writes the counters that are open on a CPU into the programs' maps.
    fn publish(&self, cpu: u32) -> io::Result<()> {
        let Some(maps) = &self.maps else { return Ok(()) };
        let mut open = 0;
        for group in &self.groups {
            let Some(fds) = group.fds.get(&cpu) else { continue };
            for (member, fd) in group.members.iter().zip(fds) {
                let Some(array) = maps.events.get(member.slot).and_then(raw::data) else { continue };
                raw::update(array.fd().as_fd(), cpu, fd.as_raw_fd())?;
                open |= u32::from(group.off.is_none()) << member.slot;
            }
        }
        let boot = self.boots.get(&cpu).copied().unwrap_or(0);
        let control = abi::podperf_control { events: open, boot };
        raw::data(&maps.controls).map_or(Ok(()), |controls| raw::update(controls.fd().as_fd(), cpu, control))
    }

    fn publish_everywhere(&self) {
        for cpu in self.boots.keys() {
            if let Err(error) = self.publish(*cpu) {
                warn!(cpu, %error, "the state of the counters was not handed over");
            }
        }
    }
}

/// Returns the fastest clock of these CPUs, in GHz.
pub(super) fn fastest_ghz(cpus: &[u32]) -> f64 {
    cpus.iter().map(|cpu| most_ghz(*cpu)).fold(0.0, f64::max)
}
