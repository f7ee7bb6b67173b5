//! `podperf probe`: checks that agents elsewhere are ready and count. `helm test` runs it in the agent's own image.

use std::{
    io::{self, Write as _},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use hyper::{Method, StatusCode};
use tokio::time::{Instant, sleep};

use super::{
    client::{Client, ClientError, Login, refusal},
    time,
};
use crate::check::probe::introduction;

/// The longest time for one answer. The agent reads the kernel for each answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two rounds.
const PAUSE: Duration = Duration::from_secs(2);

/// The flags of `podperf probe`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The agents, such as `http://127.0.0.1:9799`, or `https://` where they have certificates.
    #[arg(value_name = "URL", required = true, value_parser = Client::new)]
    agents: Vec<Client>,
    /// Time to ask again while an agent is not ready.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time::parse)]
    wait: Duration,
    #[command(flatten)]
    login: Login,
}

/// The URL of one address, and its answer or error.
type Answer = (String, Result<String, String>);

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("failed to start the runtime")?;
    let answers = runtime.block_on(ask_until_ready(arguments));
    // Name lookups that still run are abandoned: their time is over.
    runtime.shutdown_background();
    let (text, all) = report(&answers);
    // A reader that closes the pipe has read enough, and still gets the exit code.
    io::stdout().write_all(text.as_bytes()).ok();
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn ask_until_ready(arguments: &Arguments) -> Vec<Answer> {
    let end = Instant::now() + arguments.wait;
    loop {
        let mut answers = Vec::new();
        for agent in &arguments.agents {
            let agent = agent.with(&arguments.login);
            match agent.each_address().await {
                Ok(addresses) => {
                    for address in addresses {
                        answers.push((address.url(), ask(&address).await));
                    }
                }
                Err(error) => answers.push((agent.url(), Err(format!("failed to look it up: {error}")))),
            }
        }
        if report(&answers).1 || Instant::now() + PAUSE > end {
            return answers;
        }
        sleep(PAUSE).await;
    }
}

/// Returns the agent's introduction and its number of counting series, or the reason why it does not count.
async fn ask(agent: &Client) -> Result<String, String> {
    let get = async |path| {
        let says = |error: ClientError| {
            let hint = if error.is_nobody() { " (does an agent run there, and listen on this address?)" } else { "" };
            format!("{error}{hint}")
        };
        let answer = agent.ask(Method::GET, path, PATIENCE).await.map_err(says)?;
        Ok::<_, String>((answer.0, String::from_utf8_lossy(&answer.1).into_owned()))
    };
    let (code, status) = get("/status").await?;
    if let Some(refused) = refusal(code, status.as_bytes()) {
        return Err(refused);
    }
    let who = introduction(status.as_bytes()).ok_or("no podperf agent answers there, but another program")?;
    let (status, ready) = get("/readyz").await?;
    if status != StatusCode::OK {
        return Err(format!("{who}: not ready: {}", ready.trim()));
    }
    let (status, metrics) = get("/metrics").await?;
    match counts(&metrics) {
        _ if status != StatusCode::OK => Err(format!("{who}: no metrics: {}", metrics.trim())),
        0 => Err(format!("{who}: ready, but counts nothing")),
        series => Ok(format!("{who}: ready, {series} series count")),
    }
}

/// Returns the number of series of containers, pods or cgroups that are above zero. Pure.
fn counts(metrics: &str) -> usize {
    let rows = ["podperf_container_", "podperf_pod_", "podperf_cgroup_"];
    let lines = metrics.lines().filter_map(|line| line.rsplit_once(' '));
    let counters =
        lines.filter(|(series, _)| rows.iter().any(|row| series.starts_with(row)) && series.contains("_total"));
    counters.filter(|(_, value)| value.parse::<f64>().is_ok_and(|value| value > 0.0)).count()
}

/// Returns a line for each agent and a summary, and whether all agents are ready and count. Pure.
fn report(answers: &[Answer]) -> (String, bool) {
    let well = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
    let line = |(url, answer): &Answer| match answer {
        Ok(says) => format!("ok    {url}  {says}\n"),
        Err(says) => format!("FAIL  {url}  {says}\n"),
    };
    let lines: String = answers.iter().map(line).collect();
    let verdict = format!("{well} of {} agents are ready and count\n", answers.len());
    (lines + &verdict, !answers.is_empty() && well == answers.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_is_a_counter_of_somebody_above_zero() {
        let metrics = "# TYPE podperf_container_oncpu_seconds_total counter\n\
            podperf_container_oncpu_seconds_total{pod=\"a b\"} 1.5\n\
            podperf_cgroup_oncpu_seconds_total{cgroup=\"/\"} 0\n\
            podperf_cgroup_context_switches_total{cgroup=\"/\",kind=\"voluntary\"} 3e2\n\
            podperf_pod_info{pod=\"a\"} 1\n\
            podperf_bpf_drops_total{reason=\"x\"} 1\n";
        assert_eq!((counts(metrics), counts("")), (2, 0));
    }

    #[test]
    fn one_that_is_not_ready_is_named_and_fails_all() {
        let well = ("http://10.0.0.1:9799".to_owned(), Ok("podperf 0.1.0 on node a: ready, 3 series count".to_owned()));
        let ill = ("http://10.0.0.2:9799".to_owned(), Err("no connection within 2 s".to_owned()));
        let (text, all) = report(&[well.clone(), ill]);
        assert!(!all && text.contains("FAIL  http://10.0.0.2:9799  no connection"), "{text}");
        assert!(text.ends_with("1 of 2 agents are ready and count\n"), "{text}");
        assert!(report(&[well]).1);
    }

    #[test]
    fn nobody_is_not_everybody() {
        assert!(!report(&[]).1);
    }
}
