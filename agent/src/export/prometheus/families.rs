//! The families whose names do not depend on a row or an event: one row each. The agent exports from this table, and
//! `podperf metrics` prints it.

use super::{
    BaseUnit::{self, Bytes, Seconds},
    Kind::{self, Counter, Gauge},
};

/// The definition of a family.
#[derive(Debug)]
pub(super) struct Definition {
    /// The name without unit and `_total`.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) unit: Option<BaseUnit>,
    /// The names of the labels, in the order of their values.
    pub(super) labels: &'static [&'static str],
    /// One sentence without its full stop.
    pub(super) help: &'static str,
    /// The condition under which the family exists; empty if it always does.
    pub(super) when: &'static str,
    /// True if only `metrics.own: all` exports it.
    pub(super) detail: bool,
}

impl Definition {
    const fn new(kind: Kind, name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind, unit: None, labels, help, when: "", detail: false }
    }

    const fn unit(mut self, unit: BaseUnit) -> Self {
        self.unit = Some(unit);
        self
    }

    const fn when(mut self, when: &'static str) -> Self {
        self.when = when;
        self
    }

    /// Leaves the family to `metrics.own: all`.
    const fn detail(mut self) -> Self {
        self.detail = true;
        self
    }
}

/// Defines the rows, and [`ALL`] of them. With `; detail`, only `metrics.own: all` exports the family: no alert, no
/// recording rule and no dashboard but that of the agent needs it.
macro_rules! families {
    ($($row:ident: $kind:ident $name:literal $(in $unit:ident)? [$($label:literal),*] $(; $detail:ident)? $(when $when:literal)?, $help:literal;)*) => {
        $(pub(super) static $row: Definition =
            Definition::new($kind, $name, &[$($label),*], $help)$(.unit($unit))?$(.$detail())?$(.when($when))?;)*
        /// All rows, in their order.
        pub(super) static ALL: &[&Definition] = &[$(&$row),*];
    };
}

#[rustfmt::skip]
families! {
    NODE_IDLE: Counter "podperf_node_idle" in Seconds [],
        "Time that CPUs were idle, all CPUs together";
    NODE_UNACCOUNTED: Counter "podperf_node_unaccounted" in Seconds [],
        "Time of CPUs that is in no row and not idle, all CPUs together: interrupts and what the hypervisor took, where the kernel leaves them out of the time of threads";
    NODE_STOLEN: Counter "podperf_node_stolen" in Seconds [],
        "Time in which CPUs wanted to run and the hypervisor ran something else, all CPUs together, as the hypervisor tells the kernel; 0 may mean that it tells nothing";
    NODE_HARD_INTERRUPTS: Counter "podperf_node_hard_interrupts" ["interrupt"] when "with `sensors.interrupts.enabled`",
        "Hard interrupts by the name that the driver gave, all CPUs together; `*` is the number of a queue; at most 64 series and one for all others";
    NODE_HARD_INTERRUPTS_TIME: Counter "podperf_node_hard_interrupts" in Seconds ["interrupt"] when "with `sensors.interrupts.enabled`",
        "Time in hard interrupts by name, all CPUs together: podperf_node_interrupted_seconds_total of the kind `hardirq`";
    NODE_CPU_INFO: Gauge "podperf_node_cpu_info" ["vendor", "cpuid", "model_name"],
        "Vendor, kind and model of the node's CPUs, always 1; `cpuid` distinguishes micro-architectures as perf does";
    NODE_SCHEDULER_INFO: Gauge "podperf_node_scheduler_info" ["scheduler"] when "with a BPF scheduler",
        "Name of the BPF scheduler (sched_ext) that runs, always 1; it may enforce CPU limits itself, and the time in which it does is `run_queue`, not `throttled`";
    NODE_PROGRAMS: Counter "podperf_node_bpf_program_sampled" in Seconds ["program"] when "with samples on the CPU",
        "Time of samples on the CPU in BPF programs of the node, podperf's included, by the program's name; at most 256 series and one for all others";
    NODE_WORK_RUNS: Counter "podperf_node_workqueue_runs" ["function"] when "with `sensors.workqueues.enabled`",
        "Items of the kernel's work queues that ended, by the function that they call; at most `sensors.workqueues.maxFunctions` series and one for all others";
    NODE_WORK_TIME: Counter "podperf_node_workqueue" in Seconds ["function"] when "with `sensors.workqueues.enabled`",
        "Time of these items from their start to their end, asleep or awake";
    NODE_WORK_WAITS: Counter "podperf_node_workqueue_waits" ["function"] when "with `sensors.workqueues.enabled`",
        "Those of these items that were seen to wait for a worker: all but barriers";
    NODE_WORK_WAIT_TIME: Counter "podperf_node_workqueue_wait" in Seconds ["function"] when "with `sensors.workqueues.enabled`",
        "Time of these waits, from the item's activation to its start";
    NODE_PROGRAM_RUNS: Counter "podperf_node_bpf_program_runs" ["program", "tag"] when "in the mode `profiles`, once somebody has enabled the kernel's statistics of programs",
        "Runs of BPF programs of the node by the kernel's own count, exact; at most 256 series and one for all others";
    NODE_PROGRAM_RUN_TIME: Counter "podperf_node_bpf_program_run_time" in Seconds ["program", "tag"] when "in the mode `profiles`, once somebody has enabled the kernel's statistics of programs",
        "Time in these runs by the kernel's own count, exact; it includes interrupts, which podperf_node_bpf_program_sampled_seconds_total leaves out";
    NODE_PROGRAM_INFO: Gauge "podperf_node_bpf_program_info" ["program", "tag", "type", "process", "namespace", "pod", "container", "cgroup"] when "in the mode `profiles`",
        "A BPF program of the node and a process that holds it, always 1; the process is `(pinned)` if none does; at most 256 series and one for all others";
    POD_INFO: Gauge "podperf_pod_info" ["namespace", "pod", "uid", "workload", "workload_type", "qos_class", "priority_class"] when "in a cluster",
        "Workload, classes and configured labels of a pod, always 1";
    CONTAINER_INFO: Gauge "podperf_container_info" ["namespace", "pod", "container", "container_id", "image"] when "in a cluster",
        "Id and image of a container's last life, always 1";

    BUILD_INFO: Gauge "podperf_build_info" ["version", "arch"],
        "Version and architecture of this agent, always 1";
    PART_STATE: Gauge "podperf_part_state" ["part", "state"],
        "State of each part of the agent: 1 for the state it is in; the other states are 0, with `metrics.own: all`";

    PMU_AVAILABLE: Gauge "podperf_pmu_event_available" ["event"] when "with counters",
        "Whether the event is counted";
    PMU_STATE: Gauge "podperf_pmu_event_state" ["event", "state"] when "with counters",
        "State of each configured event: 1 for the state it is in; the other states are 0, with `metrics.own: all`";
    PMU_INFO: Gauge "podperf_pmu_event_info" ["event", "kernel_event"]; detail when "with counters",
        "The kernel's event for each configured event, always 1";
    PMU_COUNTED: Counter "podperf_pmu_event_counted" ["event"]; detail when "with counters",
        "Count of all CPUs, not scaled, clocks in nanoseconds: what all rows are a part of";
    PMU_ENABLED: Counter "podperf_pmu_event_enabled" in Seconds ["event"] when "with hardware counters",
        "CPU time for which the event's group was to be counted";
    PMU_RUNNING: Counter "podperf_pmu_event_running" in Seconds ["event"] when "with hardware counters",
        "CPU time for which the event's group was on the PMU; less than enabled means multiplexed";

    OVERHEAD: Gauge "podperf_overhead_ratio" [],
        "Share of all CPUs' time that podperf took, programs and process together; without answering, see podperf_server_overhead_ratio";
    OVERHEAD_LIMIT: Gauge "podperf_overhead_limit_ratio" [],
        "The cap on that share; 0 is none";
    OVERHEAD_MEMORY: Gauge "podperf_overhead_memory" in Bytes [],
        "Memory that podperf takes, maps of the programs and resident memory of the process together";
    OVERHEAD_MEMORY_LIMIT: Gauge "podperf_overhead_memory_limit" in Bytes [],
        "The cap on that memory; 0 is none";
    OVERHEAD_SHED: Gauge "podperf_overhead_shed" ["cap", "feature"],
        "Features given up to stay below the cap, of `cpu` or of `memory`; of counters, groups; of walks, halvings";

    BPF_DROPS: Counter "podperf_bpf_drops" ["reason"],
        "Counts, samples and stacks that the BPF programs left out, by reason";
    HOLDERS_UNREAD: Gauge "podperf_bpf_holders_unread" ["reason"]; detail when "in the mode `profiles`",
        "Processes and pins that were not or not wholly looked at for podperf_node_bpf_program_info, in the last pass, by reason";
    PROGRAM_LOADED: Gauge "podperf_bpf_program_loaded" ["program"]; detail,
        "Whether the program is loaded";
    PROGRAM_RUN_TIME: Counter "podperf_bpf_program_run_time" in Seconds ["program"]; detail,
        "Time in the program, estimated from runs that it times itself";
    PROGRAM_RUNS: Counter "podperf_bpf_program_runs" ["program"]; detail,
        "Runs of the program";
    PROGRAM_MISSES: Counter "podperf_bpf_program_misses" ["program"]; detail,
        "Runs that the kernel skipped to avoid recursion";
    PROGRAM_VERIFIED: Gauge "podperf_bpf_program_verified_instructions" ["program"]; detail,
        "Instructions that the kernel's verifier walked, over all paths: the size of the program";
    MAP_ENTRIES: Gauge "podperf_bpf_map_entries" ["map"],
        "Entries in use, of the map that a busy node fills";
    MAP_MAX_ENTRIES: Gauge "podperf_bpf_map_max_entries" ["map"],
        "Size of the map in entries, bytes for rings; of maps without podperf_bpf_map_entries with `metrics.own: all`";
    MAP_MEMORY: Gauge "podperf_bpf_map_memory" in Bytes ["map"]; detail,
        "Kernel memory that the map holds; of `tasks` an estimate, from the number of the node's threads";
    RECOVERED: Counter "podperf_switches_recovered" []; detail,
        "Switches to a thread that the kernel did not report, found by the thread's run time";
    RECOVERED_TIME: Counter "podperf_switches_recovered" in Seconds []; detail,
        "Time from the last reported switch to each recovered one: the counters of this time are charged to the cgroup of the reported switch";

    STACK_WAITS: Counter "podperf_stack_waits" [],
        "Waits that should have a stack";
    STACK_WALKS: Counter "podperf_stack_walks" [],
        "Waits whose stack was copied or walked, and did not come from the stack cache";
    STACK_CHECKS: Counter "podperf_stack_checks" []; detail,
        "Checks of remembered stacks, by a walk or by a recipe";
    STACK_CHECKS_WRONG: Counter "podperf_stack_checks_wrong" []; detail,
        "Checks that found another stack; their share of all checks estimates the share of wrong stacks in the stack cache";
    STACK_KERNEL_WALKS: Counter "podperf_stack_kernel_walks" []; detail,
        "Waits whose user frames a recipe proved and whose kernel part was walked";
    STACK_SAMPLED_OUT: Counter "podperf_stack_sampled_out" []; detail,
        "Short waits over the budget of walks, for which other waits stand in profiles";
    STACK_UNPROFILED: Counter "podperf_stack_unprofiled" in Seconds [],
        "Time off the CPU that is in no profile, for the reasons in podperf_bpf_drops_total";
    STACK_SHADOW_WAITS: Counter "podperf_stack_shadow_waits" []; detail,
        "Waits with a cached stack that were walked all the same; 0 outside of podperf's tests";
    STACK_SHADOW_WRONG: Counter "podperf_stack_shadow_wrong" []; detail,
        "Waits of podperf_stack_shadow_waits_total whose cached stack was wrong";
    STACK_SHADOW_TIME: Counter "podperf_stack_shadow_waits" in Seconds []; detail,
        "Time of the waits in podperf_stack_shadow_waits_total";
    STACK_SHADOW_WRONG_TIME: Counter "podperf_stack_shadow_wrong" in Seconds []; detail,
        "Time of the waits in podperf_stack_shadow_wrong_total, without those that were corrected";
    STACK_SHADOW_PROOFS: Counter "podperf_stack_shadow_proofs" []; detail,
        "Stacks that a recipe had proved and that were unwound all the same; 0 outside of podperf's tests";
    STACK_SHADOW_PROOFS_WRONG: Counter "podperf_stack_shadow_proofs_wrong" []; detail,
        "Stacks of podperf_stack_shadow_proofs_total for which unwinding found another one";
    STACK_SEEN: Counter "podperf_stack_seen" in Seconds []; detail,
        "Sleep whose remembered stack was compared with the real one";
    STACK_SEEN_WRONG: Counter "podperf_stack_seen_wrong" in Seconds []; detail,
        "Sleep whose remembered stack was not the real one; profiles and reasons have the real one";
    STACK_CUT: Counter "podperf_stack_cut_samples" ["cause"]; detail,
        "Samples on the CPU whose stack is `cut`, by cause";
    SYMBOLIZED: Counter "podperf_stack_symbolized_frames" []; detail,
        "Frames that got a name";
    UNSYMBOLIZED: Counter "podperf_stack_unsymbolized_frames" ["cause"]; detail,
        "Frames without a name, by cause";
    UNREAD: Counter "podperf_stack_unread_frames" ["namespace", "pod", "cgroup"]; detail,
        "Frames of cause `file_unreadable`, by pod or row of cgroups; at most 100 series and one for all others";
    DEBUG_FILES: Counter "podperf_debuginfod_files" ["outcome"]; detail when "with `stacks.debuginfod.urls`",
        "Debug files that names needed, by what came of asking the servers; an `unusable` file was sent before";
    DEBUG_CACHE: Gauge "podperf_debuginfod_cache" in Bytes []; detail when "with `stacks.debuginfod.urls`",
        "Size of the debug files on the node's disk";
    WINDOWS_DROPPED: Counter "podperf_profile_windows_dropped" [],
        "Profiles given up because symbols or the exporter took too long";

    KUBE_CONNECTED: Gauge "podperf_kube_watch_connected" [] when "in a cluster",
        "Whether changes of pods arrive";
    KUBE_RESTARTS: Counter "podperf_kube_watch_restarts" []; detail when "in a cluster",
        "Restarts of the watch of pods, and complete lists after the first one";
    KUBE_FAILURES: Counter "podperf_kube_watch_failures" [] when "in a cluster",
        "Requests for pods that failed";
    KUBE_LAST_SYNC: Gauge "podperf_kube_watch_last_sync_timestamp" in Seconds [] when "in a cluster",
        "When the pods were last known to be complete, Unix time; 0 for never";
    KUBE_PODS: Gauge "podperf_kube_pods" [] when "in a cluster",
        "Pods of this node";
    NOT_EXPORTED: Gauge "podperf_containers_not_exported" ["reason"] when "in a cluster",
        "Containers that live but have no series of their own, by the reason";

    OTLP_EXPORTS: Counter "podperf_otlp_exports" ["signal"] when "with `otlp.endpoint`",
        "Requests that the receiver accepted";
    OTLP_FAILURES: Counter "podperf_otlp_export_failures" ["signal", "cause"] when "with `otlp.endpoint`",
        "Attempts to export that failed, by cause";
    OTLP_LOST: Counter "podperf_otlp_lost_requests" ["signal"] when "with `otlp.endpoint`",
        "Requests that were given up";
    OTLP_DROPPED: Counter "podperf_otlp_dropped" ["signal"] when "with `otlp.endpoint`",
        "Profiles that found the queue full";
    OTLP_REJECTED: Counter "podperf_otlp_rejected" ["signal"] when "with `otlp.endpoint`",
        "Profiles that the receiver refused out of requests that it accepted";
    OTLP_QUEUE: Gauge "podperf_otlp_queue_length" ["signal"]; detail when "with `otlp.endpoint`",
        "Profiles that wait";
    OTLP_QUEUE_CAPACITY: Gauge "podperf_otlp_queue_capacity" ["signal"]; detail when "with `otlp.endpoint`",
        "Profiles that can wait";

    HTTP_REQUESTS: Counter "podperf_http_requests" ["code"]; detail,
        "Requests that the agent's own server answered, by status code";
    HTTP_REFUSALS: Counter "podperf_http_refusals" ["reason"]; detail,
        "Connections closed and requests refused by that server, by reason";
    SERVER_CPU: Counter "podperf_server_cpu" in Seconds [],
        "CPU time that readers cost: the server's threads, drawing, and readings that were made for them";
    SERVER_OVERHEAD: Gauge "podperf_server_overhead_ratio" [],
        "Share of all CPUs' time that readers cost, over the last seconds";
    SERVER_OVERHEAD_LIMIT: Gauge "podperf_server_overhead_limit_ratio" []; detail,
        "The cap on that share; 0 is none";
    CERTIFICATE_EXPIRY: Gauge "podperf_server_certificate_expiry_timestamp" in Seconds [] when "with `server.tls`",
        "When the first certificate of the server's chain ends, Unix time";
    ACCESS_REVIEWS: Counter "podperf_access_reviews" ["result"]; detail when "with `server.authorization`",
        "Tokens that the API server was asked about, by what came of it";

    CGROUPS_TRACKED: Gauge "podperf_cgroups_tracked" [],
        "Cgroups that live";
    CGROUPS_UNRESOLVED: Gauge "podperf_cgroups_unresolved" [],
        "Cgroups whose counts wait for a path or a pod's name";
    ROWS_FORGOTTEN: Counter "podperf_rows_forgotten" []; detail,
        "Rows of what had ended that went before `cgroups.grace` was over, since there were too many; the node's sum has their counts";
    STARTS: Counter "podperf_starts" ["how"]; detail when "with `restart.pin`",
        "Agents that started since the counts began, by how: `first`; `adopted` and `taken_over` without a gap; `anew` with a gap; `incomplete` if counts of the previous programs could not all be read; `unusable` if the checkpoint could not be used";
    KEPT_BYTES: Gauge "podperf_kept_file" in Bytes []; detail when "with `restart.pin`",
        "Size of the checkpoint, which the next agent reads beside the kernel's maps";
    KEPT_DURATION: Gauge "podperf_kept_write_duration" in Seconds []; detail when "with `restart.pin`",
        "Time to write the checkpoint, in the reading behind this scrape";
    KEPT_FAILURES: Counter "podperf_kept_write_failures" []; detail when "with `restart.pin`",
        "Writes of the checkpoint that failed";
    READINGS: Counter "podperf_readings" []; detail,
        "Readings of the kernel's maps; scrapes within a second share one";
    READING_TIME: Gauge "podperf_reading_timestamp" in Seconds [],
        "When the counts in this scrape were read, Unix time: up to a second before the scrape";
    SCRAPE_DURATION: Gauge "podperf_scrape_duration" in Seconds [],
        "Duration of the reading behind this scrape";
    RELOAD_SUCCESSFUL: Gauge "podperf_config_last_reload_successful" [],
        "Whether the last reading of the configuration was taken";
    RELOAD_TIME: Gauge "podperf_config_last_reload_success_timestamp" in Seconds []; detail,
        "When the configuration was last taken, Unix time";
    LOG_MESSAGES: Counter "podperf_log_messages" ["level"]; detail,
        "Log messages written";
    EXPORTED_SERIES: Gauge "podperf_exported_series" [],
        "Series in this scrape, this one left out";

    PROCESS_CPU: Counter "process_cpu" in Seconds [],
        "Total user and system CPU time spent";
    PROCESS_START: Gauge "process_start_time" in Seconds [],
        "Start time of the process, Unix time";
    PROCESS_VIRTUAL_MEMORY: Gauge "process_virtual_memory" in Bytes []; detail,
        "Virtual memory size";
    PROCESS_RESIDENT_MEMORY: Gauge "process_resident_memory" in Bytes [],
        "Resident memory size";
    PROCESS_OPEN_FDS: Gauge "process_open_fds" []; detail,
        "Number of open file descriptors";
}
