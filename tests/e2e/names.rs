//! Names of user functions in profiles: of processes that hide their files, lose them, or make functions at run time.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    collector::{Collector, Frame, Sample},
    process,
    suite::{Need, Test, within},
    system_programs::{self, Sleepers},
    tests,
};
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] = tests![
    #[beside] a_stripped_program_has_the_names_of_its_debug_file: &[GO, CC, OBJCOPY] => stripped_program_has_names,
    #[beside] a_stripped_program_has_the_names_that_are_packed_into_it: &[GO, CC, OBJCOPY, XZ] => packed_names_are_found,
    #[beside] a_go_program_without_a_symbol_table_has_names: &[GO] => go_program_has_names,
    #[beside] a_go_program_with_c_code_and_without_a_symbol_table_has_names: &[GO, CC] => go_program_with_c_has_names,
    #[land] #[beside] code_made_at_run_time_has_the_names_of_its_map: &[GO, CC, UNSHARE] => code_made_at_run_time_has_names,
    maps_that_were_made_to_harm_do_none: &[GO, CC, UNSHARE],
    one_cgroups_maps_take_no_names_from_another: &[GO, CC, UNSHARE],
    #[beside] a_program_that_only_its_container_has_is_named: &[GO, CC, UNSHARE] => program_of_a_container_is_named,
    #[land] #[beside] a_deleted_program_is_named: &[GO, CC] => deleted_program_is_named,
    #[beside] a_process_that_is_gone_is_named: &[GO, CC] => process_that_is_gone_is_named,
    symbols_of_fifty_programs_fit_into_80_mib: &[GO, CC] => symbols_of_fifty_programs_fit,
];

/// The Collector's build needs Go.
pub(crate) const GO: Need = Need::Program("go");
pub(crate) const CC: Need = Need::Program("cc");
pub(crate) const OBJCOPY: Need = Need::Program("objcopy");
const XZ: Need = Need::Program("xz");
const UNSHARE: Need = Need::Program("unshare");
/// The limit covers several windows of a second each, on a loaded machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
/// Compiler flags that keep frame pointers and functions.
pub(crate) const FLAGS: [&str; 4] =
    ["-O1", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer", "-fno-optimize-sibling-calls"];
pub(crate) const NAP: [&str; 3] = ["podperf_nap_inner", "podperf_nap_outer", "main"];
const MIB: u64 = 1 << 20;

/// An agent with a receiver, and a cgroup for the processes to name.
pub(crate) struct Case {
    cgroup: TestCgroup,
    collector: Collector,
    pub(crate) agent: Agent,
    directory: TempDir,
    children: Vec<Child>,
}

impl Case {
    pub(crate) fn new(yaml: &str) -> Result<Self> {
        let collector = Collector::start()?;
        let agent = Agent::start(&format!("otlp: {{endpoint: '{}', interval: 1s}}\n{yaml}", collector.endpoint()))?;
        let (cgroup, directory) = (TestCgroup::new("names")?, TempDir::new()?);
        Ok(Self { cgroup, collector, agent, directory, children: Vec::new() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Builds a program from the tests' sources.
    fn build(&self, compiler: &str, source: &str, flags: &[&str]) -> Result<PathBuf> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/programs");
        let program = self.path(source.split('.').next().unwrap_or(source));
        run(Command::new(compiler).args(FLAGS).args(flags).arg("-o").arg(&program).arg(sources.join(source)))?;
        Ok(program)
    }

    /// Runs a shell command in the cgroup. The command's process replaces the shell.
    pub(crate) fn start(&mut self, shell: &str) -> Result<()> {
        let cgroup = self.cgroup.path().to_owned();
        self.start_in(&cgroup, shell)
    }

    fn start_in(&mut self, cgroup: &Path, shell: &str) -> Result<()> {
        let joined = format!("echo $$ > {}/cgroup.procs && {shell}", cgroup.display());
        let mut command = Command::new("sh");
        process::bind_to_parent(&mut command);
        command.args(["-c", &joined]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.children.push(command.spawn()?);
        Ok(())
    }

    pub(crate) fn samples(&self) -> Result<Vec<Sample>> {
        self.collector.samples_of(self.cgroup.kernel_path())
    }

    /// Waits for a stack in which these functions follow one another, and returns their frames.
    pub(crate) fn frames(&self, functions: &[&str]) -> Result<Vec<Frame>> {
        let found = within(DEADLINE, &format!("{functions:?} are in profiles"), || {
            Ok(self.samples()?.iter().find_map(|sample| {
                let at = sample.functions().windows(functions.len()).position(|names| names == functions)?;
                Some(sample.frames[at..at + functions.len()].to_vec())
            }))
        });
        found.with_context(|| format!("{:#?}\n{}", self.samples().map(|mut samples| samples.pop()), self.agent.log()))
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("failed to run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Checks that the frames are of this file, by attributes other than the path.
pub(crate) fn ensure_of(frames: &[Frame], file: &str) -> Result<()> {
    for frame in frames {
        ensure!(frame.file == file, "`{}` instead of `{file}`", frame.file);
        ensure!(frame.build_id.len() == 40 && frame.htlhash.len() == 32, "{frame:?}");
    }
    Ok(())
}

/// Checks that the frames have this type, by OpenTelemetry's conventions.
fn ensure_type(frames: &[Frame], kind: &str) -> Result<()> {
    ensure!(frames.iter().all(|frame| frame.kind == kind), "not all are `{kind}`: {frames:#?}");
    Ok(())
}

fn stripped_program_has_names() -> Result<()> {
    let mut case = Case::new("")?;
    let program = case.build("cc", "napper.c", &["-Wl,--build-id=sha1"])?;
    let debug = case.path("napper.debug");
    run(Command::new("objcopy").arg("--only-keep-debug").args([&program, &debug]))?;
    run(Command::new("objcopy").arg("--strip-all").arg("--add-gnu-debuglink").args([&debug, &program]))?;
    case.start(&format!("exec {}", program.display()))?;
    ensure_of(&case.frames(&NAP)?, &program.display().to_string())
}

/// As Fedora packs the symbols: without those that are exported.
fn packed_names_are_found() -> Result<()> {
    let mut case = Case::new("")?;
    let program = case.build("cc", "napper.c", &["-Wl,--build-id=sha1", "-Wl,--export-dynamic-symbol=main"])?;
    let symbols = case.path("symbols");
    run(Command::new("objcopy").args(["--only-keep-debug", "--strip-symbol=main"]).args([&program, &symbols]))?;
    run(Command::new("xz").arg(&symbols))?;
    let section = format!(".gnu_debugdata={}", case.path("symbols.xz").display());
    run(Command::new("objcopy").args(["--strip-all", "--add-section", &section]).arg(&program))?;
    case.start(&format!("exec {}", program.display()))?;
    ensure_of(&case.frames(&NAP)?, &program.display().to_string())
}

fn go_program_has_names() -> Result<()> {
    let mut case = Case::new("")?;
    for mode in ["exe", "pie"] {
        go_has_names(&mut case, mode, false)?;
    }
    Ok(())
}

fn go_program_with_c_has_names() -> Result<()> {
    let mut case = Case::new("")?;
    for mode in ["exe", "pie"] {
        go_has_names(&mut case, mode, true)?;
    }
    Ok(())
}

/// Builds a stripped Go program in one of the linker's modes, and finds its names.
fn go_has_names(case: &mut Case, mode: &str, with_c: bool) -> Result<()> {
    let nap = format!("podperfNap_{mode}");
    let (source, program) = (case.path(&format!("{mode}.go")), case.path(mode));
    let (c, call) =
        if with_c { ("// static int one(void) { return 1; }\nimport \"C\"\n", "C.one()\n") } else { ("", "") };
    fs::write(
        &source,
        format!(
            "package main\n{c}import \"syscall\"\n//go:noinline\nfunc {nap}() {{\n\
             time := syscall.Timespec{{Nsec: 20000000}}\nsyscall.Nanosleep(&time, nil) }}\n\
             func main() {{\n{call}for {{ {nap}() }} }}\n"
        ),
    )?;
    let mut build = Command::new("go");
    build.env("CGO_ENABLED", if with_c { "1" } else { "0" }).env("GO111MODULE", "off");
    build.args(["build", "-ldflags=-s -w", &format!("-buildmode={mode}"), "-o"]);
    run(build.args([&program, &source]))?;
    case.start(&format!("exec {}", program.display()))?;
    ensure_type(&case.frames(&[&format!("main.{nap}"), "main.main", "runtime.main", "runtime.goexit"])?, "go")
}

fn code_made_at_run_time_has_names() -> Result<()> {
    let mut case = Case::new("")?;
    case.build("cc", "jit.c", &[])?;
    // The process has its own id and its own `/tmp`, as in a container.
    let inside = format!("mount --bind {} /mnt && mount -t tmpfs tmpfs /tmp && exec /mnt/jit", case.path("").display());
    case.start(&format!("exec unshare --mount --pid --fork --kill-child sh -c '{inside}'"))?;
    let frames = case.frames(&["LazyCompile:~podperfNap app.js:1", "main"])?;
    ensure!(frames[0].file.is_empty() && frames[1].file == "/mnt/jit", "{frames:#?}");
    Ok(())
}

fn maps_that_were_made_to_harm_do_none() -> Result<()> {
    let mut case = Case::new("stacks: {filter: 'comm == jit'}")?;
    case.build("cc", "jit.c", &[])?;
    for (number, map) in [
        "mkfifo $map",
        "mkdir $map",
        "truncate -s 1T $map",
        "ln -s /dev/zero $map",
        "ln -s $map $map",
        "ln -s /proc/self/mem $map",
        "head -c 1000000 /dev/urandom > $map",
    ]
    .into_iter()
    .enumerate()
    {
        fs::create_dir(case.path(&number.to_string()))?;
        fs::copy(case.path("jit"), case.path(&format!("{number}/jit")))?;
        let inside = format!("mount -t tmpfs tmpfs /tmp && {map} && exec /mnt/{number}/jit quiet");
        let inside = format!("map=/tmp/perf-1.map; mount --bind {} /mnt && {inside}", case.path("").display());
        case.start(&format!("exec unshare --mount --pid --fork --kill-child sh -c '{inside}'"))?;
        within(DEADLINE, &format!("`{map}` is passed over"), || {
            let file = format!("/mnt/{number}/jit");
            let has_it = |sample: &Sample| {
                sample.frames.windows(2).any(|frames| {
                    frames[0].kind == "native"
                        && (&*frames[0].function, &*frames[1].function) == ("", "main")
                        && frames[1].file == file
                })
            };
            Ok(case.samples()?.iter().any(has_it).then_some(()))
        })
        .with_context(|| case.agent.log())?;
    }
    Ok(())
}

/// Returns the number of bytes that the file thread has read.
fn bytes_read(agent: &Agent) -> Result<u64> {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid()))?;
    let mut bytes = 0;
    for task in tasks {
        let task = task?.path();
        if fs::read_to_string(task.join("comm"))?.trim() == "podperf-files" {
            let io = fs::read_to_string(task.join("io"))?;
            let read = io.lines().find_map(|line| line.strip_prefix("rchar: ")).context("no `rchar`")?;
            bytes += read.parse::<u64>()?;
        }
    }
    Ok(bytes)
}

/// 14 processes have one map of 66 MB, by bind mounts. To read it for each of them would be 0.9 GB a window.
fn one_cgroups_maps_take_no_names_from_another() -> Result<()> {
    const WINDOWS: f64 = 5.0;
    let mut case = Case::new("stacks: {filter: 'comm == jit'}")?;
    let quiet = TestCgroup::new("quiet")?;
    case.build("cc", "jit.c", &[])?;
    let mut map = b"0 7fffffffffff podperfShared\n".to_vec();
    let filler = b"ffffffffffff0000 1 podperfFiller\n";
    map.extend(filler.iter().cycle().take(66_000_000 / filler.len() * filler.len()));
    fs::write(case.path("large.map"), map)?;
    let own = format!("mount --bind {} /mnt && mount -t tmpfs tmpfs /tmp", case.path("").display());
    let link = "touch /tmp/perf-1.map && mount --bind /mnt/large.map /tmp/perf-1.map && exec /mnt/jit quiet";
    let unshare = |inside: &str| format!("exec unshare --mount --pid --fork --kill-child sh -c '{own} && {inside}'");
    for _ in 0..14 {
        case.start(&unshare(link))?;
    }
    case.frames(&["podperfShared", "main"])?;
    case.start_in(quiet.path(), &unshare("exec /mnt/jit"))?;
    within(DEADLINE, "the other cgroup has its names", || {
        let samples = case.collector.samples_of(quiet.kernel_path())?;
        let has_it = |sample: &Sample| sample.functions().contains(&"LazyCompile:~podperfNap app.js:1");
        Ok(samples.iter().any(has_it).then_some(()))
    })?;
    let exports = || Ok::<_, anyhow::Error>(case.agent.metrics()?.sum("podperf_otlp_exports_total", &[]));
    let (before, read) = (exports()?, bytes_read(&case.agent)?);
    within(DEADLINE, "some windows more", || Ok((exports()? >= before + WINDOWS).then_some(())))?;
    let read = bytes_read(&case.agent)? - read;
    ensure!(read < 64 * MIB, "{read} bytes were read again in {WINDOWS} windows, although no map has changed");
    let unread = [("cgroup", quiet.kernel_path())];
    let metrics = case.agent.metrics()?;
    ensure!(metrics.get("podperf_stack_unread_frames_total", &unread).is_none(), "frames of the other were not read");
    Ok(())
}

fn program_of_a_container_is_named() -> Result<()> {
    let mut case = Case::new("")?;
    let program = case.build("cc", "napper.c", &["-Wl,--build-id=sha1"])?;
    case.start(&format!(
        "exec unshare --mount sh -c 'mount -t tmpfs tmpfs /mnt && cp {} /mnt/inside && exec /mnt/inside'",
        program.display(),
    ))?;
    let frames = case.frames(&NAP)?;
    ensure!(!Path::new("/mnt/inside").exists(), "the program is here, too");
    ensure_of(&frames, "/mnt/inside")
}

fn deleted_program_is_named() -> Result<()> {
    let mut case = Case::new("")?;
    let program = case.build("cc", "napper.c", &["-Wl,--build-id=sha1"])?;
    let other = case.build("cc", "circle.cc", &["-lstdc++", "-Wl,--build-id=sha1"])?;
    let (path, other) = (program.display(), other.display());
    case.start(&format!("{{ {path} & sleep 0.2; rm {path}; mv {other} {path}; wait; }}"))?;
    ensure_of(&case.frames(&NAP)?, &program.display().to_string())
}

fn process_that_is_gone_is_named() -> Result<()> {
    // Profiles get each nap when it ends. The window ends long after the process.
    let mut case = Case::new("stacks: {longWait: 100ms}")?;
    let program = case.build("cc", "napper.c", &["-Wl,--build-id=sha1"])?;
    case.start(&format!("exec {} 3 300", program.display()))?;
    let ended = within(DEADLINE, "it ends", || Ok(case.children[0].try_wait()?))?;
    ensure!(ended.success(), "{ended}");
    ensure_of(&case.frames(&NAP)?, &program.display().to_string())
}

fn symbols_of_fifty_programs_fit() -> Result<()> {
    const PROGRAMS: usize = 50;
    // The library makes its stacks out of frame pointers.
    let case = Case::new("stacks: {unwind: frame-pointers}")?;
    let programs = system_programs::find(PROGRAMS)?;
    let before = resident(&case.agent)?;
    let _sleepers = Sleepers::start(&programs, &case.cgroup, case.directory.path())?;
    let named = |case: &Case| -> Result<usize> {
        let samples = case.samples()?;
        let of = |program: &PathBuf| {
            let file = program.display().to_string();
            samples.iter().any(|sample| sample.frames.iter().filter(|frame| frame.file == file).count() >= 20)
        };
        Ok(programs.iter().filter(|program| of(program)).count())
    };
    within(DEADLINE * 2, "all programs are in profiles", || Ok((named(&case)? >= PROGRAMS * 9 / 10).then_some(())))
        .with_context(|| format!("{:?} of {programs:?}", named(&case)))?;
    // The largest size during several windows.
    let exports = || Ok::<_, anyhow::Error>(case.agent.metrics()?.sum("podperf_otlp_exports_total", &[]));
    let sent = exports()?;
    let mut most = 0;
    within(DEADLINE, "three more windows are sent", || {
        most = most.max(resident(&case.agent)?);
        Ok((exports()? >= sent + 3.0).then_some(()))
    })?;
    ensure!(most <= 80 * MIB, "{} MiB are resident, {} MiB were before", most / MIB, before / MIB);
    Ok(())
}

fn resident(agent: &Agent) -> Result<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
    let bytes = agent.metrics()?.get("process_resident_memory_bytes", &[]).context("no resident memory")? as u64;
    Ok(bytes)
}
