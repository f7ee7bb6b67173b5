//! The steps of a release that publish. Programs in this test stand for the registry and for GitHub.

use std::{ffi::OsString, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::process::install;
use serde_json::json;
use tempfile::TempDir;

use super::{VERSION, blob, make, run, script};

/// A registry: `inspect` and `copy` of skopeo, on a directory with one file per name of a manifest. With `$DOWN`, it
/// answers that text instead.
const SKOPEO: &str = r#"
for word; do source=$last last=$word; done
name=$(echo "${last#docker://}" | tr / _)
case $1 in
inspect)
    if [ -n "$DOWN" ]; then echo "level=fatal msg=\"reading manifest: $DOWN\"" >&2; exit 1; fi
    cat "$STORE/$name" 2>/dev/null || { echo "reading manifest: manifest unknown" >&2; exit 1; } ;;
copy)
    layout=${source#oci:} layout=${layout%:*}
    digest=$(jq -r '.manifests[0].digest' "$layout/index.json")
    cp "$layout/blobs/sha256/${digest#sha256:}" "$STORE/$name" ;;
esac
"#;

pub(super) fn files_of_another_job_replace_nothing() -> Result<()> {
    let target = TempDir::new()?;
    let (out, source, tools) =
        (target.path().join("publish"), target.path().join("source"), target.path().join("tools"));
    for directory in [source.join("publish/files"), source.join("tools"), tools.clone()] {
        fs::create_dir_all(directory)?;
    }
    fs::write(source.join("publish/files/one"), "sent")?;
    fs::write(source.join("tools/helm"), "planted")?;
    fs::write(tools.join("helm"), "own")?;
    let archive = target.path().join("publish.tar");
    let receive = || {
        let packed =
            Command::new("tar").arg("-C").arg(&source).arg("-cf").arg(&archive).args(["tools", "publish"]).status()?;
        ensure!(packed.success(), "not packed");
        run(&out, "receive", &archive.to_string_lossy())
    };
    let output = receive()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ensure!(fs::read_to_string(out.join("files/one"))? == "sent", "another file arrived");
    ensure!(fs::read_to_string(tools.join("helm"))? == "own", "a tool was replaced");
    // The script uploads all files, and this link would publish the registry's password.
    std::os::unix::fs::symlink("/etc/passwd", source.join("publish/files/two"))?;
    let output = receive()?;
    ensure!(!output.status.success(), "a link was taken");
    ensure!(!out.join("files/two").is_symlink(), "the link arrived");
    Ok(())
}

pub(super) fn a_registry_that_is_down_stops_a_release() -> Result<()> {
    let registry = Registry::new()?;
    for (answer, is_free) in [
        ("manifest unknown: manifest unknown", true),
        ("name unknown: repository name not known to registry", true),
        ("StatusCode: 404, nothing", true),
        ("received unexpected HTTP status: 503 Service Unavailable", false),
        ("StatusCode: 403, denied", false),
        ("unauthorized: authentication required", false),
        ("dial tcp 192.0.2.1:443: i/o timeout", false),
        // A number inside of another text.
        ("StatusCode: 429, wait for 404 seconds", false),
    ] {
        let output = registry.step("push").env("DOWN", answer).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() == is_free, "`{answer}`: {said}");
        ensure!(is_free || said.contains("failed to look for"), "{said}");
        ensure!(is_free || registry.names()?.is_empty(), "`{answer}`: pushed all the same");
        registry.clear()?;
    }
    Ok(())
}

pub(super) fn a_version_with_other_contents_is_not_replaced() -> Result<()> {
    let registry = Registry::new()?;
    for name in ["ghcr.io_podperf_podperf", "ghcr.io_podperf_charts_podperf"] {
        let taken = registry.store.path().join(format!("{name}:{VERSION}"));
        fs::write(&taken, "another manifest")?;
        for step in ["push", "tag"] {
            let output = registry.step(step).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(!output.status.success(), "{step} replaced {name}");
            ensure!(step == "tag" || said.contains("raise the version"), "{said}");
            ensure!(fs::read_to_string(&taken)? == "another manifest", "{step} replaced {name}");
        }
        registry.clear()?;
    }
    // Another run may take the version after the push.
    registry.succeed("push")?;
    fs::write(registry.store.path().join(format!("ghcr.io_podperf_podperf:{VERSION}")), "another manifest")?;
    let output = registry.step("tag").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("raise the version"), "{said}");
    Ok(())
}

pub(super) fn a_version_has_no_name_in_the_registry_before_the_last_step() -> Result<()> {
    let registry = Registry::new()?;
    // Each step may be repeated.
    for _ in 0..2 {
        registry.succeed("push")?;
        let names = registry.names()?;
        ensure!(names.len() == 2 && names.iter().all(|name| name.contains("@sha256:")), "{names:?}");
    }
    for _ in 0..2 {
        registry.succeed("tag")?;
        let names = registry.names()?;
        let tags: Vec<_> = names.iter().filter(|name| !name.contains('@')).map(String::as_str).collect();
        let charts = "ghcr.io_podperf_charts_podperf";
        let expected = [
            format!("{charts}:{VERSION}"),
            format!("{charts}:artifacthub.io"),
            format!("ghcr.io_podperf_podperf:{VERSION}"),
        ];
        ensure!(tags == expected, "{names:?}");
    }
    Ok(())
}

pub(super) fn a_file_without_a_sum_is_not_published() -> Result<()> {
    let registry = Registry::new()?;
    registry.succeed("push")?;
    fs::write(registry.out.path().join("files/another"), "")?;
    let output = registry.step("pull").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("SHA256SUMS and"), "{said}");
    Ok(())
}

/// The test repeats a run that failed after it had made the release on GitHub.
pub(super) fn a_release_that_exists_is_completed() -> Result<()> {
    for (answer, expected) in [
        ("exit 0", Some(&["release view", "release upload", "release edit"][..])),
        ("echo release not found >&2; exit 1", Some(&["release view", "release create"])),
        ("echo 'HTTP 503: Service Unavailable' >&2; exit 1", None),
    ] {
        let (out, programs) = (TempDir::new()?, TempDir::new()?);
        fs::create_dir(out.path().join("files"))?;
        fs::write(out.path().join("files/SHA256SUMS"), "")?;
        let log = out.path().join("log");
        let body = format!("echo \"$*\" >>{}\ncase $2 in view) {answer} ;; esac\n", log.display());
        let path = program(programs.path(), "gh", &body)?;
        let output = script(out.path(), "publish", &[&format!("v{VERSION}")]).env("PATH", path).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() == expected.is_some(), "{answer}: {said}");
        let calls = fs::read_to_string(&log)?;
        let verbs: Vec<_> =
            calls.lines().map(|line| line.splitn(3, ' ').take(2).collect::<Vec<_>>().join(" ")).collect();
        ensure!(verbs == expected.unwrap_or(&["release view"]), "{answer}: {calls}");
        ensure!(!calls.contains("upload") || calls.contains("--clobber"), "{calls}");
        ensure!(expected.is_none() || calls.contains("/files/SHA256SUMS"), "{calls}");
    }
    Ok(())
}

/// Files of a release, and a registry for them.
struct Registry {
    out: TempDir,
    store: TempDir,
    _programs: TempDir,
    path: OsString,
}

impl Registry {
    fn new() -> Result<Self> {
        let programs = TempDir::new()?;
        let path = program(programs.path(), "skopeo", SKOPEO)?;
        let registry = Self { out: TempDir::new()?, store: TempDir::new()?, _programs: programs, path };
        make(registry.out.path(), &[("amd64", "program"), ("arm64", "program")])?;
        let chart = registry.out.path().join("chart");
        fs::create_dir_all(chart.join("blobs/sha256"))?;
        let manifest = blob(&chart, "manifest.v1+json", b"a chart")?;
        fs::write(chart.join("index.json"), json!({"schemaVersion": 2, "manifests": [manifest]}).to_string())?;
        Ok(registry)
    }

    fn step(&self, step: &str) -> Command {
        let mut command = script(self.out.path(), step, &[]);
        command.env("PATH", &self.path).env("STORE", self.store.path()).env_remove("DOWN");
        command
    }

    fn succeed(&self, step: &str) -> Result<()> {
        super::succeed(self.step(step))
    }

    /// Returns the names of all manifests, in order.
    fn names(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(self.store.path())?;
        let mut names =
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn clear(&self) -> Result<()> {
        for name in self.names()? {
            fs::remove_file(self.store.path().join(name))?;
        }
        Ok(())
    }
}

/// Writes a program, and returns a path on which it is found first.
fn program(directory: &Path, name: &str, body: &str) -> Result<OsString> {
    let file = directory.join(name);
    install(format!("#!/bin/sh\n{body}").as_bytes(), &file)?;
    let path = std::env::var_os("PATH").context("no PATH")?;
    Ok(std::env::join_paths([directory.to_owned()].into_iter().chain(std::env::split_paths(&path)))?)
}
