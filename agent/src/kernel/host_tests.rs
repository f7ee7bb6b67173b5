use super::*;

#[test]
fn two_capabilities_suffice() {
    assert_eq!(Host::example().problems(), []);
}

#[test]
fn sys_admin_stands_for_both() {
    let host = Host { capabilities: vec![Capability::CAP_SYS_ADMIN], ..Host::example() };
    assert_eq!(host.problems(), []);
}

#[test]
fn each_missing_capability_is_named_with_its_purpose() {
    let host = Host { capabilities: vec![Capability::CAP_BPF], ..Host::example() };
    let message = host.problems()[0].to_string();
    assert!(message.contains("CAP_PERFMON (to attach them and to open perf events)"), "{message}");
    assert!(!message.contains("CAP_BPF ("), "{message}");
}

#[test]
fn only_the_strictest_lockdown_is_refused() {
    for (modes, mode, refused) in [
        ("[none] integrity confidentiality\n", "none", false),
        ("none [integrity] confidentiality\n", "integrity", false),
        ("none integrity [confidentiality]\n", "confidentiality", true),
    ] {
        let host = Host { lockdown: lockdown_mode(modes), ..Host::example() };
        assert_eq!(host.lockdown.as_deref(), Some(mode));
        assert_eq!(host.problems() == [Unsupported::Lockdown], refused, "{modes}");
    }
    assert_eq!(lockdown_mode("none\n"), None);
}

#[test]
fn a_user_namespace_is_refused_whatever_its_capabilities() {
    assert!(is_whole("         0          0 4294967295\n"));
    for rootless in ["0 100000 65536\n", "0 0 1\n", "0 1000 1\n1 100000 65536\n"] {
        assert!(!is_whole(rootless), "{rootless}");
    }
    let host = Host { user_namespace: true, ..Host::example() };
    assert_eq!(host.problems(), [Unsupported::UserNamespace]);
}

#[test]
fn names_that_are_missing_are_told_with_what_they_need() {
    let privileged = vec![Capability::CAP_SYSLOG, Capability::CAP_SYS_PTRACE];
    let privileged = Host { capabilities: privileged, ..Host::example() };
    let kernel = "kernel names";
    let (syslog, ptrace) =
        (NamesNeed::Capability(Capability::CAP_SYSLOG), NamesNeed::Capability(Capability::CAP_SYS_PTRACE));
    let host = Host { kernel_names: KernelNames::Hidden, ..Host::example() };
    assert_eq!(host.without_names(Mode::Profiles), [(kernel, syslog), ("names in other users' processes", ptrace)]);
    assert_eq!(host.without_names(Mode::Reasons), [(kernel, syslog)], "no user frame is named");
    for (kernel_names, user_namespace, needs) in [
        (KernelNames::Shown, false, &[][..]),
        (KernelNames::Hidden, false, &[(kernel, NamesNeed::Addresses)]),
        (KernelNames::Hidden, true, &[(kernel, syslog)]),
        (KernelNames::Missing, false, &[(kernel, NamesNeed::Table)]),
    ] {
        let host = Host { kernel_names, user_namespace, ..privileged.clone() };
        assert_eq!(host.without_names(Mode::Profiles), needs);
    }
    let host = Host { sees_all_processes: false, ..privileged };
    assert_eq!(host.without_names(Mode::Profiles), [("names in the node's processes", NamesNeed::Processes)]);
    assert!(host.without_names(Mode::Reasons).is_empty());
}

#[test]
fn the_pmu_of_the_cpus_is_distinguished_from_those_of_devices() {
    for (name, is) in [("cpu", true), ("cpu_core", true), ("armv8_pmuv3_0", true), ("msr", false), ("uprobe", false)] {
        assert_eq!(is_cpu_pmu(name), is, "{name}");
    }
}

#[test]
fn no_kernel_is_refused_by_its_number() {
    for (release, untested) in
        [("5.14.0-503.11.1.el9_5.x86_64", true), ("4.19.0", true), ("6.1.0", false), ("7.2.0-rc1", false)]
    {
        let host = Host { kernel: release.into(), ..Host::example() };
        assert_eq!(host.problems(), [], "{release}");
        assert_eq!(host.is_untested(), untested, "{release}");
    }
}

#[test]
fn kernels_whose_filters_deny_probed_returns_are_known_by_their_release() {
    for release in ["6.11.0-26-generic", "6.12.0", "6.12.12-amd64", "6.13.1", "6.12.0-55.el10.x86_64"] {
        assert!(filters_returns(release), "{release}");
    }
    for release in ["6.1.0-18-amd64", "6.10.14", "6.12.48+deb13-cloud-amd64", "6.13.12", "6.14.0-15-generic", ""] {
        assert!(!filters_returns(release), "{release}");
    }
}

#[test]
fn hidden_mounts_are_all_named() {
    let mounts = vec!["/sys/fs/cgroup".into(), "/mnt/a b".into()];
    let host = Host { cgroup_root: None, is_cgroup2: false, cgroup2_mounts: mounts, ..Host::example() };
    let message = host.problems()[0].to_string();
    assert!(message.contains("each cgroup2 mount: `/sys/fs/cgroup`, `/mnt/a b` ("), "{message}");
}

#[test]
fn a_directory_that_is_no_cgroup2_mount_is_named() {
    let host = Host { cgroup_root: Some("/tmp".into()), is_cgroup2: false, ..Host::example() };
    assert_eq!(host.problems(), [Unsupported::NotCgroup2("/tmp".into())]);
}
