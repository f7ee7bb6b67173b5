//! The progress of a recording, shown on a terminal.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use super::Form;
use crate::recording::{Side, Wanted};

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
        let terminal = io::stderr().is_terminal();
        Self { terminal, begun: false, how: how.into(), what, unit, whole: wanted.duration }
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
