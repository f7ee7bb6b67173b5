//! Finds the container's id in a path outside of `kubepods`. Pure and total.
//!
//! A kubelet with `cgroupsPerQOS: false` makes no directories, so the runtime puts each container where it puts the
//! containers of its other clients. The path has no pod then, but the pod's status names the id:
//!
//! ```text
//! cgroupfs   /k8s.io/<id>
//! systemd    /system.slice/cri-containerd-<id>.scope
//! ```
//!
//! Only the first two levels of the tree count, and nothing below a service, a scope, `user.slice` or a container of
//! LXC. The owner of such a part can make directories with any name there. In the remaining places only root can.

use crate::model::ids::ContainerId;

/// The names before the id, without the `-`.
const PREFIXES: [&str; 4] = ["cri-containerd", "crio", "docker", "libpod"];

/// The place of a container outside of `kubepods`, or of a container that belongs to no pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatPath {
    /// Id of the container.
    pub id: ContainerId,
    /// Length of the path to the container's parent directory, itself included, in bytes; zero for the root.
    pub root_len: usize,
    /// Length of the path to the container's directory, itself included, in bytes. A longer path is a cgroup that the
    /// container itself made.
    pub dir_len: usize,
}

impl FlatPath {
    /// Returns the container of the cgroup with this path, which begins with `/`; `None` for any other path.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let mut root_len = 0;
        for dir in path.strip_prefix('/')?.split('/').take(2) {
            let dir_len = root_len + 1 + dir.len();
            if let Some(id) = id(dir) {
                return Some(Self { id, root_len, dir_len });
            }
            if is_given_away(dir) {
                return None;
            }
            root_len = dir_len;
        }
        None
    }

    /// Returns whether users may make directories at this path: it is below a part of the tree that somebody got.
    #[must_use]
    pub fn is_users(path: &str) -> bool {
        path.split('/').any(|dir| is_given_away(dir) || id(dir).is_some())
    }
}

fn is_given_away(dir: &str) -> bool {
    dir == "user.slice" || dir.starts_with("lxc.") || [".service", ".scope"].iter().any(|it| dir.ends_with(it))
}

/// Returns the container's id in the name of a directory. A scope also has the runtime in its name.
fn id(dir: &str) -> Option<ContainerId> {
    let scope = dir.strip_suffix(".scope");
    match scope.unwrap_or(dir).rsplit_once('-') {
        Some((prefix, id)) => id.parse().ok().filter(|_| PREFIXES.contains(&prefix)),
        None if scope.is_none() => dir.parse().ok(),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f1c6a0b9d8e7f3a2b5c4d6e8f0a1b3c5d7e9f1a3b5c7d9e0f2a4b6c8d0e1f2a";

    #[test]
    fn a_container_is_found_in_the_first_two_levels() {
        // `^` ends the parent directory, `!` the container's.
        for template in [
            "/k8s.io^/ID!",
            "/k8s.io^/ID!/init.scope",
            "^/ID!",
            "^/ID!/OTHER",
            "/docker^/ID!/docker/OTHER",
            "^/crio-ID!",
            "/system.slice^/cri-containerd-ID.scope!",
            "/system.slice^/docker-ID.scope!/kubelet",
            "/machine.slice^/libpod-ID.scope!/container",
            "^/crio-ID.scope!/OTHER",
        ] {
            let marked = template.replace("OTHER", &"0".repeat(64)).replace("ID", ID);
            let path = marked.replace(['^', '!'], "");
            let (root_len, dir_len) = (marked.find('^').unwrap(), marked.find('!').unwrap() - 1);
            assert_eq!(FlatPath::parse(&path), Some(FlatPath { id: ID.parse().unwrap(), root_len, dir_len }), "{path}");
        }
    }

    #[test]
    fn other_paths_have_no_container() {
        for template in [
            "",
            "/",
            "ID",
            "/k8s.io",
            "/k8s.io/x/ID",
            "/k8s.io/IDx",
            "/k8s.io/ID.scope",
            "/k8s.io/pouch-ID.scope",
            "/kubepods.slice/crio-conmon-ID.scope",
            "/system.slice/containerd.service/ID",
            // Users may get these parts of the tree.
            "/user.slice/ID",
            "/user.slice/user-1000.slice/ID",
            "/own.service/ID",
            "/own.scope/docker-ID.scope",
            "/lxc.payload.own/ID",
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope",
        ] {
            let path = template.replace("ID", ID);
            assert_eq!(FlatPath::parse(&path), None, "{path}");
        }
    }
}
