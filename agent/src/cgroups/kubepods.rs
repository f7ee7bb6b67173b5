//! From a cgroup's path to its place in Kubernetes: the pod, the container, the QoS class. Pure and total.
//!
//! A path comes from the tree, as the host sees it. The kubelet makes the directories down to the pod's, the runtime
//! those below; each of both has two ways to name them:
//!
//! ```text
//! cgroupfs   /kubepods/burstable/pod<uid>/<id>
//! systemd    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope
//! both       /system.slice/kubepods-burstable-pod<uid>.slice:cri-containerd:<id>
//! ```
//!
//! The last is systemd's way as a runtime hands it on, taken for a path by what does not know better: seen of containerd
//! with pods in user namespaces, without its `SystemdCgroup`, and with handlers other than runc. All may be below
//! anything: a `--cgroup-root`, which systemd's way repeats in each slice's name, a user's slice, the container that a
//! node of kind or minikube is.
//!
//! The outermost `kubepods` decides: a kubelet inside a pod is that pod's load. What a pod has that no known runtime
//! makes is the pod's own, such as the virtual machine that Kata Containers run it in. Refused is what the kubelet does
//! not make; what is not a pod's, such as `kubepods` itself and the QoS classes' directories; and pods whose manifest has
//! a UID of its own making.

use crate::model::ids::PodRef;
use crate::model::ids::{ContainerId, PodUid};

/// A cgroup's place in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubePath {
    /// The class by which the kubelet ranks the pod.
    pub qos: QosClass,
    /// The pod.
    pub pod: PodRef,
    /// The container; `None` for the pod's own directory, and what is in it but not in a container's.
    pub container: Option<ContainerDir>,
    /// How many bytes of the path lead to the directory that this kubelet's pods have in common, itself included: the
    /// one named `kubepods`, or where a container is outside of it, the one that it is in instead.
    pub root_len: usize,
    /// How many bytes of the path lead to the container's directory, or without one the pod's, itself included. A
    /// longer path is a cgroup that the container itself made, at any depth.
    pub dir_len: usize,
}

/// A directory that a runtime made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerDir {
    /// The container, or the pod's sandbox: nothing in a path tells them apart.
    pub id: ContainerId,
    /// Who made it.
    pub runtime: Runtime,
    /// What is in it.
    pub kind: DirKind,
}

/// Who made a container, as far as its directory tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Runtime {
    /// containerd.
    Containerd,
    /// CRI-O.
    CriO,
    /// Docker.
    Docker,
    /// The directory's name is the bare id, as containerd's and Docker's are under the cgroupfs driver.
    Unknown,
}

/// What is in a container's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DirKind {
    /// The container.
    Container,
    /// The runtime's process beside it: CRI-O's `conmon`.
    Monitor,
}

/// A pod's QoS class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QosClass {
    /// All its containers' requests are their limits. Such pods have no directory in common but `kubepods`.
    Guaranteed,
    /// Some have requests.
    Burstable,
    /// None has.
    BestEffort,
}

impl QosClass {
    /// As the kubelet names its directory, and the API, but for the case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Guaranteed => "guaranteed",
            Self::Burstable => "burstable",
            Self::BestEffort => "besteffort",
        }
    }

    /// The class that a level of its own stands for.
    fn of_level(level: &str) -> Option<Self> {
        [Self::Burstable, Self::BestEffort].into_iter().find(|qos| qos.name() == level)
    }
}

impl KubePath {
    /// The place of the cgroup with this path, which begins at the root of the cgroup2 tree with `/`; `None` when it is
    /// not in a pod.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let mut dirs = Dirs { path, len: 0 };
        // A `--cgroup-root` may be called `kubepods`, too: then there are two, one in the other.
        let mut root = None;
        let (root, driver, first) = loop {
            let dir = dirs.next()?;
            match (Driver::of_root(dir), root) {
                (Some(driver), _) => root = Some((dir, driver)),
                (None, Some((root, driver))) => break (root, driver, dir),
                (None, None) => {
                    if let Some(place) = Self::outside(dir) {
                        return Some(place);
                    }
                }
            }
        };
        let level = driver.level(root.name, first.name)?;
        let (qos, pod_dir, pod) = match QosClass::of_level(level) {
            Some(qos) => {
                let second = dirs.next()?;
                (qos, second, driver.pod(driver.level(first.name, second.name)?)?)
            }
            None => (QosClass::Guaranteed, first, driver.pod(level)?),
        };
        let place = Self { qos, pod, container: None, root_len: root.end(), dir_len: pod_dir.end() };
        let container = dirs.next().and_then(|dir| Some((driver.container(dir.name)?, dir.end())));
        Some(container.map_or(place, |(container, dir_len)| Self { container: Some(container), dir_len, ..place }))
    }

    /// The place of a directory named `<slice>:<runtime>:<id>`, which stands where the runtime happened to be.
    fn outside(dir: Dir<'_>) -> Option<Self> {
        let (slice, container) = dir.name.split_once(".slice:")?;
        let (runtime, id) = container.split_once(':')?;
        let mut levels = slice.rsplit('-');
        let pod = Driver::Systemd.pod(levels.next()?)?;
        let mut level = levels.next()?;
        let qos = QosClass::of_level(level);
        if qos.is_some() {
            level = levels.next()?;
        }
        if level != ROOT {
            return None;
        }
        let qos = qos.unwrap_or(QosClass::Guaranteed);
        let container = ContainerDir::new(runtime, id)?;
        Some(Self { qos, pod, container: Some(container), root_len: dir.start, dir_len: dir.end() })
    }
}

impl ContainerDir {
    /// From what comes before an id, without what is between them, and the id.
    fn new(prefix: &str, id: &str) -> Option<Self> {
        let (runtime, kind) = match prefix {
            "cri-containerd" => (Runtime::Containerd, DirKind::Container),
            "crio" => (Runtime::CriO, DirKind::Container),
            "crio-conmon" => (Runtime::CriO, DirKind::Monitor),
            "docker" => (Runtime::Docker, DirKind::Container),
            _ => return None,
        };
        Some(Self { id: id.parse().ok()?, runtime, kind })
    }
}

impl PodRef {
    /// The pod of a path that begins above the cgroup namespace of who reads it, as `/../../pod<uid>/<id>` does: such a path
    /// need not have the directory that all pods are in. `None` for any other path.
    #[must_use]
    pub fn outside(path: &str) -> Option<Self> {
        let dirs = path.strip_prefix("/../")?.split('/');
        dirs.into_iter().find_map(|dir| match dir.split_once(".slice") {
            Some((slice, _)) => Driver::Systemd.pod(slice.rsplit('-').next()?),
            None => Driver::Cgroupfs.pod(dir),
        })
    }
}

/// The kubelet's name for the directory that all its pods are in.
const ROOT: &str = "kubepods";

/// The kubelet's two ways to name its directories.
#[derive(Clone, Copy)]
enum Driver {
    /// By what they are.
    Cgroupfs,
    /// As systemd does: a slice repeats the names of those that it is in, with `-` between and `-` in none of them.
    Systemd,
}

impl Driver {
    /// The driver of the kubelet that made `dir` for all its pods; `None` when it is another directory.
    fn of_root(dir: Dir<'_>) -> Option<Self> {
        if dir.name == ROOT {
            return Some(Self::Cgroupfs);
        }
        let (mut parents, mut slice) = (dir.parents, dir.name.strip_suffix(".slice")?);
        if slice.rsplit('-').next() != Some(ROOT) {
            return None;
        }
        while let Some((parent, _)) = slice.rsplit_once('-') {
            parents = parents.strip_suffix(".slice")?.strip_suffix(parent)?.strip_suffix('/')?;
            slice = parent;
        }
        Some(Self::Systemd)
    }

    /// What a directory of the kubelet's adds to the name of the one that it is in.
    fn level<'a>(self, parent: &str, name: &'a str) -> Option<&'a str> {
        match self {
            Self::Cgroupfs => Some(name),
            Self::Systemd => {
                name.strip_suffix(".slice")?.strip_prefix(parent.strip_suffix(".slice")?)?.strip_prefix('-')
            }
        }
    }

    fn pod(self, level: &str) -> Option<PodRef> {
        let text = level.strip_prefix("pod")?;
        let uid = match self {
            Self::Cgroupfs => text.parse().ok(),
            Self::Systemd => PodUid::from_systemd(text),
        };
        uid.map(PodRef::Uid).or_else(|| text.parse().ok().map(PodRef::Static))
    }

    /// The container of a directory in a pod's. A runtime may keep to cgroupfs where the kubelet uses systemd, and
    /// CRI-O does so for sandboxes without a process; it cannot be the other way around.
    fn container(self, name: &str) -> Option<ContainerDir> {
        if let Ok(id) = name.parse() {
            return Some(ContainerDir { id, runtime: Runtime::Unknown, kind: DirKind::Container });
        }
        let scope = name.strip_suffix(".scope");
        let (prefix, id) = scope.unwrap_or(name).rsplit_once('-')?;
        let container = ContainerDir::new(prefix, id)?;
        match (self, scope) {
            (Self::Systemd, Some(_)) => Some(container),
            (_, None) if container.runtime == Runtime::CriO => Some(container),
            _ => None,
        }
    }
}

/// One directory of a path.
#[derive(Clone, Copy)]
struct Dir<'a> {
    /// The path of the one that it is in, without a `/` at the end.
    parents: &'a str,
    name: &'a str,
    start: usize,
}

impl Dir<'_> {
    /// How many bytes of the path lead to it, itself included.
    const fn end(&self) -> usize {
        self.start + 1 + self.name.len()
    }
}

/// The directories of a path from the outermost.
struct Dirs<'a> {
    path: &'a str,
    /// How many bytes of the path were handed out.
    len: usize,
}

impl<'a> Iterator for Dirs<'a> {
    type Item = Dir<'a>;

    fn next(&mut self) -> Option<Dir<'a>> {
        let (parents, rest) = self.path.split_at(self.len);
        let rest = rest.strip_prefix('/')?;
        let dir = Dir { parents, name: rest.split('/').next()?, start: self.len };
        self.len = dir.end();
        Some(dir)
    }
}

#[cfg(test)]
#[path = "kubepods_tests.rs"]
mod tests;
