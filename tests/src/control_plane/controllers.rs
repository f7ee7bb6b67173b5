//! What a control plane with nodes has beside its API server, and how a node comes to be one of them.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::Command,
};

use anyhow::Result;
use serde_json::json;

use super::{ControlPlane, GUEST_HOST, Server, build};

/// The names that the API server knows nodes by, in a file that it sees as /etc/hosts.
const HOSTS: &str = "hosts";

impl ControlPlane {
    /// The command line of an API server that knows nodes, to which they prove who they are, and which asks their
    /// kubelets for logs and the like. Kubelets of guests are reached on this machine's loopback, each at its own port.
    pub(super) fn among_nodes(&self, program: &Path) -> Result<Command> {
        let path = self.directory.path();
        self.authority.issue_client("kube-apiserver", "system:masters", path, "kubelet-client")?;
        let hosts = path.join(HOSTS);
        if !hosts.exists() {
            fs::write(&hosts, "127.0.0.1 localhost\n")?;
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", r#"mount --bind "$0" /etc/hosts && exec "$@""#]).arg(hosts).arg(program);
        command.args(["--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"]);
        command.arg(format!("--client-ca-file={}", path.join("ca.crt").display()));
        command.arg("--kubelet-preferred-address-types=Hostname");
        command.arg(format!("--kubelet-client-certificate={}", path.join("kubelet-client.crt").display()));
        command.arg(format!("--kubelet-client-key={}", path.join("kubelet-client.key").display()));
        Ok(command)
    }

    /// Starts the controllers, which make service accounts, pods of DaemonSets and so on, and the scheduler. They wait
    /// for the API server by themselves.
    pub(super) fn start_controllers(&mut self) -> Result<()> {
        let programs = build(&["--node"])?;
        let path = self.directory.path();
        let kubeconfig = format!("--kubeconfig={}", self.admin_credentials.kubeconfig().display());
        let key = format!("--service-account-private-key-file={}", path.join("service-account.key").display());
        let authority = format!("--root-ca-file={}", path.join("ca.crt").display());
        for (name, more) in [("kube-controller-manager", &[key, authority][..]), ("kube-scheduler", &[])] {
            let mut command = Command::new(programs.join(name));
            // One of each, which serves nobody.
            command.args([&kubeconfig, "--leader-elect=false", "--secure-port=0"]).args(more);
            self.controllers.push(Server::start(name, command, path)?);
        }
        Ok(())
    }

    /// An error, with its log, if a controller has ended.
    pub fn check(&mut self) -> Result<()> {
        self.controllers.iter_mut().try_for_each(Server::check)
    }

    /// Writes what the kubelet of a guest joins with: `ca.crt`, `kubelet.crt`, `kubelet.key` and `kubeconfig`, which
    /// names them below /etc/kubernetes. Its port is then looked for on this machine.
    pub fn write_node(&self, name: &str, directory: &Path) -> Result<()> {
        let mut hosts = File::options().append(true).open(self.directory.path().join(HOSTS))?;
        writeln!(hosts, "127.0.0.1 {name}")?;
        fs::copy(self.directory.path().join("ca.crt"), directory.join("ca.crt"))?;
        self.authority.issue_client(&format!("system:node:{name}"), "system:nodes", directory, "kubelet")?;
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://{GUEST_HOST}:{}", self.address.port()),
                "certificate-authority": "/etc/kubernetes/ca.crt",
            }}],
            "users": [{"name": "test", "user": {
                "client-certificate": "/etc/kubernetes/kubelet.crt",
                "client-key": "/etc/kubernetes/kubelet.key",
            }}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        Ok(fs::write(directory.join("kubeconfig"), config.to_string())?)
    }
}
