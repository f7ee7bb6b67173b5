//! Addresses of the repository and of its published artifacts follow from `repository` in the workspace's `Cargo.toml`.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    rules::{all_files, root},
    suite::Test,
    tests,
};

pub(crate) const TESTS: &[Test] =
    tests![the_repository_has_one_address_everywhere, another_address_of_the_repository_is_noticed,];

/// Cargo reads the address from that file.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
/// The placeholder of an unknown address. It has two parts, because this file must not contain it either.
const PLACEHOLDER: &str = concat!("URL-OF-", "THIS");
/// GitHub serves these below a repository, besides files.
const SECTIONS: &[&str] =
    &["actions", "attestations", "commit", "compare", "discussions", "issues", "pull", "pulls", "releases", "security"];
/// Endings of files that are built or drawn, and contain no address.
const NOT_TEXT: &[&str] = &["png", "svg", "gz", "zst", "pb", "o"];
/// The folder of inputs that fuzzers made.
const FOREIGN: &str = "tests/fuzz/corpus";

fn the_repository_has_one_address_everywhere() -> Result<()> {
    let mut found = 0;
    let mut wrong = Vec::new();
    let is_text = |file: &PathBuf| {
        let is_drawn = file.extension().is_some_and(|extension| NOT_TEXT.iter().any(|kind| extension == *kind));
        !is_drawn && !file.starts_with(FOREIGN)
    };
    for file in all_files()?.into_iter().filter(is_text) {
        let Ok(text) = fs::read_to_string(root().join(&file)) else { continue };
        let name = file.display();
        for (number, line) in text.lines().enumerate() {
            let (count, complaints) = look(line);
            found += count;
            wrong.extend(complaints.into_iter().map(|complaint| format!("{name}:{}: {complaint}", number + 1)));
        }
    }
    ensure!(wrong.is_empty(), "{} lines:\n{}", wrong.len(), wrong.join("\n"));
    ensure!(found > 20, "only {found} addresses in the tree");
    Ok(())
}

fn another_address_of_the_repository_is_noticed() -> Result<()> {
    let (owner, _) = project().split_once('/').context("no owner")?;
    let wrong = [
        format!("git clone {PLACEHOLDER}-REPOSITORY podperf"),
        concat!("https://github.com/somebody/", "podperf").to_owned(),
        format!("https://github.com/{owner}/agent"),
        format!("https://GITHUB.com/{owner}/agent"),
        format!("docker.io/{owner}/podperf:1"),
        format!("oci://ghcr.io/{owner}/helm/podperf"),
        format!("{REPOSITORY}/docs/runbooks/podperfdown.md"),
        format!("{REPOSITORY}/blob/main/docs/nobody.md"),
        format!("https://raw.githubusercontent.com/{}/main/docs/nobody.svg", project()),
    ];
    for line in &wrong {
        ensure!(!look(line).1.is_empty(), "not noticed: {line}");
    }
    let right = [
        format!("<{REPOSITORY}>"),
        format!("git clone {REPOSITORY}.git"),
        format!("[it]({REPOSITORY}/blob/main/docs/install.md#modes)"),
        format!("{REPOSITORY}/security/advisories/new"),
        format!("https://raw.githubusercontent.com/{}/main/docs/icon.svg", project()),
        format!("ghcr.io/{}@sha256:0", project()),
        format!("helm install podperf oci://ghcr.io/{owner}/charts/podperf"),
        "docker.io/library/rust".to_owned(),
    ];
    for line in &right {
        let (count, complaints) = look(line);
        ensure!(complaints.is_empty(), "{complaints:?}");
        ensure!(count == 1 || line.starts_with("docker.io"), "{count} addresses in {line}");
    }
    Ok(())
}

/// Returns `owner/name`.
fn project() -> &'static str {
    REPOSITORY.strip_prefix("https://github.com/").unwrap_or_default()
}

/// Returns the number of the repository's addresses in a line, and the faults of the line.
fn look(line: &str) -> (usize, Vec<String>) {
    let (mut found, mut wrong) = (0, Vec::new());
    if line.contains(PLACEHOLDER) {
        wrong.push("it holds the placeholder for the repository's address".to_owned());
    }
    for host in ["github.com", "raw.githubusercontent.com", "ghcr.io", "docker.io", "quay.io"] {
        let small = line.to_lowercase();
        for (at, _) in small.match_indices(&format!("{host}/")) {
            // `gist.github.com` is another host.
            if small[..at].ends_with(|c: char| c.is_alphanumeric() || c == '.' || c == '-') {
                continue;
            }
            let address = address_at(&line[at..]);
            let mut parts = address.splitn(4, '/').skip(1);
            let (owner, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            if !owner.eq_ignore_ascii_case("podperf") && !name.trim_end_matches(".git").eq_ignore_ascii_case("podperf")
            {
                continue;
            }
            found += 1;
            if let Err(error) = judge(address) {
                wrong.push(format!("`{address}`: {error}"));
            }
        }
    }
    (found, wrong)
}

/// Returns an address up to the first character that cannot be in an address.
fn address_at(text: &str) -> &str {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-._~/%#+".contains(c);
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    text[..end].trim_end_matches(['.', '/'])
}

fn judge(address: &str) -> Result<()> {
    let (owner, _) = project().split_once('/').context("no owner")?;
    let (host, path) = address.split_once('/').context("no path")?;
    let below = |prefix: &str| {
        let rest = path.strip_prefix(prefix)?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_start_matches('/'))
    };
    match host {
        "github.com" => {
            let rest =
                below(project()).or_else(|| below(&format!("{}.git", project()))).context("not the repository")?;
            let (section, rest) = rest.split_once('/').unwrap_or((rest, ""));
            match section {
                "blob" | "tree" => file_exists(rest),
                // Signatures name a workflow with the tag after an `@`, which ends the address here.
                ".github" => file_exists(&format!("main/.github/{rest}")),
                // `jb install` takes a directory, with the version after an `@`.
                "charts" => file_exists(&format!("main/charts/{rest}")),
                _ => {
                    ensure!(section.is_empty() || SECTIONS.contains(&section), "GitHub serves no `{section}` there");
                    Ok(())
                }
            }
        }
        "raw.githubusercontent.com" => file_exists(below(project()).context("not the repository")?),
        "ghcr.io" => {
            let charts = below(&format!("{owner}/charts")).is_some_and(|rest| ["", "podperf"].contains(&rest));
            ensure!(charts || below(project()) == Some(""), "neither the image nor the chart");
            Ok(())
        }
        _ => anyhow::bail!("nothing is published there"),
    }
}

/// Takes `main/PATH#HEADING`, or another branch or tag, and looks for the file in this tree.
fn file_exists(rest: &str) -> Result<()> {
    let (_, path) = rest.split_once('/').context("no branch and path")?;
    let path = path.split('#').next().unwrap_or(path);
    ensure!(root().join(path).exists(), "no `{path}` in the tree");
    Ok(())
}
