//! No ConfigMap contains a credential of a receiver.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use podperf_tests::{agent, suite::Test, tests};
use serde_yaml::Value;

use crate::helm::{GO, chart, notes, object, objects, template};

pub(crate) const TESTS: &[Test] = tests![
    headers_are_in_a_secret_and_not_in_the_configuration: GO,
    the_agent_takes_headers_as_the_secret_has_them: GO,
    without_headers_there_is_no_secret: GO,
    other_headers_restart_the_agents: GO,
    a_header_in_the_daemonset_is_told_in_the_notes: GO,
];

const VALUES: &str = "{mode: profiles, http: {acceptOpenProfiles: true}, config: {otlp: {endpoint: 'http://a:4317', \
                      headers: {authorization: 'Bearer a=b,c+d %', x-tenant: '7'}}}}";

/// Returns the headers in the Secret's form.
fn headers(values: &str) -> Result<String> {
    let secret = object(&template(values, &[])?, "Secret")?;
    let text = secret["data"]["headers"].as_str().context("no headers")?;
    Ok(String::from_utf8(BASE64_STANDARD.decode(text)?)?)
}

fn headers_are_in_a_secret_and_not_in_the_configuration() -> Result<()> {
    let rendered = template(VALUES, &[])?;
    let config = object(&rendered, "ConfigMap")?["data"]["podperf.yaml"].as_str().context("no file")?.to_owned();
    ensure!(!config.contains("Bearer") && !config.contains("headers"), "{config}");
    ensure!(config.contains("endpoint: http://a:4317"), "{config}");
    ensure!(headers(VALUES)? == "authorization=Bearer%20a%3Db%2Cc%2Bd%20%25,x-tenant=7", "{}", headers(VALUES)?);
    let elsewhere = objects(&rendered)?
        .iter()
        .filter(|object| object["kind"] != "Secret")
        .any(|object| serde_yaml::to_string(object).is_ok_and(|text| text.contains("Bearer")));
    ensure!(!elsewhere, "the header is in another object, too: {rendered}");

    let secret = object(&rendered, "Secret")?["metadata"]["name"].clone();
    let agent = object(&rendered, "DaemonSet")?["spec"]["template"]["spec"]["containers"][0].clone();
    let variables: Vec<Value> = agent["env"].as_sequence().cloned().unwrap_or_default();
    let variable = variables.iter().find(|it| it["name"] == "OTEL_EXPORTER_OTLP_HEADERS").context("no variable")?;
    let from = &variable["valueFrom"]["secretKeyRef"];
    ensure!(from["name"] == secret && from["key"] == "headers", "{variable:?}");
    Ok(())
}

/// The agent reads its configuration before it looks for a cgroup tree: an invalid header has another exit code.
fn the_agent_takes_headers_as_the_secret_has_them() -> Result<()> {
    let code = |text: &str| -> Result<Option<i32>> {
        let empty = tempfile::tempdir()?;
        let mut command = Command::new(agent::binary()?);
        command.arg("agent").arg("--cgroup-root").arg(empty.path()).env("OTEL_EXPORTER_OTLP_HEADERS", text);
        Ok(command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1").output()?.status.code())
    };
    ensure!(code(&headers(VALUES)?)? == Some(3), "{:?}", code(&headers(VALUES)?)?);
    ensure!(code("no pair")? == Some(2), "the agent takes anything: {:?}", code("no pair")?);
    Ok(())
}

fn without_headers_there_is_no_secret() -> Result<()> {
    for values in ["", "config: {otlp: {headers: {}}}"] {
        let rendered = template(values, &[])?;
        ensure!(object(&rendered, "Secret").is_err() && !rendered.contains("OTEL_EXPORTER"), "{values}: {rendered}");
    }
    Ok(())
}

fn other_headers_restart_the_agents() -> Result<()> {
    let checksum = |values: &str| -> Result<Value> {
        let set = object(&template(values, &[])?, "DaemonSet")?;
        Ok(set["spec"]["template"]["metadata"]["annotations"]["checksum/config"].clone())
    };
    ensure!(checksum(VALUES)? != checksum(&VALUES.replace("Bearer a", "Bearer b"))?);
    Ok(())
}

fn a_header_in_the_daemonset_is_told_in_the_notes() -> Result<()> {
    let words = "whoever may read the DaemonSet reads the value of OTEL_EXPORTER_OTLP_HEADERS";
    let said = notes(&chart(), "extraEnv: [{name: OTEL_EXPORTER_OTLP_HEADERS, value: a=b}]", &[])?;
    ensure!(said.contains(words), "{said}");
    let from = "extraEnv: [{name: OTEL_EXPORTER_OTLP_HEADERS, valueFrom: {secretKeyRef: {name: a, key: b}}}]";
    ensure!(!notes(&chart(), from, &[])?.contains(words));
    Ok(())
}
