//! The form in which a client accepts an answer: an error as a page for a browser, and a body in gzip. `/metrics` is
//! compressed elsewhere, once a reading: see `rendered`.

use axum::{
    body::{Body, Bytes, HttpBody as _, to_bytes},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use tokio::sync::Semaphore;

use super::{
    pages::problem,
    rendered::{Encoding, gzip},
};

/// The least bytes of a compressed body: a smaller one fits into one packet.
const LEAST_BYTES: u64 = 1 << 10;
/// The most bytes of a compressed body: the time to compress it grows with its size. A larger one is sent as it is.
const MOST_BYTES: u64 = 4 << 20;
/// The beginnings of the types that become smaller. Profiles for pprof are compressed files.
const TYPES: [&str; 3] = ["text/", "image/svg+xml", "application/json"];

/// The forms that a client accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepts {
    page: bool,
    encoding: Encoding,
}

/// A compressed body. The plain one is held as long as this one: the drawer counts the memory of answers that are being
/// sent by their plain bodies.
struct Compressed {
    bytes: Bytes,
    _plain: Bytes,
}

impl AsRef<[u8]> for Compressed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns whether a client is a browser that shows a page.
pub(super) fn wants_page(headers: &HeaderMap) -> bool {
    value(headers, header::ACCEPT).contains("text/html")
}

fn value(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

impl Accepts {
    /// Returns the forms that a request accepts. An answer to `HEAD` has no body, and so no form.
    pub(super) fn of(method: &Method, headers: &HeaderMap) -> Self {
        if method == Method::HEAD {
            return Self { page: false, encoding: Encoding::Identity };
        }
        let encoding = Encoding::negotiate(value(headers, header::ACCEPT_ENCODING));
        Self { page: wants_page(headers), encoding }
    }

    /// Returns an answer in the accepted form.
    pub(super) async fn apply(self, response: Response) -> Response {
        let response = self.explain(response).await;
        if self.encoding == Encoding::Gzip && is_compressible(&response) { compress(response).await } else { response }
    }

    /// Returns an error as a page for browsers, and any other answer as it is.
    pub(super) async fn explain(self, response: Response) -> Response {
        let is_error = response.status().is_client_error() || response.status().is_server_error();
        let kind = value(response.headers(), header::CONTENT_TYPE);
        if self.page && is_error && (kind.is_empty() || kind.starts_with("text/plain")) {
            return problem::page_of(response).await;
        }
        response
    }
}

fn is_compressible(response: &Response) -> bool {
    let kind = value(response.headers(), header::CONTENT_TYPE);
    !response.headers().contains_key(header::CONTENT_ENCODING)
        && TYPES.iter().any(|known| kind.starts_with(known))
        && response.body().size_hint().exact().is_some_and(|bytes| (LEAST_BYTES..=MOST_BYTES).contains(&bytes))
}

/// Compresses an answer on another thread, whose CPU time counts as that of answering. One is compressed at a time;
/// meanwhile further answers are sent as they are.
async fn compress(response: Response) -> Response {
    static ONE: Semaphore = Semaphore::const_new(1);
    let Ok(one) = ONE.try_acquire() else { return response };
    let (mut parts, body) = response.into_parts();
    let plain = match to_bytes(body, usize::MAX).await {
        Ok(plain) => plain,
        Err(error) => {
            return (StatusCode::INTERNAL_SERVER_ERROR, format!("failed to answer: {error}\n")).into_response();
        }
    };
    let copy = plain.clone();
    let compressed = tokio::task::spawn_blocking(move || {
        let bytes = gzip(&copy);
        drop(one);
        bytes
    });
    let Ok(Ok(bytes)) = compressed.await else { return Response::from_parts(parts, Body::from(plain)) };
    parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    // The router has set the length of the plain body.
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(Bytes::from_owner(Compressed { bytes, _plain: plain })))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    const BROWSER: &str = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8";

    fn accepts(accept: &'static str, encoding: &'static str) -> Accepts {
        let value = HeaderValue::from_static;
        let headers = [(header::ACCEPT, value(accept)), (header::ACCEPT_ENCODING, value(encoding))];
        Accepts::of(&Method::GET, &HeaderMap::from_iter(headers))
    }

    async fn body(response: Response) -> Vec<u8> {
        to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()
    }

    fn answer(kind: &'static str, bytes: usize) -> Response {
        let length = bytes.to_string();
        let headers = [(header::CONTENT_TYPE, kind), (header::CONTENT_LENGTH, length.as_str())];
        (headers, vec![b'x'; bytes]).into_response()
    }

    /// The answers of this test are compressed one after the other, since one is at a time.
    #[tokio::test]
    async fn an_answer_is_compressed_for_who_accepts_it_and_where_it_helps() {
        let zipped = accepts(BROWSER, "gzip, br").apply(answer("text/html; charset=utf-8", 300_000)).await;
        assert_eq!(zipped.headers()[header::CONTENT_ENCODING], "gzip");
        assert!(!zipped.headers().contains_key(header::CONTENT_LENGTH), "of the plain body");
        let zipped = body(zipped).await;
        let mut plain = Vec::new();
        GzDecoder::new(&*zipped).read_to_end(&mut plain).unwrap();
        assert!(zipped.len() < 30_000 && plain == vec![b'x'; 300_000], "{}", zipped.len());
        for (encoding, kind, bytes) in [
            ("identity", "text/html", 300_000),
            ("gzip", "application/gzip", 300_000),
            ("gzip", "text/html", 100),
            ("gzip", "text/plain", (4 << 20) + 1),
        ] {
            let response = accepts("*/*", encoding).apply(answer(kind, bytes)).await;
            assert!(!response.headers().contains_key(header::CONTENT_ENCODING), "{encoding} {kind} {bytes}");
            assert_eq!(body(response).await.len(), bytes);
        }
        // An answer that is compressed already stays as it is.
        let mut done = answer("text/plain", 5000);
        done.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(body(accepts("", "gzip").apply(done).await).await.len(), 5000);
    }

    #[tokio::test]
    async fn an_error_is_a_page_for_browsers_and_text_for_programs() {
        let refused = || {
            let says = "podperf: no such pod `a/<b>` (did you mean `a/c`?)\n";
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "10")], says).into_response()
        };
        let shown = accepts(BROWSER, "").explain(refused()).await;
        assert_eq!(shown.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(shown.headers()[header::RETRY_AFTER], "10");
        assert!(shown.headers()[header::CONTENT_TYPE].to_str().unwrap().starts_with("text/html"));
        assert!(shown.headers().contains_key(header::CONTENT_SECURITY_POLICY));
        let page = String::from_utf8(body(shown).await).unwrap();
        assert!(page.contains("no such pod `a/&lt;b&gt;`") && page.contains("<a href=\"/\">"), "{page}");
        let text = body(accepts("*/*", "").explain(refused()).await).await;
        assert_eq!(text, b"podperf: no such pod `a/<b>` (did you mean `a/c`?)\n");
    }

    #[tokio::test]
    async fn an_unknown_path_has_words_for_browsers_and_still_none_for_programs() {
        let unknown = || StatusCode::NOT_FOUND.into_response();
        let page = body(accepts(BROWSER, "").apply(unknown()).await).await;
        assert!(String::from_utf8(page).unwrap().contains("no page at this address"));
        // `podperf record` knows an agent of an older version by its empty body.
        assert_eq!(body(accepts("*/*", "").apply(unknown()).await).await, b"");
        let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(BROWSER))]);
        assert_eq!(body(Accepts::of(&Method::HEAD, &headers).apply(unknown()).await).await, b"");
    }
}
