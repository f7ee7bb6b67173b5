//! Finds the place of a cgroup in Kubernetes from its path: the pod, the container, the QoS class. Pure and total.
//!
//! A path comes from the tree, as the host sees it. The kubelet makes the directories down to the pod's directory, and
//! the runtime makes those below. Both name their directories by the cgroupfs or the systemd driver:
//!
//! ```text
//! cgroupfs   /kubepods/burstable/pod<uid>/<id>
//! systemd    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope
//! both       /system.slice/kubepods-burstable-pod<uid>.slice:cri-containerd:<id>
//! ```
//!
//! The third form is a systemd path as a runtime passes it on, taken for a plain path by a component that cannot parse
//! it. It occurs with containerd: for pods in user namespaces, without its `SystemdCgroup`, and with handlers other
//! than runc. Each form may be below other directories: a `--cgroup-root`, which systemd's form repeats in each slice's
//! name, a user's slice, or the container of a kind or minikube node.
//!
//! The outermost `kubepods` decides: a kubelet inside a pod is load of that pod. A directory of a pod that no known
//! runtime makes is the pod's own, such as the virtual machine of Kata Containers. The parser rejects paths that the
//! kubelet does not make. It also rejects directories outside of all pods, such as `kubepods` itself and the
//! directories of QoS classes, and pods whose manifest sets a UID of its own.

use crate::model::ids::PodRef;
use crate::model::ids::{ContainerId, PodUid};

/// A cgroup's place in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubePath {
    /// The QoS class by which the kubelet ranks the pod.
    pub qos: QosClass,
    /// The pod.
    pub pod: PodRef,
    /// The container; `None` for the pod's own directory, and for directories in it outside of any container.
    pub container: Option<ContainerDir>,
    /// Length of the path to the directory that all pods of this kubelet have in common, itself included, in bytes.
    /// This is the directory named `kubepods`, or for a container outside of it, the container's parent directory.
    pub root_len: usize,
    /// Length of the path to the container's directory, or to the pod's without a container, itself included, in bytes.
    /// A longer path is a cgroup that the container itself made, at any depth.
    pub dir_len: usize,
}

/// A directory that a runtime made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerDir {
    /// Id of the container, or of the pod's sandbox: a path does not show the difference.
    pub id: ContainerId,
    /// The runtime that made the directory.
    pub runtime: Runtime,
    /// Content of the directory.
    pub kind: DirKind,
}

/// The runtime that made a container, as far as its directory shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Runtime {
    /// containerd.
    Containerd,
    /// CRI-O.
    CriO,
    /// Docker.
    Docker,
    /// Unknown, because the directory's name is the bare id, as containerd and Docker name it under the cgroupfs
    /// driver.
    Unknown,
}

/// Content of a container's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DirKind {
    /// The container.
    Container,
    /// The runtime's process beside the container: CRI-O's `conmon`.
    Monitor,
}

/// A pod's QoS class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum QosClass {
    /// The requests of all its containers equal their limits. Such pods have no common directory except `kubepods`.
    Guaranteed,
    /// Some containers have requests.
    Burstable,
    /// No container has requests.
    BestEffort,
}

impl QosClass {
    /// Returns the name of the kubelet's directory for the class, which is also the API's name in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the class of a directory level. The guaranteed class has no level.
    fn of_level(level: &str) -> Option<Self> {
        [Self::Burstable, Self::BestEffort].into_iter().find(|qos| qos.name() == level)
    }
}

impl KubePath {
    /// Returns the place of the cgroup with this path, which begins with `/` at the root of the cgroup2 tree; `None`
    /// for a path outside of all pods.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let mut dirs = Dirs { path, len: 0 };
        // A `--cgroup-root` may be called `kubepods`, too: then one `kubepods` is inside the other.
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

    /// Returns `true` for a directory in which the kubelet makes those of pods: `kubepods`, or the directory of a QoS
    /// class.
    #[must_use]
    pub fn is_parent_of_pods(path: &str) -> bool {
        let mut root = None;
        for dir in (Dirs { path, len: 0 }) {
            match (Driver::of_root(dir), root) {
                (Some(driver), _) => root = Some((dir, driver)),
                (None, Some((root, driver))) => {
                    let qos = driver.level(root.name, dir.name).and_then(QosClass::of_level);
                    return qos.is_some() && dir.end() == path.len();
                }
                (None, None) if Self::outside(dir).is_some() => return false,
                (None, None) => {}
            }
        }
        root.is_some()
    }

    /// Returns the place of a directory named `<slice>:<runtime>:<id>`. Its parent depends on the runtime's cgroup.
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
    /// Parses the part of a name before the id, without the separator, and the id.
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
    /// Returns the pod of a path that begins above the cgroup namespace of its reader, such as `/../../pod<uid>/<id>`.
    /// Such a path may lack the common directory of all pods. `None` for any other path.
    #[must_use]
    pub fn outside(path: &str) -> Option<Self> {
        let dirs = path.strip_prefix("/../")?.split('/');
        dirs.into_iter().find_map(|dir| match dir.split_once(".slice") {
            Some((slice, _)) => Driver::Systemd.pod(slice.rsplit('-').next()?),
            None => Driver::Cgroupfs.pod(dir),
        })
    }
}

/// The kubelet's name for the common directory of all its pods.
const ROOT: &str = "kubepods";

/// The kubelet's two ways to name its directories.
#[derive(Clone, Copy)]
enum Driver {
    /// Plain names, such as `burstable`.
    Cgroupfs,
    /// Slice names as in systemd: a slice repeats the names of its parent slices, joined with `-`. A single name
    /// contains no `-`.
    Systemd,
}

impl Driver {
    /// Returns the driver of the kubelet that made `dir` as the common directory of its pods; `None` for any other
    /// directory.
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

    /// Returns the part that a directory of the kubelet adds to the name of its parent directory.
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

    /// Returns the container of a directory in a pod's directory. A runtime may use cgroupfs names where the kubelet
    /// uses systemd, and CRI-O does so for sandboxes without a process. The opposite cannot happen.
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
    /// Path of the parent directory, without a `/` at the end.
    parents: &'a str,
    name: &'a str,
    start: usize,
}

impl Dir<'_> {
    /// Returns the length of the path up to the directory, itself included, in bytes.
    const fn end(&self) -> usize {
        self.start + 1 + self.name.len()
    }
}

/// The directories of a path, from the outermost.
struct Dirs<'a> {
    path: &'a str,
    /// Length of the path that was already returned, in bytes.
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
