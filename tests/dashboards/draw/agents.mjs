// The series of nodes, and of the agents on them.

import { cgroups, END, pods, TURNS, UPGRADE } from "./clusters.mjs";
import { constant, hash, mixed, SCRAPE, swaying } from "./text.mjs";

const used = (node, at) =>
  pods
    .filter((pod) => pod.node === node && pod.from <= at && at < pod.to)
    .reduce((sum, pod) => sum + Object.values(pod.containers).reduce((cores, facts) => cores + facts.cores(at), 0), 0);

// Writes the series of a node, and of the events that its CPUs count.
export function addNode(text, { cluster, node, cpu, cpus }, agent) {
  for (const [cgroup, cores] of Object.entries(cgroups)) {
    text.counter("podperf_cgroup_oncpu_seconds_total", { ...agent, cgroup }, constant(cores), { noise: 0.1 });
    text.counter(
      "podperf_cgroup_offcpu_seconds_total",
      { ...agent, cgroup, state: "run_queue" },
      (at) => cores * (used(node, at) > 6 ? 0.34 : 0.03),
      { noise: 0.15 },
    );
  }
  const own = Object.values(cgroups).reduce((sum, cores) => sum + cores, 0);
  text.counter("podperf_node_idle_seconds_total", agent, (at) => cpus - used(node, at) - own - 0.05, { noise: 0.01 });
  text.counter("podperf_node_unaccounted_seconds_total", agent, constant(0.05), { noise: 0.1 });
  text.counter("podperf_node_stolen_seconds_total", agent, constant(0.02), { noise: 0.1 });
  for (const [program, cores] of Object.entries({ tail_handle_ipv4: 0.06, generic_kprobe_event: 0.02, sched_switch: 0.004 })) {
    const labels = { ...agent, program };
    text.counter("podperf_node_bpf_program_sampled_seconds_total", labels, constant(cores), { noise: 0.1 });
  }
  for (const [program, type, process, namespace, pod] of [
    ["tail_handle_ipv4", "sched_cls", "cilium-agent", "kube-system", "cilium-6q8dz"],
    ["generic_kprobe_event", "kprobe", "tetragon", "kube-system", "tetragon-p2v7k"],
    ["sched_switch", "tracing", "podperf", "podperf", "podperf-x7k2p"],
  ]) {
    const labels = { ...agent, program, tag: "1".repeat(16), type, process, namespace, pod, container: "", cgroup: "" };
    text.gauge("podperf_node_bpf_program_info", labels, constant(1));
  }
  for (const [kind, cores] of Object.entries({ hardirq: 0.02, net_rx: 0.11, timer: 0.03, sched: 0.02, rcu: 0.01, block: 0.01 })) {
    const labels = { ...agent, kind };
    text.counter("podperf_node_interrupted_seconds_total", labels, constant(cores), { noise: 0.1 });
    text.counter("podperf_node_idle_interrupted_seconds_total", labels, constant(0.4 * cores), { noise: 0.1 });
    text.counter("podperf_node_interrupts_total", labels, constant(3e5 * cores), { noise: 0.1 });
  }
  for (const [interrupt, rate] of Object.entries({ "nvme0q*": 900, "eth0-TxRx-*": 2600, ahci: 12, other: 3 })) {
    const labels = { ...agent, interrupt };
    text.counter("podperf_node_hard_interrupts_total", labels, constant(rate), { noise: 0.1 });
    text.counter("podperf_node_hard_interrupts_seconds_total", labels, constant(0.02 * (rate / 3515)), { noise: 0.1 });
  }
  for (const [fn, threads] of Object.entries({ wb_workfn: 0.21, flush_to_ldisc: 0.02, vmstat_update: 0.004 })) {
    const labels = { ...agent, function: fn };
    text.counter("podperf_node_workqueue_seconds_total", labels, constant(threads), { noise: 0.1 });
    text.counter("podperf_node_workqueue_waits_total", labels, constant(1e4 * threads), { noise: 0.1 });
    text.counter("podperf_node_workqueue_wait_seconds_total", labels, constant(0.4 * threads), { noise: 0.1 });
  }
  const info = { ...agent, vendor: cpu.vendor, cpuid: cpu.cpuid, model_name: cpu.model };
  text.gauge("podperf_node_cpu_info", info, constant(1), { history: true });
  text.gauge(
    "kube_node_info",
    { job: "kube-state-metrics", cluster, node, os_image: "Debian GNU/Linux 13 (trixie)" },
    constant(1),
  );
  text.gauge(
    "kube_node_status_allocatable",
    { job: "kube-state-metrics", cluster, node, resource: "cpu", unit: "core" },
    constant(cpus - 0.2),
  );
  text.gauge("up", agent, constant(1));

  const counted = { cycles: 1, instructions: 1.25, "cache-references": 0.02, "cache-misses": 0.006 };
  for (const [event, share] of Object.entries(counted)) {
    const takesTurns = node === "n3" && event.startsWith("cache");
    const shared = (at) => takesTurns && at >= TURNS;
    text.counter(
      "podperf_pmu_event_counted_total",
      { ...agent, event },
      (at) => share * cpu.hertz * (used(node, at) + own) * (shared(at) ? 0.92 : 1),
    );
    text.counter("podperf_pmu_event_enabled_seconds_total", { ...agent, event }, constant(cpus), { noise: 0 });
    text.counter("podperf_pmu_event_running_seconds_total", { ...agent, event }, (at) => cpus * (shared(at) ? 0.92 : 1), {
      noise: 0,
    });
    text.gauge("podperf_pmu_event_available", { ...agent, event }, constant(1));
    for (const state of ["placed", "shared", "yielded", "unsupported", "implausible"]) {
      text.gauge("podperf_pmu_event_state", { ...agent, event, state }, (at) =>
        Number(state === (shared(at) ? "shared" : "placed")),
      );
    }
  }
}

// Writes the agent's own numbers. Numbers of the process begin again with the new version, and counts go on.
export function addAgent(text, { node, cpus }, agent, number) {
  const upgrade = UPGRADE + number * 0.8;
  const gauge = (name, labels, value, share = 0) =>
    text.gauge(`podperf_${name}`, { ...agent, ...labels }, swaying(name + node + JSON.stringify(labels), value, share));
  const counter = (name, labels, rate, options) =>
    text.counter(`podperf_${name}_total`, { ...agent, ...labels }, typeof rate === "function" ? rate : constant(rate), options);
  const each = (label, rates, write) => Object.entries(rates).forEach(([value, rate]) => write({ [label]: value }, rate));
  text.gauge("podperf_build_info", { ...agent, version: "0.1.0", arch: "x86_64" }, constant(1), { to: upgrade });
  text.gauge("podperf_build_info", { ...agent, version: "0.2.0", arch: "x86_64" }, constant(1), { from: upgrade });
  const parts = [
    "scheduling sensor",
    "cgroup sensor",
    "stacks",
    "cpu samples",
    "counters",
    "losses",
    "names",
    "overhead",
    "pods",
    "restart",
  ];
  for (const part of parts)
    for (const state of ["healthy", "degraded", "unsupported", "failed"])
      gauge("part_state", { part, state }, Number(state === "healthy"));

  gauge("overhead_ratio", {}, 0.0036 + 0.0003 * number, 0.15);
  gauge("overhead_limit_ratio", {}, 0.05);
  gauge("server_overhead_ratio", {}, 0.0007, 0.2);
  gauge("server_overhead_limit_ratio", {}, 0.05);
  const resident = (at) => 3.9e7 + number * 1e6 + 4e6 * Math.min(1, (at < upgrade ? 90 : at - upgrade) / 40);
  text.gauge("process_resident_memory_bytes", agent, resident);
  gauge("overhead_memory_bytes", {}, (at) => resident(at) + 7.9e7);
  gauge("overhead_memory_limit_bytes", {}, 0.8 * 512 * 2 ** 20);
  each(
    "map",
    {
      cgroups: [8192, 2.1e7],
      tasks: [0, 6e6],
      stack_cache: [16384, 1.6e7],
      stack_ring: [4194304, 4.2e6],
      waits_even: [16384, 1.6e7],
      waits_odd: [16384, 1.6e7],
    },
    (labels, [size, bytes]) => {
      gauge("bpf_map_max_entries", labels, size);
      gauge("bpf_map_memory_bytes", labels, bytes);
    },
  );
  gauge("bpf_map_entries", { map: "cgroups" }, 1450 + 90 * number, 0.01);
  each("cap", { cpu: "stacks", memory: "caches" }, (labels, feature) => gauge("overhead_shed", { ...labels, feature }, 0));
  gauge("config_last_reload_successful", {}, 1);
  gauge("exported_series", {}, 510 + 12 * number, 0.01);
  each(
    "program",
    {
      sched_switch: [21000, 210],
      sample: [790, 2900],
      cgroup_attach_task: [14, 640],
      task_newtask: [45, 380],
      flush: [22, 5200],
      collect: [0.1, 9400],
    },
    (labels, [runs, ns]) => {
      counter("bpf_program_runs", labels, runs, { noise: 0.03 });
      counter("bpf_program_run_time_seconds", labels, (runs * ns) / 1e9, { noise: 0.08 });
      counter("bpf_program_misses", labels, 0);
    },
  );
  text.counter("process_cpu_seconds_total", agent, constant(0.016), { noise: 0.1, resets: upgrade });
  counter("server_cpu_seconds", {}, 0.004, { noise: 0.1, resets: upgrade });
  text.gauge("process_start_time_seconds", agent, (at) => END + 60 * (at < upgrade ? -60 * 48 - number : upgrade));
  text.gauge("process_open_fds", agent, swaying(`fds${node}`, 390 + 4 * number, 0.01));
  gauge("scrape_duration_seconds", {}, 0.0042, 0.4);
  counter("readings", {}, 1 / 30, { noise: 0 });

  const drops =
    "task_storage task_busy cgroup_table event_read stack_walk stack_cache stack_ring sample_table sample_stack long_wait cgroup_ring stack_shed sample_busy sensor_table locks_missed_end locks_late_row";
  for (const reason of drops.split(" "))
    counter("bpf_drops", { reason }, { stack_walk: 0.6, sample_stack: 0.15 }[reason] ?? 0, { noise: 0.5 });
  counter("switches_recovered", {}, 0.02 * number, { noise: 0.6 });
  counter("switches_recovered_seconds", {}, 0.0001 * number, { noise: 0.6 });
  each("level", { error: 0, warn: 0.001, info: 0.02 }, (labels, rate) => counter("log_messages", labels, rate, { noise: 0.5 }));
  each("reason", { annotation: 1, limit: 0, namespace: 4 }, (labels, count) => gauge("containers_not_exported", labels, count));

  gauge("kube_watch_connected", {}, 1);
  text.gauge(
    "podperf_kube_watch_last_sync_timestamp_seconds",
    agent,
    (at) => END + 60 * at - swaying(`sync${node}`, 28, 0.8)(at),
  );
  counter("kube_watch_failures", {}, 0);
  counter("kube_watch_restarts", {}, (at) => (Math.abs(at + 20 + number * 23) < SCRAPE ? 1 / 30 : 0), { noise: 0 });
  gauge("kube_pods", {}, pods.filter((pod) => pod.node === node && pod.to === Infinity).length + 6);
  gauge("cgroups_tracked", {}, 188 + 2 * number, 0.01);
  gauge("cgroups_unresolved", {}, (at) => Number(mixed(hash(node), Math.floor(at / SCRAPE)) > 0.85));
  counter("rows_forgotten", {}, 0);

  counter("stack_waits", {}, 5200 + 300 * number, { noise: 0.06 });
  counter("stack_walks", {}, 240, { noise: 0.1 });
  counter("stack_sampled_out", {}, 20, { noise: 0.4 });
  counter("stack_checks", {}, 60);
  counter("stack_checks_wrong", {}, 0.07, { noise: 0.4 });
  counter("stack_seen_seconds", {}, 20);
  counter("stack_seen_wrong_seconds", {}, 0.02, { noise: 0.4 });
  counter("stack_unprofiled_seconds", {}, 0.004 * cpus, { noise: 0.5 });
  counter("stack_symbolized_frames", {}, 800, { noise: 0.08 });
  each("cause", { process_gone: 0.4, no_mapping: 1.2, no_symbol: 31, file_unreadable: node === "n4" ? 6 : 0 }, (labels, rate) =>
    counter("stack_unsymbolized_frames", labels, rate, { noise: 0.2 }),
  );
  if (node === "n4") counter("stack_unread_frames", { namespace: "data", pod: "postgres-1", cgroup: "" }, 6, { noise: 0.2 });
  counter("profile_windows_dropped", {}, 0);

  const signal = { signal: "profiles" };
  const away = (at) => number === 1 && at > -62 && at < -58;
  counter("otlp_exports", signal, (at) => (away(at) ? 0 : 0.1), { noise: 0 });
  each("cause", { unavailable: (at) => (away(at) ? 0.08 : 0), timeout: 0, rejected: 0, too_large: 0 }, (labels, rate) =>
    counter("otlp_export_failures", { ...signal, ...labels }, rate),
  );
  for (const loss of ["lost_requests", "dropped", "rejected"]) counter(`otlp_${loss}`, signal, 0);
  gauge("otlp_queue_length", signal, (at) => (away(at) ? 9 + (at + 58) * 2 : 0));
  gauge("otlp_queue_capacity", signal, 32);
  each("how", { first: [-Infinity], taken_over: [upgrade] }, (labels, [since]) =>
    gauge("starts_total", labels, (at) => Number(at >= since)),
  );
  gauge("kept_file_bytes", {}, 196000 + 2000 * number, 0.01);
  gauge("kept_write_duration_seconds", {}, 0.0021, 0.4);
  counter("kept_write_failures", {}, 0);
}
