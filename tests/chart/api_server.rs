//! Sets of values from platform teams, and the outcome of each: the real API server accepts the rendering by its strict
//! dry run, or the chart rejects the values with a message.

use std::{
    fs,
    ops::Deref,
    path::Path,
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use podperf_tests::{
    control_plane::{ControlPlane, SharedPlane},
    suite::{Need, Test, tell, within},
    tests,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    helm::{GO, arguments_of, chart, helm, objects, program, said, value_files},
    value_sets::{Outcome, SETS, Set},
};

pub(crate) const TESTS: &[Test] = tests![
    #[rings] the_api_server_takes_each_set_of_values_or_the_chart_refuses_it: NEEDS,
    #[rings] a_second_release_on_the_same_nodes_is_refused: NEEDS,
];

const NEEDS: &[Need] = &[Need::Program("etcd"), GO[0]];

/// Kinds of operators: group, version, kind, plural.
const KINDS: &[(&str, &str, &str, &str)] = &[
    ("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
    ("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
    ("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
    ("monitoring.coreos.com", "v1alpha1", "ScrapeConfig", "scrapeconfigs"),
    ("monitoring.googleapis.com", "v1", "PodMonitoring", "podmonitorings"),
    ("monitoring.googleapis.com", "v1", "ClusterRules", "clusterrules"),
    ("operator.victoriametrics.com", "v1beta1", "VMPodScrape", "vmpodscrapes"),
    ("autoscaling.k8s.io", "v1", "VerticalPodAutoscaler", "verticalpodautoscalers"),
    ("grafana.integreatly.org", "v1beta1", "GrafanaDashboard", "grafanadashboards"),
    ("security.openshift.io", "v1", "SecurityContextConstraints", "securitycontextconstraints"),
];

/// Objects of these kinds are in no namespace.
const CLUSTER_WIDE: &[&str] = &["ClusterRules", "SecurityContextConstraints"];

/// The time limit. A new server describes its API slowly, and other work runs on this machine.
const PATIENCE: Duration = Duration::from_secs(180);

static TURN: Mutex<()> = Mutex::new(());

/// The control plane of this run. The tests use it in turn.
struct Plane {
    plane: SharedPlane,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Plane {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.plane
    }
}

/// Starts a control plane that knows the operators' kinds by name, and accepts any object of them. The tests of
/// `kubernetes` check the kinds that have types.
fn control_plane() -> Result<Plane> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let plane = SharedPlane::take()?;
    let definitions: Vec<Value> = KINDS.iter().map(|kind| definition(*kind)).collect();
    let directory = TempDir::new()?;
    let file = directory.path().join("kinds.json");
    fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": definitions}).to_string())?;
    let file = file.to_string_lossy();
    within(PATIENCE, "the API server has the operators' kinds", || {
        Ok(kubectl(&plane, &["apply", "--validate=false", "-f", &file]).ok())
    })?;
    for (group, _, _, plural) in KINDS {
        let name = format!("crd/{plural}.{group}");
        kubectl(&plane, &["wait", "--for=condition=Established", "--timeout=120s", &name])?;
    }
    for namespace in ["podperf", "monitoring", "one", "two"] {
        plane.admin().create_namespace(namespace)?;
    }
    Ok(Plane { plane, _turn: turn })
}

/// Runs `kubectl` as an administrator, with a longer time limit than the tests of the agent have.
fn kubectl(plane: &ControlPlane, arguments: &[&str]) -> Result<String> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kube/bin/kubectl");
    let config = plane.admin_kubeconfig();
    let mut command = Command::new(program);
    command.arg("--kubeconfig").arg(&config).arg("--request-timeout=120s").args(arguments);
    // The caches of kubectl are in the same directory.
    command.env("HOME", config.parent().unwrap_or_else(|| Path::new("/"))).stdin(Stdio::null());
    said(&command.output()?)
}

fn definition((group, version, kind, plural): (&str, &str, &str, &str)) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let scope = if CLUSTER_WIDE.contains(&kind) { "Cluster" } else { "Namespaced" };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{group}"),
            // API groups of Kubernetes need this annotation.
            "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
        },
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [{"name": version, "served": true, "storage": true, "schema": schema}],
        },
    })
}

/// Server-side apply merges lists by their keys, so it also rejects a key that is there twice.
fn dry_run(plane: &ControlPlane, rendered: &str) -> Result<()> {
    let directory = TempDir::new()?;
    let file = directory.path().join("rendered.yaml");
    fs::write(&file, rendered)?;
    let file = file.to_string_lossy();
    let apply = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts", "-f", &file];
    kubectl(plane, &apply).map(drop)
}

/// The post-renderers of Flux and Argo CD read the rendering in this way. They reject a key that is there twice.
fn kustomize(rendered: &str) -> Result<()> {
    let directory = TempDir::new()?;
    fs::write(directory.path().join("rendered.yaml"), rendered)?;
    fs::write(directory.path().join("kustomization.yaml"), "resources: [rendered.yaml]\n")?;
    let kubectl = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kube/bin/kubectl");
    said(&Command::new(kubectl).arg("kustomize").arg(directory.path()).output()?).map(drop)
}

fn render(set: &Set) -> Result<String> {
    let directory = TempDir::new()?;
    let file = directory.path().join("values.yaml");
    fs::write(&file, set.values)?;
    let (chart, file) = (chart(), file.to_string_lossy().into_owned());
    let chart = chart.to_string_lossy();
    let common = ["template", set.release, &*chart, "--namespace", "podperf", "--values", &file];
    said(&helm(common.iter().chain(set.arguments))?)
}

fn the_api_server_takes_each_set_of_values_or_the_chart_refuses_it() -> Result<()> {
    let plane = control_plane()?;
    let mut wrong = Vec::new();
    let mut check = |name: &str, outcome: &Outcome, rendered: Result<String>| {
        let became = match (outcome, &rendered) {
            (Outcome::Taken, Ok(rendered)) => dry_run(&plane, rendered).and_then(|()| kustomize(rendered)),
            (Outcome::Refused(words), Err(error)) if error.to_string().contains(words) => Ok(()),
            (Outcome::RefusedByTheServer(words), Ok(rendered)) => match dry_run(&plane, rendered) {
                Err(error) if error.to_string().contains(words) => Ok(()),
                other => other.and_then(|()| bail!("the API server takes it")),
            },
            (outcome, Ok(_)) => Err(anyhow::anyhow!("rendered, not {outcome:?}")),
            (outcome, Err(error)) => Err(anyhow::anyhow!("not {outcome:?}: {error:#}")),
        };
        if let Err(error) = became {
            wrong.push(format!("{name}: {error:#}"));
        }
    };
    for set in SETS {
        check(set.name, &set.outcome, render(set));
    }
    let files = value_files()?;
    for file in &files {
        let values = fs::read_to_string(file)?;
        check(&file.display().to_string(), &Outcome::Taken, crate::helm::template(&values, &arguments_of(&values)));
    }
    ensure!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), SETS.len() + files.len(), wrong.join("\n"));
    tell(&format!(
        "{} sets of values, and {} of ci and examples; of {} kinds of operators the server checks no fields",
        SETS.len(),
        files.len(),
        KINDS.len()
    ));

    // This check shows that the server rejects bad objects.
    let rendered = crate::helm::template("", &[])?;
    ensure!(dry_run(&plane, &rendered.replace("hostPath:", "hostPaths:")).is_err(), "the server takes `hostPaths`");
    ensure!(kustomize(&rendered.replacen("  labels:\n", "  labels:\n    a: b\n    a: b\n", 1)).is_err(), "a key twice");
    Ok(())
}

/// Runs Helm as a user of this cluster.
fn helm_in(plane: &ControlPlane, arguments: &[&str]) -> Result<String> {
    let mut command = program("helm")?;
    command.args(arguments).arg("--kubeconfig").arg(plane.admin_kubeconfig());
    said(&command.env("HOME", plane.admin_kubeconfig().parent().unwrap_or_else(|| Path::new("/"))).output()?)
}

fn a_second_release_on_the_same_nodes_is_refused() -> Result<()> {
    let plane = control_plane()?;
    let chart = chart().display().to_string();
    helm_in(&plane, &["install", "first", &chart, "--namespace", "one", "--set=nodeSelector.pool=a"])?;
    let second = |release: &str, namespace: &str, more: &[&str]| {
        helm_in(&plane, &[&["template", release, &*chart, "--namespace", namespace, "--dry-run=server"], more].concat())
    };
    for (release, namespace, more) in
        [("second", "one", &[][..]), ("first", "two", &[]), ("second", "two", &["--set=nodeSelector.pool=a"])]
    {
        let error =
            second(release, namespace, more).err().with_context(|| format!("{namespace}/{release} is let in"))?;
        let words = "the release `first` in the namespace `one` has agents on the same nodes";
        ensure!(error.to_string().contains(words), "{error:#}");
    }
    // A second release is valid on other nodes and by explicit choice. The same release is valid with other names of
    // its objects.
    second("second", "two", &["--set=nodeSelector.pool=b"])?;
    second("second", "two", &["--set=refuseSecondRelease=false"])?;
    second("first", "one", &["--set=fullnameOverride=other"])?;
    // The same release gets the chart under a second alias, and another release gets it under an alias.
    let twice = second("first", "one", &["--set=nameOverride=alias"]).err().context("an alias is let in")?.to_string();
    ensure!(twice.contains("this release has the chart twice, as `podperf` and as `alias`"), "{twice}");
    let elsewhere = second("second", "two", &["--set=nameOverride=alias"]).map(drop);
    ensure!(elsewhere.is_err(), "an alias hides the other release");
    helm_in(&plane, &["upgrade", "first", &chart, "--namespace", "one", "--set=mode=metrics"])?;
    helm_in(&plane, &["uninstall", "first", "--namespace", "one", "--wait"])?;
    within(PATIENCE, "the second release is let in", || Ok(second("second", "two", &[]).ok()))?;
    Ok(())
}

/// The usual condition of an umbrella chart.
pub(crate) const UMBRELLA: &[Test] = tests![
    an_umbrella_chart_switches_it_on_and_off_by_its_condition: GO,
];

fn an_umbrella_chart_switches_it_on_and_off_by_its_condition() -> Result<()> {
    let parent = TempDir::new()?;
    let path = parent.path();
    fs::create_dir(path.join("charts"))?;
    said(&Command::new("cp").arg("-r").arg(chart()).arg(path.join("charts/podperf")).output()?)?;
    let about = format!(
        "{{apiVersion: v2, name: umbrella, version: 1.0.0, dependencies: \
         [{{name: podperf, version: {}, condition: podperf.enabled}}]}}",
        env!("CARGO_PKG_VERSION")
    );
    fs::write(path.join("Chart.yaml"), about)?;
    for (values, wanted) in [
        ("{}", true),
        ("podperf: {enabled: true}", true),
        ("podperf: {enabled: null}", true),
        ("podperf: {enabled: false}", false),
        ("global: {storageClass: fast, imagePullSecrets: [a]}", true),
    ] {
        fs::write(path.join("values.yaml"), values)?;
        let path = path.to_string_lossy();
        let rendered = said(&helm(["template", "umbrella", &*path])?).with_context(|| values.to_owned())?;
        let found = objects(&rendered)?.iter().any(|object| object["kind"] == "DaemonSet");
        ensure!(found == wanted, "`{values}`: {rendered}");
    }
    Ok(())
}
