//! The description of a sensor: the agent derives its configuration, its loading, its metrics, its checkpoint and its
//! documentation from it.

/// One sensor. Its row is `struct podperf_NAME`: words of 64 bits, of which the first one is the cgroup's id.
#[derive(Debug)]
pub struct Sensor {
    /// Its names.
    pub names: Names,
    /// A sentence without its full stop. `/status` and `podperf check` show it while the sensor is on.
    pub about: &'static str,
    /// True if it is on unless the configuration says otherwise.
    pub is_default: bool,
    /// The keys of its configuration besides `enabled`.
    pub settings: &'static [Setting],
    /// The size of a row in words, with the id.
    pub words: usize,
    /// The metrics that it adds to each row. A sensor without them has only the row of the node, in slot 0.
    pub families: &'static [Family],
    /// The metrics that it adds to the node. Their words are those of the row of the idle task.
    pub node: &'static [Family],
    /// The programs of its own, in the order of their accounts. They are attached in this order.
    pub programs: &'static [Program],
    /// The maps of its own, without its rows and the accounts of its programs.
    pub maps: &'static [Map],
    /// The reasons for drops of its own, in the order of `enum NAME_drop`. All sensors share `sensor_table`, for a table
    /// without room.
    pub drops: &'static [DropReason],
}

/// A key of a sensor's configuration. It is set when the agent starts.
#[derive(Debug)]
pub struct Setting {
    /// Its names, see [`key!`].
    pub key: Key,
    /// A sentence without its full stop: its effect.
    pub about: &'static str,
    /// The values that it may have.
    pub kind: SettingKind,
    /// The constant of the programs that has its value; `None` if only the agent uses the value.
    pub constant: Option<&'static str>,
}

/// The names of a setting, see [`key!`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The name among the keys of the sensor, in camel case.
    pub name: &'static str,
    /// The whole path, such as `sensors.calls.namespaces`.
    pub path: &'static str,
}

/// Returns the [`Key`] of this name of the sensor in the folder of this name.
macro_rules! key {
    ($sensor:literal, $name:literal) => {
        $crate::sensor::Key { name: $name, path: concat!("sensors.", $sensor, ".", $name) }
    };
}
pub(crate) use key;

/// The values that a setting may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKind {
    /// True or false. The constant is a `bool`.
    Flag {
        /// The default.
        default: bool,
    },
    /// An integer. The constant is a `__u64`.
    Number {
        /// The default.
        default: u64,
        /// The smallest value.
        least: u64,
        /// The largest value.
        most: u64,
        /// The unit, such as `functions`; empty without one.
        unit: &'static str,
    },
    /// A list of patterns that match whole names of namespaces; empty by default. With patterns, the sensor counts only
    /// what pods of these namespaces do. The constant is a `bool`, which is true if the list has patterns.
    Namespaces {
        /// The largest number of patterns.
        most: usize,
        /// The map of the sensor's own that the agent fills with the cgroups of these pods, see `SENSOR_CHOICE`.
        map: &'static str,
    },
    /// A list of some of these names; empty by default, which is all of them. The constant is a `__u64`, which has a
    /// bit for each name, in their order.
    Names {
        /// The names, at most 64.
        names: &'static [&'static str],
    },
}

/// A reason for which a sensor does not count something.
#[derive(Debug)]
pub struct DropReason {
    /// Its name, which begins with the name of the sensor: the label in `podperf_bpf_drops_total`.
    pub name: &'static str,
    /// A sentence without its full stop: the loss. The part `losses` shows it.
    pub lost: &'static str,
}

/// A program of a sensor's own. It is attached while the sensor is on.
#[derive(Debug)]
pub struct Program {
    /// Its name in the object, which begins with the name of the sensor.
    pub name: &'static str,
    /// The place in the kernel, or in programs, that calls it.
    pub hook: Hook,
    /// The context in which it runs, for docs/programs.md.
    pub context: &'static str,
}

/// A place that calls a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A BTF-typed tracepoint.
    Tracepoint {
        /// Its name.
        name: &'static str,
        /// The first kernel with it, such as `Linux 5.19`. On a kernel without it the sensor is unsupported.
        since: &'static str,
    },
    /// The begin of each function that the configuration names: a kprobe or a uprobe.
    FunctionBegin,
    /// The return from each such function: a kretprobe or a uretprobe.
    FunctionEnd,
}

/// Returns whether the programs have these names, in this order.
pub(crate) const fn are_named(programs: &[Program], names: &[&str]) -> bool {
    let mut at = 0;
    while at < programs.len() && at < names.len() {
        if !is_same(programs[at].name.as_bytes(), names[at].as_bytes()) {
            return false;
        }
        at += 1;
    }
    programs.len() == names.len()
}

/// Returns whether the reasons have these names, in this order.
pub(crate) const fn are_reasons(reasons: &[DropReason], names: &[&str]) -> bool {
    let mut at = 0;
    while at < reasons.len() && at < names.len() {
        if !is_same(reasons[at].name.as_bytes(), names[at].as_bytes()) {
            return false;
        }
        at += 1;
    }
    reasons.len() == names.len()
}

/// Returns whether two texts are equal, which `==` does not do in a constant.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    one.len() == other.len() && at == one.len()
}

/// A map of a sensor's own.
#[derive(Debug)]
pub struct Map {
    /// Its name in the object.
    pub name: &'static str,
    /// The number of entries.
    pub entries: Entries,
    /// The size of a value, in bytes.
    pub value_bytes: usize,
    /// True if each possible CPU has a value of its own.
    pub is_per_cpu: bool,
    /// True if the next generation of programs goes on with the same map, as for waits that have begun. A value of
    /// another meaning needs a map of another name.
    pub is_inherited: bool,
}

/// The number of entries of a map of a sensor's own, while the sensor is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries {
    /// So many for each slot of the sensor. There are as many slots as a quarter of `cgroups.max`.
    PerSlot(u32),
    /// So many for each slot of an LRU table, and what each CPU keeps for itself. A CPU takes up to 128 places at once.
    /// Kernels before 6.16 let a CPU that finds none replace its own newest entry, while others have free places.
    Lru(u32),
    /// So many, whatever the configuration says.
    Fixed(u32),
}

/// The free places of an LRU table that a CPU takes at once: the kernel's `LOCAL_FREE_TARGET`.
const TAKEN_AT_ONCE: u32 = 128;

impl Entries {
    /// Returns the number for a sensor with so many slots, on a machine with so many possible CPUs.
    #[must_use]
    pub const fn with(self, slots: u32, cpus: u32) -> u32 {
        match self {
            Self::PerSlot(entries) => slots.saturating_mul(entries),
            Self::Lru(entries) => slots.saturating_mul(entries).saturating_add(cpus.saturating_mul(TAKEN_AT_ONCE)),
            Self::Fixed(entries) => entries,
        }
    }
}

/// The names of a sensor, see [`names!`].
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The name of its folder, its configuration key and its part of the agent.
    pub sensor: &'static str,
    /// The constant of the programs that is true while it is on.
    pub enabled: &'static str,
    /// The map of its rows by slot.
    pub rows: &'static str,
    /// The map of its rows by cgroup id.
    pub rows_by_id: &'static str,
    /// The struct of a row.
    pub row: &'static str,
    /// The map of its programs' accounts, if it has programs.
    pub runs: &'static str,
}

/// Returns the [`Names`] of the sensor in the folder of this name.
macro_rules! names {
    ($name:literal) => {
        $crate::sensor::Names {
            sensor: $name,
            enabled: concat!($name, "_enabled"),
            rows: concat!($name, "_rows"),
            rows_by_id: concat!($name, "_rows_by_id"),
            row: concat!("podperf_", $name),
            runs: concat!($name, "_runs"),
        }
    };
}
pub(crate) use names;

/// A family of metrics: one for containers, one for pods, one for cgroups; or one for the node.
#[derive(Debug)]
pub struct Family {
    /// The name in `/metrics`, after the prefix and before the unit.
    pub name: &'static str,
    /// The name in OpenTelemetry, after the prefix.
    pub instrument: &'static str,
    /// One sentence without its full stop.
    pub help: &'static str,
    /// The unit of all its series.
    pub unit: Unit,
    /// The labels that distinguish the series; empty for a family of one series.
    pub labels: &'static [Label],
    /// The series.
    pub series: &'static [Series],
}

impl Family {
    /// Returns the labels of a series, each with its value.
    pub fn labels_of(&self, series: &Series) -> impl Iterator<Item = (&'static Label, &'static str)> + use<> {
        self.labels.iter().zip(series.labels)
    }
}

/// The largest number of labels of a family.
pub const MOST_LABELS: usize = 2;

/// One series of a family.
#[derive(Debug)]
pub struct Series {
    /// The values of the labels, in the order of [`Family::labels`]; the remaining texts are empty.
    pub labels: [&'static str; MOST_LABELS],
    /// The words of the row.
    pub words: Words,
}

/// The binary logarithm of the upper border of bucket 0, in seconds, see `bucket.h` of the sensor `histograms`.
const FIRST: i32 = -18;

/// The words of a series, by their places in the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// A number that only grows.
    Total(usize),
    /// A histogram of times: first the sum of all values in nanoseconds, then the number of values in each bucket.
    /// Bucket 0 holds values up to 2^`first` seconds, bucket n values above 2^(`first`+n-1) s up to 2^(`first`+n) s,
    /// and the last bucket all longer ones, too.
    Histogram {
        /// The place of the sum.
        sum: usize,
        /// The number of buckets.
        buckets: usize,
        /// The binary logarithm of the upper border of bucket 0, in seconds.
        first: i32,
    },
}

impl Words {
    /// Returns the histogram that `observe` fills, whose first word is at this offset in the row, in bytes.
    pub(crate) const fn histogram(offset: usize, buckets: u32) -> Self {
        Self::Histogram { sum: offset / size_of::<u64>(), buckets: buckets as usize, first: FIRST }
    }
}

/// The unit of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds; the words are in nanoseconds.
    Seconds,
    /// A count; the text is OpenTelemetry's unit, such as `{wait}`.
    Things(&'static str),
}

/// The name of a label in both exporters.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// The name in `/metrics`.
    pub name: &'static str,
    /// The attribute in OpenTelemetry; an attribute of profiles with the same meaning has the same name.
    pub attribute: &'static str,
}
