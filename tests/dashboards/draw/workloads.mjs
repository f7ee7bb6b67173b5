// The series of pods and their containers: podperf's, and those of kube-state-metrics and cAdvisor that panels use.

import { nodes, pods } from "./clusters.mjs";
import { constant, hash, swaying } from "./text.mjs";

// Writes the series of a container. An empty name stands for the rest of the pod.
function container(text, pod, hertz, name, facts) {
  const { cluster, namespace, node, from, to } = pod;
  const agent = { job: "podperf", cluster, instance: node, node, namespace, pod: pod.pod, ...(name && { container: name }) };
  const when = { from, to };
  const past = { ...when, history: true };
  const family = (fact) => `podperf_container_${fact}_total`;
  const key = `${cluster}${pod.pod}${name}`;
  const cores = swaying(`${key}cores`, facts.cores, 0.03);
  const ipc = swaying(`${key}ipc`, facts.ipc, 0.012);
  const cycles = (at) => cores(at) * hertz;
  const misses = (at) => (cycles(at) * ipc(at) * facts.misses(at)) / 1000;
  text.counter(family("oncpu_seconds"), agent, cores, { ...past, noise: 0 });
  text.counter(family("cpu_cycles"), agent, cycles, { ...past, noise: 0 });
  text.counter(family("cpu_instructions"), agent, (at) => cycles(at) * ipc(at), { ...past, noise: 0 });
  text.counter(family("cpu_cache_misses"), agent, misses, past);
  text.counter(family("cpu_cache_references"), agent, (at) => misses(at) / facts.missShare, when);

  // Reasons and states divide the same waits.
  const held = {
    run_queue: swaying(`${key}queue`, facts.runQueue, 0.25),
    throttled: swaying(`${key}quota`, facts.throttled, 0.12),
    uninterruptible: swaying(`${key}disk`, facts.blocked, 0.2),
  };
  const asleep = (at) =>
    Math.max(0, facts.threads - cores(at) - held.run_queue(at) - held.throttled(at) - held.uninterruptible(at));
  for (const [state, waits] of Object.entries({ interruptible: asleep, ...held }))
    text.counter(family("offcpu_seconds"), { ...agent, state }, waits, { ...when, noise: 0 });
  const part = (of, share) => (at) => of(at) * share;
  const reasons = {
    disk: part(held.uninterruptible, 0.98),
    page_fault: part(held.uninterruptible, 0.02),
    futex: part(asleep, 0.38),
    poll: part(asleep, 0.41),
    network: part(asleep, 0.05),
    sleep: part(asleep, 0.155),
    unknown: part(asleep, 0.005),
    run_queue: held.run_queue,
    throttled: held.throttled,
  };
  for (const [reason, waits] of Object.entries(reasons))
    text.counter(family("wait_seconds"), { ...agent, reason }, waits, { ...when, noise: 0 });
  text.counter(family("context_switches"), { ...agent, kind: "voluntary" }, constant(facts.switches), when);
  text.counter(
    family("context_switches"),
    { ...agent, kind: "involuntary" },
    (at) => 30 * cores(at) + 400 * held.run_queue(at),
    when,
  );
  for (const [syscall, each] of Object.entries({ epoll_wait: 0.9, futex: 0.5, read: 0.6, write: 0.4 }))
    text.counter(family("syscalls"), { ...agent, syscall }, constant(facts.switches * each), when);
  for (const [syscall, errno, each] of [
    ["read", "EAGAIN", 0.2],
    ["openat", "ENOENT", 0.01],
  ])
    text.counter(family("syscall_errors"), { ...agent, syscall, errno }, constant(facts.switches * each), when);
  for (const [kind, share] of Object.entries({ hardirq: 0.004, net_rx: 0.05, timer: 0.01, sched: 0.006 }))
    text.counter(family("interrupted_seconds"), { ...agent, kind }, (at) => share * cores(at), when);
  for (const [fn, longest] of Object.entries({ fsync: 2, handshake: 6 }))
    for (let border = -8; border <= 1; border++)
      text.counter(
        "podperf_container_function_latency_seconds_bucket",
        { ...agent, function: fn, le: border === 1 ? "+Inf" : String(2 ** border) },
        constant(Math.min(60, 60 - 60 * 0.35 ** (border + 9 - longest / 2))),
        { ...when, noise: 0 },
      );
  if (facts.incomplete)
    text.counter(family("incomplete_stack_seconds"), { ...agent, cause: "no_frame_pointers" }, constant(facts.incomplete), when);
  if (facts.guessed) text.counter(family("guessed_stack_seconds"), agent, constant(facts.guessed), when);
  if (!name) return;

  const id = [0, 1, 2, 3, 4, 5, 6, 7].map((number) => hash(`${key}${number}`).toString(16).padStart(8, "0")).join("");
  text.gauge("podperf_container_info", { ...agent, container_id: id, image: facts.image }, constant(1), when);
  const kube = { cluster, namespace, pod: pod.pod, container: name };
  for (const [fact, cores] of [
    ["requests", facts.request],
    ["limits", facts.limit],
  ]) {
    if (cores)
      text.gauge(
        `kube_pod_container_resource_${fact}`,
        { job: "kube-state-metrics", ...kube, node, resource: "cpu", unit: "core" },
        constant(cores),
        when,
      );
  }
  const restarts = facts.restarts ?? [];
  text.gauge(
    "kube_pod_container_status_restarts_total",
    { job: "kube-state-metrics", ...kube },
    (at) => restarts.filter((then) => then <= at).length,
    when,
  );
  const kubelet = { job: "kubelet", ...kube, node };
  const quotas = {
    throttled_seconds: (at) => facts.throttled(at) * 1.05,
    periods: constant(10),
    throttled_periods: (at) => 10 * (facts.cut ?? constant(0.004))(at),
  };
  for (const [fact, rate] of Object.entries(quotas)) text.counter(`container_cpu_cfs_${fact}_total`, kubelet, rate, when);
  text.counter(
    "container_pressure_cpu_waiting_seconds_total",
    kubelet,
    facts.pressure ?? ((at) => Math.min(0.9, facts.runQueue(at) * 0.8)),
    when,
  );
}

export function addWorkloads(text) {
  for (const pod of pods) {
    const { cpu } = nodes.find(({ node }) => node === pod.node);
    for (const [name, facts] of Object.entries(pod.containers)) container(text, pod, cpu.hertz, name, facts);
    if (pod.workload === "cart") {
      const few = {
        ipc: constant(1.1),
        misses: constant(6),
        missShare: 0.3,
        cores: constant(0.006),
        runQueue: constant(0.0003),
        throttled: constant(0),
        blocked: constant(0.0002),
        threads: 1,
        switches: 6,
      };
      container(text, pod, cpu.hertz, "", few);
    }
    const { cluster, namespace, node, from, to, workload, type } = pod;
    const labels = {
      job: "podperf",
      cluster,
      instance: node,
      node,
      namespace,
      pod: pod.pod,
      uid: `u-${pod.pod}`,
      workload,
      workload_type: type,
      qos_class: "burstable",
      priority_class: "",
    };
    text.gauge("podperf_pod_info", labels, constant(1), { from, to, history: true });
  }
}
