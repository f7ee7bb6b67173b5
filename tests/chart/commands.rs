//! The commands of all pages: a test checks each kind of command, and each name in them exists.
//!
//! `documents` renders installations, the ring `kube` runs `curl` against an agent, and this file checks each other
//! command with its program, as far as that needs no cluster.

use std::{
    fs,
    process::{Command as Process, Output},
};

use anyhow::{Context as _, Result, bail, ensure};
use podperf_tests::{
    agent,
    pages::{self, Command},
    suite::{Test, tell},
    tests,
};
use serde_yaml::Value;
use tempfile::TempDir;

use crate::helm::{GO, helm, object, root, template};

pub(crate) const TESTS: &[Test] = tests![
    every_command_of_the_pages_is_one_that_there_is: GO,
    a_command_that_there_is_not_is_noticed: GO,
];

/// Other projects' programs that no test runs, and the reasons.
const NOT_RUN: &[(&str, &str)] = &[
    ("git", "the repository is here"),
    ("cd", "the repository is here"),
    ("docker", "the tests build the image with buildah, from the same Dockerfile"),
    ("kind", "no container registry is needed here, and none is at hand"),
    ("go", "of the reader's own machine"),
    ("openssl", "of the reader's own machine"),
    ("sysctl", "it changes the machine"),
];

/// Other projects' charts are in registries that no test contacts.
const OF_OTHERS: &str = "prometheus-community";

/// The verbs of `kubectl` on the pages.
const VERBS: &[&str] =
    &["apply", "create", "debug", "delete", "describe", "exec", "get", "label", "logs", "port-forward", "rollout"];

/// Namespaces of the pages: of the release, of the demo, of a reader's Prometheus, of a reader's pods.
const NAMESPACES: &[&str] = &["podperf", "podperf-demo", "monitoring", "shop"];

/// The DaemonSet of `config/unpin.yaml`.
const UNPIN: &str = "podperf-unpin";

/// Flags whose value is the next word.
const WITH_VALUE: &[&str] = &["--container", "--field-selector", "--image", "--output", "--profile", "--selector"];

/// Files that the pages have readers make themselves.
const MADE: &[&str] = &["ca.crt", "tls.crt", "tls.key"];

fn every_command_of_the_pages_is_one_that_there_is() -> Result<()> {
    let daemon_set = object(&template("", &[])?, "DaemonSet")?;
    let mut not_run = 0;
    for command in pages::commands()? {
        let looked_at = look(&command, &daemon_set);
        not_run += usize::from(!looked_at.with_context(|| format!("{}: `{}`", command.page, command.text))?);
    }
    let programs: Vec<_> = NOT_RUN.iter().map(|(program, _)| *program).collect();
    tell(&format!("{not_run} commands are not looked at, of {}", programs.join(", ")));
    for (program, reason) in NOT_RUN {
        let used = pages::commands()?.iter().any(|command| command.program() == *program);
        ensure!(used, "no page has `{program}` ({reason})");
    }
    Ok(())
}

/// Returns whether the test checks this command.
///
/// # Errors
///
/// When the command cannot work.
fn look(command: &Command, daemon_set: &Value) -> Result<bool> {
    match command.program() {
        "make" => make(&command.text)?,
        "podperf" => podperf(&command.text)?,
        "helm" if command.text.contains(OF_OTHERS) => return Ok(false),
        "helm" => helm_of(&command.text)?,
        "kubectl" => kubectl(&command.text, daemon_set)?,
        // The ring `kube` runs it.
        "curl" => {}
        program if NOT_RUN.iter().any(|(name, _)| *name == program) => return Ok(false),
        program => bail!("`{program}` is looked at nowhere"),
    }
    Ok(true)
}

/// Checks that the target and the variables exist, and that flags for the agent are the agent's.
fn make(text: &str) -> Result<()> {
    let file = fs::read_to_string(root().join("Makefile"))?;
    let target = text.split_whitespace().nth(1).context("no target")?;
    ensure!(file.lines().any(|line| line.starts_with(&format!("{target}:"))), "no target `{target}`");
    for word in text.split_whitespace().skip(2) {
        let Some((name, _)) = word.split_once('=') else { continue };
        let is_variable = !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        ensure!(!is_variable || file.contains(&format!("$({name}")), "no variable `{name}`");
    }
    let flags = text.split_once("ARGS=\"").and_then(|(_, rest)| rest.split('"').next());
    match (target, flags) {
        ("run", Some(flags)) => podperf(&format!("podperf agent {flags}")),
        _ => Ok(()),
    }
}

/// Runs the real agent up to its start: `record` finds no agent, and `agent` finds no cgroup tree. For all other
/// commands the test checks the flags.
fn podperf(text: &str) -> Result<()> {
    let start = text.find("podperf ").context("no podperf")?;
    let empty = TempDir::new()?;
    // The command runs in a directory where it cannot overwrite files.
    let text = text[start..]
        .replace("--config config/", &format!("--config {}/config/", root().display()))
        // The script below sets the address.
        .replace("--agent http://127.0.0.1:9799", "");
    let verb = text.split_whitespace().nth(1).context("no command")?;
    let more = match verb {
        "record" => "--agent http://127.0.0.1:1",
        "agent" => "--cgroup-root \"$EMPTY\"",
        _ => "--help",
    };
    let output = Process::new("sh")
        .arg("-c")
        .arg(format!("podperf() {{ \"$PODPERF\" \"$@\" {more}; }}\n{}", text.trim_end_matches(" &")))
        .env("PODPERF", agent::binary()?)
        .env("EMPTY", empty.path())
        .env_remove("KUBERNETES_SERVICE_HOST")
        .current_dir(empty.path())
        .output()?;
    let (said, complained) = said_of(&output);
    match verb {
        "record" => ensure!(complained.contains("failed to reach the agent"), "{complained}"),
        "agent" => ensure!(complained.contains("is not a cgroup2 mount"), "{complained}"),
        _ => {
            ensure!(output.status.success(), "{complained}");
            let flags = text.split_whitespace().filter(|word| word.starts_with("--"));
            let unknown: Vec<_> = flags.filter(|flag| !said.contains(flag.split('=').next().unwrap_or(flag))).collect();
            ensure!(unknown.is_empty(), "no {unknown:?} in:\n{said}");
        }
    }
    Ok(())
}

/// Another test renders `install` and `upgrade`. All other commands run until they need the cluster.
fn helm_of(text: &str) -> Result<()> {
    let arguments: Vec<&str> = text.split_whitespace().skip(1).collect();
    let verb = arguments.first().context("no command")?;
    if ["install", "upgrade"].contains(verb) {
        return Ok(());
    }
    ensure!(
        arguments.get(1) == Some(&"podperf") && arguments.ends_with(&["--namespace", "podperf"]),
        "another release"
    );
    let (_, complained) =
        said_of(&helm([arguments.as_slice(), &["--kube-apiserver", "https://127.0.0.1:1"]].concat())?);
    ensure!(complained.contains("cluster unreachable"), "{complained}");
    Ok(())
}

/// Checks that the verb is known, that the objects of the release are in the chart, that the files exist, and that the
/// command in a pod is valid.
fn kubectl(text: &str, daemon_set: &Value) -> Result<()> {
    let name = daemon_set["metadata"]["name"].as_str().context("no name")?;
    let container = &daemon_set["spec"]["template"]["spec"]["containers"][0];
    let port = container["ports"][0]["containerPort"].as_u64().context("no port")?.to_string();
    let text = text.split(" | ").next().unwrap_or(text).trim_end_matches(" &");
    let (text, inside) = text.split_once(" -- ").map_or((text, None), |(outside, inside)| (outside, Some(inside)));
    let (plain, files) = plain_words(text)?;
    let verb = *plain.first().context("no command")?;
    ensure!(VERBS.contains(&verb), "`{verb}` is not known here");
    for word in &plain {
        let other = word.strip_prefix("daemonset/").filter(|found| ![name, UNPIN].contains(found));
        ensure!(other.is_none(), "the chart makes `daemonset/{name}`");
    }
    ensure!(verb != "port-forward" || plain.last() == Some(&port.as_str()), "the chart has port {port}");
    for file in files.into_iter().filter(|file| !MADE.contains(file)) {
        ensure!(root().join(file).exists(), "no `{file}`");
    }
    ensure!(["exec", "debug"].contains(&verb) == inside.is_some(), "`{verb}` and what is run there");
    inside.map_or(Ok(()), |inside| in_a_pod(inside, daemon_set))
}

/// Returns the words that are neither flags nor values of flags, and the named files.
fn plain_words(text: &str) -> Result<(Vec<&str>, Vec<&str>)> {
    let (mut plain, mut files) = (Vec::new(), Vec::new());
    let mut rest = text.split_whitespace().skip(1);
    while let Some(word) = rest.next() {
        match word {
            "--namespace" | "-n" => {
                let namespace = rest.next().context("no namespace")?;
                ensure!(NAMESPACES.contains(&namespace), "another namespace");
            }
            "-f" => files.push(rest.next().context("no file")?),
            word if WITH_VALUE.contains(&word) => ensure!(rest.next().is_some(), "`{word}` without a value"),
            word if word.starts_with('-') => {
                // `NAME=FILE` is another name for the file.
                let file = word.strip_prefix("--from-file=").map(|file| file.split('=').next_back().unwrap_or(file));
                files.extend(file);
            }
            word => plain.push(word),
        }
    }
    Ok((plain, files))
}

/// Checks a command in a pod: the agent's own commands as elsewhere, and that a removed path is one of the chart's
/// mounts.
fn in_a_pod(inside: &str, daemon_set: &Value) -> Result<()> {
    let volumes = daemon_set["spec"]["template"]["spec"]["volumes"].as_sequence().context("no volumes")?;
    let mounted = |path: &str| volumes.iter().any(|volume| volume["hostPath"]["path"] == path);
    match inside.split_whitespace().next().context("nothing is run")? {
        // The configuration is the pod's file, or comes from a pipe.
        "podperf" => podperf(&inside.replace("--config /etc/podperf/podperf.yaml", "")),
        "rm" => {
            for path in inside.split_whitespace().filter_map(|word| word.strip_prefix("/host")) {
                let own = mounted(path) || path.strip_suffix("/podperf").is_some_and(mounted);
                ensure!(own, "the chart mounts no `{path}`");
            }
            Ok(())
        }
        "promtool" | "touch" => Ok(()),
        other => bail!("`{other}` is looked at nowhere"),
    }
}

fn said_of(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn a_command_that_there_is_not_is_noticed() -> Result<()> {
    let daemon_set = object(&template("", &[])?, "DaemonSet")?;
    for text in [
        "make everything",
        "make vm KERNELS=6.1",
        "make run ARGS=\"--listn 127.0.0.1:0\"",
        "podperf top",
        "podperf record shop/cart-0 --length 30s",
        "podperf record --all --filter 'state = D'",
        "podperf check --json",
        "podperf agent --config config/nobody.yaml",
        "helm remove podperf --namespace podperf",
        "helm test podperf --for-long --namespace podperf",
        "kubectl exec -n podperf daemonset/podperf",
        "kubectl exec -n podperf daemonset/podperf -- podperf top",
        "kubectl exec -n podperf daemonset/podperf -- sh",
        "kubectl -n podperf debug node/worker-1 -- rm -rf /host/var/lib",
        "kubectl apply -f config/demo/nothing.yaml",
        "kubectl -n podperf create configmap rules --from-file=config/nothing.yaml",
        "kubectl --namespace podperf rollout status daemonset/podperf-agent",
        "kubectl --namespace podperf port-forward daemonset/podperf 9090",
        "kubectl -n other get pods",
        "wget localhost:9799/metrics",
    ] {
        let command = Command { page: String::new(), text: text.to_owned() };
        ensure!(look(&command, &daemon_set).is_err(), "not noticed: {text}");
    }
    Ok(())
}
