//! The chart's dashboards, as far as the tests need their queries.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::rules::{files_in, root};

/// The directory of the dashboards in the chart, from the repository's root.
pub const DASHBOARDS: &str = "charts/podperf/files/dashboards";

/// A dashboard.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// `uid`, which is also the file's name.
    pub uid: String,
    /// The whole JSON of the dashboard.
    pub json: Value,
    /// The panels, including panels in collapsed rows, without the rows.
    pub panels: Vec<Panel>,
    /// The variables, in the order of the file.
    pub variables: Vec<Variable>,
}

/// A panel.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The title of the panel.
    pub title: String,
    /// The type of the panel.
    pub kind: String,
    /// The whole JSON of the panel.
    pub json: Value,
    /// The panel's queries for Prometheus.
    pub queries: Vec<String>,
}

/// A variable.
#[derive(Clone, Debug)]
pub struct Variable {
    /// The name of the variable.
    pub name: String,
    /// The whole JSON of the variable.
    pub json: Value,
    /// `label_values(SELECTOR, LABEL)`, if Prometheus supplies the values.
    pub label_values: Option<(String, String)>,
}

/// Returns all dashboards.
pub fn read() -> Result<Vec<Dashboard>> {
    files_in(&root().join(DASHBOARDS), ".json")?.iter().map(|path| Dashboard::read(path)).collect()
}

impl Dashboard {
    fn read(path: &Path) -> Result<Self> {
        let json: Value = serde_json::from_str(&fs::read_to_string(path)?)
            .with_context(|| format!("failed to parse `{}`", path.display()))?;
        let uid = text(&json, "uid");
        ensure!(path.file_stem().is_some_and(|stem| *stem == *uid), "`{}` has the uid `{uid}`", path.display());
        let mut panels = Vec::new();
        collect(&json, &mut panels);
        let variables = json["templating"]["list"].as_array().into_iter().flatten();
        let variables = variables.map(Variable::read).collect::<Result<_>>()?;
        Ok(Self { uid, panels, variables, json })
    }
}

fn collect(parent: &Value, panels: &mut Vec<Panel>) {
    for json in parent["panels"].as_array().into_iter().flatten() {
        if json["type"] != "row" {
            let targets = json["targets"].as_array().into_iter().flatten();
            let queries = targets.filter_map(|target| Some(target["expr"].as_str()?.to_owned())).collect();
            let (title, kind) = (text(json, "title"), text(json, "type"));
            panels.push(Panel { title, kind, queries, json: json.clone() });
        }
        collect(json, panels);
    }
}

impl Variable {
    fn read(json: &Value) -> Result<Self> {
        let name = text(json, "name");
        let label_values = match json["query"]["query"].as_str() {
            None => None,
            Some(query) => {
                let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
                let parts = inner.and_then(|inner| inner.rsplit_once(", "));
                let (selector, label) =
                    parts.with_context(|| format!("`{name}` is not `label_values(S, L)`: {query}"))?;
                Some((selector.to_owned(), label.to_owned()))
            }
        };
        Ok(Self { name, json: json.clone(), label_values })
    }
}

fn text(json: &Value, key: &str) -> String {
    json[key].as_str().unwrap_or_default().to_owned()
}
