//! The agent's configuration in the chart: the keys of `config/podperf.yaml`, and when a change restarts agents.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{suite::Test, tests};
use serde_json::Value;

use crate::{
    helm::{GO, object, root, template},
    schema::{keys_of_schema, keys_of_values, schema},
};

pub(crate) const TESTS: &[Test] = tests![
    the_schema_knows_every_key_of_the_agent_but_the_charts_own,
    the_agents_defaults_are_values_that_are_taken: GO,
    only_what_the_agent_does_not_follow_restarts_it: GO,
    large_numbers_stay_numbers: GO,
    an_ipv6_address_is_in_brackets: GO,
    a_receiver_of_metrics_gets_profiles_only_if_the_values_say_so: GO,
    certificates_are_mounted_where_the_configuration_says: GO,
    debug_files_are_kept_on_the_node_where_the_configuration_says: GO,
];

/// Keys that the chart sets itself.
const OWN: &[&str] = &[
    "listen",
    "nodeName",
    "runDir",
    "restart.directory",
    "restart.daemonSet",
    "cgroups.root",
    "kubernetes.kubeconfig",
    "kubernetes.context",
    "server.tls.certFile",
    "server.tls.keyFile",
    "server.tls",
    "server.authorization.enabled",
    "stacks.debuginfod.cacheDir",
];

fn defaults() -> Result<Value> {
    Ok(serde_yaml::from_str(&fs::read_to_string(root().join("config/podperf.yaml"))?)?)
}

/// Returns the configuration in the rendered ConfigMap.
fn configured(values: &str) -> Result<Value> {
    let rendered = object(&template(values, &[])?, "ConfigMap")?;
    Ok(serde_yaml::from_str(rendered["data"]["podperf.yaml"].as_str().context("no podperf.yaml")?)?)
}

fn the_schema_knows_every_key_of_the_agent_but_the_charts_own() -> Result<()> {
    let (mut agent, mut chart) = (BTreeSet::new(), BTreeSet::new());
    keys_of_values(&defaults()?, "", &mut agent);
    keys_of_schema(&schema()?["properties"]["config"], "", &mut chart);
    for own in OWN {
        ensure!(agent.remove(*own), "the agent has no `{own}`");
    }
    let missing: Vec<_> = agent.difference(&chart).collect();
    let unknown: Vec<_> = chart.difference(&agent).collect();
    ensure!(missing.is_empty() && unknown.is_empty(), "missing: {missing:?}, unknown to the agent: {unknown:?}");
    Ok(())
}

fn the_agents_defaults_are_values_that_are_taken() -> Result<()> {
    let mut config = defaults()?;
    for own in OWN {
        let (parent, key) = own.rsplit_once('.').unwrap_or(("", own));
        let object = if parent.is_empty() { String::new() } else { format!("/{}", parent.replace('.', "/")) };
        config.pointer_mut(&object).and_then(Value::as_object_mut).context("no object")?.remove(key);
    }
    // The default depends on the agent's environment, so the test sets a fixed value.
    config["identity"] = "kubernetes".into();
    let rendered = configured(
        &serde_json::json!({"mode": "profiles", "http": {"acceptOpenProfiles": true}, "config": config}).to_string(),
    )?;
    let mut wanted = config;
    wanted["cgroups"]["root"] = "/host/sys/fs/cgroup".into();
    wanted["listen"] = "[::]:9799".into();
    wanted["runDir"] = "/run/podperf".into();
    wanted["restart"]["daemonSet"] = "podperf/podperf".into();
    wanted["restart"]["directory"] = "/host/sys/fs/bpf/podperf".into();
    ensure!(rendered == wanted, "{rendered}");
    Ok(())
}

fn only_what_the_agent_does_not_follow_restarts_it() -> Result<()> {
    let checksum = |values: &str| -> Result<String> {
        let pod = object(&template(values, &[])?, "DaemonSet")?["spec"]["template"].clone();
        Ok(pod["metadata"]["annotations"]["checksum/config"].as_str().context("no checksum")?.to_owned())
    };
    let plain = checksum("")?;
    for followed in [
        "config: {logLevel: debug}",
        "config: {cgroups: {depth: 3, include: [/a], exclude: [/b], grace: 1m}}",
        "config: {metrics: {facts: [oncpu], includeNamespaces: [a], excludeNamespaces: [b], maxContainers: 7}}",
        "config: {overhead: {maxMemory: 300Mi}}",
        "{podLabels: {a: b}, podMonitor: {enabled: true}}",
    ] {
        ensure!(checksum(followed)? == plain, "`{followed}` restarts agents, which follow it as they run");
    }
    for restarts in [
        "config: {cgroups: {max: 8192}}",
        "config: {metrics: {level: pod}}",
        "config: {metrics: {facts: []}}",
        "config: {pmu: {leaveFree: 0}}",
        "config: {overhead: {maxPercent: 1}}",
        "config: {identity: none}",
        "config: {counters: {groups: [[cycles]]}}",
        "http: {port: 9800}",
        "http: {tls: {secretName: x}}",
        "config: {server: {limits: {maxPercent: 8}}}",
        "{mode: profiles, http: {acceptOpenProfiles: true}}",
    ] {
        ensure!(checksum(restarts)? != plain, "`{restarts}` changes nothing until somebody restarts the agents");
    }
    Ok(())
}

fn large_numbers_stay_numbers() -> Result<()> {
    let rendered = template("config: {cgroups: {max: 4000000}, stacks: {maxSamples: 1048576}}", &[])?;
    ensure!(rendered.contains("max: 4000000") && rendered.contains("maxSamples: 1048576"), "{rendered}");
    Ok(())
}

fn an_ipv6_address_is_in_brackets() -> Result<()> {
    ensure!(configured("http: {port: 9800}")?["listen"] == "[::]:9800");
    ensure!(configured("http: {address: 0.0.0.0}")?["listen"] == "0.0.0.0:9799");
    Ok(())
}

fn a_receiver_of_metrics_gets_profiles_only_if_the_values_say_so() -> Result<()> {
    let pushed = "endpoint: 'http://x:1', metrics: {enabled: true}";
    let sent = |values: &str| -> Result<bool> { Ok(configured(values)?["otlp"]["profiles"] != false) };
    // Values of a release of the former default mode, which had no profiles.
    ensure!(!sent(&format!("config: {{otlp: {{{pushed}}}}}"))?);
    let by_tls = format!("{{otlp: {{tls: {{secretName: x}}}}, config: {{otlp: {{{pushed}}}}}}}");
    ensure!(!sent(&by_tls.replace("http:", "https:"))?);
    ensure!(sent(&format!("config: {{otlp: {{profiles: true, {pushed}}}}}"))?);
    ensure!(sent("config: {otlp: {endpoint: 'http://x:1'}}")?);
    ensure!(sent(&format!("{{mode: profiles, http: {{acceptOpenProfiles: true}}, config: {{otlp: {{{pushed}}}}}}}"))?);
    Ok(())
}

fn certificates_are_mounted_where_the_configuration_says() -> Result<()> {
    let values = "http: {tls: {secretName: own}}";
    let server = configured(values)?["server"].clone();
    let (pod, directory) = mounted(values, "own")?;
    for (key, file) in [("certFile", "tls.crt"), ("keyFile", "tls.key")] {
        ensure!(server["tls"][key] == format!("{directory}/{file}"), "{key}: {server}");
    }
    for probe in ["startupProbe", "readinessProbe"] {
        ensure!(pod["containers"][0][probe]["httpGet"]["scheme"] == "HTTPS", "{probe}");
    }
    // By a socket, whatever the server speaks.
    ensure!(pod["containers"][0]["livenessProbe"]["exec"]["command"][1] == "healthcheck");
    let values = "{mode: profiles, http: {acceptOpenProfiles: true}, otlp: {tls: {secretName: client}}, config: {otlp: {endpoint: 'https://c:4317'}}}";
    let tls = configured(values)?["otlp"]["tls"].clone();
    let (_, directory) = mounted(values, "client")?;
    for (key, file) in [("caFile", "ca.crt"), ("certFile", "tls.crt"), ("keyFile", "tls.key")] {
        ensure!(tls[key] == format!("{directory}/{file}"), "{key}: {tls}");
    }
    let without = values.replace("secretName: client", "secretName: client, clientCertificate: false");
    ensure!(configured(&without)?["otlp"]["tls"] == serde_json::json!({"caFile": format!("{directory}/ca.crt")}));
    Ok(())
}

fn debug_files_are_kept_on_the_node_where_the_configuration_says() -> Result<()> {
    let values = |urls: &str| {
        format!(
            "{{mode: profiles, http: {{acceptOpenProfiles: true}}, host: {{cacheDir: /disk}}, \
             config: {{stacks: {{debuginfod: {{urls: {urls}, pods: true}}}}}}}}"
        )
    };
    let volume = |values: &str| -> Result<Option<String>> {
        let pod = object(&template(values, &[])?, "DaemonSet")?["spec"]["template"]["spec"].clone();
        let volumes = pod["volumes"].as_sequence().context("no volumes")?;
        let Some(volume) = volumes.iter().find(|volume| volume["hostPath"]["path"] == "/disk") else { return Ok(None) };
        let mounts = pod["containers"][0]["volumeMounts"].as_sequence().context("no mounts")?;
        let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]).context("not mounted")?;
        ensure!(mount["readOnly"].is_null(), "{mount:?}");
        Ok(mount["mountPath"].as_str().map(str::to_owned))
    };
    let on = values("['https://x.example']");
    let keys = configured(&on)?["stacks"]["debuginfod"].clone();
    let directory = volume(&on)?.context("no volume")?;
    let wanted = serde_json::json!({"urls": ["https://x.example"], "pods": true, "cacheDir": directory});
    ensure!(keys == wanted, "{keys}");
    ensure!(volume(&values("[]"))?.is_none(), "mounted without a server");
    Ok(())
}

/// Returns the agents' pod, and the mount directory of a secret.
fn mounted(values: &str, secret: &str) -> Result<(serde_yaml::Value, String)> {
    let pod = object(&template(values, &[])?, "DaemonSet")?["spec"]["template"]["spec"].clone();
    let volumes = pod["volumes"].as_sequence().context("no volumes")?;
    let volume = volumes.iter().find(|volume| volume["secret"]["secretName"] == secret).context("not mounted")?;
    let mounts = pod["containers"][0]["volumeMounts"].as_sequence().context("no mounts")?;
    let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]).context("not mounted")?;
    // A single mounted file would not follow changes of its secret.
    ensure!(mount["subPath"].is_null());
    let directory = mount["mountPath"].as_str().context("no path")?.to_owned();
    Ok((pod, directory))
}
