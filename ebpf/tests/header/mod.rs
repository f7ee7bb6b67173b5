//! Headers of the programs, run on the machine that builds.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

/// Compiles `tests/NAME.c`, and returns what it prints to these lines.
pub(crate) fn run(name: &str, lines: String) -> String {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join(name);
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let here = env!("CARGO_MANIFEST_DIR");
    let mut compiler = Command::new(clang);
    compiler
        .args(["-O2", "-Wall", "-Werror"])
        .arg(format!("-I{here}/bpf"))
        .arg(format!("-I{here}/sensors"))
        .arg(format!("{here}/tests/{name}.c"));
    let output = compiler.arg("-o").arg(&program).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap()
}
