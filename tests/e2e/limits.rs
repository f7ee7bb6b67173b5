//! Limits on requests: connections, headers, time, and requests a second.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, NO_STACKS, testing},
    http,
    suite::{Test, within},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    #[land]
    #[measures]
    connections_that_are_held_open_keep_no_scrape_out,
    #[land]
    #[measures]
    headers_that_do_not_end_are_given_up,
    #[land]
    headers_that_are_too_large_and_bodies_are_refused,
    #[land]
    #[measures]
    who_asks_too_often_is_told_and_probes_are_answered,
    #[land]
    the_agent_listens_where_it_is_told_to_and_nowhere_else,
];

const REFUSALS: &str = "podperf_http_refusals_total";
const SOON: Duration = Duration::from_secs(10);

/// Opens a connection and sends the beginning of a request.
fn begun(agent: &Agent) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(agent.address())?;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nX-Slow: ")?;
    Ok(stream)
}

/// Returns whether the other side has closed the connection. The other side may not have sent data before.
fn is_closed(stream: &mut TcpStream) -> bool {
    // A reset also ends the connection.
    matches!(stream.read(&mut [0; 512]), Ok(0))
        || stream.take_error().is_ok_and(|error| error.is_some())
        || stream.write_all(b"x").and_then(|()| stream.write_all(b"x")).is_err()
}

fn connections_that_are_held_open_keep_no_scrape_out() -> Result<()> {
    let agent = Agent::start(&(testing("connections=8") + &testing("headerTimeout=10m") + NO_STACKS))?;
    let mut held = (0..24).map(|_| begun(&agent)).collect::<Result<Vec<_>>>()?;
    for _ in 0..5 {
        for stream in &mut held {
            // The test writes byte by byte. The agent has closed some of the connections by now.
            stream.write_all(b"x").ok();
        }
        agent.metrics().context("a scrape among connections that are held open")?;
    }
    let first = held.first_mut().context("none")?;
    ensure!(is_closed(first), "the one that was held for the longest is still open");
    let closed = agent.fresh_metrics()?.sum(REFUSALS, &[("reason", "connections")]);
    ensure!(closed >= 16.0, "{closed} were closed of 24 that have 8 places");
    Ok(())
}

fn headers_that_do_not_end_are_given_up() -> Result<()> {
    let agent = Agent::start(&(testing("headerTimeout=1s") + NO_STACKS))?;
    let mut slow = begun(&agent)?;
    let mut silent = TcpStream::connect(agent.address())?;
    silent.set_read_timeout(Some(SOON))?;
    ensure!(is_closed(&mut silent), "it waits for ever for a request");
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).ok();
    let answer = String::from_utf8_lossy(&answer);
    ensure!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    Ok(())
}

fn headers_that_are_too_large_and_bodies_are_refused() -> Result<()> {
    let agent = Agent::start(&format!("{NO_STACKS}server: {{limits: {{}}}}"))?;
    let (most, too_much) = ("x".repeat(15_000), "x".repeat(40_000));
    let (code, _, _) = agent.get("/metrics", &[("X-Large", &most)])?;
    ensure!(code == 200, "15000 bytes of headers: {code}");
    // The server does not read requests over the limit, so the write may fail as well.
    match agent.get("/metrics", &[("X-Large", &too_much)]) {
        Ok((code, _, _)) => ensure!(code == 431, "40000 bytes of headers: {code}"),
        Err(error) => ensure!(error.is::<std::io::Error>(), "{error:#}"),
    }
    let many: Vec<_> = (0..200).map(|number| format!("X-{number}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "x")).collect();
    let (code, _, _) = agent.get("/metrics", &many)?;
    ensure!(code == 431, "200 headers: {code}");

    let (code, _, says) = http::ask(agent.address(), "POST /metrics", &[("Content-Length", "5")], "hello")?;
    let says = String::from_utf8_lossy(&says).into_owned();
    ensure!(code == 413 && says.contains("body"), "{code}: {says}");
    ensure!(agent.fresh_metrics()?.sum(REFUSALS, &[("reason", "body")]) == 1.0, "not counted");
    Ok(())
}

fn who_asks_too_often_is_told_and_probes_are_answered() -> Result<()> {
    let agent = Agent::start(&format!("{NO_STACKS}server: {{limits: {{requestsPerSecond: 2}}}}"))?;
    let (mut served, mut refused) = (0, 0);
    // The burst is the rate of one second: two requests. All 50 requests would need 24 seconds at this rate, and take
    // far less here.
    for _ in 0..50 {
        let (code, head, _) = agent.get("/status", &[])?;
        match code {
            200 => served += 1,
            429 => {
                ensure!(head.contains("retry-after: 1"), "{head}");
                refused += 1;
            }
            code => anyhow::bail!("/status answered {code}"),
        }
        let (code, _, _) = agent.get("/livez", &[])?;
        ensure!(code == 200, "/livez answered {code}");
    }
    ensure!(served >= 2 && refused > 0, "{served} served, {refused} refused");
    let metrics = within(SOON, "a scrape is let in", || Ok(agent.metrics().ok()))?;
    let counted = metrics.sum(REFUSALS, &[("reason", "rate")]);
    ensure!(counted >= f64::from(refused), "{counted} counted of {refused}");
    ensure!(metrics.sum("podperf_http_requests_total", &[("code", "429")]) == counted, "the codes say another number");
    Ok(())
}

fn the_agent_listens_where_it_is_told_to_and_nowhere_else() -> Result<()> {
    let agent = Agent::start(NO_STACKS)?;
    let mut listening = Vec::new();
    for file in ["tcp", "tcp6", "udp", "udp6"] {
        let table = std::fs::read_to_string(format!("/proc/{}/net/{file}", agent.pid()))?;
        let sockets = sockets_of(agent.pid())?;
        for line in table.lines().skip(1) {
            let fields: Vec<_> = line.split_whitespace().collect();
            // `sl local_address rem_address st ... inode`. 0A is LISTEN, and a datagram socket accepts packets from any
            // address.
            if let [_, local, _, state, _, _, _, _, _, inode, ..] = fields.as_slice()
                && (*state == "0A" || file.starts_with("udp"))
                && sockets.iter().any(|socket| socket == inode)
            {
                listening.push(format!("{file} {local}"));
            }
        }
    }
    let expected = format!("tcp 0100007F:{:04X}", agent.address().port());
    ensure!(listening == [expected.as_str()], "{listening:?} instead of {expected}");
    Ok(())
}

/// Returns the inodes of a process' sockets.
fn sockets_of(pid: u32) -> Result<Vec<String>> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd"))?.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let inode = |link: std::path::PathBuf| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    Ok(links.filter_map(inode).collect())
}
