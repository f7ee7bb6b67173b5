//! A node full of pods: a real API server lists the pods, their cgroups are real, and one tiny task runs in each
//! container. All tasks belong to one process family, because a thousand separate loads would be the machine's main
//! load.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    cgroup::TestCgroup,
    control_plane::{ControlPlane, Credentials},
    kubelet::{self, Kubelet, PodHandle, Qos, random_id},
    load::{self, crowd::CrowdReport},
    process,
};
use serde_json::{Value, json};

/// Containers of each pod.
pub const CONTAINERS: [&str; 4] = ["app", "proxy", "metrics", "logs"];

const NAME: &str = "scale-node";
const NAMESPACES: usize = 10;
const PODS_OF_A_WORKLOAD: usize = 10;
const TOKEN_LIFE: Duration = Duration::from_secs(3_600);
const WAKES_EVERY: Duration = Duration::from_secs(1);
const RARELY: Duration = Duration::from_secs(20);
/// The time after which tasks that are left over end by themselves.
const STAYS: Duration = Duration::from_secs(1_800);

/// The node, its pods and its API server. All are removed on drop, in the order of the fields.
#[derive(Debug)]
pub struct Node {
    crowds: Vec<Crowd>,
    cgroups: Vec<TestCgroup>,
    pods: Vec<PodHandle>,
    kubelet: Kubelet,
    credentials: Credentials,
    plane: ControlPlane,
}

impl Node {
    /// Starts a node without pods.
    pub fn start() -> Result<Self> {
        let plane = ControlPlane::start()?;
        let credentials = plane.agent_credentials(TOKEN_LIFE)?;
        let kubelet = Kubelet::new(NAME, plane.admin())?;
        Ok(Self { crowds: Vec::new(), cgroups: Vec::new(), pods: Vec::new(), kubelet, credentials, plane })
    }

    /// Returns the agent's configuration on this node. The caller may append keys.
    pub fn configuration(&self) -> String {
        let kubeconfig = self.credentials.kubeconfig();
        format!("identity: kubernetes\nnodeName: {NAME}\nkubernetes: {{kubeconfig: '{}'}}\n", kubeconfig.display())
    }

    /// Makes this number of pods. Tasks of containers wake once a second, and tasks of sandboxes wake rarely.
    pub fn fill(&mut self, pods: usize) -> Result<()> {
        let (mut sandboxes, mut containers) = (Vec::new(), Vec::new());
        for number in 0..pods {
            let pod = self.kubelet.run(specification(number)?)?;
            sandboxes.push(directory(pod.sandbox()));
            let mut statuses = Vec::new();
            for name in CONTAINERS {
                let id = random_id()?;
                let cgroup = pod.cgroup().child_named(&format!("cri-containerd-{id}.scope"))?;
                containers.push(directory(&cgroup));
                self.cgroups.push(cgroup);
                statuses.push(status(name, &id));
            }
            let status = json!({"phase": "Running", "containerStatuses": statuses});
            self.plane.admin().patch_status(pod.namespace(), pod.name(), &status)?;
            self.pods.push(pod);
        }
        self.crowds.push(Crowd::start(&containers, WAKES_EVERY)?);
        self.crowds.push(Crowd::start(&sandboxes, RARELY)?);
        Ok(())
    }

    /// Makes this number of cgroups that belong to no pod and are too deep for series of their own. Each has a task
    /// that wakes rarely.
    pub fn crowd_beside(&mut self, cgroups: usize) -> Result<()> {
        let top = TestCgroup::new("beside")?;
        let middle = top.child_named("services")?;
        let mut directories = Vec::new();
        for number in 0..cgroups {
            let cgroup = middle.child_named(&format!("{number:05}.service"))?;
            directories.push(directory(&cgroup));
            self.cgroups.push(cgroup);
        }
        self.cgroups.extend([middle, top]);
        self.crowds.push(Crowd::start(&directories, RARELY)?);
        Ok(())
    }

    /// Returns the number of containers with a name.
    pub fn containers(&self) -> usize {
        self.pods.len() * CONTAINERS.len()
    }
}

/// Returns a pod like those in clusters: with names of that length, owned by a replica set.
fn specification(number: usize) -> Result<k8s_openapi::api::core::v1::Pod> {
    let workload = number / PODS_OF_A_WORKLOAD;
    let replica_set = format!("checkout-{workload:02}-5d4f8c7b9");
    let name = format!("{replica_set}-x{number:04}");
    let mut pod = kubelet::pod(&format!("team-{}", workload % NAMESPACES), &name, Qos::Burstable, &CONTAINERS)?;
    let metadata = json!({
        "labels": {"app": "checkout", "pod-template-hash": "5d4f8c7b9"},
        "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replica_set, "controller": true,
            "uid": format!("00000000-0000-0000-0000-{workload:012}"),
        }],
    });
    pod.metadata.labels = serde_json::from_value(metadata["labels"].clone())?;
    pod.metadata.owner_references = serde_json::from_value(metadata["ownerReferences"].clone())?;
    for container in &mut pod.spec.get_or_insert_default().containers {
        container.image = Some(format!("registry.example.com/checkout/{}:1.24.3", container.name));
    }
    Ok(pod)
}

fn status(name: &str, id: &str) -> Value {
    json!({
        "name": name, "image": "", "imageID": "", "containerID": format!("containerd://{id}"),
        "ready": true, "started": true, "restartCount": 0, "state": {"running": {}},
    })
}

fn directory(cgroup: &TestCgroup) -> String {
    cgroup.path().to_string_lossy().into_owned()
}

/// A running `podperf-load crowd`, which ends on drop together with its tasks.
#[derive(Debug)]
struct Crowd(Child);

impl Crowd {
    /// Starts a task in each of these cgroups, and waits until all tasks are there.
    fn start(directories: &[String], every: Duration) -> Result<Self> {
        let mut command = Command::new(load::binary()?);
        process::bind_to_parent(&mut command);
        command.arg("crowd");
        command.arg(format!("--every-millis={}", every.as_millis())).arg(format!("--seconds={}", STAYS.as_secs()));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("failed to start a crowd")?;
        let mut crowd = Self(child);
        let list = directories.join("\n") + "\n\n";
        crowd.0.stdin.as_mut().context("no stdin")?.write_all(list.as_bytes())?;
        let mut line = String::new();
        BufReader::new(crowd.0.stdout.take().context("no stdout")?).read_line(&mut line)?;
        let report: CrowdReport = serde_json::from_str(&line).context("the crowd did not gather (see above)")?;
        ensure!(report.tasks == directories.len(), "{} tasks in {} cgroups", report.tasks, directories.len());
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // The crowd waits for the end of its input, so that it can reap its tasks.
        drop(self.0.stdin.take());
        self.0.wait().ok();
    }
}
