//! A client that only opens connections, and as many as it can, keeps out neither probes nor scrapes, with and without
//! TLS, and costs the agent no memory.

use std::{
    collections::VecDeque,
    fs,
    net::SocketAddr,
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics, NO_STACKS, binary},
    deadline::Deadline,
    http,
    suite::{Test, tell},
    tests,
};
use tokio::net::TcpSocket;

use crate::strangers::Guarded;

pub(crate) const TESTS: &[Test] = tests![
    #[measures]
    a_flood_of_connections_keeps_out_no_probe_and_no_scraper,
    #[measures]
    a_flood_over_tls_keeps_out_no_probe_and_no_scraper_with_a_token,
    connections_that_end_at_once_take_no_memory,
];

/// The address of the flood; scrapes and probes come from another one.
const FLOOD: &str = "127.0.0.2:0";
/// Connections a second.
const RATE: u32 = 2000;
/// Connections that the client holds open.
const HELD: usize = 500;
/// The longest times of a probe and of a scrape, from the connection to the end of the answer.
const PROBE: Duration = Duration::from_secs(1);
const SCRAPE: Duration = Duration::from_secs(2);
/// The flood takes this time, and goes on until it has this many connections and rounds: a busy machine gets more time.
const LENGTH: Duration = Duration::from_secs(60);
const LEAST_OPENED: usize = 10_000;
const LEAST_ROUNDS: usize = 5;
/// Connections that are reset at once, by each of two threads.
const RESET: usize = 30_000;
/// The most that they may cost: connections that wait to be accepted, and answers to scrapes.
const MOST_KIB: u64 = 4 * 1024;
/// The programs of these tests are slow ones: their server takes more of the CPU for each connection.
const LIMITS: &str = "{maxPercent: 50}";

/// Opens connections at the rate, whether or not they are accepted, until `end`.
fn flood(to: SocketAddr, opened: &AtomicUsize, end: &AtomicBool) -> Result<()> {
    let from = FLOOD.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut held, begin) = (VecDeque::new(), Instant::now());
        while !end.load(Ordering::Relaxed) {
            let due = u128::from(RATE) * begin.elapsed().as_millis() / 1000;
            while (opened.load(Ordering::Relaxed) as u128) < due {
                let socket = TcpSocket::new_v4()?;
                // In a minute the client has more connections than ports.
                socket.set_reuseaddr(true)?;
                socket.bind(from)?;
                held.push_back(tokio::spawn(socket.connect(to)));
                opened.fetch_add(1, Ordering::Relaxed);
                if held.len() > HELD {
                    held.pop_front().inspect(tokio::task::JoinHandle::abort);
                    // It is closed in a turn of its own. A client that had no CPU for seconds has very many to open.
                    tokio::task::yield_now().await;
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    })
}

fn a_flood_of_connections_keeps_out_no_probe_and_no_scraper() -> Result<()> {
    let agent = Agent::start(&format!("server: {{limits: {LIMITS}}}\n{NO_STACKS}"))?;
    flooded(&agent, |path| http::get(agent.address(), path, &[]))?;
    // Nobody else answers for an agent.
    let nobody = Command::new(binary()?).args(["healthcheck", "live", "--port", "1"]).output()?;
    let says = String::from_utf8_lossy(&nobody.stderr);
    ensure!(nobody.status.code() == Some(1) && says.contains("no agent with port 1"), "{says}");
    Ok(())
}

fn a_flood_over_tls_keeps_out_no_probe_and_no_scraper_with_a_token() -> Result<()> {
    let guarded = Guarded::start(Duration::from_millis(5), &format!("  limits: {LIMITS}\n{NO_STACKS}"))?;
    flooded(&guarded.agent, |path| guarded.get(path))
}

fn connections_that_end_at_once_take_no_memory() -> Result<()> {
    let agent = Agent::start(&format!("server: {{limits: {LIMITS}}}\n{NO_STACKS}"))?;
    // The start takes more memory than the peak is to show.
    fs::write(format!("/proc/{}/clear_refs", agent.pid()), "5")?;
    let before = peak_kib(&agent)?;
    thread::scope(|scope| -> Result<()> {
        let floods = [(); 2].map(|()| scope.spawn(|| reset_at_once(agent.address())));
        for flood in floods {
            flood.join().map_err(|_panic| anyhow::anyhow!("the flood panicked"))??;
        }
        Ok(())
    })?;
    let grown = peak_kib(&agent)? - before;
    tell(&format!("{grown} KiB more after {} connections", 2 * RESET));
    ensure!(grown < MOST_KIB, "{grown} KiB more after {} connections", 2 * RESET);
    Ok(())
}

/// Opens connections one after the other, and resets each at once.
fn reset_at_once(to: SocketAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        for _ in 0..RESET {
            let socket = TcpSocket::new_v4()?;
            socket.set_zero_linger()?;
            socket.bind(FLOOD.parse()?)?;
            // On the loopback it is connected when the call returns.
            tokio::time::timeout(Duration::ZERO, socket.connect(to)).await.ok();
        }
        Ok(())
    })
}

/// Returns the most memory that was resident so far, in KiB.
fn peak_kib(agent: &Agent) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    peak.context("no peak in the status of the process")
}

/// Floods an agent. Meanwhile each probe and each scrape by `get` must be answered in time.
fn flooded(agent: &Agent, get: impl Fn(&str) -> Result<http::Answer>) -> Result<()> {
    let (to, end, opened) = (agent.address(), AtomicBool::new(false), AtomicUsize::new(0));
    let port = to.port().to_string();
    let probe = |what| -> Result<()> {
        let output = Command::new(binary()?).args(["healthcheck", what, "--port", &port]).output()?;
        let says = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success() && says.starts_with("ok"), "{what}: {says} {output:?}");
        Ok(())
    };
    let ask = |path: &str| -> Result<()> {
        let (status, ..) = get(path)?;
        ensure!(status == 200, "{path}: {status}");
        Ok(())
    };
    let begin = Instant::now();
    thread::scope(|scope| -> Result<()> {
        let flood = scope.spawn(|| flood(to, &opened, &end));
        let mut rounds = 0;
        let is_enough = |rounds| rounds >= LEAST_ROUNDS && opened.load(Ordering::Relaxed) >= LEAST_OPENED;
        let result = (|| -> Result<()> {
            while !flood.is_finished() && (begin.elapsed() < LENGTH || !is_enough(rounds)) {
                for (path, limit) in [("/livez", PROBE), ("/readyz", PROBE), ("/metrics", SCRAPE)] {
                    on_time(limit, path, || ask(path))?;
                }
                on_time(PROBE, "`healthcheck live`", || probe("live"))?;
                on_time(PROBE, "`healthcheck ready`", || probe("ready"))?;
                rounds += 1;
                thread::sleep(Duration::from_millis(500));
            }
            Ok(())
        })();
        end.store(true, Ordering::Relaxed);
        flood.join().map_err(|_panic| anyhow::anyhow!("the flood panicked"))??;
        result
    })?;
    let opened = opened.load(Ordering::Relaxed);
    tell(&format!("{opened} connections in {:.1} s", begin.elapsed().as_secs_f64()));
    // The answer must be of a reading after the flood.
    thread::sleep(agent.coalesced_for());
    let metrics = Metrics::parse(&String::from_utf8(get("/metrics")?.2)?);
    let closed = metrics.sum("podperf_http_refusals_total", &[("reason", "connections")]);
    ensure!(closed > 1000.0, "{closed} of {opened} connections were closed");
    Ok(())
}

fn on_time(limit: Duration, what: &str, ask: impl FnOnce() -> Result<()>) -> Result<()> {
    let deadline = Deadline::begin(limit);
    ask().with_context(|| what.to_owned())?;
    Ok(deadline.check(|| format!("{what} is answered beside a flood"))?)
}
