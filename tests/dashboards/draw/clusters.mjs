// Two made-up clusters and their incidents. Times are in minutes, and the window ends at 0. The facts of a container are
// functions of the time: cores, instructions per cycle, cache misses per thousand instructions, and threads that wait.

export const END = Date.UTC(2026, 2, 3, 15, 6) / 1000;
export const WINDOW = 180;
// The rules compare with the day that ended an hour ago, and with the two hours around this time yesterday.
export const HISTORY = 27 * 60;

const CART_LOAD = -140; // The pods of `cart` get more work than their CPU limit allows.
const BATCH = -112; // `batch` begins on n2, and its neighbours there become slower.
export const UPGRADE = -90; // A new version of the agent.
const ROLLOUT = -70; // A new revision of `checkout`, with half the instructions per cycle.
const SLOW_DISK = -32; // The disk of postgres-1 becomes slow.
export const TURNS = -40; // Another program counts on n3, so that two of its events take turns.

const intel = {
  vendor: "GenuineIntel",
  cpuid: "GenuineIntel-6-6A",
  model: "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz",
  hertz: 2.9e9,
};
const amd = { vendor: "AuthenticAMD", cpuid: "AuthenticAMD-25-1", model: "AMD EPYC 7R13 Processor", hertz: 3.1e9 };

export const nodes = [
  ["eu-1", "n1", intel],
  ["eu-1", "n2", intel],
  ["eu-1", "n3", amd],
  ["eu-1", "n4", amd],
  ["us-1", "u1", amd],
  ["us-1", "u2", amd],
].map(([cluster, node, cpu]) => ({ cluster, node, cpu, cpus: 8 }));

const after = (moment, before, since) => (at) => (at < moment ? before : since);
// The share of its speed that is left to a neighbour of `batch`.
const beside = (node, left) => after(node === "n2" ? BATCH : 1, 1, left);

// A container; each number may be a function of the time.
const container = (image, facts) => {
  const of = (value) => (typeof value === "function" ? value : () => value);
  const {
    cores,
    ipc,
    misses,
    missShare = 0.2,
    runQueue = 0.02,
    throttled = 0,
    blocked = 0.01,
    threads = 8,
    request,
    limit,
    switches = 900,
    ...rest
  } = facts;
  const waits = { runQueue: of(runQueue), throttled: of(throttled), blocked: of(blocked) };
  return {
    image,
    request,
    limit,
    cores: of(cores),
    ipc: of(ipc),
    misses: of(misses),
    missShare,
    threads,
    switches,
    ...waits,
    ...rest,
  };
};

const proxy = (node) =>
  container("registry.example/mesh/proxy:1.22", {
    cores: 0.045,
    ipc: (at) => 1.6 * beside(node, 0.8)(at),
    misses: 2.4,
    runQueue: 0.001,
    threads: 3,
    request: 0.05,
    limit: 0.2,
    switches: 70,
    blocked: 0.0005,
  });

const checkout = (revision) => (node) => ({
  app: container(`registry.example/shop/checkout:${revision === "new" ? "4.8.0" : "4.7.2"}`, {
    cores: (at) => (revision === "new" ? 1.72 : 1.06) / (revision === "new" ? 1 : beside(node, 0.85)(at)),
    ipc: (at) => (revision === "new" ? 1.02 : 1.9) * beside(node, 0.76)(at),
    misses: (at) => (revision === "new" ? 9.6 : 3.1) / beside(node, 0.72)(at),
    runQueue: (at) => (beside(node, 0)(at) ? 0.03 : revision === "new" ? 0.46 : 0.33),
    threads: 9,
    request: 0.8,
    limit: 2,
  }),
  proxy: proxy(node),
});

const cart = (node) => ({
  app: container("registry.example/shop/cart:2.3.1", {
    cores: after(CART_LOAD, 0.27, 0.44),
    throttled: after(CART_LOAD, 0.004, 0.97),
    ipc: 1.5,
    misses: 3.9,
    missShare: 0.25,
    runQueue: 0.008,
    threads: 7,
    request: 0.25,
    limit: 0.45,
    // Shares of time: at least one thread is held up, and periods in which the quota ran out.
    pressure: after(CART_LOAD, 0.02, 0.71),
    cut: after(CART_LOAD, 0.01, 0.64),
    incomplete: 0.05,
    guessed: 0.3,
    restarts: [-118, -46],
  }),
  proxy: proxy(node),
});

const web = (node) => ({
  app: container("registry.example/shop/web:9.1.4", {
    cores: 0.37,
    ipc: (at) => 2.15 * beside(node, 0.8)(at),
    misses: (at) => 1.7 / beside(node, 0.8)(at),
    runQueue: (at) => (beside(node, 0)(at) ? 0.006 : 0.19),
    request: 0.4,
    limit: 1,
  }),
});

const index = (node) => ({
  app: container("registry.example/search/index:7.0.3", {
    cores: (at) => 1.35 / beside(node, 0.88)(at),
    ipc: (at) => 1.25 * beside(node, 0.72)(at),
    misses: (at) => 8.1 / beside(node, 0.7)(at),
    missShare: 0.3,
    runQueue: (at) => (beside(node, 0)(at) ? 0.05 : 0.72),
    threads: 14,
    request: 1,
    limit: 3,
  }),
});

const postgres = (slow) => (node) => ({
  app: container("registry.example/data/postgres:16.4", {
    cores: slow ? after(SLOW_DISK, 0.87, 0.55) : 0.87,
    ipc: node[0] === "u" ? 1.33 : 1.27,
    misses: 5.9,
    blocked: slow ? after(SLOW_DISK, 0.21, 1.35) : 0.2,
    threads: 24,
    request: 1,
    limit: 4,
  }),
});

const batch = () => ({
  app: container("registry.example/data/batch:1.9.0", {
    cores: 1.31,
    ipc: 0.56,
    misses: 14.1,
    missShare: 0.46,
    runQueue: 0.36,
    threads: 2,
    request: 0.2,
    switches: 240,
  }),
});

const ranker = () => ({
  app: container("registry.example/ads/ranker:3.2.0", { cores: 0.92, ipc: 2.42, misses: 1.9, threads: 12, request: 1, limit: 2 }),
});

const workload = (cluster, namespace, name, type, containers, replicas) =>
  replicas.map(([suffix, node, from = -Infinity, to = Infinity]) => ({
    cluster,
    namespace,
    workload: name,
    type,
    pod: `${name}-${suffix}`,
    node,
    from,
    to,
    containers: containers(node),
  }));

// A replica of the new revision begins every four minutes. With each but the first, one of the old revision ends. On n2,
// which is full, both happen at once.
const turn = (at) => ROLLOUT + at * 4;
export const pods = [
  workload("eu-1", "shop", "checkout", "deployment", checkout("old"), [
    ["7d9f6c5b4-b4qzw", "n1", -Infinity, turn(1)],
    ["7d9f6c5b4-l4zxk", "n1", -Infinity, turn(3)],
    ["7d9f6c5b4-ck2zw", "n2", -Infinity, turn(2)],
    ["7d9f6c5b4-dl6zw", "n3", -Infinity, turn(4)],
    ["7d9f6c5b4-xn7zm", "n3", -Infinity, turn(5)],
    ["7d9f6c5b4-fr2zv", "n4", -Infinity, turn(6)],
  ]),
  workload("eu-1", "shop", "checkout", "deployment", checkout("new"), [
    ["5b8c7d6f9-k2zxh", "n1", turn(0)],
    ["5b8c7d6f9-bk6zv", "n1", turn(1)],
    ["5b8c7d6f9-cr2zv", "n2", turn(2)],
    ["5b8c7d6f9-dk6zv", "n3", turn(3)],
    ["5b8c7d6f9-kx6zq", "n3", turn(4)],
    ["5b8c7d6f9-fk6zv", "n4", turn(5)],
  ]),
  workload("eu-1", "shop", "cart", "deployment", cart, [
    ["6f7b9d8c5-p5zvw", "n1"],
    ["6f7b9d8c5-bt2zx", "n3"],
    ["6f7b9d8c5-cp6zx", "n4"],
  ]),
  workload("eu-1", "shop", "web", "deployment", web, [
    ["6c5d7b8f4-bn4zv", "n2"],
    ["6c5d7b8f4-wq8dl", "n1"],
    ["6c5d7b8f4-tz2lk", "n4"],
  ]),
  workload("eu-1", "search", "index", "statefulset", index, [
    ["0", "n2"],
    ["1", "n3"],
    ["2", "n4"],
  ]),
  workload("eu-1", "data", "postgres", "statefulset", postgres(false), [["0", "n3"]]),
  workload("eu-1", "data", "postgres", "statefulset", postgres(true), [["1", "n4"]]),
  workload("eu-1", "data", "batch", "deployment", batch, [
    ["6b7d9f8c5-s7zxb", "n2", BATCH],
    ["6b7d9f8c5-br4zw", "n2", BATCH],
    ["6b7d9f8c5-cs4zw", "n2", BATCH],
  ]),
  workload("us-1", "shop", "web", "deployment", web, [["6c5d7b8f4-m9zfc", "u1"]]),
  workload("us-1", "data", "postgres", "statefulset", postgres(false), [
    ["0", "u1"],
    ["1", "u2"],
  ]),
  workload("us-1", "ads", "ranker", "deployment", ranker, [
    ["7c6f8d9b5-q2zxn", "u1"],
    ["7c6f8d9b5-v5dgr", "u1"],
    ["7c6f8d9b5-cp6zw", "u2"],
  ]),
].flat();

// Cores of the node's own cgroups.
export const cgroups = {
  "/": 0.05,
  "/kubepods.slice": 0.03,
  "/system.slice/containerd.service": 0.08,
  "/system.slice/kubelet.service": 0.13,
};

// The choices for the variables of the boards. A variable without one is set to all.
export const choices = {
  "podperf-cluster": {},
  "podperf-namespace": { namespace: "shop" },
  "podperf-workload": { namespace: "shop", workload: "checkout" },
  "podperf-pod": { cluster: "eu-1", namespace: "shop", pod: "cart-6f7b9d8c5-p5zvw" },
  "podperf-node": { cluster: "eu-1", node: "n2" },
  "podperf-agent": {},
};
