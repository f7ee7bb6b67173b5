//! Flame graphs: recorded stacks as a picture, a page, text or pprof. Pure.
//!
//! The input is a [`Merged`] recording. [`grow`] lays it out as a [`tree`], grouped by subject and, off the CPU, by the
//! reason of the wait. So each part of the picture has one colour, which shows the reason. All formats contain the
//! total time and have a limit: frames that are too narrow to see, or over the limit, are merged before they take
//! memory.

mod coverage;
mod folded;
mod formatting;
mod grow;
mod html;
mod longest;
mod losses;
mod palette;
mod pprof;
mod svg;
mod tree;
mod usual;

#[cfg(test)]
mod fixture;

pub use formatting::{escape, percent, real, time};
pub use html::{Links, STYLE, head, page, policy};

use crate::recording::{Merged, Side};

/// The output formats of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Format {
    /// A picture that browsers zoom.
    Svg,
    /// Gzipped `perftools.profiles.Profile`, for `go tool pprof` and similar tools.
    #[strum(serialize = "pb")]
    Pprof,
    /// One line a stack: frames with `;` between, outermost first, and nanoseconds.
    Folded,
    /// A page that loads nothing else.
    Html,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Svg, Self::Pprof, Self::Folded, Self::Html];

    /// Returns the value of the argument `format`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the extension of its files.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Pprof => "pb.gz",
            _ => self.name(),
        }
    }

    /// Returns the `Content-Type` of an answer.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Svg => "image/svg+xml",
            Self::Pprof => "application/gzip",
            Self::Folded => "text/plain; charset=utf-8",
            Self::Html => "text/html; charset=utf-8",
        }
    }

    /// Returns the format with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Returns the format for the extension of a file's name.
    #[must_use]
    pub fn of_file(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| name.ends_with(&format!(".{}", format.extension())))
    }
}

/// Returns the style sheet's rules for colours, on which [`STYLE`] builds.
#[must_use]
pub fn frame_style() -> String {
    svg::STYLE.to_owned() + &palette::rules()
}

/// Returns a recording in a format.
#[must_use]
pub fn render(merged: &Merged, format: Format) -> Vec<u8> {
    match format {
        Format::Svg => svg::standalone(merged).into_bytes(),
        Format::Pprof => pprof::gzipped(merged),
        Format::Folded => folded::folded(merged).into_bytes(),
        Format::Html => page(merged, &Links::default()).into_bytes(),
    }
}

/// Returns a line that describes a recording.
#[must_use]
pub fn caption(merged: &Merged) -> String {
    let (time, count) = (time(merged.nanoseconds()), merged.count());
    let over = formatting::seconds(merged.duration);
    let plural = if count == 1 { "" } else { "s" };
    match merged.side {
        Side::OffCpu => format!("{time} of waiting within {over}, in which {count} wait{plural} ended"),
        Side::Locks => format!("{time} of waiting for locks in {count} wait{plural} that ended within {over}"),
        Side::OnCpu => format!("{time} on the CPU in {count} sample{plural} within {over}"),
    }
}
