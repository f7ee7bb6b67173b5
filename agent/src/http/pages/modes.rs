//! The part of the start page that depends on the agent's mode: one line about what it shows, and no link that would be
//! refused. Pure.

use crate::{
    config::Runner,
    export::flamegraph::escape,
    model::mode::Mode,
    recording::{Selector, Side},
};

use super::profile::address;

/// The mode of the agent, and its runner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    pub(super) mode: Mode,
    pub(super) runner: Runner,
}

impl Shown {
    /// Returns whether flame graphs can be drawn.
    pub(super) const fn has_flame_graphs(self) -> bool {
        !matches!(self.mode, Mode::Metrics)
    }

    /// Returns the line about the mode, as HTML; empty if everything is shown.
    pub(super) const fn line(self) -> &'static str {
        match (self.mode, self.runner) {
            (Mode::Profiles, _) => "",
            (Mode::Metrics, Runner::Chart) => {
                "<p>This is the mode <code>metrics</code>: times only. The chart's <code>mode: reasons</code> also \
                 shows why threads wait, and <code>mode: profiles</code> with <code>http.readers</code> the functions \
                 of programs, too.</p>\n"
            }
            (Mode::Metrics, Runner::File) => {
                "<p>Stacks are off: times only. With <code>stacks.enabled: true</code> and a restart of the agent, \
                 this page also shows why threads wait, and flame graphs.</p>\n"
            }
            (Mode::Reasons, Runner::Chart) => {
                "<p class=\"about\">This is the mode <code>reasons</code>: times, and why threads wait, by functions \
                 of the kernel. The chart's <code>mode: profiles</code> with <code>http.readers</code> also shows the \
                 functions of programs.</p>\n"
            }
            (Mode::Reasons, Runner::File) => {
                "<p class=\"about\">User frames are off: flame graphs have functions of the kernel only. Without \
                 <code>stacks.unwind: none</code> and after a restart of the agent, they also have those of \
                 programs.</p>\n"
            }
        }
    }

    /// Returns the link to the flame graph of all pods, as HTML; empty if it cannot be drawn.
    pub(super) fn link_to_all(self) -> String {
        if !self.has_flame_graphs() {
            return String::new();
        }
        format!("<a href=\"{}\">Flame graph of all</a>", escape(&address(&Selector::All, Side::OffCpu, None)))
    }

    /// Returns the sentence about the links of the rows, as HTML; empty if they have none.
    pub(super) const fn about_links(self) -> &'static str {
        if self.has_flame_graphs() {
            " <span class=\"soft\">A name leads to the stacks of its waits.</span>"
        } else {
            ""
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_says_in_its_runners_words_what_more_there_is() {
        let line = |mode, runner| Shown { mode, runner }.line();
        let chart = [Mode::Metrics, Mode::Reasons, Mode::Profiles].map(|mode| line(mode, Runner::Chart));
        assert!(chart[0].contains("mode: reasons") && chart[0].contains("mode: profiles"), "{chart:?}");
        assert!(chart[1].contains("mode: profiles") && chart[2].is_empty(), "{chart:?}");
        assert!(chart[..2].iter().all(|line| line.contains("http.readers")), "the chart refuses the mode: {chart:?}");
        let file = [Mode::Metrics, Mode::Reasons].map(|mode| line(mode, Runner::File));
        assert!(file[0].contains("stacks.enabled: true") && file[1].contains("stacks.unwind: none"), "{file:?}");
        assert!(file.iter().all(|line| !line.contains("chart")), "{file:?}");
    }
}
