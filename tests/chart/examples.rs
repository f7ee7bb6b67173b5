//! `examples/NAME/values.yaml` renders to `examples/NAME/rendered`, byte for byte: what a change of a template does is
//! seen in review. `make chart-golden` writes them anew.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use podperf_tests::{suite::Test, tests};

use crate::helm::{GO, arguments_of, chart, helm, notes, said, value_files};

pub(crate) const TESTS: &[Test] = tests![
    examples_render_as_they_did: GO,
    all_values_of_ci_and_examples_pass_the_strict_lint: GO,
    the_package_holds_what_is_installed_and_nothing_else: GO,
];

/// Set by `make chart-golden`.
const WRITE: &str = "PODPERF_WRITE_GOLDEN";

fn examples_render_as_they_did() -> Result<()> {
    let mut different = Vec::new();
    let mut names = Vec::new();
    for entry in fs::read_dir(chart().join("examples"))? {
        let directory = entry?.path();
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let fresh = render(&directory.join("values.yaml")).with_context(|| name.clone())?;
        let golden = directory.join("rendered");
        if std::env::var_os(WRITE).is_some() {
            write(&golden, &fresh)?;
        }
        let kept = read(&golden)?;
        let files = fresh.keys().chain(kept.keys()).collect::<std::collections::BTreeSet<_>>();
        different.extend(
            files
                .into_iter()
                .filter(|file| fresh.get(*file) != kept.get(*file))
                .map(|file| format!("{name}/{}", file.display())),
        );
        names.push(name);
    }
    ensure!(different.is_empty(), "not as they were (`make chart-golden`, and look at the difference): {different:?}");
    for wanted in ["default", "profiles", "operator-full", "openshift", "minimal", "air-gapped"] {
        ensure!(names.iter().any(|name| name == wanted), "no example `{wanted}`");
    }
    Ok(())
}

/// All files of a rendering by their paths, and the notes.
fn render(values: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let text = fs::read_to_string(values)?;
    let directory = tempfile::tempdir()?;
    let (chart, values, out) = (chart(), values.to_string_lossy(), directory.path().to_string_lossy());
    let common = ["podperf", &*chart.to_string_lossy(), "--namespace", "podperf", "--values", &values];
    let more = arguments_of(&text);
    said(&helm(["template", "--output-dir", &out].iter().chain(&common).chain(&more))?)?;
    let mut files = read(&directory.path().join("podperf/templates"))?;
    files.insert("NOTES.txt".into(), notes(&chart, &text, &more)?);
    Ok(files)
}

fn read(directory: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten() {
            let path = entry?.path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                files.insert(path.strip_prefix(directory)?.to_owned(), fs::read_to_string(&path)?);
            }
        }
    }
    Ok(files)
}

fn write(directory: &Path, files: &BTreeMap<PathBuf, String>) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    for (path, text) in files {
        let path = directory.join(path);
        fs::create_dir_all(path.parent().unwrap_or(directory))?;
        fs::write(path, text)?;
    }
    Ok(())
}

fn all_values_of_ci_and_examples_pass_the_strict_lint() -> Result<()> {
    for values in value_files()? {
        let path = values.to_string_lossy();
        let linted = helm(["lint", "--strict", &*chart().to_string_lossy(), "--values", &path])?;
        if !linted.status.success() {
            bail!("{path}: {}", String::from_utf8_lossy(&linted.stdout));
        }
    }
    Ok(())
}

fn the_package_holds_what_is_installed_and_nothing_else() -> Result<()> {
    let directory = tempfile::tempdir()?;
    said(&helm(["package", &chart().to_string_lossy(), "--destination", &directory.path().to_string_lossy()])?)?;
    let package = fs::read_dir(directory.path())?.next().context("no package")??.path();
    let listed = std::process::Command::new("tar").arg("-tzf").arg(&package).output()?;
    let files = said(&listed)?;
    let first = |path: &str| path.strip_prefix("podperf/").unwrap_or_default().split('/').next().map(str::to_owned);
    let top: std::collections::BTreeSet<_> = files.lines().filter_map(first).collect();
    let most = ["Chart.yaml", "README.md", "files", "templates", "values.schema.json", "values.yaml", ".helmignore"];
    ensure!(top.iter().all(|name| most.contains(&name.as_str())), "{top:?}");
    ensure!(files.contains("templates/tests/agents.yaml"), "`helm test` has nothing to run: {files}");
    Ok(())
}
