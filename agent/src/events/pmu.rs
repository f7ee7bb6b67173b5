//! Resolves an event in the terms of a PMU, by the PMU's sysfs files (`Documentation/ABI/testing/
//! sysfs-bus-event_source-devices-*` of the kernel).
//!
//! If this machine lacks the PMU, or if the PMU counts for whole packages, the configuration has no mistake: the result
//! is [`Resolution::Unsupported`] with the reason. A term that an existing PMU does not have is an error. Not
//! supported: the `.scale` and `.unit` of an event (the raw count is exported), perf's vendor tables, and globs of
//! PMUs.

use std::{collections::BTreeMap, fs, io, path::Path};

use thiserror::Error;

use super::{
    catalogue::PerfType,
    did_you_mean,
    parse::{PmuSpec, Term, number, raw_digits},
};

/// A PMU as sysfs describes it.
#[derive(Clone, Debug)]
pub struct Pmu {
    /// The name of its directory.
    pub name: String,
    /// `perf_event_attr.type`.
    pub kind: u32,
    /// The `cpus` file, e.g. `0-15`: the CPUs that a PMU of a hybrid machine counts on.
    pub cpus: Option<String>,
    /// The `cpumask` file, e.g. `0,24`: the PMU counts once per package or die, for all tasks.
    pub cpumask: Option<String>,
    /// File name -> text, e.g. `event` -> `config:0-7,32-35`.
    formats: BTreeMap<String, String>,
    /// File name -> text, e.g. `cpu-cycles` -> `event=0x3c`.
    events: BTreeMap<String, String>,
}

/// The result of resolving the terms of a PMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The values for `perf_event_attr`.
    Supported(Encoding),
    /// The reason why this machine cannot count the event, and the remedy.
    Unsupported(String),
}

/// The part of `perf_event_attr` that names the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// `type`.
    pub kind: u32,
    /// `config`, `config1`, `config2`.
    pub config: [u64; 3],
    /// The event with the events of the PMU expanded, e.g. `cpu/event=0x3c,umask=0x0/`.
    pub kernel_event: String,
    /// The CPUs that have this PMU; `None` if the PMU does not list its CPUs.
    pub cpus: Option<Vec<u32>>,
    /// Set if this is a PMU of the CPUs themselves.
    pub core: bool,
}

/// A term that the PMU does not take.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TermError {
    /// The term is neither a field nor an event of the PMU.
    #[error("unknown term `{term}` at position {position}: PMU `{pmu}` has no such field or event ({})", did_you_mean(.nearest.as_deref(), &format!("see its `format` and `events` in {}", super::SYSFS)))]
    Unknown {
        /// The term's name.
        term: String,
        /// The position in the event, in characters from 1.
        position: usize,
        /// The PMU.
        pmu: String,
        /// The most similar name of the PMU.
        nearest: Option<String>,
    },
    /// A value for an event of the PMU, such as `cpu-cycles=1`.
    #[error(
        "unexpected value in term `{term}={value}` at position {position}: an event of PMU `{pmu}` takes no value (write `{term}`)"
    )]
    ValueOfEvent {
        /// The term's name.
        term: String,
        /// The given value.
        value: u64,
        /// The position in the event, in characters from 1.
        position: usize,
        /// The PMU.
        pmu: String,
    },
    /// The value has more bits than the field.
    #[error("too large value {value:#x} of {bits}-bit field `{field}` (at most {:#x})", largest(*.bits))]
    OutOfRange {
        /// The field's name.
        field: String,
        /// The width of the field in bits.
        bits: usize,
        /// The given value.
        value: u64,
    },
    /// An event of the PMU that leaves a field open.
    #[error("missing field `{field}`, which event `{alias}` of PMU `{pmu}` leaves open (add `{field}=...`)")]
    Open {
        /// The field's name.
        field: String,
        /// The event of the PMU.
        alias: String,
        /// The PMU.
        pmu: String,
    },
}

/// Resolves the terms of an event with the PMU's files below `sysfs`.
///
/// # Errors
///
/// When the PMU exists, but does not take these terms.
pub fn resolve(spec: &PmuSpec, sysfs: &Path) -> Result<Resolution, TermError> {
    let pmu = match Pmu::read(sysfs, &spec.pmu) {
        Ok(pmu) => pmu,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Resolution::Unsupported(no_pmu(&spec.pmu, sysfs)));
        }
        Err(error) => {
            return Ok(Resolution::Unsupported(format!(
                "failed to read PMU `{}`: {error} (see {}/{})",
                spec.pmu,
                sysfs.display(),
                spec.pmu
            )));
        }
    };
    match pmu.encode(&spec.terms) {
        Ok(encoding) => Ok(Resolution::Supported(encoding)),
        Err(Refusal::Machine(reason)) => Ok(Resolution::Unsupported(reason)),
        Err(Refusal::Term(error)) => Err(error),
    }
}

impl Pmu {
    /// Reads the PMU `name` below `sysfs`.
    ///
    /// # Errors
    ///
    /// When the PMU does not exist (`NotFound`), or its `type` is unreadable.
    pub fn read(sysfs: &Path, name: &str) -> io::Result<Self> {
        let directory = sysfs.join(name);
        let kind = fs::read_to_string(directory.join("type"))?;
        let kind = kind.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let list = |file| fs::read_to_string(directory.join(file)).ok().map(|list| list.trim().to_owned());
        Ok(Self {
            name: name.to_owned(),
            kind,
            cpus: list("cpus"),
            cpumask: list("cpumask"),
            formats: read_files(&directory.join("format")),
            events: read_files(&directory.join("events")),
        })
    }

    fn encode(&self, terms: &[Term]) -> Result<Encoding, Refusal> {
        if let Some(cpumask) = &self.cpumask {
            return Err(Refusal::Machine(format!(
                "PMU `{}` counts for whole packages, on CPUs {cpumask}, so its counts belong to no cgroup (use an event \
                 of a PMU without a `cpumask` file)",
                self.name
            )));
        }
        let mut words = [0_u64; WORDS.len()];
        let mut kernel_event = Vec::new();
        // Fields are set last, so that they override `config=`.
        let (raw, fields): (Vec<_>, Vec<_>) =
            self.settings(terms)?.into_iter().partition(|setting| matches!(setting.place, Place::Word(_)));
        for Setting { name, place, value } in raw.into_iter().chain(fields) {
            match place {
                Place::Word(word) => words[word] = value,
                Place::Bits(field) => field.set(&mut words, value),
            }
            kernel_event.push(format!("{name}={value:#x}"));
        }
        let [config, config1, config2, config3] = words;
        if config3 != 0 {
            return Err(Refusal::Machine(format!(
                "PMU `{}` wants bits in `config3`, which podperf does not set (leave out the terms that are there)",
                self.name
            )));
        }
        let kernel_event = format!("{}/{}/", self.name, kernel_event.join(","));
        let cpus = match self.cpus.as_deref().map(cpu_list) {
            Some(None) => return Err(self.malformed(".", "cpus")),
            known => known.flatten(),
        };
        let core = cpus.is_some() || self.kind == PerfType::Raw.id();
        Ok(Encoding { kind: self.kind, config: [config, config1, config2], kernel_event, cpus, core })
    }

    /// Returns each field that is set, once: an event of the PMU sets its fields, and the other terms override them at
    /// any position.
    fn settings(&self, terms: &[Term]) -> Result<Vec<Setting>, Refusal> {
        let mut given: Vec<(&str, Option<u64>, &str)> = Vec::new();
        let mut own = Vec::new();
        for term in terms {
            match (self.events.get(&term.name), term.value) {
                (Some(text), None) => {
                    for (field, value) in parse_event(text).ok_or_else(|| self.malformed("events", &term.name))? {
                        assign(&mut given, (field, value, &term.name));
                    }
                }
                (_, value) => own.push((term, value)),
            }
        }
        for (term, value) in own {
            match self.place(&term.name)? {
                Some(_) => assign(&mut given, (&term.name, Some(value.unwrap_or(1)), "")),
                // A raw code, such as perf's `cpu/r1a8/`.
                None => match raw_digits(&term.name).map(|digits| u64::from_str_radix(digits, 16)) {
                    Some(Ok(config)) if value.is_none() => assign(&mut given, ("config", Some(config), "")),
                    _ => return Err(self.unknown(term).into()),
                },
            }
        }
        given.into_iter().map(|(field, value, alias)| self.setting(field, value, alias)).collect()
    }

    fn setting(&self, name: &str, value: Option<u64>, alias: &str) -> Result<Setting, Refusal> {
        let Some(value) = value else {
            let (field, alias, pmu) = (name.to_owned(), alias.to_owned(), self.name.clone());
            return Err(TermError::Open { field, alias, pmu }.into());
        };
        // The terms of the user already have a place, so only an event's own file can be wrong.
        let place = self.place(name)?.ok_or_else(|| self.malformed("events", alias))?;
        if let Place::Bits(field) = &place {
            let bits = field.bits.len();
            if value > largest(bits) {
                if !alias.is_empty() {
                    return Err(self.malformed("events", alias));
                }
                return Err(TermError::OutOfRange { field: name.to_owned(), bits, value }.into());
            }
        }
        Ok(Setting { name: name.to_owned(), place, value })
    }

    /// Returns the bits that a term sets; `None` if the PMU has no such field.
    fn place(&self, name: &str) -> Result<Option<Place>, Refusal> {
        match self.formats.get(name) {
            Some(text) => {
                Field::parse(text).map(|field| Some(Place::Bits(field))).ok_or_else(|| self.malformed("format", name))
            }
            None => Ok(word(name).map(Place::Word)),
        }
    }

    fn malformed(&self, directory: &str, file: &str) -> Refusal {
        let pmu = &self.name;
        Refusal::Machine(format!(
            "the kernel's file `{pmu}/{directory}/{file}` is not understood (use `config=` instead)"
        ))
    }

    fn unknown(&self, term: &Term) -> TermError {
        let (name, position, pmu) = (term.name.clone(), term.position, self.name.clone());
        match term.value {
            Some(value) if self.events.contains_key(&name) => {
                TermError::ValueOfEvent { term: name, value, position, pmu }
            }
            _ => {
                let known = self.formats.keys().chain(self.events.keys()).map(String::as_str);
                let nearest = super::nearest(&name, known).map(str::to_owned);
                TermError::Unknown { term: name, position, pmu, nearest }
            }
        }
    }
}

/// The words of `perf_event_attr`; the last one exists since Linux 6.3.
const WORDS: [&str; 4] = ["config", "config1", "config2", "config3"];

enum Refusal {
    Term(TermError),
    Machine(String),
}

impl From<TermError> for Refusal {
    fn from(error: TermError) -> Self {
        Self::Term(error)
    }
}

struct Setting {
    name: String,
    place: Place,
    value: u64,
}

enum Place {
    Word(usize),
    Bits(Field),
}

/// A file of `format`: bits of one word, the lowest bit of the value first.
#[derive(Debug, PartialEq, Eq)]
struct Field {
    word: usize,
    bits: Vec<u32>,
}

impl Field {
    fn parse(text: &str) -> Option<Self> {
        let (name, ranges) = text.trim().split_once(':')?;
        let mut bits = Vec::new();
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            if first > last || last > 63 {
                return None;
            }
            bits.extend(first..=last);
        }
        Some(Self { word: word(name)?, bits }).filter(|field| field.bits.len() <= 64)
    }

    fn set(&self, words: &mut [u64; WORDS.len()], value: u64) {
        for (index, bit) in self.bits.iter().enumerate() {
            words[self.word] = words[self.word] & !(1 << bit) | (value >> index & 1) << bit;
        }
    }
}

fn word(name: &str) -> Option<usize> {
    WORDS.iter().position(|word| *word == name)
}

/// Returns the largest value of a field with this number of bits.
fn largest(bits: usize) -> u64 {
    u32::try_from(bits).ok().and_then(|bits| 1_u64.checked_shl(bits)).map_or(u64::MAX, |bound| bound - 1)
}

/// Parses a file of `events`. `None` as a value stands for `?`, which the user must fill in.
fn parse_event(text: &str) -> Option<Vec<(&str, Option<u64>)>> {
    let terms = text.trim().split(',');
    let terms = terms.map(|term| match term.split_once('=') {
        None => Some((term, Some(1))),
        Some((name, "?")) => Some((name, None)),
        Some((name, value)) => Some((name, Some(number(value)?))),
    });
    terms.collect()
}

/// Sets a field, at the position that it already has.
fn assign<'a>(given: &mut Vec<(&'a str, Option<u64>, &'a str)>, new: (&'a str, Option<u64>, &'a str)) {
    match given.iter_mut().find(|(field, ..)| *field == new.0) {
        Some(known) => *known = new,
        None => given.push(new),
    }
}

/// Returns the CPUs of a list such as `0-3,8`; `None` for a malformed list.
#[must_use]
pub fn cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // A file with more CPUs than Linux supports is broken.
        if first > last || last >= 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Returns the names of the PMUs on a machine whose CPUs have different PMUs; `None` on other machines.
#[must_use]
pub fn several_core_pmus(sysfs: &Path) -> Option<String> {
    let pmus = core_pmus(sysfs);
    (pmus.len() > 1).then(|| pmus.into_iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", "))
}

/// Returns the PMUs that list their CPUs, with these CPUs.
#[must_use]
pub fn core_pmus(sysfs: &Path) -> Vec<(String, Vec<u32>)> {
    let entries = fs::read_dir(sysfs).into_iter().flatten().flatten();
    let mut pmus: Vec<_> = entries
        .filter_map(|entry| {
            let cpus = cpu_list(&fs::read_to_string(entry.path().join("cpus")).ok()?)?;
            Some((entry.file_name().into_string().ok()?, cpus))
        })
        .collect();
    pmus.sort_unstable();
    pmus
}

fn no_pmu(name: &str, sysfs: &Path) -> String {
    let names = fs::read_dir(sysfs).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let (uncore, mut names): (Vec<_>, Vec<_>) = names
        .map(|name| name.to_string_lossy().into_owned())
        .partition(|name| sysfs.join(name).join("cpumask").exists());
    names.sort_unstable();
    if !uncore.is_empty() {
        names.push(format!("{} that count for whole packages", uncore.len()));
    }
    let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    format!("no PMU `{name}` on this machine (see {}: {there})", sysfs.display())
}

/// Reads all files of a sysfs directory except the companions of events (`.scale`, `.unit`, ...).
fn read_files(directory: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let companion = [".scale", ".unit", ".per-pkg", ".snapshot"].iter().any(|end| name.ends_with(end));
        if companion { None } else { Some((name, fs::read_to_string(entry.path()).ok()?)) }
    });
    files.collect()
}

#[cfg(test)]
#[path = "pmu_tests.rs"]
mod tests;
