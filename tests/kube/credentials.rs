//! The agent's role and credentials: revoked, expired, missing, and granted again while the agent runs.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics},
    cluster::{Cluster, ONCPU, RECOVERY, SHOP, SOON, Spoilt, ensure_close, wait_for_part},
    control_plane::NEEDS,
    suite::{Test, tell},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    without_a_role_the_agent_names_it_and_needs_no_restart_once_it_is_granted: NEEDS,
    #[beside] an_expired_token_is_told_and_a_new_one_is_taken: NEEDS,
    #[beside] a_token_file_that_is_missing_empty_or_garbage_is_told: NEEDS,
];

const AN_HOUR: Duration = Duration::from_secs(3600);
/// The life of a token, long enough to start the agent.
const SHORT_LIFE: Duration = Duration::from_secs(10);
const FAILURES: &str = "podperf_kube_watch_failures_total";
/// The time in which the agent has no role: five attempts fit with waits that double, and more than seven with constant
/// waits.
const REFUSED_FOR: Duration = Duration::from_secs(6);
/// The shortest length of the first wait.
const FIRST_WAIT: Duration = Duration::from_millis(400);

fn without_a_role_the_agent_names_it_and_needs_no_restart_once_it_is_granted() -> Result<()> {
    let spoilt = Spoilt::start(AN_HOUR)?;
    spoilt.plane.revoke()?;
    let start = Instant::now();
    let mut cluster = Cluster::join(spoilt, "", "")?;
    let finished = cluster.run_once("early", "app")?;

    let says = [
        "may not list `pods` at the cluster scope",
        "grant `get`, `list` and `watch`",
        "service account `podperf/podperf`",
        "config/rbac.yaml",
    ];
    let detail = wait_for_part(&cluster.agent, "pods", "degraded", &says)?;
    let line = cluster.agent.wait_for_log(&detail, SOON)?;
    ensure!(line.contains("WARN"), "{line}");
    let (code, _, reason) = cluster.agent.get("/readyz", &[])?;
    let reason = String::from_utf8(reason)?;
    ensure!(code == 503 && reason.contains(&detail), "/readyz answered {code}: {reason}");

    thread::sleep(REFUSED_FOR.saturating_sub(start.elapsed()));
    let failures = of(&cluster.agent.metrics()?, FAILURES)?;
    let most = 1.0 + (1.0 + start.elapsed().div_duration_f64(FIRST_WAIT)).log2();
    ensure!((2.0..=most).contains(&failures), "{failures} attempts in {:?}", start.elapsed());
    tell(&format!("403: {failures} attempts in {:.1?}", start.elapsed()));
    let log = cluster.agent.log();
    ensure!(log.matches("may not list").count() == 1, "the same reason again and again:\n{log}");

    cluster.plane.grant()?;
    let granted = Instant::now();
    cluster.wait_for_connection()?;
    tell(&format!("403: connected {:.1?} after the role was granted", granted.elapsed()));
    cluster.wait_for_cpu("early", "app", finished.cpu)?;
    ensure!(cluster.agent.get("/readyz", &[])?.0 == 200, "named, but not ready");
    ensure_discreet(&cluster.agent, &[token(&cluster)?])
}

fn an_expired_token_is_told_and_a_new_one_is_taken() -> Result<()> {
    let spoilt = Spoilt::start_own(SHORT_LIFE)?;
    let born = Instant::now();
    let mut cluster = Cluster::join(spoilt, "", "")?;
    cluster.wait_for_connection()?;
    let before = cluster.run_once("before", "app")?;
    cluster.wait_for_cpu("before", "app", before.cpu)?;
    let old = token(&cluster)?;

    // The server does not end a watch when a token expires, so the test also stops the server.
    thread::sleep(SHORT_LIFE.saturating_sub(born.elapsed()));
    cluster.plane.start_api()?;
    cluster.agent.wait_for_log("token not accepted (expired, or of another cluster?)", RECOVERY)?;
    let server = format!("failed to log in at the API server at `https://{}`", cluster.plane.address());
    wait_for_part(&cluster.agent, "pods", "degraded", &[&server, "token not accepted"])?;
    let after = cluster.run_once("after", "app")?;
    let metrics = cluster.agent.fresh_metrics()?;
    ensure!(cpu(&metrics, "after").is_none(), "named without a token");
    ensure_close("before", cpu(&metrics, "before").context("its series is gone")?, before.cpu)?;

    let new = cluster.plane.agent_token(AN_HOUR)?;
    cluster.credentials.write_token(&new)?;
    let written = Instant::now();
    cluster.wait_for_connection()?;
    tell(&format!("401: connected {:.1?} after the new token was written", written.elapsed()));
    cluster.wait_for_cpu("after", "app", after.cpu)?;
    wait_for_part(&cluster.agent, "pods", "healthy", &[])?;
    ensure_discreet(&cluster.agent, &[old, new])
}

fn a_token_file_that_is_missing_empty_or_garbage_is_told() -> Result<()> {
    let mut spoilt = Spoilt::start(AN_HOUR)?;
    let (path, good) = (spoilt.credentials.path().join("token"), spoilt.plane.agent_token(AN_HOUR)?);
    let garbage = "Z2FyYmFnZQ==\u{1}\nnot-a-token-either";
    for (case, token, says) in [
        ("missing", None, "failed to read token `"),
        ("empty", Some(""), "no token was sent (is its file empty?)"),
        ("garbage", Some(garbage), "failed to use the token: not one line of text"),
        ("unsigned", Some("Z2FyYmFnZQ"), "token not accepted"),
    ] {
        match token {
            Some(token) => fs::write(&path, token)?,
            None => fs::remove_file(&path)?,
        }
        let cluster = Cluster::join(spoilt, "", "")?;
        wait_for_part(&cluster.agent, "pods", "degraded", &[says]).context(case)?;
        let (code, _, _) = cluster.agent.get("/readyz", &[])?;
        ensure!(code == 503, "{case}: /readyz answered {code}");
        let finished = cluster.run_once(case, "app")?;

        cluster.credentials.write_token(&good)?;
        cluster.wait_for_connection().context(case)?;
        cluster.wait_for_cpu(case, "app", finished.cpu)?;
        ensure_discreet(&cluster.agent, &[good.clone(), garbage.into(), "Z2FyYmFnZQ".into()])?;
        spoilt = cluster.into_spoilt();
    }
    Ok(())
}

/// Checks that the agent's output has none of these secrets.
fn ensure_discreet(agent: &Agent, secrets: &[String]) -> Result<()> {
    let mut said = vec![agent.log()];
    for (path, accept) in
        [("/status", "text/plain"), ("/status", "application/json"), ("/readyz", ""), ("/metrics", "")]
    {
        said.push(String::from_utf8(agent.get(path, &[("Accept", accept)])?.2)?);
    }
    for part in secrets.iter().flat_map(|secret| secret.split(['.', '\n'])).filter(|part| !part.is_empty()) {
        ensure!(!said.iter().any(|text| text.contains(part)), "a token is told: {part}");
    }
    Ok(())
}

fn token<P>(cluster: &Cluster<P>) -> Result<String> {
    Ok(fs::read_to_string(cluster.credentials.path().join("token"))?)
}

fn of(metrics: &Metrics, name: &str) -> Result<f64> {
    metrics.get(name, &[]).with_context(|| format!("no `{name}`"))
}

fn cpu(metrics: &Metrics, pod: &str) -> Option<f64> {
    metrics.get(ONCPU, &[("namespace", SHOP), ("pod", pod)])
}
