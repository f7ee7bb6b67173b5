//! How the rings that need a machine run: one test after the other, and what the machine lacks is said and counted.

use std::process::ExitCode;

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};

/// One test: a sentence, what it needs beyond root, and its body.
pub type Test = (&'static str, &'static [Need], fn() -> Result<()>);

/// What a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A program on the path.
    Program(&'static str),
    /// A file or directory.
    Path(&'static str),
}

impl Need {
    fn lacks(self) -> Option<String> {
        match self {
            Self::Program(name) => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                let found = std::env::split_paths(&path).any(|directory| directory.join(name).exists());
                (!found).then(|| format!("no `{name}`"))
            }
            Self::Path(path) => (!std::path::Path::new(path).exists()).then(|| format!("no `{path}`")),
        }
    }
}

/// Runs the tests of one ring. A test whose machine lacks something is ignored, counted and named with what it lacks.
#[must_use]
pub fn run(tests: &[Test]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    // They watch the whole machine: two at a time would see each other.
    arguments.test_threads = Some(1);
    let root = nix::unistd::geteuid().is_root();
    let trials = tests
        .iter()
        .map(|&(name, needs, body)| {
            let lacks = if root { needs.iter().find_map(|need| need.lacks()) } else { Some("not root".into()) };
            let title = lacks.as_ref().map_or_else(|| name.to_owned(), |lacks| format!("{name} (skipped: {lacks})"));
            Trial::test(title, move || body().map_err(|error| Failed::from(format!("{error:?}"))))
                .with_ignored_flag(lacks.is_some())
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
