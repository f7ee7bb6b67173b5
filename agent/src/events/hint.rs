//! Error messages for a counter that `perf_event_open(2)` refuses, with a remedy. Pure: the error number comes from the
//! caller.

use std::io;

use super::plan::{Counter, Source};

// The uapi's numbers, as on x86-64, arm64 and riscv64.
const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const EBUSY: i32 = 16;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

/// Returns the reason for a refusal with the remedy in brackets; `paranoid` is `kernel.perf_event_paranoid`. The text
/// continues ``failed to open event `NAME`: ``.
#[must_use]
pub fn perf_error_hint(errno: i32, counter: &Counter, paranoid: Option<i32>) -> String {
    match errno {
        ENOENT | ENODEV | EOPNOTSUPP => not_counted(counter),
        EPERM | EACCES => not_allowed(paranoid),
        EMFILE => "too many open files in the agent, which needs one per event and CPU (raise its limit: \
                   `LimitNOFILE=` of a unit, `ulimit -n` of a shell)"
            .to_owned(),
        ENFILE => "too many open files on this machine (raise `sysctl fs.file-max`)".to_owned(),
        ENOSPC | EINVAL => does_not_fit(counter),
        EBUSY => {
            "another user holds the counter exclusively (stop other profilers; `sysctl kernel.nmi_watchdog=0` frees \
                  the watchdog's)"
                .to_owned()
        }
        ENOSYS => "the kernel was built without perf events (needs CONFIG_PERF_EVENTS=y)".to_owned(),
        _ => format!("{} (see `dmesg` and perf_event_open(2))", io::Error::from_raw_os_error(errno)),
    }
}

fn not_counted(counter: &Counter) -> String {
    if is_software(counter) {
        return "not counted by this kernel (needs a newer one, or remove the event)".to_owned();
    }
    match pmu(counter) {
        Some(pmu) => format!(
            "not counted by PMU `{pmu}` on this CPU (see {}/{pmu}: its `cpus` file, where there is one, names the CPUs \
             that have it)",
            super::SYSFS
        ),
        None => {
            "not counted by this CPU or hypervisor (a VM needs a virtual PMU: `-cpu host,pmu=on` in QEMU, a metal or \
                 whole-socket instance in a cloud; else remove the event)"
                .to_owned()
        }
    }
}

fn not_allowed(paranoid: Option<i32>) -> String {
    match paranoid {
        Some(level) if level <= 0 => format!(
            "permission denied although kernel.perf_event_paranoid is {level} (a seccomp profile or security module \
             refuses perf_event_open: allow it, or give CAP_PERFMON)"
        ),
        Some(level) => format!(
            "permission denied (needs CAP_PERFMON, or `sysctl kernel.perf_event_paranoid=0`, now {level}; with the \
             capability, a seccomp profile that allows perf_event_open)"
        ),
        None => {
            "permission denied (needs CAP_PERFMON or kernel.perf_event_paranoid=0, and a seccomp profile that allows \
                 perf_event_open)"
                .to_owned()
        }
    }
}

fn does_not_fit(counter: &Counter) -> String {
    let split = if counter.mode.is_some() { "does not tell user from kernel mode, or " } else { "" };
    match pmu(counter) {
        Some(pmu) => format!(
            "refused by PMU `{pmu}`, which {split}does not take these terms, or has too few counters for the group \
             (split the group, or look at `{}`)",
            counter.kernel_event
        ),
        None => format!(
            "refused by the CPU's PMU, which {split}has too few counters for the group (split the group; `sysctl \
             kernel.nmi_watchdog=0` frees one)"
        ),
    }
}

fn is_software(counter: &Counter) -> bool {
    matches!(&counter.source, Source::Attr(attr) if attr.is_software())
}

/// Returns the PMU that the event names.
fn pmu(counter: &Counter) -> Option<&str> {
    counter.kernel_event.split_once('/').map(|(pmu, _)| pmu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{
        fixture::Sysfs,
        plan::{Limits, plan},
    };

    fn counter(event: &str) -> Counter {
        let sysfs = Sysfs::new();
        let limits = Limits { events: 1, groups: 1 };
        plan(&[vec![event.to_owned()]], sysfs.path(), limits).unwrap().groups.remove(0).remove(0)
    }

    fn hint(errno: i32, event: &str, paranoid: Option<i32>) -> String {
        perf_error_hint(errno, &counter(event), paranoid)
    }

    #[test]
    fn a_machine_without_the_event_is_distinguished_from_a_kernel_without_it() {
        assert!(
            hint(ENOENT, "cycles", None).starts_with("not counted by this CPU or hypervisor (a VM needs a virtual PMU")
        );
        assert!(hint(EOPNOTSUPP, "r1a8", None).starts_with("not counted by this CPU or hypervisor"));
        assert!(hint(ENODEV, "cgroup-switches", None).starts_with("not counted by this kernel"));
        assert!(hint(ENOENT, "armv8_pmuv3_0/cpu_cycles/", None).contains("its `cpus` file"));
    }

    #[test]
    fn permission_names_what_stands_in_the_way() {
        assert!(
            hint(EACCES, "cycles", Some(2))
                .contains("needs CAP_PERFMON, or `sysctl kernel.perf_event_paranoid=0`, now 2")
        );
        assert!(hint(EPERM, "cycles", Some(-1)).contains("a seccomp profile or security module"));
        assert!(hint(EPERM, "cycles", None).contains("needs CAP_PERFMON"));
    }

    #[test]
    fn every_refusal_has_its_remedy_in_brackets() {
        for event in ["cycles", "cycles:u", "faults", "cpu/event=1/", "nowhere/event=1/"] {
            let counter = counter(event);
            for errno in 0..200 {
                let hint = perf_error_hint(errno, &counter, Some(1));
                assert!(hint.contains(" (") && hint.ends_with(')'), "{errno} {event}: {hint}");
            }
        }
    }

    #[test]
    fn limits_and_conflicts_are_distinguished() {
        assert!(hint(EMFILE, "cycles", None).contains("LimitNOFILE"));
        assert!(hint(EBUSY, "cycles", None).contains("exclusively"));
        assert!(hint(EINVAL, "cycles", None).contains("too few counters for the group"));
        assert!(hint(EINVAL, "cycles:u", None).contains("does not tell user from kernel mode"));
        assert!(hint(ENOSPC, "cpu/event=1/", None).contains("`cpu/event=0x1/`"));
        assert!(hint(5, "cycles", None).contains("os error 5"));
    }
}
