//! The real helm, and its renderings of the chart.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, OnceLock, PoisonError},
};

use anyhow::{Context as _, Result, bail, ensure};
use podperf_tests::suite::Need;
use serde::Deserialize as _;
use serde_yaml::Value;
use tempfile::TempDir;

/// The needs of `build.sh`.
pub(crate) const GO: &[Need] = &[Need::Program("go")];

/// Returns the root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("/"))
}

/// Returns the folder of the chart.
pub(crate) fn chart() -> PathBuf {
    root().join("charts/podperf")
}

/// Returns a command for a program of `build.sh`.
pub(crate) fn program(name: &str) -> Result<Command> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let programs = ["helm", "helm-docs", "jsonnet", "operators"];
        let output = Command::new(root().join("tests/chart/build.sh")).args(programs).output();
        match output {
            Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().into()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(error.to_string()),
        }
    });
    match built {
        Ok(directory) => {
            let mut command = Command::new(directory.join(name));
            // These Go programs end before their garbage matters, and its collection is a quarter of their time.
            command.env("GOGC", "off");
            Ok(command)
        }
        Err(error) => bail!("failed to build `{name}`: {error}"),
    }
}

/// Runs helm to its end.
pub(crate) fn helm<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Result<Output> {
    program("helm")?.args(arguments).output().context("failed to run helm")
}

/// Returns the output, or the reason of the failure.
pub(crate) fn said(output: &Output) -> Result<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{}", text(&output.stderr).trim());
    Ok(text(&output.stdout))
}

/// Returns the output of `helm template` for the chart with values as YAML and further arguments. Tests share it.
pub(crate) fn template(values: &str, arguments: &[&str]) -> Result<String> {
    static RENDERED: Mutex<BTreeMap<(String, String), String>> = Mutex::new(BTreeMap::new());
    let rendered = || RENDERED.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (values.to_owned(), arguments.join(" "));
    if let Some(known) = rendered().get(&key) {
        return Ok(known.clone());
    }
    let fresh = template_of(&chart(), values, arguments)?;
    rendered().insert(key, fresh.clone());
    Ok(fresh)
}

/// Returns the same output for another chart.
pub(crate) fn template_of(chart: &Path, values: &str, arguments: &[&str]) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), values)?;
    let mut command = program("helm")?;
    command.args(["template", "podperf", "--namespace", "podperf"]).arg(chart).arg("--values").arg(file.path());
    said(&command.args(arguments).output()?)
}

/// Returns a copy of a chart that a test may change.
pub(crate) fn copy_of(chart: &Path) -> Result<(TempDir, PathBuf)> {
    let directory = tempfile::tempdir()?;
    let copy = directory.path().join("podperf");
    said(&Command::new("cp").arg("-r").arg(chart).arg(&copy).output()?)?;
    Ok((directory, copy))
}

/// Returns the notes that Helm prints after an installation. Helm prints them only with a cluster, so a copy of the
/// chart has them as an object.
pub(crate) fn notes(chart: &Path, values: &str, arguments: &[&str]) -> Result<String> {
    let (_directory, copy) = copy_of(chart)?;
    let templates = copy.join("templates");
    let text = fs::read_to_string(templates.join("NOTES.txt"))?;
    fs::write(templates.join("_notes.tpl"), format!("{{{{- define \"notes\" -}}}}\n{text}{{{{- end -}}}}\n"))?;
    fs::write(templates.join("notes.yaml"), "notes: {{ include \"notes\" . | toJson }}\n")?;
    let rendered = template_of(&copy, values, &[arguments, &["--show-only=templates/notes.yaml"]].concat())?;
    let object = objects(&rendered)?.pop().context("no notes")?;
    Ok(object["notes"].as_str().context("no text")?.to_owned())
}

/// Returns the objects of a rendering.
pub(crate) fn objects(rendered: &str) -> Result<Vec<Value>> {
    let documents = serde_yaml::Deserializer::from_str(rendered).map(Value::deserialize);
    let all: Vec<_> = documents.collect::<Result<_, _>>()?;
    Ok(all.into_iter().filter(|object| !object.is_null()).collect())
}

/// Returns the only object of a kind that is not part of a Helm test.
pub(crate) fn object(rendered: &str, kind: &str) -> Result<Value> {
    let mut found = objects(rendered)?;
    found.retain(|object| object["kind"] == kind && object["metadata"]["annotations"]["helm.sh/hook"].is_null());
    ensure!(found.len() == 1, "{} objects of kind {kind}", found.len());
    found.pop().context("none")
}

/// Returns the files of values: of each example, and of `ci`.
pub(crate) fn value_files() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(chart().join("examples"))? {
        files.push(entry?.path().join("values.yaml"));
    }
    for entry in fs::read_dir(chart().join("ci"))? {
        files.push(entry?.path());
    }
    files.sort();
    ensure!(files.len() > 10, "{files:?}");
    Ok(files)
}

/// Returns the words of a first line `# helm template WORDS`: an example's further arguments.
pub(crate) fn arguments_of(values: &str) -> Vec<&str> {
    let line = values.lines().next().and_then(|line| line.strip_prefix("# helm template "));
    line.map(|words| words.split_whitespace().collect()).unwrap_or_default()
}
