//! Flame graphs: recorded stacks as a picture, a page, text or pprof. Pure.
//!
//! The input is a [`Merged`] recording. [`grow`] lays it out as a [`tree`], grouped by subject and, off the CPU, by the
//! reason and the judgement of the wait. So each part of the picture has one colour: that of the reason where the pod
//! lost time, and grey where it had nothing to do. All formats contain the total time and have a limit: frames that are
//! too narrow to see, or over the limit, are merged before they take memory.

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

pub use coverage::{sentence as stack_sentence, stack_shares};
pub use formatting::{escape, percent, real, time};
pub use html::{Links, STYLE, head, page, policy};
pub use palette::{IDLE, UNCLEAR};

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

#[cfg(test)]
mod tests {
    use super::{grow::tree, tree::Class, *};
    use crate::{
        model::wait::WaitReason,
        recording::{
            Merger,
            fixture::{ended_by, on_stack, pod, stack, that_go_on, waits, window},
        },
    };

    /// A service that waits for an answer, for the next request of a client that keeps its connection, and for work.
    fn checkout() -> Merged {
        let accepted = |client: &str| {
            let accept = ended_by(client, waits(WaitReason::Network, 0.1));
            on_stack(stack(&["inet_csk_accept"], &["main"]), accept)
        };
        let of_checkout = vec![
            ended_by("shop/payments/app", waits(WaitReason::Poll, 1.2)),
            ended_by("shop/front/app", waits(WaitReason::Network, 1.0)),
            accepted("shop/front/app"),
            that_go_on(waits(WaitReason::Futex, 0.8)),
        ];
        let payments = pod("shop/payments", vec![accepted("shop/checkout/app")]);
        let windows = [window(vec![pod("shop/checkout", of_checkout), payments])];
        Merger::merge(&windows, Side::OffCpu, "shop/checkout/app".parse().unwrap())
    }

    #[test]
    fn the_wait_for_another_pod_has_a_colour_and_its_name_and_idleness_is_grey() {
        let root = tree(&checkout());
        let branches: Vec<_> = root.children.iter().map(|branch| (&*branch.name, branch.class)).collect();
        let (trouble, idle) =
            (Class::Waiting { reason: WaitReason::Network, kernel: false }, Class::Idle { kernel: false });
        let expected = [("poll for shop/payments", trouble), ("network (idle)", idle), ("futex (parked)", idle)];
        assert_eq!(branches, expected);
        let idle_below = root.children[1].children.iter().filter(|it| it.class == idle).count();
        assert_eq!(idle_below, 2, "without a stack, and in `main`: {root:#?}");
    }

    #[test]
    fn the_legend_and_the_table_say_in_words_which_time_was_lost() {
        let page = page(&checkout(), &Links::default());
        for part in [
            "<li><i class=\"network\"></i>other pods 39 %</li>",
            "<li><i class=\"idle\"></i>idle (nothing to do) 35 %</li>",
            "<li><i class=\"idle\"></i>parked (did not end) 26 %</li>",
            "<td><i class=\"network\"></i>poll for shop/payments</td><td class=\"n\">12.0 s</td>",
            "<td><i class=\"idle\"></i>network (idle)</td>",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    /// Users search folded files for reasons.
    #[test]
    fn folded_files_have_the_reason_alone() {
        let folded = String::from_utf8(render(&checkout(), Format::Folded)).unwrap();
        assert!(folded.contains("shop/checkout/app;poll;[no stack] 12000000000\n"), "{folded}");
    }
}
