//! `podperf unpin`: removes the pins and the checkpoint that agents have left on this machine.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;

use super::run_dir;
use crate::{checkpoint::Store, config::Config, kernel::Pins};

/// The flags of `podperf unpin`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Configuration file of the agent, for `restart.directory` and `runDir` [default: built-in defaults].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Removes the pins and the checkpoint of the configured agent.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    remove(&arguments.config.clone().map_or_else(|| Ok(Config::default()), Config::read)?)
}

/// Removes everything that would outlive the agents here, and prints a line for each removed thing.
#[expect(clippy::print_stdout, reason = "the answer of the command")]
pub(super) fn remove(config: &Config) -> anyhow::Result<()> {
    if let Ok(Some(pid)) = run_dir::probe(&config.run_dir) {
        bail!("another podperf agent is running, pid {pid} (stop it first: it uses what this removes)");
    }
    let _lock = run_dir::lock(&config.run_dir)?;
    let directory = &config.restart.directory;
    let pinned = if directory.exists() { Pins::open(directory, &config.run_dir)?.remove_all() } else { Ok(Vec::new()) };
    let pinned = pinned.with_context(|| format!("failed to remove `{}`", directory.display()))?;
    for generation in &pinned {
        println!("removed the pins `{}`", directory.join(generation).display());
    }
    let store = Store::new(&config.run_dir);
    let file = store.path().display().to_string();
    let kept = store.forget().with_context(|| format!("failed to remove `{file}`"))?;
    if kept {
        println!("removed `{file}`");
    }
    if pinned.is_empty() && !kept {
        println!("nothing was pinned in `{}`, and nothing kept in `{}`", directory.display(), config.run_dir.display());
    }
    Ok(())
}
