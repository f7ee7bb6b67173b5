//! `podperf healthcheck`: the kubelet's probes, in the agent's own container and by a socket that no network reaches.

use std::{os::unix::net as unix, process::ExitCode, time::Duration};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};
use nix::unistd::geteuid;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

use crate::http::own;

/// The longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The largest size of an answer, in bytes.
const MOST_BYTES: u64 = 64 << 10;

/// The flags of `podperf healthcheck`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The question for the agent.
    #[arg(value_enum)]
    what: What,
    /// The port of the agent's server.
    #[arg(long, default_value_t = 9799)]
    port: u16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// The agent's threads turn.
    Live,
    /// The agent counts.
    Ready,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("failed to start the runtime")?;
    let answer = runtime.block_on(async { timeout(PATIENCE, ask(arguments)).await });
    let answer = answer.with_context(|| format!("no answer within {PATIENCE:?}"))??;
    let Some((head, says)) = answer.split_once("\r\n\r\n") else {
        bail!("no podperf agent answers, but another program")
    };
    super::print(format!("{}\n", says.trim()).as_bytes())?;
    Ok(if head.split(' ').nth(1) == Some("200") { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn ask(Arguments { what, port }: &Arguments) -> anyhow::Result<String> {
    let path = match what {
        What::Live => "/livez",
        What::Ready => "/readyz",
    };
    let connected = unix::UnixStream::connect_addr(&own::address(*port)?);
    let connected = connected.with_context(|| format!("no agent with port {port} runs in this network namespace"))?;
    connected.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(connected)?;
    ensure!(stream.peer_cred()?.uid() == geteuid().as_raw(), "another user's process answers, not the agent");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.context("failed to ask")?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).await.context("failed to read the answer")?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
