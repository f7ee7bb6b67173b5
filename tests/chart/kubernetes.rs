//! Kubernetes accepts each rendering, from the chart's oldest version to the newest version with schemas.
//! `kubernetes-validate` has the API's own schemas. Operators' objects are read into their own types.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
    sync::OnceLock,
};

use anyhow::{Context as _, Result, bail, ensure};
use podperf_tests::{
    suite::{Need, Test, tell},
    tests,
};
use serde_yaml::Value;

use crate::helm::{GO, arguments_of, objects, program, root, said, template, value_files};

pub(crate) const TESTS: &[Test] = tests![
    #[rings] every_rendering_is_what_older_kubernetes_takes: NEEDS => || {
        let minors = minors()?;
        every_rendering_is_taken(minors.split_last().context("no version")?.1)
    },
    every_rendering_is_what_the_newest_kubernetes_takes: NEEDS => || {
        let minors = minors()?;
        every_rendering_is_taken(&minors[minors.len() - 1..])
    },
    a_field_that_kubernetes_does_not_have_is_noticed: NEEDS,
    every_object_of_an_operator_is_what_it_takes: GO,
];

const NEEDS: &[Need] = &[Need::Program("go"), Need::Program("python3")];

/// The oldest minor version of the chart's `kubeVersion`.
const OLDEST: u32 = 27;

/// API groups of operators with known types.
const OPERATORS: &[&str] = &[
    "monitoring.coreos.com/v1",
    "monitoring.coreos.com/v1alpha1",
    "autoscaling.k8s.io/v1",
    "security.openshift.io/v1",
];
/// API groups without available Go types. Only the examples contain their objects.
const UNKNOWN: &[&str] =
    &["monitoring.googleapis.com/v1", "grafana.integreatly.org/v1beta1", "operator.victoriametrics.com/v1beta1"];

/// Returns the program, in an environment of its own.
fn validator() -> Result<&'static PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let output = Command::new(root().join("tests/chart/validator.sh")).output();
        match output {
            Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().into()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(error.to_string()),
        }
    });
    made.as_ref().map_err(|error| anyhow::anyhow!("{error}"))
}

/// Returns the minor versions with schemas, from the oldest supported version on.
pub(crate) fn minors() -> Result<Vec<u32>> {
    let printed = Command::new(validator()?).arg("--version").output()?;
    let newest = said(&printed)?;
    let newest = newest.trim().rsplit(' ').next().and_then(|version| version.split('.').nth(1)?.parse().ok());
    Ok((OLDEST..=newest.with_context(|| format!("{printed:?}"))?).collect())
}

/// Returns whether the schemas are Kubernetes' own. The program has no schemas of operators.
fn is_of_kubernetes(api_version: &str) -> bool {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    !group.contains('.') || group.ends_with(".k8s.io") && group != "autoscaling.k8s.io"
}

pub(crate) fn validate(text: &str, minor: u32) -> Result<()> {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile()?;
    fs::write(file.path(), text)?;
    let mut command = Command::new(validator()?);
    let output = command
        .args(["--strict", "--quiet", "--kubernetes-version", &format!("1.{minor}")])
        .arg(file.path())
        .output()?;
    if !output.status.success() {
        bail!(
            "Kubernetes 1.{minor}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

fn every_rendering_is_taken(minors: &[u32]) -> Result<()> {
    let mut checked = 0;
    let files = value_files()?;
    for minor in minors {
        // Many renderings share objects: each is validated once.
        let mut all = BTreeSet::new();
        for file in &files {
            let values = fs::read_to_string(file)?;
            let mut arguments = arguments_of(&values);
            arguments.retain(|word| !word.starts_with("--kube-version"));
            let version = format!("--kube-version=1.{minor}.0");
            arguments.push(&version);
            for object in objects(&template(&values, &arguments).with_context(|| file.display().to_string())?)? {
                if is_of_kubernetes(object["apiVersion"].as_str().unwrap_or_default()) {
                    all.insert(serde_yaml::to_string(&without_texts(object))?);
                    checked += 1;
                }
            }
        }
        validate(&all.into_iter().collect::<Vec<_>>().join("---\n"), *minor)?;
    }
    let (oldest, newest) = (minors.first().context("no version")?, minors.last().context("no version")?);
    ensure!(checked > minors.len() * files.len() * 4, "only {checked} objects");
    tell(&format!("{checked} objects, for Kubernetes 1.{oldest} to 1.{newest}"));
    Ok(())
}

/// Returns an object without the texts of a ConfigMap, such as dashboards. Kubernetes does not read them.
fn without_texts(mut object: Value) -> Value {
    if object["kind"] == "ConfigMap" {
        let texts = object["data"].as_mapping_mut().into_iter().flat_map(serde_yaml::Mapping::values_mut);
        texts.filter(|text| text.is_string()).for_each(|text| *text = "".into());
    }
    object
}

fn a_field_that_kubernetes_does_not_have_is_noticed() -> Result<()> {
    let newest = *minors()?.last().context("no version")?;
    let rendered = template("", &[])?;
    let daemon_set = rendered.split("\n---\n").find(|object| object.contains("\nkind: DaemonSet\n")).context("none")?;
    validate(daemon_set, newest)?;
    let wrong = daemon_set.replace("hostPath:", "hostPaths:");
    ensure!(validate(&wrong, newest).is_err(), "`hostPaths` is taken");
    Ok(())
}

/// Reads objects into the operators' types, and returns the program's output.
pub(crate) fn read_as_operators(text: &str) -> Result<String> {
    let mut child =
        program("operators")?.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("no stdin")?.write_all(text.as_bytes())?;
    said(&child.wait_with_output()?)
}

fn every_object_of_an_operator_is_what_it_takes() -> Result<()> {
    let (mut text, mut kinds, mut count) = (String::new(), BTreeSet::new(), 0);
    for file in value_files()? {
        let values = fs::read_to_string(&file)?;
        for object in objects(&template(&values, &arguments_of(&values))?)? {
            let api_version = object["apiVersion"].as_str().unwrap_or_default();
            if OPERATORS.contains(&api_version) {
                text.push_str("---\n");
                text.push_str(&serde_yaml::to_string(&object)?);
                kinds.insert(object["kind"].as_str().unwrap_or_default().to_owned());
                count += 1;
            } else {
                let known = is_of_kubernetes(api_version) || UNKNOWN.contains(&api_version);
                ensure!(known, "{}: nobody looks at `{api_version}`", file.display());
            }
        }
    }
    for kind in ["PodMonitor", "ServiceMonitor", "ScrapeConfig", "VerticalPodAutoscaler", "SecurityContextConstraints"]
    {
        ensure!(kinds.contains(kind), "no {kind} among {kinds:?}");
    }
    ensure!(read_as_operators(&text)?.trim() == count.to_string());
    let wrong = text.replace("honorLabels:", "honourLabels:");
    ensure!(read_as_operators(&wrong).is_err(), "`honourLabels` is taken");
    Ok(())
}
