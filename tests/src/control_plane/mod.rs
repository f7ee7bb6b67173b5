//! A real Kubernetes control plane: etcd and kube-apiserver on loopback, of tests/kube/build.sh.
//!
//! RBAC, tokens and watches are the server's own. Without nodes, no controller and no scheduler runs: pods are created
//! with their node's name and stay unchanged, and [`crate::kubelet`] plays the role of a node. With controllers, real
//! nodes join the control plane ([`crate::node`]).

mod client;
mod controllers;
mod credentials;
mod keys;
mod server;
mod shared;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

pub use self::{
    client::{Client, code_of},
    credentials::Credentials,
    shared::SharedPlane,
};
use self::{keys::TokenKey, server::Server};
use crate::{
    certificates::Authority,
    http,
    suite::{Need, within},
};

/// The programs that a control plane needs on the machine.
pub const NEEDS: &[Need] = &[Need::Program("etcd"), Need::Program("go")];

const START_DEADLINE: Duration = Duration::from_secs(60);
const GRANT_DEADLINE: Duration = Duration::from_secs(10);
/// The shortest life of a token that the server grants.
const SHORTEST_LIFE: Duration = Duration::from_secs(600);
/// The token of the tests themselves, whose group may do everything.
const ADMIN_TOKEN: &str = "admin";
/// The agent's namespace, and its service account's name, in config/rbac.yaml.
const AGENT: &str = "podperf";
/// The address of this machine's loopback inside a guest.
pub const GUEST_HOST: &str = "10.0.2.2";
/// The API server's Service, the first address of its range.
const SERVICE: &str = "10.96.0.1";

/// A running etcd and kube-apiserver, which are killed on drop.
#[derive(Debug)]
pub struct ControlPlane {
    programs: PathBuf,
    api: Option<Server>,
    etcd: Server,
    etcd_address: SocketAddr,
    address: SocketAddr,
    token_key: TokenKey,
    authority: Authority,
    admin_credentials: Credentials,
    admin: Client,
    controllers: Vec<Server>,
    has_nodes: bool,
    directory: TempDir,
}

impl ControlPlane {
    /// Builds the control plane if necessary, starts it, waits until it is ready, and applies config/rbac.yaml.
    pub fn start() -> Result<Self> {
        let mut control_plane = Self::prepare(false)?;
        control_plane.start_api()?;
        control_plane.grant()?;
        Ok(control_plane)
    }

    /// Starts one for real nodes, with the controllers and the scheduler, and without config/rbac.yaml.
    pub fn start_for_nodes() -> Result<Self> {
        let mut control_plane = Self::prepare(true)?;
        control_plane.start_api()?;
        control_plane.start_controllers()?;
        Ok(control_plane)
    }

    fn prepare(has_nodes: bool) -> Result<Self> {
        let programs = build(&[])?;
        let directory = TempDir::new()?;
        let path = directory.path();
        let authority = keys::write_certificates(path)?;
        let token_key = TokenKey::write(path)?;
        fs::write(path.join("tokens.csv"), format!("{ADMIN_TOKEN},admin,admin,system:masters\n"))?;
        let etcd_address = http::free_address()?;
        let etcd = start_etcd(path, etcd_address)?;
        let address = http::free_address()?;
        let admin_credentials = Credentials::new(address, &path.join("ca.crt"), "default", ADMIN_TOKEN)?;
        let admin = Client::new(&admin_credentials.kubeconfig())?;
        Ok(Self {
            programs,
            api: None,
            etcd,
            etcd_address,
            address,
            token_key,
            authority,
            admin_credentials,
            admin,
            controllers: Vec::new(),
            has_nodes,
            directory,
        })
    }

    /// Returns a client that may do everything.
    #[must_use]
    pub const fn admin(&self) -> &Client {
        &self.admin
    }

    /// Returns the API server's address, which stays the same over restarts.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts the API server at the address and with the data of the previous one, and waits until it is ready.
    pub fn start_api(&mut self) -> Result<()> {
        self.stop_api();
        let path = self.directory.path();
        let file = |name| path.join(name).display().to_string();
        let program = self.programs.join("kube-apiserver");
        let mut command = if self.has_nodes { self.among_nodes(&program)? } else { Command::new(&program) };
        command.args([
            format!("--etcd-servers=http://{}", self.etcd_address),
            format!("--bind-address={}", self.address.ip()),
            format!("--advertise-address={}", self.address.ip()),
            format!("--secure-port={}", self.address.port()),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            format!("--service-account-signing-key-file={}", file("service-account.key")),
            format!("--service-account-key-file={}", file("service-account.pub")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--token-auth-file={}", file("tokens.csv")),
            "--service-cluster-ip-range=10.96.0.0/24".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
        ]);
        if !self.has_nodes {
            // No controller makes the service account `default` that each pod would need.
            command.args(["--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount"]);
        }
        let api = self.api.insert(Server::start("kube-apiserver", command, path)?);
        let (admin, etcd) = (&self.admin, &mut self.etcd);
        let ready = within(START_DEADLINE, "the API server is ready", || {
            etcd.check()?;
            api.check()?;
            Ok(admin.get("/readyz").ok())
        });
        ready.map(drop).with_context(|| api.log())
    }

    /// Returns the process ids of the servers.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.api.iter().chain([&self.etcd]).map(Server::pid).collect()
    }

    /// Kills the API server; etcd continues. Does nothing if the API server does not run.
    pub fn stop_api(&mut self) {
        self.api = None;
    }

    /// Pauses the API server: connections stay open, but no answers come.
    pub fn pause_api(&mut self) -> Result<()> {
        self.running_api()?.signal(Signal::SIGSTOP)
    }

    /// Continues a paused API server.
    pub fn resume_api(&mut self) -> Result<()> {
        self.running_api()?.signal(Signal::SIGCONT)
    }

    /// Makes every resource version up to now too old: the server answers lists and watches at such a version with 410.
    ///
    /// Compacting etcd is not enough, since the API server serves watches from its own cache. A restarted server has
    /// only the versions after its own first list, in which it has written something itself. So all watches end here.
    pub fn forget_history(&mut self) -> Result<()> {
        self.stop_api();
        // The answer to any read contains the revision; the key need not exist.
        let now = self.ask_etcd("range", &json!({"key": "YQ=="}))?;
        let revision = now["header"]["revision"].as_str().context("no revision in etcd's answer")?;
        self.ask_etcd("compaction", &json!({"revision": revision, "physical": true}))?;
        self.start_api()
    }

    /// Returns credentials of the agent's service account, whose token is valid for `life`.
    pub fn agent_credentials(&self, life: Duration) -> Result<Credentials> {
        Credentials::new(self.address, &self.directory.path().join("ca.crt"), AGENT, &self.agent_token(life)?)
    }

    /// Returns a token of the agent's service account, by the TokenRequest API. For a life of less than ten minutes the
    /// token is signed here.
    ///
    /// The server caches for 10 s that it accepted a token, and ends no watch when its token ends.
    pub fn agent_token(&self, life: Duration) -> Result<String> {
        let token = self.admin.token(AGENT, AGENT, life.max(SHORTEST_LIFE))?;
        if life < SHORTEST_LIFE { self.token_key.shorten(&token, life) } else { Ok(token) }
    }

    /// Applies config/rbac.yaml and waits until the API server acts on it.
    pub fn grant(&self) -> Result<()> {
        self.apply(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/rbac.yaml"))?;
        self.wait_until_granted(true)
    }

    /// Removes the agent's role, and waits until the API server acts on it. A running watch continues.
    pub fn revoke(&self) -> Result<()> {
        self.kubectl(&self.admin_credentials, &["delete", "clusterrolebinding", AGENT])?;
        self.wait_until_granted(false)
    }

    /// Applies a file of manifests.
    pub fn apply(&self, manifests: &Path) -> Result<()> {
        let path = manifests.to_str().context("a path that is not text")?;
        self.kubectl(&self.admin_credentials, &["apply", "-f", path]).map(drop)
    }

    /// Returns the output of `kubectl` with credentials that may do everything.
    pub fn admin_kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl(&self.admin_credentials, arguments)
    }

    /// Returns the directory of `kubectl`.
    #[must_use]
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Returns the kubeconfig of [`Self::admin`].
    #[must_use]
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.admin_credentials.kubeconfig()
    }

    /// Returns the output of `kubectl` with these credentials.
    pub fn kubectl(&self, credentials: &Credentials, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(self.programs.join("kubectl"));
        command
            .arg("--kubeconfig")
            .arg(credentials.kubeconfig())
            // A busy machine may starve the API server.
            .arg("--request-timeout=120s")
            .args(arguments)
            // kubectl's caches and preferences go there.
            .env("HOME", self.directory.path());
        let output = command.stdin(Stdio::null()).output().context("failed to start kubectl")?;
        let says = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {arguments:?} failed ({}): {says}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    }

    fn wait_until_granted(&self, granted: bool) -> Result<()> {
        within(GRANT_DEADLINE, "the API server knows what the agent may do", || {
            Ok((self.is_granted()? == granted).then_some(()))
        })
    }

    fn is_granted(&self) -> Result<bool> {
        self.admin.may_list_pods(&format!("system:serviceaccount:{AGENT}:{AGENT}"))
    }

    fn running_api(&self) -> Result<&Server> {
        self.api.as_ref().context("the API server is stopped")
    }

    /// Sends a request to etcd's JSON API, in which keys are in base64.
    fn ask_etcd(&self, what: &str, request: &Value) -> Result<Value> {
        let (status, body) = http::post_json(self.etcd_address, &format!("/v3/kv/{what}"), &request.to_string())?;
        ensure!(status == 200, "etcd answered {status} to {what}: {body}");
        Ok(serde_json::from_str(&body)?)
    }
}

/// Builds a part of Kubernetes unless it exists, and returns its directory.
fn build(arguments: &[&str]) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("kube/build.sh");
    let built = Command::new(script).args(arguments).stderr(Stdio::inherit()).output()?;
    ensure!(built.status.success(), "failed to build Kubernetes (see above)");
    Ok(PathBuf::from(String::from_utf8(built.stdout)?.trim()))
}

fn start_etcd(directory: &Path, address: SocketAddr) -> Result<Server> {
    let url = format!("http://{address}");
    let mut command = Command::new("etcd");
    // A crash of the machine may lose the data, because they belong to a test.
    command.arg("--unsafe-no-fsync").arg("--data-dir").arg(directory.join("etcd")).args([
        "--listen-client-urls",
        &url,
        "--advertise-client-urls",
        &url,
        "--listen-peer-urls",
        "http://127.0.0.1:0",
        "--log-level=warn",
    ]);
    Server::start("etcd", command, directory)
}
