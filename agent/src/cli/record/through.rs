//! A recording through a running agent.

use std::{convert::Infallible, future::pending, time::Duration};

use anyhow::{Context, bail};
use hyper::{Method, StatusCode, body::Bytes, http::response::Parts};
use serde::Deserialize;
use tokio::time::{MissedTickBehavior, interval};

use super::{
    Form, Recorded,
    progress::{EVERY, Progress},
};
use crate::{
    check::probe::{introduction, reachable},
    cli::client::{Client, Login, refusal},
    config::Config,
    http::pages::profile::STACKS,
    recording::{Selector, Wanted, WantedLatency},
};

/// The longest time for an agent to return its introduction or its progress.
const PATIENCE: Duration = Duration::from_secs(3);
/// The longest time beyond the recording: the first and the last window wait for their turn, the last for its names,
/// and the recording for its lines.
const NAMES: Duration = Duration::from_secs(240);
/// The same for calls of a function: it is searched in files, and the readings at both ends are waited for.
const ATTACHING: Duration = Duration::from_secs(60);

/// An agent that answers.
#[derive(Debug)]
pub(super) struct Running {
    client: Client,
    /// `podperf VERSION on node NAME`.
    introduction: String,
}

#[derive(Deserialize)]
struct Far {
    seconds: Option<f64>,
    samples: u64,
}

/// Returns the named agent, or the agent of this node if it runs.
pub(super) async fn find(named: Option<&Client>, config: &Config, login: &Login) -> anyhow::Result<Option<Running>> {
    let client = match named {
        Some(named) => named.with(login),
        None => of_this_node(config)?.with(login),
    };
    let url = client.url();
    let (status, body) = match client.ask(Method::GET, "/status", PATIENCE).await {
        Ok(answer) => answer,
        // An agent whose certificate is not trusted is still a running agent.
        Err(error) if named.is_some() || !error.is_nobody() => {
            return Err(error).with_context(|| {
                format!(
                    "failed to reach the agent at `{url}` (is it running? without `--agent`, podperf can record alone)"
                )
            });
        }
        Err(_) => return Ok(None),
    };
    if let Some(refused) = refusal(status, &body) {
        bail!("failed to record through the agent at `{url}`: {refused}");
    }
    match introduction(&body) {
        Some(introduction) => Ok(Some(Running { client, introduction })),
        None if named.is_some() => {
            bail!("no podperf agent answers at `{url}`, but another program (set `--agent URL`)")
        }
        None => Ok(None),
    }
}

/// Returns a client for the address that the configuration contains.
fn of_this_node(config: &Config) -> anyhow::Result<Client> {
    let scheme = if config.server.tls_files().is_some() { "https" } else { "http" };
    Ok(Client::new(&format!("{scheme}://{}", reachable(config.listen)))?)
}

/// Returns the agent's words about a subject that is none.
pub(super) async fn says_of_subject(agent: &Running, word: &str) -> Option<String> {
    let query = form_urlencoded::Serializer::new(String::new()).append_pair("subject", word).finish();
    let (status, body) = agent.client.ask(Method::GET, &format!("/flamegraph?{query}"), PATIENCE).await.ok()?;
    (status == StatusCode::BAD_REQUEST).then(|| String::from_utf8_lossy(&body).trim().to_owned())
}

/// Records through the agent, and returns the body of its answer.
pub(super) async fn record(agent: &Running, wanted: &Wanted, form: Form) -> anyhow::Result<Recorded> {
    let id = new_id();
    let mut query = form_urlencoded::Serializer::new(String::new());
    if wanted.selector != Selector::All {
        query.append_pair("subject", &wanted.selector.to_string());
    }
    if !wanted.filter.is_empty() {
        query.append_pair("filter", &wanted.filter.to_string());
    }
    if wanted.lines {
        query.append_pair("lines", "1");
    }
    let seconds = wanted.duration.as_secs_f64().to_string();
    query.extend_pairs([("seconds", &seconds), ("id", &id)]);
    let path = match form {
        Form::Stacks(format) => {
            query.extend_pairs([("activity", wanted.side.name()), ("format", format.name())]);
            format!("/debug/profile?{}", query.finish())
        }
        Form::Calls(format) => {
            query.append_pair("format", format.name());
            format!("/debug/syscalls?{}", query.finish())
        }
    };
    let progress = Progress::new(wanted, form, through(agent));
    let (head, body) = answer(agent, &path, &id, wanted.duration + NAMES, progress).await?;
    let stacks = head.headers.get(STACKS).and_then(|says| says.to_str().ok()).map(str::to_owned);
    Ok(Recorded { file: body.to_vec(), stacks })
}

/// Records the calls of a function through the agent, and returns the table.
pub(super) async fn measure(agent: &Running, wanted: &WantedLatency) -> anyhow::Result<Recorded> {
    let id = new_id();
    let mut query = form_urlencoded::Serializer::new(String::new());
    if wanted.selector != Selector::All {
        query.append_pair("subject", &wanted.selector.to_string());
    }
    let seconds = wanted.duration.as_secs_f64().to_string();
    let query = query.extend_pairs([("function", &*wanted.function), ("seconds", &seconds), ("id", &id)]);
    let path = format!("/debug/latency?{}", query.finish());
    let progress = Progress::of_calls(wanted, through(agent));
    let (_, body) = answer(agent, &path, &id, wanted.duration + ATTACHING, progress).await?;
    Ok(Recorded { file: body.to_vec(), stacks: None })
}

fn through(agent: &Running) -> String {
    format!("through the agent at `{}`", agent.client.url())
}

/// Returns a name for a recording.
fn new_id() -> String {
    format!("cli-{}-{:x}", std::process::id(), entropy())
}

/// Asks for a recording with this id, shows its progress, and returns the answer if it is one.
async fn answer(
    agent: &Running,
    path: &str,
    id: &str,
    patience: Duration,
    mut progress: Progress,
) -> anyhow::Result<(Parts, Bytes)> {
    let Running { client, introduction } = agent;
    let recorded = client.ask_for_all(Method::GET, path, patience);
    let recording = format!("/debug/recordings/{id}");
    let watched = async {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while progress.is_shown() {
            ticks.tick().await;
            if let Ok((StatusCode::OK, body)) = client.ask(Method::GET, &recording, PATIENCE).await
                && let Ok(far) = serde_json::from_slice::<Far>(&body)
            {
                let elapsed = far.seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                progress.show(elapsed, far.samples);
            }
        }
    };
    let interrupted = async {
        while tokio::signal::ctrl_c().await.is_ok() {
            // If the request does not arrive, the recording goes on to its end.
            client.ask(Method::DELETE, &recording, PATIENCE).await.ok();
        }
    };
    // All three run at once: a slow answer about the progress must not delay the recording.
    let beside = async { tokio::join!(watched, interrupted, pending::<Infallible>()).2 };
    let answer = tokio::select! {
        answer = recorded => answer,
        never = beside => match never {},
    };
    drop(progress);
    let (head, body) = answer.with_context(|| format!("the agent at `{}` broke off ({introduction})", client.url()))?;
    if head.status == StatusCode::OK {
        return Ok((head, body));
    }
    let says = String::from_utf8_lossy(&body);
    match head.status {
        // An agent without this endpoint returns an empty body.
        StatusCode::NOT_FOUND if says.trim().is_empty() => bail!(
            "the agent at `{}` is too old to record: {introduction} (upgrade it, or stop it and record alone)",
            client.url()
        ),
        _ => bail!("{}", says.trim()),
    }
}

/// Returns a number that makes the recording's id unique: another container may have a process with the same pid.
fn entropy() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos()
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::{export::flamegraph::Format, filter::Filter, recording::Side};

    const EMPTY: &[u8] = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";

    #[tokio::test]
    async fn a_recording_is_asked_for_before_anybody_says_how_far_it_is() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = async {
            let mut streams = [listener.accept().await.unwrap().0, listener.accept().await.unwrap().0];
            for stream in &mut streams {
                assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0, "closed without a request");
            }
            // The client closes a request that it has abandoned.
            let open = streams.iter().all(|stream| stream.try_read(&mut [0]).is_err());
            assert!(open, "the recording was asked for only when the other question was given up");
            for stream in &mut streams {
                stream.write_all(EMPTY).await.unwrap();
            }
        };
        let client = Client::new(&url).unwrap();
        let agent = Running { client, introduction: "podperf 0.0.1 on node a".to_owned() };
        let (selector, side, filter) = (Selector::All, Side::OffCpu, Filter::default());
        let wanted = Wanted { selector, side, filter, duration: Duration::from_secs(1), lines: false };
        let (recorded, ()) = tokio::join!(record(&agent, &wanted, Form::Stacks(Format::Folded)), server);
        assert!(recorded.unwrap_err().to_string().contains("too old to record"));
    }
}
