//! One guest: its kernel, its emulator, and its output until it powers off.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::unistd::Pid;

use super::{
    rows::{Machine, Row, Work},
    script,
};
use crate::process;

/// The largest CPU time of a guest, for some of the tests and for all. The emulator is always busy, even if its guest
/// is idle. Other load of the host is not part of this time.
const SOME_IN: Duration = Duration::from_secs(60 * 60);
const ALL_IN: Duration = Duration::from_secs(180 * 60);
/// The time between two checks of the CPU time.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The Debian release of the emulator. It is the same on every host, because the tests depend on the emulator's clocks
/// and PMU.
const QEMU_SUITE: &str = "trixie";
/// The needed packages of the emulator: itself and its libraries.
const QEMU_PARTS: &str = "(qemu-system-(x86|arm|common|data)|seabios|lib.*|zlib1g)";
/// The needed packages of the kernel: up to 7.1 the image is in the first package, and later in the second.
const KERNEL_PARTS: &str = "linux-(image|binary)-[0-9].*";

/// An unpacked emulator.
#[derive(Debug)]
pub(super) struct Emulator {
    tree: PathBuf,
    program: &'static str,
}

/// The output and the times of a guest.
#[derive(Debug)]
pub(super) struct Session {
    /// The text of its console.
    pub(super) console: String,
    /// Time from the start of the emulator to its end.
    pub(super) whole: Duration,
    /// The reason why it was stopped, if it was.
    pub(super) cut: Option<String>,
}

impl Emulator {
    /// Fetches the emulator for this machine.
    pub(super) fn fetch(machine: Machine) -> Result<Self> {
        let (package, program) = machine.qemu();
        let host = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        Ok(Self { tree: script("vm", "unpack.sh", &[QEMU_SUITE, host, package, QEMU_PARTS])?.into(), program })
    }

    /// Returns the first line of the emulator's `--version`.
    pub(super) fn version(&self) -> Result<String> {
        let output = self.command()?.arg("--version").output().context("failed to run QEMU")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "QEMU failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }

    /// Returns a command of the emulator. It is not installed, so its own loader finds its own libraries.
    pub(super) fn command(&self) -> Result<Command> {
        let usr = self.tree.join("usr");
        let libraries = directory_in(&usr.join("lib"), "-linux-gnu")?;
        let mut command = Command::new(directory_in(&libraries, "ld-linux-")?);
        command.arg("--library-path").arg(&libraries).arg(usr.join("bin").join(self.program));
        command.arg("-L").arg(usr.join("share/qemu")).arg("-L").arg(usr.join("share/seabios"));
        Ok(command)
    }

    /// Boots the row's kernel with this initramfs, and reads its console until it powers off. `share` chooses a part of
    /// the tests, as [`suite`](crate::suite) has it.
    pub(super) fn boot(
        &self,
        row: &Row,
        initramfs: &Path,
        tests: &[String],
        share: Option<String>,
        log: &Path,
    ) -> Result<Session> {
        let deadline = if tests.is_empty() { ALL_IN } else { SOME_IN };
        let (work, tests) = match row.work {
            Work::Some(only) if tests.is_empty() => ("tests", only.to_owned()),
            Work::Tests | Work::Some(_) => ("tests", tests.join(" ")),
            Work::Refusal { .. } => ("refusal", String::new()),
        };
        let share = share.map_or_else(String::new, |share| format!("share={share}"));
        let console = row.machine.console();
        let more = row.command_line;
        let line = format!("console={console} quiet loglevel=1 panic=-1 {more} -- {work} {share} {tests}");
        let mut command = self.command()?;
        command.args(row.machine.flags()).args(["-smp", &row.cpus.to_string()]);
        command.args(["-m", "1G", "-display", "none", "-nodefaults", "-no-reboot"]);
        command.args(["-serial", "stdio", "-kernel"]).arg(kernel(row)?).arg("-initrd").arg(initramfs);
        command.arg("-append").arg(line.trim_end());
        process::bind_to_parent(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        listen(command.spawn().context("failed to start QEMU")?, log, deadline)
    }
}

/// Returns the image of the row's kernel.
fn kernel(row: &Row) -> Result<PathBuf> {
    let arch = row.machine.debian_arch();
    let tree = script("vm", "unpack.sh", &[row.suite, arch, &format!("linux-image-cloud-{arch}"), KERNEL_PARTS])?;
    let mut directories = vec![PathBuf::from(&tree)];
    while let Some(directory) = directories.pop() {
        for entry in directory.read_dir()? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("vmlinuz") {
                return Ok(entry.path());
            }
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    anyhow::bail!("no kernel in `{tree}` (delete it to fetch it again)")
}

fn directory_in(parent: &Path, part: &str) -> Result<PathBuf> {
    let entries = parent.read_dir().with_context(|| format!("failed to read `{}`", parent.display()))?;
    let mut paths = entries.map_while(Result::ok).map(|entry| entry.path());
    let found = paths.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains(part)));
    found.with_context(|| format!("no `*{part}*` in `{}`", parent.display()))
}

fn listen(mut child: Child, log: &Path, deadline: Duration) -> Result<Session> {
    let start = Instant::now();
    let stdout = BufReader::new(child.stdout.take().context("no console")?);
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in stdout.split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    let mut log = File::create(log).with_context(|| format!("failed to create `{}`", log.display()))?;
    let (mut console, mut cut) = (String::new(), None);
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    loop {
        if process::cpu_ns_of(pid).is_ok_and(|ns| Duration::from_nanos(ns) > deadline) {
            cut = Some(format!("not done in {deadline:?} of CPU time"));
            break;
        }
        match lines.recv_timeout(LOOK_EVERY) {
            Ok(line) => {
                writeln!(log, "{line}")?;
                console.push_str(&line);
                console.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    // At the end of its console the emulator has ended, or must be ended.
    child.kill().ok();
    let status = child.wait()?;
    if cut.is_none() && !console.contains("vm: end") {
        cut = Some(format!("QEMU ended early ({status})"));
    }
    Ok(Session { console, whole: start.elapsed(), cut })
}
