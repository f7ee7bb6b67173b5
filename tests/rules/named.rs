//! Tests that a page, a comment or the Makefile names exist. A target with an old name would run no test, and pass.

use std::{collections::BTreeSet, fs, path::PathBuf};

use anyhow::{Result, ensure};
use podperf_tests::{
    pages::pages,
    rules::{all_files, root},
    suite::Test,
    tests,
};

pub(crate) const TESTS: &[Test] = tests![tests_that_are_named_exist, a_row_is_found_behind_its_marks,];

const SOURCES: [&str; 3] = ["agent/src", "ebpf/tests", "tests"];

fn tests_that_are_named_exist() -> Result<()> {
    let sources = sources()?;
    let mut texts = vec![sources.clone()];
    for page in pages()? {
        texts.push(fs::read_to_string(page)?);
    }
    let in_backticks = |text: &String| -> Vec<String> {
        text.split("test `").skip(1).filter_map(|rest| Some(rest.split('`').next()?.to_owned())).collect()
    };
    let mut named: BTreeSet<String> = texts.iter().flat_map(in_backticks).collect();
    let makefile = fs::read_to_string(root().join("Makefile"))?;
    named.extend(makefile.split_whitespace().map(str::to_owned));
    named.retain(|word| is_sentence(word));
    ensure!(named.len() > 2, "only {named:?}");
    named.retain(|test| !has_row(&sources, test) && !sources.contains(&format!("#[test] fn {test}")));
    ensure!(named.is_empty(), "no such tests: {named:?}");
    Ok(())
}

/// Returns whether a word is like the name of a test, or like its beginning.
fn is_sentence(word: &str) -> bool {
    word.chars().all(is_of_name) && word.matches('_').count() > 2
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'
}

/// Returns whether a ring has a row whose name begins with this word: see `tests!`. A row may have marks before its
/// name.
fn has_row(sources: &str, test: &str) -> bool {
    let begins = |mut before: &str| {
        while let Some((rest, _)) = before.strip_suffix(']').and_then(|marked| marked.rsplit_once("#[")) {
            before = rest.trim_end();
        }
        ["tests![", "tracepoint![", ","].iter().any(|end| before.ends_with(end))
    };
    let ends = |after: &str| {
        let after = after.trim_start_matches(is_of_name);
        [",", ":", " =>", "]", " ]"].iter().any(|start| after.starts_with(start))
    };
    sources.match_indices(test).any(|(at, _)| begins(sources[..at].trim_end()) && ends(&sources[at + test.len()..]))
}

/// Returns all sources that define tests, with each white space as one space.
fn sources() -> Result<String> {
    let is_source = |file: &PathBuf| {
        let is_rust = file.extension().is_some_and(|extension| extension == "rs");
        is_rust && SOURCES.iter().any(|source| file.starts_with(source))
    };
    let files = all_files()?.into_iter().filter(is_source);
    let texts = files.map(|file| Ok(fs::read_to_string(root().join(file))?)).collect::<Result<Vec<_>>>()?;
    Ok(texts.join("\n").split_whitespace().collect::<Vec<_>>().join(" "))
}

fn a_row_is_found_behind_its_marks() -> Result<()> {
    let sources = "tests![ a_b: NEEDS, #[land] #[beside] c_d_e: &[Need::Root] => body, #[exact] f_g ]; let h_i = b_c;";
    ensure!(["a_b", "c_d", "c_d_e", "f_g"].iter().all(|test| has_row(sources, test)));
    ensure!(!["b_c", "d_e", "h_i", "a_b_c"].iter().any(|test| has_row(sources, test)));
    Ok(())
}
