//! Tests with paths that are made of random parts.

use proptest::{prelude::*, sample::select};

use super::*;

/// A path and the parts that it was made from.
#[derive(Clone, Debug)]
struct Made {
    path: String,
    place: KubePath,
    /// The ids of the pod and the container as they stand in the path.
    ids: Vec<String>,
}

/// The naming scheme of a kubelet or runtime.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Cgroupfs,
    Systemd,
    Outside,
}

/// Directories above a kubelet.
fn outer() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[0-9a-f]{64}".prop_map(|id| format!("/docker/{id}")),
        "[0-9a-f]{64}".prop_map(|id| format!("/system.slice/docker-{id}.scope")),
        Just("/user.slice/user-1000.slice/user@1000.service".to_owned()),
        Just("/kata_overhead".to_owned()),
        "(/[A-Za-z0-9_@.é-]{1,12}){1,3}".prop_filter("a root of its own", |path| !path.contains("kubepods")),
    ]
}

/// The pod's id in the API's form, and whether it is a UID.
fn pod() -> impl Strategy<Value = (String, bool)> {
    prop_oneof![
        "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}".prop_map(|uid| (uid, true)),
        "[0-9a-f]{32}".prop_map(|hash| (hash, false)),
    ]
}

/// A path of a pod or of one of its containers, without directories below it.
fn made() -> impl Strategy<Value = Made> {
    made_so(&[Way::Cgroupfs, Way::Systemd, Way::Outside], &[Guaranteed, Burstable, BestEffort])
}

fn made_so(ways: &'static [Way], classes: &'static [QosClass]) -> impl Strategy<Value = Made> {
    let roots = (prop::collection::vec("[a-z_]{1,7}", 0..3), any::<bool>()).prop_map(|(mut roots, twice)| {
        roots.extend(twice.then(|| "kubepods".to_owned()));
        roots
    });
    let dir = prop::option::weighted(0.8, ("[0-9a-f]{64}", 0_usize..5));
    (select(ways), outer(), roots, select(classes), pod(), dir)
        .prop_map(|(way, outer, roots, qos, pod, dir)| make(way, &outer, roots, qos, pod, dir))
}

fn make(
    way: Way,
    outer: &str,
    mut levels: Vec<String>,
    qos: QosClass,
    (id, is_uid): (String, bool),
    dir: Option<(String, usize)>,
) -> Made {
    let spelling = if way == Way::Cgroupfs { id.clone() } else { id.replace('-', "_") };
    let pod = if is_uid { PodRef::Uid(id.parse().unwrap()) } else { PodRef::Static(id.parse().unwrap()) };
    levels.push("kubepods".to_owned());
    let roots = levels.len();
    levels.extend((qos != Guaranteed).then(|| qos.name().to_owned()));
    levels.push(format!("pod{spelling}"));

    let mut path = outer.to_owned();
    let mut root_len = path.len();
    for depth in 1..=levels.len() {
        match way {
            Way::Cgroupfs => path += &format!("/{}", levels[depth - 1]),
            Way::Systemd => path += &format!("/{}.slice", levels[..depth].join("-")),
            Way::Outside => {}
        }
        if depth == roots {
            root_len = path.len();
        }
    }
    let mut ids = vec![spelling];
    let dir = if way == Way::Outside { dir.or_else(|| Some((OTHER_ID.to_owned(), 0))) } else { dir };
    let container = dir.map(|(id, shape)| {
        let shapes = match way {
            Way::Cgroupfs => &[("", Unknown), ("crio-", CriO), ("crio-conmon-", CriO)][..],
            Way::Systemd => &[
                ("cri-containerd-", Containerd),
                ("crio-", CriO),
                ("crio-conmon-", CriO),
                ("docker-", Docker),
                ("", Unknown),
            ],
            Way::Outside => &[("cri-containerd", Containerd), ("crio", CriO), ("docker", Docker)],
        };
        let (prefix, runtime) = shapes[shape % shapes.len()];
        path += &match way {
            Way::Outside => format!("/{}.slice:{prefix}:{id}", levels.join("-")),
            Way::Systemd if !prefix.is_empty() => format!("/{prefix}{id}.scope"),
            _ => format!("/{prefix}{id}"),
        };
        ids.push(id.clone());
        let kind = if prefix == "crio-conmon-" { Monitor } else { Container };
        ContainerDir { id: id.parse().unwrap(), runtime, kind }
    });
    Made { place: KubePath { qos, pod, container, root_len, dir_len: path.len() }, path, ids }
}

/// Directories that a container may make, including a whole Kubernetes.
fn nested() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "(/[^/\0]{1,20}){1,4}",
        made().prop_map(|made| made.path),
        made().prop_map(|made| format!("/init.scope{}/kubepods", made.path)),
    ]
}

/// Path components in random order.
fn babble() -> impl Strategy<Value = String> {
    let words = [
        "/",
        "/",
        "/",
        "-",
        ":",
        "_",
        ".slice",
        ".scope",
        "kubepods",
        "burstable",
        "besteffort",
        "guaranteed",
        "pod",
        "kubelet",
        "cri-containerd",
        "crio",
        "conmon",
        "docker",
        "kata_",
        "x",
        "é",
    ];
    let words = select(words.map(str::to_owned).to_vec());
    let ids = select([UID, HASH, ID].map(str::to_owned).to_vec());
    prop::collection::vec(prop_oneof![6 => words, 2 => ids, 1 => Just(spelled("U_ID"))], 0..24)
        .prop_map(|words| words.concat())
}

/// Checks the rules that hold for every place, for any path.
fn check(path: &str) -> Result<(), TestCaseError> {
    let Some(place) = KubePath::parse(path) else { return Ok(()) };
    prop_assert!(place.root_len < place.dir_len && place.dir_len <= path.len());
    prop_assert!(path[place.root_len..].starts_with('/'));
    prop_assert!(path.len() == place.dir_len || path[place.dir_len..].starts_with('/'));
    let own = &path[..place.dir_len];
    if let Some(container) = place.container {
        prop_assert!(own.contains(&container.id.to_string()));
    }
    let named = match place.pod {
        PodRef::Uid(uid) => own.contains(&uid.to_string()) || own.contains(&uid.to_string().replace('-', "_")),
        PodRef::Static(hash) => own.contains(&hash.to_string()),
    };
    prop_assert!(named);
    prop_assert_eq!(KubePath::parse(own), Some(place));
    Ok(())
}

proptest! {
    #[test]
    fn any_text_is_read_without_panic(path in any::<String>(), rest in "(/\\PC{0,9}){0,5}") {
        check(&path)?;
        check(&rest)?;
    }

    #[test]
    fn words_of_paths_in_any_order_keep_the_rules(path in babble()) {
        check(&path)?;
    }

    #[test]
    fn a_path_has_the_place_that_it_was_made_for(made in made()) {
        prop_assert_eq!(KubePath::parse(&made.path), Some(made.place), "{}", made.path);
        check(&made.path)?;
    }

    #[test]
    fn what_a_container_makes_changes_nothing(made in made().prop_filter("a pod", |made| made.place.container.is_some()), nested in nested()) {
        let path = made.path + &nested;
        prop_assert_eq!(KubePath::parse(&path), Some(made.place), "{}", path);
    }

    #[test]
    fn one_wrong_digit_of_an_id_is_no_place_or_the_pod(made in made(), which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), wrong in "[A-Zg-z_.:/ é-]?") {
        let id = which.get(&made.ids);
        let digits: Vec<usize> = id.match_indices(|c: char| c.is_ascii_hexdigit()).map(|(at, _)| at).collect();
        let at = made.path.rfind(id.as_str()).unwrap() + *at.get(&digits);
        let mut path = made.path.clone();
        path.replace_range(at..=at, &wrong);
        let is_none = |place: Option<KubePath>| place.is_none_or(|place| place.container.is_none() && at > place.dir_len);
        prop_assert!(is_none(KubePath::parse(&path)), "{}", path);
        path.replace_range(at..at + wrong.len(), "00");
        prop_assert!(is_none(KubePath::parse(&path)), "{}", path);
    }

    #[test]
    fn a_slice_of_another_class_is_no_place(
        made in made_so(&[Way::Systemd], &[Burstable, BestEffort]),
        which in any::<prop::sample::Index>(),
        with in select(vec!["burstable", "besteffort", "guaranteed", "x", ""]),
    ) {
        let class = made.place.qos.name();
        let below = made.path.split_at(made.place.root_len).1;
        let classes: Vec<_> = below.match_indices(class).map(|(at, _)| made.place.root_len + at).collect();
        let at = *which.get(&classes);
        let mut path = made.path.clone();
        path.replace_range(at..at + class.len(), with);
        let place = (with == class).then_some(made.place);
        prop_assert_eq!(KubePath::parse(&path), place, "{}", path);
    }

    #[test]
    fn two_levels_swapped_are_no_place_or_the_pod(made in made()) {
        let (root, below) = made.path.split_at(made.place.root_len);
        let mut levels: Vec<_> = below[1..].split('/').collect();
        for at in 1..levels.len() {
            levels.swap(at - 1, at);
            let path = format!("{root}/{}", levels.join("/"));
            // Below its pod, a class is a name like any other.
            let container = KubePath::parse(&path).and_then(|place| place.container);
            prop_assert_eq!(container, None, "{}", path);
            levels.swap(at - 1, at);
        }
    }

    #[test]
    fn a_missing_level_is_no_place_or_the_pod(made in made()) {
        let (root, below) = made.path.split_at(made.place.root_len);
        let levels: Vec<_> = below[1..].split('/').collect();
        for gone in 0..levels.len() {
            let mut levels = levels.clone();
            levels.remove(gone);
            let path = levels.iter().fold(root.to_owned(), |path, level| path + "/" + level);
            let place = KubePath::parse(&path);
            // Without its class, a pod under cgroupfs is a guaranteed one.
            let plain = place.is_some_and(|place| place.qos == Guaranteed && place.pod == made.place.pod);
            let pod = place.is_some_and(|place| place.container.is_none() && place.pod == made.place.pod);
            prop_assert!(place.is_none() || plain || pod, "{}", path);
        }
    }
}
