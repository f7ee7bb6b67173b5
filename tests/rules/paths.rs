//! Every path in backticks, in a page or in the `//!` of a module, is the path of an existing file or folder.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    rules::{all_files, root},
    suite::Test,
    tests,
};

pub(crate) const TESTS: &[Test] = tests![every_path_of_the_documents_is_there, a_path_that_is_not_there_is_found,];

/// Names with these endings are files of this repository.
const ENDINGS: [&str; 10] = ["rs", "c", "h", "md", "yaml", "toml", "sh", "json", "tpl", "txt"];
/// Folders of modules that a page may name by the file's name alone. Pages name files of tests by their path.
const SOURCES: [&str; 2] = ["agent/src", "ebpf"];
/// Exceptions from these rules: page and path.
const EXCEPTIONS: [(&str, &str); 0] = [];

/// Files and folders, from the repository's root.
struct Tree {
    files: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl Tree {
    fn of(files: BTreeSet<PathBuf>) -> Self {
        let folders = files.iter().flat_map(|file| file.ancestors().skip(1)).map(Path::to_owned).collect();
        Self { files, folders }
    }

    fn has(&self, path: &Path) -> bool {
        self.files.contains(path) || self.folders.contains(path)
    }

    /// Returns whether `token` is meant to be a path: it has an ending of our files, or begins with a folder of the
    /// root. A path with a part in capitals, or with the file name `NAME` and any ending, is a pattern:
    /// `examples/NAME/values.yaml`. A path that begins with `/` is on the machines of users.
    fn is_path(&self, token: &str) -> bool {
        let is_sign = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-', '/'].contains(&c);
        let is_capital = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_uppercase());
        let is_pattern = |part: &str| is_capital(part) || part.starts_with("NAME.");
        if !token.chars().all(is_sign) || token.starts_with(['/', '-']) || token.split('/').any(is_pattern) {
            return false;
        }
        let name = token.rsplit('/').next().unwrap_or(token);
        let ending = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map(|(_, ending)| ending);
        let of_root = token.split_once('/').is_some_and(|(first, _)| self.folders.contains(Path::new(first)));
        of_root || ending.is_some_and(|ending| ENDINGS.contains(&ending))
    }

    /// Returns whether `document` may name `token`: from the root, from a folder above the document, from the sources
    /// of the agent or of the document's crate. A name without a folder may be a file beside the document, or any file
    /// below its sources.
    fn knows(&self, document: &Path, token: &str) -> bool {
        let is_page = document.extension().is_some_and(|extension| extension == "md");
        let of_crate = document.components().next().map_or_else(PathBuf::new, |first| PathBuf::from(first.as_os_str()));
        let sources: Vec<PathBuf> =
            if is_page { SOURCES.map(PathBuf::from).to_vec() } else { vec![of_crate.join("src"), of_crate] };
        let token = Path::new(token);
        let mut bases: Vec<_> = document.ancestors().skip(1).map(Path::to_owned).collect();
        // `kernel.rs` has its modules in `kernel`.
        bases.push(document.with_extension(""));
        bases.extend(sources.iter().cloned());
        if bases.iter().any(|base| self.has(&plain(&base.join(token)))) {
            return true;
        }
        let is_source = token.extension().is_some_and(|extension| extension == "rs");
        let within = |file: &PathBuf| !is_source || sources.iter().any(|sources| file.starts_with(sources));
        token.components().count() == 1 && self.files.iter().any(|file| file.ends_with(token) && within(file))
    }
}

/// Returns the path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Returns the document in a file: a page without its blocks of code, or the `//!` of a module.
fn document(path: &Path, text: &str) -> Option<String> {
    let extension = path.extension()?.to_str()?;
    match extension {
        "md" => Some(text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n")),
        "rs" => Some(text.lines().filter_map(|line| line.strip_prefix("//!")).collect::<Vec<_>>().join("\n")),
        _ => None,
    }
}

/// Returns the texts in backticks.
fn tokens(document: &str) -> impl Iterator<Item = &str> {
    document.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

fn every_path_of_the_documents_is_there() -> Result<()> {
    let root = root();
    let tree = Tree::of(all_files()?);
    let (mut count, mut missing) = (0, Vec::new());
    let mut excepted = BTreeSet::new();
    for file in &tree.files {
        let is_document = file.extension().is_some_and(|extension| extension == "md" || extension == "rs");
        let text = if is_document { fs::read_to_string(root.join(file))? } else { continue };
        let Some(document) = document(file, &text) else { continue };
        for token in tokens(&document).filter(|token| tree.is_path(token)) {
            count += 1;
            let exception = (file.to_str().unwrap_or_default(), token);
            if EXCEPTIONS.contains(&exception) {
                excepted.insert((file.clone(), token.to_owned()));
            } else if !tree.knows(file, token) {
                missing.push(format!("{}: `{token}`", file.display()));
            }
        }
    }
    ensure!(missing.is_empty(), "paths in documents that are not there:\n{}", missing.join("\n"));
    ensure!(excepted.len() == EXCEPTIONS.len(), "an exception that nobody needs: {EXCEPTIONS:?}");
    ensure!(count > 100, "only {count} paths in all documents");
    Ok(())
}

fn a_path_that_is_not_there_is_found() -> Result<()> {
    let files = ["agent/src/config/mod.rs", "agent/src/status.rs", "tests/chart/config.rs", "docs/a.md", "Makefile"];
    let tree = Tree::of(files.map(PathBuf::from).into());
    for token in ["status.rs", "config/mod.rs", "agent/src/config", "tests/chart/config.rs", "docs/", "a.md", "../a.md"]
    {
        ensure!(tree.is_path(token) && tree.knows(Path::new("docs/a.md"), token), "{token}");
    }
    // `config.rs` is a folder now, and the only file of that name is a test's.
    for token in ["config.rs", "agent/src/config.rs", "tests/other", "docs/b.md", "src/none.rs"] {
        ensure!(tree.is_path(token) && !tree.knows(Path::new("docs/a.md"), token), "{token}");
    }
    for token in [
        "text/plain",
        "/proc/a.txt",
        "docs/NAME/a.md",
        "docs/NAME.md",
        "cpu/event=1/",
        "a b.rs",
        ".rs",
        "status",
        "v1.5",
    ] {
        ensure!(!tree.is_path(token), "{token}");
    }
    let page = "a `b.md`\n```sh\n`c.md`\n```\nand `d.md`";
    ensure!(tokens(&document(Path::new("x.md"), page).context("no page")?).eq(["b.md", "d.md"]));
    let module = "//! See `b.rs`.\nfn x() {} // `c.rs`\n";
    ensure!(tokens(&document(Path::new("x.rs"), module).context("no module")?).eq(["b.rs"]));
    Ok(())
}
