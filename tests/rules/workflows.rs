//! Workflows call only commands that work on any machine, and a release takes its steps in their order. Pinned actions,
//! rights, kept tokens, triggers and pasted expressions are for zizmor (`make lint`).

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    rules::{files_in, root},
    suite::Test,
    tests,
};
use serde_yaml::{Mapping, Value};

pub(crate) const TESTS: &[Test] = tests![
    an_action_has_one_version_in_all_workflows,
    workflows_have_no_rights_of_their_own_and_jobs_have_a_time_limit,
    workflows_call_doors_only,
    only_the_job_that_runs_no_build_may_publish,
    a_release_takes_every_step,
    a_job_that_publishes_receives_files_before_it_gets_tools,
    a_release_is_signed_and_attested_before_it_has_a_name,
    a_release_has_each_architecture_that_every_change_builds,
    a_release_that_failed_can_be_started_again_for_30_days,
    doors_that_need_debian_run_on_the_debian_of_the_dockerfile,
    scripts_of_a_release_have_its_owners,
    a_build_without_a_date_says_none,
    make_test_runs_every_test_program_once,
];

/// The allowed beginnings of a `run:`.
const DOORS: &[&str] = &[
    "make ",
    "./setup.sh ",
    ".ci/release ",
    ".ci/tools ",
    // This command carries files from one job to the next.
    "tar -C target -cf publish.tar publish",
    // This command makes the folder for the log of `make test`.
    "mkdir -p target && make test",
];

/// A `run:` that begins with one of these compiles code.
const BUILDS: &[&str] =
    &["make ", "mkdir -p target && make ", ".ci/tools ", ".ci/release image", ".ci/release archive"];

/// Doors that take packages from the mirror of a Debian machine.
const ON_DEBIAN: &[&str] = &["make test", "make rings", "make release-rehearsal", "make image", "make e2e"];

/// Workflows by the names of their files.
fn workflows() -> Result<Vec<(String, String, Value)>> {
    let files = files_in(&root().join(".github/workflows"), ".yml")?;
    files
        .into_iter()
        .map(|path| {
            let name = path.file_name().context("no name")?.to_string_lossy().into_owned();
            let text = fs::read_to_string(&path)?;
            let yaml = serde_yaml::from_str(&text).with_context(|| name.clone())?;
            Ok((name, text, yaml))
        })
        .collect()
}

fn workflow(file: &str) -> Result<Value> {
    let found = workflows()?.into_iter().find(|(name, _, _)| name == file);
    Ok(found.with_context(|| format!("no {file}"))?.2)
}

/// Commands of a job, in order. An action counts as the name before its `@`.
fn commands(job: &Value) -> Result<Vec<String>> {
    let steps = steps(job)?.iter();
    let commands = steps.filter_map(|step| step["run"].as_str().or_else(|| step["uses"].as_str()?.split('@').next()));
    Ok(commands.map(str::to_owned).collect())
}

fn jobs(workflow: &Value) -> Result<&Mapping> {
    workflow["jobs"].as_mapping().context("no jobs")
}

fn steps(job: &Value) -> Result<&Vec<Value>> {
    job["steps"].as_sequence().context("no steps")
}

fn an_action_has_one_version_in_all_workflows() -> Result<()> {
    let texts: Vec<_> = workflows()?.into_iter().map(|(_, text, _)| text).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    let pins: BTreeSet<_> = lines.filter_map(|line| Some(line.split_once("uses: ")?.1)).collect();
    let actions: BTreeSet<_> = pins.iter().filter_map(|pin| pin.split('@').next()).collect();
    ensure!(actions.len() == pins.len() && actions.len() > 5, "{pins:?}");
    ensure!(pins.iter().all(|pin| pin.contains(" # v")), "a pin without its version: {pins:?}");
    Ok(())
}

/// A job without a limit may run for six hours.
fn workflows_have_no_rights_of_their_own_and_jobs_have_a_time_limit() -> Result<()> {
    for (name, _, workflow) in workflows()? {
        ensure!(workflow["permissions"].as_mapping().is_some_and(Mapping::is_empty), "{name} has rights");
        for (job, body) in jobs(&workflow)? {
            ensure!(body["timeout-minutes"].is_u64(), "{name}: {job:?} has no limit");
        }
    }
    Ok(())
}

fn workflows_call_doors_only() -> Result<()> {
    let mut count = 0;
    for (name, _, workflow) in workflows()? {
        for (job, body) in jobs(&workflow)? {
            for run in steps(body)?.iter().filter_map(|step| step["run"].as_str()) {
                count += 1;
                let is_door = DOORS.iter().any(|door| run.starts_with(door));
                ensure!(is_door && !run.trim().contains('\n'), "{name}: {job:?} runs `{run}`");
            }
        }
    }
    ensure!(count > 15, "only {count} commands");
    Ok(())
}

fn only_the_job_that_runs_no_build_may_publish() -> Result<()> {
    for (name, _, workflow) in workflows()? {
        for (job, body) in jobs(&workflow)? {
            let rights = body["permissions"].as_mapping().context("no rights")?;
            let writes: Vec<_> = rights.iter().filter(|(_, right)| *right == "write").collect();
            let builds: Vec<_> = commands(body)?.into_iter().filter(|command| is_build(command)).collect();
            ensure!(builds.is_empty() || writes.is_empty(), "{name}: {job:?} has {writes:?}, and builds by {builds:?}");
        }
    }
    Ok(())
}

/// Returns whether a command compiles code. Scripts that compile Go programs need an action that brings Go.
fn is_build(command: &str) -> bool {
    BUILDS.iter().any(|build| command.starts_with(build)) || command == "actions/setup-go"
}

/// A step of `.ci/release` that no workflow runs would be missing on the day of a release.
fn a_release_takes_every_step() -> Result<()> {
    let script = fs::read_to_string(root().join(".ci/release"))?;
    let known: BTreeSet<_> =
        script.lines().filter_map(|line| line.strip_prefix("step_")?.split_once("()").map(|(step, _)| step)).collect();
    let workflow = workflow("release.yml")?;
    let mut taken = BTreeSet::new();
    for (_, body) in jobs(&workflow)? {
        for run in steps(body)?.iter().filter_map(|step| step["run"].as_str()) {
            let step = run.strip_prefix(".ci/release ").and_then(|rest| rest.split_whitespace().next());
            taken.extend(step.map(str::to_owned));
        }
    }
    let taken: BTreeSet<_> = taken.iter().map(String::as_str).collect();
    ensure!(known == taken, "steps of .ci/release: {known:?}, of the workflow: {taken:?}");
    Ok(())
}

/// An archive of the build may hold any file. A file that replaces a tool would run with the right to publish.
fn a_job_that_publishes_receives_files_before_it_gets_tools() -> Result<()> {
    let workflow = workflow("release.yml")?;
    let commands = commands(&workflow["jobs"]["publish"])?;
    let first = ["actions/checkout", "actions/download-artifact", ".ci/release receive publish.tar"];
    ensure!(commands.iter().take(3).eq(first.iter()), "{commands:?}");
    ensure!(!commands.iter().any(|command| command.contains("tar -")), "it unpacks by other means: {commands:?}");
    Ok(())
}

/// A run that fails between these steps leaves nothing that users find.
fn a_release_is_signed_and_attested_before_it_has_a_name() -> Result<()> {
    let workflow = workflow("release.yml")?;
    let mut commands = commands(&workflow["jobs"]["publish"])?;
    let from = commands.iter().position(|command| command == ".ci/release push").context("no push")?;
    let expected = [
        ".ci/release push",
        ".ci/release pull",
        ".ci/release sign",
        "actions/attest",
        "actions/attest",
        "actions/attest",
        ".ci/release tag",
        ".ci/release publish \"$TAG\"",
    ];
    ensure!(commands.split_off(from) == expected, "another order in release.yml");
    Ok(())
}

fn a_release_has_each_architecture_that_every_change_builds() -> Result<()> {
    let workflow = workflow("release.yml")?;
    let commands = commands(&workflow["jobs"]["build"])?;
    let of = |step: &str| -> Vec<&str> {
        let arguments = commands.iter().filter_map(|command| command.strip_prefix(".ci/release ")?.strip_prefix(step));
        arguments.flat_map(str::split_whitespace).collect()
    };
    for step in ["image ", "index ", "archive "] {
        ensure!(of(step) == ["amd64", "arm64"], "{step}: {:?}", of(step));
    }
    // The machines of CI are amd64, and the rehearsal builds for its machine.
    let ci = self::workflow("ci.yml")?;
    let mut built = Vec::new();
    for (_, job) in jobs(&ci)? {
        built.extend(self::commands(job)?);
    }
    for command in ["make release-rehearsal", ".ci/release image arm64"] {
        ensure!(built.iter().any(|found| found == command), "no `{command}` in {built:?}");
    }
    Ok(())
}

fn a_release_that_failed_can_be_started_again_for_30_days() -> Result<()> {
    let workflow = workflow("release.yml")?;
    let build = steps(&workflow["jobs"]["build"])?;
    let with = |action: &str| {
        let step = build.iter().find(|step| step["uses"].as_str().is_some_and(|uses| uses.starts_with(action)));
        step.map(|step| &step["with"]).with_context(|| format!("no {action}"))
    };
    let kept = with("actions/upload-artifact@")?;
    ensure!(kept["retention-days"] == 30 && kept["overwrite"] == true, "{kept:?}");
    // Without all commits of main, the script cannot find the release's commit on main.
    let checkout = with("actions/checkout@")?;
    ensure!(checkout["fetch-depth"] == 0, "{checkout:?}");
    Ok(())
}

fn doors_that_need_debian_run_on_the_debian_of_the_dockerfile() -> Result<()> {
    let dockerfile = fs::read_to_string(root().join("Dockerfile"))?;
    let argument = |name: &str| {
        let line = dockerfile.lines().find_map(|line| line.strip_prefix(&format!("ARG {name}=")));
        line.map(str::to_owned).with_context(|| format!("no {name}"))
    };
    let image = format!("docker.io/library/rust:{}-{}", argument("RUST")?, argument("DEBIAN")?);
    let mut count = 0;
    for (name, _, workflow) in workflows()? {
        for (job, body) in jobs(&workflow)? {
            let commands = commands(body)?;
            if !commands.iter().any(|command| ON_DEBIAN.iter().any(|door| command.contains(door))) {
                continue;
            }
            count += 1;
            let container = &body["container"];
            ensure!(container["image"] == image.as_str(), "{name}: {job:?} runs {commands:?} in {container:?}");
            let options = container["options"].as_str().unwrap_or_default();
            ensure!(options.contains("--privileged"), "{name}: {job:?} may not mount");
        }
    }
    ensure!(count > 2, "only {count} jobs need Debian");
    Ok(())
}

fn scripts_of_a_release_have_its_owners() -> Result<()> {
    let owners = fs::read_to_string(root().join(".github/CODEOWNERS"))?;
    let rules: Vec<(&str, &str)> = owners.lines().filter_map(|line| line.split_once(' ')).collect();
    let tools = fs::read_to_string(root().join(".ci/tools"))?;
    // The script sources or calls other scripts as `$here/../FILE`.
    let called = tools.split("$here/../").skip(1).filter_map(|rest| rest.split('"').next());
    let called: BTreeSet<&str> = called.filter(|file| file.ends_with(".sh")).collect();
    ensure!(called.len() == 2, "{called:?}");
    for file in called.into_iter().chain(["setup.sh", "Dockerfile", ".ci/release", ".github/workflows/release.yml"]) {
        let path = format!("/{file}");
        // The last one that matches counts.
        let rule = rules
            .iter()
            .rev()
            .find(|(pattern, _)| path == *pattern || pattern.ends_with('/') && path.starts_with(pattern));
        ensure!(rule.is_some_and(|(_, owner)| *owner == "@podperf/release"), "{file} is owned by {rule:?}");
    }
    Ok(())
}

/// A default of 0 made the program say `date: 1970-01-01`.
fn a_build_without_a_date_says_none() -> Result<()> {
    let dockerfile = fs::read_to_string(root().join("Dockerfile"))?;
    ensure!(dockerfile.lines().any(|line| line == "ARG SOURCE_DATE_EPOCH="), "the Dockerfile has a date of its own");
    // Clang 16 and newer end with an error where the variable is set and empty.
    let lines: Vec<_> = dockerfile.lines().map(str::trim).collect();
    let unset = lines.iter().position(|line| line.ends_with("|| unset SOURCE_DATE_EPOCH; \\"));
    let build = lines.iter().position(|line| line.starts_with("cargo build "));
    ensure!(unset.is_some() && unset < build, "cargo sees an empty SOURCE_DATE_EPOCH");
    // The sources identify a test image, so later commits use the same image. A commit in it would be an earlier one.
    let script = fs::read_to_string(root().join("tests/image/build.sh"))?;
    for name in ["REVISION", "SOURCE_DATE_EPOCH", "git "] {
        ensure!(!script.contains(name), "tests/image/build.sh stamps the image by `{name}`");
    }
    Ok(())
}

/// `make test` has three lists of test programs. Each program is in one of them.
fn make_test_runs_every_test_program_once() -> Result<()> {
    let script = fs::read_to_string(root().join("tests/land.sh"))?;
    let list = |name: &str| -> Result<Vec<&str>> {
        let line = script.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'));
        let words = line.with_context(|| format!("no `{name}`"))?.split_whitespace();
        Ok(words.filter(|word| !word.starts_with("--")).collect())
    };
    let mut run = [list("units")?, list("rings")?].concat();
    run.sort_unstable();

    let manifest = fs::read_to_string(root().join("tests/Cargo.toml"))?;
    let rings = manifest.split("\n[[test]]\n").skip(1).filter(|ring| !ring.contains("\ntest = false\n"));
    let name = |ring: &str| Some(ring.strip_prefix("name = \"")?.split('"').next()?.to_owned());
    let mut there = rings.map(name).collect::<Option<Vec<_>>>().context("a ring without a name")?;
    for entry in fs::read_dir(root().join("ebpf/tests"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists() {
            there.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    there.sort_unstable();
    ensure!(run == there, "`make test` runs {run:?}, and there are {there:?}");
    Ok(())
}
