//! The page of a recording: the picture, the legend of its colours, and the longest stacks as text. Pure.
//!
//! The page loads nothing from elsewhere. Without scripts only zoom and search are missing.

use std::{collections::HashMap, fmt::Write, sync::Arc, time::SystemTime};

use super::{
    caption, coverage,
    formatting::{escape, percent, time},
    grow::tree,
    longest, losses, palette, svg,
    tree::{self, Class},
};
use crate::recording::{Merged, Side, smaller};

/// The style sheet that all pages share.
pub const STYLE: &str = include_str!("page.css");

/// The most rows of the table of reasons.
const MOST_REASONS: usize = 25;

/// The links of an agent's page; empty in a file.
#[derive(Clone, Debug, Default)]
pub struct Links {
    /// The links above the picture, each with its text; `None` for the current page.
    pub above: Vec<(Option<String>, String)>,
    /// The first text of the page, as HTML: what the waits mean.
    pub first: String,
    /// The nonce of the page's style sheet and script: see [`policy`]. Empty in a file, which makes a nonce of its own.
    pub nonce: String,
}

/// Returns the content security policy of a page. The page loads nothing and sends nothing, and only the script with
/// the nonce runs, even if the name of a pod contains a script.
#[must_use]
pub fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'"
    )
}

/// Returns the begin of a page, up to its first tag below `body`. The page has the style sheet of all pages.
#[must_use]
pub fn head(title: &str, nonce: &str) -> String {
    let (title, nonce) = (escape(title), escape(nonce));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title} - podperf</title>\n\
         <style nonce=\"{nonce}\">{}{STYLE}{}</style>\n</head>\n<body>\n",
        policy(&nonce),
        svg::STYLE,
        palette::rules(),
    )
}

/// Returns the page of a recording.
#[must_use]
pub fn page(merged: &Merged, links: &Links) -> String {
    let title = format!("{} {}", tree::title(merged), merged.side.name());
    let nonce = if links.nonce.is_empty() { file_nonce(merged) } else { escape(&links.nonce) };
    let mut html = head(&title, &nonce);
    above(&mut html, links);
    // Writing to a string does not fail.
    write!(
        html,
        "<main>\n<h1>{}</h1>\n{}<p>{}{}</p>\n",
        escape(&title),
        links.first,
        escape(&caption(merged)),
        when(merged)
    )
    .ok();
    covers(&mut html, merged);
    losses::write(&mut html, merged);
    if merged.subjects.is_empty() {
        let why = match merged.side {
            Side::OffCpu => "Waits are shown once they have ended and their window is over.",
            Side::Locks => "Waits for locks are shown once they have ended and their window is over.",
            Side::OnCpu if merged.sample_period.is_none() => "No samples on the CPU are taken.",
            Side::OnCpu => "It was not seen on a CPU.",
        };
        writeln!(html, "<p class=\"warn\">Nothing yet. {why}</p>\n</main>").ok();
    } else {
        graph(&mut html, merged);
        reasons(&mut html, merged);
        longest::stacks(&mut html, merged);
        write!(html, "</main>\n<script nonce=\"{nonce}\">\n{}</script>\n", svg::SCRIPT).ok();
    }
    html.push_str("</body>\n</html>\n");
    html
}

/// Returns the nonce of a file, made of the start and length of the recording. The author of a hostile name cannot know
/// them beforehand.
fn file_nonce(merged: &Merged) -> String {
    let since = merged.start.and_then(|start| start.duration_since(SystemTime::UNIX_EPOCH).ok()).unwrap_or_default();
    format!("{:x}{:x}", since.as_nanos(), merged.duration.as_nanos())
}

fn above(html: &mut String, links: &Links) {
    if links.above.is_empty() {
        return;
    }
    html.push_str("<nav>");
    for (link, text) in &links.above {
        let text = escape(text);
        match link {
            Some(link) => write!(html, "<a href=\"{}\">{text}</a>", escape(link)),
            None => write!(html, "<a aria-current=\"page\">{text}</a>"),
        }
        .ok();
    }
    html.push_str("</nav>\n");
}

fn when(merged: &Merged) -> String {
    let Some(start) = merged.start else { return String::new() };
    let seconds = start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("<span class=\"soft\">, from {hour:02}:{minute:02}:{second:02} UTC</span>")
}

/// Writes how much of the time has a stack, so that a thin picture does not look like a complete one.
fn covers(html: &mut String, merged: &Merged) {
    let Some(says) = coverage::sentence(merged) else { return };
    let class = if coverage::is_thin(&merged.coverage) { "warn" } else { "soft" };
    writeln!(html, "<p class=\"{class}\">{says}</p>").ok();
}

fn graph(html: &mut String, merged: &Merged) {
    let root = tree(merged);
    let picture = svg::picture(&root, merged.side, 0);
    if merged.samples().any(|(_, sample)| sample.judgement.is_some()) {
        html.push_str(
            "<p class=\"soft\">Colours are time that was lost. Sand is lost time or idleness: the data does not tell. \
             Grey is idleness. Functions of the kernel are paler.</p>\n",
        );
    }
    html.push_str("<ul class=\"legend\">");
    for (name, class, nanoseconds) in svg::legend(merged) {
        let share = percent(nanoseconds, root.nanoseconds);
        write!(html, "<li><i class=\"{}\"></i>{name} {share}</li>", palette::class(class)).ok();
    }
    write!(
        html,
        "</ul>\n<div id=\"tools\" hidden><input id=\"search\" type=\"search\" placeholder=\"Find a function\" \
         aria-label=\"Find a function\" autocomplete=\"off\" spellcheck=\"false\"><button id=\"reset\" type=\"button\">\
         Show all</button></div>\n<p class=\"told\"><span id=\"under\" aria-hidden=\"true\"></span><span id=\"shown\" \
         aria-live=\"polite\"></span></p>\n\
         <svg class=\"graph\" width=\"100%\" height=\"{}\" role=\"img\" aria-label=\"Flame graph, callers above\">\n{}\
         </svg>\n",
        picture.height, picture.frames,
    )
    .ok();
    if picture.merged > 0 {
        writeln!(html, "<p class=\"soft\">{}</p>", svg::merging(picture.merged)).ok();
    }
    if merged.merged > 0 {
        let stacks = merged.merged;
        writeln!(
            html,
            "<p class=\"soft\">There were {stacks} stacks too many to be kept one by one; all time is there.</p>"
        )
        .ok();
    }
}

/// Returns the rows of the table: off the CPU the branches of the picture, the longest first; else the legend.
fn rows(merged: &Merged) -> Vec<(Arc<str>, Class, u64)> {
    if merged.side != Side::OffCpu {
        return svg::legend(merged).into_iter().map(|(name, class, time)| (name.into(), class, time)).collect();
    }
    let mut sums: HashMap<Arc<str>, (Class, u64)> = HashMap::new();
    for (_, sample) in merged.samples() {
        let Some(branch) = tree::branch(sample) else { continue };
        let (_, sum) = sums.entry(branch).or_insert_with(|| (tree::class_of(sample, false), 0));
        *sum = sum.saturating_add(sample.nanoseconds);
    }
    let mut rows: Vec<_> = sums.into_iter().map(|(name, (class, time))| (name, class, time)).collect();
    rows.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
    if rows.len() > MOST_REASONS {
        let rest = rows.split_off(MOST_REASONS);
        let time: u64 = rest.iter().map(|(.., time)| *time).sum();
        rows.push((smaller(rest.len() as u64).into(), Class::All, time));
    }
    rows
}

fn reasons(html: &mut String, merged: &Merged) {
    let (whole, all) = (merged.nanoseconds(), rows(merged));
    let (heading, column) = match merged.side {
        Side::OffCpu | Side::Locks => ("What it waited for", "reason"),
        Side::OnCpu => ("Where it ran", "code"),
    };
    write!(
        html,
        "<h2>{heading}</h2>\n<table><thead><tr><th>{column}</th><th class=\"n\">time</th><th class=\"n\">share</th>\
         </tr></thead><tbody>\n"
    )
    .ok();
    for (name, class, nanoseconds) in all {
        let (time, share) = (time(nanoseconds), percent(nanoseconds, whole));
        let (name, class) = (escape(&name), palette::class(class));
        writeln!(
            html,
            "<tr><td><i class=\"{class}\"></i>{name}</td><td class=\"n\">{time}</td><td class=\"n\">{share}</td></tr>"
        )
        .ok();
    }
    html.push_str("</tbody></table>\n");
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use std::sync::Arc;

    use crate::model::wait::{Unwind, WaitReason};

    #[test]
    fn a_name_is_never_more_than_text() {
        let merged = recording_of(HOSTILE, vec![wait(WaitReason::Disk, &[HOSTILE], &[HOSTILE], 1)]);
        let links = Links { above: vec![(Some(HOSTILE.into()), HOSTILE.into())], ..Links::default() };
        let page = page(&merged, &links);
        assert_eq!((page.matches("<script").count(), page.matches("</svg>").count()), (1, 5), "{page}");
        assert!(!page.contains("alert('1')"), "{page}");
    }

    #[test]
    fn a_file_loads_nothing_and_runs_only_its_own_script() {
        let page = page(&recording(vec![on_cpu(&["f"], 5)]), &Links::default());
        let nonce = page.split("nonce-").nth(1).unwrap().split('\'').next().unwrap();
        assert!(nonce.len() >= 16 && page.contains(&format!("<script nonce=\"{nonce}\">")), "{nonce}");
        for foreign in ["http://", "https://", "src=", "@import", "url(", "style=\""] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }

    /// A script turns the picture into frames that a keyboard reaches, so it needs both of its lines.
    #[test]
    fn all_but_the_links_is_the_main_part_and_each_column_has_a_name() {
        let links = Links { above: vec![(Some("/".into()), "all".into())], nonce: "n".into(), ..Links::default() };
        let nothing = Merged { subjects: vec![], ..recording(vec![]) };
        for merged in [recording(vec![on_cpu(&["f"], 5)]), nothing] {
            let page = page(&merged, &links);
            let (before, main) = page.split_once("<main>").unwrap();
            assert!(before.ends_with("</nav>\n") && main.contains("<h1>") && !main.contains("<th></th>"), "{page}");
            assert_eq!(main.matches("</main>").count(), 1, "{page}");
        }
        let page = page(&recording(vec![on_cpu(&["f"], 5)]), &links);
        for id in ["under", "shown", "search", "reset", "tools"] {
            assert!(page.contains(&format!("id=\"{id}\"")) && svg::SCRIPT.contains(&format!("'{id}'")), "{id}");
        }
    }

    #[test]
    fn waits_for_locks_are_named_so_and_coloured_by_their_reason() {
        let page = page(&waiting_for_mutex(42), &Links::default());
        for part in
            ["42 ns of waiting for locks in 1 wait", "/a locks</h1>", "<title>mutex: 42 ns, 100 %, 1 wait</title>"]
        {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(page.contains("<li><i class=\"kernel_lock\"></i>kernel_lock 100 %</li>"), "{page}");
    }

    #[test]
    fn what_is_missing_is_said() {
        let mut merged = recording(vec![wait(WaitReason::Disk, &[], &["main"], 1)]);
        merged.losses.push(("sample_table", 7));
        let lossy = page(&merged, &Links::default());
        assert!(lossy.contains("<p class=\"soft\">Stacks, by time: 100 % whole.</p>"), "{lossy}");
        assert!(lossy.contains("Missing, on the whole node: 7 waits or samples without room"), "{lossy}");
        let mut cut = wait(WaitReason::Disk, &["io_schedule"], &["read"], 3);
        Arc::make_mut(&mut cut.stack).unwind = Unwind::NoFramePointers;
        let thin = page(&recording(vec![cut, wait(WaitReason::Disk, &[], &["main"], 5)]), &Links::default());
        let says = "<p class=\"warn\">Stacks, by time: 62 % whole, 38 % incomplete (no_frame_pointers), so outer \
                    functions look too small.</p>";
        assert!(thin.contains(says), "{thin}");
        merged.subjects.clear();
        assert!(page(&merged, &Links::default()).contains("Nothing yet. Waits are shown"));
        merged.side = Side::OnCpu;
        assert!(page(&merged, &Links::default()).contains("Nothing yet. No samples on the CPU are taken."));
    }
}
