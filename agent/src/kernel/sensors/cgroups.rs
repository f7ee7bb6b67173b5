//! Looks after the cgroups that the running programs count: frees the rows of removed ones, and names the levels of the
//! tree.

use std::{collections::BTreeMap, io};

use super::Sensors;
use crate::{kernel::listed, model::ids::CgroupId};

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

    /// Frees rows that no reading returns, at the start and then every five minutes.
    ///
    /// # Errors
    ///
    /// When the kernel refuses. The next sweep then frees the rows.
    pub fn sweep(&mut self, now_ns: u64) -> io::Result<()> {
        self.rows.sweep(&self.object, now_ns)
    }
}
