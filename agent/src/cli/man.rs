//! `podperf man`: manual pages, generated from the same text as `--help`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man;

use super::{Cli, print};

/// The flags of `podperf man`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Write podperf.1 and a page for each command into this directory, which is made if it is missing [default: print
    /// podperf.1 to stdout].
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Prints the page of the whole command, or writes all pages.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let command = command();
    let Some(directory) = &arguments.directory else {
        return print(&page(&command)?.1);
    };
    write(&command, directory).with_context(|| format!("failed to write manual pages to `{}`", directory.display()))
}

fn command() -> Command {
    // `podperf help` needs no page. The short version makes the page the same for every commit.
    let mut command = Cli::command().disable_help_subcommand(true).long_version(env!("CARGO_PKG_VERSION"));
    command.build();
    command
}

/// Returns the name and the text of a command's page.
fn page(command: &Command) -> io::Result<(String, Vec<u8>)> {
    let man = Man::new(command.clone()).manual("podperf").source(concat!("podperf ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    man.render(&mut text)?;
    Ok((man.get_filename(), text))
}

fn write(command: &Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for command in command.get_subcommands().chain([command]) {
        let (name, text) = page(command)?;
        fs::write(directory.join(name), text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_with_its_flags() {
        let directory = tempfile::tempdir().unwrap();
        write(&command(), &directory.path().join("man1")).unwrap();
        let page = |name: &str| fs::read_to_string(directory.path().join("man1").join(name)).unwrap();
        let names: Vec<_> = command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        assert!(names.len() >= 8, "{names:?}");
        for name in &names {
            let text = page(&format!("podperf-{name}.1"));
            let title = format!(".TH podperf-{name} 1  \"podperf {}\" podperf", env!("CARGO_PKG_VERSION"));
            assert!(text.contains(&title), "no `{title}` in {text}");
        }
        assert!(page("podperf.1").contains("podperf\\-record(1)"));
        assert!(page("podperf-record.1").contains("on\\-cpu") && page("podperf-agent.1").contains("NODE_NAME"));
        assert!(!page("podperf-agent.1").contains("unpin"), "a hidden flag has a place in the manual");
        assert_eq!(fs::read_dir(directory.path().join("man1")).unwrap().count(), names.len() + 1);
    }
}
