//! Looks after the cgroups that the running programs count: frees the rows of removed ones, names the levels of the
//! tree, and chooses cgroups for sensors.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use aya::maps::MapData;

use super::Sensors;
use crate::{
    kernel::{
        listed,
        object::fd,
        raw::{self, Then},
    },
    model::ids::CgroupId,
};

impl Sensors {
    /// Frees the rows of removed cgroups, and returns those that no reading returns from here on. If the programs still
    /// settle a task of such a cgroup, a new row appears.
    pub fn forget_cgroups(&mut self, dead: &[CgroupId]) -> Vec<CgroupId> {
        self.rows.forget(&self.object, dead)
    }

    /// Forgets where the work of removed cgroups without a row was charged.
    ///
    /// # Errors
    ///
    /// When the kernel refuses. The next call then forgets them.
    pub fn forget_charged(&self, gone: &[CgroupId]) -> io::Result<()> {
        listed::forget_charged(&self.object, gone)
    }

    /// Tells the programs below which cgroups others have names of their own, and in how many levels, if this has
    /// changed. Without these levels each cgroup of root may take any row.
    ///
    /// # Errors
    ///
    /// When the kernel refuses. The next call then writes the levels.
    pub fn name_levels(&self, levels: &BTreeMap<CgroupId, u64>) -> io::Result<()> {
        listed::name_levels(&self.object, levels)
    }

    /// Makes a sensor count what these cgroups do, and nothing else. `table` is its map of chosen cgroups, and has the
    /// first ones if it has not room for all.
    ///
    /// # Errors
    ///
    /// When the kernel refuses. The next call then completes the table.
    pub fn choose_cgroups(&self, table: &'static str, cgroups: &[CgroupId]) -> io::Result<()> {
        let map = fd(&self.object, table)?;
        let data = self.object.map(table).and_then(raw::data);
        let info = data.map(MapData::info).transpose().map_err(io::Error::other)?;
        let room = info.map_or(0, |info| info.max_entries() as usize);
        let chosen: BTreeSet<CgroupId> = cgroups.iter().copied().take(room).collect();
        let mut before = BTreeSet::new();
        raw::read_all(map, 1, Then::Keep, |id: u64, _: &[u64]| {
            before.insert(CgroupId(id));
        })?;
        // The old ones go first, since the table may be full.
        before.difference(&chosen).try_for_each(|id| raw::delete(map, id.0))?;
        chosen.difference(&before).try_for_each(|id| raw::update(map, id.0, 1_u64))
    }

    /// Frees rows that no reading returns, at the start and then every five minutes.
    ///
    /// # Errors
    ///
    /// When the kernel refuses. The next sweep then frees the rows.
    pub fn sweep(&mut self, now_ns: u64) -> io::Result<()> {
        self.rows.sweep(&self.object, now_ns)
    }
}
