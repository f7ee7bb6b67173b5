//! Programs of this machine that wait with stacks in many places of their files. A preloaded library makes them sleep,
//! so they never start their real work.

use std::{
    collections::HashSet,
    fs,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

use crate::{cgroup::TestCgroup, process};

/// Returns different programs into which a library can be loaded.
pub fn find(count: usize) -> Result<Vec<PathBuf>> {
    let mut paths = fs::read_dir("/usr/bin")?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    let mut inodes = HashSet::new();
    let is_program = |path: &PathBuf| {
        let Ok(metadata) = fs::symlink_metadata(path) else { return false };
        let mut magic = [0; 18];
        let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
        // The program must have 64 bits, a loader, and no setuid or setgid bit.
        metadata.is_file()
            && metadata.mode() & 0o6000 == 0
            && read.is_ok()
            && magic.starts_with(b"\x7fELF\x02")
            && magic[16] == 3
            && inodes.insert(metadata.ino())
    };
    let programs: Vec<_> = paths.into_iter().filter(is_program).take(count).collect();
    ensure!(programs.len() == count, "only {} programs in `/usr/bin`", programs.len());
    Ok(programs)
}

/// Processes of such programs, which end on drop.
#[derive(Debug)]
pub struct Sleepers {
    children: Vec<Child>,
}

impl Sleepers {
    /// Starts the programs in the cgroup, with the library built (by `cc`) in the directory.
    pub fn start(programs: &[PathBuf], cgroup: &TestCgroup, directory: &Path) -> Result<Self> {
        let library = directory.join("crowd.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/programs/crowd.c");
        let mut compiler = Command::new("cc");
        compiler
            .args(["-O1", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(&source);
        let output = compiler.output().context("failed to run `cc` (Debian package `gcc`)")?;
        ensure!(output.status.success(), "`cc` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        let mut sleepers = Self { children: Vec::new() };
        for program in programs {
            let mut command = Command::new("sh");
            // The library must not be loaded into the shell, which would sleep, too.
            command.args(["-c", r#"echo $$ >"$1" && LD_PRELOAD=$2 exec "$3""#, "sh"]);
            command.arg(cgroup.path().join("cgroup.procs")).arg(&library).arg(program);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let child = process::bind_to_parent(&mut command).spawn();
            sleepers.children.push(child.with_context(|| format!("failed to start `{}`", program.display()))?);
        }
        Ok(sleepers)
    }

    /// Returns the number of processes that have not ended.
    pub fn alive(&mut self) -> usize {
        self.children.iter_mut().filter_map(|child| child.try_wait().ok()).filter(Option::is_none).count()
    }
}

impl Drop for Sleepers {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
    }
}
