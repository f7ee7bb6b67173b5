//! The demo of the quickstart: Kubernetes accepts its objects, its program works as the page says, its Prometheus finds
//! its configuration and all rules. Two other manifests of the pages fit the chart: the one that unpins nodes, and a
//! certificate.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    golden, pages, process,
    suite::{Need, Test, tell},
    tests,
};
use serde_yaml::Value;

use crate::{
    helm::{GO, object, objects, root, template},
    kubernetes::{minors, read_as_operators, validate},
};

pub(crate) const TESTS: &[Test] = tests![
    the_demo_is_what_kubernetes_takes: NEEDS,
    the_demo_runs_in_a_restricted_namespace,
    the_demo_program_changes_its_table_when_the_file_is_there: &[Need::Program("python3")],
    the_demo_prometheus_finds_its_configuration_and_all_rules: &[Need::Program("promtool")],
    the_demo_rules_for_the_operator_are_generated_from_the_file: GO,
    the_manifest_that_unpins_looks_where_agents_of_the_chart_pin: NEEDS,
    the_certificate_of_the_page_has_the_name_that_is_asked_for: GO,
];

/// `kubernetes-validate` is a program in Python.
const NEEDS: &[Need] = &[Need::Program("go"), Need::Program("python3")];
const RULES: &str = "config/demo-rules.yaml";
const OPERATOR_RULES: &str = "config/demo/prometheusrule.yaml";

fn demo() -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for name in ["throttled", "low-ipc", "prometheus", "prometheusrule"] {
        found.extend(objects(&fs::read_to_string(root().join(format!("config/demo/{name}.yaml")))?)?);
    }
    ensure!(fs::read_dir(root().join("config/demo"))?.count() == 4, "a file of the demo that nobody looks at");
    Ok(found)
}

fn of_kind(kind: &str, name: &str) -> Result<Value> {
    let found = demo()?.into_iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.with_context(|| format!("no {kind} `{name}`"))
}

fn the_demo_is_what_kubernetes_takes() -> Result<()> {
    let (mut text, mut count) = (String::new(), 0);
    for object in demo()?.iter().filter(|object| object["kind"] != "PrometheusRule") {
        text.push_str(&format!("---\n{}", serde_yaml::to_string(object)?));
        count += 1;
    }
    ensure!(count == 7, "{count} objects");
    for minor in minors()? {
        validate(&text, minor)?;
    }
    Ok(())
}

/// The demo meets Pod Security's level `restricted`, so users need not weaken a cluster for it.
fn the_demo_runs_in_a_restricted_namespace() -> Result<()> {
    let deployments: Vec<_> = demo()?.into_iter().filter(|object| object["kind"] == "Deployment").collect();
    ensure!(deployments.len() == 3, "{} Deployments", deployments.len());
    for deployment in deployments {
        let pod = &deployment["spec"]["template"]["spec"];
        ensure!(pod["securityContext"]["runAsNonRoot"] == true, "{deployment:?}");
        ensure!(pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", "{deployment:?}");
        for container in pod["containers"].as_sequence().context("no containers")? {
            let context = &container["securityContext"];
            ensure!(context["allowPrivilegeEscalation"] == false, "{container:?}");
            ensure!(context["capabilities"]["drop"][0] == "ALL", "{container:?}");
            let image = container["image"].as_str().context("no image")?;
            ensure!(image.split_once(':').is_some_and(|(_, tag)| tag != "latest"), "`{image}` has no version");
        }
    }
    Ok(())
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // `timeout` forwards the signals that it can catch, and ends its program together with itself.
        process::end(&mut self.0, Signal::SIGTERM, Duration::from_secs(10));
    }
}

fn the_demo_program_changes_its_table_when_the_file_is_there() -> Result<()> {
    let program = of_kind("ConfigMap", "pointer-chase")?["data"]["chase.py"].as_str().context("no program")?.to_owned();
    let directory = tempfile::tempdir()?;
    let switch = directory.path().join("far");
    // The limit ends a program that prints nothing more, and so ends the test.
    let mut command = Command::new("timeout");
    command
        .args(["60", "python3", "-c", &program])
        .env("SWITCH", &switch)
        .env("FAR_ENTRIES", "4096")
        .stdout(Stdio::piped());
    let mut running = Running(command.spawn()?);
    let mut lines = BufReader::new(running.0.stdout.take().context("no output")?).lines();
    let mut next = || lines.next().context("it has ended")?.context("not text");
    ensure!(next()? == "follows the near table, 1024 entries");
    fs::write(&switch, "")?;
    ensure!(next()? == "follows the far table, 4096 entries");
    fs::remove_file(&switch)?;
    ensure!(next()? == "follows the near table, 1024 entries");
    Ok(())
}

/// Returns the files of each ConfigMap that the quickstart creates.
fn config_maps() -> Result<BTreeMap<String, Vec<PathBuf>>> {
    let mut made = BTreeMap::new();
    for command in pages::commands()?.iter().filter(|command| command.page == "docs/quickstart.md") {
        let Some((_, rest)) = command.text.split_once(" create configmap ") else { continue };
        let mut files = Vec::new();
        for source in rest.split_whitespace().filter_map(|word| word.strip_prefix("--from-file=")) {
            let path = root().join(source);
            if path.is_dir() {
                files.extend(podperf_tests::rules::files_in(&path, ".yaml")?);
            } else {
                files.push(path);
            }
        }
        made.insert(rest.split_whitespace().next().context("no name")?.to_owned(), files);
    }
    Ok(made)
}

/// The files are in the same places as in the pod. Debian's promtool was built without Kubernetes, so the test removes
/// the targets.
fn the_demo_prometheus_finds_its_configuration_and_all_rules() -> Result<()> {
    let deployment = of_kind("Deployment", "prometheus")?;
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let directory = tempfile::tempdir()?;
    let below = |path: &str| directory.path().join(path.trim_start_matches('/'));
    let (made, mut rules) = (config_maps()?, 0);
    for volume in pod["volumes"].as_sequence().context("no volumes")? {
        let Some(name) = volume["configMap"]["name"].as_str() else { continue };
        let mounts = container["volumeMounts"].as_sequence().context("no mounts")?;
        let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]).context("mounted nowhere")?;
        let place = below(mount["mountPath"].as_str().context("no path")?);
        fs::create_dir_all(&place)?;
        for file in made.get(name).with_context(|| format!("the quickstart makes no ConfigMap `{name}`"))? {
            fs::copy(file, place.join(file.file_name().context("no name")?))
                .with_context(|| file.display().to_string())?;
            rules += usize::from(fs::read_to_string(file)?.contains("\ngroups:\n"));
        }
    }
    let argument = container["args"].as_sequence().into_iter().flatten().filter_map(Value::as_str);
    let config = argument.filter_map(|word| word.strip_prefix("--config.file=")).next().context("no configuration")?;
    let config = below(config);
    without_targets(&config)?;
    let output = Command::new("promtool").args(["check", "config"]).arg(&config).output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{said}");
    let found = said.matches("rules found").count();
    ensure!(rules >= 4 && found == rules, "{found} files of rules instead of {rules}:\n{said}");
    tell(&format!("{found} files of rules"));
    Ok(())
}

fn without_targets(config: &Path) -> Result<()> {
    let mut text: Value = serde_yaml::from_str(&fs::read_to_string(config)?)?;
    let job = text["scrape_configs"][0].as_mapping_mut().context("no job")?;
    job.remove("kubernetes_sd_configs").context("no discovery")?;
    fs::write(config, serde_yaml::to_string(&text)?)?;
    Ok(())
}

/// A PrometheusRule cannot name a file, so it contains the file's text. `make golden` writes it.
fn the_demo_rules_for_the_operator_are_generated_from_the_file() -> Result<()> {
    let path = root().join(OPERATOR_RULES);
    let text = fs::read_to_string(&path)?;
    let head = text.split_inclusive("\nspec:\n").next().context("no spec")?;
    let rules = fs::read_to_string(root().join(RULES))?;
    let indented: String = rules.lines().map(|line| format!("  {line}").trim_end().to_owned() + "\n").collect();
    let fresh = format!("{head}{indented}");
    golden::expect(&path, &fresh)?;
    let rule = of_kind("PrometheusRule", "podperf-demo")?;
    let expected: Value = serde_yaml::from_str(&rules)?;
    ensure!(rule["spec"] == expected, "{rule:?}");
    ensure!(read_as_operators(&fresh)?.trim() == "1");
    Ok(())
}

/// Returns the directories of the node in which the agent of a DaemonSet leaves files, by the ConfigMap beside it.
fn left_on_the_node(objects: &[Value], container: &str) -> Result<Vec<PathBuf>> {
    let of_kind =
        |kind: &str| objects.iter().find(|object| object["kind"] == kind).with_context(|| format!("no {kind}"));
    let config = of_kind("ConfigMap")?["data"]["podperf.yaml"].as_str().context("no configuration")?;
    let config: Value = serde_yaml::from_str(config)?;
    let pod = &of_kind("DaemonSet")?["spec"]["template"]["spec"];
    let mounts = pod[container][0]["volumeMounts"].as_sequence().context("no mounts")?;
    let volumes = pod["volumes"].as_sequence().context("no volumes")?;
    let mut found = Vec::new();
    for place in [&config["runDir"], &config["restart"]["directory"]] {
        let place = Path::new(place.as_str().context("no directory")?);
        let on_the_node = mounts.iter().find_map(|mount| {
            let below = place.strip_prefix(mount["mountPath"].as_str()?).ok()?;
            let volume = volumes.iter().find(|volume| volume["name"] == mount["name"])?;
            Some(Path::new(volume["hostPath"]["path"].as_str()?).join(below))
        });
        // `join` of nothing leaves a `/` at the end.
        found.push(on_the_node.with_context(|| format!("{place:?} is not the node's"))?.components().collect());
    }
    Ok(found)
}

fn the_manifest_that_unpins_looks_where_agents_of_the_chart_pin() -> Result<()> {
    let text = fs::read_to_string(root().join("config/unpin.yaml"))?;
    let (manifest, chart) = (objects(&text)?, objects(&template("", &[])?)?);
    let (unpinned, pinned) = (left_on_the_node(&manifest, "initContainers")?, left_on_the_node(&chart, "containers")?);
    ensure!(unpinned == pinned, "{unpinned:?} and {pinned:?}");
    ensure!(text.contains("command: [podperf, unpin, --config, /etc/podperf/podperf.yaml]"), "{text}");
    for minor in minors()? {
        validate(&text, minor)?;
    }
    Ok(())
}

fn the_certificate_of_the_page_has_the_name_that_is_asked_for() -> Result<()> {
    let page = fs::read_to_string(root().join("docs/access.md"))?;
    let mut certificate = None;
    for block in page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        let found = objects(block)?.into_iter().find(|object| object["spec"]["secretName"] == "podperf-tls");
        certificate = certificate.or(found);
    }
    let certificate = certificate.context("no Certificate for `podperf-tls`")?;
    let values = "{http: {tls: {secretName: podperf-tls}}, serviceMonitor: {enabled: true}}";
    let monitor = object(&template(values, &[])?, "ServiceMonitor")?;
    let asked = &monitor["spec"]["endpoints"][0]["tlsConfig"]["serverName"];
    let named = &certificate["spec"]["dnsNames"][0];
    ensure!(named == asked, "the page has a certificate for {named:?}, and monitors ask for {asked:?}");
    let command = format!("subjectAltName=DNS:{}", asked.as_str().context("no name")?);
    ensure!(page.contains(&command), "openssl makes it for another name than {asked:?}");
    Ok(())
}
