//! A takeover: programs of a new generation replace the running ones. The agent attaches the new programs beside the
//! running ones. Each generation has its own maps, except for the records of tasks: generations of one layout share
//! them, and a generation of another layout migrates them. One word, the active generation, decides which generation
//! counts. The agent reads the counts of the previous generation once they no longer grow.

use std::{
    collections::HashMap,
    fs, io, mem,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use aya::maps::{MapData, RingBuf};
use podperf_ebpf::abi;
use tracing::{debug, info, warn};

use super::{
    description::{Description, Translation},
    pins::{Generation, Pins},
};
use crate::{
    kernel::{
        clock::monotonic_ns,
        error::LoadError,
        flush::flush,
        hard_interrupts,
        object::{Object, PINNED_ORDERS, fd, identity},
        orders,
        programs::{CARRY, DROPS},
        raw::{self, Then},
        reading::{CpuTotals, RawReading, RawRow, sum},
        records::CgroupRecord,
        rows::{ROWS_SO_FAR, add_row},
        sensor_programs::accounts,
    },
    model::{
        ids::CgroupId,
        sensor_words::SensorWords,
        sensors::{self, Sensor},
    },
};

/// Name of the pin of the word with the active generation. Generations of all layouts must agree on this word, and on
/// the names of the maps and programs that this file uses. If the word ever changes its meaning, it gets another
/// name.
pub(in crate::kernel) const WORD: &str = "handover";
/// Name of the map with the text that describes the other maps. `PIECE` is the size of a piece of the text, in bytes.
pub(in crate::kernel) const DESCRIPTION: &str = "description";
pub(in crate::kernel) const PIECE: usize = abi::PODPERF_DESCRIPTION_PIECE as usize;

/// The counts of a previous generation of programs, whose pins still exist.
#[derive(Debug)]
pub struct Previous {
    directory: PathBuf,
    /// Identity of the previous programs, see [`crate::kernel::Sensors::identity`].
    pub identity: String,
    /// All counts of the previous programs, in the layout of this agent's own programs.
    pub reading: RawReading,
    /// Fields without a counterpart: only the previous programs count them, or only this agent's programs.
    pub unmatched: Vec<String>,
    rows: Translation,
    /// The translation of the row of each sensor, and the place of that row among the posted words; `None` for a sensor
    /// that the previous programs do not have.
    sensors: Vec<(Translation, Option<usize>)>,
    /// Changes of the cgroup tree that no agent has read yet.
    pub changes: Vec<CgroupRecord>,
    /// True after a failure to remove the pins is logged.
    is_told: bool,
}

/// Returns the word with the active generation; `None` if there is none.
pub(in crate::kernel) fn word(pins: &Pins) -> Option<abi::podperf_handover> {
    let map = MapData::from_pin(pins.shared().join(WORD)).ok()?;
    let mut word: abi::podperf_handover = bytemuck::Zeroable::zeroed();
    raw::lookup(map.fd().as_fd(), 0_u32, std::slice::from_mut(&mut word)).ok()?;
    Some(word)
}

/// Returns the time since which the sensors of generation `number` have missed no end, if it now takes over from the
/// `counting` one, see [`orders::sensors_since_ns`]. Programs of an older generation missed what ended while a later
/// one counted.
pub(in crate::kernel) fn sensors_since_ns(pins: &Pins, counting: Option<&Generation>, number: u64) -> u64 {
    let before = counting.filter(|of| of.number < number).and_then(|of| orders_to(pins, of));
    orders::sensors_since_ns(before, monotonic_ns())
}

/// Returns the orders to a generation; `None` if its programs have others, or they cannot be read.
fn orders_to(pins: &Pins, of: &Generation) -> Option<abi::podperf_orders> {
    let map = MapData::from_pin(Object::pin_of(&pins.of(&of.name), PINNED_ORDERS)).ok()?;
    let mut orders: abi::podperf_orders = bytemuck::Zeroable::zeroed();
    if map.info().ok()?.value_size() as usize != size_of_val(&orders) {
        return None;
    }
    raw::lookup(map.fd().as_fd(), 0_u32, std::slice::from_mut(&mut orders)).ok()?;
    Some(orders)
}

/// Makes `object`, the generation `number`, count from now on instead of the previous generations. Returns the counts
/// of the previous generations, and the names of generations that cannot be read: their counts since the last reading
/// are lost. The pins of unreadable generations are removed, since a later agent could not know which of their counts
/// are posted.
pub(in crate::kernel) fn take_over(
    pins: &Pins,
    previous: Vec<Generation>,
    object: &Object,
    number: u64,
    copies: usize,
) -> io::Result<(Vec<Previous>, Vec<String>)> {
    let mut unreadable = Vec::new();
    let mut lose = |generation: &Generation, error: io::Error| {
        let generation = generation.name.clone();
        warn!(generation, %error, "what is pinned cannot be read: what it has counted since the last reading is lost");
        unreadable.push(generation);
    };
    let open = |generation: Generation| match Object::pinned(&pins.of(&generation.name)) {
        Ok(object) => Some((generation, object)),
        Err(error) => {
            lose(&generation, error);
            None
        }
    };
    let previous: Vec<_> = previous.into_iter().filter_map(open).collect();
    // The previous programs settle the running tasks up to here, and the new programs from here on.
    for (_, object) in &previous {
        // The previous agent may have been killed before its programs had migrated all task records.
        carry(object);
        flush(object);
    }
    let since_ns = word(pins).map_or(0, |word| word.since_ns);
    let shared = MapData::from_pin(pins.shared().join(WORD)).map_err(io::Error::other)?;
    raw::update(shared.fd().as_fd(), 0_u32, abi::podperf_handover { generation: number, since_ns })?;
    // The flush interrupts each CPU, so any program that read the old word has ended.
    flush(object);
    carry(object);
    // From here on no step may fail: the new programs count, and the next agent would not read the previous programs
    // again.
    let mut found = Vec::new();
    for (generation, object) in previous {
        match read(pins.of(&generation.name), object, copies) {
            Ok(previous) => found.push(previous),
            Err(error) => lose(&generation, error),
        }
    }
    for generation in &unreadable {
        if let Err(error) = pins.remove(generation) {
            warn!(generation, %error, "failed to unpin");
        }
    }
    Ok((found, unreadable))
}

/// Migrates the task records of a previous layout now. Without this call the programs migrate each record when its
/// task runs.
fn carry(object: &Object) {
    if let Err(error) = object.iterate(CARRY) {
        warn!(%error, "not carried over: tasks that do not run until the next upgrade may lose what they did before");
    }
}

/// Returns the layout of a generation's maps; `None` without a valid description.
pub(in crate::kernel) fn description(directory: &Path) -> Option<Description> {
    let map = MapData::from_pin(Object::pin_of(directory, DESCRIPTION)).ok()?;
    let mut text = Vec::new();
    let append = |_: u32, pieces: &[[u8; PIECE]]| text.extend_from_slice(pieces.as_flattened());
    raw::read_all(map.fd().as_fd(), 1, Then::Keep, append).ok()?;
    let text = std::str::from_utf8(&text).ok()?;
    Description::parse(text.trim_end_matches('\0'))
}

impl Previous {
    /// Translates the posted counts of each row, which the previous agent saved in its own layout, to this agent's
    /// layout.
    pub(crate) fn posted(&self, kept: &[(u64, Vec<u64>)]) -> Vec<(u64, Vec<u64>)> {
        let translated = |(cgroup, words): &(u64, Vec<u64>)| {
            let row: abi::podperf_cgroup = self.rows.of(bytemuck::cast_slice(words));
            let mut translated: Vec<u64> = bytemuck::cast_slice(std::slice::from_ref(&row)).to_vec();
            for (sensor, (translation, place)) in sensors::ALL.iter().zip(&self.sensors) {
                let row = place.and_then(|place| words.get(place..)).unwrap_or_default();
                translated.extend(translation.words(bytemuck::cast_slice(row), sensor.words));
            }
            (*cgroup, translated)
        };
        kept.iter().map(translated).collect()
    }

    /// Removes the pins: the counts are posted and in the checkpoint. Returns true once they are gone. Until then the
    /// checkpoint must name this generation as counted.
    pub(in crate::kernel) fn forget(&mut self) -> bool {
        let generation = self.directory.display();
        match fs::remove_dir_all(&self.directory) {
            Ok(()) => info!(%generation, "taken over, and unpinned"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                if !mem::replace(&mut self.is_told, true) {
                    warn!(%generation, %error, "failed to unpin, each reading tries it again");
                }
                return false;
            }
        }
        true
    }
}

fn read(directory: PathBuf, mut object: Object, copies: usize) -> io::Result<Previous> {
    let theirs = description(&directory).ok_or_else(|| io::Error::other("it does not say what it holds"))?;
    let ours = Description::own();
    let [rows, cpu, record] =
        ["podperf_cgroup", "podperf_cpu", "podperf_cgroup_record"].map(|of| theirs.translation(&ours, of));
    let places = theirs.sensor_places();
    let sensor =
        |sensor: &&Sensor| (theirs.translation(&ours, sensor.names.row), places.get(sensor.names.row).copied());
    let sensors: Vec<_> = sensors::ALL.iter().map(sensor).collect();
    let mut cpus: Vec<abi::podperf_cpu> = Vec::new();
    read_values(&object, "cpus", 1, |_: u32, state| cpus.push(cpu.of(state)))?;
    let mut drops: Vec<_> = DROPS.iter().map(|reason| (*reason, 0)).collect();
    let reasons = theirs.names("drops");
    raw::read_all(fd(&object, "drops")?, copies, Then::Keep, |reason: u32, copies: &[u64]| {
        let name = reasons.get(reason as usize);
        if let Some((_, count)) = drops.iter_mut().find(|(reason, _)| name.is_some_and(|name| name == reason)) {
            *count += copies.iter().sum::<u64>();
        }
    })?;
    let accounts = accounts(&object, copies, |sensor| theirs.names(sensor.names.runs).to_vec())?;
    let reading = RawReading {
        at_ns: monotonic_ns(),
        rows: read_rows(&object, &rows, &sensors, copies)?,
        charged: Vec::new(),
        cpu: CpuTotals::of(&cpus, accounts),
        drops,
        online_ns: 0,
        hard_interrupts: hard_interrupts::read(&object, copies)?,
        stolen_ns: None,
        cpus,
    };
    let mut changes = Vec::new();
    let identity = identity(&object);
    match object.take_map("cgroup_ring").map(RingBuf::try_from) {
        Some(Ok(mut ring)) => {
            while let Some(theirs) = ring.next() {
                changes.extend(CgroupRecord::decode(bytemuck::bytes_of(
                    &record.of::<abi::podperf_cgroup_record>(&theirs),
                )));
            }
        }
        _ => debug!("no changes of the tree from before"),
    }
    let unknown =
        reasons.iter().filter(|reason| !DROPS.contains(&reason.as_str())).map(|reason| format!("drops {reason}"));
    let unmatched: Vec<_> = rows.unmatched().union(cpu.unmatched()).cloned().chain(unknown).collect();
    if !unmatched.is_empty() {
        warn!(generation = %directory.display(), astray = ?unmatched, "programs of another layout: what only one of the two counts begins anew");
    }
    Ok(Previous { directory, identity, reading, unmatched, rows, sensors, changes, is_told: false })
}

/// Returns the rows, each as the sum over all CPUs. All slots are read, since another layout may assign slots to
/// cgroups in another way.
fn read_rows(
    object: &Object,
    translation: &Translation,
    sensors: &[(Translation, Option<usize>)],
    copies: usize,
) -> io::Result<Vec<RawRow>> {
    let mut rows: HashMap<u64, Vec<abi::podperf_cgroup>> = HashMap::new();
    raw::read_all(fd(object, "cgroups")?, 1, Then::Keep, |id: u64, _: &[u64]| {
        rows.insert(id, Vec::new());
    })?;
    let mut add = |copy: &[u8]| {
        let copy: abi::podperf_cgroup = translation.of(copy);
        if let Some(parts) = rows.get_mut(&copy.id) {
            parts.push(copy);
        }
    };
    read_values(object, "rows", copies, |_: u32, copy| add(copy))?;
    read_values(object, "rows_by_id", copies, |_: u64, copy| add(copy))?;
    // Programs without this map charge a wait only when it ends.
    if object.map(ROWS_SO_FAR).is_some() {
        read_values(object, ROWS_SO_FAR, 1, |_: u64, copy| add(copy))?;
    }
    let mut words = read_sensors(object, sensors, copies)?;
    let row = |(id, parts): (&u64, &Vec<_>)| RawRow {
        cgroup: CgroupId(*id),
        counts: sum(parts),
        words: words.remove(id).unwrap_or_default(),
    };
    Ok(rows.iter().map(row).collect())
}

/// Returns the words of the sensors by cgroup, each as the sum over all CPUs. A sensor without maps was not there.
fn read_sensors(
    object: &Object,
    translations: &[(Translation, Option<usize>)],
    copies: usize,
) -> io::Result<HashMap<u64, SensorWords<u64>>> {
    let mut words_of: HashMap<u64, SensorWords<u64>> = HashMap::new();
    for (place, (Sensor { names, words, .. }, (translation, _))) in sensors::ALL.iter().zip(translations).enumerate() {
        let mut add = |id: Option<u64>, copy: &[u8]| {
            let row = translation.words(copy, *words);
            let Some(&own) = row.first() else { return };
            add_row(words_of.entry(id.unwrap_or(own)).or_default(), place, &row);
        };
        if object.map(names.rows).is_some() {
            read_values(object, names.rows, copies, |_: u32, copy| add(None, copy))?;
            read_values(object, names.rows_by_id, copies, |id: u64, copy| add(Some(id), copy))?;
        }
    }
    Ok(words_of)
}

/// Calls `each` with every value of a map and every copy of it. The map's own info has the size of a value.
fn read_values<K: bytemuck::Pod>(
    object: &Object,
    name: &'static str,
    copies: usize,
    mut each: impl FnMut(K, &[u8]),
) -> io::Result<()> {
    let map = object.map(name).and_then(raw::data).ok_or_else(|| io::Error::other(LoadError::Missing(name)))?;
    let size = map.info().map_err(io::Error::other)?.value_size() as usize;
    if size == 0 || !size.is_multiple_of(8) {
        return Err(io::Error::other(format!("values of `{name}` are of {size} bytes")));
    }
    raw::read_words(map.fd().as_fd(), copies * size / 8, Then::Keep, |key: K, words| {
        bytemuck::cast_slice(words).chunks_exact(size).for_each(|copy| each(key, copy));
    })
}
