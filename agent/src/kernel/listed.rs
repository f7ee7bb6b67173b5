//! Looks after the list of cgroups that have rows, which the programs fill (see listed.bpf.h): names the levels of the
//! tree, counts the list again, and forgets where removed cgroups were charged.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    os::fd::BorrowedFd,
};

use podperf_ebpf::abi;

use super::{
    object::{Object, fd},
    raw::{self, Then},
    reading::RawRow,
};
use crate::model::ids::CgroupId;

/// The list.
pub(super) const CGROUPS: &str = "cgroups";
/// The numbers of entries that are in use.
const USED: &str = "cgroups_used";
/// The map of the cgroups that found no room, each with the cgroup to which its work is charged.
pub(super) const CHARGED: &str = "charged";
/// The map of the levels that have names.
const LEVELS: &str = "named_levels";

/// One in this number of entries of the list is for cgroups that have an outer cgroup.
const INNER: u32 = 2;
/// One in this number of rows by id is for cgroups that have an outer cgroup.
const INNER_ROWS: u32 = 4;
/// One in this number of entries of the list is only for cgroups at level 1, which take work that finds no room.
const SPARE: u32 = 16;

/// Returns the number of entries up to which a list takes cgroups that have an outer cgroup.
pub(super) const fn max_inner(max_cgroups: u32) -> u32 {
    max_cgroups / INNER
}

/// Returns the number of entries up to which a list takes cgroups without an outer cgroup.
pub(super) const fn max_outer(max_cgroups: u32) -> u32 {
    max_cgroups - max_cgroups / SPARE
}

/// Returns how many of the rows by id may be of cgroups that have an outer cgroup.
pub(super) const fn max_inner_rows(rows_by_id: u32) -> u32 {
    rows_by_id / INNER_ROWS
}

/// Writes the levels if the programs know others: cgroup to the number of levels below it in which cgroups have names of
/// their own. The programs then find all outer cgroups again.
pub(super) fn name_levels(object: &Object, levels: &BTreeMap<CgroupId, u64>) -> io::Result<()> {
    let map = fd(object, LEVELS)?;
    let mut before = BTreeMap::new();
    raw::read_all(map, 1, Then::Keep, |id: u64, named: &[u64]| {
        before.insert(CgroupId(id), named[0]);
    })?;
    if before == *levels {
        return Ok(());
    }
    // The new ones come first: programs that found none would take each cgroup for one with a name. There is room for
    // the old ones besides.
    levels.iter().try_for_each(|(id, named)| raw::update(map, id.0, *named))?;
    let mut gone = before.keys().filter(|id| !levels.contains_key(id));
    gone.try_for_each(|id| raw::delete(map, id.0))?;
    let list = fd(object, CGROUPS)?;
    ids(object, CGROUPS)?.into_iter().try_for_each(|id| raw::update(list, id.0, 0_u64))?;
    ask_again(object)
}

/// Returns the cgroups that found no room in the list.
pub(super) fn charged(object: &Object) -> io::Result<Vec<CgroupId>> {
    ids(object, CHARGED)
}

/// Forgets where removed cgroups were charged.
pub(super) fn forget_charged(object: &Object, gone: &[CgroupId]) -> io::Result<()> {
    let charged = fd(object, CHARGED)?;
    gone.iter().try_for_each(|id| raw::delete(charged, id.0))
}

/// The upkeep of the list.
#[derive(Debug)]
pub(super) struct List {
    /// Number of cgroups for which the list has room.
    max_cgroups: u32,
    /// Number of possible CPUs.
    copies: usize,
}

impl List {
    pub(super) const fn new(max_cgroups: u32, copies: usize) -> Self {
        Self { max_cgroups, copies }
    }

    /// Counts the list again, after some of its entries were deleted. A cgroup that the programs add meanwhile may be
    /// missing until the next count.
    pub(super) fn recount(&self, object: &Object) -> io::Result<()> {
        let mut outers = HashMap::new();
        raw::read_all(fd(object, CGROUPS)?, 1, Then::Keep, |id: u64, outer: &[u64]| {
            outers.insert(id, outer[0]);
        })?;
        let (used, listed) = (fd(object, USED)?, outers.len() as u64);
        let before = counted(used, abi::PODPERF_USED_CGROUPS)?;
        raw::update(used, abi::PODPERF_USED_CGROUPS, listed)?;
        // Mostly there are none, and then the rows need not be read.
        if counted(used, abi::PODPERF_USED_INNER_ROWS)? > 0 {
            let mut inner = 0_u64;
            raw::read_words(fd(object, "rows_by_id")?, self.copies * RawRow::WORDS, Then::Keep, |id: u64, _| {
                inner += u64::from(outers.get(&id) != Some(&id));
            })?;
            raw::update(used, abi::PODPERF_USED_INNER_ROWS, inner)?;
        }
        if has_room_again(before, listed, self.max_cgroups) {
            ask_again(object)?;
        }
        Ok(())
    }
}

fn counted(used: BorrowedFd<'_>, key: u32) -> io::Result<u64> {
    let mut number = [0_u64];
    raw::lookup(used, key, &mut number)?;
    Ok(number[0])
}

/// Returns the cgroups in a map.
fn ids(object: &Object, map: &'static str) -> io::Result<Vec<CgroupId>> {
    let mut ids = Vec::new();
    raw::read_all(fd(object, map)?, 1, Then::Keep, |id: u64, _: &[u64]| ids.push(CgroupId(id)))?;
    Ok(ids)
}

/// Makes all cgroups that are charged elsewhere ask for an entry of the list again. It is one pass over the map: the
/// programs fill the map meanwhile, so it may never be empty.
fn ask_again(object: &Object) -> io::Result<()> {
    raw::read_all(fd(object, CHARGED)?, 1, Then::Delete, |_: u64, _: &[u64]| {})
}

/// Returns whether some cgroups that are charged elsewhere may be added to the list now: those with an outer cgroup, or
/// those that found the list full.
fn has_room_again(before: u64, listed: u64, max_cgroups: u32) -> bool {
    let most = u64::from(max_outer(max_cgroups));
    listed < u64::from(max_inner(max_cgroups)) || (before >= most && listed < most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_ask_for_a_row_again_once_there_is_room() {
        // Half of 256 entries are for cgroups with an outer cgroup, and the last 16 are only for cgroups at level 1.
        for (before, listed, has_room) in
            [(130, 127, true), (130, 128, false), (240, 239, true), (239, 238, false), (256, 240, false), (0, 0, true)]
        {
            assert_eq!(has_room_again(before, listed, 256), has_room, "{before} before, {listed} now");
        }
    }
}
