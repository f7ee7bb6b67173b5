//! The commands of the pages: the lines in their `sh` blocks.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};

use crate::rules::{files_in, root};

/// One command of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The page, from the repository's root.
    pub page: String,
    /// The text to type. It has more than one line where quotes or a `\` at the end join lines.
    pub text: String,
}

/// Returns all pages for users.
pub fn pages() -> Result<Vec<PathBuf>> {
    let root = root();
    let mut pages = files_in(&root, ".md")?;
    pages.push(root.join("charts/podperf/README.md"));
    for directory in ["docs", "docs/runbooks", "docs/decisions"] {
        pages.extend(files_in(&root.join(directory), ".md")?);
    }
    Ok(pages)
}

/// Returns the commands of all pages.
pub fn commands() -> Result<Vec<Command>> {
    let mut found = Vec::new();
    for path in pages()? {
        let page = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        let text = fs::read_to_string(&path)?;
        for block in text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            found.extend(commands_of(block).into_iter().map(|text| Command { page: page.clone(), text }));
        }
    }
    ensure!(found.len() > 50, "only {} commands in all pages", found.len());
    Ok(found)
}

/// Returns the commands of a block, without the comments after a `#`.
fn commands_of(block: &str) -> Vec<String> {
    let (mut commands, mut open) = (Vec::new(), String::new());
    for line in block.lines() {
        if open.is_empty() && (line.trim().is_empty() || line.starts_with('#')) {
            continue;
        }
        open.push_str(line.split(" # ").next().unwrap_or(line).trim_end());
        if open.matches('\'').count() % 2 == 1 {
            open.push('\n');
        } else if open.ends_with('\\') {
            open.pop();
        } else {
            commands.push(std::mem::take(&mut open));
        }
    }
    commands.extend((!open.is_empty()).then_some(open));
    commands
}

impl Command {
    /// Returns the name of the command's program, without `sudo` and the program's directory.
    #[must_use]
    pub fn program(&self) -> &str {
        let mut words = self.text.split_whitespace().filter(|word| *word != "sudo");
        let path = words.next().unwrap_or_default();
        Path::new(path).file_name().and_then(OsStr::to_str).unwrap_or(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_belong_together_are_one_command() {
        let block =
            "# before\nmake a   # why\n\ncurl x | awk '\n  /a/ { b }\n' | sort\nhelm install a b \\\n  --set c=d\n";
        assert_eq!(
            commands_of(block),
            ["make a", "curl x | awk '\n  /a/ { b }\n' | sort", "helm install a b   --set c=d"]
        );
    }

    #[test]
    fn a_program_is_called_by_its_name() {
        let program = |text: &str| Command { page: String::new(), text: text.into() }.program().to_owned();
        assert_eq!(program("sudo target/release/podperf check"), "podperf");
        assert_eq!(program("make run"), "make");
    }
}
