//! The configured address of the API server. The agent refuses an impossible one at the start, and reports one without
//! a valid server while it runs.

use std::{
    fs::{self, File},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{self, Agent},
    cluster::{Cluster, NODE, Spoilt, configuration, part, wait_for_part},
    control_plane::NEEDS,
    process,
    suite::{Test, within},
    tests,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] = tests![
    #[beside] a_cluster_without_credentials_is_refused,
    a_server_that_cannot_prove_itself_is_told_until_it_can: NEEDS,
    #[beside] flags_override_the_files_identity_and_kubeconfig: NEEDS,
    #[beside] without_an_identity_pods_are_cgroups_like_all_others: NEEDS,
];

const AN_HOUR: Duration = Duration::from_secs(3600);
const BAD_CONFIGURATION: i32 = 2;
const DEADLINE: Duration = Duration::from_secs(30);
/// Kubernetes sets this variable in each container.
const IN_CLUSTER: &str = "KUBERNETES_SERVICE_HOST";

fn a_cluster_without_credentials_is_refused() -> Result<()> {
    let outside = |command: &mut Command| {
        // The variable may belong to another program, so podperf ignores it.
        command.env_remove(IN_CLUSTER).env("KUBECONFIG", "/etc/kubernetes/admin.conf");
    };
    let says = ["no in-cluster credentials and no kubeconfig", "`kubernetes.kubeconfig`", "`identity: none`"];
    refused("identity: kubernetes", outside, &says)?;
    let in_a_pod = |command: &mut Command| {
        command.env(IN_CLUSTER, "10.96.0.1").env("KUBERNETES_SERVICE_PORT", "443");
    };
    refused("identity: kubernetes", in_a_pod, &["the pod's service account", "`automountServiceAccountToken`"])?;
    let yaml = "identity: kubernetes\nkubernetes: {source: kubelet, kubelet: {url: 'here'}}";
    refused(yaml, outside, &["`kubernetes.kubelet.url`: `here` (as in `https://127.0.0.1:10250`)"])?;
    let yaml = "identity: kubernetes\nkubernetes: {source: kubelet, kubelet: {caFile: /no/ca}}";
    refused(yaml, outside, &["`kubernetes.kubelet.caFile`: `/no/ca`", "No such file"])?;
    let unknown = |command: &mut Command| {
        command.args(["--identity", "some"]);
    };
    refused("", unknown, &["'some' for '--identity <WHERE>'", "[possible values: auto, kubernetes, none]"])
}

fn a_server_that_cannot_prove_itself_is_told_until_it_can() -> Result<()> {
    let mut spoilt = Spoilt::start(AN_HOUR)?;
    let (kubeconfig, ca) = (spoilt.credentials.kubeconfig(), spoilt.credentials.path().join("ca.crt"));
    let good = [(&kubeconfig, fs::read_to_string(&kubeconfig)?), (&ca, fs::read_to_string(&ca)?)];
    let elsewhere = with(&good[0].1, "/clusters/0/cluster/tls-server-name", "elsewhere".into())?;
    for (pod, path, content, says) in [
        ("another-ca", &ca, authority("another-ca")?, "its certificate is not of the cluster's CA"),
        ("same-name", &ca, authority("podperf-test-ca")?, "its certificate is not of the cluster's CA"),
        ("no-ca", &ca, "no certificate".to_owned(), ""),
        ("another-name", &kubeconfig, elsewhere, "use a name or address that its certificate has"),
    ] {
        fs::write(path, content)?;
        let cluster = Cluster::join(spoilt, "", "")?;
        wait_for_part(&cluster.agent, "pods", "degraded", &["failed to", says]).context(pod)?;
        let finished = cluster.run_once(pod, "app")?;
        cluster.wait_for("podperf_cgroups_unresolved", &[], |waiting| waiting >= 1.0)?;
        ensure_not_ready(&cluster.agent)?;

        for (path, content) in &good {
            fs::write(path, content)?;
        }
        cluster.wait_for_connection().context(pod)?;
        cluster.wait_for_cpu(pod, "app", finished.cpu)?;
        spoilt = cluster.into_spoilt();
    }
    Ok(())
}

fn flags_override_the_files_identity_and_kubeconfig() -> Result<()> {
    let Spoilt { kubelet, credentials, plane } = Spoilt::start(AN_HOUR)?;
    let yaml = format!("identity: none\nnodeName: {NODE}\nkubernetes: {{kubeconfig: /nonexistent}}\n");
    let agent = Agent::start_changed(&agent::binary()?, &yaml, |command| {
        command.args(["--identity", "kubernetes", "--kubeconfig"]).arg(credentials.kubeconfig());
    })?;
    let cluster = Cluster { agent, kubelet, credentials, plane };
    let finished = cluster.run_once("web", "app")?;
    cluster.wait_for_cpu("web", "app", finished.cpu)?;

    let named = configuration(&cluster.credentials, NODE, "", "");
    let agent = Agent::start_changed(&agent::binary()?, &named, |command| {
        command.args(["--identity", "none"]);
    })?;
    ensure_nameless(&Cluster { agent, ..cluster }, "`identity: none`")
}

fn without_an_identity_pods_are_cgroups_like_all_others() -> Result<()> {
    let Spoilt { mut kubelet, mut credentials, mut plane } = Spoilt::start(AN_HOUR)?;
    for (yaml, says) in [
        ("identity: none", "`identity: none`: pods' cgroups are like all others"),
        ("identity: auto", "not in a cluster: pods' cgroups are like all others"),
        ("", "not in a cluster: pods' cgroups are like all others"),
    ] {
        let agent = Agent::start_changed(&agent::binary()?, yaml, |command| {
            command.env_remove(IN_CLUSTER).env("KUBECONFIG", credentials.kubeconfig());
        })?;
        let cluster = Cluster { agent, kubelet, credentials, plane };
        ensure_nameless(&cluster, says)?;
        Spoilt { kubelet, credentials, plane } = cluster.into_spoilt();
    }
    Ok(())
}

/// Checks that a container's counts are in a row of its cgroup, and that no metric names pods.
fn ensure_nameless(cluster: &Cluster, says: &str) -> Result<()> {
    let (state, detail) = part(&cluster.agent, "pods")?;
    ensure!(state == "healthy" && detail.contains(says), "`pods` is {state}: {detail}");
    let row = format!("{}/kubepods.slice", cluster.kubelet.kernel_path());
    let pod = format!("nameless-{}", cluster.agent.pid());
    let before = cluster.agent.fresh_metrics()?.sum("podperf_cgroup_oncpu_seconds_total", &[("cgroup", &row)]);
    let finished = cluster.run_once(&pod, "app")?;
    let truth = finished.cpu;
    let metrics = cluster.wait_for("podperf_cgroup_oncpu_seconds_total", &[("cgroup", &row)], |seconds| {
        podperf_tests::cluster::is_close(seconds - before, truth)
    })?;
    let of_pods = ["podperf_container_", "podperf_pod_", "podperf_kube_"];
    let told = metrics.samples().iter().find(|sample| of_pods.iter().any(|start| sample.name.starts_with(start)));
    ensure!(told.is_none(), "{told:?}");
    ensure!(cluster.agent.get("/readyz", &[])?.0 == 200, "not ready");
    Ok(())
}

fn ensure_not_ready(agent: &Agent) -> Result<()> {
    let (code, _, reason) = agent.get("/readyz", &[])?;
    let reason = String::from_utf8(reason)?;
    ensure!(code == 503 && reason.contains("no list of pods yet: "), "/readyz answered {code}: {reason}");
    Ok(())
}

/// Checks that the agent ends at once with code 2 and reports all of these words.
fn refused(yaml: &str, change: impl FnOnce(&mut Command), says: &[&str]) -> Result<()> {
    let directory = TempDir::new()?;
    let log = directory.path().join("log");
    let mut command = agent::command(directory.path(), yaml)?;
    change(&mut command);
    process::bind_to_parent(&mut command);
    let mut child = command.stderr(File::create(&log)?).spawn()?;
    let ended = within(DEADLINE, "the agent refuses to run", || Ok(child.try_wait()?));
    // The test has failed if the agent still runs here.
    child.kill().ok();
    child.wait()?;
    let text = fs::read_to_string(&log)?;
    let code = ended.with_context(|| text.clone())?.code();
    ensure!(code == Some(BAD_CONFIGURATION), "exit code {code:?} instead of {BAD_CONFIGURATION}: {text}");
    for expected in says {
        ensure!(text.contains(expected), "`{expected}` is not in: {text}");
    }
    // The agent refuses before it loads a program, which it might leave in the kernel.
    ensure!(!text.contains("scheduling sensor"), "the programs were loaded: {text}");
    Ok(())
}

/// Returns a kubeconfig with one value added or replaced.
fn with(kubeconfig: &str, pointer: &str, value: Value) -> Result<String> {
    let mut kubeconfig: Value = serde_json::from_str(kubeconfig)?;
    let (parent, key) = pointer.rsplit_once('/').context("no key")?;
    kubeconfig.pointer_mut(parent).context("no such mapping")?[key] = value;
    Ok(kubeconfig.to_string())
}

/// Returns another certificate authority.
fn authority(name: &str) -> Result<String> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Ok(params.self_signed(&KeyPair::generate()?)?.pem())
}
