//! Recordings and flame graphs over HTTP.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Path, State as Shared},
    http::{HeaderName, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::told;
use crate::export::{
    drawing::{Answer, Drawing, DrawingKey, Drawn},
    flamegraph::{self, Format, Links},
};
use crate::{
    agent::Agent,
    filter::Filter,
    kernel::sched_ext,
    model::random::random,
    recording::{Cause, LONGEST, Merged, Merger, RecordError, SHORTEST, Selector, Side, Wanted, WantedLatency},
    stacks::profile::Profile,
};

/// The default length of a recording, in seconds.
const SECONDS: f64 = 10.0;
/// The longest id of a recording, in bytes. The client chooses the id.
pub const LONGEST_ID: usize = 64;
/// The header with the sentence about the stacks of a recording. Folded files have no place for it.
pub const STACKS: &str = "podperf-stacks";

/// The arguments of a request, by name.
#[derive(Clone, Debug)]
pub struct Query(HashMap<String, String>);

impl Query {
    /// Parses the arguments of an address.
    #[must_use]
    pub fn of(uri: &Uri) -> Self {
        Self(form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect())
    }

    pub(in crate::http) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns the subject, activity, filter, length and lines of the requested recording, its format, and its id.
    ///
    /// # Errors
    ///
    /// A message that names the bad argument and the allowed values.
    pub fn wanted(&self) -> Result<(Wanted, Format, Option<&str>), String> {
        let format = self.format(Format::Svg)?;
        let (selector, side, filter, duration) = (self.selector()?, self.side()?, self.filter()?, self.duration()?);
        let lines = self.lines(format)?;
        Ok((Wanted { selector, side, filter, duration, lines }, format, self.id()?))
    }

    /// Returns the subject, function and length of the requested recording of a function's calls, and its id.
    pub(in crate::http) fn wanted_latency(&self) -> Result<(WantedLatency, Option<&str>), String> {
        let function = self.get("function").ok_or("no `function` (a name of the agent's `functions`, or another)")?;
        let (selector, duration) = (self.selector()?, self.duration()?);
        Ok((WantedLatency { selector, function: function.to_owned(), duration }, self.id()?))
    }

    pub(in crate::http) fn selector(&self) -> Result<Selector, String> {
        self.get("subject")
            .map_or(Ok(Selector::All), |text| text.parse::<Selector>().map_err(|error| error.to_string()))
    }

    fn side(&self) -> Result<Side, String> {
        self.get("activity").map_or(Ok(Side::OffCpu), |name| {
            Side::named(name).ok_or_else(|| format!("bad `activity` `{name}` (`off-cpu`, `on-cpu` or `locks`)"))
        })
    }

    fn filter(&self) -> Result<Filter, String> {
        Filter::parse(self.get("filter").unwrap_or_default()).map_err(|error| format!("bad `filter`: {error}"))
    }

    fn format(&self, default: Format) -> Result<Format, String> {
        self.get("format").map_or(Ok(default), |name| {
            Format::named(name).ok_or_else(|| format!("bad `format` `{name}` (`svg`, `pb`, `folded` or `html`)"))
        })
    }

    fn lines(&self, format: Format) -> Result<bool, String> {
        match self.get("lines") {
            None | Some("0") => Ok(false),
            Some("1") if format == Format::Pprof => Ok(true),
            Some("1") => Err("bad `lines` `1` (only files for pprof have lines: `format=pb`)".into()),
            Some(other) => Err(format!("bad `lines` `{other}` (`0` or `1`)")),
        }
    }

    pub(super) fn id(&self) -> Result<Option<&str>, String> {
        match self.get("id") {
            Some(id) if id.len() > LONGEST_ID => Err(format!("bad `id` (at most {LONGEST_ID} bytes)")),
            id => Ok(id),
        }
    }

    pub(super) fn duration(&self) -> Result<Duration, String> {
        let text = self.get("seconds").map_or_else(|| SECONDS.to_string(), str::to_owned);
        let bounds = SHORTEST.as_secs_f64()..=LONGEST.as_secs_f64();
        let seconds = text.parse().ok().filter(|seconds| bounds.contains(seconds));
        let (least, most) = (SHORTEST.as_secs(), LONGEST.as_secs());
        let seconds = seconds.ok_or_else(|| format!("bad `seconds` `{text}` (at least {least}, at most {most})"));
        Ok(Duration::from_secs_f64(seconds?))
    }
}

/// `GET /debug/profile?subject=...&activity=off-cpu&seconds=10&format=svg`: answers when the recording has ended.
pub(in crate::http) async fn record(Shared(agent): Shared<Arc<Agent>>, uri: Uri) -> Response {
    let query = Query::of(&uri);
    let (wanted, format, id) = match query.wanted() {
        Ok(wanted) => wanted,
        Err(error) => return bad(&agent, &query, error).await,
    };
    let registration = match agent.enter(id) {
        Ok(registration) => registration,
        Err(error) => return failed(&error),
    };
    let merged = match agent.record(registration, &wanted).await {
        Ok(merged) => merged,
        Err(error) => return failed(&error),
    };
    let name = file_name(&merged.title, merged.side, format);
    let says = flamegraph::stack_sentence(&merged).and_then(|says| HeaderValue::try_from(says).ok());
    match agent.drawer().draw(merged.size(), move || draw(&merged, format, None)).await {
        Ok(drawn) => {
            let mut response = answer(&drawn, &name, format);
            response.headers_mut().extend(says.map(|says| (HeaderName::from_static(STACKS), says)));
            response
        }
        Err(error) => failed(&error),
    }
}

/// `GET /debug/recordings/ID`: returns the progress of a recording. `seconds` is null before its start.
pub(in crate::http) async fn progress(Shared(agent): Shared<Arc<Agent>>, Path(id): Path<String>) -> Response {
    let Some(control) = agent.windows().recording(&id) else { return no_recording() };
    let seconds = control.elapsed().map(|elapsed| elapsed.as_secs_f64());
    let body = json!({ "seconds": seconds, "samples": control.count() });
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// `DELETE /debug/recordings/ID`: ends a recording, whose request is then answered with the samples so far.
pub(in crate::http) async fn end(Shared(agent): Shared<Arc<Agent>>, Path(id): Path<String>) -> Response {
    let Some(control) = agent.windows().recording(&id) else { return no_recording() };
    control.end();
    StatusCode::NO_CONTENT.into_response()
}

/// `GET /flamegraph?subject=...&activity=off-cpu`: draws the last minutes, as a page unless `format` names another
/// form.
pub(in crate::http) async fn flamegraph(Shared(agent): Shared<Arc<Agent>>, uri: Uri) -> Response {
    let query = Query::of(&uri);
    let wanted = || Ok::<_, String>((query.selector()?, query.side()?, query.format(Format::Html)?));
    let (selector, side, format) = match wanted() {
        Ok(wanted) => wanted,
        Err(error) => return bad(&agent, &query, error).await,
    };
    if let Err(error) = agent.can_draw(side) {
        return failed(&error);
    }
    let selector = match agent.find(&selector).await {
        Ok(selector) => selector,
        Err(error) => return failed(&error),
    };
    let name = file_name(&selector.to_string(), side, format);
    let links = query.get("format").is_none().then(|| links(&selector, side, agent.finds_locks()));
    let what = if links.is_some() { Drawing::Page(side) } else { Drawing::File(side, format) };
    let key = DrawingKey { what, selector: selector.clone() };
    let user_frames_off = agent.user_frames_off();
    let queue = Cause::of_run_queue(sched_ext::scheduler().as_deref());
    let draw = move |windows: &[Arc<Profile>]| {
        let with_waits = |links| Links { first: told::paragraph(windows, &selector, &queue), ..links };
        let links = if side == Side::OffCpu { links.map(with_waits) } else { links };
        let merged = Merged { user_frames_off, ..Merger::merge(windows, side, selector) };
        draw(&merged, format, links)
    };
    match agent.drawer().draw_windows(agent.windows(), key, draw).await {
        Ok(drawn) => answer(&drawn, &name, format),
        Err(error) => failed(&error),
    }
}

/// Refuses a bad argument. The answer to a subject of one word, which is no subject, has the names that are like it.
pub(in crate::http) async fn bad(agent: &Agent, query: &Query, mut error: String) -> Response {
    if let Some(word) = query.get("subject").filter(|_| query.selector().is_err())
        && let Some(hint) = agent.suggest(word).await
    {
        error = format!("{error}; {hint}");
    }
    refusal(StatusCode::BAD_REQUEST, &error)
}

fn draw(merged: &Merged, format: Format, links: Option<Links>) -> Drawn {
    match links {
        Some(links) => Drawn { body: flamegraph::page(merged, &links).into_bytes(), nonce: Some(links.nonce) },
        None => Drawn { body: flamegraph::render(merged, format), nonce: None },
    }
}

fn answer(drawn: &Answer, name: &str, format: Format) -> Response {
    match drawn.nonce() {
        Some(nonce) => html(drawn.body(), nonce),
        None => {
            // A file is sent as an attachment, so the browser does not show it as a page of the agent.
            let disposition = format!("attachment; filename=\"{name}\"");
            let headers = [(header::CONTENT_TYPE, format.content_type()), (header::CONTENT_DISPOSITION, &disposition)];
            (headers, drawn.body()).into_response()
        }
    }
}

/// Returns the file name of a recording.
#[must_use]
pub fn file_name(subject: &str, side: Side, format: Format) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let subject: String = subject.trim_matches('/').chars().map(plain).take(100).collect();
    let subject = if subject.is_empty() { "root" } else { &subject };
    format!("podperf-{subject}-{}.{}", side.name(), format.extension())
}

/// Returns a page, with headers that restrict what the browser may do with it.
pub(in crate::http) fn html(body: impl Into<Body>, nonce: &str) -> Response {
    html_under(body, flamegraph::policy(nonce))
}

/// Returns a page under this content security policy.
pub(in crate::http) fn html_under(body: impl Into<Body>, policy: String) -> Response {
    let mut response = ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], Into::<Body>::into(body)).into_response();
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::try_from(policy + "; frame-ancestors 'none'") {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns a new nonce for one answer.
pub(in crate::http) fn nonce() -> String {
    format!("{:016x}{:016x}", random(), random())
}

/// Returns the address of a subject's flame graph.
#[must_use]
pub fn address(selector: &Selector, side: Side, format: Option<Format>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    if *selector != Selector::All {
        query.append_pair("subject", &selector.to_string());
    }
    query.append_pair("activity", side.name());
    if let Some(format) = format {
        query.append_pair("format", format.name());
    }
    format!("/flamegraph?{}", query.finish())
}

/// Returns the links of a flame graph. Without the sensor `locks` there is no link to the waits for locks.
fn links(selector: &Selector, side: Side, locks: bool) -> Links {
    let mut above = vec![(Some("/".into()), "All pods and cgroups".into())];
    for other in Side::ALL.into_iter().filter(|other| *other != Side::Locks || locks) {
        above.push(((other != side).then(|| address(selector, other, None)), other.name().into()));
    }
    for format in Format::ALL {
        above.push((Some(address(selector, side, Some(format))), format!("save .{}", format.extension())));
    }
    Links { above, nonce: nonce(), ..Links::default() }
}

fn no_recording() -> Response {
    refusal(StatusCode::NOT_FOUND, "no recording of this id is in progress")
}

pub(in crate::http) fn failed(error: &RecordError) -> Response {
    let status = match error {
        RecordError::Unknown { .. } | RecordError::Nothing(_) => StatusCode::NOT_FOUND,
        RecordError::NotTaken(_) => StatusCode::CONFLICT,
        RecordError::Busy | RecordError::Places { .. } | RecordError::Full(_) => StatusCode::TOO_MANY_REQUESTS,
        RecordError::Memory
        | RecordError::Drawing
        | RecordError::Unread
        | RecordError::Room { .. }
        | RecordError::Behind
        | RecordError::Collector(_) => StatusCode::SERVICE_UNAVAILABLE,
        RecordError::Broken => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut refused = refusal(status, &error.to_string());
    if let Some(seconds) = retry_after(error) {
        refused.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    refused
}

/// Returns the number of seconds after which a retry may succeed.
const fn retry_after(error: &RecordError) -> Option<u64> {
    match error {
        RecordError::Drawing => Some(1),
        RecordError::Unread => Some(5),
        RecordError::Busy | RecordError::Places { .. } | RecordError::Full(_) | RecordError::Room { .. } => Some(10),
        // Features that are off for lack of memory or CPU time come back after minutes.
        RecordError::Memory | RecordError::Behind => Some(60),
        _ => None,
    }
}

pub(in crate::http) fn refusal(status: StatusCode, text: &str) -> Response {
    (status, [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")], format!("{text}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::of(&format!("/x?{text}").parse().unwrap())
    }

    #[test]
    fn arguments_have_defaults_and_bounds() {
        let nothing = query("");
        assert_eq!((nothing.selector(), nothing.side()), (Ok(Selector::All), Ok(Side::OffCpu)));
        assert_eq!((nothing.duration(), nothing.format(Format::Svg)), (Ok(Duration::from_secs(10)), Ok(Format::Svg)));
        for text in [
            "seconds=0",
            "seconds=0.01",
            "seconds=0.999",
            "seconds=-1",
            "seconds=301",
            "seconds=NaN",
            "seconds=inf",
            "seconds=x",
        ] {
            assert!(query(text).duration().is_err(), "{text}");
        }
        assert!(query("seconds=0.01").duration().unwrap_err().contains("at least 1, at most 300"));
        assert_eq!(query("seconds=1").duration(), Ok(Duration::from_secs(1)));
        assert!(query(&format!("id={}", "x".repeat(65))).id().is_err() && query("id=x").id() == Ok(Some("x")));
        assert!(query("activity=both").side().unwrap_err().contains("`off-cpu`, `on-cpu` or `locks`"));
        for (text, lines) in [("format=pb&lines=1", true), ("format=pb&lines=0", false), ("format=pb", false)] {
            assert_eq!(query(text).wanted().unwrap().0.lines, lines, "{text}");
        }
        assert!(query("seconds=1").wanted_latency().unwrap_err().contains("no `function`"));
        let latency = query("function=%2Fbin%2Fa:main&seconds=2&id=x");
        let (wanted, id) = latency.wanted_latency().unwrap();
        assert_eq!((&*wanted.function, wanted.duration, id), ("/bin/a:main", Duration::from_secs(2), Some("x")));
        assert!(query("format=svg&lines=1").wanted().unwrap_err().contains("`format=pb`"));
        assert!(query("format=pb&lines=yes").wanted().unwrap_err().contains("`0` or `1`"));
        assert!(query("format=png").format(Format::Svg).is_err() && query("subject=a").selector().is_err());
    }

    #[test]
    fn a_refusal_for_a_while_has_the_time_of_the_next_attempt() {
        let room = RecordError::Room { needs: crate::limits::memory::Mebi(30 << 20) };
        for (error, seconds) in
            [(RecordError::Drawing, "1"), (RecordError::Unread, "5"), (room, "10"), (RecordError::Memory, "60")]
        {
            let refused = failed(&error);
            assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE, "{error}");
            assert_eq!(refused.headers()[header::RETRY_AFTER], seconds, "{error}");
        }
    }

    #[test]
    fn waits_for_locks_have_a_link_only_where_the_sensor_is_on() {
        let texts = |locks| links(&Selector::All, Side::OffCpu, locks).above.into_iter().map(|(_, text)| text);
        let rest = |text: &String| text != "locks";
        assert_eq!(
            (texts(true).filter(rest).count(), texts(true).count()),
            (texts(false).count(), 1 + texts(false).count())
        );
        assert!(texts(false).all(|text| text != "locks"));
        let address = address(&Selector::All, Side::Locks, None);
        assert_eq!(Query::of(&address.parse().unwrap()).side(), Ok(Side::Locks));
    }

    #[test]
    fn the_first_text_of_a_page_is_on_its_waits() {
        let links = Links { first: "<p>It waits.</p>\n".into(), ..Links::default() };
        let page = flamegraph::page(&Merged::default(), &links);
        assert!(page.contains("</h1>\n<p>It waits.</p>\n<p>"), "{page}");
    }

    #[test]
    fn an_address_brings_the_subject_back() {
        let selector: Selector = "/a b&c=<d>%".parse().unwrap();
        let address = address(&selector, Side::OnCpu, Some(Format::Pprof));
        let query = Query::of(&address.parse().unwrap());
        assert_eq!((query.selector(), query.side()), (Ok(selector), Ok(Side::OnCpu)));
        assert_eq!(query.format(Format::Svg), Ok(Format::Pprof));
    }

    #[test]
    fn a_files_name_is_harmless() {
        for (subject, expected) in [
            ("shop/cart-0/web", "podperf-shop-cart-0-web-off-cpu.pb.gz"),
            ("/system.slice/../\"x\r\n", "podperf-system.slice-..--x---off-cpu.pb.gz"),
            ("/", "podperf-root-off-cpu.pb.gz"),
        ] {
            assert_eq!(file_name(subject, Side::OffCpu, Format::Pprof), expected);
        }
    }
}
