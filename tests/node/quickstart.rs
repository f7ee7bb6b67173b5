//! The commands of docs/quickstart.md, as a reader types them: from an empty cluster to an alert that fires, and back.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{Metrics, Sample},
    process,
    suite::{self, Need, Test, within},
    tests, vm,
};
use tempfile::TempDir;

use crate::{
    cluster::{self, Cluster, is_ready},
    pods,
    registry::{VERSION, sources},
    uninstall,
};

pub(crate) const TESTS: &[Test] = tests![
    the_quickstarts_commands_lead_to_a_firing_alert: NEEDS,
];

const NEEDS: &[Need] = &cluster::needs_and("curl");

const PAGE: &str = "docs/quickstart.md";
const ALERT: &str = "PodperfDemoThrottled";
const DEMO: &str = "podperf-demo";
/// The namespace and the container of the demo's pod, as labels.
const LOOP: [(&str, &str); 2] = [("namespace", DEMO), ("container", "loop")];
/// The time limit of a block, in seconds. `rollout status` has none of its own.
const BLOCK_WITHIN: &str = "600";
/// The time limit for targets. The page says a minute.
const UP_WITHIN: Duration = Duration::from_secs(240);
/// The time limit for the alert. The page says four minutes.
const FIRES_WITHIN: Duration = Duration::from_secs(480);
const FORWARDS_WITHIN: Duration = Duration::from_secs(60);
const ENDS_WITHIN: Duration = Duration::from_secs(5);
/// The time between two queries. Each query starts a `promtool` on an emulated CPU.
const ASK_EVERY: Duration = Duration::from_secs(3);
/// `throttled` is more than this multiple of `run_queue` for a pod that only its own limit holds back.
const MORE_THROTTLED: f64 = 10.0;

/// Runs the blocks of the steps 2, 3 (without the operator), 4 and 6. It changes only what the page tells a reader to
/// change. Step 5 needs hardware counters, which emulated x86 machines do not have, so the test runs only the check at
/// the beginning of that step.
fn the_quickstarts_commands_lead_to_a_firing_alert() -> Result<()> {
    // This machine has no room for the nodes of two clusters.
    cluster::end();
    let page = Page::read()?;
    let mut timer = Timer::start();
    let cluster = Cluster::start()?;
    fill_registry(&cluster, &page)?;
    timer.tell("before step 2, the nodes and the images");
    let reader = Reader::new(&cluster, &page)?;
    let outcome = reader.follow(&mut timer);
    outcome.with_context(|| cluster.describe(DEMO))
}

/// Pushes the images of the page's steps, under the names that the steps use.
fn fill_registry(cluster: &Cluster, page: &Page) -> Result<()> {
    let agent = format!("podperf:{VERSION}");
    let pushed = format!("docker push registry.example.com/{agent}");
    ensure!(page.text.contains(&pushed), "{PAGE} has no `{pushed}`");
    cluster.registry.push_image(&cluster::image()?.display().to_string(), &agent)?;

    let tools = format!("{}/tools.tar:registry.test/tools:1", vm::script("node", "build.sh", &[])?);
    cluster.registry.push_image(&tools, &format!("library/{}", image_of("throttled")?))?;
    let directory = TempDir::new()?;
    let archive = directory.path().join("prometheus.tar").display().to_string();
    let archive = vm::script("node", "prometheus.sh", &[&archive])?;
    cluster.registry.push_image(&archive, &image_of("prometheus")?)
}

/// Returns the image of a manifest of the demo.
fn image_of(name: &str) -> Result<String> {
    let text = fs::read_to_string(sources().join(format!("config/demo/{name}.yaml")))?;
    let image = text.lines().find_map(|line| line.trim().strip_prefix("image: "));
    image.map(str::to_owned).with_context(|| format!("config/demo/{name}.yaml has no image"))
}

/// Prints how long each step took.
struct Timer {
    step: Instant,
}

impl Timer {
    fn start() -> Self {
        Self { step: Instant::now() }
    }

    fn tell(&mut self, step: &str) {
        suite::tell(&format!("{:4.0} s  {step}", self.step.elapsed().as_secs_f64()));
        self.step = Instant::now();
    }
}

/// The text of the page.
struct Page {
    text: String,
}

impl Page {
    fn read() -> Result<Self> {
        Ok(Self { text: fs::read_to_string(sources().join(PAGE))? })
    }

    /// Returns the `sh` blocks between a heading and the next one.
    fn blocks<const N: usize>(&self, heading: &str) -> Result<[String; N]> {
        let mut found = Vec::new();
        let (mut inside, mut block) = (false, None::<String>);
        for line in self.text.lines() {
            block = match block.take() {
                Some(text) if line == "```" => {
                    found.extend(inside.then_some(text));
                    None
                }
                Some(text) => Some(format!("{text}{line}\n")),
                None if line == "```sh" => Some(String::new()),
                None => {
                    inside = if line.starts_with('#') { line == heading } else { inside };
                    None
                }
            };
        }
        let count = found.len();
        found.try_into().ok().with_context(|| format!("{PAGE}: {count} blocks below `{heading}`, and the test has {N}"))
    }

    /// Replaces a text in a block. The page must tell the reader to do so, in the words "for `TEXT`" or
    /// "in place of `TEXT`".
    fn replace(&self, block: &str, from: &str, to: &str) -> Result<String> {
        let prose = self.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_told = ["for", "in place of"].iter().any(|words| prose.contains(&format!("{words} `{from}`")));
        ensure!(is_told, "{PAGE} tells nobody to replace `{from}`");
        ensure!(block.contains(from), "no `{from}` in: {block}");
        Ok(block.replace(from, to))
    }
}

/// A reader at a shell in the root of the repository, with the rights of an administrator.
struct Reader<'a> {
    cluster: &'a Cluster,
    page: &'a Page,
    path: OsString,
    home: TempDir,
}

impl<'a> Reader<'a> {
    fn new(cluster: &'a Cluster, page: &'a Page) -> Result<Self> {
        let helm = PathBuf::from(vm::script("chart", "build.sh", &["helm"])?);
        let kubectl = cluster.control_plane.programs().to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([helm, kubectl].into_iter().chain(std::env::split_paths(&path)))?;
        Ok(Self { cluster, page, path, home: TempDir::new()? })
    }

    fn follow(&self, timer: &mut Timer) -> Result<()> {
        let start = Instant::now();
        let [namespaces] = self.page.blocks("### 2. The namespaces")?;
        self.run(&namespaces)?;
        timer.tell("step 2, the namespaces");

        self.install(timer)?;
        let pod = self.throttle(timer)?;
        suite::tell(&format!("{:4.0} s  from step 2 to the firing alert", start.elapsed().as_secs_f64()));
        self.look_behind(&pod)?;
        timer.tell("step 4, the agent's numbers");

        self.check()?;
        timer.tell("step 5, its check");
        let agents = uninstall::running_agents(self.cluster)?;
        let [removal] = self.page.blocks("### 6. Remove it")?;
        self.run(&removal)?;
        timer.tell("step 6, the removal");
        uninstall::ensure_nothing_is_left(self.cluster, &agents)?;
        let namespaces = self.cluster.control_plane.admin_kubectl(&["get", "namespaces", "--output=name"])?;
        ensure!(!namespaces.contains("podperf"), "left in the cluster: {namespaces}");
        Ok(())
    }

    /// Step 3: podperf and a Prometheus, until each node is a target that is up.
    fn install(&self, timer: &mut Timer) -> Result<()> {
        let [which] = self.page.blocks("### 3. podperf and a Prometheus")?;
        let complains = self.try_to(&which)?;
        let complains = String::from_utf8_lossy(&complains.stderr).into_owned();
        let row = "the server doesn't have a resource type \"prometheus\"";
        ensure!(self.page.text.contains(&format!("| `{row}` | [without the operator]")), "{PAGE} has no row `{row}`");
        ensure!(complains.contains(row), "{complains}");

        let [install, targets] = self.page.blocks("#### Without the operator")?;
        self.run(&self.page.replace(&install, "localhost", &self.cluster.registry.address().to_string())?)?;
        timer.tell("step 3, podperf and a Prometheus");
        let nodes: BTreeSet<_> = self.cluster.nodes.iter().map(|node| node.name().to_owned()).collect();
        self.query_until(UP_WITHIN, &targets, "each node is a target that is up", |series| {
            let up = series.iter().filter(|target| target.value.to_bits() == 1.0_f64.to_bits());
            let up: BTreeSet<_> = up.filter_map(|target| target.labels.get("node").cloned()).collect();
            series.len() == nodes.len() && up == nodes
        })?;
        timer.tell("step 3, until each node is a target");
        Ok(())
    }

    /// Step 4 until the alert fires. Returns the name of its pod.
    fn throttle(&self, timer: &mut Timer) -> Result<String> {
        let [apply, alerts, ..] = self.step_4()?;
        self.run(&apply)?;
        timer.tell("step 4, the throttled pod");
        let series = self.query_until(FIRES_WITHIN, &alerts, "the alert fires", |series| {
            series.iter().any(|alert| alert.labels.get("alertstate").is_some_and(|state| state == "firing"))
        })?;
        timer.tell("step 4, until the alert fires");
        let pod = self.cluster.wait_for_pod(DEMO, "throttled-", "is ready", is_ready)?;
        let pod = pods::name(&pod)?.to_owned();
        ensure_only(&series, &pod)?;
        Ok(pod)
    }

    /// Step 4 after the alert: the numbers behind it.
    fn look_behind(&self, pod: &str) -> Result<()> {
        let [_, alerts, way, curl] = self.step_4()?;
        let lines: Vec<_> = way.lines().collect();
        let [of_pod, of_agent, forward] = lines[..].try_into().context("not three commands on the way to the agent")?;
        let node = cell(&self.run(of_pod)?, "NODE")?;
        let agent = cell(&self.run(&self.page.replace(of_agent, "worker-1", &node)?)?, "NAME")?;
        let mut forward = self.begin(&self.page.replace(forward, "podperf-x7k2p", &agent)?)?;
        let metrics = within(FORWARDS_WITHIN, "the agent's port is forwarded", || {
            thread::sleep(ASK_EVERY);
            ensure!(forward.child.try_wait()?.is_none(), "`kubectl port-forward` ended: {}", forward.log()?);
            let output = self.try_to(&curl)?;
            Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
        })?;
        let metrics = Metrics::parse(&metrics);
        let of = |state| {
            let labels = [LOOP[0], LOOP[1], ("pod", pod), ("state", state)];
            let seconds = metrics.get("podperf_container_offcpu_seconds_total", &labels);
            seconds.with_context(|| format!("no `{state}` of {pod} in {metrics:?}"))
        };
        let (throttled, queued) = (of("throttled")?, of("run_queue")?);
        suite::tell(&format!("{pod}: {throttled:.1} s throttled, {queued:.1} s in the run queue"));
        ensure!(throttled > queued * MORE_THROTTLED, "{throttled} s throttled, and {queued} s in the run queue");
        ensure_only(&parsed(&self.run(&self.without_operator(&alerts)?)?), pod)
    }

    /// Step 5 up to the check whether the node has counters.
    fn check(&self) -> Result<()> {
        let [check, ..]: [_; 4] = self.page.blocks("### 5. A pod with a low IPC and its alert")?;
        let output = self.try_to(&check)?;
        let report = String::from_utf8_lossy(&output.stdout);
        let line = report.lines().find_map(|line| line.strip_prefix("cycles "));
        let state = line.and_then(|rest| rest.split_whitespace().next());
        let state = state.with_context(|| format!("no cycles: {output:?}"))?;
        // An emulated arm64 machine has counters.
        ensure!(cfg!(target_arch = "aarch64") || state == "unsupported", "the check says that cycles are {state}");
        Ok(())
    }

    /// Returns the blocks of step 4: the pod, the query, the way to the agent, and its numbers.
    fn step_4(&self) -> Result<[String; 4]> {
        self.page.blocks("### 4. A throttled pod and its alert")
    }

    /// Returns a query for a cluster without the operator, as the page says.
    fn without_operator(&self, query: &str) -> Result<String> {
        let (from, to) = (
            "--namespace monitoring exec service/prometheus-operated --container prometheus",
            "--namespace podperf-demo exec deployment/prometheus",
        );
        if query.contains(to) {
            return Ok(query.to_owned());
        }
        self.page.replace(query, from, to)
    }

    /// Runs a query until its series meet the condition, and returns them.
    fn query_until(
        &self,
        deadline: Duration,
        query: &str,
        what: &str,
        is: impl Fn(&[Sample]) -> bool,
    ) -> Result<Vec<Sample>> {
        let query = self.without_operator(query)?;
        let mut seen = None;
        let found = within(deadline, what, || {
            thread::sleep(ASK_EVERY);
            let output = seen.insert(self.try_to(&query)?);
            // Prometheus may not listen yet.
            let series = parsed(&String::from_utf8_lossy(&output.stdout));
            Ok((output.status.success() && is(&series)).then_some(series))
        });
        found.with_context(|| format!("{seen:?}"))
    }

    /// Runs a block, and returns its stdout. Each of its commands must succeed.
    fn run(&self, block: &str) -> Result<String> {
        let output = self.try_to(block)?;
        ensure!(output.status.success(), "failed ({}): {block}{output:?}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs a block up to its first command that fails.
    fn try_to(&self, block: &str) -> Result<Output> {
        let mut command = self.command("timeout");
        command.args([BLOCK_WITHIN, "sh", "-e", "-c", block]);
        command.output().context("failed to start a shell")
    }

    /// Starts a command that runs until it is ended.
    fn begin(&self, line: &str) -> Result<Background> {
        let log = self.home.path().join("background");
        let file = File::create(&log)?;
        let mut command = self.command("sh");
        command.args(["-c", &format!("exec {line}")]).stdout(file.try_clone()?).stderr(file);
        Ok(Background { child: command.spawn()?, log })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(sources()).stdin(Stdio::null());
        command.env("PATH", &self.path).env("HOME", self.home.path());
        command.env("KUBECONFIG", self.cluster.control_plane.admin_kubeconfig());
        process::bind_to_parent(&mut command);
        command
    }
}

/// A command that runs beside others, and ends on drop.
struct Background {
    child: Child,
    log: PathBuf,
}

impl Background {
    fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.log)?)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        process::end(&mut self.child, Signal::SIGTERM, ENDS_WITHIN);
    }
}

/// Checks that the alerts are the one of this pod, and that it fires.
fn ensure_only(alerts: &[Sample], pod: &str) -> Result<()> {
    let is = |alert: &Sample, name: &str, value: &str| alert.labels.get(name).is_some_and(|found| found == value);
    let is_own = |alert: &Sample| {
        is(alert, "pod", pod)
            && is(alert, "alertstate", "firing")
            && LOOP.iter().all(|(name, value)| is(alert, name, value))
    };
    ensure!(alerts.len() == 1 && alerts.iter().all(is_own), "{ALERT} of {pod} is not the only one: {alerts:?}");
    Ok(())
}

/// Returns the series that `promtool query instant` prints, as `NAME{LABEL="VALUE", ...} => VALUE @[TIME]`.
fn parsed(output: &str) -> Vec<Sample> {
    let line = |line: &str| Some(line.split_once(" @[")?.0.replace("\", ", "\",").replace("} => ", "} "));
    let text: Vec<_> = output.lines().filter_map(line).collect();
    Metrics::parse(&text.join("\n")).samples().to_vec()
}

/// Returns the cell of a column in a table of `kubectl` with one row.
fn cell(table: &str, column: &str) -> Result<String> {
    let lines: Vec<_> = table.lines().collect();
    let [titles, row] = lines[..].try_into().with_context(|| format!("not one row: {table}"))?;
    let rest = titles.find(column).and_then(|at| row.get(at..));
    let cell = rest.and_then(|rest| rest.split_whitespace().next());
    cell.map(str::to_owned).with_context(|| format!("no {column} in: {table}"))
}
