//! The picture: frames as nested `svg` elements, whose widths are shares of the available width. Pure.
//!
//! Nesting cuts names off at the frame's edge without a script, and a picture as narrow as a phone keeps its font size.
//! The script zooms by changing the same attributes.

use std::{fmt::Write, sync::Arc};

use super::{
    caption, coverage,
    formatting::{escape, percent, real, share, time},
    grow::{MOST_FRAMES, NARROWEST, tree},
    palette,
    tree::{self, Class, Node},
};
use crate::{
    recording::{Merged, Side},
    stacks::profile::Frame,
};

/// The height of a frame with the gap below it, in pixels.
pub(super) const ROW: usize = 20;
/// The most characters of a name in a picture.
const MOST_LETTERS: usize = 240;
/// The script that zooms, the same in pages and pictures.
pub(super) const SCRIPT: &str = include_str!("zoom.js");
/// The style sheet of the frames, the same in pages and pictures.
pub(super) const STYLE: &str = include_str!("frames.css");

/// The frames of a picture, their total height in pixels, and the number of branches that were merged.
pub(super) struct Picture {
    pub(super) frames: String,
    pub(super) height: usize,
    pub(super) merged: u64,
}

/// Returns the legend: the meanings of colours with their classes and times, the longest first.
pub(super) fn legend(merged: &Merged) -> Vec<(&'static str, Class, u64)> {
    let mut sums: Vec<(&'static str, Class, u64)> = Vec::new();
    for (_, sample) in merged.samples() {
        // On the CPU the class is that of the leaf: kernel or program.
        let is_kernel = |frame: &Arc<Frame>| frame.kind.is_kernel();
        let kernel = merged.side == Side::OnCpu && sample.stack.frames.first().is_some_and(is_kernel);
        let class = tree::class_of(sample, kernel);
        let name = tree::label(sample, palette::class(class));
        match sums.iter_mut().find(|(known, ..)| *known == name) {
            Some((.., sum)) => *sum = sum.saturating_add(sample.nanoseconds),
            None => sums.push((name, class, sample.nanoseconds)),
        }
    }
    sums.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(b.0)));
    sums
}

/// Draws the picture of a tree, from the position `top` on downwards.
pub(super) fn picture(root: &Node, side: Side, top: usize) -> Picture {
    let mut drawing = Drawing { out: String::new(), deepest: 0, merged: 0, root, side, top };
    drawing.draw(root, 0.0, 0);
    Picture { frames: drawing.out, height: (drawing.deepest + 1) * ROW, merged: drawing.merged }
}

/// Returns the text of a picture about merged branches.
pub(super) fn merging(merged: u64) -> String {
    let plural = if merged == 1 { " is" } else { "es are" };
    format!(
        "{merged} branch{plural} merged into frames named (N smaller): narrower than {} % of all time, or the narrowest of \
         more than {MOST_FRAMES} frames.",
        100.0 / real(NARROWEST),
    )
}

/// Returns the part of a name that is drawn.
fn letters(name: &str) -> String {
    match name.char_indices().nth(MOST_LETTERS) {
        Some((end, _)) => escape(name.get(..end).unwrap_or_default()) + "…",
        None => escape(name),
    }
}

struct Drawing<'a> {
    out: String,
    deepest: usize,
    merged: u64,
    root: &'a Node,
    side: Side,
    top: usize,
}

impl Drawing<'_> {
    /// Draws a node and its children. `left` is a share of the total time.
    fn draw(&mut self, node: &Node, left: f64, depth: usize) {
        let width = share(node.nanoseconds, self.root.nanoseconds);
        self.deepest = self.deepest.max(depth);
        let name = letters(&node.name);
        self.merged += node.smaller.branches;
        let plural = if node.count == 1 { "" } else { "s" };
        let unit = match self.side {
            Side::OffCpu | Side::Locks => "wait",
            Side::OnCpu => "sample",
        };
        let class = palette::class(node.class);
        let kernel = if node.class.is_kernel_wait() { " k" } else { "" };
        // Writing to a string does not fail.
        writeln!(
            self.out,
            "<svg class=\"f\" x=\"{:.4}%\" y=\"{}\" width=\"{:.4}%\" height=\"{}\"><title>{name}: {}, {}, {} {unit}{plural}\
             </title><rect class=\"{class}{kernel}\" width=\"100%\" height=\"100%\" rx=\"2\"/><text x=\"4\" y=\"14\">{name}\
             </text></svg>",
            left * 100.0,
            self.top + depth * ROW,
            width * 100.0,
            ROW - 1,
            time(node.nanoseconds),
            percent(node.nanoseconds, self.root.nanoseconds),
            node.count,
        )
        .ok();
        let mut left = left;
        for child in &node.children {
            self.draw(child, left, depth + 1);
            left += share(child.nanoseconds, self.root.nanoseconds);
        }
    }
}

/// Returns a picture that loads nothing else.
pub(super) fn standalone(merged: &Merged) -> String {
    const MARGIN: usize = 12;
    const LEGEND_COLUMNS: usize = 4;
    let legend = legend(merged);
    let legend_top = 76;
    let top = legend_top + legend.len().div_ceil(LEGEND_COLUMNS) * ROW + 8;
    let root = tree(merged);
    let picture = picture(&root, merged.side, top);
    let note = if picture.merged > 0 { ROW } else { 0 };
    let height = top + picture.height + note + MARGIN;
    let title = escape(&format!("{} {}", tree::title(merged), merged.side.name()));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"podperf\" width=\"1200\" height=\"{height}\">\n\
         <title>{title}</title>\n<style>{STYLE}{}svg.podperf{{width:100%}}</style>\n\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"h\" x=\"{MARGIN}\" y=\"24\">{title}</text>\n<text x=\"{MARGIN}\" y=\"44\">{}</text>\n",
        palette::rules(),
        escape(&caption(merged)),
    );
    if let Some(says) = coverage::sentence(merged) {
        // Writing to a string does not fail.
        writeln!(svg, "<text x=\"{MARGIN}\" y=\"64\">{says}</text>").ok();
    }
    if picture.merged > 0 {
        let says = merging(picture.merged);
        // Writing to a string does not fail.
        writeln!(svg, "<text x=\"{MARGIN}\" y=\"{}\">{says}</text>", height - MARGIN).ok();
    }
    for (at, (name, class, nanoseconds)) in legend.into_iter().enumerate() {
        let (column, y) = (at % LEGEND_COLUMNS * 100 / LEGEND_COLUMNS, legend_top + at / LEGEND_COLUMNS * ROW);
        // Writing to a string does not fail.
        writeln!(
            svg,
            "<svg x=\"{column}%\" y=\"{y}\" width=\"25%\" height=\"{ROW}\"><rect class=\"{}\" x=\"{MARGIN}\" y=\"3\" \
             width=\"14\" height=\"14\" rx=\"2\"/><text x=\"{}\" y=\"14\">{name} {}</text></svg>",
            palette::class(class),
            MARGIN + 20,
            percent(nanoseconds, root.nanoseconds),
        )
        .ok();
    }
    svg.push_str(&picture.frames);
    // The script has no `]]>`.
    svg.push_str("<script><![CDATA[\n");
    svg.push_str(SCRIPT);
    svg.push_str("]]></script>\n</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::model::wait::WaitReason;

    #[test]
    fn widths_are_shares_and_callees_lie_within_their_caller() {
        let merged = recording(vec![
            wait(WaitReason::Disk, &[], &["read", "main"], 75),
            wait(WaitReason::Disk, &[], &["write", "main"], 25),
        ]);
        let picture = picture(&tree(&merged), Side::OffCpu, 0).frames;
        assert!(picture.contains("x=\"0.0000%\" y=\"60\" width=\"75.0000%\""), "{picture}");
        assert!(picture.contains("x=\"75.0000%\" y=\"60\" width=\"25.0000%\""), "{picture}");
        assert!(picture.contains("<title>write: 25 ns, 25 %, 1 wait</title><rect class=\"disk\""), "{picture}");
    }

    #[test]
    fn a_name_is_never_more_than_text() {
        let svg = standalone(&recording_of(HOSTILE, vec![wait(WaitReason::Disk, &[HOSTILE], &[HOSTILE], 1)]));
        assert_eq!((svg.matches("<script>").count(), svg.matches("]]>").count()), (1, 1), "{svg}");
        assert!(svg.contains("&lt;script&gt;") && !SCRIPT.contains("]]>"), "{svg}");
    }

    /// A character that XML does not allow would make the whole picture invalid.
    #[test]
    fn whatever_the_times_are_the_picture_is_xml() {
        let waits = [1, 999, 1_000_000, 5_000_000_000].map(|ns| wait(WaitReason::Disk, &[], &[&format!("f{ns}")], ns));
        let waits = waits.into_iter().chain([wait(WaitReason::Pipe, &[], &["<&>"], 5_000_000_000)]).collect();
        let svg = standalone(&recording(waits));
        let (picture, script) = svg.split_once("<script>").unwrap();
        let is_tag = |rest: &str| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '/');
        assert!(picture.split('<').skip(1).all(is_tag), "{picture}");
        let is_entity = |rest: &str| ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|name| rest.starts_with(name));
        assert!(picture.split('&').skip(1).all(is_entity), "{picture}");
        assert!(script.ends_with("]]></script>\n</svg>\n"), "{script}");
    }

    #[test]
    fn a_picture_has_an_end() {
        // Each frame is wide enough to be visible, but together they are too many.
        let samples = (0..500).map(|stack| {
            let names: Vec<String> = (0..60).map(|depth| format!("f{stack}_{depth}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            wait(WaitReason::Disk, &[], &names, 10)
        });
        let picture = picture(&tree(&recording(samples.collect())), Side::OffCpu, 0);
        assert_eq!(picture.frames.lines().count(), MOST_FRAMES);
    }

    #[test]
    fn what_is_too_narrow_is_one_frame_and_said() {
        let long = "x".repeat(5000);
        let names: Vec<String> = (0..999).map(|number| format!("thin_{number}")).collect();
        let mut samples = vec![wait(WaitReason::Disk, &[], &[&long, "main"], 99_001)];
        samples.extend(names.iter().map(|name| wait(WaitReason::Disk, &[], &[name, "main"], 1)));
        let merged = recording(samples);
        let svg = standalone(&merged);
        assert!(svg.contains("<title>(999 smaller): 999 ns, 1.0 %, 999 waits</title>"), "{svg}");
        assert!(svg.contains("999 branches are merged into frames named (N smaller): narrower than 0.05 %"), "{svg}");
        let length = svg.len() - SCRIPT.len();
        assert!(svg.contains("xxx…") && length < 12_000, "{length}");
        let page = crate::export::flamegraph::page(&merged, &crate::export::flamegraph::Links::default());
        assert!(page.contains("999 branches are merged into frames named (N smaller)"), "{page}");
    }

    #[test]
    fn the_legend_has_the_longest_first() {
        let merged = recording(vec![
            wait(WaitReason::Disk, &[], &["main"], 3),
            wait(WaitReason::Pipe, &[], &["main"], 5),
            wait(WaitReason::Disk, &[], &["start"], 4),
        ]);
        let legend: Vec<_> = legend(&merged).into_iter().map(|(name, _, sum)| (name, sum)).collect();
        assert_eq!(legend, [("disk", 7), ("pipe", 5)]);
    }
}
