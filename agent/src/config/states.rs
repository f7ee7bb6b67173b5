//! The states that parts report, from the configuration and the machine. The agent and `podperf check` share them.
//! Pure.

use super::{
    Config, Unwinding,
    parts::{UNSEEN_PROCESSES, all_isolated, lacks_for_tables, mode, quiet_cpus, sends_profiles, wants_profiles},
};
use crate::{
    kernel::{SampleEvent, Tracepoint, host::Host, isolation::CpuRanges, symbols::KernelNames},
    model::{mode::Mode, status::State},
};

/// Returns the state that follows from the form of the scheduling tracepoint, given the configured one.
#[must_use]
pub fn scheduling(wanted: Tracepoint, got: Tracepoint, sees_all_tasks: bool) -> (State, String) {
    let (mut state, mut detail) = match got {
        Tracepoint::Raw if wanted != Tracepoint::Raw => {
            (State::Degraded, "raw tracepoint: wake-ups are found by run times".to_owned())
        }
        _ => (State::Healthy, format!("{got:?} tracepoint").to_lowercase()),
    };
    if !sees_all_tasks {
        let (what, way) = UNSEEN_PROCESSES;
        state = State::Degraded;
        detail += &format!("; waits count when they end: {what} ({way})");
    }
    (state, detail)
}

/// Returns the state that follows from a BPF scheduler with this name, which may enforce CPU limits itself.
#[must_use]
pub fn bpf_scheduler(name: &str) -> (State, String) {
    let detail = format!(
        "the BPF scheduler `{name}` runs: `run_queue` may contain waits for a CPU limit, and it is not known whether a \
         limit or a neighbour is the cause"
    );
    (State::Degraded, detail)
}

/// Returns the state of the cgroup2 tree that the agent reads.
#[must_use]
pub fn cgroup2(host: &Host) -> (State, String) {
    let root = host.cgroup_root.as_deref().unwrap_or_else(|| "".as_ref()).display();
    if host.sees_all_cgroups {
        return (State::Healthy, format!("`{root}`"));
    }
    let detail = format!(
        "`{root}` has only a part of the machine's cgroups: the others have no names (start the container with \
         `--cgroupns=host`, or mount the host's /sys/fs/cgroup and name it with `--cgroup-root DIR`)"
    );
    (State::Degraded, detail)
}

/// Returns the state of stacks.
#[must_use]
pub fn stacks(config: &Config, host: &Host) -> (State, String) {
    let all = match mode(config) {
        Mode::Metrics => return (State::Healthy, "not taken: `stacks.enabled` is false".into()),
        Mode::Reasons => "kernel stacks of every wait, without user frames: `stacks.unwind` is `none`",
        Mode::Profiles => "kernel and user stacks of every wait",
    };
    let missing = host.without_names(mode(config));
    if missing.is_empty() {
        return (State::Healthy, all.into());
    }
    let missing: Vec<_> = missing.iter().map(|(names, need)| format!("{names} (needs {need})")).collect();
    let missing = missing.join(" and ");
    if host.kernel_names != KernelNames::Shown {
        (State::Degraded, format!("without {missing}, and so without reasons of waits"))
    } else if sends_profiles(config) || !host.sees_all_processes {
        (State::Degraded, format!("without {missing}"))
    } else {
        // No receiver is configured that would need the names.
        (State::Healthy, format!("of every wait, without {missing}"))
    }
}

/// Returns the state of the way to find user stacks; `None` if none are taken. `refused` is the error of a program
/// that the kernel refused while it copied stacks.
#[must_use]
pub fn unwinding(config: &Config, host: &Host, refused: Option<&str>) -> Option<(State, String)> {
    if mode(config) != Mode::Profiles {
        return None;
    }
    if config.stacks.unwind == Unwinding::FramePointers {
        return Some((State::Healthy, "by frame pointers, as `stacks.unwind` says".into()));
    }
    let instead = |what: &str, way: &str| {
        format!("by frame pointers instead of tables: {what} ({way}, or set `stacks.unwind: frame-pointers`)")
    };
    Some(match (lacks_for_tables(host), refused) {
        // As for names: without a receiver, nothing is missing that was asked for.
        (Some((what, way)), _) if !sends_profiles(config) => (State::Healthy, instead(what, way)),
        (Some((what, way)), _) => (State::Degraded, instead(what, way)),
        (None, Some(error)) => (State::Degraded, instead(error, "report this as a bug, with the kernel's version")),
        (None, None) => (State::Healthy, "by the unwind tables of the programs' files".into()),
    })
}

/// Returns the state of the way to find user stacks if there is no room for the maps of unwind tables.
#[must_use]
pub fn unwinding_without_room() -> (State, String) {
    let detail = "by frame pointers instead of tables: their maps do not fit into the budget of memory (raise \
                  `overhead.maxMemory` or the container's limit, or set `stacks.unwind: frame-pointers`)";
    (State::Degraded, detail.into())
}

/// Returns the state of samples on the CPU.
#[must_use]
pub fn samples(config: &Config, host: &Host, samples: &Result<Option<SampleEvent>, String>) -> (State, String) {
    match samples {
        Ok(Some(event)) => {
            let event = if *event == SampleEvent::CpuClock { "cpu-clock" } else { "cycles" };
            let which = if quiet_cpus(config, host).is_empty() { "CPU" } else { "CPU that is not isolated" };
            (State::Healthy, format!("{} a second on each {which}, by {event}", config.stacks.on_cpu_hertz))
        }
        Ok(None) if wants_profiles(config) => (State::Healthy, "not taken: `stacks.onCpuHertz` is 0".into()),
        Ok(None) => (State::Healthy, "not taken: no stacks are".into()),
        Err(error) => (State::Degraded, format!("none: {error}")),
    }
}

/// Returns the states of samples on the CPU: while they come, and while none does although threads run. `None` if no
/// samples are taken, or not on all CPUs.
#[must_use]
pub fn sampling(
    config: &Config,
    host: &Host,
    taken: &Result<Option<SampleEvent>, String>,
) -> Option<[(State, String); 2]> {
    let Ok(Some(event)) = taken else { return None };
    let silent = match event {
        SampleEvent::CpuClock => "none: its clock does not fire (report this as a bug, with the kernel's version)",
        SampleEvent::Cycles | SampleEvent::Auto => {
            "none: the event `cycles` does not fire on this machine (set `stacks.onCpuEvent: cpu-clock`)"
        }
    };
    let is_everywhere = quiet_cpus(config, host).is_empty();
    is_everywhere.then(|| [samples(config, host, taken), (State::Degraded, silent.into())])
}

/// Returns the state of isolated CPUs; `None` on a machine without any.
#[must_use]
pub fn isolated_cpus(config: &Config, host: &Host) -> Option<(State, String)> {
    let cpus = all_isolated(config, host);
    if cpus.is_empty() {
        return None;
    }
    let cpus = CpuRanges(&cpus);
    let detail = if config.overhead.interrupt_isolated_cpus {
        format!("{cpus}: samples and readings interrupt them (`overhead.interruptIsolatedCpus` is true)")
    } else {
        format!("{cpus}: not sampled, and a thread there is counted when it leaves the CPU")
    };
    Some((State::Healthy, detail))
}

#[cfg(test)]
mod tests {
    use caps::Capability;

    use super::*;
    use crate::{config::parts::sensor_settings, kernel::isolation::Isolation};

    #[test]
    fn isolated_cpus_are_left_alone_unless_the_configuration_says_otherwise() {
        let isolation = Isolation { isolated: vec![2, 3], nohz_full: vec![3, 4] };
        let host = Host { isolation, ..Host::example() };
        let mut config = Config::default();
        let settings = sensor_settings(&config, &host);
        assert_eq!((settings.quiet_cpus, settings.tickless), (vec![2, 3, 4], true));
        let cycles = Ok(Some(SampleEvent::Cycles));
        assert_eq!(samples(&config, &host, &cycles).1, "49 a second on each CPU that is not isolated, by cycles");
        config.overhead.interrupt_isolated_cpus = true;
        let settings = sensor_settings(&config, &host);
        assert_eq!((settings.quiet_cpus, settings.tickless), (vec![], true), "no frequency on a node with `nohz_full`");
        assert_eq!(samples(&config, &host, &cycles).1, "49 a second on each CPU, by cycles");
        let [coming, silent] = sampling(&config, &host, &cycles).unwrap();
        assert_eq!((coming.0, silent.0), (State::Healthy, State::Degraded));
        assert!(silent.1.ends_with("(set `stacks.onCpuEvent: cpu-clock`)"), "{silent:?}");
        assert_eq!(sampling(&Config::default(), &host, &cycles), None, "threads may run where nothing is sampled");
        let (state, detail) = isolated_cpus(&config, &host).unwrap();
        assert!(state == State::Healthy && detail.starts_with("2-4: "), "{detail}");
        assert_eq!(isolated_cpus(&config, &Host::example()), None);
        let settings = sensor_settings(&Config::default(), &Host::example());
        assert_eq!((settings.quiet_cpus, settings.tickless), (vec![], false));
    }

    #[test]
    fn without_the_nodes_processes_waits_and_names_are_degraded() {
        let way = "`hostPID: true`, or in Docker `--pid=host`)";
        let (state, detail) = scheduling(Tracepoint::Btf, Tracepoint::Btf, false);
        assert!(state == State::Degraded && detail.contains("when they end") && detail.ends_with(way), "{detail}");
        assert_eq!(scheduling(Tracepoint::Btf, Tracepoint::Btf, true), (State::Healthy, "btf tracepoint".into()));
        let host = Host { sees_all_processes: false, ..Host::example() };
        // No receiver is needed: nobody gets the names.
        let (state, detail) = stacks(&Config::default(), &host);
        assert!(state == State::Degraded && detail.contains(&format!("node's processes (needs {way}")), "{detail}");
        assert_eq!(stacks(&Config::parse("stacks: {unwind: none}").unwrap(), &host).0, State::Healthy);
    }

    #[test]
    fn a_part_of_the_cgroup_tree_is_degraded() {
        assert_eq!(cgroup2(&Host::example()), (State::Healthy, "`/sys/fs/cgroup`".into()));
        let (state, detail) = cgroup2(&Host { sees_all_cgroups: false, ..Host::example() });
        assert_eq!(state, State::Degraded);
        assert!(detail.contains("only a part") && detail.contains("`--cgroupns=host`"), "{detail}");
    }

    #[test]
    fn stacks_without_user_frames_need_no_names_but_the_kernels() {
        let config = Config::parse("stacks: {unwind: none}").unwrap();
        let settings = sensor_settings(&config, &Host::example());
        assert_eq!((mode(&config), settings.stacks, settings.user_frames), (Mode::Reasons, true, false));
        let (state, detail) = stacks(&config, &Host::example());
        assert!(state == State::Healthy && detail.contains("`stacks.unwind` is `none`"), "{detail}");
        let hidden = Host { kernel_names: KernelNames::Hidden, ..Host::example() };
        let (state, detail) = stacks(&config, &hidden);
        assert!(state == State::Degraded && detail.contains("CAP_SYSLOG") && !detail.contains("PTRACE"), "{detail}");
        assert_eq!(mode(&Config::parse("stacks: {unwind: none, enabled: false}").unwrap()), Mode::Metrics);
        assert_eq!(mode(&Config::default()), Mode::Profiles);
    }

    #[test]
    fn stacks_without_kernel_names_are_degraded_even_without_a_receiver() {
        let capabilities = vec![Capability::CAP_SYSLOG];
        for (kernel_names, expected, says) in [
            (KernelNames::Shown, State::Healthy, "other users' processes (needs CAP_SYS_PTRACE)"),
            (KernelNames::Hidden, State::Degraded, "kernel names (needs `sysctl kernel.kptr_restrict=1`)"),
            (KernelNames::Missing, State::Degraded, "a kernel with CONFIG_KALLSYMS=y)"),
        ] {
            let host = Host { kernel_names, capabilities: capabilities.clone(), ..Host::example() };
            let (state, detail) = stacks(&Config::default(), &host);
            assert_eq!(state, expected, "{detail}");
            assert!(detail.contains(says), "{detail}");
        }
    }
}
