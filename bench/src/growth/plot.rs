//! The growth of the cost as a picture: two panels of lines in SVG, which is simple enough to write by hand.

use std::fmt::Write as _;

use podperf_tests::load::ring::Spread;

use super::{
    Growth,
    watch::{SIX, Watcher},
};

const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 50.0;
const GAP: f64 = 80.0;
const BOTTOM: f64 = 110.0;
const STEPS: u32 = 5;

/// One line of a panel.
struct Line {
    title: String,
    color: &'static str,
    /// The position from the left, 0 to 1, and the ns per hop.
    points: Vec<(f64, Spread)>,
}

/// One panel.
struct Panel {
    title: String,
    /// The labels below the axis: the position, 0 to 1, and the text.
    marks: Vec<(f64, String)>,
    lines: Vec<Line>,
}

/// Returns the whole picture.
pub fn svg(growth: &Growth) -> String {
    let (width, height) = (2.0f64.mul_add(WIDTH, LEFT + GAP + 20.0), TOP + HEIGHT + BOTTOM);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    draw(&mut text, LEFT, &over_events(growth));
    draw(&mut text, LEFT + WIDTH + GAP, &over_cgroups(growth));
    text.push_str("</svg>\n");
    text
}

fn over_events(growth: &Growth) -> Panel {
    let few = growth.cgroup_counts.first().copied().unwrap_or(0);
    let most = growth.event_counts.last().copied().unwrap_or(1);
    let line = |title: &str, color, watcher: fn(usize) -> Watcher| {
        let point = |count: &usize| Some((part(*count, most), growth.cell(watcher(*count), few)?.extra_ns()?));
        Line { title: title.to_owned(), color, points: growth.event_counts.iter().filter_map(point).collect() }
    };
    let facts = growth.cell(Watcher::Facts, few).and_then(super::Cell::extra_ns);
    Panel {
        title: format!("extra CPU ns per hop, over events ({few} cgroups)"),
        marks: growth.event_counts.iter().map(|count| (part(*count, most), count.to_string())).collect(),
        lines: vec![
            line("perf's BPF counters", "#c0392b", Watcher::Perf),
            line("podperf: perf counters", "#2471a3", Watcher::Events),
            Line {
                title: "podperf: facts and times (task fields)".to_owned(),
                color: "#1e8449",
                points: facts.map(|facts| vec![(0.0, facts), (1.0, facts)]).unwrap_or_default(),
            },
        ],
    }
}

fn over_cgroups(growth: &Growth) -> Panel {
    let last = growth.cgroup_counts.len().saturating_sub(1).max(1);
    let counts = || growth.cgroup_counts.iter().enumerate().map(|(index, count)| (part(index, last), *count));
    let line = |title: String, color, watcher: Watcher| Line {
        title,
        color,
        points: counts().filter_map(|(x, count)| Some((x, growth.cell(watcher, count)?.extra_ns()?))).collect(),
    };
    Panel {
        title: "extra CPU ns per hop, over cgroups".to_owned(),
        marks: counts().map(|(x, count)| (x, count.to_string())).collect(),
        lines: vec![
            line(format!("perf's BPF counters, {SIX} events"), "#c0392b", Watcher::Perf(SIX)),
            line(format!("podperf: {SIX} perf counters"), "#2471a3", Watcher::Events(SIX)),
            line("podperf: facts and times (task fields)".to_owned(), "#1e8449", Watcher::Facts),
        ],
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn part(of: usize, whole: usize) -> f64 {
    of as f64 / whole.max(1) as f64
}

fn draw(text: &mut String, left: f64, panel: &Panel) {
    let spreads = || panel.lines.iter().flat_map(|line| &line.points).map(|(_, spread)| spread);
    let top = round_up(spreads().map(|spread| spread.max).fold(0.0, f64::max));
    let at_x = |x: f64| WIDTH.mul_add(x, left);
    let at_y = |ns: f64| HEIGHT.mul_add(1.0 - ns.max(0.0) / top, TOP);
    let _ = writeln!(text, "<text x=\"{left:.0}\" y=\"{:.0}\" font-size=\"14\">{}</text>", TOP - 20.0, panel.title);
    for step in 0..=STEPS {
        let ns = top * f64::from(step) / f64::from(STEPS);
        let (y, right) = (at_y(ns), left + WIDTH);
        let _ = writeln!(
            text,
            "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{ns:.0}</text>",
            left - 6.0,
            y + 4.0
        );
    }
    for (x, mark) in &panel.marks {
        let (x, y) = (at_x(*x), TOP + HEIGHT + 18.0);
        let _ = writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{mark}</text>");
    }
    for (index, line) in panel.lines.iter().enumerate() {
        let color = line.color;
        let points: Vec<String> =
            line.points.iter().map(|(x, ns)| format!("{:.1},{:.1}", at_x(*x), at_y(ns.median))).collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        for (x, ns) in &line.points {
            let (x, least, most, middle) = (at_x(*x), at_y(ns.min), at_y(ns.max), at_y(ns.median));
            let _ = writeln!(
                text,
                "<path d=\"M{x:.1} {least:.1}V{most:.1}\" stroke=\"{color}\" opacity=\"0.5\"/>\n\
                 <circle cx=\"{x:.1}\" cy=\"{middle:.1}\" r=\"3\" fill=\"{color}\"/>"
            );
        }
        let y = f64::from(u8::try_from(index).unwrap_or(0)).mul_add(18.0, TOP + HEIGHT + 45.0);
        let _ = writeln!(
            text,
            "<path d=\"M{left:.1} {:.1}h20\" stroke=\"{color}\" stroke-width=\"2\"/>\n\
             <text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            y - 4.0,
            left + 28.0,
            line.title
        );
    }
}

/// Returns the smallest of 1, 2, 5, 10, 20 ... that is not less than the value.
fn round_up(value: f64) -> f64 {
    let mut top = 1.0;
    for factor in [2.0, 2.5, 2.0].into_iter().cycle() {
        if top >= value || top > 1e12 {
            break;
        }
        top *= factor;
    }
    top
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number() {
        for (value, top) in [(0.0, 1.0), (1.0, 1.0), (3.0, 5.0), (173.0, 200.0), (1_400.0, 2_000.0)] {
            assert!((round_up(value) - top).abs() < 1e-9, "{value}");
        }
    }
}
