//! `values.schema.json` describes each key of `values.yaml`, and no other key.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{suite::Test, tests};
use serde_json::Value;

use crate::helm::chart;

pub(crate) const TESTS: &[Test] = tests![
    the_schema_and_the_values_have_the_same_keys,
    the_schema_is_closed_where_the_keys_are_ours,
    the_schema_is_of_a_draft_that_older_helms_read,
];

/// Returns the schema of the values, with its definitions in the places that use them.
pub(crate) fn schema() -> Result<Value> {
    fn resolve(value: &mut Value, definitions: &Value) {
        if let Some(name) = value["$ref"].as_str().and_then(|name| name.strip_prefix("#/definitions/")) {
            *value = definitions[name].clone();
        }
        for property in value.as_object_mut().into_iter().flat_map(serde_json::Map::values_mut) {
            if property.is_object() {
                resolve(property, definitions);
            }
        }
    }
    let mut schema: Value = serde_json::from_str(&fs::read_to_string(chart().join("values.schema.json"))?)?;
    let definitions = schema["definitions"].take();
    resolve(&mut schema, &definitions);
    Ok(schema)
}

/// Returns the default values.
pub(crate) fn values() -> Result<Value> {
    Ok(serde_yaml::from_str(&fs::read_to_string(chart().join("values.yaml"))?)?)
}

/// Collects the paths of all keys below a schema's object, including the parents of other keys.
pub(crate) fn keys_of_schema(schema: &Value, prefix: &str, into: &mut BTreeSet<String>) {
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{prefix}{key}");
        keys_of_schema(property, &format!("{path}."), into);
        into.insert(path);
    }
}

/// Collects the same of values. It does not descend into lists.
pub(crate) fn keys_of_values(values: &Value, prefix: &str, into: &mut BTreeSet<String>) {
    for (key, value) in values.as_object().into_iter().flatten() {
        let path = format!("{prefix}{key}");
        keys_of_values(value, &format!("{path}."), into);
        into.insert(path);
    }
}

fn the_schema_and_the_values_have_the_same_keys() -> Result<()> {
    let (mut of_schema, mut of_values) = (BTreeSet::new(), BTreeSet::new());
    keys_of_schema(&schema()?, "", &mut of_schema);
    keys_of_values(&values()?, "", &mut of_values);
    // The agent has the defaults of the configuration's keys, and Kubernetes documents its own objects.
    let foreign =
        ["config.", "nodeSelector.", "affinity.", "dashboards.configMaps.labels.", "instanceSelector.", "resources."];
    let ours = |path: &String| !foreign.iter().any(|part| path.contains(part));
    // A field of a probe with a default of Kubernetes, and a field that the chart rejects with a message.
    let optional =
        |path: &String| path.ends_with("Probe.initialDelaySeconds") || path.ends_with("rollingUpdate.maxSurge");
    let missing: Vec<_> = of_values.difference(&of_schema).filter(|path| ours(path)).collect();
    ensure!(missing.is_empty(), "in values.yaml, not in the schema: {missing:?}");
    let unknown: Vec<_> = of_schema.difference(&of_values).filter(|path| ours(path) && !optional(path)).collect();
    ensure!(unknown.is_empty(), "in the schema, not in values.yaml: {unknown:?}");
    Ok(())
}

fn the_schema_is_closed_where_the_keys_are_ours() -> Result<()> {
    fn open(schema: &Value, path: &str, into: &mut Vec<String>) {
        if schema["properties"].is_object() && schema["additionalProperties"] != Value::Bool(false) {
            into.push(path.to_owned());
        }
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            open(property, &format!("{path}.{key}"), into);
        }
        open_below(schema, path, into);
    }
    fn open_below(schema: &Value, path: &str, into: &mut Vec<String>) {
        for part in ["items", "additionalProperties"] {
            if schema[part].is_object() {
                open(&schema[part], &format!("{path}.*"), into);
            }
        }
    }
    let mut found = Vec::new();
    open(&schema()?, "", &mut found);
    // Other charts of an umbrella chart have their own keys there.
    ensure!(found == [".global"], "open: {found:?}");
    Ok(())
}

fn the_schema_is_of_a_draft_that_older_helms_read() -> Result<()> {
    let schema = schema()?;
    let draft = schema["$schema"].as_str().context("no draft")?;
    ensure!(draft == "http://json-schema.org/draft-07/schema#", "{draft}");
    Ok(())
}
