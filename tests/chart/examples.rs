//! Three of the examples render to `examples/NAME/rendered`, byte for byte, so a review shows the effect of a changed
//! template. `make golden` writes them again. Rules and dashboards are not among them: `tests/chart/rules.rs` compares
//! them with `charts/podperf/files`. For all other examples the test renders and validates, and does not keep the text.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use podperf_tests::{golden, suite::Test, tests};

use crate::helm::{GO, arguments_of, chart, helm, notes, said, value_files};

pub(crate) const TESTS: &[Test] = tests![
    examples_render_as_they_were_generated: GO,
    all_values_of_ci_and_examples_pass_the_strict_lint: GO,
    the_package_holds_what_is_installed_and_nothing_else: GO,
];

/// The examples with a kept text: nothing set, nearly everything set, and a special platform.
const KEPT: [&str; 3] = ["default", "operator-full", "openshift"];
/// The examples that only have to render.
const OTHERS: [&str; 6] = ["air-gapped", "gke", "guarded", "kubernetes-1.29", "minimal", "profiles"];
/// The files whose text is that of `charts/podperf/files`.
const ARRIVE_AS_WRITTEN: [&str; 2] = ["grafanadashboards.yaml", "prometheusrule.yaml"];

fn examples_render_as_they_were_generated() -> Result<()> {
    let mut different = Vec::new();
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(chart().join("examples"))? {
        let directory = entry?.path();
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let fresh = render(&directory.join("values.yaml")).with_context(|| name.clone())?;
        let folder = directory.join("rendered");
        if KEPT.contains(&&*name) {
            if golden::is_written() {
                write(&folder, &fresh)?;
            }
            let kept = read(&folder)?;
            let files = fresh.keys().chain(kept.keys()).collect::<BTreeSet<_>>();
            let changed = files.into_iter().filter(|file| fresh.get(*file) != kept.get(*file));
            different.extend(changed.map(|file| format!("{name}/{}", file.display())));
        } else {
            ensure!(!folder.exists(), "the text of example `{name}` is not kept, and `{}` exists", folder.display());
        }
        names.insert(name);
    }
    ensure!(different.is_empty(), "not as they were (`make golden`, and look at the difference): {different:?}");
    let wanted: BTreeSet<_> = KEPT.into_iter().chain(OTHERS).map(str::to_owned).collect();
    ensure!(names == wanted, "the examples are {names:?}, not {wanted:?}");
    Ok(())
}

/// Returns the files of a rendering that are kept, by their paths, and the notes.
fn render(values: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let text = fs::read_to_string(values)?;
    let directory = tempfile::tempdir()?;
    let (chart, values, out) = (chart(), values.to_string_lossy(), directory.path().to_string_lossy());
    let common = ["podperf", &*chart.to_string_lossy(), "--namespace", "podperf", "--values", &values];
    let more = arguments_of(&text);
    said(&helm(["template", "--output-dir", &out].iter().chain(&common).chain(&more))?)?;
    let mut files = read(&directory.path().join("podperf/templates"))?;
    files.retain(|path, _| !ARRIVE_AS_WRITTEN.iter().any(|file| path == Path::new(file)));
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
    let top: BTreeSet<_> = files.lines().filter_map(first).collect();
    let most = ["Chart.yaml", "README.md", "files", "templates", "values.schema.json", "values.yaml", ".helmignore"];
    ensure!(top.iter().all(|name| most.contains(&name.as_str())), "{top:?}");
    ensure!(files.contains("templates/tests/agents.yaml"), "`helm test` has nothing to run: {files}");
    Ok(())
}
