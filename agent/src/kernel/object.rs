//! The maps and programs that run: from the object that was just loaded, or from pins of a previous agent.

use super::error::LoadError;
use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    maps::{Map, MapData},
    programs::{PerfEvent, Program, ProgramError, RawTracePoint, links::FdLink},
};
use tracing::debug;

use super::{
    descriptor,
    programs::{ADOPT, CARRY, COLLECT, ORDERS, SAMPLE, SEE},
    raw,
};

/// The name of the pin of [`ORDERS`], because bpffs allows no dots in names.
pub(super) const PINNED_ORDERS: &str = "orders";

/// The maps and programs. Maps and programs that are not pinned end when this is dropped.
#[derive(Default)]
pub(super) struct Object {
    ebpf: Option<Ebpf>,
    maps: BTreeMap<String, Map>,
    programs: BTreeMap<String, Pinned>,
    /// The links of the programs that this agent has attached.
    links: Vec<(&'static str, FdLink)>,
    /// The links of the iterators: reading one runs its program.
    iterators: Vec<(&'static str, OwnedFd)>,
}

/// A program that was opened from its pin.
enum Pinned {
    /// A program that this agent runs or attaches.
    Used(Box<Program>),
    /// A program that is attached already, and only inspected.
    Attached(OwnedFd),
}

impl Object {
    /// Wraps an object that was just loaded.
    pub(super) fn loaded(ebpf: Ebpf) -> Self {
        Self { ebpf: Some(ebpf), ..Self::default() }
    }

    /// Opens the pins in a directory.
    ///
    /// # Errors
    ///
    /// When a pin is missing, or is of another kind than expected.
    pub(super) fn pinned(directory: &Path) -> io::Result<Self> {
        let mut this = Self::default();
        for (name, path) in entries(&directory.join("maps"))? {
            let map = MapData::from_pin(path).and_then(Map::from_map_data).map_err(io::Error::other)?;
            let name = if name == PINNED_ORDERS { ORDERS.to_owned() } else { name };
            this.maps.insert(name, map);
        }
        for (name, path) in entries(&directory.join("programs"))? {
            let program = program_of(&name, &path).map_err(io::Error::other)?;
            this.programs.insert(name, program);
        }
        for name in [COLLECT, CARRY, ADOPT, SEE] {
            match descriptor::open_pin(&directory.join("links").join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                link => this.iterators.push((name, link?)),
            }
        }
        Ok(this)
    }

    /// Returns the path of the pin of a map.
    pub(super) fn pin_of(directory: &Path, map: &str) -> PathBuf {
        directory.join("maps").join(map)
    }

    /// Pins the maps.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(super) fn pin_maps(&self, directory: &Path) -> io::Result<()> {
        let directory = directory.join("maps");
        fs::create_dir(&directory)?;
        for (name, map) in self.maps() {
            let name = if name == ORDERS { PINNED_ORDERS } else { name };
            if let Some(data) = raw::data(map).filter(|_| !name.starts_with('.')) {
                data.pin(directory.join(name)).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// Pins the programs that are loaded, and their links: from then on the programs stay when this agent ends.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(super) fn pin_programs(&mut self, directory: &Path) -> io::Result<()> {
        let (programs, links) = (directory.join("programs"), directory.join("links"));
        fs::create_dir(&programs)?;
        fs::create_dir(&links)?;
        for (name, program) in self.ebpf.iter_mut().flat_map(Ebpf::programs_mut) {
            if program.fd().is_ok() {
                program.pin(programs.join(name)).map_err(io::Error::other)?;
            }
        }
        for (name, link) in self.links.drain(..) {
            link.pin(links.join(name)).map_err(io::Error::other)?;
        }
        self.iterators.iter().try_for_each(|(name, link)| descriptor::pin(link.as_fd(), &links.join(name)))
    }

    /// Attaches an iterator's program, which must be loaded already.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(super) fn attach_iterator(&mut self, name: &'static str) -> io::Result<()> {
        let link = self.descriptor(name).map(descriptor::attach_iterator).transpose()?;
        self.iterators.extend(link.map(|link| (name, link)));
        Ok(())
    }

    /// Runs an iterator's program over all tasks. Does nothing if the iterator is not attached.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(super) fn iterate(&self, name: &str) -> io::Result<()> {
        let Some((_, link)) = self.iterators.iter().find(|(of, _)| *of == name) else { return Ok(()) };
        let mut tasks = descriptor::iterate(link.as_fd())?;
        // The program writes no output; reading runs it. With many tasks, the kernel asks to read again (`EAGAIN`).
        loop {
            match io::copy(&mut tasks, &mut io::sink()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result.map(drop),
            }
        }
    }

    /// Detaches and unloads a program that this agent has loaded.
    pub(super) fn unload(&mut self, name: &str) {
        self.links.retain(|(of, _)| *of != name);
        let unloaded = match self.program_mut(name) {
            Some(Program::BtfTracePoint(program)) => program.unload(),
            Some(Program::KProbe(program)) => program.unload(),
            _ => Ok(()),
        };
        if let Err(error) = unloaded {
            // It was not loaded.
            debug!(program = name, %error, "not unloaded");
        }
    }

    pub(super) fn keep_attached(&mut self, name: &'static str, link: impl Into<FdLink>) {
        self.links.push((name, link.into()));
    }

    pub(super) fn map(&self, name: &str) -> Option<&Map> {
        self.maps.get(name).or_else(|| self.ebpf.as_ref()?.map(name))
    }

    pub(super) fn take_map(&mut self, name: &str) -> Option<Map> {
        self.maps.remove(name).or_else(|| self.ebpf.as_mut()?.take_map(name))
    }

    pub(super) fn maps(&self) -> impl Iterator<Item = (&str, &Map)> {
        let pinned = self.maps.iter().map(|(name, map)| (name.as_str(), map));
        pinned.chain(self.ebpf.iter().flat_map(Ebpf::maps))
    }

    /// Returns a program that this agent runs or attaches.
    pub(super) fn program(&self, name: &str) -> Option<&Program> {
        match self.programs.get(name) {
            Some(Pinned::Used(program)) => Some(program),
            Some(Pinned::Attached(_)) => None,
            None => self.ebpf.as_ref()?.program(name),
        }
    }

    pub(super) fn program_mut(&mut self, name: &str) -> Option<&mut Program> {
        match self.programs.get_mut(name) {
            Some(Pinned::Used(program)) => Some(program),
            Some(Pinned::Attached(_)) => None,
            None => self.ebpf.as_mut()?.program_mut(name),
        }
    }

    /// Returns the descriptor of a program; `None` if the program is not loaded.
    pub(super) fn descriptor(&self, program: &str) -> Option<BorrowedFd<'_>> {
        match self.programs.get(program) {
            Some(Pinned::Attached(fd)) => Some(fd.as_fd()),
            _ => Some(self.program(program)?.fd().ok()?.as_fd()),
        }
    }
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Object").field("pinned", &self.ebpf.is_none()).finish_non_exhaustive()
    }
}

fn entries(directory: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let entry = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.file_name().to_string_lossy().into_owned(), entry.path()))
    };
    fs::read_dir(directory)?.map(entry).collect()
}

/// Returns the descriptor of a map of the object.
pub(super) fn fd<'a>(object: &'a Object, name: &'static str) -> io::Result<BorrowedFd<'a>> {
    let data = object.map(name).and_then(raw::data);
    data.map(|data| data.fd().as_fd()).ok_or_else(|| io::Error::other(LoadError::Missing(name)))
}

/// Returns a program that this agent runs; `None` without one.
pub(super) fn raw_program<'a>(object: &'a Object, name: &str) -> Option<&'a RawTracePoint> {
    object.program(name)?.try_into().ok()
}

/// Returns the identity of the counts, see [`super::Sensors::identity`].
pub(super) fn identity(object: &Object) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let rows = object.map("rows").and_then(raw::data).and_then(|data| data.info().ok());
    format!("{} {}", boot.trim(), rows.map_or(0, |info| info.id()))
}

/// Opens the pin of a program by its kind, which follows from the name because a pin does not show it.
fn program_of(name: &str, path: &Path) -> Result<Pinned, ProgramError> {
    Ok(match name {
        "flush" | "forget" => Pinned::Used(Box::new(Program::RawTracePoint(RawTracePoint::from_pin(path)?))),
        SAMPLE => Pinned::Used(Box::new(Program::PerfEvent(PerfEvent::from_pin(path)?))),
        _ => Pinned::Attached(descriptor::open_pin(path).map_err(ProgramError::IOError)?),
    })
}
