//! Checks a request before it is answered: no body, an admitted token, the rate, and the limit on CPU time.
//!
//! Health probes (`/livez`, `/readyz`) need no token and use no share of the rate. The router compares a path as it is
//! written, and so does the API server: `//metrics` is another path than `/metrics` to both.
//!
//! Requests with an admitted token share the rate of the token's owner, from any address. All other requests share the
//! rate of their address; refused requests have a smaller rate.

use std::{net::IpAddr, sync::Arc};

use axum::{
    http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header, uri::Authority},
    response::{IntoResponse, Response},
};

use super::{
    budget::{Asked, Budget},
    peers::{FirstReviews, Peer, Shares, Table, all_reviews},
    rate::Bucket,
    routes,
};
use crate::{
    access::{self, Access, Undecided, Verdict},
    kernel::clock::monotonic,
};
use crate::{
    config::Limits,
    telemetry::http::{Refusal, ServerCounts},
};

/// The paths that need no token.
const OPEN: [&str; 2] = ["/livez", "/readyz"];
/// The part of the rate that one connection may use.
const SHARE: f64 = 0.25;

#[derive(Debug)]
pub(super) struct Gate {
    requests_per_second: f64,
    peers: Table<Peer>,
    identities: Table<Arc<str>>,
    /// The rate of reviews of unknown tokens, from all addresses.
    reviews: Bucket,
    first_reviews: FirstReviews,
    budget: Arc<Budget>,
    /// `None` if requests need no token.
    access: Option<Arc<Access>>,
    /// Set if only this machine reaches the server: then a request must name this machine.
    only_here: Option<Here>,
    counts: Arc<ServerCounts>,
}

/// The names of this machine.
#[derive(Clone, Debug)]
pub(super) struct Here {
    pub(super) node_name: String,
}

impl Here {
    /// Returns whether `host`, a `Host` header, names this machine. A page that a browser has open may give its own name
    /// an address of the loopback (DNS rebinding), and would read the answer.
    fn has(&self, host: &str) -> bool {
        let Ok(host) = host.parse::<Authority>() else { return false };
        let name = host.host().trim_matches(['[', ']']);
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let is_loopback = || name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
        name == "localhost"
            || name.ends_with(".localhost")
            || name.eq_ignore_ascii_case(&self.node_name)
            || is_loopback()
    }
}

/// The way by which a request was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// The request needs no token.
    Anybody,
    /// The request has an admitted token.
    ByToken,
}

impl Gate {
    pub(super) fn new(
        limits: Limits,
        budget: Arc<Budget>,
        access: Option<Arc<Access>>,
        only_here: Option<Here>,
        counts: Arc<ServerCounts>,
    ) -> Self {
        let rate = f64::from(limits.requests_per_second);
        Self {
            requests_per_second: rate,
            peers: Table::new(rate),
            identities: Table::new(rate),
            reviews: all_reviews(rate),
            first_reviews: FirstReviews::default(),
            budget,
            access,
            only_here,
            counts,
        }
    }

    /// Returns a bucket with the rate of one connection.
    pub(super) fn pace(&self) -> Arc<Bucket> {
        Arc::new(Bucket::new(self.requests_per_second * SHARE))
    }

    /// Admits a request, or returns the refusal as a response.
    pub(super) async fn admit<B: hyper::body::Body>(
        &self,
        request: &Request<B>,
        from: IpAddr,
    ) -> Result<Admitted, Response> {
        let path = request.uri().path();
        if !request.body().is_end_stream() {
            let mut refused = self.refuse(Refusal::Body, StatusCode::PAYLOAD_TOO_LARGE, "no request here has a body");
            refused.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            return Err(refused);
        }
        if OPEN.contains(&path) {
            return Ok(Admitted::Anybody);
        }
        if let Some(text) = self.foreign(request.uri(), request.headers()) {
            return Err(self.refuse(Refusal::Foreign, StatusCode::FORBIDDEN, &text));
        }
        let from = Peer::of(from);
        let peer = self.peers.of(&from);
        let (shares, admitted) = match &self.access {
            Some(access) => {
                let user = self.authorize(access, (from, &peer), request.method(), path, request.headers()).await?;
                (self.identities.of(&user), Admitted::ByToken)
            }
            // The router answers 404 to an unknown path.
            None if !routes::is_known(path) => {
                return if peer.refused.take() { Ok(Admitted::Anybody) } else { Err(self.too_many()) };
            }
            None => (peer, Admitted::Anybody),
        };
        if !shares.requests.take() {
            return Err(self.too_many());
        }
        let asked = match (path == routes::METRICS, admitted) {
            (true, Admitted::ByToken) => Asked::ScrapeByToken,
            (true, Admitted::Anybody) => Asked::Scrape,
            (false, _) => Asked::Other,
        };
        self.budget.admit(asked, &shares, monotonic()).map_err(|seconds| {
            let text = "answering takes too much CPU time (see `server.limits.maxPercent`)";
            later(self.refuse(Refusal::Cpu, StatusCode::SERVICE_UNAVAILABLE, text), seconds)
        })?;
        Ok(admitted)
    }

    /// Returns whether a peer may have one more connection while answering has used up its CPU time.
    pub(super) fn may_connect(&self, from: Peer) -> bool {
        self.peers.of(&from).connections.take()
    }

    /// Returns whether answering has used up its CPU time.
    pub(super) fn is_spent(&self) -> bool {
        self.budget.is_spent()
    }

    pub(super) fn answered(&self, code: StatusCode) {
        self.counts.answered(code);
    }

    /// Returns the owner of the request's token, if the owner may send this request.
    async fn authorize(
        &self,
        access: &Access,
        (from, peer): (Peer, &Shares),
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Arc<str>, Response> {
        let refused = |why, code, text: &str| {
            if peer.refused.take() { self.refuse(why, code, text) } else { self.too_many() }
        };
        let unauthorized = |why, text| {
            let mut refused = refused(why, StatusCode::UNAUTHORIZED, text);
            refused.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            refused
        };
        let Some(token) = bearer(headers) else {
            return Err(unauthorized(Refusal::NoToken, "a token is needed (send `Authorization: Bearer TOKEN`)"));
        };
        // The API server, too, uses the method's name as the verb of a path that is not a resource.
        let verb = method.as_str().to_lowercase();
        match access.decide(token, &verb, path, || self.may_review(from, peer)).await {
            Ok(Verdict::Allowed { user }) => Ok(user),
            Ok(Verdict::BadToken) => {
                let text = "the token is not good (expired, or of another cluster or audience?)";
                Err(unauthorized(Refusal::BadToken, text))
            }
            Ok(Verdict::Forbidden { user }) => {
                let text = format!(
                    "`{user}` may not {verb} this path (grant `{verb}` on it as a nonResourceURL: see \
                     config/rbac-authorization.yaml)"
                );
                Err(refused(Refusal::Forbidden, StatusCode::FORBIDDEN, &text))
            }
            Err(Undecided::TooOften) => Err(self.too_many()),
            Err(Undecided::Unavailable) => {
                let text = "nobody can say who may read: the API server does not answer";
                let refused = self.refuse(Refusal::Unavailable, StatusCode::SERVICE_UNAVAILABLE, text);
                Err(later(refused, access::PAUSE.as_secs()))
            }
        }
    }

    /// Returns why a request is refused that a browser sends for a page of another site; `None` for other requests.
    /// Following a link to a page is no such request. Showing a page in a frame is one, and so is a link that begins a
    /// recording.
    fn foreign(&self, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let follows_link = header("sec-fetch-mode") == Some("navigate")
            && header("sec-fetch-dest").is_none_or(|shown_as| shown_as == "document")
            && !routes::records(uri.path());
        let is_cross_site = header("sec-fetch-site").is_some_and(|site| site.eq_ignore_ascii_case("cross-site"));
        // A request may name the host in its first line, too.
        let hosts = headers.get_all(header::HOST).iter().map(|value| value.to_str().unwrap_or_default());
        if is_cross_site && !follows_link {
            Some("a page of another site asks for this (open it by its own address)".to_owned())
        } else if let Some(here) = &self.only_here
            && !hosts.chain(uri.authority().map(Authority::as_str)).all(|host| here.has(host))
        {
            Some(format!(
                "this server is for this machine alone (ask for `localhost` or `{}` as `Host`)",
                here.node_name
            ))
        } else {
            None
        }
    }

    /// Returns whether an unknown token may be reviewed.
    fn may_review(&self, from: Peer, shares: &Shares) -> bool {
        self.first_reviews.take(from) || (shares.reviews.take() && self.reviews.take())
    }

    fn too_many(&self) -> Response {
        let text = "too many requests (see `server.limits.requestsPerSecond`)";
        later(self.refuse(Refusal::Rate, StatusCode::TOO_MANY_REQUESTS, text), 1)
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

/// Returns the token of a request. A request with two headers has none: it would be unclear which one counts.
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
    fn a_host_of_another_name_is_not_this_machine() {
        let here = Here { node_name: "worker-3".into() };
        for host in [
            "localhost",
            "LOCALHOST:9799",
            "127.0.0.1:9799",
            "127.1.2.3",
            "[::1]:9799",
            "worker-3:9799",
            "a.localhost.",
            "[::1]",
            "localhost:",
        ] {
            assert!(here.has(host), "{host}");
        }
        for host in [
            "",
            "evil.example:9799",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]:9799",
            "127.0.0.1.evil",
            "[::1]@evil",
            "[::1",
            "localhost:1@evil",
        ] {
            assert!(!here.has(host), "{host}");
        }
    }

    #[test]
    fn pages_of_other_sites_get_nothing_and_links_work() {
        let (mut gate, _) = gate(0);
        let admits_at = |gate: &Gate, uri: &'static str, headers: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(header::HeaderName::from_static(name), HeaderValue::from_static(value));
            }
            gate.foreign(&Uri::from_static(uri), &map).is_none()
        };
        let admits = |headers: &[(&'static str, &'static str)]| admits_at(&gate, "/", headers);
        assert!(admits(&[]) && admits(&[("host", "evil.example")]), "whoever reaches it may name it");
        assert!(admits(&[("sec-fetch-site", "same-origin")]));
        let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        assert!(admits(&link) && admits(&[link[0], link[1], ("sec-fetch-dest", "document")]));
        assert!(!admits(&[link[0], link[1], ("sec-fetch-dest", "iframe")]));
        assert!(!admits(&[("sec-fetch-site", "Cross-Site"), ("sec-fetch-mode", "no-cors")]));
        assert!(admits_at(&gate, "/flamegraph?a=b", &link) && !admits_at(&gate, "/debug/syscalls?seconds=9", &link));
        gate.only_here = Some(Here { node_name: "worker-3".into() });
        let names_here = |uri, hosts: &[&'static str]| {
            let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            admits_at(&gate, uri, &headers)
        };
        assert!(names_here("/", &["localhost:9799"]) && !names_here("/", &["evil.example:9799"]));
        assert!(
            !names_here("/", &["localhost", "evil.example"]) && !names_here("http://evil.example/", &["localhost"])
        );
        assert!(names_here("http://localhost/", &["localhost"]));
    }

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

    fn gate(requests_per_second: u32) -> (Gate, Arc<ServerCounts>) {
        let limits = Limits {
            connections: 4,
            requests_per_second,
            max_percent: 0.0,
            header_timeout: std::time::Duration::from_secs(1),
        };
        let counts = Arc::<ServerCounts>::default();
        (Gate::new(limits, Arc::new(Budget::new(limits.max_percent, 1)), None, None, Arc::clone(&counts)), counts)
    }

    async fn ask(gate: &Gate, path: &str, from: u8) -> Result<Admitted, u16> {
        let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
        let admitted = gate.admit(&request, IpAddr::from([10, 0, 0, from])).await;
        admitted.map_err(|response| response.status().as_u16())
    }

    #[tokio::test]
    async fn probes_have_no_rate_and_others_do() {
        let (gate, counts) = gate(2);
        for _ in 0..10 {
            assert_eq!(ask(&gate, "/livez", 1).await, Ok(Admitted::Anybody));
        }
        let asked = [ask(&gate, "/metrics", 1).await, ask(&gate, "/metrics", 1).await, ask(&gate, "/status", 1).await];
        assert_eq!(asked, [Ok(Admitted::Anybody), Ok(Admitted::Anybody), Err(429)]);
        assert_eq!(counts.stats().refusals[Refusal::Rate as usize].1, 1);
    }

    #[tokio::test]
    async fn a_peer_and_what_is_refused_use_up_nobody_elses_rate() {
        let (gate, _) = gate(10);
        // The bucket of refused requests holds two, so the first two requests for unknown paths are answered.
        let unknown =
            [ask(&gate, "/nothing", 1).await, ask(&gate, "//livez", 1).await, ask(&gate, "/nothing", 1).await];
        assert_eq!(unknown, [Ok(Admitted::Anybody), Ok(Admitted::Anybody), Err(429)]);
        for _ in 0..10 {
            assert_eq!(ask(&gate, "/metrics", 1).await, Ok(Admitted::Anybody));
        }
        assert_eq!(ask(&gate, "/metrics", 1).await, Err(429));
        assert_eq!(ask(&gate, "/metrics", 2).await, Ok(Admitted::Anybody));
    }

    #[test]
    fn the_first_token_of_an_address_is_reviewed_whatever_strangers_use_up() {
        let (gate, _) = gate(1);
        let may_review = |from: u8| {
            let peer = Peer::of(IpAddr::from([10, 0, 0, from]));
            gate.may_review(peer, &gate.peers.of(&peer))
        };
        let reviewed = (0..100).filter(|number| may_review(number % 5)).count();
        assert!((5..20).contains(&reviewed), "{reviewed} reviews of 5 strangers");
        assert!(may_review(10), "strangers have used up somebody else's first review");
    }
}
