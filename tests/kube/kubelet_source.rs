//! An agent in a pod, as its service account: with the API server, and with a kubelet in its place.
//!
//! The API server's list of pods stands for a kubelet's `/pods`, behind real TLS and a real check of the token.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    cluster::{Cluster, NODE, ONCPU, SHOP, Spoilt, start_in_pod, wait_for_part, wait_long_for_part},
    control_plane::{Client, NEEDS},
    suite::Test,
    tests,
};
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] = tests![
    #[land] an_agent_in_a_pod_finds_its_cluster_by_itself: NEEDS,
    #[land] a_kubelet_is_asked_at_once_about_a_container_that_nobody_knows: NEEDS,
    a_kubelets_certificate_is_checked_unless_told_otherwise: NEEDS,
    a_kubelet_that_refuses_and_babbles_is_told_and_asked_again: NEEDS,
];

const AN_HOUR: Duration = Duration::from_secs(3600);
const CONNECTED: &str = "podperf_kube_watch_connected";
const PODS: &str = "podperf_kube_pods";

fn an_agent_in_a_pod_finds_its_cluster_by_itself() -> Result<()> {
    let cluster = in_pod(Spoilt::start(AN_HOUR)?, |_| format!("nodeName: {NODE}"))?;
    cluster.wait_for_connection()?;
    let finished = cluster.run_once("cart", "web")?;
    cluster.wait_for_cpu("cart", "web", finished.cpu)?;
    wait_for_part(&cluster.agent, "pods", "healthy", &["1 pods of node `a-node` by watch"]).map(drop)
}

fn a_kubelet_is_asked_at_once_about_a_container_that_nobody_knows() -> Result<()> {
    let cluster = in_pod(Spoilt::start(AN_HOUR)?, |api| by_kubelet(api, "interval: 1h"))?;
    cluster.wait_for(PODS, &[], |pods| pods == 0.0)?;
    cluster.wait_for_connection()?;
    let finished = cluster.run_once("cart", "web")?;
    cluster.wait_for_cpu("cart", "web", finished.cpu).map(drop)
}

fn a_kubelets_certificate_is_checked_unless_told_otherwise() -> Result<()> {
    let spoilt = Spoilt::start(AN_HOUR)?;
    let authority = spoilt.credentials.path().join("ca.crt");
    // The kubelet's certificate is not from the cluster's authority.
    let mounted = TempDir::new()?;
    fs::copy(spoilt.credentials.path().join("token"), mounted.path().join("token"))?;
    let api = spoilt.plane.address();
    let start = |more: &str| start_in_pod(mounted.path(), api, &by_kubelet(api, more));

    let unknown = start("interval: 1s")?;
    let ways_out = ["failed to reach the kubelet", "`kubernetes.kubelet.caFile`", "`insecureSkipVerify: true`"];
    wait_for_part(&unknown, "pods", "degraded", &ways_out)?;
    drop(unknown);
    for more in [format!("caFile: '{}'", authority.display()), "insecureSkipVerify: true".into()] {
        let agent = start(&more)?;
        wait_for_part(&agent, "pods", "degraded", &["no pods of node `a-node` by kubelet"])?;
        ensure!(agent.fresh_metrics()?.get(CONNECTED, &[]) == Some(1.0), "not connected with {more}");
    }
    Ok(())
}

fn a_kubelet_that_refuses_and_babbles_is_told_and_asked_again() -> Result<()> {
    let user = "system:serviceaccount:podperf:podperf";
    let refusal = format!("Forbidden (user={user}, verb=get, resource=nodes, subresource(s)=[pods proxy])");
    let played = Played::start(403, &refusal)?;
    let url = format!("http://{}", played.address);
    let cluster = in_pod(Spoilt::start(AN_HOUR)?, |_| of_kubelet(&format!("url: '{url}', interval: 1s")))?;
    let (agent, admin) = (&cluster.agent, cluster.plane.admin());
    wait_for_part(agent, "pods", "degraded", &["may not get the pods", &url, "`nodes/pods`", "`nodes/proxy`", user])?;
    let (status, _, body) = agent.get("/readyz", &[])?;
    let body = String::from_utf8(body)?;
    ensure!(status == 503 && body.contains("nodes/proxy"), "not ready is {status}: {body}");
    // The agent counts during the failure.
    let mut finished = cluster.run_once("cart", "web")?.cpu;

    for (babble, says) in [
        ("<html>a secret</html>", "not JSON at line 1"),
        ("{\"kind\": \"NodeList\", \"items\": []}", "not a list of pods"),
    ] {
        played.answer(200, babble);
        wait_long_for_part(agent, "pods", "degraded", &["failed to read the answer of", &url, says])?;
    }
    played.answer(200, &list(admin)?);
    cluster.wait_for_connection()?;
    wait_for_part(agent, "pods", "healthy", &["1 pods of node `a-node` by kubelet"])?;
    let metrics = cluster.wait_for_cpu("cart", "web", finished)?;
    let failures = metrics.get("podperf_kube_watch_failures_total", &[]).context("no count of failures")?;
    ensure!(failures >= 3.0, "only {failures} failures are counted");

    // The same refusal, with pods that the agent knows.
    played.answer(403, &refusal);
    wait_for_part(agent, "pods", "degraded", &["may not get the pods"])?;
    let more = cluster.run_once("stock", "web")?.cpu;
    ensure!(agent.fresh_metrics()?.get(ONCPU, &[("pod", "cart")]).is_some(), "a series has ended with the answers");
    played.answer(200, &list(admin)?);
    cluster.wait_for_connection()?;
    cluster.wait_for_cpu("stock", "web", more)?;
    finished += more;
    let sum = cluster.agent.metrics()?.sum(ONCPU, &[("namespace", SHOP)]);
    ensure!((sum - finished.as_secs_f64()).abs() < 0.004, "{sum} s in all, and the truth is {finished:?}");

    let (asked, log) = (played.asked(), agent.log());
    ensure!(asked.iter().all(|head| head.starts_with("get /pods")), "it was asked for something else: {asked:?}");
    ensure!(asked.iter().all(|head| !head.contains("authorization")), "a token was sent in clear text");
    ensure!(!log.contains("a secret"), "what came is told: {log}");
    Ok(())
}

/// Starts an agent in a pod of this cluster.
fn in_pod(spoilt: Spoilt, yaml: impl Fn(SocketAddr) -> String) -> Result<Cluster> {
    let Spoilt { kubelet, credentials, plane } = spoilt;
    let agent = start_in_pod(credentials.path(), plane.address(), &yaml(plane.address()))?;
    Ok(Cluster { agent, kubelet, credentials, plane })
}

/// Returns a configuration that uses the API server as a kubelet.
fn by_kubelet(api: SocketAddr, more: &str) -> String {
    of_kubelet(&format!("url: 'https://{api}/api/v1', {more}"))
}

fn of_kubelet(kubelet: &str) -> String {
    format!("nodeName: {NODE}\nkubernetes: {{source: kubelet, kubelet: {{{kubelet}}}}}")
}

fn list(client: &Client) -> Result<String> {
    client.get(&format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}"))
}

/// A kubelet without TLS, with answers that the test sets.
#[derive(Debug)]
struct Played {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    status: u16,
    body: String,
    /// The heads of the requests, in lower case.
    asked: Vec<String>,
    over: bool,
}

impl Played {
    fn start(status: u16, body: &str) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let played = Self { address: listener.local_addr()?, shared: Arc::default() };
        played.answer(status, body);
        let shared = Arc::clone(&played.shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let head = head(&stream).unwrap_or_default();
                let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if shared.over {
                    return;
                }
                shared.asked.push(head);
                let Shared { status, body, .. } = &*shared;
                let length = body.len();
                let answer =
                    format!("HTTP/1.1 {status} -\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
                // The client may have closed the connection.
                (&stream).write_all(answer.as_bytes()).ok();
            }
        });
        Ok(played)
    }

    /// Sets the status and the body of all later answers.
    fn answer(&self, status: u16, body: &str) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        (shared.status, shared.body) = (status, body.to_owned());
    }

    fn asked(&self) -> Vec<String> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).asked.clone()
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).over = true;
        // This connection wakes the thread, so that it sees the flag.
        TcpStream::connect(self.address).ok();
    }
}

fn head(stream: &TcpStream) -> Result<String> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    Ok(lines.collect::<Vec<_>>().join("\n").to_lowercase())
}
