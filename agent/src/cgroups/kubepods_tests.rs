use super::{DirKind::*, QosClass::*, Runtime::*, *};

const UID: &str = "6ef0362e-e3b9-43a3-acdb-de4ba71f1fa4";
const OTHER_UID: &str = "0b5cfa1d-8a1e-4c0f-9d1b-7e0a6f2c3d4e";
const HASH: &str = "8daa50c3a64c9ff60bb9eab7b44b56fd";
const ID: &str = "4f1c6a0b9d8e7f3a2b5c4d6e8f0a1b3c5d7e9f1a3b5c7d9e0f2a4b6c8d0e1f2a";
const OTHER_ID: &str = "a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8";

/// Runtime and kind of a known directory.
type Known = Option<(Runtime, DirKind)>;

const CONTAINER: Known = Some((Containerd, Container));
const BARE: Known = Some((Unknown, Container));

/// Replaces `UID`, `U_ID` (systemd's spelling), `HASH`, `ID` and their `OTHER_` forms with real values.
fn spelled(template: &str) -> String {
    let systemd = |uid: &str| uid.replace('-', "_");
    template
        .replace("OTHER_UID", OTHER_UID)
        .replace("OTHER_U_ID", &systemd(OTHER_UID))
        .replace("OTHER_ID", OTHER_ID)
        .replace("UID", UID)
        .replace("U_ID", &systemd(UID))
        .replace("HASH", HASH)
        .replace("ID", ID)
}

/// Every known form of path. `^` ends the common directory of all pods, `!` the container's or pod's directory.
#[rustfmt::skip]
const PLACES: &[(&str, &str, QosClass, Known)] = &[
    // The systemd driver, whose kubelet turns the UID's `-` into `_`.
    ("systemd, containerd, burstable", "/kubepods.slice^/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/cri-containerd-ID.scope!", Burstable, CONTAINER),
    ("systemd, containerd, best effort", "/kubepods.slice^/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/cri-containerd-ID.scope!", BestEffort, CONTAINER),
    ("guaranteed pods have no level of their class", "/kubepods.slice^/kubepods-podU_ID.slice/cri-containerd-ID.scope!", Guaranteed, CONTAINER),
    ("CRI-O", "/kubepods.slice^/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/crio-ID.scope!", Burstable, Some((CriO, Container))),
    ("CRI-O's monitor with conmon_cgroup = pod", "/kubepods.slice^/kubepods-podU_ID.slice/crio-conmon-ID.scope!", Guaranteed, Some((CriO, Monitor))),
    ("CRI-O makes a dropped sandbox's directory itself, so it is no scope", "/kubepods.slice^/kubepods-podU_ID.slice/crio-ID!", Guaranteed, Some((CriO, Container))),
    ("Docker through cri-dockerd", "/kubepods.slice^/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/docker-ID.scope!", BestEffort, Some((Docker, Container))),
    ("the kubelet uses systemd, containerd does not", "/kubepods.slice^/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/ID!", Burstable, BARE),
    ("the pod itself", "/kubepods.slice^/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice!", Burstable, None),
    ("a guaranteed pod itself", "/kubepods.slice^/kubepods-podU_ID.slice!", Guaranteed, None),
    // The cgroupfs driver.
    ("cgroupfs, containerd or Docker: k3s without systemd, microk8s, Talos", "/kubepods^/burstable/podUID/ID!", Burstable, BARE),
    ("cgroupfs, best effort", "/kubepods^/besteffort/podUID/ID!", BestEffort, BARE),
    ("cgroupfs, guaranteed", "/kubepods^/podUID/ID!", Guaranteed, BARE),
    ("cgroupfs, CRI-O", "/kubepods^/burstable/podUID/crio-ID!", Burstable, Some((CriO, Container))),
    ("cgroupfs, CRI-O's monitor", "/kubepods^/burstable/podUID/crio-conmon-ID!", Burstable, Some((CriO, Monitor))),
    ("cgroupfs, the pod itself", "/kubepods^/besteffort/podUID!", BestEffort, None),
    // Static pods.
    ("a static pod's UID is a hash without dashes", "/kubepods.slice^/kubepods-burstable.slice/kubepods-burstable-podHASH.slice/cri-containerd-ID.scope!", Burstable, CONTAINER),
    ("cgroupfs, a static pod", "/kubepods^/burstable/podHASH/ID!", Burstable, BARE),
    ("a static pod itself", "/kubepods^/podHASH!", Guaranteed, None),
    // Kubelets that are not at the top.
    ("kind: its kubelet's --cgroup-root is /kubelet", "/kubelet.slice/kubelet-kubepods.slice^/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podU_ID.slice/cri-containerd-ID.scope!", Burstable, CONTAINER),
    ("kind, guaranteed", "/kubelet.slice/kubelet-kubepods.slice^/kubelet-kubepods-podU_ID.slice/cri-containerd-ID.scope!", Guaranteed, CONTAINER),
    ("kind, cgroupfs", "/kubelet/kubepods^/besteffort/podUID/ID!", BestEffort, BARE),
    ("kind as its host sees it, Docker uses cgroupfs", "/docker/OTHER_ID/kubelet/kubepods^/burstable/podUID/ID!", Burstable, BARE),
    ("kind as its host sees it, Docker uses systemd", "/system.slice/docker-OTHER_ID.scope/kubelet.slice/kubelet-kubepods.slice^/kubelet-kubepods-podHASH.slice/cri-containerd-ID.scope!", Guaranteed, CONTAINER),
    ("kind in rootless Podman", "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-OTHER_ID.scope/container/kubelet.slice/kubelet-kubepods.slice^/kubelet-kubepods-podU_ID.slice!", Guaranteed, None),
    ("minikube's docker driver", "/docker/OTHER_ID/kubepods.slice^/kubepods-besteffort.slice/kubepods-besteffort-podU_ID.slice/crio-ID.scope!", BestEffort, Some((CriO, Container))),
    ("k3d", "/system.slice/docker-OTHER_ID.scope/kubepods^/burstable/podUID/ID!", Burstable, BARE),
    ("rootless k3s and usernetes (KubeletInUserNamespace)", "/user.slice/user-1001.slice/user@1001.service/k3s-rootless.service/kubepods^/burstable/podUID/ID!", Burstable, BARE),
    ("a --cgroup-root of three levels", "/a.slice/a-b.slice/a-b-c.slice/a-b-c-kubepods.slice^/a-b-c-kubepods-besteffort.slice/a-b-c-kubepods-besteffort-podU_ID.slice/crio-ID.scope!", BestEffort, Some((CriO, Container))),
    ("a --cgroup-root=kubepods, as MicroShift was advised to use", "/kubepods.slice/kubepods-kubepods.slice^/kubepods-kubepods-burstable.slice/kubepods-kubepods-burstable-podU_ID.slice/crio-ID.scope!", Burstable, Some((CriO, Container))),
    ("cgroupfs with a --cgroup-root=kubepods", "/kubepods/kubepods^/podUID/ID!", Guaranteed, BARE),
    ("a slice that only looks like a common directory, since it is in no `my.slice`", "/my-kubepods.slice/kubepods^/podUID/ID!", Guaranteed, BARE),
    // Containers outside of the pod's directory.
    ("containerd, a pod with a user namespace", "/system.slice^/kubepods-besteffort-podU_ID.slice:cri-containerd:ID!", BestEffort, CONTAINER),
    ("containerd, SystemdCgroup = false under a kubelet with systemd", "/system.slice/containerd.service^/kubepods-burstable-podHASH.slice:cri-containerd:ID!", Burstable, CONTAINER),
    ("youki and runwasi; guaranteed, at the root", "^/kubepods-podU_ID.slice:cri-containerd:ID!", Guaranteed, CONTAINER),
    ("so in kind", "/system.slice/containerd.service^/kubelet-kubepods-burstable-podU_ID.slice:cri-containerd:ID!/init.scope", Burstable, CONTAINER),
    // Directories that containers make.
    ("crun's own level", "/kubepods.slice^/kubepods-podU_ID.slice/crio-ID.scope!/container", Guaranteed, Some((CriO, Container))),
    ("systemd in a container", "/kubepods.slice^/kubepods-podU_ID.slice/cri-containerd-ID.scope!/system.slice/dbus\\x2dbroker.service", Guaranteed, CONTAINER),
    ("systemd in a container, cgroupfs", "/kubepods^/burstable/podUID/ID!/init.scope", Burstable, BARE),
    ("Docker in a pod", "/kubepods^/burstable/podUID/ID!/docker/OTHER_ID", Burstable, BARE),
    ("a node of kind in a pod: the outer pod is the one that this node's API server knows", "/kubepods.slice^/kubepods-podU_ID.slice/cri-containerd-ID.scope!/docker/OTHER_ID/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podOTHER_U_ID.slice/cri-containerd-OTHER_ID.scope", Guaranteed, CONTAINER),
    ("k3s in a pod", "/kubepods^/burstable/podUID/ID!/kubepods/burstable/podOTHER_UID/OTHER_ID", Burstable, BARE),
    ("a name that is not ASCII", "/kubepods^/podUID/ID!/größe/…", Guaranteed, BARE),
    // Kata Containers.
    ("Kata's virtual machine is the pod", "/kubepods^/burstable/podUID!/kata_ID", Burstable, None),
    ("Kata's threads that no limit holds, where it keeps the orchestrator's path", "/kata_overhead/kubepods^/burstable/podUID/ID!", Burstable, BARE),
];

#[rustfmt::skip]
const REFUSED: &[(&str, &str)] = &[
    ("no path", ""),
    ("the root", "/"),
    ("no directories", "////"),
    ("no leading slash", "kubepods/burstable/podUID/ID"),
    ("the directory of all pods is no pod's", "/kubepods.slice"),
    ("nor is a class's", "/kubepods.slice/kubepods-burstable.slice"),
    ("cgroupfs, the directory of all pods", "/kubepods"),
    ("cgroupfs, a class's", "/kubepods/besteffort"),
    ("nothing of Kubernetes'", "/system.slice/docker-ID.scope"),
    ("a name of somebody else's", "/kubepods.slice/foo"),
    ("a pod's name outside of kubepods", "/home/kubepods-burstable-podU_ID.slice/cri-containerd-ID.scope"),
    ("cgroupfs, a pod outside of kubepods", "/burstable/podUID/ID"),
    ("a pod in a directory that ends like kubepods", "/mykubepods/podUID/ID"),
    ("a slice that ends like kubepods", "/mykubepods.slice/mykubepods-podU_ID.slice/cri-containerd-ID.scope"),
    ("a common slice whose parents are others", "/other.slice/my-kubepods.slice/my-kubepods-podU_ID.slice/cri-containerd-ID.scope"),
    ("a common slice with one parent missing", "/a-b.slice/a-b-kubepods.slice/a-b-kubepods-podU_ID.slice"),
    ("a class's slice in another's", "/kubepods.slice/kubepods-burstable.slice/kubepods-besteffort-podU_ID.slice/cri-containerd-ID.scope"),
    ("a class's pod without its class's slice", "/kubepods.slice/kubepods-burstable-podU_ID.slice/cri-containerd-ID.scope"),
    ("a guaranteed pod in a class's slice", "/kubepods.slice/kubepods-burstable.slice/kubepods-podU_ID.slice/cri-containerd-ID.scope"),
    ("guaranteed is no level", "/kubepods/guaranteed/podUID/ID"),
    ("a class is in lower case", "/kubepods/Burstable/podUID/ID"),
    ("another root's slices", "/kubelet.slice/kubelet-kubepods.slice/kubepods-podU_ID.slice/cri-containerd-ID.scope"),
    ("no slice below slices", "/kubepods.slice/burstable/podUID/ID"),
    ("slices below no slice", "/kubepods/kubepods-burstable.slice/kubepods-burstable-podU_ID.slice/cri-containerd-ID.scope"),
    ("something between kubepods and the pod", "/kubepods/x/podUID/ID"),
    ("a class twice", "/kubepods/burstable/burstable/podUID/ID"),
    ("the outer kubepods decides", "/kubepods.slice/foo/kubepods/podUID/ID"),
    ("a UID as the other driver spells it", "/kubepods/podU_ID/ID"),
    ("a UID as the other driver spells it, systemd", "/kubepods.slice/kubepods-podUID.slice/cri-containerd-ID.scope"),
    ("a UID that somebody chose", "/kubepods/podmy-own/ID"),
    ("an escaped UID, which is what systemd would make but the kubelet does not", "/kubepods.slice/kubepods-pod6ef0362e\\x2de3b9\\x2d43a3\\x2dacdb\\x2dde4ba71f1fa4.slice"),
    ("no UID", "/kubepods/pod/ID"),
    ("no `pod`", "/kubepods/UID/ID"),
    ("a hash that is too long", "/kubepods/podHASH0/ID"),
    ("an empty name before", "/kubepods//podUID"),
    ("Kata's threads that no limit holds: the pod is not in the path", "/kata_overhead/ID"),
    ("outside, no kubepods", "/system.slice/podU_ID.slice:cri-containerd:ID"),
    ("outside, only like kubepods", "/system.slice/mykubepods-podU_ID.slice:cri-containerd:ID"),
    ("outside, no class", "/system.slice/kubepods-other-podU_ID.slice:cri-containerd:ID"),
    ("outside, classes only", "/system.slice/burstable-podU_ID.slice:cri-containerd:ID"),
    ("outside, no slice", "/system.slice/kubepods-podU_ID:cri-containerd:ID"),
    ("outside, no pod", "/system.slice/kubepods.slice:cri-containerd:ID"),
    ("outside, the name of a unit's container", "/system.slice/system.slice:cri-containerd:ID"),
    ("outside, a runtime that is not known", "/system.slice/kubepods-podU_ID.slice:x:ID"),
    ("outside, more", "/system.slice/kubepods-podU_ID.slice:cri-containerd:ID:x"),
    ("outside, a UID as cgroupfs spells it", "/system.slice/kubepods-podUID.slice:cri-containerd:ID"),
];

/// Directories in a pod, but in none of its containers, with the reason.
#[rustfmt::skip]
const OWN: &[(&str, &str)] = &[
    ("a container's name for its id", "/kubepods/podUID/nginx"),
    ("an empty name", "/kubepods/podUID/"),
    ("a runtime that is not known", "/kubepods.slice/kubepods-podU_ID.slice/pouch-ID.scope"),
    ("no runtime", "/kubepods.slice/kubepods-podU_ID.slice/-ID.scope"),
    ("a bare id is no scope", "/kubepods.slice/kubepods-podU_ID.slice/ID.scope"),
    ("containerd's name without a scope", "/kubepods.slice/kubepods-podU_ID.slice/cri-containerd-ID"),
    ("a scope below no slice", "/kubepods/podUID/cri-containerd-ID.scope"),
    ("two runtimes", "/kubepods.slice/kubepods-podU_ID.slice/crio-crio-ID.scope"),
    ("Kata's name below a slice, where it makes scopes", "/kubepods.slice/kubepods-podU_ID.slice/kata_ID"),
    ("Kata's name with no id", "/kubepods/podUID/kata_x"),
];

#[test]
fn pods_are_in_the_directories_of_the_kubelet() {
    let parent = |path: &str| path.rsplit_once('/').map_or(String::new(), |(parent, _)| parent.to_owned());
    for (what, template, ..) in PLACES.iter().filter(|(_, template, ..)| !template.contains(".slice:")) {
        let path = spelled(&template.replace(['^', '!'], ""));
        let place = KubePath::parse(&path).unwrap();
        let dir = path[..place.dir_len].to_owned();
        let pod = if place.container.is_some() { parent(&dir) } else { dir };
        assert!(KubePath::is_parent_of_pods(&parent(&pod)) && !KubePath::is_parent_of_pods(&pod), "{what}: {path}");
    }
    for path in ["/", "/system.slice", "/kubepods/other", "/kubepods/burstable/x", "/my-kubepods.slice", "/burstable"] {
        assert!(!KubePath::is_parent_of_pods(path), "{path}");
    }
}

#[test]
fn every_known_shape_has_its_place() {
    for (why, template, qos, dir) in PLACES {
        let marked = spelled(template);
        let path = marked.replace(['^', '!'], "");
        let pod = match template.contains("podHASH") {
            true => PodRef::Static(HASH.parse().unwrap()),
            false => PodRef::Uid(UID.parse().unwrap()),
        };
        let container = dir.map(|(runtime, kind)| ContainerDir { id: ID.parse().unwrap(), runtime, kind });
        let root_len = marked.find('^').unwrap();
        let dir_len = marked.find('!').unwrap() - '^'.len_utf8();
        let expected = KubePath { qos: *qos, pod, container, root_len, dir_len };
        assert_eq!(KubePath::parse(&path), Some(expected), "{why}: {path}");
    }
}

#[test]
fn what_no_runtime_makes_is_the_pods_own() {
    for (why, template) in OWN {
        let path = spelled(template);
        let place = KubePath::parse(&path).unwrap_or_else(|| panic!("{why}: {path}"));
        assert_eq!((place.container, &path[place.dir_len..=place.dir_len]), (None, "/"), "{why}: {path}");
    }
}

#[test]
fn nothing_else_has() {
    for (why, template) in REFUSED {
        let path = spelled(template);
        assert_eq!(KubePath::parse(&path), None, "{why}: {path}");
    }
}

#[test]
fn megabytes_are_read_to_the_end() {
    for part in ["/", "-", "/kubepods", "/a-kubepods.slice", "kubepods-", "/x.slice:y:z", "é"] {
        let long = part.repeat(1 << 20);
        assert_eq!(KubePath::parse(&long), None);
        assert_eq!(KubePath::parse(&format!("/{long}.slice")), None);
        let nested = spelled("/kubepods/podUID/ID") + "/" + &long;
        assert!(KubePath::parse(&nested).is_some());
    }
}

#[test]
fn a_place_is_small() {
    assert!(size_of::<KubePath>() <= 72, "{}", size_of::<KubePath>());
}

#[test]
fn a_pod_is_found_in_a_path_from_outside_of_a_cgroup_namespace() {
    for (path, pod) in [
        ("/../../kubepods-burstable-podU_ID.slice/cri-containerd-ID.scope", Some(UID)),
        ("/../../../kubepods-podU_ID.slice/cri-containerd-ID.scope/inner", Some(UID)),
        ("/../../podUID/ID", Some(UID)),
        ("/../../../besteffort/podHASH/ID", Some(HASH)),
        ("/../../../../system.slice/kubepods-burstable-podU_ID.slice:cri-containerd:ID", Some(UID)),
        ("/../OTHER_ID", None),
        ("/../../../system.slice/podperf.service", None),
        ("/podUID/ID", None),
        ("/", None),
    ] {
        let found = PodRef::outside(&spelled(path)).map(|pod| match pod {
            PodRef::Uid(uid) => uid.to_string(),
            PodRef::Static(hash) => hash.to_string(),
        });
        assert_eq!(found.as_deref(), pod, "{path}");
    }
}

#[path = "kubepods_made_tests.rs"]
mod made;
