//! Records the source, target and libraries of the program, which `podperf --version` prints.
//!
//! The commit is `PODPERF_COMMIT` if set, and otherwise the commit of the checkout in optimized builds. Other builds do
//! not ask git, because each commit would then cause a rebuild. The date is `SOURCE_DATE_EPOCH`, or otherwise the date
//! of the commit, and never the date of the build: two builds of one commit are equal.

#[path = "build/date.rs"]
mod date;

use std::{env, fs, path::Path, process::Command};

const UNKNOWN: &str = "unknown";
const LOCK: &str = "../Cargo.lock";
/// The header with the version of the libbpf headers that the BPF programs are compiled with.
const LIBBPF: &str = "/usr/include/bpf/libbpf_version.h";

fn main() {
    for name in ["PODPERF_COMMIT", "SOURCE_DATE_EPOCH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    // cargo treats a file that does not exist as changed each time.
    for file in ["build.rs", "build/date.rs", LOCK, LIBBPF].into_iter().filter(|file| Path::new(file).exists()) {
        println!("cargo::rerun-if-changed={file}");
    }
    let checkout = (variable("OPT_LEVEL").as_deref() == Some("3")).then(Checkout::find).flatten();
    let commit = variable("PODPERF_COMMIT").or_else(|| checkout.as_ref().map(|checkout| checkout.commit.clone()));
    let date = variable("SOURCE_DATE_EPOCH").or_else(|| checkout.map(|checkout| checkout.seconds));
    let date = date.and_then(|seconds| Some(date::of(seconds.parse().ok()?)));
    for (name, value) in [
        ("COMMIT", commit),
        ("DATE", date),
        ("TARGET", variable("TARGET")),
        ("PROFILE", variable("PROFILE")),
        ("AYA", aya()),
        ("LIBBPF", libbpf()),
        ("FEATURES", features()),
    ] {
        let value = value.unwrap_or_else(|| UNKNOWN.to_owned());
        println!("cargo::rustc-env=PODPERF_BUILT_{name}={value}");
    }
}

/// An empty variable counts as not set.
fn variable(name: &str) -> Option<String> {
    let value = env::var(name).ok()?.trim().to_owned();
    Some(value).filter(|value| !value.is_empty())
}

/// The checked-out commit, with `-dirty` where files differ from it, and its time in Unix seconds.
struct Checkout {
    commit: String,
    seconds: String,
}

impl Checkout {
    /// Returns `None` in a tree that is no checkout of its own, such as an archive unpacked inside another repository.
    fn find() -> Option<Self> {
        let top = fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()?;
        if top != fs::canonicalize("..").ok()? {
            return None;
        }
        let place = |name: &str| git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists());
        // git logs each commit and checkout there. Without that log, HEAD, the branch or packed-refs changes instead.
        let changing = place("logs/HEAD").map_or_else(
            || {
                let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
                let names = ["HEAD".to_owned(), "packed-refs".to_owned()].into_iter().chain(branch);
                names.filter_map(|name| place(&name)).collect()
            },
            |log| vec![log],
        );
        for path in changing {
            println!("cargo::rerun-if-changed={path}");
        }
        // An edit of a file in these directories makes a clean tree dirty.
        for path in ["src", "../ebpf/bpf", "../ebpf/src"] {
            println!("cargo::rerun-if-changed={path}");
        }
        let said = git(&["log", "-1", "--format=%H %ct"])?;
        let (commit, seconds) = said.split_once(' ')?;
        let edited = git(&["status", "--porcelain", "--untracked-files=no"]).is_some();
        let commit = if edited { format!("{commit}-dirty") } else { commit.to_owned() };
        Some(Self { commit, seconds: seconds.to_owned() })
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Returns the version of aya, which loads the BPF programs, from the lock file.
fn aya() -> Option<String> {
    let lock = fs::read_to_string(LOCK).ok()?;
    let version = lock.split("name = \"aya\"\nversion = \"").nth(1)?.split('"').next()?;
    Some(version.to_owned())
}

fn libbpf() -> Option<String> {
    let header = fs::read_to_string(LIBBPF).ok()?;
    let number = |name: &str| {
        let line = header.lines().find(|line| line.starts_with(&format!("#define LIBBPF_{name}_VERSION")))?;
        line.split_whitespace().nth(2).map(str::to_owned)
    };
    Some(format!("{}.{}", number("MAJOR")?, number("MINOR")?))
}

fn features() -> Option<String> {
    let names = env::vars().filter_map(|(name, _)| name.strip_prefix("CARGO_FEATURE_").map(str::to_lowercase));
    let mut names: Vec<_> = names.filter(|name| name != "default").map(|name| name.replace('_', "-")).collect();
    names.sort();
    Some(if names.is_empty() { "none".to_owned() } else { names.join(", ") })
}
