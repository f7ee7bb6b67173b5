//! The page of the agent's state: each sentence once, and what does not work first. Pure but for [`answer`].

use std::fmt::Write;

use axum::response::Response;

use super::profile::{html, nonce};
use crate::{
    export::flamegraph::{escape, head},
    kernel::OpenCounter,
    model::status::{Part, State},
};

/// Parts or events of one state that have the same sentence.
struct Row<'a> {
    names: Vec<&'a str>,
    state: &'static str,
    works: bool,
    detail: &'a str,
}

/// Returns the page of the parts and events, and of the holders of BPF programs with their programs.
pub(in crate::http) fn answer(
    node: &str,
    parts: &[Part],
    counters: &[OpenCounter],
    holders: &[(String, String)],
) -> Response {
    let nonce = nonce();
    html(page(node, parts, counters, holders, &nonce), &nonce)
}

fn page(node: &str, parts: &[Part], counters: &[OpenCounter], holders: &[(String, String)], nonce: &str) -> String {
    let title = format!("State of the agent on {node}");
    let ill = parts.iter().filter(|part| part.state != State::Healthy).count();
    let verdict = match ill {
        0 => "All parts work.".to_owned(),
        1 => "One part does not work, or only in part.".to_owned(),
        ill => format!("{ill} parts do not work, or only in part."),
    };
    let mut html = head(&title, nonce);
    // Writing to a string does not fail.
    write!(
        html,
        "<nav><a href=\"/\">All pods and cgroups</a><a href=\"/metrics\">Metrics</a></nav>\n<main>\n<h1>{}</h1>\n\
         <p>{verdict} <span class=\"soft\">podperf {}</span></p>\n",
        escape(&title),
        env!("CARGO_PKG_VERSION"),
    )
    .ok();
    let mut of_parts = rows(parts.iter().map(|it| (it.part, it.state.name(), it.state == State::Healthy, &*it.detail)));
    // The order is stable, so parts that work, and those that do not, stay in the order of their names.
    of_parts.sort_by_key(|row| row.works);
    let of_events = rows(counters.iter().map(|open| {
        let (name, detail) = (&*open.counter.name, &*open.detail);
        (name, open.state.name(), open.state.is_counted(), detail)
    }));
    let mut said = Vec::new();
    table(&mut html, "part", &of_parts, &mut said);
    if !of_events.is_empty() {
        html.push_str("<h2>Events</h2>\n");
        table(&mut html, "event", &of_events, &mut said);
    }
    if !holders.is_empty() {
        html.push_str("<h2>BPF programs</h2>\n");
        programs(&mut html, holders);
    }
    html.push_str("</main>\n</body>\n</html>\n");
    html
}

/// Returns one row for all that have the same state and sentence.
fn rows<'a>(all: impl Iterator<Item = (&'a str, &'static str, bool, &'a str)>) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for (name, state, works, detail) in all {
        match rows.iter_mut().find(|row| (row.state, row.detail) == (state, detail)) {
            Some(row) => row.names.push(name),
            None => rows.push(Row { names: vec![name], state, works, detail }),
        }
    }
    rows
}

/// Writes the rows. A sentence that an earlier row has, alone or after names and a colon, is not written again.
fn table<'a>(html: &mut String, what: &str, rows: &[Row<'a>], said: &mut Vec<&'a str>) {
    writeln!(html, "<table class=\"wide\"><thead><tr><th>{what}</th><th>state</th></tr></thead><tbody>").ok();
    for Row { names, state, works, detail } in rows {
        let has =
            |before: &&str| before.strip_suffix(*detail).is_some_and(|rest| rest.is_empty() || rest.ends_with(": "));
        let known = !detail.is_empty() && said.iter().any(has);
        let text = if known { "as above".to_owned() } else { escape(detail) };
        let class = if *works { "soft" } else { "ill" };
        let names = escape(&names.join(", "));
        writeln!(html, "<tr><td>{names}</td><td><b class=\"{class}\">{state}</b> {text}</td></tr>").ok();
        said.push(*detail);
    }
    html.push_str("</tbody></table>\n");
}

/// Writes a row for each holder of programs.
fn programs(html: &mut String, holders: &[(String, String)]) {
    html.push_str("<table class=\"wide\"><thead><tr><th>holder</th><th>programs</th></tr></thead><tbody>\n");
    for (holder, programs) in holders {
        writeln!(html, "<tr><td>{}</td><td>{}</td></tr>", escape(holder), escape(programs)).ok();
    }
    html.push_str("</tbody></table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(part: &'static str, state: State, detail: &str) -> Part {
        Part { part, state, detail: detail.into() }
    }

    #[test]
    fn a_sentence_is_there_once_and_what_does_not_work_comes_first() {
        let parts = [
            part("cgroup2", State::Healthy, "`/<cgroup>`"),
            part("counters", State::Unsupported, "cycles, instructions: no PMU here"),
        ];
        let holders = [("<tracer> (process 7 in shop/web)".to_owned(), "count".to_owned())];
        let page = page("n1", &parts, &[], &holders, "n");
        assert!(page.contains("<tr><td>&lt;tracer&gt; (process 7 in shop/web)</td><td>count</td></tr>"), "{page}");
        assert!(page.find("counters</td>").unwrap() < page.find("cgroup2</td>").unwrap(), "{page}");
        assert!(page.contains("<p>One part does not work") && page.contains("`/&lt;cgroup&gt;`"), "{page}");
        let mut html = String::new();
        let events = ["cycles", "instructions", "r1"].map(|name| (name, "unsupported", false, "no PMU here"));
        let events = rows(events.into_iter().chain([("faults", "placed", true, "PERF_TYPE_SOFTWARE:2")]));
        table(&mut html, "event", &events, &mut vec!["cycles, instructions: no PMU here"]);
        for row in [
            "<td>cycles, instructions, r1</td><td><b class=\"ill\">unsupported</b> as above</td>",
            "<td>faults</td><td><b class=\"soft\">placed</b> PERF_TYPE_SOFTWARE:2</td>",
        ] {
            assert!(html.contains(row), "{html}");
        }
        html.clear();
        table(&mut html, "event", &events, &mut vec!["here"]);
        assert_eq!(html.matches("no PMU here").count(), 1, "{html}");
    }
}
