//! The start page: which pods are in trouble, for what and for whom they wait, and the time of each pod and cgroup on
//! and off the CPU. Pure but for [`answer`].

mod lines;
#[cfg(test)]
mod load_tests;
mod write;

use std::{sync::Arc, time::Duration};

use axum::{
    http::{StatusCode, Uri},
    response::Response,
};

use self::lines::{Column, Line};
use super::{
    modes::Shown,
    profile::{self, Query},
};
use crate::export::{
    drawing::{Drawing, DrawingKey, Drawn},
    flamegraph,
};
use crate::{
    agent::Agent,
    kernel::sched_ext,
    recording::{Cause, Selector, Waiting},
    stacks::profile::Profile,
};

/// The number of rows that are shown by default: browsers become slow with more.
const ROWS: usize = 300;
/// The largest number of rows that are shown if a browser asks for all.
const MOST_ROWS: usize = 2000;
/// The longest text that rows are looked for by, in characters.
const LONGEST_TEXT: usize = 253;

/// The choices of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
struct View {
    sort: Column,
    namespace: Option<String>,
    /// A part of the rows' names, in any case.
    text: Option<String>,
    all: bool,
}

impl View {
    fn of(query: &Query) -> Self {
        let wanted = query.get("sort").unwrap_or_default();
        let text = |name| query.get(name).map(|text| text.chars().take(LONGEST_TEXT).collect());
        Self {
            sort: Column::ALL.into_iter().find(|column| column.name() == wanted).unwrap_or(Column::Trouble),
            namespace: text("namespace"),
            text: text("text"),
            all: query.get("all").is_some(),
        }
    }

    /// Returns the address of the page with these choices.
    fn address(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("sort", self.sort.name());
        for (name, text) in [("namespace", &self.namespace), ("text", &self.text)] {
            if let Some(text) = text {
                query.append_pair(name, text);
            }
        }
        if self.all {
            query.append_pair("all", "1");
        }
        format!("/?{}", query.finish())
    }

    const fn most(&self) -> usize {
        if self.all { MOST_ROWS } else { ROWS }
    }

    fn has(&self, line: &Line) -> bool {
        let in_namespace = self.namespace.is_none() || self.namespace == line.namespace;
        let has_text = |text: &String| line.name.to_lowercase().contains(&text.to_lowercase());
        in_namespace && self.text.as_ref().is_none_or(has_text)
    }
}

/// Returns the page with the current values.
pub(in crate::http) async fn answer(agent: &Agent, uri: &Uri) -> Response {
    let view = View::of(&Query::of(uri));
    let (now, before, over) = match agent.lately().await {
        Ok(lately) => lately,
        Err(error) => return profile::refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    };
    let (reading, rows, node) = (now.readings, now.snapshot.rows.len(), agent.node_name.clone());
    let what = Drawing::Overview { reading, view: view.address(), rows, most: view.most() };
    let shown = Shown { mode: agent.mode(), runner: agent.runner() };
    let queue = Cause::of_run_queue(sched_ext::scheduler().as_deref());
    let draw = move |windows: &[Arc<Profile>]| {
        let waiting = Waiting::by_name(newest(windows, over));
        let before = before.as_deref().map(|before| &before.snapshot);
        let mut lines = lines::of(&now.snapshot, &now.counters, before, over, &waiting, &queue);
        if !shown.has_flame_graphs() {
            lines.iter_mut().for_each(|line| line.selector = None);
        }
        let nonce = profile::nonce();
        Drawn { body: write::page(&node, lines, &view, over, shown, &nonce).into_bytes(), nonce: Some(nonce) }
    };
    match agent.drawer().draw_windows(agent.windows(), DrawingKey { what, selector: Selector::All }, draw).await {
        Ok(drawn) => profile::html_under(drawn.body(), policy(drawn.nonce().unwrap_or_default())),
        Err(error) => profile::failed(&error),
    }
}

/// Returns the windows that cover the last `over`, so that all numbers of a row are of the same time.
fn newest(windows: &[Arc<Profile>], over: Duration) -> &[Arc<Profile>] {
    let mut covered = Duration::ZERO;
    let is_needed = |window: &&Arc<Profile>| {
        let is_needed = covered < over;
        covered += window.duration;
        is_needed
    };
    let count = windows.iter().rev().take_while(is_needed).count();
    &windows[windows.len() - count..]
}

/// Returns the content security policy of the page: its form may ask for the page again.
fn policy(nonce: &str) -> String {
    flamegraph::policy(nonce).replace("form-action 'none'", "form-action 'self'")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(query: &str) -> View {
        View::of(&Query::of(&format!("/?{query}").parse().unwrap()))
    }

    #[test]
    fn an_address_brings_the_choices_back() {
        for query in ["sort=trouble", "sort=run_queue&namespace=shop&text=a+b%26%3Cc%3E", "sort=ipc&all=1"] {
            let address = view(query).address();
            assert_eq!(address, format!("/?{query}"));
            assert_eq!(View::of(&Query::of(&address.parse().unwrap())), view(query));
        }
        let bare = view("sort=interruptible&namespace=&text=");
        assert_eq!((bare.sort, bare.namespace, bare.text), (Column::Trouble, None, None));
        assert_eq!(view(&format!("text={}", "x".repeat(1000))).text.unwrap().len(), LONGEST_TEXT);
    }

    #[test]
    fn the_form_may_ask_this_server_only() {
        let (policy, of_others) = (policy("n"), flamegraph::policy("n"));
        assert!(policy.contains("form-action 'self'") && policy.contains("default-src 'none'"), "{policy}");
        assert_eq!(policy.replace("'self'", "'none'"), of_others);
    }

    #[test]
    fn windows_before_the_time_of_the_rows_are_left_out() {
        let window = |seconds| Arc::new(Profile { duration: Duration::from_secs(seconds), ..Profile::default() });
        let windows = [window(100), window(10), window(10)];
        let lengths = |over| {
            let newest = newest(&windows, Duration::from_secs(over));
            newest.iter().map(|window| window.duration.as_secs()).collect::<Vec<_>>()
        };
        assert_eq!([lengths(5), lengths(15), lengths(25)], [vec![10], vec![10, 10], vec![100, 10, 10]]);
        assert!(newest(&[], Duration::from_secs(5)).is_empty());
    }
}
