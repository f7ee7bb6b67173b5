//! Finds the levels of the tree in which cgroups have names of their own, for the kernel side. Pure.
//!
//! A container or a user may make any number of cgroups. The kernel side counts those below the levels of names in the
//! container's or user's cgroup once its table is half full. So a level here is one in which only root makes cgroups.

use std::collections::{BTreeMap, HashMap, HashSet};

use podperf_ebpf::abi;

use super::{FlatPath, KubePath, Place};
use crate::model::ids::CgroupId;

/// The first levels of the tree, in which services, and containers outside of `kubepods`, are found.
const FIRST: usize = 2;
/// The number of cgroups for which the kernel side has room.
const MOST: usize = abi::PODPERF_NAMED_PARTS as usize;

/// Returns cgroups with the number of levels below them in which cgroups have names: the root of the tree, the
/// directories of pods and of containers outside of `kubepods`, the directories above these, and containers at level 1.
/// `depth` is the number of levels in which cgroups have series.
#[must_use]
pub fn named_levels<'a, C>(cgroups: C, depth: usize) -> BTreeMap<CgroupId, u64>
where
    C: Iterator<Item = (CgroupId, &'a Place)> + Clone,
{
    let outside: HashSet<&str> = cgroups.clone().filter_map(|(_, place)| parent_outside(place)).collect();
    let parent = |(_, place): (CgroupId, &'a Place)| Some((&*place.path, levels_below(&place.path, &outside)?));
    let parents: HashMap<&str, usize> = cgroups.clone().filter_map(parent).collect();
    let above: HashSet<&str> = parents.keys().flat_map(|path| directories_above(path)).collect();
    let (mut levels, mut closed) = (BTreeMap::new(), BTreeMap::new());
    for (id, place) in cgroups {
        let path = &*place.path;
        let level = path.matches('/').count();
        let of_series = depth.saturating_sub(level);
        if path == "/" {
            levels.insert(id, depth.max(FIRST) as u64);
        } else if let Some(below) = parents.get(path) {
            levels.insert(id, of_series.max(*below) as u64);
        } else if above.contains(path) {
            levels.insert(id, of_series.max(1) as u64);
        } else if level == 1 && (place.is_container() || path.starts_with("/lxc.")) {
            closed.insert(id, 0);
        }
    }
    // The root of the tree has the smallest id. Many containers must not displace the directories of pods. Those that
    // are there longest come first: after each change of the levels the programs find all outer cgroups again.
    levels.into_iter().chain(closed).take(MOST).collect()
}

/// Returns the number of levels below a directory in which pods and containers are; `None` for other directories, and
/// where users may make directories.
fn levels_below(path: &str, outside: &HashSet<&str>) -> Option<usize> {
    if path.contains("kubepods") && KubePath::is_parent_of_pods(path) {
        return (!FlatPath::is_users(path)).then_some(2);
    }
    // Only the runtime makes directories in its own service.
    let of_runtime = path.strip_suffix(".service").unwrap_or(path);
    (outside.contains(path) && !FlatPath::is_users(of_runtime)).then_some(1)
}

/// Returns the directories above a path, without the root of the tree.
fn directories_above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').skip(1).map(|(at, _)| &path[..at])
}

/// Returns the parent directory of a container that is outside of its pod's directory.
fn parent_outside(place: &Place) -> Option<&str> {
    let kube = place.kube.as_ref().filter(|kube| kube.dir_len == place.path.len())?;
    let (parent, own) = place.path.split_at_checked(kube.root_len)?;
    own.contains(".slice:").then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cgroups::Tree, kernel::records::CgroupRecord};

    /// Returns the levels of a tree with these paths, which have the ids from 1 on.
    fn levels(paths: &[&str], depth: usize) -> Vec<(u64, u64)> {
        let mut tree = Tree::default();
        for (id, path) in (1..).zip(paths) {
            tree.apply(CgroupRecord::Named(CgroupId(id), Some((*path).to_owned())), 0);
        }
        named_levels(tree.cgroups(), depth).into_iter().map(|(id, named)| (id.0, named)).collect()
    }

    #[test]
    fn services_and_what_has_series_have_names() {
        let paths = ["/", "/system.slice", "/system.slice/a.service", "/system.slice/a.service/kubepods"];
        assert_eq!(levels(&paths, 1), [(1, 2)]);
        assert_eq!(levels(&paths, 3), [(1, 3)]);
        assert_eq!(levels(&["/", "/kubepods", "/kubepods/burstable"], 5), [(1, 5), (2, 4), (3, 3)]);
    }

    #[test]
    fn pods_and_containers_have_names_wherever_the_kubelet_makes_them() {
        let systemd = [
            "/",
            "/kubepods.slice",
            "/kubepods.slice/kubepods-burstable.slice",
            "/kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice",
        ];
        assert_eq!(levels(&systemd, 2), [(1, 2), (2, 2), (3, 2)]);
        // The names of others end where they did: only the way to the pods is longer.
        let deep = ["/", "/a", "/a/b", "/a/b/kubepods", "/a/b/kubepods/besteffort", "/a/b/kubepods/other", "/c"];
        assert_eq!(levels(&deep, 2), [(1, 2), (2, 1), (3, 1), (4, 2), (5, 2)]);
        assert_eq!(levels(&deep, 4), [(1, 4), (2, 3), (3, 2), (4, 2), (5, 2)]);
    }

    #[test]
    fn containers_beside_the_pods_have_names() {
        let id = "4f1c6a0b9d8e7f3a2b5c4d6e8f0a1b3c5d7e9f1a3b5c7d9e0f2a4b6c8d0e1f2a";
        let name = format!("kubepods-burstable-pod01234567_89ab_cdef_0123_456789abcdef.slice:cri-containerd:{id}");
        let (service, other) = ("/system.slice/containerd.service", "/system.slice/other.service");
        let container = format!("/system.slice/docker-{id}.scope");
        let [in_service, in_container] = [service, &container].map(|parent| format!("{parent}/{name}"));
        let paths = ["/", service, &in_service, other, &container, &in_container];
        assert_eq!(levels(&paths, 2), [(1, 2), (2, 1)]);
    }

    #[test]
    fn the_names_in_a_container_at_level_1_end_there() {
        let id = "4f1c6a0b9d8e7f3a2b5c4d6e8f0a1b3c5d7e9f1a3b5c7d9e0f2a4b6c8d0e1f2a";
        let (flat, inner) = (format!("/crio-{id}"), format!("/crio-{id}/inner"));
        let paths = ["/", "/lxc.payload.own", "/lxc.payload.own/inner", &flat, &inner, "/system.slice", "/user.slice"];
        assert_eq!(levels(&paths, 2), [(1, 2), (2, 0), (4, 0)]);
    }

    #[test]
    fn many_containers_displace_no_directory_of_pods() {
        let containers: Vec<_> = (0..2 * MOST).map(|number| format!("/lxc.payload.{number}")).collect();
        let paths: Vec<_> =
            ["/"].into_iter().chain(containers.iter().map(String::as_str)).chain(["/kubepods"]).collect();
        let found = levels(&paths, 2);
        assert_eq!((found.len(), found[0], found[MOST - 1]), (MOST, (1, 2), (paths.len() as u64, 2)));
        let first: Vec<u64> = found[1..MOST - 1].iter().map(|(id, _)| *id).collect();
        assert_eq!(first, (2..MOST as u64).collect::<Vec<_>>(), "those that are there longest");
    }

    #[test]
    fn a_kubelet_that_a_user_or_a_container_plays_makes_no_names() {
        let played = [
            "/",
            "/user.slice/user-1000.slice/user@1000.service/kubepods",
            "/system.slice/docker-4f1c6a0b9d8e7f3a2b5c4d6e8f0a1b3c5d7e9f1a3b5c7d9e0f2a4b6c8d0e1f2a.scope/kubepods",
            "/lxc.payload.own/kubepods/burstable",
        ];
        assert_eq!(levels(&played, 2), [(1, 2)]);
    }
}
