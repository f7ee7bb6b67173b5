//! The record of whole rings: a run counts for the files that it ran with.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use anyhow::{Result, ensure};
use podperf_tests::{
    process::install,
    rules::root,
    suite::{Need, Test},
    tests,
};
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] = tests![
    #[rings] a_ring_counts_until_one_of_its_files_changes: &[Need::Program("git")],
    a_kernel_is_due_without_a_passed_record_of_these_programs: &[Need::Program("git")],
    the_page_of_rings_has_a_line_for_known_rings_only,
];

/// An invented checkout whose ring `kernel` says this.
struct Checkout {
    tree: TempDir,
    says: &'static str,
}

impl Checkout {
    fn new() -> Result<Self> {
        let tree = TempDir::new()?;
        for folder in [".cargo", "agent", "docs/kernels", "ebpf", "target/debug", "tests/kernel", "tests/src"] {
            fs::create_dir_all(tree.path().join(folder))?;
            fs::write(tree.path().join(folder).join("file"), folder)?;
        }
        let files = ["Cargo.lock", "Cargo.toml", "rust-toolchain.toml", "setup.sh", "tests/Cargo.toml"];
        for file in files.iter().chain(&["tests/built-once.sh", "tests/other-layout.sh", "tests/ignored.txt"]) {
            fs::write(tree.path().join(file), "")?;
        }
        fs::write(tree.path().join("Makefile"), "rings-build:\n")?;
        fs::write(tree.path().join(".gitignore"), "/target\n/cargo\n")?;
        fs::write(tree.path().join("docs/kernels.md"), "|  | 5.10 | 6.1 |\n")?;
        fs::copy(root().join("tests/rings.sh"), tree.path().join("tests/rings.sh"))?;
        let page = fs::read_to_string(root().join("docs/rings.md"))?;
        let head: Vec<&str> = page.lines().take_while(|line| !line.starts_with("|---")).collect();
        fs::write(tree.path().join("docs/rings.md"), head.join("\n") + "\n|---|---|---|---|---|---|---|---|\n")?;
        let this = Self { tree, says: "" };
        program(&this.tree.path().join("target/debug/podperf-ignored"), "exit 0")?;
        this.git(&["init", "--quiet"])?;
        this.commit()?;
        Ok(this)
    }

    fn git(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=a", "-c", "user.email=a@example.com"]).args(arguments);
        ensure!(command.current_dir(self.tree.path()).status()?.success(), "git {arguments:?}");
        Ok(())
    }

    fn commit(&self) -> Result<()> {
        self.git(&["add", "--all"])?;
        self.git(&["commit", "--quiet", "--message", "a change"])
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.tree.path().join(file), text)?)
    }

    fn rings(&self, arguments: &[&str]) -> Result<Output> {
        let cargo = self.tree.path().join("cargo");
        program(&cargo, self.says)?;
        Ok(Command::new("tests/rings.sh").args(arguments).env("CARGO", cargo).current_dir(self.tree.path()).output()?)
    }

    /// Returns what is due.
    fn due(&self) -> Result<String> {
        self.due_of("kernel")
    }

    fn due_of(&self, ring: &str) -> Result<String> {
        let output = self.rings(&["check", ring])?;
        let says = String::from_utf8(output.stdout)?;
        ensure!(output.status.success() == says.is_empty(), "{}: {says}", output.status);
        Ok(says)
    }
}

fn program(path: &Path, says: &str) -> Result<()> {
    install(format!("#!/bin/sh\n{says}\n").as_bytes(), path)
}

fn a_ring_counts_until_one_of_its_files_changes() -> Result<()> {
    // The agent is optimized, and nothing else.
    const PASSES: &str = "[ \"$1 $2\" = '--config profile.dev.package.podperf.opt-level=1' ] || exit 9
echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured'";
    let mut checkout = Checkout::new()?;
    ensure!(checkout.due()?.contains("make rings-kernel"), "nothing has run");

    for (says, outcome) in [
        ("echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'; exit 101", "| kernel | 2 | 1 | 0 |"),
        ("exit 0", "| kernel | 0 | 1 | 0 |"),
        (PASSES, "| kernel | 3 | 0 | 1 |"),
    ] {
        checkout.says = says;
        let output = checkout.rings(&["run", "kernel"])?;
        let page = fs::read_to_string(checkout.tree.path().join("docs/rings.md"))?;
        ensure!(page.contains(outcome) && page.matches("| kernel |").count() == 1, "{page}");
        ensure!(output.status.success() == checkout.due()?.is_empty(), "{says}: {output:?}");
        ensure!(output.status.success() == (says == PASSES), "{says}: {output:?}");
    }
    // The record itself is no file of a ring, not even of one that is about all files. It does not run again.
    ensure!(checkout.rings(&["run", "rules"])?.status.success() && checkout.due_of("rules")?.is_empty(), "all files");
    checkout.commit()?;
    ensure!(checkout.due()?.is_empty() && checkout.due_of("rules")?.is_empty(), "the record made itself old");
    checkout.says = "exit 1";
    ensure!(checkout.rings(&["run", "kernel"])?.status.success(), "it ran again");
    checkout.write("docs/file", "a word")?;
    checkout.commit()?;
    ensure!(checkout.due()?.is_empty() && !checkout.due_of("rules")?.is_empty(), "a page is no file of all");

    checkout.write("ebpf/file", "/* a comment */")?;
    checkout.says = PASSES;
    ensure!(checkout.due()?.is_empty(), "what is not committed counts");
    checkout.commit()?;
    ensure!(checkout.due()?.contains("with ebpf as of HEAD"), "{}", checkout.due()?);
    checkout.write("agent/file", "not committed")?;
    let output = checkout.rings(&["run", "kernel"])?;
    let says = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success() && says.contains("not recorded") && !checkout.due()?.is_empty(), "{says}");
    // A change during the run is one that the run may have had, or not.
    checkout.commit()?;
    checkout.says = "echo 'test result: ok. 3 passed; 0 failed'; echo >agent/late";
    let output = checkout.rings(&["run", "kernel"])?;
    ensure!(!output.status.success() && !checkout.due()?.is_empty(), "{output:?}");
    checkout.commit()?;
    checkout.says = "echo 'test result: ok. 3 passed; 0 failed'; echo >agent/later; git add agent; \
                     git -c user.name=a -c user.email=a@example.com commit --quiet --message later";
    let output = checkout.rings(&["run", "kernel"])?;
    ensure!(!output.status.success() && !checkout.due()?.is_empty(), "of another commit: {output:?}");

    checkout.says = PASSES;
    ensure!(checkout.rings(&["run", "kernel"])?.status.success() && checkout.due()?.is_empty(), "it passes again");
    fs::remove_file(checkout.tree.path().join("setup.sh"))?;
    checkout.commit()?;
    checkout.rings(&["run", "kernel"])?;
    ensure!(!checkout.due()?.is_empty(), "a run without one of its files counts");
    Ok(())
}

fn a_kernel_is_due_without_a_passed_record_of_these_programs() -> Result<()> {
    let checkout = Checkout::new()?;
    let head = Command::new("git").args(["rev-parse", "HEAD:ebpf"]).current_dir(checkout.tree.path()).output()?;
    let programs = String::from_utf8(head.stdout)?;
    let programs = format!("programs: {}\n", &programs[..12]);
    ensure!(checkout.due_of("kernels")?.lines().count() == 2, "no records");
    checkout.write("docs/kernels/5.10.txt", &format!("{programs}\na_test passed\n"))?;
    for (record, is_due) in [
        (format!("{programs}\na_test unsupported no PMU\n"), true),
        (format!("{programs}\na_test passed\nanother FAILED why\n"), true),
        ("programs: 0123456789ab\n\na_test passed\n".to_owned(), true),
        (format!("{programs}\na_test passed\n"), false),
    ] {
        checkout.write("docs/kernels/6.1.txt", &record)?;
        ensure!(checkout.due_of("kernels")?.contains("`6.1`") == is_due, "{record}");
    }
    Ok(())
}

fn the_page_of_rings_has_a_line_for_known_rings_only() -> Result<()> {
    let script = fs::read_to_string(root().join("tests/rings.sh"))?;
    let page = fs::read_to_string(root().join("docs/rings.md"))?;
    for line in page.lines().skip_while(|line| !line.starts_with("|---")).skip(1) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [ring, passed, failed, ignored, seconds, _, commit, inputs] = cells[..] else {
            anyhow::bail!("not a ring: {line}")
        };
        let is_number = |text: &str| text.parse::<u32>().is_ok();
        ensure!([passed, failed, ignored, seconds].into_iter().all(is_number), "no numbers: {line}");
        ensure!(commit.len() == 12 && inputs.split(' ').all(|input| input.contains(':')), "no ids: {line}");
        ensure!(script.contains(&format!("{ring}) ")) || script.contains(&format!("{ring} | ")), "no ring `{ring}`");
    }
    Ok(())
}
