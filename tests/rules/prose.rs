//! Comments are plain English as far as a program can tell: a sentence begins with its subject or its verb.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{rules::root, suite::Test, tests};

pub(crate) const TESTS: &[Test] =
    tests![sentences_begin_with_a_subject_or_a_verb, a_sentence_without_a_subject_is_found];

/// Words that begin a relative clause or a question instead of a sentence.
const NO_BEGINNING: [&str; 9] = ["What", "Who", "Whose", "Whom", "Of", "That", "Those", "Which", "How"];
/// Words that hide the noun.
const NO_NOUN: [&str; 4] = ["anew", "so many", "those before", "of which"];
/// Folders of sources.
const FOLDERS: [&str; 3] = ["agent/src", "bench", "tests"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// Returns the number of the first line and the text of each block of comments.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::<(usize, String)>::new();
    let mut last = "";
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let mark = ["///", "//!", "//"].into_iter().find(|mark| line.starts_with(mark)).unwrap_or_default();
        if !mark.is_empty() {
            let words = line[mark.len()..].trim();
            match blocks.last_mut().filter(|_| mark == last) {
                Some((_, block)) => *block = format!("{block} {words}"),
                None => blocks.push((number, words.to_owned())),
            }
        }
        last = mark;
    }
    blocks
}

/// Returns what is wrong with a comment.
fn fault(comment: &str) -> Option<String> {
    let begins = sentences(comment).into_iter().find_map(|sentence| {
        let first = sentence.trim_start().split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
        NO_BEGINNING.contains(&first).then(|| format!("has a sentence that begins with `{first}`"))
    });
    let lower = comment.to_lowercase();
    begins.or_else(|| Some(format!("has `{}`", NO_NOUN.iter().find(|words| is_apart(&lower, words))?)))
}

/// Returns the sentences of a comment.
fn sentences(comment: &str) -> Vec<&str> {
    let mut sentences = vec![comment];
    for end in [". ", "! ", "? "] {
        sentences = sentences.into_iter().flat_map(|text| text.split(end)).collect();
    }
    sentences
}

/// Returns true if the text has the words, and not only as a part of longer ones.
fn is_apart(text: &str, words: &str) -> bool {
    text.match_indices(words).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + words.len()..].chars().next();
        ![before, after].into_iter().flatten().any(char::is_alphanumeric)
    })
}

fn sentences_begin_with_a_subject_or_a_verb() -> Result<()> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        sources(&root().join(folder), &mut files)?;
    }
    ensure!(files.len() > 200, "only {} files", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file)?;
        let faults = comments(&text).into_iter().filter_map(|(line, comment)| Some((line, fault(&comment)?)));
        wrong.extend(faults.map(|(line, fault)| format!("{}:{line} {fault}", file.display())));
    }
    ensure!(
        wrong.is_empty(),
        "a sentence begins with its subject or its verb (see CONTRIBUTING.md):\n{}",
        wrong.join("\n")
    );
    Ok(())
}

fn a_sentence_without_a_subject_is_found() -> Result<()> {
    let text =
        "/// Whose it is.\nfn a() {}\n// It begins anew.\n/// Renewals\n/// of leases.\n\n//! One.\n//! Of two.\n";
    let found: Vec<_> = comments(text).into_iter().map(|(line, comment)| (line, fault(&comment).is_some())).collect();
    ensure!(found == [(1, true), (3, true), (4, false), (7, true)], "{found:?}");
    Ok(())
}
