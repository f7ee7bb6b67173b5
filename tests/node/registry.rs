//! A registry on this machine with the image and the chart of a release, and the proof that helm and the nodes take
//! both from it.
//!
//! The steps of `.ci/release` join, pack and push. The image is the archive of tests/image/build.sh, so there is no
//! second build.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use podperf_tests::{
    http, process,
    suite::{Test, within},
    tests,
};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    cluster::{self, NEEDS},
    release,
};

pub(crate) const TESTS: &[Test] = tests![
    an_install_from_a_registry_runs_the_pushed_image_by_its_digest: NEEDS,
];

const STARTS_WITHIN: Duration = Duration::from_secs(30);
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A running registry, which ends on drop.
pub(crate) struct Registry {
    child: Child,
    address: SocketAddr,
    directory: TempDir,
    /// The image's name in the registry with the digest that was pushed: `ADDRESS/podperf/podperf@sha256:...`.
    pub(crate) image: String,
    /// The same of the chart.
    pub(crate) chart: String,
}

impl Registry {
    /// Builds the image and the programs if necessary, starts the registry, and pushes image and chart under their
    /// version.
    pub(crate) fn start() -> Result<Self> {
        let archive = cluster::image()?;
        let programs = output(Command::new(sources().join(".ci/tools")).args(["registry", "helm"]))?;
        let programs = Path::new(programs.trim());
        let directory = TempDir::new()?;
        let address = http::free_address()?;
        let config = directory.path().join("registry.json");
        // JSON is YAML.
        let settings = json!({
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": directory.path().join("storage")}},
            "http": {"addr": address.to_string()},
        });
        fs::write(&config, settings.to_string())?;
        let mut command = Command::new(programs.join("registry"));
        process::bind_to_parent(&mut command);
        command.arg("serve").arg(config).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(File::create(directory.path().join("log"))?).spawn();
        let child = child.context("failed to start the registry")?;
        let mut registry = Self { child, address, directory, image: String::new(), chart: String::new() };
        let started = registry.wait_until_up().and_then(|()| registry.push(&archive, programs));
        started.with_context(|| registry.log())?;
        Ok(registry)
    }

    /// Returns the address, which is the first part of all names in the registry.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Pushes the image of an archive under a name without the registry, such as `library/busybox:1`. `archive` has the
    /// form `FILE`, or `FILE:TAG` for one of the archive's tags.
    pub(crate) fn push_image(&self, archive: &str, name: &str) -> Result<()> {
        let mut command = Command::new("skopeo");
        command.args(["copy", "--quiet", "--dest-tls-verify=false", &format!("docker-archive:{archive}")]);
        output(command.arg(format!("docker://{}/{name}", self.address))).map(drop)
    }

    /// Returns helm's arguments for the chart, as users name it.
    pub(crate) fn chart_arguments(&self) -> [String; 3] {
        let (name, _) = self.chart.split_once('@').unwrap_or((&self.chart, ""));
        [format!("oci://{name}"), "--plain-http".to_owned(), format!("--version={VERSION}")]
    }

    fn wait_until_up(&mut self) -> Result<()> {
        within(STARTS_WITHIN, "the registry answers", || {
            if let Some(status) = self.child.try_wait()? {
                bail!("the registry ended ({status})");
            }
            Ok(http::get(self.address, "/v2/", &[]).is_ok_and(|(status, ..)| status == 200).then_some(()))
        })
    }

    /// Pushes as a release does: first by digest, then the version as a tag.
    fn push(&mut self, archive: &Path, programs: &Path) -> Result<()> {
        let out = self.directory.path().join("publish");
        let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let layout = format!("oci:{}:{VERSION}", out.join(format!("image-{arch}")).display());
        fs::create_dir(&out)?;
        output(
            Command::new("skopeo")
                .args(["copy", "--quiet"])
                .arg(format!("docker-archive:{}", archive.display()))
                .arg(layout),
        )?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([programs.to_owned()].into_iter().chain(std::env::split_paths(&path)))?;
        for step in [&["index", arch][..], &["chart"], &["push"], &["tag"]] {
            let mut command = Command::new(sources().join(".ci/release"));
            command.args(step).env("OUT", &out).env("PATH", &path);
            // The archive names no commit, and its files have the time 0.
            command.env("REVISION", "unknown").env("SOURCE_DATE_EPOCH", "0");
            output(command.env("REGISTRY", self.address.to_string()).env("PLAIN_HTTP", "1"))?;
        }
        let digests = fs::read_to_string(out.join("digests"))?;
        let pushed = |kind: &str| {
            let words = digests.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            let mut found = words.filter_map(|words| match words[..] {
                [of, name, digest] if of == kind => Some(format!("{name}@{digest}")),
                _ => None,
            });
            found.next_back().with_context(|| format!("no {kind} was pushed: {digests}"))
        };
        self.image = pushed("image")?;
        self.chart = pushed("chart")?;
        Ok(())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn an_install_from_a_registry_runs_the_pushed_image_by_its_digest() -> Result<()> {
    let shared = cluster::shared()?;
    let cluster = shared.get()?;
    let Registry { image, chart, .. } = &cluster.registry;
    let (_, digest) = chart.split_once('@').context("a chart without a digest")?;
    let installed = &cluster.installed;
    ensure!(installed.contains(&format!("Digest: {digest}")), "helm installed another chart than {chart}: {installed}");
    for (number, node) in cluster.nodes.iter().enumerate() {
        let agent = release::agent_of(cluster, node.name())?;
        let asked = agent.spec.as_ref().and_then(|spec| spec.containers.first()?.image.as_ref());
        ensure!(asked == Some(image), "{}: the pod has the image {asked:?}, and {image} was pushed", node.name());
        let status = status(&agent)?;
        // The runtime names the image by the digest that the registry gave it.
        ensure!(&status.image_id == image && status.started == Some(true), "{}: {status:?}", node.name());
        let metrics = release::fresh_metrics(cluster, number)?;
        let version = metrics.get("podperf_build_info", &[("version", VERSION)]);
        ensure!(version == Some(1.0), "{}: /metrics has no `podperf_build_info` of {VERSION}", node.name());
    }
    Ok(())
}

fn status(agent: &Pod) -> Result<&ContainerStatus> {
    let status = agent.status.as_ref().and_then(|status| status.container_statuses.as_ref()?.first());
    status.context("an agent without a container")
}

/// Returns the root of the repository.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("failed to run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}
