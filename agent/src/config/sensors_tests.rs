use serde_json::{Value, json};

use super::*;
use crate::{
    config::{Settings, parts},
    model::settings::{Constant, LONGEST_PATTERN},
};

const EXAMPLE: &str = include_str!("../../../config/podperf.yaml");
const SCHEMA: &str = include_str!("../../../charts/podperf/values.schema.json");

/// Returns the checked configuration, or the error.
fn checked(sensors: &str) -> Result<Config, String> {
    let config = Config::parse(&format!("sensors: {{{sensors}}}")).map_err(|error| error.to_string())?;
    Settings::try_from(config).map(|settings| settings.config).map_err(|error| error.to_string())
}

#[test]
fn settings_reach_the_programs_and_the_agent_while_their_sensor_is_on() {
    let on = "calls: {enabled: true, errorsOnly: true, namespaces: [shop, team-.*]}, workqueues: {enabled: true}, \
              latencies: {enabled: true, calls: [write, openat]}";
    let config = checked(on).unwrap();
    let values = parts::sensor_values(&config);
    let expected = [
        ("calls_errors_only", Constant::Flag(true)),
        ("calls_chooses", Constant::Flag(true)),
        ("latencies_chosen", Constant::Number(1 << 1 | 1 << 4)),
    ];
    assert_eq!(values.constants().collect::<Vec<_>>(), expected);
    assert_eq!(values.number("sensors.workqueues.maxFunctions"), Some(64));
    let [(table, namespaces)] = &parts::sensor_choices(&config)[..] else { panic!("not one choice") };
    assert_eq!(*table, "calls_chosen");
    assert_eq!(["shop", "team-a", "workshop"].map(|name| namespaces.has(name)), [true, true, false]);

    let off = checked("calls: {enabled: false, namespaces: [shop]}, workqueues: {enabled: false, maxFunctions: 9}");
    let values = parts::sensor_values(&off.unwrap());
    assert!(values.constants().next().is_none() && values.number("sensors.workqueues.maxFunctions").is_none());
    let all = checked("calls: {enabled: true}").unwrap();
    assert!(parts::sensor_choices(&all).is_empty());
}

#[test]
fn a_bad_value_is_refused_with_its_key_and_the_way_out() {
    let many = format!("calls: {{enabled: true, namespaces: [{}]}}", "a, ".repeat(65));
    for (sensors, says) in [
        (
            "calls: {enabled: true, errorsOnly: 1}",
            "sensors.calls.errorsOnly: invalid type: integer `1`, expected a bool",
        ),
        ("calls: {enabled: true, namespaces: shop}", "sensors.calls.namespaces: invalid type: string \"shop\""),
        (
            "calls: {enabled: true, namespace: [a]}",
            "sensors.calls: unknown key `namespace` at line 1 column 34 (did you",
        ),
        ("calls: {enabled: true, x: 1}", "(one of `enabled`, `errorsOnly`, `namespaces`)"),
        ("latencies: {enabled: true, calls: [reed]}", "bad value for `sensors.latencies.calls`: no `reed` (there is"),
        ("locks: {enabled: true, namespaces: [a]}", "sensors.locks: unknown key `namespaces`"),
        ("calls: {errorsOnly: true}", "sensors.calls: missing field `enabled`"),
        ("calls: {enabled: true, enabled: true}", "sensors.calls: duplicate field `enabled`"),
        ("calls: {enabled: true, namespaces: ['(']}", "bad value for `sensors.calls.namespaces`: failed to parse"),
        ("calls: {enabled: true, namespaces: ['']}", "bad value for `sensors.calls.namespaces`: a pattern needs 1 to"),
        (many.as_str(), "bad value for `sensors.calls.namespaces`: 65 patterns (at most 64)"),
        (
            "calls: {enabled: true, namespaces: [a]}}\nidentity: none\npmu: {",
            "bad value for `sensors.calls.namespaces`: with `identity: none` no namespace is known (set",
        ),
        ("workqueues: {enabled: true, maxFunctions: -1}", "sensors.workqueues.maxFunctions: invalid "),
        (
            "workqueues: {enabled: false, maxFunctions: 0}",
            "bad value for `sensors.workqueues.maxFunctions`: needs 1 to 1000 functions",
        ),
    ] {
        let message = checked(sensors).unwrap_err();
        assert!(message.contains(says), "{sensors}: {message}");
    }
}

/// Returns the comment above the key of a path in the example.
fn comment_above(path: &str) -> String {
    let lines: Vec<_> = EXAMPLE.lines().collect();
    let at = crate::config::line_of(EXAMPLE, path).unwrap() - 1;
    let above = lines[..at].iter().rev().map_while(|line| line.trim_start().strip_prefix("# "));
    above.collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_example_explains_each_setting_in_the_words_of_its_description() {
    for setting in ALL.into_iter().flat_map(|sensor| sensor.settings) {
        let (path, comment) = (setting.key.path, comment_above(setting.key.path));
        assert!(comment.contains(&format!("{}.", setting.about)), "config/podperf.yaml, above {path}: {comment}");
    }
}

#[test]
fn the_chart_has_the_schema_of_each_setting() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let own = &schema["properties"]["config"]["properties"]["sensors"]["properties"];
    for sensor in ALL {
        let mut keys = json!({"enabled": {"type": "boolean"}});
        for setting in sensor.settings {
            keys[setting.key.name] = match setting.kind {
                SettingKind::Flag { .. } => json!({"type": "boolean"}),
                SettingKind::Number { least, most, .. } => {
                    json!({"type": "integer", "minimum": least, "maximum": most})
                }
                SettingKind::Namespaces { most, .. } => {
                    json!({"type": "array", "maxItems": most, "items": {"$ref": "#/definitions/pattern"}})
                }
                SettingKind::Names { names } => json!({"type": "array", "uniqueItems": true, "items": {"enum": names}}),
            };
        }
        let expected =
            json!({"type": "object", "additionalProperties": false, "required": ["enabled"], "properties": keys});
        let name = sensor.names.sensor;
        let found = match own[name]["$ref"].as_str() {
            Some("#/definitions/sensor") => &schema["definitions"]["sensor"],
            _ => &own[name],
        };
        assert_eq!(*found, expected, "charts/podperf/values.schema.json needs for `{name}`: {expected}");
    }
    let pattern = json!({"type": "string", "minLength": 1, "maxLength": LONGEST_PATTERN});
    assert_eq!(schema["definitions"]["pattern"], pattern);
}
