//! The chart's dashboards, as far as their queries go.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::rules::{files_in, root};

/// Where the chart has them, from the repository's root.
pub const DASHBOARDS: &str = "charts/podperf/files/dashboards";

/// A dashboard.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// `uid`, which is its file's name.
    pub uid: String,
    /// All of it.
    pub json: Value,
    /// Its panels, those in collapsed rows too, without the rows.
    pub panels: Vec<Panel>,
    /// Its variables, in their order.
    pub variables: Vec<Variable>,
}

/// A panel.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Its title.
    pub title: String,
    /// Its type.
    pub kind: String,
    /// All of it.
    pub json: Value,
    /// Its queries for Prometheus.
    pub queries: Vec<String>,
}

/// A variable.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// All of it.
    pub json: Value,
    /// `label_values(SELECTOR, LABEL)`, where it is asked of Prometheus.
    pub label_values: Option<(String, String)>,
}

/// All of them.
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
