//! What is said meanwhile, on a terminal.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use crate::recording::{Side, Wanted};

/// How often.
pub(super) const EVERY: Duration = Duration::from_millis(500);

/// The line that is written again and again; gone on drop.
#[derive(Debug)]
pub(super) struct Progress {
    terminal: bool,
    what: String,
    unit: &'static str,
    whole: Duration,
}

impl Progress {
    pub(super) fn new(wanted: &Wanted) -> Self {
        let what = format!("{} {}", wanted.selector, wanted.side.name());
        let unit = match wanted.side {
            Side::OffCpu => "waits",
            Side::OnCpu => "samples",
        };
        Self { terminal: io::stderr().is_terminal(), what, unit, whole: wanted.duration }
    }

    /// Whether anybody sees it.
    pub(super) const fn is_shown(&self) -> bool {
        self.terminal
    }

    pub(super) fn show(&self, elapsed: Duration, count: u64) {
        let Self { terminal: true, what, unit, whole } = self else { return };
        let (elapsed, whole) = (elapsed.min(*whole).as_secs_f64(), whole.as_secs_f64());
        // A terminal that is gone has nobody to tell.
        write!(io::stderr(), "\r\x1b[Krecording {what}: {elapsed:.1} of {whole:.1} s, {count} {unit}").ok();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            write!(io::stderr(), "\r\x1b[K").ok();
        }
    }
}

/// A line for people, who need not be there.
pub(super) fn say(line: &str) {
    writeln!(io::stderr(), "{line}").ok();
}
