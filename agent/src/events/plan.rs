//! All configured groups, checked and made into what the kernel side opens.
//!
//! What the configuration gets wrong is an error with its place in it; what this machine lacks is a counter whose
//! source is [`Source::Unsupported`], so that it can be reported beside the others.

use std::{fmt, path::Path};

use thiserror::Error;

pub use super::{catalogue::Scale, parse::Mode};
use super::{
    catalogue::{PerfType, SHARED_FAMILY, SHARED_HELP},
    parse::{ParseError, PmuSpec, Spec, Target, parse},
    pmu::{Resolution, TermError, resolve, several_core_pmus},
};

/// What is to be counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Events of a group are on the PMU at the same time. None is empty.
    pub groups: Vec<Vec<Counter>>,
}

/// One event, and the series that it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The configured text, e.g. `cycles:u`; unique.
    pub name: String,
    /// The metric family, without its prefix and `_total`.
    pub family: &'static str,
    /// The family's help text.
    pub help: &'static str,
    /// What the raw value is.
    pub scale: Scale,
    /// The label `event`, in the shared family only.
    pub event_label: Option<String>,
    /// The label `mode`, where only one is counted.
    pub mode: Option<Mode>,
    /// What to open.
    pub source: Source,
    /// The CPUs whose PMU has it; `None` is all. Of a PMU of a machine with several kinds of CPUs.
    pub cpus: Option<Vec<u32>>,
    /// What is asked of the kernel, e.g. `cpu/event=0x3c,umask=0x0/` or `PERF_TYPE_HARDWARE:0`.
    pub kernel_event: String,
}

/// Where the counts come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `perf_event_open(2)`.
    Attr(Attr),
    /// Nowhere: why, and what would help.
    Unsupported(String),
}

/// The part of `perf_event_attr` that differs between counters.
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
    /// Counts nothing in user mode.
    pub exclude_user: bool,
    /// Counts nothing in kernel mode.
    pub exclude_kernel: bool,
    /// It takes one of the CPU's own counters, of which there are few.
    pub core: bool,
}

/// What the kernel side has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Events of all groups.
    pub events: usize,
    /// Groups.
    pub groups: usize,
}

/// An event's place in the configuration, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which group.
    pub group: usize,
    /// Which of its events.
    pub index: usize,
}

/// An event of the configuration, for errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The configured text.
    pub event: String,
    /// Where.
    pub place: Place,
}

/// What is wrong with the configured groups.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// Not an event.
    #[error("failed to read event at `{place}`")]
    Parse {
        /// Where.
        place: Place,
        /// Why.
        source: ParseError,
    },
    /// An event that its PMU does not have.
    #[error("failed to find event {event}")]
    Term {
        /// Which.
        event: Placed,
        /// Why.
        source: TermError,
    },
    /// No event in it.
    #[error("empty group `groups[{group}]` (name an event in it, or remove it)")]
    EmptyGroup {
        /// Which, from 0.
        group: usize,
    },
    /// More than the kernel side has room for.
    #[error("too many groups in `groups`: {count}, and at most {limit} fit (merge or remove some)")]
    TooManyGroups {
        /// How many are configured.
        count: usize,
        /// How many fit.
        limit: usize,
    },
    /// More than the kernel side has room for.
    #[error("too many events in `groups`: {count}, and at most {limit} fit (remove some)")]
    TooManyEvents {
        /// How many are configured.
        count: usize,
        /// How many fit.
        limit: usize,
    },
    /// Two counters would be one series.
    #[error("same event twice: {first} and {second} (remove one; in the terms of a PMU, another `name=` helps too)")]
    Twice {
        /// The one.
        first: Placed,
        /// The other.
        second: Placed,
    },
    /// A sum over the family would count it twice.
    #[error(
        "event both whole and by mode: {first} and {second}, which a sum counts twice (keep the whole, or `:u` and `:k`)"
    )]
    WholeAndSplit {
        /// The one.
        first: Placed,
        /// The other.
        second: Placed,
    },
    /// A mode that the kernel would ignore.
    #[error("no modes of event {event}: the kernel counts it only as a whole (remove the modifier)")]
    NoModes {
        /// Which.
        event: Placed,
    },
}

/// Checks and resolves all groups; PMUs are looked up below `sysfs`.
///
/// # Errors
///
/// A mistake in the configuration, with its place.
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
    /// `PERF_TYPE_SOFTWARE`: never multiplexed.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.kind == PerfType::Software.id()
    }

    /// An event of a CPU's own PMU, or of software, by the uapi's numbers.
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
    /// As a path into the configuration's list of groups.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "groups[{}][{}]", self.group, self.index)
    }
}

/// Whether `new` can stand beside those before it.
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

/// Whether two events differ in their mode at most: the same row of the catalogue, by whatever name, or the same label
/// in the shared family.
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
