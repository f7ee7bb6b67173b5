//! Lends the places of functions that the configuration leaves free to recordings, and probes the function of each
//! recording in the files of its subject. All probes end with the recording.

use std::{
    collections::{BTreeSet, HashSet},
    io,
    os::fd::AsFd as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use tracing::debug;

use super::{
    files::{LayerFile, open_below},
    finding::{Finder, Found, Whom},
};
use crate::{
    kernel::{self, LAST_RECORDING, Probe, Probes},
    model::functions::{Code, Function, MOST},
};

/// The most files in which the function of a recording is probed.
const MOST_FILES: usize = 16;

/// The places that the configuration leaves free. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct Spare(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    probes: Probes,
    /// The reason why functions of programs cannot be probed, if there is one.
    refused: Option<String>,
    confined: bool,
    places: Mutex<Places>,
    /// Started for the first function of a program, and kept: a thread that hangs in a pod's file stays known.
    finder: Mutex<Option<Finder>>,
}

/// The free places, and the number of the last recording.
#[derive(Debug)]
struct Places {
    free: Vec<u32>,
    last: u16,
}

/// A place that is lent to one recording. It is free again when this is dropped.
#[derive(Debug)]
pub struct Lent {
    spare: Spare,
    place: kernel::Place,
}

/// A function that is measured. The probes end when this is dropped, on a thread of their own: an end waits for the
/// kernel.
#[derive(Debug)]
pub struct Measured(Option<Attached>);

/// The probes end before the place is free.
#[derive(Debug)]
struct Attached {
    probes: Vec<Probe>,
    lent: Lent,
}

impl Places {
    /// Returns the places behind those of the configuration.
    fn after(configured: usize) -> Self {
        let all = (0..u32::try_from(MOST).unwrap_or(0)).rev();
        Self { free: all.take(MOST.saturating_sub(configured)).collect(), last: 0 }
    }

    /// Takes a free place, for a recording with a number that the last ones did not have.
    fn take(&mut self) -> Option<kernel::Place> {
        let function = self.free.pop()?;
        self.last = if self.last == LAST_RECORDING { 1 } else { self.last + 1 };
        Some(kernel::Place { function, recording: self.last })
    }
}

impl Spare {
    /// Returns the places behind the first ones, which the configuration uses. `refused` is the reason why functions of
    /// programs cannot be probed, if there is one. With `confined`, the threads that read files can do nothing else.
    #[must_use]
    pub fn new(probes: Probes, configured: usize, refused: Option<String>, confined: bool) -> Self {
        let places = Mutex::new(Places::after(configured));
        Self(Arc::new(Shared { probes, refused, confined, places, finder: Mutex::default() }))
    }

    /// Lends a place; `None` if all are taken.
    #[must_use]
    pub fn lend(&self) -> Option<Lent> {
        let place = lock(&self.0.places).take()?;
        Some(Lent { spare: self.clone(), place })
    }
}

impl Lent {
    /// Returns the number of the function in the rows.
    #[must_use]
    pub const fn function(&self) -> u32 {
        self.place.function
    }

    /// Probes a function, that of a program in the files that these processes see. This blocks for up to some seconds.
    ///
    /// # Errors
    ///
    /// When the function cannot be probed: the reason, and the remedy. Nothing is probed then.
    pub fn measure(self, code: &Code, whom: Whom) -> Result<Measured, String> {
        let probes = match code {
            Code::Kernel(name) => vec![self.spare.0.probes.kernel(self.place, name)?],
            Code::Program { binary, symbol } => self.in_files(binary, symbol, whom)?,
        };
        Ok(Measured(Some(Attached { probes, lent: self })))
    }

    fn in_files(&self, binary: &str, symbol: &str, whom: Whom) -> Result<Vec<Probe>, String> {
        let Shared { refused, finder, .. } = &*self.spare.0;
        if let Some(why) = refused {
            return Err(why.clone());
        }
        let search = {
            let mut finder = lock(finder);
            if finder.is_none() {
                *finder = self.spare.start_finder(binary, symbol)?;
            }
            let finder = finder.as_mut().ok_or("no thread reads files")?;
            finder.aim(binary, symbol, whom);
            finder.search(HashSet::new())
        };
        let (mut probes, mut errors) = (Vec::new(), BTreeSet::new());
        // Files without the function take no room from those that have it.
        for found in search.new {
            if probes.len() == MOST_FILES {
                break;
            }
            match self.in_file(binary, &found) {
                Some(Ok(probe)) => probes.push(probe),
                Some(Err(why)) => _ = errors.insert(why),
                None => {}
            }
        }
        if !probes.is_empty() {
            return Ok(probes);
        }
        if search.is_denied {
            errors.insert("the files of most processes cannot be read (needs CAP_SYS_PTRACE)".into());
        }
        if search.is_late {
            errors.insert("its files could not be read in time (try again)".into());
        }
        if errors.is_empty() {
            errors.insert(format!("no process of the subject sees a file `{binary}`"));
        }
        Err(Vec::from_iter(errors).join("; "))
    }

    /// Probes the function in a file. Returns `None` if the process no longer sees the file.
    fn in_file(&self, binary: &str, found: &Found) -> Option<Result<Probe, String>> {
        let offset = match &found.offset {
            Ok(offset) => *offset,
            Err(why) => return Some(Err(why.clone())),
        };
        let file = open_below(found.process, binary).ok()?;
        let is_it = LayerFile::of(&file).ok()? == found.of.1;
        is_it.then(|| self.spare.0.probes.program(self.place, file.as_fd(), offset))
    }
}

impl Spare {
    fn start_finder(&self, binary: &str, symbol: &str) -> Result<Option<Finder>, String> {
        let code = Code::Program { binary: binary.to_owned(), symbol: symbol.to_owned() };
        let started = Finder::start(&[Function { name: String::new(), code }], self.0.confined);
        started.map_err(|error| format!("failed to start a thread that reads files: {error}"))
    }
}

impl Measured {
    /// Returns the number of begins of calls at this place, also of calls that do not count. It never falls.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn begun(&self) -> io::Result<u64> {
        let Some(Attached { lent, .. }) = &self.0 else { return Ok(0) };
        lent.spare.0.probes.begun(lent.place)
    }

    /// Ends the probes, and returns the place: nobody else may have it before its counts are read. This blocks until no
    /// program of the probes runs any more.
    #[must_use]
    pub fn end(mut self) -> Option<Lent> {
        let Attached { probes, lent } = self.0.take()?;
        drop(probes);
        Some(lent)
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let Some(attached) = self.0.take() else { return };
        // Without a thread, the probes end here, with the closure.
        let ended = thread::Builder::new().name("podperf-unprobe".into()).spawn(move || drop(attached));
        if let Err(error) = ended {
            debug!(%error, "no thread to end probes");
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Err(error) = self.spare.0.probes.forget_lent(self.place) {
            debug!(%error, "the calls of a recording that has ended are not removed");
        }
        lock(&self.spare.0.places).free.push(self.place.function);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_get_the_places_that_the_configuration_leaves_free() {
        let mut places = Places::after(MOST - 2);
        let first = places.take().unwrap();
        let second = places.take().unwrap();
        let last = u32::try_from(MOST).unwrap() - 1;
        assert_eq!(BTreeSet::from([first.function, second.function]), BTreeSet::from([last - 1, last]));
        assert_eq!((first.recording, second.recording, places.take()), (1, 2, None));
        places.free.push(last);
        places.last = LAST_RECORDING;
        assert_eq!(places.take(), Some(kernel::Place { function: last, recording: 1 }));
        assert_eq!(Places::after(MOST).take(), None);
    }
}
