//! The agent's reference of its exported families.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::agent;

/// A family of `podperf metrics --output json`.
#[derive(Debug, Deserialize)]
struct Family {
    name: String,
    labels: BTreeSet<String>,
    when: String,
}

/// Returns the output of `podperf metrics` in a form.
pub fn print(form: &str) -> Result<String> {
    let output = Command::new(agent::binary()?).args(["metrics", "--output", form]).output()?;
    ensure!(output.status.success(), "podperf metrics: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn families() -> Result<Vec<Family>> {
    Ok(serde_json::from_str(&print("json")?)?)
}

/// Returns the labels of each family.
pub fn reference() -> Result<BTreeMap<String, BTreeSet<String>>> {
    Ok(families()?.into_iter().map(|family| (family.name, family.labels)).collect())
}

/// Returns the names of the families that only `metrics.own: all` exports.
pub fn details() -> Result<BTreeSet<String>> {
    let details = families()?.into_iter().filter(|family| family.when.contains("`metrics.own: all`"));
    Ok(details.map(|family| family.name).collect())
}
