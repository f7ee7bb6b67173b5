//! An API server, a node of its cluster, and the agent on that node.

use std::{
    borrow::Borrow,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::Value;

use crate::{
    agent::{self, Agent, Metrics, NO_STACKS, SHARES_READINGS},
    cgroup::TestCgroup,
    control_plane::{ControlPlane, Credentials, SharedPlane},
    kubelet::{Driver, Finished, Kubelet, Qos, Runtime},
    load, process,
    suite::within,
};

/// The agent's on-CPU time of a container.
pub const ONCPU: &str = "podperf_container_oncpu_seconds_total";
/// The agent's on-CPU time of a cgroup.
pub const CGROUP_ONCPU: &str = "podperf_cgroup_oncpu_seconds_total";
/// The node's name.
pub const NODE: &str = "a-node";
/// The namespace of the tests' pods.
pub const SHOP: &str = "shop";
/// The CPU time that a container burns when its series must appear.
pub const BURN: Duration = Duration::from_millis(50);
const AN_HOUR: Duration = Duration::from_secs(3600);
/// The longest wait for names. They come in less than a second; a loaded machine gets more.
pub const SOON: Duration = Duration::from_secs(30);

/// More than twice the longest wait of the agent between two attempts: one attempt may reach a server that is starting.
pub const RECOVERY: Duration = Duration::from_secs(75);

/// The environment of an agent before its start. `P` is the control plane: the shared one, or one of the test's own.
#[derive(Debug)]
pub struct Spoilt<P = SharedPlane> {
    /// The played kubelet of the node.
    pub kubelet: Kubelet,
    /// The credentials of the agent.
    pub credentials: Credentials,
    /// The control plane.
    pub plane: P,
}

impl Spoilt {
    /// Starts everything in a good state, which the test may change. The agent's token is valid for `life` from now on.
    pub fn start(life: Duration) -> Result<Self> {
        Self::at(SharedPlane::take()?, life, Driver::Systemd, Runtime::Containerd)
    }
}

impl Spoilt<ControlPlane> {
    /// Starts the same with a control plane that the test may stop, pause and restart.
    pub fn start_own(life: Duration) -> Result<Self> {
        Self::at(ControlPlane::start()?, life, Driver::Systemd, Runtime::Containerd)
    }
}

impl<P: Borrow<ControlPlane>> Spoilt<P> {
    fn at(plane: P, life: Duration, driver: Driver, runtime: Runtime) -> Result<Self> {
        let there = plane.borrow();
        there.admin().create_namespace(SHOP)?;
        let kubelet = Kubelet::with(NODE, there.admin(), driver, runtime)?;
        let credentials = there.agent_credentials(life)?;
        Ok(Self { kubelet, credentials, plane })
    }
}

/// The control plane, the kubelet, the credentials and an agent, which ends first.
#[derive(Debug)]
pub struct Cluster<P = SharedPlane> {
    /// The agent on the node.
    pub agent: Agent,
    /// The played kubelet of the node.
    pub kubelet: Kubelet,
    /// The credentials of the agent.
    pub credentials: Credentials,
    /// The control plane.
    pub plane: P,
}

impl Cluster {
    /// Starts everything, with further configuration for the agent beside `identity`, `nodeName` and
    /// `kubernetes.kubeconfig`. `kubernetes` contains further keys of that section, such as `patience: 2s`.
    pub fn start(kubernetes: &str, yaml: &str) -> Result<Self> {
        Self::start_with(Driver::Systemd, Runtime::Containerd, kubernetes, yaml)
    }

    /// Starts the same with a node of another kind.
    pub fn start_with(driver: Driver, runtime: Runtime, kubernetes: &str, yaml: &str) -> Result<Self> {
        Self::join(Spoilt::at(SharedPlane::take()?, AN_HOUR, driver, runtime)?, kubernetes, yaml)?.connected()
    }
}

impl Cluster<ControlPlane> {
    /// Starts the same with a control plane that the test may stop, pause and restart.
    pub fn start_own(kubernetes: &str, yaml: &str) -> Result<Self> {
        Self::join(Spoilt::start_own(AN_HOUR)?, kubernetes, yaml)?.connected()
    }
}

impl<P> Cluster<P> {
    /// Starts an agent in an environment that the test has changed, and does not wait for it.
    pub fn join(spoilt: Spoilt<P>, kubernetes: &str, yaml: &str) -> Result<Self> {
        let Spoilt { kubelet, credentials, plane } = spoilt;
        let agent = Agent::start(&configuration(&credentials, NODE, kubernetes, yaml))?;
        Ok(Self { agent, kubelet, credentials, plane })
    }

    fn connected(self) -> Result<Self> {
        self.wait_for("podperf_kube_watch_connected", &[], |connected| connected == 1.0)?;
        Ok(self)
    }

    /// Ends the agent, and returns its environment.
    pub fn into_spoilt(self) -> Spoilt<P> {
        let Self { agent, kubelet, credentials, plane } = self;
        drop(agent);
        Spoilt { kubelet, credentials, plane }
    }

    /// Scrapes until the sum of these series is right, and returns that scrape.
    pub fn wait_for(&self, name: &str, labels: &[(&str, &str)], is_right: impl Fn(f64) -> bool) -> Result<Metrics> {
        self.wait_within(SOON, name, labels, is_right)
    }

    /// Scrapes in the same way for changes that need further attempts of the agent, each after a longer wait.
    pub fn wait_long_for(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        is_right: impl Fn(f64) -> bool,
    ) -> Result<Metrics> {
        self.wait_within(RECOVERY, name, labels, is_right)
    }

    fn wait_within(
        &self,
        deadline: Duration,
        name: &str,
        labels: &[(&str, &str)],
        is_right: impl Fn(f64) -> bool,
    ) -> Result<Metrics> {
        let mut last = None;
        let found = within(deadline, "the series is right", || {
            let metrics = self.agent.metrics()?;
            last = metrics.get(name, labels);
            Ok(last.is_some_and(&is_right).then_some(metrics))
        });
        found.with_context(|| format!("`{name}` {labels:?} was {last:?} at last:\n{}", self.agent.log()))
    }

    /// Waits until the agent is connected, for as long as the agent may wait between two attempts.
    pub fn wait_for_connection(&self) -> Result<Metrics> {
        let connected = within(RECOVERY, "the agent is connected", || {
            let metrics = self.agent.metrics()?;
            Ok((metrics.get("podperf_kube_watch_connected", &[]) == Some(1.0)).then_some(metrics))
        });
        connected.with_context(|| self.agent.log())
    }

    /// Waits until a container of namespace [`SHOP`] has this on-CPU time, within 1 % or 2 ms. If it has another time at
    /// the deadline, the error is that of a wrong count, and not of a missed deadline.
    pub fn wait_for_cpu(&self, pod: &str, container: &str, truth: Duration) -> Result<Metrics> {
        let labels = [("namespace", SHOP), ("pod", pod), ("container", container)];
        let mut last = None;
        let found = within(SOON, "the time is right", || {
            let metrics = self.agent.metrics()?;
            last = metrics.get(ONCPU, &labels);
            Ok(last.is_some_and(|seconds| is_close(seconds, truth)).then_some(metrics))
        });
        match last {
            Some(seconds) => {
                found.map_err(|late| anyhow!("{pod}/{container} has {seconds} s instead of {truth:?}: {late:#}"))
            }
            None => found.with_context(|| format!("{pod}/{container} has no time:\n{}", self.agent.log())),
        }
    }

    /// Scrapes until the check succeeds, and returns that scrape.
    pub fn wait_for_metrics(&self, check: impl Fn(&Metrics) -> Result<()>) -> Result<Metrics> {
        let mut last = None;
        let found = within(SOON, "all is as it should be", || {
            let metrics = self.agent.metrics()?;
            last = check(&metrics).err();
            Ok(last.is_none().then_some(metrics))
        });
        found.with_context(|| format!("{last:?} at last:\n{}", self.agent.log()))
    }

    /// Scrapes until there are no such series, and returns the first scrape without them.
    pub fn wait_for_end_of(&self, name: &str, labels: &[(&str, &str)]) -> Result<Metrics> {
        self.wait_for_metrics(|metrics| {
            let found = metrics.get(name, labels);
            ensure!(found.is_none(), "`{name}` {labels:?} is still there: {found:?}");
            Ok(())
        })
    }

    /// Returns the row of the cgroup that all pods share on a node under systemd.
    pub fn common_row(&self) -> String {
        format!("{}/kubepods.slice", self.kubelet.kernel_path())
    }

    /// Runs a container of a new pod from start to end and reports it. The pod's handle keeps its cgroup.
    pub fn run_once(&self, pod: &str, container: &str) -> Result<Finished> {
        let mut pod = self.kubelet.pod(SHOP, pod, Qos::Burstable, &[container])?;
        let running = pod.start(container, BURN)?;
        let finished = pod.finish(running)?;
        pod.report()?;
        Ok(finished)
    }
}

/// Returns the agent's configuration in a cluster. Without a key `stacks` in `yaml`, it has none.
pub fn configuration(credentials: &Credentials, node: &str, kubernetes: &str, yaml: &str) -> String {
    let kubeconfig = credentials.kubeconfig();
    let stacks = if yaml.contains("stacks:") { "" } else { NO_STACKS };
    format!(
        "{SHARES_READINGS}{stacks}identity: kubernetes\nnodeName: {node}\nkubernetes: {{kubeconfig: '{}', {kubernetes}}}\n{yaml}\n",
        kubeconfig.display()
    )
}

/// Returns whether the time is within 1 % or 2 ms of the truth.
pub fn is_close(seconds: f64, truth: Duration) -> bool {
    (seconds - truth.as_secs_f64()).abs() <= (truth.as_secs_f64() * 0.01).max(0.002)
}

/// Returns an error unless the series is within 1 % or 2 ms of the truth.
pub fn ensure_close(what: &str, seconds: f64, truth: Duration) -> Result<()> {
    ensure!(is_close(seconds, truth), "{what}: {seconds} s, and the truth is {truth:?}");
    Ok(())
}

/// Returns the state and the detail of a part of the agent, from `/status`.
pub fn part(agent: &Agent, name: &str) -> Result<(String, String)> {
    let (_, _, body) = agent.get("/status", &[("Accept", "application/json")])?;
    let status: Value = serde_json::from_slice(&body)?;
    let part = status["parts"].as_array().and_then(|parts| parts.iter().find(|part| part["part"] == name));
    let part = part.with_context(|| format!("no part `{name}` in {status}"))?;
    Ok((part["state"].as_str().unwrap_or_default().into(), part["detail"].as_str().unwrap_or_default().into()))
}

/// Scrapes until a part is in this state, and its detail contains all these texts.
pub fn wait_for_part(agent: &Agent, name: &str, state: &str, says: &[&str]) -> Result<String> {
    wait_within_for_part(SOON, agent, name, state, says)
}

/// Scrapes in the same way for changes that need further attempts of the agent, each after a longer wait.
pub fn wait_long_for_part(agent: &Agent, name: &str, state: &str, says: &[&str]) -> Result<String> {
    wait_within_for_part(RECOVERY, agent, name, state, says)
}

fn wait_within_for_part(deadline: Duration, agent: &Agent, name: &str, state: &str, says: &[&str]) -> Result<String> {
    let mut last = None;
    let found = within(deadline, "the part is as it should be", || {
        // Some parts change their state only with a reading, so each round makes one.
        agent.metrics()?;
        let (is, detail) = last.insert(part(agent, name)?);
        Ok((is == state && says.iter().all(|text| detail.contains(text))).then(|| detail.clone()))
    });
    found.with_context(|| format!("`{name}` is {last:?} instead of {state} with {says:?}:\n{}", agent.log()))
}

/// Waits in the same way without a scrape: it would read the kernel and ask a kubelet about unnamed cgroups.
pub fn wait_unscraped_for_part(agent: &Agent, name: &str, state: &str, says: &str) -> Result<()> {
    let found = within(SOON, "the part is as it should be", || {
        let (is, detail) = part(agent, name)?;
        Ok((is == state && detail.contains(says)).then_some(()))
    });
    found.with_context(|| format!("`{name}` is not {state} with `{says}`:\n{}", agent.log()))
}

/// Checks that all cgroups have names: none is in the row of unresolved cgroups, and none waits for a name.
pub fn ensure_all_named(metrics: &Metrics) -> Result<()> {
    let row = metrics.get("podperf_cgroup_oncpu_seconds_total", &[("cgroup", "(unresolved)")]);
    ensure!(row.is_none_or(|seconds| seconds == 0.0), "{row:?} s are in the row `(unresolved)`");
    let waiting = metrics.get("podperf_cgroups_unresolved", &[]);
    ensure!(waiting == Some(0.0), "the counts of {waiting:?} cgroups wait for a name");
    Ok(())
}

/// Checks that the kernel side has lost nothing.
pub fn ensure_no_drops(metrics: &Metrics) -> Result<()> {
    let drops: Vec<_> = metrics.samples().iter().filter(|sample| sample.name == "podperf_bpf_drops_total").collect();
    ensure!(!drops.is_empty(), "no `podperf_bpf_drops_total`");
    // Stacks that could not be copied in time were walked.
    let counted = drops.iter().filter(|sample| sample.labels["reason"] != "copy_ring");
    let lost: Vec<_> = counted.filter(|sample| sample.value != 0.0).collect();
    ensure!(lost.is_empty(), "the kernel side has lost {lost:?}");
    Ok(())
}

/// Burns CPU time in a cgroup, and returns when the time is charged.
pub fn burn_in(cgroup: &TestCgroup, time: Duration) -> Result<()> {
    let mut command = Command::new(load::binary()?);
    process::bind_to_parent(&mut command);
    command.args(["spin", "--seconds", &time.as_secs_f64().to_string(), "--cgroup"]).arg(cgroup.path());
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().context("failed to start a load")?;
    ensure!(status.success(), "a load ended badly: {status}");
    Ok(())
}

/// Returns the number of series of a metric.
pub fn series(metrics: &Metrics, name: &str) -> usize {
    metrics.samples().iter().filter(|sample| sample.name == name).count()
}

/// Starts an agent like one in a pod: it has these files of a service account, in its own mounts that end with it.
pub fn start_in_pod(service_account: &Path, api: SocketAddr, yaml: &str) -> Result<Agent> {
    const MOUNT: &str =
        "mount -t tmpfs none /var/run && mkdir -p \"$0\" && mount --bind \"$1\" \"$0\" && shift && exec \"$@\"";
    Agent::start_changed(&agent::binary()?, yaml, |command| {
        let mut in_pod = Command::new("unshare");
        in_pod.args(["--mount", "sh", "-c", MOUNT, "/var/run/secrets/kubernetes.io/serviceaccount"]);
        in_pod.arg(service_account).arg(command.get_program()).args(command.get_args());
        in_pod.env("KUBERNETES_SERVICE_HOST", api.ip().to_string());
        in_pod.env("KUBERNETES_SERVICE_PORT", api.port().to_string());
        *command = in_pod;
    })
}
