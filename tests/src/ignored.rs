//! `make ignored`: the tests that `make test` ignored, by the missing part of the machine. `tests/ignored.txt` lists
//! the allowed reasons.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

/// `podperf-ignored`.
#[derive(Args, Clone, Debug)]
pub struct IgnoredArgs {
    /// Output of `make test`
    pub log: PathBuf,
}

/// The mark before the reason in a ring's output.
const SKIPPED: &str = " (skipped: ";
/// The separator between a reason and its explanation in the list.
const WHY: &str = " # ";

/// Prints the ignored tests and their reasons.
///
/// # Errors
///
/// When a reason is not on the list, or the log does not contain a whole run.
pub fn run(args: &IgnoredArgs) -> Result<()> {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("ignored.txt");
    let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("failed to read `{}`", path.display()));
    let (says, unlisted) = compare(&read(&args.log)?, &read(&list)?)?;
    print(&says);
    if !unlisted.is_empty() {
        bail!("tests are ignored for reasons that `tests/ignored.txt` does not list: {}", unlisted.join(", "));
    }
    Ok(())
}

/// Returns the report on a log, and the reasons in it that are not listed.
fn compare(log: &str, list: &str) -> Result<(String, Vec<String>)> {
    let ignored = by_reason(log)?;
    let mut listed = BTreeSet::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (reason, _) = line.split_once(WHY).with_context(|| format!("`{line}` does not say why (after `{WHY}`)"))?;
        listed.insert(reason.trim());
    }
    let count: usize = ignored.values().map(Vec::len).sum();
    let mut says = format!("ignored: {count} tests, for {} reasons\n", ignored.len());
    for (reason, tests) in &ignored {
        let _ = writeln!(says, "ignored: {reason}: {} ({})", tests.len(), tests.join(", "));
    }
    for reason in listed.iter().filter(|reason| !ignored.contains_key(**reason)) {
        let _ = writeln!(says, "ignored: `{reason}` is listed, and nothing was ignored for it");
    }
    Ok((says, ignored.into_keys().filter(|reason| !listed.contains(reason.as_str())).collect()))
}

/// Returns the ignored tests by the missing part of the machine. A test that names no part is listed by its own name.
fn by_reason(log: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let mut ignored: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut found, mut counted, mut results) = (0, 0, 0);
    for line in log.lines() {
        if let Some(result) = line.strip_prefix("test result: ") {
            let count = result.split("; ").find_map(|part| part.strip_suffix(" ignored"));
            counted += count.and_then(|count| count.parse().ok()).unwrap_or(0);
            results += 1;
        }
        let Some((title, says)) = line.strip_prefix("test ").and_then(|line| line.split_once(" ... ignored")) else {
            continue;
        };
        let title = title.trim_end();
        let (test, reason) = match (title.split_once(SKIPPED), says.strip_prefix(", ")) {
            (Some((test, reason)), _) => (test, reason.strip_suffix(')').unwrap_or(reason)),
            (None, Some(reason)) => (title, reason),
            (None, None) => (title, title),
        };
        ignored.entry(reason.to_owned()).or_default().push(test.to_owned());
        found += 1;
    }
    ensure!(results > 0, "no result of any test is in the log (write it by `make test | tee LOG`)");
    ensure!(found == counted, "{counted} tests were ignored, and {found} of them have a line in the log");
    Ok(ignored)
}

#[expect(clippy::print_stdout, reason = "the result is for the terminal")]
fn print(text: &str) {
    print!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
running 4 tests
test a_pod_has_a_row                       ... ok
test cycles_are_counted (skipped: no hardware PMU)   ... ignored
test waits (skipped: not a machine of its own (see `make vm`)) ... ignored
test stacks::slow ... ignored, takes an hour
test stacks::odd ... ignored

test result: ok. 1 passed; 0 failed; 4 ignored; 0 measured; 0 filtered out; finished in 0.1s

test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s
";

    #[test]
    fn every_reason_is_named_counted_and_held_against_the_list() {
        let list = "# comment\n\nno hardware PMU # a virtual machine\nno `go` # by hand\nstacks::odd # odd\n";
        let (says, unlisted) = compare(LOG, list).expect("a log");
        assert_eq!(unlisted, ["not a machine of its own (see `make vm`)", "takes an hour"]);
        for line in [
            "4 tests, for 4 reasons",
            "no hardware PMU: 1 (cycles_are_counted)",
            "`no `go`` is listed, and nothing was ignored for it",
        ] {
            assert!(says.contains(line), "{line}: {says}");
        }
    }

    #[test]
    fn a_log_that_is_not_whole_is_no_proof() {
        assert!(compare("", "").is_err(), "no results");
        let hidden = LOG.replace("test stacks::odd ... ignored\n", "");
        let error = compare(&hidden, "").expect_err("a test without a line").to_string();
        assert!(error.contains("4 tests were ignored, and 3"), "{error}");
        assert!(compare(LOG, "no hardware PMU\n").is_err(), "a reason without a why");
    }
}
