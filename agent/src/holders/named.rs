//! Holders of programs by the names of their pods. Pure.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::table::Held;
use crate::{
    attribution::Snapshot,
    cgroups::{FlatPath, KubePath},
    model::ids::{ContainerId, PodRef},
    pods::{ContainerInfo, Pod},
};

/// The name of the holder of a program that no process holds.
const PINNED: &str = "(pinned)";
/// The most names of programs in a line for people.
const MOST_IN_A_LINE: usize = 20;

/// A program and one of its holders. Fields that do not apply are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NamedHolder {
    /// The name of the program.
    pub program: String,
    /// The tag of the program.
    pub tag: String,
    /// The type of the program.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The name of the process; `(pinned)` if no process holds the program.
    pub process: String,
    /// The process id.
    pub pid: Option<u32>,
    /// The namespace of the process's pod.
    pub namespace: String,
    /// The process's pod.
    pub pod: String,
    /// The process's container.
    pub container: String,
    /// The cgroup of a process that is in no known pod.
    pub cgroup: String,
}

impl NamedHolder {
    /// Returns the values of the labels of a series. The process id is left out: it changes with each restart.
    #[must_use]
    pub fn labels(&self) -> [&str; 8] {
        let Self { program, tag, kind, process, namespace, pod, container, cgroup, .. } = self;
        [program, tag, kind, process, namespace, pod, container, cgroup]
    }

    /// Returns the holder in words: the process, and the place where it runs.
    fn holder(&self) -> String {
        let Some(pid) = self.pid else { return self.process.clone() };
        let place = [&self.namespace, &self.pod, &self.container];
        let place = place.into_iter().filter(|name| !name.is_empty()).map(String::as_str).collect::<Vec<_>>();
        let place = if place.is_empty() { self.cgroup.clone() } else { place.join("/") };
        format!("{} (process {pid} in {place})", self.process)
    }
}

/// The names of the node's containers and pods.
struct Names<'a> {
    containers: HashMap<ContainerId, &'a ContainerInfo>,
    pods: HashMap<PodRef, &'a Pod>,
}

impl<'a> Names<'a> {
    fn of(snapshot: &'a Snapshot) -> Self {
        let containers = snapshot.rows.iter().filter_map(|row| row.container.as_deref());
        let pods = snapshot.pods.iter().flat_map(|pod| {
            let refs = [pod.uid.map(PodRef::Uid), pod.config_hash.map(PodRef::Static)];
            refs.into_iter().flatten().map(move |id| (id, &**pod))
        });
        Self { containers: containers.map(|info| (info.id, info)).collect(), pods: pods.collect() }
    }

    /// Adds the place of a process with this cgroup.
    fn place(&self, cgroup: &str, holder: NamedHolder) -> NamedHolder {
        let path = from_root(cgroup);
        let kube = KubePath::parse(path);
        let id = match &kube {
            Some(kube) => kube.container.as_ref().map(|container| container.id),
            None => FlatPath::parse(path).map(|flat| flat.id),
        };
        let container = id.and_then(|id| self.containers.get(&id));
        let pod = container.map(|info| &*info.pod).or_else(|| self.pods.get(&kube?.pod).copied());
        match pod {
            Some(pod) => NamedHolder {
                namespace: pod.namespace.to_string(),
                pod: pod.name.to_string(),
                container: container.map(|info| info.name.to_string()).unwrap_or_default(),
                ..holder
            },
            None => NamedHolder { cgroup: path.to_owned(), ..holder },
        }
    }
}

/// Returns the path from the root of the tree. An agent with a cgroup namespace of its own sees the way from its cgroup
/// up to the root as `/../..` before the path.
fn from_root(cgroup: &str) -> &str {
    let mut path = cgroup;
    while let Some(rest) = path.strip_prefix("/..")
        && (rest.is_empty() || rest.starts_with('/'))
    {
        path = rest;
    }
    if path.is_empty() { "/" } else { path }
}

/// Returns the holders with the names that the snapshot has. A pod without series of its own is a cgroup here, too.
#[must_use]
pub fn named(held: &[Held], snapshot: &Snapshot) -> Vec<NamedHolder> {
    let names = Names::of(snapshot);
    let named = |held: &Held| {
        let program = held.program.clone();
        let holder = NamedHolder { program: program.name, tag: program.tag, kind: held.kind, ..NamedHolder::default() };
        match &held.process {
            None => NamedHolder { process: PINNED.into(), ..holder },
            Some(process) => {
                let holder = NamedHolder { process: process.name.clone(), pid: Some(process.pid.0), ..holder };
                names.place(&process.cgroup, holder)
            }
        }
    };
    held.iter().map(named).collect()
}

/// Returns each holder in words, with its programs.
#[must_use]
pub fn by_holder(named: &[NamedHolder]) -> Vec<(String, String)> {
    let mut holders: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for one in named {
        holders.entry(one.holder()).or_default().push(&one.program);
    }
    let words = |(holder, mut programs): (String, Vec<&str>)| {
        programs.dedup();
        let more = programs.len().saturating_sub(MOST_IN_A_LINE);
        programs.truncate(MOST_IN_A_LINE);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        (holder, format!("{}{rest}", programs.join(", ")))
    };
    holders.into_iter().map(words).collect()
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::SystemTime};

    use super::*;
    use crate::{
        holders::{Process, ProgramName},
        model::ids::Pid,
    };

    fn held(program: &str, cgroup: Option<&str>) -> Held {
        let process = |cgroup: &str| Arc::new(Process { pid: Pid(7), name: "tracer".into(), cgroup: cgroup.into() });
        let program = ProgramName { name: program.into(), tag: "1".repeat(16) };
        Held { program, kind: "kprobe", process: cgroup.map(process) }
    }

    fn snapshot() -> Snapshot {
        let pods = vec![Arc::new(Pod::example())];
        Snapshot { pods, ..Snapshot::of_rows(SystemTime::UNIX_EPOCH, Vec::new()) }
    }

    #[test]
    fn a_holder_has_the_name_of_its_pod_or_the_path_of_its_cgroup() {
        let in_pod = "/kubepods/burstable/pod6ef0362e-e3b9-43a3-acdb-de4ba71f1fa4";
        let other = "/kubepods/burstable/pod00000000-e3b9-43a3-acdb-de4ba71f1fa4";
        let held = [
            held("a", Some(in_pod)),
            held("a", Some(&format!("/../../..{in_pod}"))),
            held("a", Some(other)),
            held("a", Some("/../system.slice/tracer.service")),
            held("a", None),
        ];
        let all = named(&held, &snapshot());
        let places: Vec<_> =
            all.iter().map(|it| [&it.process, &it.namespace, &it.pod, &it.cgroup].map(String::as_str)).collect();
        let expected = [
            ["tracer", "shop", "web", ""],
            ["tracer", "shop", "web", ""],
            ["tracer", "", "", other],
            ["tracer", "", "", "/system.slice/tracer.service"],
            ["(pinned)", "", "", ""],
        ];
        assert_eq!(places, expected);
    }

    #[test]
    fn a_path_loses_the_way_to_the_root_only() {
        for (path, expected) in [("/../..", "/"), ("/", "/"), ("", "/"), ("/..a/b", "/..a/b"), ("/a/../b", "/a/../b")] {
            assert_eq!(from_root(path), expected, "{path}");
        }
    }

    #[test]
    fn a_line_names_a_holder_once_with_some_of_its_programs() {
        let mut all = vec![held("a", None), held("b", None)];
        assert_eq!(by_holder(&named(&all, &snapshot())), [("(pinned)".to_owned(), "a, b".to_owned())]);
        all = (0..22).map(|number| held(&format!("p{number:02}"), Some("/x.slice"))).collect();
        let lines = by_holder(&named(&all, &snapshot()));
        let [(holder, programs)] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(holder, "tracer (process 7 in /x.slice)");
        assert!(programs.starts_with("p00, p01, ") && programs.ends_with("p19 and 2 more"), "{programs}");
    }
}
