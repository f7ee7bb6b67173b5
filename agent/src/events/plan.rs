//! Checks all configured groups and turns them into the plan that the kernel side opens.
//!
//! A mistake in the configuration is an error with its place. An event that this machine lacks becomes a counter with
//! the source [`Source::Unsupported`], so that it is reported together with the other counters.

use std::{fmt, path::Path};

use thiserror::Error;

pub use super::{catalogue::Scale, parse::Mode};
use super::{
    catalogue::{PerfType, SHARED_FAMILY, SHARED_HELP},
    parse::{ParseError, PmuSpec, Spec, Target, parse},
    pmu::{Resolution, TermError, resolve, several_core_pmus},
};

/// The counters to open, by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The groups. Events of a group are on the PMU at the same time. No group is empty.
    pub groups: Vec<Vec<Counter>>,
}

/// One event, and the series that it is exported as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The configured text, e.g. `cycles:u`; unique.
    pub name: String,
    /// The metric family, without its prefix and `_total`.
    pub family: &'static str,
    /// The family's help text.
    pub help: &'static str,
    /// The unit of the raw value.
    pub scale: Scale,
    /// The label `event`, in the shared family only.
    pub event_label: Option<String>,
    /// The label `mode`, if only one mode is counted.
    pub mode: Option<Mode>,
    /// The arguments for the kernel, or the reason why the event is unsupported.
    pub source: Source,
    /// The CPUs whose PMU has the event; `None` means all CPUs. Only machines with several kinds of CPUs have such
    /// PMUs.
    pub cpus: Option<Vec<u32>>,
    /// The text for the kernel's event, e.g. `cpu/event=0x3c,umask=0x0/` or `PERF_TYPE_HARDWARE:0`.
    pub kernel_event: String,
}

/// The origin of the counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The arguments of `perf_event_open(2)`.
    Attr(Attr),
    /// No origin: the reason and the remedy.
    Unsupported(String),
}

/// The fields of `perf_event_attr` that differ between counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// `type`.
    pub kind: u32,
    /// `config`.
    pub config: u64,
    /// `config1`.
    pub config1: u64,
    /// `config2`.
    pub config2: u64,
    /// Set if the counter excludes user mode.
    pub exclude_user: bool,
    /// Set if the counter excludes kernel mode.
    pub exclude_kernel: bool,
    /// Set if the counter takes one of the few counters of a CPU.
    pub core: bool,
}

/// The limits of the kernel side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest number of events in all groups.
    pub events: usize,
    /// The largest number of groups.
    pub groups: usize,
}

/// An event's place in the configuration, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The index of the group.
    pub group: usize,
    /// The index of the event in its group.
    pub index: usize,
}

/// An event of the configuration, for errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The configured text.
    pub event: String,
    /// The event's place.
    pub place: Place,
}

/// A mistake in the configured groups.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// The text is not an event.
    #[error("failed to read event at `{place}`")]
    Parse {
        /// The text's place.
        place: Place,
        /// The mistake in the text.
        source: ParseError,
    },
    /// The PMU does not take the event's terms.
    #[error("failed to find event {event}")]
    Term {
        /// The event.
        event: Placed,
        /// The mistake in the terms.
        source: TermError,
    },
    /// A group without events.
    #[error("empty group `counters.groups[{group}]` (name an event in it, or remove it)")]
    EmptyGroup {
        /// The index of the group, from 0.
        group: usize,
    },
    /// There are more groups than the kernel side has room for.
    #[error("too many groups in `counters.groups`: {count}, and at most {limit} fit (merge or remove some)")]
    TooManyGroups {
        /// The number of configured groups.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// There are more events than the kernel side has room for.
    #[error("too many events in `counters.groups`: {count}, and at most {limit} fit (remove some)")]
    TooManyEvents {
        /// The number of configured events.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// Two counters would be exported as the same series.
    #[error("same event twice: {first} and {second} (remove one; in the terms of a PMU, another `name=` helps too)")]
    Twice {
        /// The first event.
        first: Placed,
        /// The second event.
        second: Placed,
    },
    /// A sum over the family would count one event twice.
    #[error(
        "event both whole and by mode: {first} and {second}, which a sum counts twice (keep the whole, or `:u` and `:k`)"
    )]
    WholeAndSplit {
        /// The first event.
        first: Placed,
        /// The second event.
        second: Placed,
    },
    /// The event has a mode that the kernel would ignore.
    #[error("no modes of event {event}: the kernel counts it only as a whole (remove the modifier)")]
    NoModes {
        /// The event.
        event: Placed,
    },
}

/// Checks all groups and looks up their PMUs below `sysfs`.
///
/// # Errors
///
/// When the configuration has a mistake; the error names its place.
pub fn plan(groups: &[Vec<String>], sysfs: &Path, limits: Limits) -> Result<Plan, PlanError> {
    if groups.len() > limits.groups {
        return Err(PlanError::TooManyGroups { count: groups.len(), limit: limits.groups });
    }
    let count = groups.iter().map(Vec::len).sum();
    if count > limits.events {
        return Err(PlanError::TooManyEvents { count, limit: limits.events });
    }
    let mut plan = Plan::default();
    let mut specs: Vec<(Place, Spec)> = Vec::new();
    for (group, events) in groups.iter().enumerate() {
        if events.is_empty() {
            return Err(PlanError::EmptyGroup { group });
        }
        let mut counters = Vec::new();
        for (index, text) in events.iter().enumerate() {
            let place = Place { group, index };
            let spec = parse(text).map_err(|source| PlanError::Parse { place, source })?;
            check(place, &spec, &specs)?;
            counters.push(counter(place, &spec, sysfs)?);
            specs.push((place, spec));
        }
        plan.groups.push(counters);
    }
    Ok(plan)
}

impl Attr {
    /// Returns whether the type is `PERF_TYPE_SOFTWARE`: such events are never multiplexed.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.kind == PerfType::Software.id()
    }

    /// Returns an event of a CPU's own PMU or of software, by the uapi's numbers.
    #[must_use]
    pub fn of(kind: u32, config: u64) -> Self {
        Self::new(kind, [config, 0, 0], None, kind != PerfType::Software.id())
    }

    fn new(kind: u32, [config, config1, config2]: [u64; 3], mode: Option<Mode>, core: bool) -> Self {
        let exclude_user = mode == Some(Mode::Kernel);
        let exclude_kernel = mode == Some(Mode::User);
        Self { kind, config, config1, config2, exclude_user, exclude_kernel, core }
    }
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` at `{}`", self.event, self.place)
    }
}

impl fmt::Display for Place {
    /// Writes the path of the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "counters.groups[{}][{}]", self.group, self.index)
    }
}

/// Checks that `new` does not conflict with the earlier events.
fn check(place: Place, new: &Spec, earlier: &[(Place, Spec)]) -> Result<(), PlanError> {
    if new.mode.is_some() && matches!(new.target, Target::Named(event) if !event.splits) {
        return Err(PlanError::NoModes { event: placed(place, new) });
    }
    for (known_place, known) in earlier.iter().filter(|(_, known)| same_series(known, new)) {
        let (first, second) = (placed(*known_place, known), placed(place, new));
        if known.mode == new.mode {
            return Err(PlanError::Twice { first, second });
        }
        if known.mode.is_none() || new.mode.is_none() {
            return Err(PlanError::WholeAndSplit { first, second });
        }
    }
    Ok(())
}

fn placed(place: Place, spec: &Spec) -> Placed {
    Placed { event: spec.text.clone(), place }
}

/// Returns whether two events are equal except for their mode: the same row of the catalogue under any of its names, or
/// the same label in the shared family.
fn same_series(left: &Spec, right: &Spec) -> bool {
    let shared = |spec: &Spec| !matches!(spec.target, Target::Named(event) if event.family != SHARED_FAMILY);
    match (&left.target, &right.target) {
        (Target::Named(left), Target::Named(right)) if left == right => true,
        _ => shared(left) && shared(right) && left.label == right.label,
    }
}

fn counter(place: Place, spec: &Spec, sysfs: &Path) -> Result<Counter, PlanError> {
    let attr = |kind: u32, config, core| Source::Attr(Attr::new(kind, config, spec.mode, core));
    let mut cpus = None;
    let (family, help, scale) = match &spec.target {
        Target::Named(event) => (event.family, event.help, event.scale),
        Target::Raw(_) | Target::Pmu(_) => (SHARED_FAMILY, SHARED_HELP, Scale::Count),
    };
    let (source, asked) = match &spec.target {
        Target::Named(event) => {
            let core = event.kind != PerfType::Software;
            (attr(event.kind.id(), [event.config, 0, 0], core), event.kind.kernel_event(event.config))
        }
        Target::Raw(config) => {
            let source = match several_core_pmus(sysfs) {
                None => attr(PerfType::Raw.id(), [*config, 0, 0], true),
                Some(pmus) => Source::Unsupported(format!(
                    "raw codes mean something else on each PMU of this machine (write `PMU/config={config:#x}/` with \
                     one of {pmus})"
                )),
            };
            (source, PerfType::Raw.kernel_event(*config))
        }
        Target::Pmu(pmu) => {
            let resolution = resolve(pmu, sysfs);
            match resolution.map_err(|source| PlanError::Term { event: placed(place, spec), source })? {
                Resolution::Supported(found) => {
                    cpus = found.cpus;
                    (attr(found.kind, found.config, found.core), found.kernel_event)
                }
                Resolution::Unsupported(reason) => (Source::Unsupported(reason), as_configured(pmu)),
            }
        }
    };
    Ok(Counter {
        name: spec.text.clone(),
        family,
        help,
        scale,
        event_label: (family == SHARED_FAMILY).then(|| spec.label.clone()),
        mode: spec.mode,
        source,
        cpus,
        kernel_event: with_modifier(asked, spec.mode),
    })
}

fn as_configured(spec: &PmuSpec) -> String {
    let terms = spec.terms.iter().map(|term| match term.value {
        Some(value) => format!("{}={value:#x}", term.name),
        None => term.name.clone(),
    });
    format!("{}/{}/", spec.pmu, terms.collect::<Vec<_>>().join(","))
}

fn with_modifier(mut event: String, mode: Option<Mode>) -> String {
    if let Some(mode) = mode {
        if !event.ends_with('/') {
            event.push(':');
        }
        event.push(mode.letter());
    }
    event
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
