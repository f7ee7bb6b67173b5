//! Each sentence about meaning in the reference of metrics has a test or a proof.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    rules::{files_in, root},
    suite::Test,
    tests,
};

pub(crate) const TESTS: &[Test] = tests![each_sentence_about_meaning_is_held_by_a_test,];

const PAGE: &str = "docs/metrics.md";
const HOLDERS: &str = "tests/rules/meaning.yaml";
/// The folder whose folders may have a file with further entries.
const SENSORS: &str = "ebpf/sensors";
/// The parts of the page: their first words, and the first words after them.
const PARTS: [(&str, &str); 2] = [
    ("All are counters.", "\"Series\" is how many"),
    ("## Meaning of the times", "## Metrics of nodes, pods, containers"),
];
const SOURCES: [&str; 3] = ["agent/src", "ebpf/tests", "tests"];

fn each_sentence_about_meaning_is_held_by_a_test() -> Result<()> {
    let page = fs::read_to_string(root().join(PAGE))?;
    let sentences = sentences(&page)?;
    let mut files = vec![root().join(HOLDERS)];
    for sensor in fs::read_dir(root().join(SENSORS))? {
        files.extend(Some(sensor?.path().join("meaning.yaml")).filter(|file| file.is_file()));
    }
    let mut holders: Vec<Vec<String>> = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file)?;
        let of_file: Vec<Vec<String>> = serde_yaml::from_str(&text).with_context(|| file.display().to_string())?;
        holders.extend(of_file);
    }
    for sentence in &sentences {
        let is_of = |holder: &&Vec<String>| holder.first().is_some_and(|words| sentence.contains(words));
        let count = holders.iter().filter(is_of).count();
        ensure!(count == 1, "{PAGE}: `{sentence}` has {count} entries in {HOLDERS}");
    }
    let sources = sources()?;
    for holder in &holders {
        let [words, held_by @ ..] = holder.as_slice() else { continue };
        let count = sentences.iter().filter(|sentence| sentence.contains(words)).count();
        ensure!(count == 1 && !held_by.is_empty(), "{HOLDERS}: `{words}` is of {count} sentences, held by {held_by:?}");
        for test in held_by.iter().filter(|held_by| !held_by.starts_with("proof: ")) {
            let function = format!("#[test] fn {test}()");
            ensure!(has_row(&sources, test) || sources.contains(&function), "{HOLDERS}: no test `{test}`");
        }
    }
    Ok(())
}

/// Returns whether a ring has a row of this name: see `tests!`.
fn has_row(sources: &str, test: &str) -> bool {
    let begins = |before: &str| ["tests![", "tracepoint![", ",", "#[beside]"].iter().any(|end| before.ends_with(end));
    let ends = |after: &str| [",", ":", " =>", "]", " ]"].iter().any(|start| after.starts_with(start));
    sources.match_indices(test).any(|(at, _)| begins(sources[..at].trim_end()) && ends(&sources[at + test.len()..]))
}

/// Returns the sentences of a page without headings, table headers and blocks of configuration.
fn sentences(page: &str) -> Result<Vec<String>> {
    let mut sentences = Vec::new();
    for (begin, end) in PARTS {
        let from = page.find(begin).with_context(|| format!("no `{begin}`"))?;
        let to = page[from..].find(end).with_context(|| format!("no `{end}`"))?;
        let part = page[from..from + to].replace("\n* ", "\n\n* ").replace("\n|", "\n\n|");
        for block in part.split("\n\n") {
            let block = block.split_whitespace().collect::<Vec<_>>().join(" ");
            let is_sentence =
                !["#", "|---", "| a thread", "| metric |", "```yaml"].iter().any(|other| block.starts_with(other));
            if is_sentence && !block.is_empty() {
                // A sentence ends with a full stop or colon before the beginning of the next one.
                let mut rest = &*block;
                while let Some(at) = end_of_sentence(rest) {
                    sentences.push(rest[..at].to_owned());
                    rest = &rest[at..];
                }
                sentences.push(rest.to_owned());
            }
        }
    }
    Ok(sentences)
}

fn end_of_sentence(text: &str) -> Option<usize> {
    let begins = |rest: &str| rest.starts_with(|c: char| c.is_uppercase() || c == '`');
    let ends = text.match_indices(['.', ':']).map(|(at, _)| at + 1);
    ends.filter(|at| text[*at..].strip_prefix(' ').is_some_and(begins)).min()
}

/// Returns all sources that define tests, with each white space as one space.
fn sources() -> Result<String> {
    let mut text = String::new();
    for source in SOURCES {
        let mut folders = vec![root().join(source)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let path = entry?.path();
                if path.is_dir() && !path.ends_with("target") {
                    folders.push(path);
                }
            }
            for file in files_in(&folder, ".rs").unwrap_or_default() {
                text.push_str(&fs::read_to_string(file)?);
            }
        }
    }
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}
