//! A group of events, open on the CPUs that have its PMU: whole on each, or not at all.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use tracing::{debug, warn};

use super::perf;
use crate::events::{self, plan::Attr, pmu::core_pmus};

/// Events that are on the PMU at the same time, on all CPUs that have this PMU.
#[derive(Debug)]
pub(super) struct Group {
    /// Index of the group in the configuration, and of its times.
    pub(super) number: usize,
    pub(super) members: Vec<Member>,
    /// The CPUs that have the group's PMU; `None` means all CPUs.
    pub(super) cpus: Option<Vec<u32>>,
    /// Descriptors by CPU, in the order of the members.
    pub(super) fds: BTreeMap<u32, Vec<OwnedFd>>,
    /// The reason why the group is off the PMU now; `None` while it counts.
    pub(super) off: Option<&'static str>,
    pub(super) hardware: bool,
}

/// One event of a group.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) slot: usize,
    /// Index of the event among all events.
    pub(super) event: usize,
    pub(super) attr: Attr,
    pub(super) implausible: Option<String>,
}

/// A member that could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(super) struct Failed {
    pub(super) member: usize,
    #[source]
    pub(super) error: io::Error,
}

impl Group {
    /// Returns whether the group takes some of the few counters of the CPUs.
    pub(super) fn takes_core_counters(&self) -> bool {
        self.members.iter().any(|member| member.attr.core)
    }

    pub(super) fn belongs_on(&self, cpu: u32) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpus.contains(&cpu))
    }

    /// Opens the group on a CPU, unless it is open or does not belong there, and enables it unless it is off.
    pub(super) fn open_on(&mut self, cpu: u32) -> Result<(), Failed> {
        if !self.belongs_on(cpu) || self.fds.contains_key(&cpu) {
            return Ok(());
        }
        let attrs: Vec<Attr> = self.members.iter().map(|member| member.attr).collect();
        let fds = if self.hardware {
            perf::open_group(cpu, &attrs).map_err(|(member, error)| Failed { member, error })?
        } else {
            let each = attrs.iter().enumerate().map(|(member, attr)| {
                let opened = perf::open_group(cpu, std::slice::from_ref(attr));
                opened.map_err(|(_, error)| Failed { member, error })
            });
            each.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect()
        };
        if self.off.is_none() {
            for (member, leader) in self.leaders(&fds).iter().enumerate() {
                perf::enable(leader.as_fd()).map_err(|error| Failed { member, error })?;
            }
        }
        self.fds.insert(cpu, fds);
        Ok(())
    }

    /// Returns the leaders: enabling or disabling a leader does the same to its whole group. Software events need no
    /// place on a PMU, so each of them is its own leader.
    fn leaders<'a>(&self, fds: &'a [OwnedFd]) -> &'a [OwnedFd] {
        if self.hardware { &fds[..fds.len().min(1)] } else { fds }
    }

    /// Takes the group off the PMU of all CPUs. Its counts and times stop.
    pub(super) fn stop(&mut self, why: &'static str) {
        self.off = Some(why);
        for leader in self.fds.values().flat_map(|fds| self.leaders(fds)) {
            if let Err(error) = perf::disable(leader.as_fd()) {
                debug!(group = self.number, %error, "not disabled");
            }
        }
    }

    /// Puts the group back on the PMU of all CPUs.
    pub(super) fn go(&mut self) {
        let leaders = self.fds.iter().flat_map(|(cpu, fds)| self.leaders(fds).iter().map(move |leader| (cpu, leader)));
        for (cpu, leader) in leaders {
            if let Err(error) = perf::enable(leader.as_fd()) {
                warn!(cpu, group = self.number, %error, "a group does not count again");
            }
        }
        self.off = None;
    }
}

/// Returns the online CPUs, grouped by the PMU that they have.
pub(super) fn kinds_of_cpus(cpus: &[u32]) -> Vec<Vec<u32>> {
    let mut kinds: Vec<Vec<u32>> = core_pmus(Path::new(events::SYSFS))
        .into_iter()
        .map(|(_, own)| cpus.iter().filter(|cpu| own.contains(cpu)).copied().collect())
        .collect();
    kinds.retain(|kind| !kind.is_empty());
    if kinds.is_empty() {
        kinds.push(cpus.to_vec());
    }
    kinds
}

/// Returns one CPU of each kind.
pub(super) fn one_of_each_kind(cpus: &[u32]) -> Vec<u32> {
    kinds_of_cpus(cpus).iter().filter_map(|kind| kind.first().copied()).collect()
}
