//! A text that describes the layout of a generation's maps. An agent with another layout uses it to find the fields
//! that it knows by name. Pure.
//!
//! The text is made when the object is built, from the compiler's layout of the object (`ebpf/build/layout.rs`). The
//! names of array elements are those of the agent's labels. The text is pinned with the maps that it describes.

use std::collections::{BTreeMap, BTreeSet};

use bytemuck::Pod;
use podperf_ebpf::abi;

use crate::{
    kernel::{
        programs::{DROPS, PROGRAMS},
        sensor_programs,
    },
    model::{sensors, wait::WaitState},
};

/// The struct of a task's record. Its fields are migrated to another layout, except for those in `LEFT`.
const TASK: &str = "task.";
/// Prefixes of the fields of a task's record that begin at zero in another layout.
const LEFT: [&str; 16] = [
    // Locks: nobody holds them in the new record.
    "task.busy",
    "task.sum_busy",
    // The new programs set it once they have filled the record.
    "task.seen",
    // Ids of stacks, wakers and call sites, and sums under these ids: the new programs do not know their frames.
    "task.stack",
    "task.kernel_part",
    "task.waker",
    "task.memory_",
    "task.sum.",
    "task.sum_stays",
    // It has a meaning only from the wake-up on.
    "task.lock",
    // A place in another list of system calls. The programs find the call again.
    "task.call",
    // Properties of the walk of the last stack.
    "task.walked",
    "task.shadow",
    // They have a meaning only between the programs that charge one wait.
    "task.queued_ns",
    "task.so_far_ns",
    "task.filters",
];
/// Part of the names of fields without a meaning.
const RESERVED: &str = "reserved";
/// The structs of a description that are no rows of sensors.
const OTHER_STRUCTS: [&str; 5] = ["podperf_cgroup", "podperf_cgroup_record", "podperf_cpu", "podperf_handover", "task"];
/// The most fields of a task's record that are migrated.
const MOST_CARRIED: usize = abi::PODPERF_CARRIED as usize;
/// A sum of other fields, computed by the programs where it is used.
const DERIVED: &str = "task.settled.rare";

/// The place of a number in a struct: its offset, its size, its number of elements and their distance, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    offset: usize,
    size: usize,
    count: usize,
    apart: usize,
}

impl Field {
    /// Returns the migration of one element of a task's field to its place in another layout. A field may be shorter in
    /// one of the layouts: the values fit, and their low bytes come first.
    fn carried(&self, to: &Self, index: usize) -> Option<abi::podperf_carried> {
        let at = |field: &Self| u16::try_from(field.offset + index * field.apart).ok();
        let size = u32::try_from(self.size.min(to.size)).ok()?;
        Some(abi::podperf_carried { from: at(self)?, to: at(to)?, size })
    }
}

/// The layout of a generation's maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::kernel) struct Description {
    fields: BTreeMap<String, Field>,
    /// The size of each struct, in bytes.
    sizes: BTreeMap<String, usize>,
    /// Names of the elements of each array.
    names: BTreeMap<String, Vec<String>>,
}

/// The copies that turn a struct of one layout into the struct of another layout.
#[derive(Debug, Default)]
pub(super) struct Translation {
    /// Source offset, target offset and number of bytes of each copy.
    moves: Vec<(usize, usize, usize)>,
    /// Fields without a counterpart in the other layout.
    unmatched: BTreeSet<String>,
}

/// Returns the description of this agent's own maps.
pub(in crate::kernel) fn text() -> String {
    let waits = WaitState::ALL.map(|state| state.name().to_owned());
    let names = [
        ("drops", DROPS.map(str::to_owned).to_vec()),
        ("podperf_cgroup.offcpu_ns", waits.to_vec()),
        ("podperf_cgroup.unprofiled_ns", waits.to_vec()),
        ("podperf_cpu.programs.ns", PROGRAMS.map(str::to_owned).to_vec()),
        ("podperf_cpu.programs.runs", PROGRAMS.map(str::to_owned).to_vec()),
    ];
    let with_programs = sensors::ALL.into_iter().filter(|sensor| !sensor.programs.is_empty());
    let of_sensors = with_programs.map(|sensor| (sensor.names.runs, sensor_programs::names(sensor)));
    let names = names.into_iter().chain(of_sensors);
    let names: String = names.map(|(array, names)| format!("names {array} {}\n", names.join(" "))).collect();
    format!("{}{names}", podperf_ebpf::LAYOUT)
}

impl Description {
    /// Returns the layout of this agent's own maps.
    pub(in crate::kernel) fn own() -> Self {
        Self::parse(&text()).unwrap_or_default()
    }

    /// Parses a description; `None` if the text is not one.
    pub(in crate::kernel) fn parse(text: &str) -> Option<Self> {
        let mut this = Self::default();
        for line in text.lines() {
            let mut words = line.split(' ');
            let name = words.next()?.to_owned();
            if name == "names" {
                this.names.insert(words.next()?.to_owned(), words.map(str::to_owned).collect());
                continue;
            }
            let numbers: Vec<usize> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
            match numbers[..] {
                [size] => _ = this.sizes.insert(name, size),
                [offset, size, count, apart] => {
                    this.fields.insert(name, Field { offset, size, count, apart });
                }
                _ => return None,
            }
        }
        Some(this).filter(|this| !this.fields.is_empty())
    }

    /// Returns the names of an array's elements; empty for an array without names.
    pub(in crate::kernel) fn names(&self, array: &str) -> &[String] {
        self.names.get(array).map_or(&[], Vec::as_slice)
    }

    /// Returns the place of each sensor's row in the words of a reading that an agent of this layout saved: the row of
    /// the cgroup, then the rows of all sensors in alphabetical order.
    pub(super) fn sensor_places<'a>(&'a self) -> BTreeMap<&'a str, usize> {
        let mut next = self.sizes.get("podperf_cgroup").map_or(0, |bytes| bytes / size_of::<u64>());
        let sensors = self.sizes.iter().filter(|(name, _)| !OTHER_STRUCTS.contains(&name.as_str()));
        let place = |(name, bytes): (&'a String, &usize)| {
            let place = next;
            next += bytes / size_of::<u64>();
            (name, place)
        };
        sensors.map(place).map(|(name, place)| (name.as_str(), place)).collect()
    }

    /// Returns the translation of the struct `of` from this layout to the layout `to`.
    pub(super) fn translation(&self, to: &Self, of: &str) -> Translation {
        let prefix = format!("{of}.");
        let fields = |description: &Self| -> BTreeSet<String> {
            let names = description.fields.keys().filter(|name| name.starts_with(&prefix) && !name.contains(RESERVED));
            names.cloned().collect()
        };
        let (theirs, ours) = (fields(self), fields(to));
        let mut this =
            Translation { unmatched: theirs.symmetric_difference(&ours).cloned().collect(), ..Default::default() };
        for name in theirs.intersection(&ours) {
            let (Some(from), Some(into)) = (self.fields.get(name), to.fields.get(name)) else { continue };
            if from.size != into.size {
                this.unmatched.insert(name.clone());
                continue;
            }
            for index in 0..into.count {
                let Some(there) = self.place(name, to.names(name).get(index), index).filter(|at| *at < from.count)
                else {
                    this.unmatched.extend(to.names(name).get(index).map(|element| format!("{name} {element}")));
                    continue;
                };
                this.moves.push((from.offset + there * from.apart, into.offset + index * into.apart, into.size));
            }
        }
        this
    }

    /// Returns the index of an array's element: found by its name, if it has one.
    fn place(&self, array: &str, element: Option<&String>, index: usize) -> Option<usize> {
        match element {
            Some(element) => self.names(array).iter().position(|name| name == element),
            None => Some(index),
        }
    }

    /// Returns the fields of a task's record that programs of the layout `to` migrate, and the names of the fields
    /// that start at zero although they should be migrated.
    pub(in crate::kernel) fn carried(&self, to: &Self) -> ([abi::podperf_carried; MOST_CARRIED], Vec<String>) {
        let is_carried = |name: &&String| {
            let is_left = name.contains(RESERVED) || LEFT.iter().any(|prefix| name.starts_with(prefix));
            name.starts_with(TASK) && name.as_str() != DERIVED && !is_left
        };
        let (mut carried, mut anew) = (Vec::new(), Vec::new());
        for (name, into) in to.fields.iter().filter(|(name, _)| is_carried(name)) {
            let from = self.fields.get(name).filter(|from| from.count == into.count);
            let elements = from.and_then(|from| (0..into.count).map(|index| from.carried(into, index)).collect());
            match elements {
                Some(elements) if carried.len() + Vec::len(&elements) <= MOST_CARRIED => carried.extend(elements),
                _ => anew.push(name.clone()),
            }
        }
        let mut all = [bytemuck::Zeroable::zeroed(); MOST_CARRIED];
        all[..carried.len()].copy_from_slice(&carried);
        (all, anew)
    }
}

impl Translation {
    /// Translates a value of the one layout into the other. Fields without a source are zero.
    pub(super) fn of<T: Pod>(&self, value: &[u8]) -> T {
        let mut translated = T::zeroed();
        self.copy(value, bytemuck::bytes_of_mut(&mut translated));
        translated
    }

    /// Translates a value of the one layout into the words of the other. Words without a source are zero.
    pub(super) fn words(&self, value: &[u8], words: usize) -> Vec<u64> {
        let mut translated = vec![0_u64; words];
        self.copy(value, bytemuck::cast_slice_mut(&mut translated));
        translated
    }

    fn copy(&self, value: &[u8], translated: &mut [u8]) {
        for &(from, to, size) in &self.moves {
            if let (Some(from), Some(to)) = (value.get(from..from + size), translated.get_mut(to..to + size)) {
                to.copy_from_slice(from);
            }
        }
    }

    /// Returns the fields without a counterpart in the other layout.
    pub(super) const fn unmatched(&self) -> &BTreeSet<String> {
        &self.unmatched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: &str = "row 24\nrow.new 0 8 1 8\nrow.b 8 4 1 4\nrow.a 16 4 2 4\nnames row.a y x\n";
    const OWN: &str = "row 32\nrow.a 0 4 3 8\nrow.b 24 4 1 4\nrow.c 28 4 1 4\nnames row.a x y z\n";

    fn parse(text: &str) -> Description {
        Description::parse(text).unwrap()
    }

    #[test]
    fn fields_are_found_by_their_names_and_elements_by_theirs() {
        let translation = parse(OTHER).translation(&parse(OWN), "row");
        let other: Vec<u8> = [9_u32, 9, 5, 9, 6, 7].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(translation.of::<[u32; 8]>(&other), [7, 0, 6, 0, 0, 0, 5, 0]);
        let unmatched: Vec<&str> = translation.unmatched().iter().map(String::as_str).collect();
        assert_eq!(unmatched, ["row.a z", "row.c", "row.new"]);
        // A value that is cut short is translated as far as it goes.
        assert_eq!(translation.of::<[u32; 8]>(&other[..12]), [0, 0, 0, 0, 0, 0, 5, 0]);
    }

    #[test]
    fn rows_of_sensors_follow_the_row_of_the_cgroup() {
        let text = "podperf_b 24\npodperf_b.id 0 8 1 8\npodperf_cgroup 376\npodperf_a 16\ntask 280\n";
        let description = parse(text);
        assert_eq!(description.sensor_places(), BTreeMap::from([("podperf_a", 47), ("podperf_b", 49)]));
    }

    #[test]
    fn what_is_no_description_is_none() {
        for text in ["", "\0\0", "row", "row 1 2", "row.a 1 2 3 x", "names"] {
            assert_eq!(Description::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn all_that_a_task_needs_is_carried_and_what_is_not_there_begins_anew() {
        let own = Description::own();
        let (carried, anew) = own.carried(&own);
        let used: Vec<_> = carried.iter().take_while(|field| field.size > 0).collect();
        assert_eq!((used.len(), anew), (17, vec![]));
        assert!(used.iter().all(|field| field.from == field.to && [1, 4, 8].contains(&field.size)));
        let mut without = own.clone();
        without.fields.remove("task.settled.migrations");
        assert_eq!(without.carried(&own).1, ["task.settled.migrations"]);
    }

    #[test]
    fn a_field_of_a_task_may_become_shorter() {
        let (own, mut longer) = (Description::own(), Description::own());
        longer.fields.insert("task.activity".into(), Field { offset: 4, size: 4, count: 1, apart: 4 });
        for (from, to) in [(&own, &longer), (&longer, &own)] {
            let (carried, anew) = from.carried(to);
            let activity = carried.iter().find(|field| (field.from, field.to) == (4, 4)).unwrap();
            assert_eq!((activity.size, anew), (1, vec![]));
        }
    }

    #[test]
    fn a_new_field_of_a_task_is_carried_and_over_the_limit_it_is_named() {
        let mut new = Description::own();
        let field = Field { offset: 296, size: 4, count: 3, apart: 4 };
        new.fields.insert("task.zz".into(), field);
        let (carried, anew) = new.carried(&new);
        assert_eq!((carried.iter().filter(|field| field.from >= 296).count(), anew), (3, vec![]));
        new.fields.insert("task.zz".into(), Field { count: 4, ..field });
        assert_eq!(new.carried(&new).1, ["task.zz"]);
    }

    #[test]
    fn each_exception_from_the_carried_fields_is_a_field() {
        let own = Description::own();
        for prefix in LEFT {
            assert!(own.fields.keys().any(|name| name.starts_with(prefix)), "{prefix}");
        }
    }

    #[test]
    fn the_same_layout_is_read_as_it_is() {
        let own = Description::own();
        let row: abi::podperf_cgroup = bytemuck::cast(std::array::from_fn::<u64, 47, _>(|at| at as u64 + 1));
        let translation = own.translation(&own, "podperf_cgroup");
        assert_eq!(
            bytemuck::bytes_of(&translation.of::<abi::podperf_cgroup>(bytemuck::bytes_of(&row))),
            bytemuck::bytes_of(&row)
        );
        assert!(translation.unmatched().is_empty());
    }

    /// Two layouts with one number would be mistaken for each other, and task records would be read with wrong
    /// fields.
    #[test]
    fn a_layout_has_one_number() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../ebpf/layout.txt");
        let now = format!("layout {}\n{}", abi::PODPERF_LAYOUT, text());
        let mut known = std::fs::read_to_string(file).unwrap();
        // Not `make golden`: that would keep the number of another layout.
        if std::env::var_os("PODPERF_WRITE_LAYOUT").is_some() {
            let lines: BTreeSet<_> = now.lines().collect();
            let gone: Vec<_> = known.lines().filter(|line| !lines.contains(line)).collect();
            assert!(gone.is_empty() || gone[0].starts_with("layout "), "give the layout the next number: {gone:#?}");
            std::fs::write(file, &now).unwrap();
            known.clone_from(&now);
        }
        assert!(
            now == known,
            "what stays in the kernel is laid out in another way than in ebpf/layout.txt: give PODPERF_LAYOUT in \
             ebpf/bpf/podperf.h the next number, unless only names or sensors were added, and a field that means \
             something else another name; then `PODPERF_WRITE_LAYOUT=1 cargo test -p podperf a_layout_has_one_number` writes the file anew\n{now}"
        );
    }
}
