//! The codes of the findings, for programs and tests. A code keeps its meaning in later versions; docs/check.md lists
//! them. Pure.

use serde::Serialize;

/// Makes the enum of the codes. Each row is a finding with its code.
macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// The code of a finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $name)] $variant,)*
        }

        impl Code {
            /// All codes, in the order of the report.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The code as text.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

codes! {
    /// The kernel has a version that podperf is tested on.
    KernelTested = "kernel-tested",
    /// The kernel's version is older than all tested ones, which is no obstacle.
    KernelUntested = "kernel-untested",
    /// The kernel describes its types.
    BtfFound = "btf-found",
    /// The kernel does not describe its types.
    BtfMissing = "btf-missing",
    /// The cgroup2 tree is there.
    Cgroup2Found = "cgroup2-found",
    /// The directory has only a part of the machine's cgroup2 tree.
    Cgroup2Part = "cgroup2-part",
    /// No cgroup2 tree is mounted.
    Cgroup2Missing = "cgroup2-missing",
    /// Other mounts hide each cgroup2 mount.
    Cgroup2Hidden = "cgroup2-hidden",
    /// The configured directory is not a cgroup2 tree.
    Cgroup2Wrong = "cgroup2-wrong",
    /// Lockdown does not keep kernel memory from BPF, as far as it is visible.
    LockdownOpen = "lockdown-open",
    /// Lockdown keeps kernel memory from BPF.
    LockdownConfidentiality = "lockdown-confidentiality",
    /// The process has the two capabilities.
    CapabilitiesHeld = "capabilities-held",
    /// A capability is missing.
    CapabilitiesMissing = "capabilities-missing",
    /// The process is in a user namespace, where capabilities do not count.
    CapabilitiesUserNamespace = "capabilities-user-namespace",
    /// The programs were loaded and attached.
    ProgramsAttached = "programs-attached",
    /// The programs were attached, but only by the raw tracepoint.
    ProgramsRawTracepoint = "programs-raw-tracepoint",
    /// The programs were attached, but the processes of the node are not visible.
    ProgramsOwnProcesses = "programs-own-processes",
    /// The programs were not tried, because another line reports something that is missing.
    ProgramsNotTried = "programs-not-tried",
    /// The programs cannot run under the kernel's lockdown.
    ProgramsLockdown = "programs-lockdown",
    /// The kernel lacks features that the programs need.
    ProgramsFeatures = "programs-features",
    /// The verifier rejected a program.
    ProgramsRejected = "programs-rejected",
    /// bpf(2) is not allowed.
    ProgramsForbidden = "programs-forbidden",
    /// The kernel has no bpf(2).
    ProgramsNoBpf = "programs-no-bpf",
    /// There is too little memory for the programs.
    ProgramsNoMemory = "programs-no-memory",
    /// The programs failed for another reason.
    ProgramsFailed = "programs-failed",
    /// A BPF scheduler may enforce CPU limits where the programs do not see it.
    SchedulerBpf = "scheduler-bpf",
    /// Stacks are taken, with all names.
    StacksTaken = "stacks-taken",
    /// No stacks are asked for.
    StacksOff = "stacks-off",
    /// Stacks are taken, but some names are missing.
    StacksWithoutNames = "stacks-without-names",
    /// User stacks are unwound by tables.
    UnwindingTables = "unwinding-tables",
    /// User stacks are walked by frame pointers, as configured.
    UnwindingFramePointers = "unwinding-frame-pointers",
    /// User stacks are walked by frame pointers, because tables lack something.
    UnwindingWithoutTables = "unwinding-without-tables",
    /// Samples on the CPU are taken.
    SamplesTaken = "samples-taken",
    /// No samples on the CPU are asked for.
    SamplesOff = "samples-off",
    /// Samples on the CPU are refused.
    SamplesRefused = "samples-refused",
    /// Isolated CPUs are left alone.
    IsolatedCpusLeftAlone = "isolated-cpus-left-alone",
    /// Isolated CPUs are sampled and interrupted, as configured.
    IsolatedCpusInterrupted = "isolated-cpus-interrupted",
    /// The sensor counts.
    SensorCounts = "sensor-counts",
    /// The kernel lacks what the sensor needs.
    SensorUnsupported = "sensor-unsupported",
    /// The kernel refused a program of the sensor.
    SensorRefused = "sensor-refused",
    /// perf_event_open(2) is allowed.
    PerfAllowed = "perf-allowed",
    /// perf_event_open(2) is refused, but no event is configured.
    PerfNotNeeded = "perf-not-needed",
    /// perf_event_open(2) is refused.
    PerfRefused = "perf-refused",
    /// The event counts all the time.
    EventPlaced = "event-placed",
    /// The event takes turns with others.
    EventShared = "event-shared",
    /// There is no room for the event.
    EventYielded = "event-yielded",
    /// The machine lacks the event or denies it.
    EventUnsupported = "event-unsupported",
    /// The count of the event is impossible for a CPU.
    EventImplausible = "event-implausible",
    /// The NMI watchdog holds no counter.
    WatchdogOff = "watchdog-off",
    /// The NMI watchdog may hold a counter, and the events fit beside it.
    WatchdogFits = "watchdog-fits",
    /// The NMI watchdog may hold a counter that an event needs.
    WatchdogInTheWay = "watchdog-in-the-way",
    /// The node's pods are known.
    PodsKnown = "pods-known",
    /// Names of pods are not asked for.
    PodsOff = "pods-off",
    /// The server answers, and has no pods of this node.
    PodsNone = "pods-none",
    /// The server does not answer, or refuses.
    PodsRefused = "pods-refused",
    /// There are no usable credentials.
    PodsNoCredentials = "pods-no-credentials",
    /// The receiver takes the signal.
    ExportAccepted = "export-accepted",
    /// The receiver takes OTLP, but not this signal.
    ExportSignalOff = "export-signal-off",
    /// The receiver rejects the request's credentials (`otlp.headers`).
    ExportUnauthenticated = "export-unauthenticated",
    /// The receiver's certificate is not trusted.
    ExportUntrusted = "export-untrusted",
    /// The receiver's name is unknown.
    ExportUnknownHost = "export-unknown-host",
    /// The receiver does not answer, or its answer is not that of an OTLP receiver.
    ExportFailed = "export-failed",
    /// The agent would refuse the configuration of the export.
    ExportBadConfiguration = "export-bad-configuration",
    /// The address is free.
    ListenFree = "listen-free",
    /// An agent answers at the address.
    ListenAgent = "listen-agent",
    /// The address or the certificate cannot be used.
    ListenFailed = "listen-failed",
    /// There is no memory budget.
    MemoryNoBudget = "memory-no-budget",
    /// The maps fit into the budget.
    MemoryFits = "memory-fits",
    /// The maps fit only with smaller tables of stacks.
    MemoryReduced = "memory-reduced",
    /// The maps do not fit into the configured budget.
    MemoryTooSmall = "memory-too-small",
    /// The run directory can be written.
    RunDirectoryWritable = "run-directory-writable",
    /// The run directory is that of a running agent.
    RunDirectoryAgent = "run-directory-agent",
    /// The run directory cannot be used.
    RunDirectoryFailed = "run-directory-failed",
    /// Counts end with the agent, as configured.
    RestartOff = "restart-off",
    /// Counts stay when the agent ends; none are kept now.
    RestartEmpty = "restart-empty",
    /// Counts stay when the agent ends; some are kept now.
    RestartKept = "restart-kept",
    /// Counts end with the agent, because they cannot be pinned.
    RestartFailed = "restart-failed",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_lists_exactly_these_codes_in_this_order() {
        let page = include_str!("../../../docs/check.md");
        let (_, list) = page.split_once("\n## Codes\n").unwrap();
        let list = list.split("\n## ").next().unwrap();
        let rows = list.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let names: Vec<_> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(rows.collect::<Vec<_>>(), names);
    }
}
