//! The chart's rules, as the text that promtool and Prometheus read.
//!
//! Thresholds are in comments, and a YAML parser drops comments. So files are read and changed by their lines.

pub mod mutation;
pub mod promql;

use std::{
    collections::BTreeSet,
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

/// One file of rules.
#[derive(Clone, Debug)]
pub struct RuleFile {
    /// The name of the file.
    pub name: String,
    /// The lines of the file.
    pub lines: Vec<String>,
    /// The rules of the file, in the file's order.
    pub rules: Vec<Rule>,
}

/// A rule's place in its file.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The name of the alert or the series.
    pub name: String,
    /// `true` for an alert, and `false` for a recording rule.
    pub is_alert: bool,
    /// The lines of the expression.
    pub expression: Range<usize>,
    /// All lines of the rule.
    pub all: Range<usize>,
}

/// Returns the root of this repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The directory of the chart's rules, from the repository's root.
pub const RULES: &str = "charts/podperf/files/rules";
/// The directory of promtool's tests for these rules.
pub const TESTS: &str = "tests/rules";

/// Folders without files of this repository: build outputs, and the output of fuzz targets.
const BUILT: [&str; 4] = [".git", "artifacts", "node_modules", "target"];

/// Returns all files of the repository, from its root.
pub fn all_files() -> Result<BTreeSet<PathBuf>> {
    let root = root();
    let (mut files, mut folders) = (BTreeSet::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if !entry.file_type()?.is_dir() {
                files.insert(path);
            } else if !BUILT.iter().any(|built| path.ends_with(built)) {
                folders.push(path);
            }
        }
    }
    ensure!(files.len() > 300, "only {} files", files.len());
    Ok(files)
}

/// Returns the files of a directory with this ending, sorted.
pub fn files_in(directory: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("failed to read `{}`", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|path| path.to_string_lossy().ends_with(ending));
    files.sort();
    ensure!(!files.is_empty(), "no `*{ending}` in `{}`", directory.display());
    Ok(files)
}

/// Returns whether a file of promtool's tests is a story: it goes from scrapes to alerts over hours or days, and takes
/// seconds. The tests of each rule are enough without it.
#[must_use]
pub fn is_story(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("scenarios_"))
}

/// Returns all files of rules.
pub fn read() -> Result<Vec<RuleFile>> {
    files_in(&root().join(RULES), ".yaml")?.iter().map(|path| RuleFile::read(path)).collect()
}

impl RuleFile {
    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)?;
        let name = path.file_name().context("a rule file without a name")?.to_string_lossy().into_owned();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let starts: Vec<usize> = (0..lines.len()).filter(|&line| named(&lines[line]).is_some()).collect();
        let mut rules = Vec::new();
        for (index, &start) in starts.iter().enumerate() {
            let end = starts.get(index + 1).copied().unwrap_or(lines.len());
            let (kind, of) = named(&lines[start]).context("a rule without a name")?;
            let expr = (start..end).find(|&line| lines[line].trim_start().starts_with("expr: |-"));
            let first = expr.with_context(|| format!("no `expr: |-` in rule `{of}` of {name}"))? + 1;
            let indent = indentation(&lines[first]);
            let last = (first..end).find(|&line| indentation(&lines[line]) < indent).unwrap_or(end);
            rules.push(Rule { name: of.into(), is_alert: kind == "alert", expression: first..last, all: start..end });
        }
        ensure!(!rules.is_empty(), "no rules in {name}");
        Ok(Self { name, lines, rules })
    }

    /// Returns a rule's expression.
    #[must_use]
    pub fn expression(&self, rule: &Rule) -> String {
        self.lines[rule.expression.clone()].join("\n")
    }

    /// Returns the value of a key of a rule, such as `for` or an annotation.
    #[must_use]
    pub fn value(&self, rule: &Rule, key: &str) -> Option<&str> {
        let lines = self.lines[rule.expression.end..rule.all.end].iter();
        let value = lines.filter_map(|line| line.trim_start().strip_prefix(key)?.strip_prefix(": "));
        value.map(|value| value.trim_matches('\'')).next()
    }
}

/// Returns the kind and the name of the rule that begins in this line.
fn named(line: &str) -> Option<(&str, &str)> {
    let (kind, name) = line.trim_start().strip_prefix("- ")?.split_once(": ")?;
    ["alert", "record"].contains(&kind).then_some((kind, name))
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}
