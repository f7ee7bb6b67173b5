//! Probes the functions that the configuration names: those of the kernel once, and those of programs in each file that
//! `finding` finds. A probe keeps a file in use, so it ends when no process sees the file any more.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::fd::AsFd as _,
    thread,
    time::Duration,
};

use super::{
    files::{LayerFile, open_below},
    finding::{FileOf, Finder, Found, MOST_NAMESPACES, MOST_OF_ONE, Search},
};
use crate::{
    kernel::{Place, Probe, Probes},
    model::{
        functions::{Code, Function, SENSOR},
        status::{State, Status},
    },
};

/// The time between two searches for files.
const SEARCH_EVERY: Duration = Duration::from_secs(10);
/// The most different files of one function.
const MOST_FILES: usize = 64;

/// Starts the thread that probes. `refused` is the reason why functions of programs cannot be probed, if there is one.
/// The probes last as long as the process.
///
/// # Errors
///
/// When a thread cannot be started.
pub fn start(
    probes: Probes,
    functions: Vec<Function>,
    refused: Option<String>,
    status: Status,
    confined: bool,
) -> io::Result<()> {
    let finder = finder(&functions, refused.is_some(), confined)?;
    let attached = Attached::new(probes, functions, refused);
    thread::Builder::new().name("podperf-probes".into()).spawn(move || run(finder, attached, &status))?;
    Ok(())
}

fn run(mut finder: Option<Finder>, mut attached: Attached, status: &Status) {
    let mut last = None;
    loop {
        if let Some(finder) = &mut finder {
            attached.take(finder.search(attached.files.keys().copied().collect()));
        }
        // While sensors are shed, the limits say so, and a state that stays the same must not hide it.
        let now = attached.state();
        if last.as_ref() != Some(&now) {
            status.set(SENSOR, now.state, now.detail.as_str());
            last = Some(now);
        }
        thread::sleep(SEARCH_EVERY);
    }
}

/// Probes the functions for a moment, and returns the state of the sensor.
#[must_use]
pub fn try_once(probes: Probes, functions: Vec<Function>, refused: Option<String>) -> (State, String) {
    let finder = match finder(&functions, refused.is_some(), true) {
        Ok(finder) => finder,
        Err(error) => return (State::Degraded, format!("failed to start a thread that reads files: {error}")),
    };
    let mut attached = Attached::new(probes, functions, refused);
    if let Some(mut finder) = finder {
        attached.take(finder.search(HashSet::new()));
    }
    let Told { state, detail } = attached.state();
    (state, detail)
}

fn finder(functions: &[Function], is_refused: bool, confined: bool) -> io::Result<Option<Finder>> {
    if is_refused { Ok(None) } else { Finder::start(functions, confined) }
}

/// The probes of all functions.
#[derive(Debug)]
struct Attached {
    probes: Probes,
    functions: Vec<Function>,
    refused: Option<String>,
    /// The probes of functions of the kernel, by place.
    kernel: HashMap<usize, Result<Probe, String>>,
    files: HashMap<FileOf, Result<Probe, String>>,
    is_denied: bool,
    is_cut: bool,
    is_late: bool,
}

/// The state of the sensor.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    state: State,
    detail: String,
}

impl Attached {
    /// Probes the functions of the kernel.
    fn new(probes: Probes, functions: Vec<Function>, refused: Option<String>) -> Self {
        let probe = |(place, function): (usize, &Function)| match &function.code {
            Code::Kernel(name) => Some((place, probes.kernel(configured(place), name))),
            Code::Program { .. } => None,
        };
        let kernel = functions.iter().enumerate().filter_map(probe).collect();
        let files = HashMap::new();
        Self { probes, functions, refused, kernel, files, is_denied: false, is_cut: false, is_late: false }
    }

    /// Probes the functions in new files, and ends the probes of files that no process sees any more.
    fn take(&mut self, search: Search) {
        let before = self.files.len();
        self.files.retain(|of, _| search.seen.contains(of));
        if self.files.len() < before {
            // There may be room now: the next search finds these files again.
            self.files.retain(|_, probe| !matches!(probe, Err(why) if *why == no_room()));
        }
        for found in search.new {
            if let Some(probe) = self.probe(&found) {
                self.files.insert(found.of, probe);
            }
        }
        (self.is_denied, self.is_cut, self.is_late) = (search.is_denied, search.is_cut, search.is_late);
    }

    /// Probes the function in a new file. Returns `None` if the process no longer sees the file: another one may. The
    /// thread for files has descriptors of its own, so the file is opened again, but not read.
    fn probe(&self, found: &Found) -> Option<Result<Probe, String>> {
        let (place, id) = found.of;
        let offset = match &found.offset {
            Ok(offset) => *offset,
            Err(why) => return Some(Err(why.clone())),
        };
        let is_probed = |(of, probe): (&FileOf, &Result<Probe, String>)| of.0 == place && probe.is_ok();
        if self.files.iter().filter(|of| is_probed(*of)).count() >= MOST_FILES {
            return Some(Err(no_room()));
        }
        let Code::Program { binary, .. } = &self.functions.get(place)?.code else { return None };
        let file = open_below(found.process, binary).ok()?;
        let is_it = LayerFile::of(&file).ok()? == id;
        is_it.then(|| self.probes.program(configured(place), file.as_fd(), offset))
    }

    fn state(&self) -> Told {
        let (mut measured, mut failed) = (Vec::new(), Vec::new());
        for (place, Function { name, code }) in self.functions.iter().enumerate() {
            match (code, &self.refused) {
                (Code::Kernel(_), _) => match self.kernel.get(&place) {
                    Some(Err(error)) => failed.push(format!("`{name}` is not measured: {error}")),
                    _ => measured.push(format!("`{name}` in the kernel")),
                },
                (Code::Program { .. }, Some(why)) => failed.push(format!("`{name}` is not measured: {why}")),
                (Code::Program { binary, .. }, None) => {
                    let own = || self.files.iter().filter(move |((of, _), _)| *of == place).map(|(_, probe)| probe);
                    let errors: HashSet<&String> = own().filter_map(|probe| probe.as_ref().err()).collect();
                    let errors =
                        errors.into_iter().map(|error| format!("`{name}` is not measured in some `{binary}`: {error}"));
                    failed.extend(errors);
                    measured.push(match own().filter(|probe| probe.is_ok()).count() {
                        0 => format!("`{name}` nowhere, since no process sees such a `{binary}`"),
                        1 => format!("`{name}` in 1 file"),
                        files => format!("`{name}` in {files} files"),
                    });
                }
            }
        }
        if self.is_cut {
            failed.push(format!(
                "a pod or cgroup has more than {MOST_NAMESPACES} mount namespaces, or {MOST_OF_ONE} files of a function"
            ));
        }
        if self.is_late {
            failed.push("the files of some pods or cgroups could not be read in time".into());
        }
        if self.is_denied {
            let way = "needs CAP_SYS_PTRACE, and an AppArmor profile that allows ptrace";
            failed.push(format!("the files of most processes cannot be read ({way})"));
        }
        if self.functions.is_empty() {
            measured.push("functions of recordings only".to_owned());
        }
        failed.sort_unstable();
        if failed.is_empty() {
            Told { state: State::Healthy, detail: format!("measures {}", measured.join(", ")) }
        } else {
            Told { state: State::Degraded, detail: failed.join("; ") }
        }
    }
}

/// Returns the reason why a function is not measured in a file when there are too many.
fn no_room() -> String {
    format!("only {MOST_FILES} files of a function are measured, and there are more")
}

/// Returns the place of a function of the configuration, of which there are few.
fn configured(place: usize) -> Place {
    Place { function: u32::try_from(place).unwrap_or(u32::MAX), recording: 0 }
}
