//! The secret in the ids of stacks: random, and the same while counting continues.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{agent::Agent, bpffs::Bpffs};

use crate::maps::bpftool;

/// After a takeover, the new programs must give stacks the same ids as the previous ones.
pub(crate) fn a_key_outlives_its_agent() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let yaml = |cgroups: u32| format!("{}\ncgroups: {{max: {cgroups}}}", bpffs.yaml());
    let mut agent = Agent::start(&yaml(512))?;
    let first = key(&bpffs)?;
    agent.restart(Signal::SIGKILL, &yaml(512))?;
    ensure!(key(&bpffs)? == first, "adopted programs have another key");
    // Another size of the tables needs other programs.
    agent.restart(Signal::SIGKILL, &yaml(1024))?;
    agent.wait_for_log("taken over, and unpinned", Duration::from_secs(15))?;
    ensure!(key(&bpffs)? == first, "programs that took over have another key");
    drop(agent);
    let another = Bpffs::mount()?;
    let _agent = Agent::start(&another.yaml())?;
    ensure!(key(&another)? != first, "two agents that have nothing to do with one another have the same key");
    Ok(())
}

/// Returns the key in the description of the only pinned generation.
fn key(bpffs: &Bpffs) -> Result<String> {
    let pins = find(&bpffs.pins(), "description")?;
    let [pin] = &pins[..] else { anyhow::bail!("not one description: {pins:?}") };
    let pin = pin.display().to_string();
    let dump: serde_json::Value = serde_json::from_str(&bpftool(&["--json", "map", "dump", "pinned", &pin])?)?;
    let pieces = dump.as_array().context("no entries")?.iter();
    let bytes = pieces.flat_map(|piece| piece["value"].as_array().into_iter().flatten());
    let bytes: Option<Vec<u8>> =
        bytes.map(|byte| u8::from_str_radix(byte.as_str()?.trim_start_matches("0x"), 16).ok()).collect();
    let text = String::from_utf8(bytes.context("no bytes")?)?;
    let line = text.lines().find_map(|line| line.strip_prefix("names hash_key ")).context("no key")?;
    let words: Vec<&str> = line.split(' ').collect();
    ensure!(words.len() == 8 && words.iter().all(|word| word.len() == 16), "{line}");
    Ok(line.to_owned())
}

/// Returns the files of this name below a directory.
fn find(directory: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(find(&entry.path(), name)?);
        } else if entry.file_name() == name {
            found.push(entry.path());
        }
    }
    Ok(found)
}
