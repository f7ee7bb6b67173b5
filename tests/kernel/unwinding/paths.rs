//! Paths in profiles, and the paths that the program noted.
//!
//! The functions of a path are known by their addresses, so the program needs no symbols. Names in the profile must
//! agree with them.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use podperf_tests::{
    load::paths::{NotedPath, PathsReport},
    pprof::{Frame, Sample},
};

/// The outermost functions of programs and threads, by the names that the C library has for them.
const OUTERMOST: [&str; 6] = ["_start", "clone", "__clone", "clone3", "__clone3", "thread_start"];
/// The functions that call other code than functions of a path.
const CALLERS: [&str; 4] = ["path_main", "path_thread", "path_sleep", "path_spin"];
/// The end of the path of the load's file.
const FILE: &str = "/podperf-load";

/// The completeness of a stack, as the profile tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    Yes,
    No,
}

/// The paths that the program noted, for lookups.
pub(super) struct Noted<'a> {
    report: &'a PathsReport,
    paths: BTreeSet<&'a str>,
}

impl<'a> Noted<'a> {
    pub(super) fn new(report: &'a PathsReport) -> Result<Self> {
        let paths: BTreeSet<_> = report.paths.iter().map(|path| path.path.as_str()).collect();
        ensure!(paths.len() == report.paths.len() && paths.len() >= 30, "only {} paths", paths.len());
        ensure!(report.paths.iter().all(|path| path.count > 0), "a path without a count: {:?}", report.paths);
        Ok(Self { report, paths })
    }

    /// Returns whether the program noted this path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.paths.contains(path)
    }

    /// Returns whether a path ends in these functions, and its stack has more than `bytes`.
    pub(super) fn ends_so(&self, functions: &str, bytes: u64) -> bool {
        let ends = |path: &str| path == functions || functions.is_empty() || path.ends_with(&format!(";{functions}"));
        self.report.paths.iter().any(|NotedPath { path, stack_bytes, .. }| *stack_bytes > bytes && ends(path))
    }

    /// Checks that these functions are a part of a path: its begin if the stack is whole.
    pub(super) fn ensure_part(&self, functions: &str, whole: Whole, sample: &Sample) -> Result<()> {
        let has = |path: &&str| match whole {
            Whole::Yes => format!("{path};").starts_with(&format!("{functions};")),
            Whole::No => format!(";{path};").contains(&format!(";{functions};")),
        };
        let is_part = functions.is_empty() || self.paths.iter().any(has);
        ensure!(is_part, "no path has this part, whole {whole:?}: {}", sample.text());
        Ok(())
    }

    /// Returns the functions of a path that are in a stack, outermost first, with semicolons in between, and whether
    /// the stack is whole. Checks that no other frame is between them, that the caller of other code is among them, and
    /// that the stack ends as it says.
    pub(super) fn path_of(&self, sample: &Sample) -> Result<(String, Whole)> {
        let names: Vec<_> = sample.frames.iter().rev().map(|frame| self.function_of(frame)).collect();
        let mut path = Vec::new();
        if let (Some(first), Some(last)) =
            (names.iter().position(Option::is_some), names.iter().rposition(Option::is_some))
        {
            path.extend(names[first..=last].iter().flatten().copied());
            ensure!(path.len() == last - first + 1, "another frame is within the path: {}", sample.text());
        }
        let innermost = sample.frames.iter().find(|frame| !is_kernel(frame)).and_then(|frame| self.function_of(frame));
        let calls = path.last().filter(|_| innermost.is_none());
        ensure!(calls.is_none_or(|name| CALLERS.contains(name)), "a caller is left out: {}", sample.text());
        for (frame, name) in sample.frames.iter().rev().zip(&names) {
            let says = frame.function.as_str();
            // The kernel has functions of its own with such names.
            let may_be_other = is_kernel(frame) || !says.starts_with("path_");
            let agrees = name.map_or(may_be_other, |name| says.is_empty() || says == name);
            ensure!(agrees, "`{says}` should be `{name:?}`: {}", sample.text());
        }
        let outermost = sample.frames.last().map_or("", |frame| frame.function.as_str());
        let is_outermost = OUTERMOST.contains(&outermost);
        let unwind = sample.label("unwind");
        if unwind.is_empty() {
            ensure!(outermost.is_empty() || is_outermost, "a whole stack ends amid calls: {}", sample.text());
            return Ok((path.join(";"), Whole::Yes));
        }
        ensure!(!is_outermost, "`{unwind}`, and the stack ends as a whole one: {}", sample.text());
        Ok((path.join(";"), Whole::No))
    }

    fn function_of(&self, frame: &Frame) -> Option<&'a str> {
        let mut functions = self.report.functions.iter().filter(|_| frame.file.ends_with(FILE));
        functions.find(|place| (place.begin..place.end).contains(&frame.address)).map(|place| place.name.as_str())
    }
}

/// Returns whether a frame is one of the kernel's. The `[vdso]` is user code.
fn is_kernel(frame: &Frame) -> bool {
    frame.file.starts_with('[') && frame.file != "[vdso]"
}
