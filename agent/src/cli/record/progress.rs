//! The progress of a recording, shown on a terminal.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use super::Form;
use crate::recording::{Side, Wanted, WantedLatency};

/// The time between two updates.
pub(super) const EVERY: Duration = Duration::from_millis(500);

/// The progress line, which is overwritten at each update and erased on drop.
#[derive(Debug)]
pub(super) struct Progress {
    terminal: bool,
    begun: bool,
    how: String,
    what: String,
    unit: &'static str,
    whole: Duration,
}

impl Progress {
    /// Makes the line. `how` describes the way of recording.
    pub(super) fn new(wanted: &Wanted, form: Form, how: impl Into<String>) -> Self {
        let (of, unit) = match (form, wanted.side) {
            (Form::Calls(_), _) => ("system calls", "calls"),
            (Form::Stacks(_), Side::OffCpu | Side::Locks) => (wanted.side.name(), "waits"),
            (Form::Stacks(_), Side::OnCpu) => (wanted.side.name(), "samples"),
        };
        let what = format!("{} {of}", wanted.selector);
        Self::of(what, unit, wanted.duration, how.into())
    }

    /// Makes the line of a recording of a function's calls. The count is that of the node.
    pub(super) fn of_calls(wanted: &WantedLatency, how: impl Into<String>) -> Self {
        let what = format!("`{}` in {}", wanted.function, wanted.selector);
        Self::of(what, "calls on the node", wanted.duration, how.into())
    }

    fn of(what: String, unit: &'static str, whole: Duration, how: String) -> Self {
        Self { terminal: io::stderr().is_terminal(), begun: false, how, what, unit, whole }
    }

    /// Returns whether a further update would be shown.
    pub(super) const fn is_shown(&self) -> bool {
        self.terminal || !self.begun
    }

    /// Shows the progress. Shows nothing before the recording has begun.
    pub(super) fn show(&mut self, elapsed: Option<Duration>, count: u64) {
        let Some(elapsed) = elapsed else { return };
        let Self { terminal, begun, how, what, unit, whole } = self;
        let (elapsed, whole) = (elapsed.min(*whole).as_secs_f64(), whole.as_secs_f64());
        if !std::mem::replace(begun, true) {
            print(&format!("recording {what} for {whole:.1} s, {how} (Ctrl-C ends it early)"));
        }
        if *terminal {
            // A closed terminal has no reader, so errors are ignored.
            write!(io::stderr(), "\r\x1b[K{elapsed:.1} of {whole:.1} s, {count} {unit}").ok();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            write!(io::stderr(), "\r\x1b[K").ok();
        }
    }
}

/// Prints a line for people, who may have closed stderr.
pub(super) fn print(line: &str) {
    writeln!(io::stderr(), "{line}").ok();
}
