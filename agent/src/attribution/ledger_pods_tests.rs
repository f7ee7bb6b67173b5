//! Tests of the rows of pods and containers.

use super::*;

#[test]
fn counts_wait_for_the_name_of_their_pod() {
    let mut node = Node::of_cluster(&[(20, &path('a'))], vec![]);
    node.read(SECOND, &[(20, 5)]);
    node.died(20, 2 * SECOND);
    node.tree.prune(PATIENCE + SECOND);
    node.apply(PodChange::Applied(pod("web", &[("app", Some('a'))])), 3 * SECOND);
    node.read(4 * SECOND, &[]);
    assert_eq!((node.container("web", "app"), node.snapshot().cgroups_unresolved), (Some(5), 0));
}

#[test]
fn a_pod_that_the_api_does_not_know_is_unresolved_once_patience_is_over() {
    let mut node = Node::of_cluster(&[(20, &path('a'))], vec![]);
    node.read(PATIENCE, &[(20, 5)]);
    assert_eq!(node.cgroup(UNRESOLVED), None);
    node.read(PATIENCE + 1, &[]);
    assert_eq!((node.cgroup(UNRESOLVED), node.snapshot().cgroups_unresolved), (Some(5), 0));
    node.apply(PodChange::Applied(pod("web", &[("app", Some('a'))])), PATIENCE + 2);
    node.read(PATIENCE + 3, &[(20, 1)]);
    assert_eq!((node.cgroup(UNRESOLVED), node.container("web", "app")), (Some(5), Some(1)), "late, but no count moves");
}

#[test]
fn patience_begins_anew_when_the_api_is_back() {
    let mut node = Node::of_cluster(&[], vec![]);
    node.apply(PodChange::Disconnected, 1);
    node.born(20, &path('a'), 2);
    node.read(2 * PATIENCE, &[(20, 5)]);
    assert_eq!(node.snapshot().cgroups_unresolved, 1);
    node.apply(PodChange::Connected, 2 * PATIENCE);
    node.read(3 * PATIENCE, &[]);
    assert_eq!(node.cgroup(UNRESOLVED), None);
    node.apply(PodChange::Applied(pod("web", &[("app", Some('a'))])), 3 * PATIENCE);
    node.read(3 * PATIENCE, &[]);
    assert_eq!(node.container("web", "app"), Some(5));
}

#[test]
fn the_sandbox_is_the_pods_and_no_container() {
    let mut node = Node::of_cluster(
        &[(1, "/kubepods"), (20, &path('f')), (21, &path('a'))],
        vec![pod("web", &[("app", Some('a'))])],
    );
    node.read(0, &[(20, 3), (21, 5)]);
    node.read(PATIENCE + 1, &[(20, 1)]);
    assert_eq!((node.cgroup("/kubepods"), node.container("web", "app")), (Some(4), Some(5)));
}

#[test]
fn a_life_that_no_status_names_is_the_only_container_of_its_pod() {
    let pods = vec![pod("web", &[("app", Some('c'))])];
    let mut node = Node::of_cluster(&[(20, &path('f')), (21, &path('a')), (22, &path('b')), (23, &path('c'))], pods);
    node.read(PATIENCE + 1, &[(20, 1), (21, 2), (22, 4), (23, 8)]);
    assert_eq!((node.container("web", "app"), node.cgroup("/kubepods")), (Some(14), Some(1)));
}

#[test]
fn a_life_that_no_status_names_in_a_pod_of_two_is_the_pods() {
    let pods = vec![pod("web", &[("app", Some('c')), ("helper", None)])];
    let mut node = Node::of_cluster(&[(20, &path('f')), (21, &path('a')), (23, &path('c'))], pods);
    node.read(PATIENCE + 1, &[(20, 1), (21, 2), (23, 8)]);
    assert_eq!((node.container("web", "app"), node.cgroup("/kubepods")), (Some(8), Some(3)));
}

/// A pod with two cgroups outside of its one container, after a reading.
fn with_a_machine() -> Node {
    let machine = format!("/kubepods/pod{UID}/machine");
    let nodes = [(1, "/kubepods"), (20, &path('f')), (21, &path('a')), (22, &machine)];
    let mut node = Node::of_cluster(&nodes, vec![pod("web", &[("app", Some('a'))])]);
    node.read(PATIENCE + SECOND, &[(21, 5)]);
    node
}

#[test]
fn a_pod_that_computes_outside_of_its_containers_has_a_row_for_it() {
    let mut node = with_a_machine();
    let rows = |node: &Node| (node.container("web", ""), node.cgroup("/kubepods"));
    node.read(PATIENCE + 2 * SECOND, &[(20, ENOUGH_NS / 2)]);
    assert_eq!(rows(&node), (None, Some(ENOUGH_NS / 2)));
    // Over 100 s this is too small a share of a CPU.
    node.read(PATIENCE + 102 * SECOND, &[(20, ENOUGH_NS)]);
    assert_eq!(rows(&node), (None, Some(ENOUGH_NS / 2 * 3)));
    node.read(PATIENCE + 103 * SECOND, &[(20, ENOUGH_NS / 2), (22, ENOUGH_NS / 2)]);
    node.read(PATIENCE + 104 * SECOND, &[(20, 7)]);
    assert_eq!(rows(&node), (Some(ENOUGH_NS + 7), Some(ENOUGH_NS / 2 * 3)));
    assert_eq!((node.container("web", "app"), node.total()), (Some(5), ENOUGH_NS / 2 * 5 + 12));
    // Its row ends like the rows of containers.
    (20..=22).for_each(|id| node.died(id, 0));
    node.apply(PodChange::Deleted(pod("web", &[("app", Some('a'))])), PATIENCE + 105 * SECOND);
    node.read(PATIENCE + 106 * SECOND, &[]);
    node.ledger.exported();
    node.ledger.exported();
    node.read(PATIENCE + 107 * SECOND + GRACE, &[]);
    assert_eq!((node.container("web", ""), node.total()), (None, ENOUGH_NS / 2 * 5 + 12));
}

#[test]
fn the_first_reading_may_be_of_any_length_and_opens_no_row_for_a_pod() {
    let mut node = Node::of_cluster(&[(20, &path('f'))], vec![pod("web", &[("app", Some('a'))])]);
    node.read(PATIENCE + 1, &[(20, 10 * ENOUGH_NS)]);
    assert_eq!((node.container("web", ""), node.cgroup("/kubepods")), (None, Some(10 * ENOUGH_NS)));
}

#[test]
fn a_pods_own_row_takes_no_containers_place() {
    let mut node = with_a_machine();
    node.rules.max_containers = 1;
    node.read(PATIENCE + 2 * SECOND, &[(20, ENOUGH_NS), (21, 1)]);
    assert_eq!((node.container("web", ""), node.container("web", "app")), (Some(ENOUGH_NS), Some(6)));
    assert_eq!(node.snapshot().not_exported[NotExported::Limit as usize], 0);
}

#[test]
fn rows_of_another_level_end_at_once_and_the_sum_keeps_them() {
    let mut node = with_a_machine();
    node.read(PATIENCE + 2 * SECOND, &[(20, ENOUGH_NS)]);
    node.rules.level = Level::Pod;
    node.read(PATIENCE + 3 * SECOND, &[(20, 3), (21, 4)]);
    assert_eq!((node.container("web", ""), node.container("web", "app")), (None, None));
    let web = Row::Pod { namespace: "shop".into(), pod: "web".into() };
    assert_eq!((node.row(&web), node.total()), (Some(7), ENOUGH_NS + 12));
}

#[test]
fn a_restarted_container_adds_to_its_series() {
    let mut node = Node::of_cluster(&[(21, &path('a'))], vec![pod("web", &[("app", Some('a'))])]);
    node.read(0, &[(21, 5)]);
    node.died(21, 1);
    node.apply(PodChange::Applied(pod("web", &[("app", Some('b'))])), 2);
    node.born(22, &path('b'), 2);
    node.read(3, &[(22, 7)]);
    assert_eq!(node.container("web", "app"), Some(12));
    let snapshot = node.snapshot();
    let row = snapshot.rows.iter().find(|row| row.container.is_some()).unwrap();
    assert_eq!(row.container.as_ref().unwrap().id, id('b'));
}

#[test]
fn a_container_in_its_back_off_has_not_ended() {
    let mut node = Node::of_cluster(&[(21, &path('a'))], vec![pod("web", &[("app", Some('a'))])]);
    node.read(0, &[(21, 5)]);
    node.died(21, 1);
    for now_ns in [2, 2 * GRACE, 4 * GRACE] {
        node.read(now_ns, &[]);
        node.ledger.exported();
    }
    assert_eq!(node.container("web", "app"), Some(5));
}

#[test]
fn a_container_that_is_over_ends_after_its_grace_and_goes_on_if_it_starts_again() {
    let mut over = pod("web", &[("app", Some('a'))]);
    over.containers[0].ended = true;
    let mut node = Node::of_cluster(&[(21, &path('a'))], vec![over]);
    node.read(0, &[(21, 5)]);
    node.died(21, 1);
    for now_ns in [2, 3, 3 + GRACE] {
        assert_eq!(node.container("web", "app"), Some(5));
        node.read(now_ns, &[]);
        node.ledger.exported();
    }
    assert_eq!((node.container("web", "app"), node.snapshot().pods.len(), node.total()), (None, 0, 5));
    node.apply(PodChange::Applied(pod("web", &[("app", Some('b'))])), 2 * GRACE);
    node.born(22, &path('b'), 2 * GRACE);
    node.read(2 * GRACE, &[(22, 7)]);
    assert_eq!((node.container("web", "app"), node.total()), (Some(12), 12));
}

#[test]
fn a_deleted_pods_containers_end_after_their_grace() {
    let mut node = Node::of_cluster(&[(21, &path('a'))], vec![pod("web", &[("app", Some('a'))])]);
    node.read(0, &[(21, 5)]);
    node.apply(PodChange::Deleted(pod("web", &[("app", Some('a'))])), 1);
    node.died(21, 1);
    for now_ns in [2, 3, 3 + GRACE] {
        assert_eq!(node.container("web", "app"), Some(5));
        node.read(now_ns, &[]);
        node.ledger.exported();
    }
    assert_eq!((node.container("web", "app"), node.total()), (None, 5));
}

#[test]
fn of_two_pods_with_one_name_in_turn_the_series_go_on_and_the_information_is_the_newests() {
    let mut node = Node::of_cluster(&[(21, &path('a'))], vec![pod("web-0", &[("app", Some('a'))])]);
    node.read(0, &[(21, 5)]);
    node.apply(PodChange::Deleted(pod("web-0", &[("app", Some('a'))])), 1);
    node.died(21, 1);
    let second = "00000000-0000-4000-8000-000000000002";
    let mut successor = pod("web-0", &[("app", Some('b'))]);
    successor.uid = second.parse().ok();
    node.apply(PodChange::Applied(successor), 2);
    node.born(22, &path_in(second, 'b'), 2);
    node.read(3, &[(22, 7)]);
    assert_eq!(node.container("web-0", "app"), Some(12));
    let uids: Vec<_> = node.snapshot().pods.iter().map(|pod| pod.uid.unwrap().to_string()).collect();
    assert_eq!(uids, [second]);
}

#[test]
fn a_container_that_lives_has_its_series_before_it_runs() {
    let node_pods = vec![pod("web", &[("app", Some('a'))])];
    let mut node = Node::of_cluster(&[(21, &path('a'))], node_pods);
    node.read(0, &[]);
    assert_eq!(node.container("web", "app"), Some(0));
}

#[test]
fn over_the_limit_counts_are_the_pods_and_the_containers_are_counted() {
    let pods = vec![pod("web", &[("app", Some('a')), ("helper", Some('b'))])];
    let mut node = Node::of_cluster(&[(21, &path('a')), (22, &path('b'))], pods);
    node.rules.max_containers = 1;
    node.read(0, &[(21, 5), (22, 7)]);
    assert_eq!((node.container("web", "app"), node.container("web", "helper")), (Some(5), None));
    assert_eq!(node.cgroup("/kubepods"), Some(7));
    assert_eq!(node.snapshot().not_exported[NotExported::Limit as usize], 1);
}

#[test]
fn pods_without_a_row_of_their_own_are_counted_together() {
    let mut quiet = pod("web", &[("app", Some('a'))]);
    quiet.scrape = false;
    let mut node = Node::of_cluster(&[(21, &path('a'))], vec![quiet]);
    node.read(0, &[(21, 5)]);
    assert_eq!((node.container("web", "app"), node.cgroup("/kubepods")), (None, Some(5)));
    assert_eq!(node.snapshot().not_exported[NotExported::Annotation as usize], 1);
}

#[test]
fn a_pod_that_opts_out_ends_after_its_grace() {
    let mut node = Node::of_cluster(&[(21, &path('a'))], vec![pod("web", &[("app", Some('a'))])]);
    node.read(0, &[(21, 5)]);
    let mut quiet = pod("web", &[("app", Some('a'))]);
    quiet.scrape = false;
    node.apply(PodChange::Applied(quiet), 1);
    for now_ns in [2, 3, 3 + GRACE] {
        node.read(now_ns, &[(21, 1)]);
        node.ledger.exported();
    }
    assert_eq!((node.container("web", "app"), node.cgroup("/kubepods"), node.total()), (None, Some(3), 8));
}

#[test]
fn the_level_of_pods_has_their_sandboxes_in_them_and_that_of_nodes_has_one_row() {
    let nodes = &[(20, &*path('f')), (21, &*path('a'))];
    let pods = || vec![pod("web", &[("app", Some('a')), ("helper", None)])];
    let web = Row::Pod { namespace: "shop".into(), pod: "web".into() };
    for (level, expected_pod, expected_node) in [(Level::Pod, Some(8), None), (Level::Node, None, Some(8))] {
        let mut node = Node::of_cluster(nodes, pods());
        node.rules.level = level;
        node.read(PATIENCE + 1, &[(20, 3), (21, 5)]);
        assert_eq!((node.row(&web), node.cgroup("/kubepods")), (expected_pod, expected_node), "{level:?}");
        assert_eq!(node.total(), 8);
    }
}

/// The path of a container of a kubelet that makes no directories for pods.
fn flat(digit: char) -> String {
    format!("/k8s.io/{}", id(digit))
}

/// Pod `log`, which is another pod than all of [`pod`].
fn another(digit: char) -> Pod {
    let uid = "00000000-0000-4000-8000-000000000002".parse().ok();
    Pod { uid, ..pod("log", &[("app", Some(digit))]) }
}

#[test]
fn a_container_outside_of_kubepods_has_the_name_of_the_pod_whose_status_names_it() {
    let of = |name: &str| name.replace("ID", &id('a').to_string());
    for (directory, common) in
        [("/k8s.io/ID", "/k8s.io"), ("/ID", "/"), ("/system.slice/cri-containerd-ID.scope", "/system.slice")]
    {
        let (own, nested) = (of(directory), format!("{}/init.scope", of(directory)));
        for (level, container, all) in [(Level::Container, Some(12), None), (Level::Node, None, Some(12))] {
            let pods = vec![pod("web", &[("app", Some('a'))])];
            let mut node = Node::of_cluster(&[(21, &own), (22, &nested)], pods);
            node.rules.level = level;
            node.read(0, &[(21, 5), (22, 7)]);
            let found = (node.container("web", "app"), node.cgroup(common), node.cgroup(&own));
            assert_eq!(found, (container, all, None), "{directory} {level:?}");
            assert_eq!(node.ledger.containers(), (1, 0));
        }
    }
}

#[test]
fn where_all_pods_are_outside_of_kubepods_counts_wait_for_a_name_and_then_are_the_cgroups() {
    let pods = vec![pod("web", &[("app", Some('a'))])];
    let mut node = Node::of_cluster(&[(21, &flat('a')), (22, &flat('b')), (23, &flat('c'))], pods);
    node.read(SECOND, &[(21, 1), (22, 2), (23, 4)]);
    assert_eq!((node.cgroup(&flat('b')), node.snapshot().cgroups_unresolved), (None, 2));
    node.apply(PodChange::Applied(another('b')), 2 * SECOND);
    node.read(3 * SECOND, &[]);
    assert_eq!((node.container("log", "app"), node.snapshot().cgroups_unresolved), (Some(2), 1));
    node.read(PATIENCE + 1, &[(23, 8)]);
    assert_eq!((node.cgroup(&flat('c')), node.cgroup(UNRESOLVED)), (Some(12), None));
    // A name that comes later moves no count.
    node.apply(PodChange::Applied(another('c')), PATIENCE + 2);
    node.read(PATIENCE + 3, &[(23, 16)]);
    assert_eq!((node.cgroup(&flat('c')), node.container("log", "app"), node.total()), (Some(12), Some(18), 31));
}

#[test]
fn where_pods_are_below_kubepods_a_container_of_nobody_does_not_wait() {
    let pods = vec![pod("web", &[("app", Some('a'))])];
    let mut node = Node::of_cluster(&[(21, &path('a')), (22, &flat('b'))], pods);
    node.read(SECOND, &[(21, 1), (22, 2)]);
    assert_eq!((node.cgroup(&flat('b')), node.snapshot().cgroups_unresolved), (Some(2), 0));
}

#[test]
fn a_directory_elsewhere_with_the_id_of_a_container_below_kubepods_is_not_the_container() {
    let pods = vec![pod("web", &[("app", Some('a'))])];
    let mut node = Node::of_cluster(&[(21, &path('a')), (22, &flat('a'))], pods);
    node.read(SECOND, &[(21, 1), (22, 2)]);
    assert_eq!((node.container("web", "app"), node.cgroup(&flat('a'))), (Some(1), Some(2)));
}

#[test]
fn before_the_first_list_of_pods_a_container_outside_of_kubepods_waits_for_its_name() {
    let mut node = Node { pods: Some(PodIndex::default()), ..Node::new(&[(21, &flat('a'))]) };
    node.read(SECOND, &[(21, 5)]);
    assert_eq!((node.cgroup(&flat('a')), node.snapshot().cgroups_unresolved), (None, 1));
    node.apply(PodChange::All(vec![pod("web", &[("app", Some('a'))])]), 2 * SECOND);
    node.read(3 * SECOND, &[(21, 1)]);
    assert_eq!((node.container("web", "app"), node.cgroup(&flat('a'))), (Some(6), None));
}

#[test]
fn directories_that_users_call_kubepods_take_no_name_from_a_container_outside_of_it() {
    let pods = || vec![pod("web", &[("app", Some('a'))])];
    let own = format!("/user.slice/own.service{}", path('b'));
    let inner = format!("{}{}", flat('a'), path('b'));
    for (made, all) in [(own, Some(5)), (inner, Some(7))] {
        let mut node = Node::of_cluster(&[(21, &flat('a')), (22, &made)], pods());
        node.read(PATIENCE + 1, &[(21, 5), (22, 2)]);
        assert_eq!((node.container("web", "app"), node.cgroup(&flat('a'))), (all, None), "{made}");
    }
}
