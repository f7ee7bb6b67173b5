//! The start page as HTML. Pure.

use std::{collections::BTreeSet, fmt::Write, time::Duration};

use super::{
    super::{
        modes::Shown,
        profile::address,
        told::{self, number},
    },
    LONGEST_TEXT, MOST_ROWS, View,
    lines::{Column, Line},
    policy,
};
use crate::{
    export::flamegraph::{IDLE, STYLE, UNCLEAR, escape, frame_style, stack_shares},
    model::wait::WaitReason,
    recording::Side,
};

/// The style sheet of the list, for wide screens and for phones.
const LIST: &str = include_str!("style.css");
/// The most things that a row says it waits for.
const MOST_PARTS: usize = 3;
/// The number of threads from which on a row says what they wait for.
const LEAST: f64 = 0.05;
/// The most namespaces to choose from.
const MOST_NAMESPACES: usize = 500;

/// Returns the page. In a cluster the rows of the node itself are folded below those of the pods.
pub(super) fn page(node: &str, mut lines: Vec<Line>, view: &View, over: Duration, shown: Shown, nonce: &str) -> String {
    let mut html = String::new();
    head(&mut html, &escape(node), over, shown, nonce);
    let namespaces: BTreeSet<String> = lines.iter().filter_map(|line| line.namespace.clone()).collect();
    let columns: Vec<Column> = Column::ALL.into_iter().filter(|column| column.is_shown(&lines)).collect();
    lines.retain(|line| view.has(line));
    view.sort.sort(&mut lines);
    let in_cluster = !namespaces.is_empty();
    let (mut first, mut nodes): (Vec<Line>, Vec<Line>) =
        lines.into_iter().partition(|line| !in_cluster || line.namespace.is_some());
    let all = first.len() + nodes.len();
    first.truncate(view.most());
    nodes.truncate(view.most() - first.len());
    form(&mut html, &namespaces, view);
    sorting(&mut html, &columns, view);
    if all == 0 {
        html.push_str("<p>No pod or cgroup has this name.</p>\n");
    }
    if !first.is_empty() {
        table(&mut html, &first, &columns, view);
    }
    if !nodes.is_empty() {
        let trouble = number(nodes.iter().map(|line| line.trouble).sum());
        // A reader who looks for a name wants to see where it is.
        let open = if view.text.is_some() { " open" } else { "" };
        let (count, plural) = (nodes.len(), if nodes.len() == 1 { "" } else { "s" });
        // Writing to a string does not fail.
        let says = format!("{count} row{plural}, {trouble} threads in trouble");
        writeln!(html, "<details{open}><summary>The node itself <span>{says}</span></summary>").ok();
        table(&mut html, &nodes, &columns, view);
        html.push_str("</details>\n");
    }
    more(&mut html, all - first.len() - nodes.len(), view);
    html.push_str("</main>\n</body>\n</html>\n");
    html
}

fn head(html: &mut String, node: &str, over: Duration, shown: Shown, nonce: &str) {
    let (over, class) = if over.is_zero() {
        (". There are no rates yet: load this page again in a moment".to_owned(), "")
    } else {
        (format!(" over the last {:.0} s", over.as_secs_f64()), " class=\"about\"")
    };
    write!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{node} - podperf</title>\n\
         <style nonce=\"{nonce}\">{}{STYLE}{LIST}</style>\n</head>\n<body>\n<main>\n<h1>{node}</h1>\n\
         {}<p{class}>Pods and cgroups of this node{over}. Numbers are threads on average; on the CPU they are \
         CPUs. <span class=\"soft\">Threads in trouble lost this time. Parked threads wait for something that did not \
         come.</span>{}</p>\n\
         <nav>{}<a href=\"/status\">State of the agent</a><a href=\"/metrics\">Metrics</a></nav>\n",
        policy(nonce),
        frame_style(),
        shown.line(),
        shown.about_links(),
        shown.link_to_all(),
    )
    .ok();
}

/// Writes the form that filters the rows.
fn form(html: &mut String, namespaces: &BTreeSet<String>, view: &View) {
    write!(
        html,
        "<form class=\"filter\" action=\"/\"><input type=\"hidden\" name=\"sort\" value=\"{}\">",
        view.sort.name()
    )
    .ok();
    if !namespaces.is_empty() {
        html.push_str("<select name=\"namespace\" aria-label=\"Namespace\"><option value=\"\">All namespaces</option>");
        for name in namespaces.iter().take(MOST_NAMESPACES) {
            let chosen = if view.namespace.as_ref() == Some(name) { " selected" } else { "" };
            write!(html, "<option{chosen}>{}</option>", escape(name)).ok();
        }
        html.push_str("</select>");
    }
    writeln!(
        html,
        "<input type=\"search\" name=\"text\" value=\"{}\" maxlength=\"{LONGEST_TEXT}\" placeholder=\"Part of a name\" \
         aria-label=\"Part of a name\" autocomplete=\"off\" spellcheck=\"false\"><button>Show</button></form>",
        escape(view.text.as_deref().unwrap_or_default()),
    )
    .ok();
}

/// Returns the address of the same rows in another order.
fn sorted_by(sort: Column, view: &View) -> String {
    escape(&View { sort, ..view.clone() }.address())
}

/// Writes the links that sort the rows, for narrow screens, where the table has no head.
fn sorting(html: &mut String, columns: &[Column], view: &View) {
    html.push_str("<nav class=\"sorting soft\" aria-label=\"Order of the rows\">Sorted by");
    for column in columns {
        let heading = column.heading();
        if *column == view.sort {
            write!(html, "<a aria-current=\"page\">{heading}</a>")
        } else {
            write!(html, "<a href=\"{}\">{heading}</a>", sorted_by(*column, view))
        }
        .ok();
    }
    html.push_str("</nav>\n");
}

fn table(html: &mut String, lines: &[Line], columns: &[Column], view: &View) {
    html.push_str("<table class=\"rows\"><thead><tr>");
    for column in columns {
        let class = if *column == Column::Name { "" } else { " class=\"n\"" };
        let order = if column.is_ascending() { "ascending" } else { "descending" };
        let sorted = if *column == view.sort { format!(" aria-sort=\"{order}\"") } else { String::new() };
        let (link, heading) = (sorted_by(*column, view), column.heading());
        write!(html, "<th{class}{sorted}><a href=\"{link}\">{heading}</a></th>").ok();
        if *column == Column::Name {
            html.push_str("<th>mostly for</th>");
        }
    }
    html.push_str("<th class=\"n\">whole stacks</th></tr></thead><tbody>\n");
    for line in lines {
        row(html, line, columns);
    }
    html.push_str("</tbody></table>\n");
}

fn row(html: &mut String, line: &Line, columns: &[Column]) {
    let linked = |side, text: &str| match &line.selector {
        Some(selector) => format!("<a href=\"{}\">{text}</a>", escape(&address(selector, side, None))),
        None => text.to_owned(),
    };
    html.push_str("<tr>");
    for column in columns {
        let (heading, value) = (column.heading(), column.value(line));
        let text = match column {
            Column::Name => {
                write!(html, "<td>{}</td>", linked(Side::OffCpu, &escape(&line.name))).ok();
                waits(html, line);
                continue;
            }
            Column::OnCpu => linked(Side::OnCpu, &number(line.oncpu)),
            Column::Ipc => value.map_or_else(|| "-".into(), |ipc| format!("{ipc:.2}")),
            _ => number(value.unwrap_or_default()),
        };
        // A phone leaves out what says nothing.
        let class = if value.is_none_or(|value| value < 0.005) { "n z" } else { "n" };
        write!(html, "<td class=\"{class}\" data-n=\"{heading}\">{text}</td>").ok();
    }
    let Some(whole) = line.whole() else {
        html.push_str("<td class=\"n z\" data-n=\"whole stacks\">-</td></tr>\n");
        return;
    };
    let shares = escape(&stack_shares(&line.coverage, false).unwrap_or_default());
    let percent = whole * 100.0;
    writeln!(html, "<td class=\"n\" data-n=\"whole stacks\" title=\"{shares}\">{percent:.0} %</td></tr>").ok();
}

/// Writes what the threads of a row wait for, or the reason of its idleness.
fn waits(html: &mut String, line: &Line) {
    html.push_str("<td class=\"for\">");
    let holder = line.holder.as_ref().map(|(name, cpus)| (name.as_str(), *cpus));
    let mut told = false;
    for part in line.parts.iter().filter(|part| part.threads >= LEAST).take(MOST_PARTS) {
        let class = if part.sure { part.cause.colour().name() } else { UNCLEAR };
        let text = told::part(part, holder, !told);
        write!(html, "<span><i class=\"{class}\"></i>{text}</span>").ok();
        told = true;
    }
    if !told {
        let reason = line.idle_for.map_or("-", WaitReason::name);
        let colour = line.idle_for.map(|_| format!("<i class=\"{IDLE}\"></i>")).unwrap_or_default();
        write!(html, "<span class=\"soft\">{colour}{reason}</span>").ok();
    }
    html.push_str("</td>");
}

fn more(html: &mut String, rest: usize, view: &View) {
    if rest == 0 {
        return;
    }
    if view.all {
        writeln!(
            html,
            "<p>And {rest} more: a page has {MOST_ROWS} at most. Look for a part of their name, or in the \
             <a href=\"/metrics\">metrics</a>.</p>"
        )
    } else {
        let link = escape(&View { all: true, ..view.clone() }.address());
        writeln!(html, "<p><a href=\"{link}\">And {rest} more</a></p>")
    }
    .ok();
}

#[cfg(test)]
mod tests {
    use super::{super::ROWS, *};
    use crate::{
        config::Runner,
        model::{
            mode::Mode,
            wait::{Unwind, WaitState},
        },
        recording::{
            Cause, Coverage, Part, Selector, SubjectName,
            fixture::{stack, waits},
        },
        stacks::profile::Stack,
    };

    const ALL: Shown = Shown { mode: Mode::Profiles, runner: Runner::Chart };

    fn line(path: &str, oncpu: f64, waits: f64, ipc: Option<f64>) -> Line {
        Line {
            name: path.into(),
            pod: path.into(),
            namespace: path.split_once('/').map(|(namespace, _)| namespace.to_owned()).filter(|it| !it.is_empty()),
            selector: Some(Selector::One(SubjectName::Cgroup(path.into()))),
            oncpu,
            offcpu: [waits, 0.0, 0.0, 0.0],
            ipc,
            trouble: waits,
            parked: Some(0.0),
            parts: vec![Part { cause: Cause::Reason(WaitReason::Disk), sure: true, threads: waits }],
            holder: None,
            idle_for: None,
            coverage: coverage(),
        }
    }

    /// Returns the coverage of waits of which a quarter has whole stacks.
    fn coverage() -> Coverage {
        let (whole, wait) = (stack(&[], &["main"]), waits(WaitReason::Disk, 1.0));
        let mut coverage = Coverage::default();
        coverage.add(&whole, &wait.activity, 1);
        coverage.add(&Stack { unwind: Unwind::Cut, ..Stack::clone(&whole) }, &wait.activity, 3);
        coverage
    }

    fn view(sort: Column) -> View {
        View { sort, namespace: None, text: None, all: false }
    }

    fn draw(lines: Vec<Line>, view: &View) -> String {
        page("node-1", lines, view, Duration::from_secs(30), ALL, "n")
    }

    #[test]
    fn without_stacks_no_link_leads_to_a_flame_graph() {
        let shown = Shown { mode: Mode::Metrics, runner: Runner::Chart };
        let lines = vec![Line { selector: None, ..line("/a", 1.0, 1.0, None) }];
        let page = page("node-1", lines, &view(Column::Trouble), Duration::from_secs(30), shown, "n");
        assert!(!page.contains("/flamegraph") && !page.contains("A name leads"), "{page}");
        assert!(page.contains("<code>mode: reasons</code>") && page.contains("<td>/a</td>"), "{page}");
    }

    #[test]
    fn a_page_without_rates_says_so() {
        let page = page("node-1", vec![], &view(Column::Trouble), Duration::ZERO, ALL, "n");
        assert!(page.contains("of this node. There are no rates yet") && !page.contains("over the last"), "{page}");
    }

    #[test]
    fn the_most_come_first_and_the_least_ipc() {
        let mut lines = [line("/a", 1.0, 0.2, Some(2.0)), line("/b", 0.5, 3.0, None), line("/c", 0.1, 0.2, Some(0.5))];
        let sorted = |column: Column, lines: &mut [Line]| -> Vec<String> {
            column.sort(lines);
            lines.iter().map(|line| line.name.clone()).collect()
        };
        assert_eq!(sorted(Column::Trouble, &mut lines), ["/b", "/a", "/c"]);
        assert_eq!(sorted(Column::OnCpu, &mut lines), ["/a", "/b", "/c"]);
        assert_eq!(sorted(Column::Ipc, &mut lines), ["/c", "/a", "/b"]);
        assert_eq!(sorted(Column::Name, &mut lines), ["/a", "/b", "/c"]);
        // If two rows are in equal trouble, the one that may be in more comes first.
        lines[2].parts.push(Part { cause: Cause::Elsewhere, sure: false, threads: 1.0 });
        assert_eq!(sorted(Column::Trouble, &mut lines), ["/b", "/c", "/a"]);
    }

    #[test]
    fn the_sorted_column_is_marked_with_its_direction() {
        let lines = || vec![line("/a", 1.0, 1.0, Some(1.25))];
        for (column, heading, order) in [
            (Column::Trouble, "in trouble", "descending"),
            (Column::Ipc, "IPC", "ascending"),
            (Column::Name, "pod or cgroup", "ascending"),
        ] {
            let page = draw(lines(), &view(column));
            assert_eq!(page.matches("aria-sort=\"").count(), 1, "{page}");
            let sorted = page.split("aria-sort=\"").nth(1).unwrap();
            assert!(sorted.starts_with(order) && sorted.split("</a>").next().unwrap().ends_with(heading), "{sorted}");
        }
        assert!(LIST.contains("th[aria-sort=ascending] a::after") && LIST.contains("th[aria-sort] a::after"));
    }

    #[test]
    fn a_name_is_never_more_than_text() {
        let hostile = "</<script>alert('1')</script>\"&";
        let mut other = line(hostile, 1.0, 1.0, None);
        other.holder = Some((hostile.into(), 1.0));
        other.parts.push(Part { cause: Cause::Peer(hostile.into()), sure: false, threads: 1.0 });
        other.parts.push(Part { cause: Cause::Reason(WaitReason::RunQueue), sure: true, threads: 1.0 });
        other.namespace = Some(hostile.into());
        let view = View { namespace: Some(hostile.into()), text: Some("script".into()), ..view(Column::Trouble) };
        let page = draw(vec![other], &view);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;alert(&#39;1&#39;)"), "{page}");
        assert!(page.contains("%3Cscript%3Ealert%28%271%27%29%3C%2Fscript%3E%22%26&amp;activity=off-cpu"), "{page}");
    }

    #[test]
    fn without_counters_and_profiles_there_are_no_columns_for_them() {
        let mut without = line("/a", 1.0, 1.0, None);
        without.parked = None;
        let page = draw(vec![without], &view(Column::Trouble));
        assert!(!page.contains("IPC") && !page.contains(">parked<"), "{page}");
        let with = draw(vec![line("/a", 1.0, 1.0, Some(1.25))], &view(Column::Trouble));
        assert!(with.contains("<td class=\"n\" data-n=\"IPC\">1.25</td>") && with.contains(">parked</a>"), "{with}");
    }

    #[test]
    fn parked_threads_are_not_off_the_cpu_and_numbers_are_threads() {
        let mut pool = line("/pool", 0.0, 61.0, None);
        (pool.parked, pool.offcpu[WaitState::RunQueue as usize]) = (Some(60.0), 1.3);
        let page = draw(vec![pool], &view(Column::Trouble));
        assert!(page.contains("data-n=\"off CPU\">2.3</td>") && page.contains("data-n=\"parked\">60</td>"), "{page}");
        assert!(page.contains("<i class=\"disk\"></i>61 threads for storage</span>"), "{page}");
        assert!(page.contains("<td class=\"n z\" data-n=\"throttled\">0</td>"), "a phone leaves it out: {page}");
    }

    #[test]
    fn idleness_is_grey_and_what_may_be_idleness_has_its_own_colour() {
        let (mut unsure, mut idle) = (line("/a", 0.0, 2.0, None), line("/b", 0.0, 1.0, None));
        unsure.parts = vec![Part { cause: Cause::Peer("shop/b".into()), sure: false, threads: 2.0 }];
        (idle.parts, idle.idle_for) = (vec![], Some(WaitReason::Network));
        let page = draw(vec![unsure, idle], &view(Column::Trouble));
        assert!(page.contains("<i class=\"unclear\"></i>2.0 threads for shop/b, or for its next request"), "{page}");
        assert!(page.contains("<i class=\"idle\"></i>network</span>"), "{page}");
    }

    #[test]
    fn the_rows_of_the_node_are_folded_in_a_cluster_only() {
        let lines = || vec![line("/", 1.0, 9.0, None), line("shop/cart", 1.0, 1.0, None)];
        let page = draw(lines(), &view(Column::Trouble));
        let (pods, node) = page.split_once("<details><summary>The node itself <span>1 row, 9.0 threads").unwrap();
        assert!(pods.contains(">shop/cart</a>") && !pods.contains(">/</a>") && node.contains(">/</a>"), "{page}");
        let found = View { text: Some("/".into()), ..view(Column::Trouble) };
        assert!(draw(lines(), &found).contains("<details open>"));
        assert!(!draw(vec![line("/", 1.0, 9.0, None)], &view(Column::Trouble)).contains("<details"));
    }

    #[test]
    fn rows_are_found_by_namespace_and_text_in_every_order() {
        let names = ["shop/cart", "shop/Checkout", "batch/cart", "/"];
        let lines = || names.map(|name| line(name, 1.0, 1.0, None)).to_vec();
        let shown = |view: &View| {
            let page = draw(lines(), view);
            let names = page.split("<tr><td><a href=\"").skip(1);
            let name = |row: &str| row.split('>').nth(1).unwrap().split('<').next().unwrap().to_owned();
            names.map(name).collect::<Vec<_>>()
        };
        let of_shop = View { namespace: Some("shop".into()), ..view(Column::Name) };
        assert_eq!(shown(&of_shop), ["shop/Checkout", "shop/cart"]);
        assert_eq!(shown(&View { text: Some("CHECK".into()), ..of_shop.clone() }), ["shop/Checkout"]);
        assert_eq!(shown(&View { text: Some("cart".into()), ..view(Column::Name) }), ["batch/cart", "shop/cart"]);
        let page = draw(lines(), &of_shop);
        assert!(page.contains("<option selected>shop</option>") && page.contains("<option>batch</option>"), "{page}");
        assert!(page.contains("href=\"/?sort=trouble&amp;namespace=shop\">in trouble</a>"), "{page}");
        let nothing = View { text: Some("x".into()), ..view(Column::Name) };
        assert!(draw(lines(), &nothing).contains("No pod or cgroup has this name."));
    }

    #[test]
    fn many_rows_are_cut_and_said() {
        let lines = |count| (0..count).map(|at| line(&format!("/{at}"), 0.0, 0.0, None)).collect::<Vec<_>>();
        let page = draw(lines(ROWS + 7), &view(Column::Trouble));
        assert_eq!(page.matches("<tr><td>").count(), ROWS);
        assert!(page.contains("<a href=\"/?sort=trouble&amp;all=1\">And 7 more</a>"), "{page}");
        let says = "data-n=\"whole stacks\" title=\"25 % whole, 75 % incomplete (cut)\">25 %</td>";
        assert!(page.contains(says), "{page}");
        // The page with all rows has a bounded length, too.
        let page = draw(lines(MOST_ROWS + 7), &View { all: true, ..view(Column::Trouble) });
        assert_eq!(page.matches("<tr><td>").count(), MOST_ROWS);
        assert!(page.contains("And 7 more: a page has 2000 at most.") && !page.contains(">And 7 more</a>"), "{page}");
    }
}
