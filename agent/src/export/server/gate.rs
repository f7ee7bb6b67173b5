//! What a request must be before it is answered: not too many, without a body, and of somebody who may.
//!
//! Whoever looks whether the agent lives (`/livez`, `/readyz`) needs neither a token nor a share of the rate. The router
//! knows a path only as it is written, and so does the API server: `//metrics` is another path than `/metrics` to both.

use std::sync::Arc;

use axum::{
    http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::{Limits, Refusal, ServerCounts, rate::Bucket};
use crate::access::{self, Access, Verdict};

/// Who needs no token.
const OPEN: [&str; 2] = ["/livez", "/readyz"];
/// What one connection may have of the rate.
const SHARE: f64 = 0.25;

#[derive(Debug)]
pub(super) struct Gate {
    rate: Bucket,
    requests_per_second: f64,
    /// `None` where everybody may read.
    access: Option<Arc<Access>>,
    counts: Arc<ServerCounts>,
}

impl Gate {
    pub(super) fn new(limits: Limits, access: Option<Arc<Access>>, counts: Arc<ServerCounts>) -> Self {
        let requests_per_second = f64::from(limits.requests_per_second);
        Self { rate: Bucket::new(requests_per_second), requests_per_second, access, counts }
    }

    /// How fast one connection may ask.
    pub(super) fn pace(&self) -> Arc<Bucket> {
        Arc::new(Bucket::new(self.requests_per_second * SHARE))
    }

    /// Lets a request in, or says what to answer instead.
    pub(super) async fn admit<B: hyper::body::Body>(&self, request: &Request<B>) -> Result<(), Response> {
        let path = request.uri().path();
        if !request.body().is_end_stream() {
            let mut refused = self.refuse(Refusal::Body, StatusCode::PAYLOAD_TOO_LARGE, "no request here has a body");
            refused.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            return Err(refused);
        }
        if OPEN.contains(&path) {
            return Ok(());
        }
        if !self.rate.take() {
            let text = "too many requests (see `server.limits.requestsPerSecond`)";
            return Err(later(self.refuse(Refusal::Rate, StatusCode::TOO_MANY_REQUESTS, text), 1));
        }
        match &self.access {
            Some(access) => self.authorize(access, request.method(), path, request.headers()).await,
            None => Ok(()),
        }
    }

    pub(super) fn answered(&self, code: StatusCode) {
        self.counts.answered(code);
    }

    async fn authorize(
        &self,
        access: &Access,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), Response> {
        let unauthorized = |why, text| {
            let mut refused = self.refuse(why, StatusCode::UNAUTHORIZED, text);
            refused.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            refused
        };
        let Some(token) = bearer(headers) else {
            return Err(unauthorized(Refusal::NoToken, "a token is needed (send `Authorization: Bearer TOKEN`)"));
        };
        // As the API server itself calls what is no resource.
        let verb = method.as_str().to_lowercase();
        match access.decide(token, &verb, path).await {
            Some(Verdict::Allowed) => Ok(()),
            Some(Verdict::BadToken) => {
                let text = "the token is not good (expired, or of another cluster or audience?)";
                Err(unauthorized(Refusal::BadToken, text))
            }
            Some(Verdict::Forbidden { user }) => {
                let text = format!(
                    "`{user}` may not {verb} this path (grant `{verb}` on it as a nonResourceURL: see \
                     config/rbac-authorization.yaml)"
                );
                Err(self.refuse(Refusal::Forbidden, StatusCode::FORBIDDEN, &text))
            }
            None => {
                let text = "nobody can say who may read: the API server does not answer";
                let refused = self.refuse(Refusal::Unavailable, StatusCode::SERVICE_UNAVAILABLE, text);
                Err(later(refused, access::PAUSE.as_secs()))
            }
        }
    }

    fn refuse(&self, why: Refusal, code: StatusCode, text: &str) -> Response {
        self.counts.refused(why);
        (code, format!("podperf: {text}\n")).into_response()
    }
}

fn later(mut refused: Response, seconds: u64) -> Response {
    refused.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    refused
}

/// The one token of a request. Two headers are none: it would be open which of them counts.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(only), None) = (all.next(), all.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && !token.contains(' ')).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_stands_behind_bearer_once() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of(&["Bearer abc"]), Some("abc".into()));
        assert_eq!(of(&["bearer  abc "]), Some("abc".into()));
        for none in
            [&[][..], &["Bearer"], &["Bearer "], &["Basic abc"], &["abc"], &["Bearer a b"], &["Bearer a", "Bearer b"]]
        {
            assert_eq!(of(none), None, "{none:?}");
        }
    }

    #[tokio::test]
    async fn probes_have_no_rate_and_others_do() {
        let limits = Limits {
            connections: 4,
            requests_per_second: 2,
            header_bytes: 8192,
            header_timeout: std::time::Duration::from_secs(1),
        };
        let counts = Arc::<ServerCounts>::default();
        let gate = Gate::new(limits, None, Arc::clone(&counts));
        let ask = async |path: &str| {
            let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
            gate.admit(&request).await.map_err(|response| response.status().as_u16())
        };
        for _ in 0..10 {
            assert_eq!(ask("/livez").await, Ok(()));
        }
        assert_eq!([ask("/metrics").await, ask("/metrics").await, ask("//livez").await], [Ok(()), Ok(()), Err(429)]);
        assert_eq!(counts.stats().refusals[Refusal::Rate as usize].1, 1);
    }
}
