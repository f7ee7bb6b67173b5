//! The agent's image, built from the Dockerfile.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    suite::{Need, Test},
    tests,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::cluster;

pub(crate) const TESTS: &[Test] = tests![
    the_image_is_small_and_static_and_says_what_it_is_made_of: NEEDS,
];

const NEEDS: &[Need] = &[Need::Program("buildah"), Need::Program("debootstrap"), Need::Program("readelf")];
const AT_MOST: u64 = 30 << 20;

fn the_image_is_small_and_static_and_says_what_it_is_made_of() -> Result<()> {
    let archive = cluster::image()?;
    let size = fs::metadata(&archive)?.len();
    ensure!(size < AT_MOST, "{size} bytes");

    let image = TempDir::new()?;
    let root = TempDir::new()?;
    run(Command::new("tar").arg("-C").arg(image.path()).arg("-xf").arg(&archive))?;
    let manifest = json(&image.path().join("manifest.json"))?;
    let config = json(&image.path().join(text(&manifest[0]["Config"])?))?;
    for layer in manifest[0]["Layers"].as_array().context("no layers")? {
        let layer = image.path().join(text(layer)?);
        run(Command::new("tar").arg("-C").arg(root.path()).args(["--same-permissions", "-xf"]).arg(layer))?;
    }

    let expected: BTreeSet<_> = [
        "etc/ssl/certs/ca-certificates.crt",
        "usr/bin/podperf",
        "usr/share/doc/podperf/LICENSE",
        "usr/share/doc/podperf/LICENSE-BSD-2-Clause",
        "usr/share/doc/podperf/LICENSE-GPL-2.0",
        "usr/share/podperf/sbom.cdx.json",
    ]
    .map(str::to_owned)
    .into();
    let files = run(Command::new("find").current_dir(root.path()).args(["-type", "f", "-printf", "%P\n"]))?;
    ensure!(files.lines().map(str::to_owned).collect::<BTreeSet<_>>() == expected, "{files}");
    let writable = run(Command::new("find").current_dir(root.path()).args(["-mindepth", "1", "-perm", "/222"]))?;
    ensure!(writable.is_empty(), "somebody may write: {writable}");

    let program = root.path().join("usr/bin/podperf");
    let headers = run(Command::new("readelf").arg("--program-headers").arg(&program))?;
    ensure!(!headers.contains("INTERP"), "it needs a loader: {headers}");
    let version = run(Command::new(&program).arg("-V"))?;
    ensure!(version.trim() == format!("podperf {}", env!("CARGO_PKG_VERSION")), "{version}");

    let settings = &config["config"];
    ensure!(settings["Entrypoint"] == serde_json::json!(["/usr/bin/podperf"]), "{settings}");
    ensure!(text(&settings["Labels"]["org.opencontainers.image.version"])? == env!("CARGO_PKG_VERSION"), "{settings}");
    for label in ["title", "description", "licenses", "revision", "created"] {
        let label = &settings["Labels"][format!("org.opencontainers.image.{label}")];
        ensure!(label.as_str().is_some_and(|label| !label.is_empty()), "{settings}");
    }

    let materials = json(&root.path().join("usr/share/podperf/sbom.cdx.json"))?;
    ensure!(materials["bomFormat"] == "CycloneDX", "no CycloneDX");
    let components = materials["components"].as_array().context("no components")?;
    let names: BTreeSet<_> = components.iter().filter_map(|component| component["name"].as_str()).collect();
    for name in ["aya", "glibc", "podperf-ebpf", "ring", "tokio"] {
        ensure!(names.contains(name), "`{name}` is not said to be in it: {names:?}");
    }
    ensure!(!names.contains("proptest") && !names.contains("bindgen"), "what is only for building is said to be in it");
    Ok(())
}

fn json(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| format!("failed to read `{}`", path.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().with_context(|| format!("no text: {value}"))
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("failed to run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}
