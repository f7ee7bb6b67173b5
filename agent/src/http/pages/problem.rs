//! The page of an error, with a way back. Pure but for [`page_of`].

use std::fmt::Write;

use axum::{
    body::to_bytes,
    http::{StatusCode, header},
    response::Response,
};

use super::profile::{html, nonce};
use crate::export::flamegraph::{escape, head};

/// The most bytes of a text: the agent's own are shorter.
const MOST_BYTES: usize = 64 << 10;

/// Returns the page of an error, whose body is text.
pub(in crate::http) async fn page_of(response: Response) -> Response {
    let (parts, body) = response.into_parts();
    let text = to_bytes(body, MOST_BYTES).await.unwrap_or_default();
    let nonce = nonce();
    let mut shown = html(page(parts.status, &String::from_utf8_lossy(&text), &nonce), &nonce);
    *shown.status_mut() = parts.status;
    // A client may need these headers of the error.
    for name in [header::RETRY_AFTER, header::WWW_AUTHENTICATE, header::CONNECTION, header::ALLOW] {
        if let Some(value) = parts.headers.get(&name) {
            shown.headers_mut().insert(name, value.clone());
        }
    }
    shown
}

fn page(status: StatusCode, text: &str, nonce: &str) -> String {
    let title = format!("{} {}", status.as_u16(), status.canonical_reason().unwrap_or("error"));
    let text = text.trim_end();
    let text = match text.strip_prefix("podperf: ").unwrap_or(text) {
        "" if status == StatusCode::NOT_FOUND => "There is no page at this address.",
        "" => "The agent gives no reason.",
        text => text,
    };
    let mut html = head(&title, nonce);
    // Writing to a string does not fail.
    write!(
        html,
        "<nav><a href=\"/\">All pods and cgroups</a><a href=\"/status\">State of the agent</a></nav>\n<main>\n\
         <h1>{}</h1>\n<p class=\"says\">{}</p>\n</main>\n</body>\n</html>\n",
        escape(&title),
        lines(text),
    )
    .ok();
    html
}

/// Escapes a text of several lines, such as that of a filter, whose last line shows the place of the mistake.
fn lines(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_keeps_its_lines_and_is_never_more_than_text() {
        let page = page(StatusCode::BAD_REQUEST, "podperf: bad `filter`\n  <script>\n  ^\n", "n");
        let says = "<h1>400 Bad Request</h1>\n<p class=\"says\">bad `filter`\n  &lt;script&gt;\n  ^</p>";
        assert!(page.contains(says), "{page}");
        assert!(!page.contains("<script") && page.contains("<main>"), "{page}");
    }
}
