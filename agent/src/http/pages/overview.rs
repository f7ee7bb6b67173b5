//! The start page: the time of each pod and cgroup on and off the CPU, the reasons of its waits, and its IPC. Pure but
//! for [`answer`].

use crate::model::facts::Fact;
use std::{collections::HashMap, fmt::Write, sync::Arc, time::Duration};

use axum::{
    http::{StatusCode, Uri},
    response::Response,
};

use super::{
    modes::Shown,
    profile::{self, Query, address},
};
use crate::export::{
    drawing::{Drawing, DrawingKey, Drawn},
    flamegraph::{STYLE, escape, frame_style, policy, real},
};
use crate::{
    agent::Agent,
    attribution::Row,
    collector::Observation,
    kernel::OpenCounter,
    model::{
        usage::Usage,
        wait::{Unwind, WaitReason, WaitState},
    },
    recording::{Coverage, Selector, Side, SubjectName},
    stacks::profile::{Activity, Profile},
};

/// The number of rows that are shown by default: browsers become slow with more.
const ROWS: usize = 300;
/// The largest number of rows that are shown if a browser asks for all.
const MOST_ROWS: usize = 2000;

/// The columns that rows can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Name,
    OnCpu,
    OffCpu,
    State(WaitState),
    Ipc,
}

/// A row of the page, with times as shares of one thread's time.
#[derive(Clone, Debug)]
struct Line {
    name: String,
    /// `None` if there is no profile of this row alone, or no profile at all.
    selector: Option<Selector>,
    oncpu: f64,
    offcpu: [f64; WaitState::ALL.len()],
    ipc: Option<f64>,
    reason: Option<(WaitReason, f64)>,
    /// The share of the waiting time whose stacks reach the outermost function; `None` without such time.
    whole: Option<f64>,
}

/// The waits of a row in the last windows.
#[derive(Debug, Default)]
struct Waits {
    /// The time in nanoseconds, by reason.
    reasons: HashMap<WaitReason, u64>,
    coverage: Coverage,
}

impl Column {
    /// All columns, in the order of the page.
    const ALL: [Self; 8] = [
        Self::Name,
        Self::OnCpu,
        Self::State(WaitState::RunQueue),
        Self::State(WaitState::Throttled),
        Self::OffCpu,
        Self::State(WaitState::Interruptible),
        Self::State(WaitState::Uninterruptible),
        Self::Ipc,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::OnCpu => "on-cpu",
            Self::OffCpu => "off-cpu",
            Self::State(state) => state.name(),
            Self::Ipc => "ipc",
        }
    }

    const fn heading(self) -> &'static str {
        match self {
            Self::Name => "pod or cgroup",
            Self::OnCpu => "on CPU",
            Self::State(WaitState::RunQueue) => "run queue",
            Self::OffCpu => "off CPU",
            Self::State(state) => state.name(),
            Self::Ipc => "IPC",
        }
    }

    fn value(self, line: &Line) -> Option<f64> {
        match self {
            Self::Name => None,
            Self::OnCpu => Some(line.oncpu),
            Self::OffCpu => Some(line.offcpu.iter().sum()),
            Self::State(state) => Some(line.offcpu[state as usize]),
            Self::Ipc => line.ipc,
        }
    }

    /// Sorts the highest value first. For the IPC the lowest value comes first, since a low IPC is the problem.
    fn sort(self, lines: &mut [Line]) {
        let key = |line: &Line| self.value(line).map(|value| if self == Self::Ipc { value } else { -value });
        lines.sort_by(|a, b| {
            let by_value = match (key(a), key(b)) {
                (Some(a), Some(b)) => a.total_cmp(&b),
                (a, b) => b.is_some().cmp(&a.is_some()),
            };
            by_value.then_with(|| a.name.cmp(&b.name))
        });
    }
}

/// Returns the page with the current values.
pub(in crate::http) async fn answer(agent: &Agent, uri: &Uri) -> Response {
    let query = Query::of(uri);
    let wanted = query.get("sort").unwrap_or("off-cpu");
    let sort = Column::ALL.into_iter().find(|column| column.name() == wanted).unwrap_or(Column::OffCpu);
    let most = if query.get("all").is_some() { MOST_ROWS } else { ROWS };
    let (now, before, over) = match agent.lately().await {
        Ok(lately) => lately,
        Err(error) => return profile::refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    };
    let (reading, rows, node) = (now.readings, now.snapshot.rows.len(), agent.node_name.clone());
    let what = Drawing::Overview { reading, sort: sort.name(), rows, most };
    let shown = Shown { mode: agent.mode(), runner: agent.runner() };
    let draw = move |windows: &[Arc<Profile>]| {
        let mut lines = lines(&now, before.as_deref(), over, &waits(windows));
        if !shown.has_flame_graphs() {
            lines.iter_mut().for_each(|line| line.selector = None);
        }
        sort.sort(&mut lines);
        let nonce = profile::nonce();
        Drawn { body: page(&node, &lines, sort, most, over, shown, &nonce).into_bytes(), nonce: Some(nonce) }
    };
    match agent.drawer().draw_windows(agent.windows(), DrawingKey { what, selector: Selector::All }, draw).await {
        Ok(drawn) => profile::html(drawn.body(), drawn.nonce().unwrap_or_default()),
        Err(error) => profile::failed(&error),
    }
}

fn lines(now: &Observation, before: Option<&Observation>, over: Duration, waits: &HashMap<String, Waits>) -> Vec<Line> {
    let before: HashMap<&Row, &Usage> =
        before.iter().flat_map(|it| &it.snapshot.rows).map(|row| (&row.row, &row.usage)).collect();
    let over_ns = over.as_secs_f64().max(0.001) * 1e9;
    let rows = now.snapshot.rows.iter().map(|row| {
        let nothing = Usage::default();
        let then = before.get(&row.row).copied().unwrap_or(&nothing);
        let share = |fact| growth(row.usage.facts[fact], then.facts[fact]) / over_ns;
        let mut offcpu = [0.0; WaitState::ALL.len()];
        for (share_of, state) in offcpu.iter_mut().zip(WaitState::ALL) {
            *share_of = share(Fact::off_cpu(state));
        }
        let selector = Selector::from(&row.row);
        let is_alone = !row.row.is_pods_own();
        let name = if is_alone { selector.to_string() } else { format!("{selector} (outside its containers)") };
        let selector = is_alone.then_some(selector);
        Line {
            oncpu: share(Fact::ON_CPU),
            offcpu,
            ipc: ipc(&now.counters, &row.usage, then),
            reason: waits.get(&name).and_then(most),
            whole: waits.get(&name).and_then(whole),
            name,
            selector,
        }
    });
    rows.collect()
}

fn growth(now: u128, then: u128) -> f64 {
    real(u64::try_from(now.saturating_sub(then)).unwrap_or(u64::MAX))
}

/// Returns instructions per cycle; `None` unless both events were counted.
fn ipc(counters: &Arc<[OpenCounter]>, now: &Usage, then: &Usage) -> Option<f64> {
    let count = |name: &str| {
        let open = counters.iter().find(|open| open.counter.name == name && open.state.is_counted())?;
        let at = |usage: &Usage| usage.counts.get(open.slot?).copied();
        Some(growth(at(now)?, at(then).unwrap_or(0)))
    };
    let (instructions, cycles) = (count("instructions")?, count("cycles")?);
    (cycles > 0.0).then(|| instructions / cycles)
}

/// Returns the waits of the windows, by the names of containers, pods and cgroups.
fn waits(windows: &[Arc<Profile>]) -> HashMap<String, Waits> {
    let mut waits = HashMap::<String, Waits>::new();
    for subject in windows.iter().flat_map(|window| &window.subjects) {
        let name = SubjectName::from(&subject.subject);
        let pod = match &name {
            SubjectName::Container { namespace, pod, .. } => Some(format!("{namespace}/{pod}")),
            SubjectName::Cgroup(_) => None,
        };
        for name in [Some(name.to_string()), pod].into_iter().flatten() {
            let sums = waits.entry(name).or_default();
            for sample in &subject.samples {
                if let Activity::OffCpu { reason, .. } = &sample.activity {
                    *sums.reasons.entry(*reason).or_default() += sample.nanoseconds;
                    sums.coverage.add(&sample.stack, &sample.activity, sample.nanoseconds);
                }
            }
        }
    }
    waits
}

/// Returns the most frequent reason and its share.
fn most(waits: &Waits) -> Option<(WaitReason, f64)> {
    let whole: u64 = waits.reasons.values().sum();
    let (reason, sum) = waits.reasons.iter().max_by_key(|(reason, sum)| (**sum, reason.name()))?;
    (whole > 0).then(|| (*reason, real(*sum) / real(whole)))
}

/// Returns the share of the time whose stacks reach the outermost function, of the time with user stacks or without any.
fn whole(waits: &Waits) -> Option<f64> {
    let of = |end| waits.coverage.of(end);
    let total = waits.coverage.total() - waits.coverage.kernel_only;
    (total > 0).then(|| real(of(Unwind::Whole) + of(Unwind::Guessed)) / real(total))
}

fn page(node: &str, lines: &[Line], sort: Column, most: usize, over: Duration, shown: Shown, nonce: &str) -> String {
    let node = escape(node);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{node} - podperf</title>\n\
         <style nonce=\"{nonce}\">{}{STYLE}</style>\n</head>\n<body>\n<h1>{node}</h1>\n\
         {}<p>Pods and cgroups of this node, over the last {:.0} s. 100 % is one CPU, or one thread that waits, all the \
         time.{}</p>\n\
         <nav>{}<a href=\"/status\">State of the agent</a><a href=\"/metrics\">Metrics</a></nav>\n",
        policy(nonce),
        frame_style(),
        shown.line(),
        over.as_secs_f64(),
        shown.about_links(),
        shown.link_to_all(),
    );
    let columns: Vec<Column> = Column::ALL
        .into_iter()
        .filter(|column| *column != Column::Ipc || lines.iter().any(|line| line.ipc.is_some()))
        .collect();
    sorting(&mut html, &columns, sort);
    html.push_str("<table class=\"rows\"><thead><tr>");
    for column in &columns {
        let class = if *column == Column::Name { "" } else { " class=\"n\"" };
        let arrow = if *column == sort { " aria-sort=\"descending\"" } else { "" };
        let (name, heading) = (column.name(), column.heading());
        // Writing to a string does not fail.
        write!(html, "<th{class}{arrow}><a href=\"/?sort={name}\">{heading}</a></th>").ok();
    }
    html.push_str("<th>mostly for</th><th class=\"n\">whole stacks</th></tr></thead><tbody>\n");
    for line in lines.iter().take(most) {
        row(&mut html, line, &columns);
    }
    html.push_str("</tbody></table>\n");
    if lines.len() > most {
        let (rest, sort) = (lines.len() - most, sort.name());
        if most < MOST_ROWS {
            writeln!(html, "<p><a href=\"/?sort={sort}&amp;all=1\">And {rest} more</a></p>")
        } else {
            writeln!(html, "<p>And {rest} more, which are in the <a href=\"/metrics\">metrics</a> only</p>")
        }
        .ok();
    }
    html.push_str("</body>\n</html>\n");
    html
}

/// Writes the links that sort the rows, for narrow screens, where the table has no head.
fn sorting(html: &mut String, columns: &[Column], sort: Column) {
    html.push_str("<nav class=\"sorting soft\">Sorted by");
    for column in columns {
        let (name, heading) = (column.name(), column.heading());
        if *column == sort {
            write!(html, "<a aria-current=\"page\">{heading}</a>")
        } else {
            write!(html, "<a href=\"/?sort={name}\">{heading}</a>")
        }
        .ok();
    }
    html.push_str("</nav>\n");
}

fn row(html: &mut String, line: &Line, columns: &[Column]) {
    let linked = |side, text: &str| match &line.selector {
        Some(selector) => format!("<a href=\"{}\">{text}</a>", escape(&address(selector, side, None))),
        None => text.to_owned(),
    };
    html.push_str("<tr>");
    for column in columns {
        let heading = column.heading();
        match column {
            Column::Name => write!(html, "<td>{}</td>", linked(Side::OffCpu, &escape(&line.name))),
            Column::OnCpu => {
                let value = linked(Side::OnCpu, &percent(line.oncpu));
                write!(html, "<td class=\"n\" data-n=\"{heading}\">{value}</td>")
            }
            Column::Ipc => {
                let ipc = line.ipc.map_or_else(|| "-".into(), |ipc| format!("{ipc:.2}"));
                write!(html, "<td class=\"n\" data-n=\"{heading}\">{ipc}</td>")
            }
            column => {
                let value = percent(column.value(line).unwrap_or_default());
                write!(html, "<td class=\"n\" data-n=\"{heading}\">{value}</td>")
            }
        }
        .ok();
    }
    let reason = line.reason.map_or_else(
        || "-".into(),
        |(reason, share)| format!("<i class=\"{0}\"></i>{0} {1:.0} %", reason.name(), share * 100.0),
    );
    let whole = line.whole.map_or_else(|| "-".into(), percent);
    writeln!(html, "<td data-n=\"mostly for\">{reason}</td><td class=\"n\" data-n=\"whole stacks\">{whole}</td></tr>")
        .ok();
}

/// Formats a share of one thread's time.
fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0".into(),
        percent if percent < 0.1 => "&lt;0.1 %".into(),
        percent if percent < 9.95 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Runner, model::mode::Mode};

    fn line(path: &str, oncpu: f64, waits: f64, ipc: Option<f64>) -> Line {
        Line {
            name: path.into(),
            selector: Some(Selector::One(SubjectName::Cgroup(path.into()))),
            oncpu,
            offcpu: [waits, 0.0, 0.0, 0.0],
            ipc,
            reason: Some((WaitReason::Disk, 0.5)),
            whole: Some(0.25),
        }
    }

    const ALL: Shown = Shown { mode: Mode::Profiles, runner: Runner::Chart };

    fn draw(lines: &[Line]) -> String {
        page("node-1", lines, Column::OffCpu, ROWS, Duration::from_secs(30), ALL, "n")
    }

    #[test]
    fn the_most_waiting_come_first_and_the_least_ipc() {
        let mut lines = [line("/a", 1.0, 0.2, Some(2.0)), line("/b", 0.5, 3.0, None), line("/c", 0.1, 0.2, Some(0.5))];
        let sorted = |column: Column, lines: &mut [Line]| -> Vec<String> {
            column.sort(lines);
            lines.iter().map(|line| line.name.clone()).collect()
        };
        assert_eq!(sorted(Column::OffCpu, &mut lines), ["/b", "/a", "/c"]);
        assert_eq!(sorted(Column::OnCpu, &mut lines), ["/a", "/b", "/c"]);
        assert_eq!(sorted(Column::Ipc, &mut lines), ["/c", "/a", "/b"]);
        assert_eq!(sorted(Column::Name, &mut lines), ["/a", "/b", "/c"]);
    }

    #[test]
    fn a_name_is_never_more_than_text() {
        let page = draw(&[line("/<script>alert('1')</script>\"&", 1.0, 1.0, None)]);
        assert!(!page.contains("<script") && page.contains("/&lt;script&gt;alert(&#39;1&#39;)"), "{page}");
        assert!(
            page.contains("subject=%2F%3Cscript%3Ealert%28%271%27%29%3C%2Fscript%3E%22%26&amp;activity=off-cpu"),
            "{page}"
        );
    }

    #[test]
    fn without_counters_there_is_no_column_for_them() {
        assert!(!draw(&[line("/a", 1.0, 1.0, None)]).contains("IPC"));
        assert!(draw(&[line("/a", 1.0, 1.0, Some(1.25))]).contains("<td class=\"n\" data-n=\"IPC\">1.25</td>"));
    }

    #[test]
    fn without_stacks_no_link_leads_to_a_flame_graph() {
        let shown = Shown { mode: Mode::Metrics, runner: Runner::Chart };
        let lines = [Line { selector: None, ..line("/a", 1.0, 1.0, None) }];
        let page = super::page("node-1", &lines, Column::OffCpu, ROWS, Duration::from_secs(30), shown, "n");
        assert!(!page.contains("/flamegraph") && !page.contains("A name leads"), "{page}");
        assert!(page.contains("<code>mode: reasons</code>") && page.contains("<td>/a</td>"), "{page}");
    }

    #[test]
    fn many_rows_are_cut_and_said() {
        let lines: Vec<_> = (0..ROWS + 7).map(|at| line(&format!("/{at}"), 0.0, 0.0, None)).collect();
        let page = draw(&lines);
        assert_eq!(page.matches("<tr><td>").count(), ROWS);
        assert!(page.contains("And 7 more</a>") && page.contains("data-n=\"whole stacks\">25 %</td>"), "{page}");
        // The page with all rows has a bounded length, too.
        let lines: Vec<_> = (0..MOST_ROWS + 7).map(|at| line(&format!("/{at}"), 0.0, 0.0, None)).collect();
        let page = super::page("node-1", &lines, Column::OffCpu, MOST_ROWS, Duration::from_secs(30), ALL, "n");
        assert_eq!(page.matches("<tr><td>").count(), MOST_ROWS);
        assert!(page.contains("And 7 more, which") && !page.contains("all=1"), "{page}");
    }
}
