//! The losses of the running programs, and the cost of them and their maps.

use std::{io, os::fd::AsFd};

use super::Sensors;
use crate::{
    kernel::{
        cost::{MapUse, ProgramUse},
        programs::{DROPS, TASKS},
        raw,
        reading::CpuTotals,
    },
    model::sensors::{ALL, Sensor},
};

impl Sensors {
    /// Returns the number of losses so far, by `podperf_bpf_drops_total` label.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn drops(&self) -> io::Result<Vec<(&'static str, u64)>> {
        let mut drops: Vec<_> = DROPS.iter().map(|reason| (*reason, 0)).collect();
        self.read_map("drops", self.copies, |reason: u32, copies: &[u64]| {
            if let Some((_, count)) = drops.get_mut(reason as usize) {
                *count = copies.iter().sum();
            }
        })?;
        for (reason, lost) in &self.base.1 {
            drops.iter_mut().filter(|(of, _)| of == reason).for_each(|(_, count)| *count += lost);
        }
        Ok(drops)
    }

    /// Returns the use and the memory of the maps, by the kernel's own account (`/proc/self/fdinfo`).
    #[must_use]
    pub fn map_use(&self) -> Vec<MapUse> {
        let runs = |sensor: &Sensor| sensor.programs.iter().any(|program| self.running.contains(&program.name));
        let of_sensors = || ALL.iter().filter(|sensor| runs(sensor)).flat_map(|sensor| sensor.maps);
        // The records of the programs before, `tasks_before`, are migrated and removed.
        let has_records = |name: &str| name == TASKS || of_sensors().any(|map| map.name == name);
        let mut maps: Vec<_> = self
            .object
            .maps()
            .filter(|(name, _)| !name.starts_with("event") && !name.starts_with('.'))
            .filter_map(|(name, map)| Some(MapUse::read(name, raw::data(map)?.fd().as_fd(), has_records(name))))
            .collect();
        maps.sort_by(|a, b| a.map.cmp(&b.map));
        maps
    }

    /// Returns the programs that run, with their runs and times by their own account in `totals`.
    #[must_use]
    pub fn program_use(&self, totals: &CpuTotals) -> Vec<ProgramUse> {
        let read =
            |name: &&'static str| Some(ProgramUse::read(name, self.object.descriptor(name)?, totals.account(name)?));
        self.running.iter().filter_map(read).collect()
    }
}
