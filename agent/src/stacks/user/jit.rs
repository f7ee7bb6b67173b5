//! Names functions of JIT compilers by the maps that these write. A map that has not changed, or that several processes
//! share, is read once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    os::unix::fs::MetadataExt as _,
    sync::Arc,
};

use super::{FRAME_BYTES, InMemory, Name, Named, Turn, User};
use crate::{
    model::ids::Pid,
    stacks::{
        counts::Cause,
        demangle::demangle,
        files::{Watched, open_below},
        objects::Object,
        perf_map,
        process::OwnIds,
        profile::FrameKind,
        reader,
        unwind::Place,
    },
};

/// A JIT compiler's map with the addresses to look up, and a process that has the map.
struct WantedMap {
    map: Arc<Object>,
    pid: Pid,
    addresses: BTreeSet<u64>,
}

impl User {
    /// Names addresses in anonymous memory of these processes, by their current maps.
    pub(super) fn name_memory(
        &mut self,
        in_memory: &[(Pid, Vec<InMemory>)],
        turn: &mut Turn,
        frames: &mut HashMap<Pid, HashMap<u64, Named>>,
    ) {
        let (mut maps, mut wanted) = (HashMap::new(), BTreeMap::new());
        for (pid, calls) in in_memory {
            let map = self.map_of(*pid, turn);
            if let Some(Some(map)) = &map {
                let calls = calls.iter().map(|it| it.call);
                let new: Vec<u64> = calls.filter(|call| self.names.get(&(map.number, *call)).is_none()).collect();
                if !new.is_empty() {
                    let of_map = || WantedMap { map: Arc::clone(map), pid: *pid, addresses: BTreeSet::new() };
                    wanted.entry(map.number).or_insert_with(of_map).addresses.extend(new);
                }
            }
            maps.insert(*pid, map);
        }
        let read: HashMap<_, _> = wanted.into_values().flat_map(|wanted| self.read_map(wanted, turn)).collect();
        for (pid, calls) in in_memory {
            let map = maps.get(pid).and_then(Option::as_ref);
            for InMemory { call, start } in calls {
                let name = match map {
                    Some(Some(map)) => {
                        let place = (map.number, *call);
                        read.get(&place).cloned().or_else(|| self.names.get(&place).cloned())
                    }
                    // The process has no map.
                    Some(None) => Some(None),
                    None => None,
                };
                let outcome = match &name {
                    Some(Some(_)) => Ok(()),
                    Some(None) => Err(Cause::NoSymbol),
                    None => Err(Cause::FileUnreadable),
                };
                let frame = self.frame(call - start, None, name.flatten());
                let named = Named { frame, place: Place::Memory, outcome, lasts: false, cost: FRAME_BYTES };
                frames.entry(*pid).or_default().insert(*call, named);
            }
        }
    }

    /// Returns the map of a process' JIT compiler: `None` if the file could not be looked for in this turn,
    /// `Some(None)` if there is no map.
    fn map_of(&mut self, pid: Pid, turn: &mut Turn) -> Option<Option<Arc<Object>>> {
        let Some(own) = OwnIds::of(pid) else { return Some(None) };
        let objects = Arc::clone(&self.objects);
        self.run(turn, pid, reader::Place::Own, move |pulse| {
            let file = open_below(pid, &map_path(own)).ok().filter(|file| is_trusted(file, own))?;
            objects.object(&Watched { file, pulse }).ok()
        })
    }

    fn read_map(&mut self, wanted: WantedMap, turn: &mut Turn) -> HashMap<(u64, u64), Name> {
        let WantedMap { map, pid, addresses } = wanted;
        let (Some(own), bytes) = (OwnIds::of(pid), map.id.size.min(perf_map::MAX_BYTES)) else { return HashMap::new() };
        let Some(left) = turn.map_bytes.checked_sub(bytes) else { return HashMap::new() };
        turn.map_bytes = left;
        let addresses: Vec<u64> = addresses.into_iter().collect();
        let (number, asked) = (map.number, addresses.clone());
        let names = self.run(turn, pid, reader::Place::Own, move |pulse| {
            let file = Watched { file: open_below(pid, &map_path(own)).ok()?, pulse };
            let names = map.is(&file).then(|| perf_map::names(&file, &asked))?;
            Some(
                names
                    .into_iter()
                    .map(|name| name.map(|name| (demangle(&name).into(), FrameKind::Native)))
                    .collect::<Vec<Name>>(),
            )
        });
        let names = names.flatten().unwrap_or_default();
        let named = addresses.into_iter().map(|address| (number, address)).zip(names);
        named.inspect(|(place, name)| self.learn(*place, name)).collect()
    }
}

/// Returns whether the owner of a file may name the functions of a process: the process itself, or root. Others may write
/// to the directory of the maps.
fn is_trusted(file: &File, process: OwnIds) -> bool {
    file.metadata().is_ok_and(|metadata| [0, process.user].contains(&metadata.uid()))
}

/// Returns the path at which a process' JIT compiler writes its map.
fn map_path(process: OwnIds) -> String {
    format!("/tmp/perf-{}.map", process.pid)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::chown,
        path::PathBuf,
        process::{Child, Command},
        time::{Duration, Instant},
    };

    use super::*;
    use crate::stacks::reader::Reader;

    const SIZE: u64 = 1 << 20;

    /// Processes that share one map by hard links; the processes end and the links are removed on drop.
    struct Linked(Vec<(Child, PathBuf)>, tempfile::TempDir);

    impl Linked {
        fn new(count: usize) -> Self {
            let directory = tempfile::tempdir_in("/tmp").unwrap();
            let link = |_| {
                let child = Command::new("sleep").arg("1000").spawn().unwrap();
                let path = PathBuf::from(format!("/tmp/perf-{}.map", child.id()));
                fs::write(directory.path().join("map"), map("first")).unwrap();
                fs::remove_file(&path).ok();
                fs::hard_link(directory.path().join("map"), &path).unwrap();
                (child, path)
            };
            Self((0..count).map(link).collect(), directory)
        }

        fn change(&self, name: &str) {
            fs::write(self.1.path().join("map"), map(name)).unwrap();
        }

        /// Returns each process with a different address.
        fn addresses(&self, from: u64) -> Vec<(Pid, Vec<InMemory>)> {
            let pids = self.0.iter().map(|(child, _)| Pid(child.id()));
            pids.zip(from..).map(|(pid, call)| (pid, vec![InMemory { call, start: 0x1000 }])).collect()
        }
    }

    impl Drop for Linked {
        fn drop(&mut self) {
            for (child, path) in &mut self.0 {
                child.kill().ok();
                child.wait().ok();
                fs::remove_file(path).ok();
            }
        }
    }

    /// Returns a map with one function that covers all addresses. The map's size depends on the name.
    fn map(name: &str) -> Vec<u8> {
        let mut map = format!("0 7fffffffffff {name}\n").into_bytes();
        map.resize(usize::try_from(SIZE).unwrap() + name.len(), b'\n');
        map
    }

    /// Returns the name of all frames, which must be equal, and the rest of `map_bytes`.
    fn name(user: &mut User, in_memory: &[(Pid, Vec<InMemory>)], map_bytes: u64) -> (Result<String, Cause>, u64) {
        let deadline = Instant::now() + Duration::from_secs(3600);
        let mut turn = Turn { owner: "a".into(), deadline, map_bytes, late: false };
        let mut frames = HashMap::new();
        user.name_memory(in_memory, &mut turn, &mut frames);
        assert!(frames.values().flat_map(HashMap::values).all(|named| named.frame.address < 0x2000), "{frames:?}");
        let name = |named: &Named| named.outcome.map(|()| named.frame.functions[0].name.to_string());
        let mut names: Vec<_> = frames.values().flat_map(HashMap::values).map(name).collect();
        assert_eq!(names.len(), in_memory.len());
        names.dedup();
        let [name] = &names[..] else { panic!("{names:?}") };
        (name.clone(), turn.map_bytes)
    }

    #[test]
    fn a_map_is_read_once_for_all_who_have_it_until_it_changes() {
        let linked = Linked::new(14);
        let mut user = User::new(Reader::start(true).unwrap());
        let of_map = SIZE + 5;
        let addresses = linked.addresses(0x1000);
        assert_eq!(name(&mut user, &addresses, of_map - 1), (Err(Cause::FileUnreadable), of_map - 1));
        assert_eq!(name(&mut user, &addresses, of_map + 1), (Ok("first".into()), 1));
        assert_eq!(name(&mut user, &addresses, 0), (Ok("first".into()), 0));
        // Other addresses are in the same file, which would have to be read again.
        assert_eq!(name(&mut user, &linked.addresses(0x2000), 0), (Err(Cause::FileUnreadable), 0));
        linked.change("second");
        assert_eq!(name(&mut user, &addresses, 0), (Err(Cause::FileUnreadable), 0));
        assert_eq!(name(&mut user, &addresses, 2 * of_map), (Ok("second".into()), of_map - 1));
        // Another user may not name functions of root.
        let owned_by = |user: u32| chown(linked.1.path().join("map"), Some(user), None).unwrap();
        owned_by(65534);
        assert_eq!(name(&mut user, &addresses, 2 * of_map), (Err(Cause::NoSymbol), 2 * of_map));
        owned_by(0);
        assert_eq!(name(&mut user, &addresses, 2 * of_map).0, Ok("second".into()));
    }
}
