//! The chart's rules, as the text that promtool and Prometheus read.
//!
//! Thresholds are comments and comments are lost when YAML is parsed, so files are read, and changed, by their lines.

pub mod mutation;
pub mod promql;

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

/// One file of rules.
#[derive(Clone, Debug)]
pub struct RuleFile {
    /// Its name.
    pub name: String,
    /// Its text.
    pub lines: Vec<String>,
    /// Its rules, in their order.
    pub rules: Vec<Rule>,
}

/// A rule's place in its file.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Of the alert or the series.
    pub name: String,
    /// Whether it is an alert, not a recording.
    pub is_alert: bool,
    /// The lines of the expression.
    pub expression: Range<usize>,
    /// All of its lines.
    pub all: Range<usize>,
}

/// This repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where the chart has its rules, from the repository's root.
pub const RULES: &str = "charts/podperf/files/rules";
/// Where promtool's tests of them are.
pub const TESTS: &str = "tests/rules";

/// The files of a directory that end so, sorted.
pub fn files_in(directory: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("failed to read `{}`", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|path| path.to_string_lossy().ends_with(ending));
    files.sort();
    ensure!(!files.is_empty(), "no `*{ending}` in `{}`", directory.display());
    Ok(files)
}

/// All files of rules.
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

    /// A rule's expression.
    #[must_use]
    pub fn expression(&self, rule: &Rule) -> String {
        self.lines[rule.expression.clone()].join("\n")
    }

    /// A key of a rule, such as `for` or an annotation.
    #[must_use]
    pub fn value(&self, rule: &Rule, key: &str) -> Option<&str> {
        let lines = self.lines[rule.expression.end..rule.all.end].iter();
        let value = lines.filter_map(|line| line.trim_start().strip_prefix(key)?.strip_prefix(": "));
        value.map(|value| value.trim_matches('\'')).next()
    }
}

/// The kind and the name of the rule that begins in this line.
fn named(line: &str) -> Option<(&str, &str)> {
    let (kind, name) = line.trim_start().strip_prefix("- ")?.split_once(": ")?;
    ["alert", "record"].contains(&kind).then_some((kind, name))
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}
