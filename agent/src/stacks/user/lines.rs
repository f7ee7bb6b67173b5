//! Finds the files of a recording's frames in the processes that are known.

use std::{collections::HashMap, sync::Arc};

use super::User;
use crate::stacks::{
    lines::{FilePlace, WantedFile, WantedLines},
    process::{Life, Process},
};

/// The largest number of mappings through which a file is tried.
const MAX_PLACES: usize = 8;

impl User {
    /// Returns the wanted files that processes of their owners have mapped, or had mapped when they were last seen.
    pub(in crate::stacks) fn files_of(&self, wanted: WantedLines) -> Vec<WantedFile> {
        let mut files = wanted.into_files();
        let processes = self.processes.values().filter(|process| files.contains_key(&process.owner));
        let lives = |process: &&Process| Life::of(process.pid) == Some(process.life);
        let (living, gone): (Vec<_>, Vec<_>) = processes.partition(lives);
        let living = living.into_iter().map(|process| (process, Some((process.pid, process.life))));
        for (process, lives_as) in living.chain(gone.into_iter().map(|process| (process, None))) {
            let Some(files) = files.get_mut(&process.owner) else { continue };
            for span in &process.spans {
                if let (Some(mapping), Some(object)) = (&span.mapping, &span.object)
                    && let Some(file) = files.get_mut(mapping)
                {
                    file.cgroups.insert(process.cgroup.clone());
                    if file.places.len() < MAX_PLACES {
                        let (object, vma) = (Arc::clone(object), span.vma.clone());
                        file.places.push(FilePlace { object, vma, process: lives_as });
                    }
                }
            }
        }
        let files = files.into_values().flat_map(HashMap::into_values).filter(|file| !file.places.is_empty());
        let mut files: Vec<_> = files.collect();
        for file in files.iter_mut().filter(|file| file.is_of_several()) {
            file.places.iter_mut().for_each(|place| place.process = None);
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::{Read as _, Write as _},
        process::{Child, Command, Stdio},
        time::{Duration, Instant},
    };

    use super::*;
    use crate::{
        model::ids::Pid,
        stacks::{
            FrameOwner,
            elf::example,
            files::Watched,
            maps,
            objects::Objects,
            profile::{Frame, FrameKind},
            reader::{Place, Pulse, Reader},
        },
    };

    /// Two processes with files of their own that look the same.
    struct Case {
        user: User,
        /// A frame in both files.
        frame: Arc<Frame>,
        child: Child,
    }

    impl Drop for Case {
        fn drop(&mut self) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }

    impl Case {
        /// Makes this process and its child belong to these owners, and to these cgroups.
        fn new(owners: [&str; 2], cgroups: [&str; 2]) -> Self {
            let mut cat = Command::new("cat");
            let mut child = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            // A process has a new life once it runs its program, which may be after `spawn` returns.
            child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            let mut user = User::new(Reader::start(true).unwrap());
            let directory = tempfile::tempdir().unwrap();
            let pulse = Pulse::new(Instant::now() + Duration::from_secs(3600), Place::Own);
            let objects = Objects::new();
            let mut mapping = None;
            for (at, pid) in [std::process::id(), child.id()].into_iter().enumerate() {
                let path = directory.path().join(pid.to_string());
                fs::write(&path, example::file()).unwrap();
                let object = objects.object(&Watched { file: File::open(&path).unwrap(), pulse: &pulse }).unwrap();
                let vmas = maps::parse(b"1000-2000 r-xp 0 0:1 9 /bin/cart\n");
                let life = Life::of(Pid(pid)).unwrap();
                let mut process = Process::new(Pid(pid), life, vmas, None, &mut 0);
                process.spans[0].identify(Some(object));
                (process.owner, process.cgroup) = (owners[at].into(), cgroups[at].into());
                mapping.clone_from(&process.spans[0].mapping);
                user.keep(process);
            }
            let frame = Frame { address: 1, kind: FrameKind::Native, mapping, functions: vec![] };
            Self { user, frame: Arc::new(frame), child }
        }

        /// Returns the processes through which the file of a frame of this subject is read.
        fn processes(&self, subject: &str) -> Vec<Option<u32>> {
            let mut wanted = WantedLines::default();
            wanted.add(FrameOwner::named(subject), [&self.frame].into_iter());
            let files = self.user.files_of(wanted);
            files.iter().flat_map(|file| &file.places).map(|place| place.process.map(|(pid, _)| pid.0)).collect()
        }
    }

    #[test]
    fn a_file_that_looks_the_same_in_another_pod_gives_no_lines() {
        let mut case = Case::new(["shop/cart", "shop/evil"], ["pod 1", "pod 2"]);
        assert_eq!(case.processes("shop/cart/app"), [Some(std::process::id())]);
        assert_eq!(case.processes("shop/evil/app"), [Some(case.child.id())]);
        assert!(case.processes("shop/other/app").is_empty());
        // Another process may get the id of one that is gone.
        case.child.kill().unwrap();
        case.child.wait().unwrap();
        assert_eq!(case.processes("shop/evil/app"), [None]);
    }

    #[test]
    fn a_row_with_several_pods_in_it_has_lines_of_the_nodes_own_files_alone() {
        let case = Case::new(["/kubepods", "/kubepods"], ["pod 1", "pod 2"]);
        assert_eq!(case.processes("/kubepods"), [None, None]);
        let case = Case::new(["/kubepods", "/kubepods"], ["pod 1", "pod 1"]);
        assert!(case.processes("/kubepods").iter().all(Option::is_some));
        // A pod that was made again has the name of the one before.
        let case = Case::new(["shop/db-0", "shop/db-0"], ["pod 1", "pod 2"]);
        assert!(case.processes("shop/db-0/app").iter().all(Option::is_some));
    }
}
