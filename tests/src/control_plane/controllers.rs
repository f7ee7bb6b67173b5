//! The other programs of a control plane with nodes, beside its API server, and the way in which a node joins.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::Command,
};

use anyhow::Result;
use serde_json::json;

use super::{ControlPlane, GUEST_HOST, Server, build};

/// The file with the names of nodes, which the API server sees as /etc/hosts.
const HOSTS: &str = "hosts";

impl ControlPlane {
    /// Returns the command line of an API server with real nodes, which authenticate to it. The server connects to
    /// their kubelets for logs and the like. Kubelets of guests are reached on this machine's loopback, each at its own
    /// port.
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

    /// Starts the scheduler and the controllers, which make service accounts, pods of DaemonSets and so on. They wait
    /// for the API server by themselves.
    pub(super) fn start_controllers(&mut self) -> Result<()> {
        let programs = build(&["--node"])?;
        let path = self.directory.path();
        let kubeconfig = format!("--kubeconfig={}", self.admin_credentials.kubeconfig().display());
        let key = format!("--service-account-private-key-file={}", path.join("service-account.key").display());
        let authority = format!("--root-ca-file={}", path.join("ca.crt").display());
        for (name, more) in [("kube-controller-manager", &[key, authority][..]), ("kube-scheduler", &[])] {
            let mut command = Command::new(programs.join(name));
            // There is one controller of each kind, without a port.
            command.args([&kubeconfig, "--leader-elect=false", "--secure-port=0"]).args(more);
            self.controllers.push(Server::start(name, command, path)?);
        }
        Ok(())
    }

    /// Returns an error with the log, if a controller has ended.
    pub fn check(&mut self) -> Result<()> {
        self.controllers.iter_mut().try_for_each(Server::check)
    }

    /// Writes the files with which the kubelet of a guest joins: `ca.crt`, `kubelet.crt`, `kubelet.key` and
    /// `kubeconfig`, which names the other files below /etc/kubernetes. The API server then connects to the kubelet's
    /// port on this machine.
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
