//! The catalogue of named events: one row per event, with `perf list`'s names and the uapi's numbers.
//!
//! A row names the metric family that the event is exported as. Software events share [`SHARED_FAMILY`] with raw and
//! PMU events, except the clocks: faults, switches and migrations have families of their own that come from task
//! fields, which are exact, and no family may have two origins.

/// The family of all events without a family of their own; the label `event` distinguishes them.
pub const SHARED_FAMILY: &str = "perf_events";
/// The help text of this family.
pub const SHARED_HELP: &str = "Events configured by software event name, by raw code or by the terms of a PMU.";

/// A named event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// perf's name.
    pub name: &'static str,
    /// perf's other names.
    pub aliases: &'static [&'static str],
    /// `perf_event_attr.type`.
    pub kind: PerfType,
    /// `perf_event_attr.config`.
    pub config: u64,
    /// The metric family, without its prefix and `_total`.
    pub family: &'static str,
    /// The metric's help text.
    pub help: &'static str,
    /// The unit of the raw value.
    pub scale: Scale,
    /// Set if the event is counted by default.
    pub on_by_default: bool,
    /// Set if the kernel can count user and kernel mode separately. It ignores the modes for clocks, and events of the
    /// scheduler always happen in kernel mode.
    pub splits: bool,
}

/// `enum perf_type_id`, only the types that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfType {
    /// `PERF_TYPE_HARDWARE`.
    Hardware,
    /// `PERF_TYPE_SOFTWARE`.
    Software,
    /// `PERF_TYPE_HW_CACHE`.
    HwCache,
    /// `PERF_TYPE_RAW`.
    Raw,
}

/// The conversion of a raw value to the metric's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Exported without conversion.
    Count,
    /// Nanoseconds, exported in seconds.
    Nanoseconds,
}

/// The catalogue, in the order of `perf list`.
#[rustfmt::skip]
pub static EVENTS: &[Event] = &[
    hardware(0, "cycles", &["cpu-cycles"], "cpu_cycles", "CPU cycles, not counting halted ones.").on(),
    hardware(1, "instructions", &[], "cpu_instructions", "Retired instructions.").on(),
    hardware(2, "cache-references", &[], "cpu_cache_references", "Accesses to the last cache level, as the CPU defines it.").on(),
    hardware(3, "cache-misses", &[], "cpu_cache_misses", "Accesses that missed the last cache level, as the CPU defines it.").on(),
    hardware(4, "branch-instructions", &["branches"], "cpu_branch_instructions", "Retired branch instructions."),
    hardware(5, "branch-misses", &[], "cpu_branch_misses", "Mispredicted branch instructions."),
    hardware(6, "bus-cycles", &[], "cpu_bus_cycles", "Bus cycles."),
    hardware(7, "stalled-cycles-frontend", &["idle-cycles-frontend"], "cpu_stalled_cycles_frontend", "Cycles stalled for want of instructions."),
    hardware(8, "stalled-cycles-backend", &["idle-cycles-backend"], "cpu_stalled_cycles_backend", "Cycles stalled for want of data or units."),
    hardware(9, "ref-cycles", &[], "cpu_ref_cycles", "Cycles at the CPU's base frequency, not counting halted ones."),
    cache(0, LOAD, "L1-dcache-loads", &["l1d-loads"], "l1d_loads", "Loads from the first level data cache."),
    cache(0, LOAD_MISS, "L1-dcache-load-misses", &["l1d-load-misses"], "l1d_load_misses", "Loads that missed the first level data cache."),
    cache(2, LOAD, "LLC-loads", &[], "llc_loads", "Loads from the last level cache."),
    cache(2, LOAD_MISS, "LLC-load-misses", &[], "llc_load_misses", "Loads that missed the last level cache."),
    cache(3, LOAD, "dTLB-loads", &["d-tlb-loads"], "dtlb_loads", "Address translations of data loads."),
    cache(3, LOAD_MISS, "dTLB-load-misses", &["d-tlb-load-misses"], "dtlb_load_misses", "Address translations of data loads that missed the TLB."),
    cache(4, LOAD, "iTLB-loads", &["i-tlb-loads"], "itlb_loads", "Address translations of instruction fetches."),
    cache(4, LOAD_MISS, "iTLB-load-misses", &["i-tlb-load-misses"], "itlb_load_misses", "Address translations of instruction fetches that missed the TLB."),
    clock(0, "cpu-clock", "cpu_clock_seconds", "Time on a CPU, by perf's cpu-clock."),
    clock(1, "task-clock", "task_clock_seconds", "Time on a CPU, by perf's task-clock."),
    software(2, "page-faults", &["faults"]),
    software(3, "context-switches", &["cs"]).whole(),
    software(4, "cpu-migrations", &["migrations"]).whole(),
    software(5, "minor-faults", &[]),
    software(6, "major-faults", &[]),
    software(7, "alignment-faults", &[]),
    software(8, "emulation-faults", &[]),
    software(11, "cgroup-switches", &[]).whole(),
];

/// Returns the row of a name or alias, in any case (as perf accepts them).
#[must_use]
pub fn find(name: &str) -> Option<&'static Event> {
    EVENTS.iter().find(|event| event.names().any(|known| known.eq_ignore_ascii_case(name)))
}

/// Returns the name or alias that `name` is most likely a misspelling of.
#[must_use]
pub fn nearest(name: &str) -> Option<&'static str> {
    super::nearest(name, EVENTS.iter().flat_map(Event::names))
}

impl Event {
    /// Returns the event's name, then its aliases.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    const fn on(mut self) -> Self {
        self.on_by_default = true;
        self
    }

    const fn whole(mut self) -> Self {
        self.splits = false;
        self
    }
}

impl PerfType {
    /// Returns the number of `perf_event_attr.type`.
    #[must_use]
    pub const fn id(self) -> u32 {
        match self {
            Self::Hardware => 0,
            Self::Software => 1,
            Self::HwCache => 3,
            Self::Raw => 4,
        }
    }

    /// Returns the text for the kernel's event, with the uapi's name of the type.
    #[must_use]
    pub fn kernel_event(self, config: u64) -> String {
        match self {
            Self::Hardware => format!("PERF_TYPE_HARDWARE:{config}"),
            Self::Software => format!("PERF_TYPE_SOFTWARE:{config}"),
            Self::HwCache => format!("PERF_TYPE_HW_CACHE:{config:#x}"),
            Self::Raw => format!("PERF_TYPE_RAW:{config:#x}"),
        }
    }
}

/// `PERF_COUNT_HW_CACHE_OP_READ << 8 | PERF_COUNT_HW_CACHE_RESULT_ACCESS << 16`.
const LOAD: u64 = 0;
/// `PERF_COUNT_HW_CACHE_OP_READ << 8 | PERF_COUNT_HW_CACHE_RESULT_MISS << 16`.
const LOAD_MISS: u64 = 1 << 16;

const fn hardware(
    config: u64,
    name: &'static str,
    aliases: &'static [&'static str],
    family: &'static str,
    help: &'static str,
) -> Event {
    let kind = PerfType::Hardware;
    Event { name, aliases, kind, config, family, help, scale: Scale::Count, on_by_default: false, splits: true }
}

const fn cache(
    cache: u64,
    operation: u64,
    name: &'static str,
    aliases: &'static [&'static str],
    family: &'static str,
    help: &'static str,
) -> Event {
    Event { kind: PerfType::HwCache, ..hardware(cache | operation, name, aliases, family, help) }
}

const fn software(config: u64, name: &'static str, aliases: &'static [&'static str]) -> Event {
    Event { kind: PerfType::Software, ..hardware(config, name, aliases, SHARED_FAMILY, SHARED_HELP) }
}

const fn clock(config: u64, name: &'static str, family: &'static str, help: &'static str) -> Event {
    Event { scale: Scale::Nanoseconds, family, help, ..software(config, name, &[]) }.whole()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Families of metrics.md that do not come from perf counters.
    const TAKEN: &[&str] = &[
        "oncpu_seconds",
        "offcpu_seconds",
        "context_switches",
        "cpu_migrations",
        "page_faults",
        "runqueue_latency_seconds",
        "profile_samples",
    ];

    #[test]
    fn every_name_and_alias_is_there_once_in_any_case() {
        let mut seen = HashSet::new();
        for name in EVENTS.iter().flat_map(Event::names) {
            assert!(seen.insert(name.to_ascii_lowercase()), "{name}");
            assert!(find(&name.to_ascii_uppercase()).is_some(), "{name}");
        }
    }

    #[test]
    fn every_family_but_the_shared_one_has_one_row_and_no_other_origin() {
        let mut seen = HashSet::new();
        for event in EVENTS.iter().filter(|event| event.family != SHARED_FAMILY) {
            assert!(seen.insert(event.family), "{}", event.family);
            assert!(!TAKEN.contains(&event.family), "{}", event.family);
            assert_eq!(event.family.ends_with("_seconds"), event.scale == Scale::Nanoseconds, "{}", event.family);
            assert!(event.help.ends_with('.'), "{}", event.help);
        }
    }

    #[test]
    fn no_two_rows_ask_the_kernel_for_the_same() {
        let mut seen = HashSet::new();
        for event in EVENTS {
            assert!(seen.insert((event.kind.id(), event.config)), "{}", event.name);
        }
    }

    #[test]
    fn cache_events_are_encoded_as_in_the_man_page() {
        assert_eq!(find("L1-dcache-loads").unwrap().config, 0);
        assert_eq!(find("LLC-load-misses").unwrap().config, 0x1_0002);
        assert_eq!(find("dTLB-load-misses").unwrap().config, 0x1_0003);
        assert_eq!(find("iTLB-load-misses").unwrap().config, 0x1_0004);
    }

    #[test]
    fn four_hardware_events_are_on_by_default() {
        let on: Vec<_> = EVENTS.iter().filter(|event| event.on_by_default).map(|event| event.name).collect();
        assert_eq!(on, ["cycles", "instructions", "cache-references", "cache-misses"]);
    }
}
