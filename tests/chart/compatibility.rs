//! The versions of `docs/compatibility.md` are the versions that the tests build, install and depend on.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{suite::Test, tests};

use crate::helm::root;

pub(crate) const TESTS: &[Test] = tests![the_page_on_versions_has_those_that_are_tested,];

/// A file, the text before the version there, the number of the version's parts on the page, and the row of the page.
const TESTED: &[(&str, &str, usize, &str)] = &[
    ("tests/kube/build.sh", "\nversion=", 2, "| Kubernetes | "),
    ("tests/chart/validator.sh", "\nversion=", 2, "| Kubernetes | "),
    ("charts/podperf/Chart.yaml", "kubeVersion: \">=", 2, "| Kubernetes | "),
    ("tests/chart/build.sh", "helm v", 2, "| Helm | "),
    ("tests/chart/operators/go.mod", "pkg/apis/monitoring v", 2, "| Prometheus operator | "),
    ("tests/chart/operators/go.mod", "vertical-pod-autoscaler v", 2, "| VerticalPodAutoscaler | "),
    ("tests/prometheus/build.sh", "\nversion=", 2, "| Prometheus | "),
    ("tests/collector/builder-config.yaml", "\n  version: ", 2, "| OpenTelemetry Collector | "),
    ("Cargo.toml", "opentelemetry-proto = { version = \"", 2, "| OTLP profiles | "),
    ("Cargo.toml", "rust-version = \"", 2, "Rust "),
];

fn the_page_on_versions_has_those_that_are_tested() -> Result<()> {
    let page = fs::read_to_string(root().join("docs/compatibility.md"))?;
    for (file, before, parts, row) in TESTED {
        let text = fs::read_to_string(root().join(file))?;
        let (_, rest) = text.split_once(before).with_context(|| format!("no `{before}` in {file}"))?;
        let whole: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let version = whole.split('.').take(*parts).collect::<Vec<_>>().join(".");
        let line = page.lines().find(|line| line.starts_with(row)).with_context(|| format!("no row `{row}`"))?;
        let is_there =
            line.split(|c: char| !c.is_ascii_digit() && c != '.').any(|word| word.trim_end_matches('.') == version);
        ensure!(is_there, "{file} has {version}, and the page: {line}");
    }
    Ok(())
}
