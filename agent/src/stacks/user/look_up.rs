//! Looks up functions in files, and notes which debug files of servers would name more of them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use super::{Name, User, named};
use crate::{
    model::ids::Pid,
    stacks::{
        debuginfod::{DebugFile, Fetcher, Note},
        files::{Watched, hosts, open_below},
        maps::{Backing, Vma},
        objects::Object,
        process::{Process, Span},
        profile::Frame,
        reader::{self, Pulse, is_pod, owner_of},
        shares::Turn,
    },
};

/// The largest number of live processes that are tried for a file of a process that is gone.
const MAX_ASKED: usize = 8;

/// The addresses of one file whose functions must be looked up.
pub(super) struct Wanted {
    pub(super) object: Arc<Object>,
    /// The index of the mapping in the process that has the file.
    pub(super) span: usize,
    pub(super) addresses: BTreeSet<u64>,
}

impl User {
    /// Looks up functions, file by file, and remembers them; returns the functions of readable files.
    pub(super) fn look_up(
        &mut self,
        process: &Process,
        wanted: BTreeMap<u64, Wanted>,
        turn: &mut Turn,
    ) -> HashMap<(u64, u64), Name> {
        let mut found = HashMap::new();
        for (number, Wanted { object, span, addresses }) in wanted {
            let Some(Span { vma, .. }) = process.spans.get(span) else { continue };
            let Backing::File(mapping) = &vma.backing else { continue };
            let mut owners = vec![(process.pid, vma.clone())];
            owners.extend(self.others_with(&object));
            let hosts = if self.reader.avoids(&reader::Place::Host) { Vec::new() } else { hosts().to_vec() };
            let (path, place) = (mapping.path.clone(), reader::Place::Device(mapping.device.clone()));
            let addresses: Vec<u64> = addresses.into_iter().collect();
            let (asked, build_id, pid) = (addresses.clone(), object.build_id.clone(), process.pid);
            let debug_files = self.fetcher.as_ref().map(Fetcher::files);
            // A row of cgroups has a path; a pod has a name.
            let is_row = turn.owner.starts_with('/');
            let looked = self.run(turn, pid, place, move |pulse| {
                let (owner, file) = object.open(owners, &path, &hosts, pulse)?;
                let looked = object.functions(&file, owner, &path, &hosts, debug_files.as_ref(), &asked);
                let may_ask = looked.debug_file != DebugFile::Missing
                    || debug_files.is_some_and(|files| files.are_for_pods())
                    || is_row && is_of_node(&owner_of(pid)) && has_it(&hosts, &path, &object, pulse);
                Some((looked, may_ask))
            });
            let Some((looked, may_ask)) = looked.flatten() else { continue };
            if may_ask {
                self.note(build_id, looked.debug_file, turn);
            }
            for (address, name) in addresses.into_iter().zip(looked.names) {
                let name: Name = name.map(named);
                self.learn((number, address), &name);
                found.insert((number, address), name);
            }
        }
        found
    }

    /// Sends a note about the debug file of a build id.
    fn note(&self, build_id: Option<String>, debug_file: DebugFile, turn: &Turn) {
        if let (Some(fetcher), Some(build_id)) = (&self.fetcher, build_id)
            && debug_file != DebugFile::NotNeeded
        {
            fetcher.tell(Note { owner: turn.owner.clone(), build_id, debug_file });
        }
    }

    /// Forgets the names and frames of files whose debug files have arrived, and returns the build ids of these files.
    pub(super) fn forget_arrived(&mut self) -> HashSet<String> {
        let arrived = self.fetcher.as_ref().map(Fetcher::arrived).unwrap_or_default();
        if arrived.is_empty() {
            return arrived;
        }
        let has_arrived = |object: &Object| object.build_id.as_ref().is_some_and(|id| arrived.contains(id));
        // A process may keep an object that is no longer known.
        let spans = self.processes.values().flat_map(|process| &process.spans);
        let objects = spans.filter_map(|span| span.object.as_deref()).filter(|object| has_arrived(object));
        let mut numbers: HashSet<u64> = objects.map(|object| object.number).collect();
        numbers.extend(self.objects.numbers(has_arrived));
        self.names.retain(|(number, _), _| !numbers.contains(number));
        self.frames.retain(|_, named| !is_in(&named.frame, &arrived));
        arrived
    }

    /// Returns processes with the same file, in case the wanted process is gone.
    fn others_with(&self, object: &Object) -> Vec<(Pid, Vma)> {
        let has_it = |span: &&Span| span.object.as_ref().is_some_and(|other| other.number == object.number);
        let others = self.processes.values().filter_map(|process| Some((process, process.spans.iter().find(has_it)?)));
        others.take(MAX_ASKED).map(|(process, span)| (process.pid, span.vma.clone())).collect()
    }
}

/// Returns whether a frame is in a file with one of these build ids.
pub(in crate::stacks) fn is_in(frame: &Frame, build_ids: &HashSet<String>) -> bool {
    let build_id = frame.mapping.as_ref().and_then(|mapping| mapping.build_id.as_ref());
    build_id.is_some_and(|build_id| build_ids.contains(build_id))
}

/// Returns whether the owner of a process is no pod. A process without an owner is gone, and may have been in a pod.
fn is_of_node(owner: &str) -> bool {
    !owner.is_empty() && !is_pod(owner)
}

/// Returns whether a host has this very file at this path. It does not have the files of a container.
fn has_it(hosts: &[Pid], path: &str, object: &Object, pulse: &Pulse) -> bool {
    hosts.iter().any(|host| {
        pulse.at(reader::Place::Host);
        let file = pulse.beat().and_then(|()| open_below(*host, path));
        file.is_ok_and(|file| object.is(&Watched { file, pulse }))
    })
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        fs::File,
        process::Command,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::stacks::objects::Objects;

    #[test]
    fn a_process_in_a_pod_or_one_that_is_gone_is_not_of_the_node() {
        assert!(is_of_node("/") && is_of_node("/system.slice/sshd.service"));
        assert!(!is_of_node("pod 5e0f8a1c-0000-4000-8000-000000000000"));
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        assert!(!is_of_node(&owner_of(Pid(gone.id()))));
    }

    #[test]
    fn only_a_file_that_the_node_has_at_its_path_is_the_nodes_own() {
        let (program, own) = (env::current_exe().unwrap(), Pid(std::process::id()));
        let pulse = Pulse::new(Instant::now() + Duration::from_secs(3600), reader::Place::Own);
        let object = Objects::new().object(&Watched { file: File::open(&program).unwrap(), pulse: &pulse }).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("copy");
        std::fs::copy(&program, &copy).unwrap();
        let (path, copy) = (program.to_str().unwrap(), copy.to_str().unwrap());
        assert!(has_it(&[own], path, &object, &pulse) && !has_it(&[], path, &object, &pulse));
        // As a container has another file at the same path.
        assert!(!has_it(&[own], copy, &object, &pulse) && !has_it(&[own], "/none", &object, &pulse));
    }
}
