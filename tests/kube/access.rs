//! Read access: each test sends requests to the agent, and a real API server reviews their tokens.

use std::{
    cell::Cell,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{self, Agent, Metrics},
    certificates::Authority,
    control_plane::{ControlPlane, Credentials, NEEDS, SharedPlane},
    https::Https,
    suite::{Test, within},
    tests,
};
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] each_may_read_what_a_role_says_and_nothing_else: NEEDS,
    #[beside] without_an_api_server_only_what_is_known_is_answered: NEEDS,
    #[land] #[beside] an_agent_that_may_not_review_lets_nobody_in_and_says_why: NEEDS,
];

const AN_HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(20);
/// The time for which the agent caches a denied review.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// The same for an allowed one.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "readers";
const REVIEWS: &str = "podperf_access_reviews_total";

/// Service accounts and their permissions. The last account has no role.
const READERS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: readers}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: nobody, namespace: readers}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: scraper, namespace: readers}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: debugger, namespace: readers}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: everything, namespace: readers}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: readers-debugger}
rules: [{nonResourceURLs: ["/debug/*"], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: readers-everything}
rules: [{nonResourceURLs: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: readers-scraper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: podperf-metrics}
subjects: [{kind: ServiceAccount, name: scraper, namespace: readers}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: readers-debugger}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: readers-debugger}
subjects: [{kind: ServiceAccount, name: debugger, namespace: readers}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: readers-everything}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: readers-everything}
subjects: [{kind: ServiceAccount, name: everything, namespace: readers}]
"#;

/// An agent that requires tokens, and a client for its requests.
struct Guarded {
    agent: Agent,
    https: Https,
    files: TempDir,
    _credentials: Credentials,
    /// The number of requests for which the API server was late.
    late: Cell<u32>,
}

impl Guarded {
    fn start(plane: &ControlPlane) -> Result<Self> {
        let files = TempDir::new()?;
        let path = files.path();
        let authority = Authority::new("test-authority")?;
        authority.write(&path.join("ca.crt"))?;
        authority.issue("podperf", path, "tls")?;
        let credentials = plane.agent_credentials(AN_HOUR)?;
        let agent = Agent::start(&format!(
            "identity: none\nkubernetes: {{kubeconfig: {}}}\nserver:\n  tls: {{certFile: {path}/tls.crt, keyFile: \
             {path}/tls.key}}\n  authorization: {{enabled: true}}\n  limits: {{requestsPerSecond: 0}}",
            credentials.kubeconfig().display(),
            path = path.display(),
        ))?;
        let https = Https::trusting(&path.join("ca.crt"))?;
        Ok(Self { agent, https, files, _credentials: credentials, late: Cell::new(0) })
    }

    /// Returns the status code, the headers and the body.
    fn ask(&self, request: &str, headers: &[(&str, &str)]) -> Result<(u16, String, String)> {
        let (code, head, body) = self.https.ask(self.agent.address(), request, headers)?;
        Ok((code, head, String::from_utf8_lossy(&body).into_owned()))
    }

    fn with(&self, token: &str, request: &str) -> Result<(u16, String, String)> {
        self.ask(request, &[("Authorization", &format!("Bearer {token}"))])
    }

    /// Asks until the API server has reviewed the token: on a busy machine it may answer too late, and then the agent
    /// asks it nothing for some seconds.
    fn expect(&self, token: &str, request: &str, code: u16) -> Result<String> {
        let (got, _, says) = within(SOON, "the API server answers in time", || {
            let answer = self.with(token, request)?;
            let is_late = answer.0 == 503 && code != 503;
            self.late.set(self.late.get() + u32::from(is_late));
            Ok((!is_late).then_some(answer))
        })?;
        ensure!(got == code, "{request} with `{}` answered {got} instead of {code}: {says}", owner(token));
        Ok(says)
    }

    /// Returns the metrics of a reading that began after this call.
    fn metrics(&self, token: &str) -> Result<Metrics> {
        thread::sleep(self.agent.coalesced_for());
        Ok(Metrics::parse(&self.expect(token, "GET /metrics", 200)?))
    }
}

/// Returns the end of a token, for messages. The tokens of this test are not secret.
fn owner(token: &str) -> &str {
    token.get(token.len().saturating_sub(8)..).unwrap_or_default()
}

fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config").join(name)
}

/// Creates the accounts and their roles, and waits until the API server applies them.
fn make_readers(plane: &ControlPlane) -> Result<()> {
    plane.apply(&file("rbac-authorization.yaml"))?;
    let manifests = TempDir::new()?;
    let path = manifests.path().join("readers.yaml");
    fs::write(&path, READERS)?;
    plane.apply(&path)?;
    let may = |user: &str, verb: &str, what: &str| {
        let user = format!("--as=system:serviceaccount:{user}");
        within(SOON, "the API server goes by the roles", || {
            Ok(plane.admin_kubectl(&["auth", "can-i", verb, what, &user]).ok())
        })
    };
    may("podperf:podperf", "create", "tokenreviews.authentication.k8s.io")?;
    may("podperf:podperf", "create", "subjectaccessreviews.authorization.k8s.io")?;
    may("readers:scraper", "get", "/metrics")?;
    may("readers:debugger", "get", "/debug/waits")?;
    may("readers:everything", "delete", "/x").map(drop)
}

fn each_may_read_what_a_role_says_and_nothing_else() -> Result<()> {
    let plane = SharedPlane::take()?;
    make_readers(&plane)?;
    let outcome = cells(&plane);
    let path = file("rbac-authorization.yaml").display().to_string();
    plane.admin_kubectl(&["delete", "-f", &path])?;
    outcome
}

fn cells(plane: &ControlPlane) -> Result<()> {
    let guarded = Guarded::start(plane)?;
    let token = |account| plane.admin().token(NAMESPACE, account, AN_HOUR);
    let (nobody, scraper) = (token("nobody")?, token("scraper")?);
    let (debugger, everything) = (token("debugger")?, token("everything")?);
    let expired = plane.agent_token(Duration::ZERO)?;
    let of_podperf = plane.agent_token(AN_HOUR)?;
    let garbage = "ey.not.a-token";

    // Requests without a valid token.
    for (request, headers, code) in [
        ("GET /metrics", None, 401),
        ("GET /", None, 401),
        ("GET /nothing", None, 401),
        ("GET /debug/profile", None, 401),
        ("GET //livez", None, 401),
        ("GET /livez/", None, 401),
        ("GET /livez/../metrics", None, 401),
        ("GET /livez;x", None, 401),
        ("GET /livez", None, 200),
        ("GET /livez?x=/metrics", None, 200),
        ("GET /readyz", None, 200),
        ("GET /metrics", Some(format!("Basic {scraper}")), 401),
        ("GET /metrics", Some(scraper.clone()), 401),
        ("GET /metrics", Some("Bearer ".to_owned()), 401),
        ("GET /metrics", Some(format!("Bearer {garbage}")), 401),
        ("GET /metrics", Some(format!("Bearer {expired}")), 401),
        ("GET /metrics", Some(format!("Bearer {scraper}x")), 401),
        ("GET /livez", Some(format!("Bearer {garbage}")), 200),
    ] {
        let headers: Vec<_> = headers.iter().map(|value| ("Authorization", value.as_str())).collect();
        let (got, head, says) = guarded.ask(request, &headers)?;
        ensure!(got == code, "{request} with {headers:?} answered {got} instead of {code}: {says}");
        ensure!(code != 401 || head.to_lowercase().contains("www-authenticate: bearer"), "{head}");
    }
    let twice = [("Authorization", &*format!("Bearer {everything}")), ("Authorization", &*format!("Bearer {nobody}"))];
    ensure!(guarded.ask("GET /metrics", &twice)?.0 == 401, "two tokens are let in");

    // Requests with a valid token.
    let first = Instant::now();
    for (token, request, code) in [
        (&nobody, "GET /metrics", 403),
        (&nobody, "GET /debug/waits", 403),
        // The account of the expired token.
        (&of_podperf, "GET /metrics", 403),
        (&scraper, "GET /metrics", 200),
        (&scraper, "GET /metrics?x=y", 200),
        (&scraper, "GET http://elsewhere/metrics", 200),
        (&scraper, "HEAD /metrics", 403),
        (&scraper, "POST /metrics", 403),
        (&scraper, "GET /status", 403),
        (&scraper, "GET /", 403),
        (&scraper, "GET /debug/waits", 403),
        (&scraper, "GET //metrics", 403),
        (&scraper, "GET /metrics/", 403),
        (&scraper, "GET /Metrics", 403),
        (&scraper, "GET /%6detrics", 403),
        (&scraper, "GET /metrics/../status", 403),
        (&scraper, "GET /./metrics", 403),
        (&debugger, "GET /debug/waits", 200),
        (&debugger, "GET /metrics", 403),
        // The role for one path does not open another path.
        (&debugger, "GET /debug/../metrics", 404),
        (&debugger, "GET /debug/..%2fmetrics", 404),
        (&debugger, "GET /debug/%2e%2e/metrics", 404),
        (&debugger, "DELETE /debug/recordings/x", 403),
        (&debugger, "GET /debug", 403),
        (&everything, "GET /metrics", 200),
        (&everything, "HEAD /metrics", 200),
        (&everything, "POST /metrics", 405),
        (&everything, "GET /nothing", 404),
        (&everything, "GET //metrics", 404),
    ] {
        guarded.expect(token, request, code)?;
    }
    let says = guarded.expect(&nobody, "GET /metrics", 403)?;
    ensure!(says.contains("`system:serviceaccount:readers:nobody` may not get"), "{says}");

    let metrics = guarded.metrics(&scraper)?;
    let reviewed = |result| metrics.sum(REVIEWS, &[("result", result)]);
    ensure!(reviewed("allowed") >= 5.0 && reviewed("forbidden") >= 15.0, "{:?}", metrics.get(REVIEWS, &[]));
    let late = f64::from(guarded.late.get());
    ensure!(reviewed("failed") <= late, "{} failed:\n{}", reviewed("failed"), guarded.agent.log());
    let before = metrics.sum(REVIEWS, &[]);
    for _ in 0..20 {
        guarded.expect(&scraper, "GET /metrics", 200)?;
    }
    let again = guarded.metrics(&scraper)?.sum(REVIEWS, &[]) - before;
    let due = if first.elapsed() < ALLOWED_FOR { 0.0 } else { 1.0 };
    ensure!(again <= due, "what is known is asked again {again} times, and {due} of them is due");

    let status = guarded.expect(&everything, "GET /status", 200)?;
    ensure!(status.contains("access") && status.contains("tokens are reviewed by the API server"), "{status}");
    for secret in [&nobody, &scraper, &debugger, &everything, &expired] {
        ensure!(!guarded.agent.log().contains(secret.as_str()) && !status.contains(secret.as_str()), "a token is told");
    }
    commands(&guarded, &everything, &nobody)
}

/// Runs `podperf probe` and `podperf record` with a token.
fn commands(guarded: &Guarded, good: &str, bad: &str) -> Result<()> {
    let at = |name: &str| guarded.files.path().join(name).display().to_string();
    let url = format!("https://{}", guarded.agent.address());
    for (token, expected) in [(Some(good), "ready"), (Some(bad), "answers 403"), (None, "--token-file")] {
        let mut command = std::process::Command::new(agent::binary()?);
        command.args(["probe", &url, "--ca-file", &at("ca.crt")]);
        if let Some(token) = token {
            fs::write(at("token"), token)?;
            command.args(["--token-file", &at("token")]);
        }
        if expected == "ready" {
            command.arg("--wait=20s");
        }
        let output = command.output()?;
        let says = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success() == (expected == "ready") && says.contains(expected), "{says}");
    }
    fs::write(at("token"), good)?;
    let output = std::process::Command::new(agent::binary()?)
        .args(["record", "--all", "--duration=1s", "--agent", &url, "--ca-file", &at("ca.crt")])
        .args(["--token-file", &at("token"), "-o", &at("all.folded")])
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn without_an_api_server_only_what_is_known_is_answered() -> Result<()> {
    let mut plane = ControlPlane::start()?;
    make_readers(&plane)?;
    let mut guarded = Guarded::start(&plane)?;
    let token = |account| plane.admin().token(NAMESPACE, account, AN_HOUR);
    let (nobody, scraper) = (token("nobody")?, token("scraper")?);
    guarded.expect(&scraper, "GET /metrics", 200)?;
    guarded.expect(&nobody, "GET /metrics", 403)?;
    plane.stop_api();

    guarded.expect(&scraper, "GET /metrics", 200)?;
    let (code, head, says) = guarded.with(&scraper, "GET /status")?;
    ensure!(code == 503 && head.to_lowercase().contains("retry-after: 5"), "{code}: {head}");
    ensure!(says.contains("the API server does not answer"), "{says}");
    guarded.expect(&nobody, "GET /status", 503)?;
    ensure!(guarded.ask("GET /livez", &[])?.0 == 200, "a probe needs the API server");
    guarded.agent.wait_for_log("only who was known before may read", SOON)?;
    // The agent's cache of the denied reviews has expired now.
    thread::sleep(REFUSED_FOR);
    guarded.expect(&nobody, "GET /metrics", 403)?;
    let metrics = guarded.metrics(&scraper)?;
    ensure!(metrics.sum(REVIEWS, &[("result", "failed")]) >= 2.0, "{:?}", metrics.get(REVIEWS, &[]));
    ensure!(metrics.sum("podperf_http_refusals_total", &[("reason", "unavailable")]) == 2.0, "not counted");
    ensure!(
        metrics.get("podperf_part_state", &[("part", "access"), ("state", "degraded")]) == Some(1.0),
        "not degraded"
    );

    plane.start_api()?;
    within(SOON, "the API server is asked again", || {
        Ok((guarded.with(&scraper, "GET /status")?.0 == 403).then_some(()))
    })?;
    let metrics = guarded.metrics(&scraper)?;
    ensure!(metrics.get("podperf_part_state", &[("part", "access"), ("state", "healthy")]) == Some(1.0), "not healthy");
    Ok(())
}

fn an_agent_that_may_not_review_lets_nobody_in_and_says_why() -> Result<()> {
    let plane = SharedPlane::take()?;
    make_readers(&plane)?;
    let path = file("rbac-authorization.yaml").display().to_string();
    let scraper = plane.admin().token(NAMESPACE, "scraper", AN_HOUR)?;
    plane.admin_kubectl(&["delete", "-f", &path])?;
    within(SOON, "the API server goes by the roles", || {
        let user = "--as=system:serviceaccount:podperf:podperf";
        let may = plane.admin_kubectl(&["auth", "can-i", "create", "tokenreviews.authentication.k8s.io", user]);
        Ok(may.is_err().then_some(()))
    })?;
    let guarded = Guarded::start(&plane)?;
    // An API server that is late is a reason, too, and the first one that is told.
    let line = within(SOON, "the reason is told", || {
        guarded.expect(&scraper, "GET /metrics", 503)?;
        let log = guarded.agent.log();
        Ok(log
            .lines()
            .find(|line| line.contains("may not create `tokenreviews.authentication.k8s.io`"))
            .map(str::to_owned))
    })?;
    ensure!(line.contains("config/rbac-authorization.yaml"), "{line}");
    guarded.ask("GET /readyz", &[]).context("it is not ready")?;
    Ok(())
}
