//! A client that only opens connections, and as many as it can, keeps out neither probes nor scrapes.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    process::Command,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, NO_STACKS, binary},
    http,
    suite::Test,
    tests,
};
use tokio::net::TcpSocket;

pub(crate) const TESTS: &[Test] = tests![
    #[measures]
    a_flood_of_connections_keeps_out_no_probe_and_no_scraper,
];

/// The address of the flood; scrapes and probes come from another one.
const FLOOD: &str = "127.0.0.2:0";
/// Connections a second.
const RATE: u32 = 2000;
const LENGTH: Duration = Duration::from_secs(15);
/// Connections that the client holds open.
const HELD: usize = 500;
/// The timeout of the chart's probes, and that of a scrape.
const PATIENCE: Duration = Duration::from_secs(5);
const LEAST_ROUNDS: usize = 5;

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
                socket.bind(from)?;
                held.push_back(tokio::spawn(socket.connect(to)));
                opened.fetch_add(1, Ordering::Relaxed);
                if held.len() > HELD {
                    held.pop_front().inspect(tokio::task::JoinHandle::abort);
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    })
}

fn a_flood_of_connections_keeps_out_no_probe_and_no_scraper() -> Result<()> {
    // The programs of this test are slow ones: their server takes more of the CPU for each connection.
    let agent = Agent::start(&format!("server: {{limits: {{maxPercent: 50}}}}\n{NO_STACKS}"))?;
    let (to, end, opened) = (agent.address(), AtomicBool::new(false), AtomicUsize::new(0));
    let port = to.port().to_string();
    let probe = |what| -> Result<()> {
        let output = Command::new(binary()?).args(["healthcheck", what, "--port", &port]).output()?;
        let says = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success() && says.starts_with("ok"), "{what}: {says} {output:?}");
        Ok(())
    };
    let rounds = thread::scope(|scope| -> Result<usize> {
        let flood = scope.spawn(|| flood(to, &opened, &end));
        let deadline = Instant::now() + LENGTH;
        let mut rounds = 0;
        let result = (|| -> Result<()> {
            while Instant::now() < deadline {
                for path in ["/livez", "/readyz", "/metrics"] {
                    let (status, ..) = http::get_within(PATIENCE, to, path).with_context(|| path.to_owned())?;
                    ensure!(status == 200, "{path}: {status}");
                }
                probe("live")?;
                probe("ready")?;
                rounds += 1;
                thread::sleep(Duration::from_millis(500));
            }
            Ok(())
        })();
        end.store(true, Ordering::Relaxed);
        flood.join().map_err(|_panic| anyhow::anyhow!("the flood panicked"))??;
        result.map(|()| rounds)
    })?;
    let opened = opened.load(Ordering::Relaxed);
    ensure!(opened >= usize::try_from(RATE)? * 5, "only {opened} connections were opened");
    ensure!(rounds >= LEAST_ROUNDS, "only {rounds} rounds");
    let closed = agent.fresh_metrics()?.sum("podperf_http_refusals_total", &[("reason", "connections")]);
    ensure!(closed > 1000.0, "{closed} of {opened} connections were closed");
    // Nobody else answers for an agent.
    let nobody = Command::new(binary()?).args(["healthcheck", "live", "--port", "1"]).output()?;
    let says = String::from_utf8_lossy(&nobody.stderr);
    ensure!(nobody.status.code() == Some(1) && says.contains("no agent with port 1"), "{says}");
    Ok(())
}
