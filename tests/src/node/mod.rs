//! A real node of a real cluster: a guest with its own kernel, container runtime and kubelet, which joins the control
//! plane on this machine.
//!
//! The address of this machine's loopback is [`GUEST_HOST`] in the guest. Servers in the guest are reached through the
//! ports that it was booted with. Pods reach each other over a network of the nodes, and this machine reaches no pod.

mod console;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use self::console::Console;
pub use crate::control_plane::GUEST_HOST;
use crate::{control_plane::ControlPlane, http, kubelet::Driver, process, suite::within, vm};

/// The image of pods that need only a shell, from tests/node/tools.sh.
pub const TOOLS_IMAGE: &str = "registry.test/tools:1";

/// The longest wait for a boot without hardware virtualization, on a machine with other load.
const BOOT_DEADLINE: Duration = Duration::from_secs(180);
const READY_DEADLINE: Duration = Duration::from_secs(240);
/// A guest's address in its own network, the emulator's default.
const ADDRESS: &str = "10.0.2.15";
/// Number of lines of a log in an error.
const LAST_LINES: usize = 25;

/// The properties of a node.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The node's name in the cluster.
    pub name: &'a str,
    /// The node's number, from 0 to 3. Each node has another one.
    pub number: u8,
    /// The maker of its pods' cgroups. With [`Driver::Systemd`], systemd is its first process.
    pub driver: Driver,
    /// Number of CPUs. With more CPUs than this machine has, pods wait for this machine and not for each other, which
    /// the guest's scheduler cannot see.
    pub cpus: u8,
    /// A registry on this machine's loopback. The node pulls its images under this address, without TLS. It also takes
    /// the place of Docker Hub.
    pub registry: SocketAddr,
    /// Ports of the guest that can be reached from this machine.
    pub ports: &'a [u16],
    /// Pods that it runs without a request from the API server.
    pub static_pods: &'a [Value],
}

/// A running node, which is killed on drop.
#[derive(Debug)]
pub struct Node {
    name: String,
    child: Child,
    console: RefCell<Console>,
    ports: BTreeMap<u16, SocketAddr>,
    directory: TempDir,
}

impl Node {
    /// Builds the guest's system if necessary, and boots it. The node joins the cluster by itself:
    /// [`Node::wait_until_ready`].
    pub fn boot(control_plane: &ControlPlane, plan: &Plan<'_>) -> Result<Self> {
        let built = PathBuf::from(vm::script("node", "build.sh", &[])?);
        let directory = TempDir::new()?;
        let settings = directory.path().join("settings.tar");
        let kubelet = http::free_address()?;
        pack(control_plane, plan, &built, kubelet.port(), &settings)?;

        let mut ports = BTreeMap::new();
        // The API server uses one port number for the kubelet, and connects to this port on this machine.
        let mut network = format!("user,id=net,hostfwd=tcp:{kubelet}-{ADDRESS}:{}", kubelet.port());
        for port in plan.ports {
            let address = http::free_address()?;
            network.push_str(&format!(",hostfwd=tcp:{address}-{ADDRESS}:{port}"));
            ports.insert(*port, address);
        }
        let init = match plan.driver {
            Driver::Systemd => "/usr/lib/systemd/systemd",
            Driver::Cgroupfs => "/usr/sbin/node-init",
        };
        let socket = directory.path().join("console");
        let (machine, console) = if cfg!(target_arch = "aarch64") { ("virt", "ttyAMA0") } else { ("pc", "ttyS0") };
        let mut command = vm::emulator()?;
        command.args(["-M", machine, "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "2G"]);
        command.args(["-smp", &plan.cpus.to_string()]);
        command.args(["-display", "none", "-nodefaults", "-no-reboot", "-kernel"]).arg(built.join("vmlinuz"));
        // Switches off features that are slow on an emulated CPU: they cost a fifth of the time of the first minutes.
        let cheap = "mitigations=off tsc=reliable";
        // Skips a check of the timer: it fails, and the kernel panics, where the emulator gets no CPU for some ticks.
        let unchecked = if cfg!(target_arch = "aarch64") { "" } else { "no_timer_check" };
        command.args([
            "-append",
            &format!(
                "console={console} root=/dev/nvme0n1 rootwait rw init={init} loglevel=4 panic=-1 {cheap} {unchecked}"
            ),
        ]);
        // The two disks are of different kinds, so that neither can have the other's name. All nodes share the first
        // disk: writes to it are discarded.
        command.args(["-device", "nvme,drive=root,serial=root", "-device", "virtio-blk-pci,drive=own"]);
        for (id, file, how) in [("root", built.join("root.ext4"), "snapshot=on"), ("own", settings, "readonly=on")] {
            command.arg("-drive").arg(format!("if=none,format=raw,id={id},{how},file={}", file.display()));
        }
        command.args(["-netdev", &network, "-device", "virtio-net-pci,netdev=net,romfile="]);
        // The nodes of a control plane share a network: a multicast group on the loopback, with the API server's port.
        let group = format!("socket,id=nodes,mcast=239.192.0.1:{},localaddr=127.0.0.1", control_plane.address().port());
        let card = format!("virtio-net-pci,netdev=nodes,romfile=,mac=52:54:00:0a:f5:{:02x}", plan.number);
        command.args(["-netdev", &group, "-device", &card]);
        command.args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=console"]);
        command.arg("-chardev").arg(format!("socket,id=console,server=on,wait=off,path={}", socket.display()));
        command.arg("-serial").arg(format!("file:{}", directory.path().join("log").display()));
        process::bind_to_parent(&mut command);
        let mut child = command.stdin(Stdio::null()).spawn().context("failed to start QEMU")?;
        let console = within(BOOT_DEADLINE, "QEMU has made its socket", || {
            if let Some(status) = child.try_wait()? {
                bail!("QEMU ended ({status})");
            }
            Ok(Console::connect(&socket).ok())
        });
        let console = match console {
            Ok(console) => RefCell::new(console),
            Err(error) => {
                child.kill().ok();
                child.wait().ok();
                return Err(error);
            }
        };
        Ok(Self { name: plan.name.to_owned(), child, console, ports, directory })
    }

    /// Returns the node's name in the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address on this machine of one of the node's ports.
    pub fn port(&self, port: u16) -> Result<SocketAddr> {
        self.ports.get(&port).copied().with_context(|| format!("{} was not booted with port {port}", self.name))
    }

    /// Waits until the API server reports the node as ready for pods.
    pub fn wait_until_ready(&mut self, control_plane: &mut ControlPlane) -> Result<()> {
        let up = self.console.get_mut().wait(BOOT_DEADLINE);
        up.with_context(|| self.kernel_log())?;
        let path = format!("/api/v1/nodes/{}", self.name);
        let ready = within(READY_DEADLINE, "the node is ready", || {
            control_plane.check()?;
            self.check()?;
            let Ok(node) = control_plane.admin().get(&path) else { return Ok(None) };
            let node: Value = serde_json::from_str(&node)?;
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
            Ok(conditions.iter().any(is_ready).then_some(()))
        });
        ready.with_context(|| self.logs())
    }

    /// Runs a shell command in the guest as root, and returns its output. Returns an error when the command fails.
    pub fn run(&self, command: &str) -> Result<String> {
        self.console.borrow_mut().run(command)
    }

    /// Forwards traffic from one of its ports to a port of a pod, as a Service does.
    pub fn forward(&self, port: u16, pod: &str, to: u16) -> Result<()> {
        self.run(&format!(
            "iptables -t nat -S PREROUTING | sed -n 's/^-A \\(.*--dport {port} .*\\)/-t nat -D \\1/p' | \
             while read -r rule; do iptables $rule; done; \
             iptables -t nat -A PREROUTING -d {ADDRESS} -p tcp --dport {port} -j DNAT --to-destination {pod}:{to}"
        ))
        .map(drop)
    }

    /// Returns an error if the node has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended ({status}):\n{}", self.name, self.kernel_log());
        }
        Ok(())
    }

    /// Returns the ends of the logs of its kernel, its runtime and its kubelet.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut logs = self.kernel_log();
        for name in ["import", "containerd", "kubelet"] {
            let text = self.run(&format!("tail -n {LAST_LINES} /var/log/{name}.log"));
            logs.push_str(&format!("\n{name}: {}", text.unwrap_or_else(|error| format!("{error:#}"))));
        }
        logs
    }

    fn kernel_log(&self) -> String {
        let log = fs::read(self.directory.path().join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<_> = text.lines().collect();
        format!("kernel of {}:\n{}", self.name, lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Packs this node's own files into the archive that tests/node/guest/node unpacks.
fn pack(control_plane: &ControlPlane, plan: &Plan<'_>, built: &Path, kubelet_port: u16, archive: &Path) -> Result<()> {
    let tree = TempDir::new()?;
    let etc = tree.path().join("etc");
    let kubernetes = etc.join("kubernetes");
    let manifests = kubernetes.join("manifests");
    fs::create_dir_all(&manifests)?;
    let driver = if plan.driver == Driver::Systemd { "systemd" } else { "cgroupfs" };
    fs::write(
        etc.join("node"),
        format!(
            "NAME={}\nNUMBER={}\nDRIVER={driver}\nSYSTEMD={}\nAPI_PORT={}\nKUBELET_PORT={kubelet_port}\n",
            plan.name,
            plan.number,
            plan.driver == Driver::Systemd,
            control_plane.address().port()
        ),
    )?;
    control_plane.write_node(plan.name, &kubernetes)?;
    for (number, pod) in plan.static_pods.iter().enumerate() {
        fs::write(manifests.join(format!("{number}.json")), pod.to_string())?;
    }
    // The name of a registry in images is its address here, and the node reaches it at another address.
    for name in [plan.registry.to_string().as_str(), "docker.io"] {
        let hosts = etc.join("containerd/certs.d").join(name);
        fs::create_dir_all(&hosts)?;
        fs::write(hosts.join("hosts.toml"), format!("server = \"http://{GUEST_HOST}:{}\"\n", plan.registry.port()))?;
    }
    let images = tree.path().join("images");
    fs::create_dir(&images)?;
    fs::copy(built.join("tools.tar"), images.join("tools.tar"))?;
    let packed = Command::new("tar").arg("-cf").arg(archive).arg("-C").arg(tree.path()).arg(".").status()?;
    ensure!(packed.success(), "tar failed ({packed})");
    Ok(())
}
