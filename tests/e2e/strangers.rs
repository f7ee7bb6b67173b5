//! Clients without a token cannot lock out a reader with a token, with the default limits. The test plays the API
//! server: it knows one token, and counts its reviews.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, SHARES_READINGS},
    certificates::Authority,
    http,
    https::{Https, Stream},
    suite::{Test, within},
    tests,
};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] =
    tests![who_has_no_token_keeps_out_nobody_who_has_one, requests_with_one_token_wait_for_one_review,];

const GOOD: &str = "the-good-token";
const SOON: Duration = Duration::from_secs(30);
const STRANGERS: usize = 100;
const SCRAPES: usize = 100;

/// An API server that answers both reviews.
struct Played {
    address: SocketAddr,
    /// Number of token reviews.
    reviews: Arc<AtomicU64>,
}

impl Played {
    fn start(takes: Duration) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let (address, reviews) = (listener.local_addr()?, Arc::<AtomicU64>::default());
        let counted = Arc::clone(&reviews);
        // This thread ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counted = Arc::clone(&counted);
                thread::spawn(move || serve(stream, &counted, takes));
            }
        });
        Ok(Self { address, reviews })
    }

    fn reviews(&self) -> u64 {
        self.reviews.load(Ordering::Relaxed)
    }
}

/// Answers the requests of a connection until it is closed.
fn serve(stream: TcpStream, reviews: &AtomicU64, takes: Duration) -> Result<()> {
    let mut answers = stream.try_clone()?;
    let mut requests = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        ensure!(requests.read_line(&mut line)? > 0, "closed");
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        loop {
            line.clear();
            requests.read_line(&mut line)?;
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        requests.read_exact(&mut body)?;
        let mut review: Value = serde_json::from_slice(&body)?;
        if path.contains("tokenreviews") {
            reviews.fetch_add(1, Ordering::Relaxed);
            thread::sleep(takes);
            let good = review["spec"]["token"] == GOOD;
            review["status"] = json!({"authenticated": good, "user": {"username": if good { "scraper" } else { "" }}});
        } else {
            review["status"] = json!({"allowed": true});
        }
        let body = review.to_string();
        let head =
            format!("HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        answers.write_all((head + &body).as_bytes())?;
    }
}

/// An agent that requires tokens, and trusts a played API server.
pub(crate) struct Guarded {
    pub(crate) agent: Agent,
    https: Https,
    api: Played,
    _files: TempDir,
}

impl Guarded {
    /// Starts one with more configuration, which begins with more keys of `server`. A review of a token takes this long.
    pub(crate) fn start(takes: Duration, more: &str) -> Result<Self> {
        let (files, api) = (TempDir::new()?, Played::start(takes)?);
        let path = files.path();
        let authority = Authority::new("test-authority")?;
        authority.write(&path.join("ca.crt"))?;
        authority.issue("podperf", path, "tls")?;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", api.address)}}],
            "users": [{"name": "u", "user": {"token": "of-the-agent"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        });
        fs::write(path.join("kubeconfig"), kubeconfig.to_string())?;
        let agent = Agent::start(&format!(
            "{SHARES_READINGS}identity: none\nkubernetes: {{kubeconfig: {path}/kubeconfig}}\nserver:\n  tls: {{certFile: {path}/tls.crt, \
             keyFile: {path}/tls.key}}\n  authorization: {{enabled: true}}\n{more}",
            path = path.display(),
        ))?;
        let https = Https::trusting(&path.join("ca.crt"))?;
        Ok(Self { agent, https, api, _files: files })
    }

    fn connect(&self, source: IpAddr) -> Result<Stream> {
        self.https.connect_from(source, self.agent.address())
    }

    /// Sends a request with the token, on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Result<http::Answer> {
        let authorization = [("Authorization", &*format!("Bearer {GOOD}"))];
        self.https.ask(self.agent.address(), &format!("GET {path}"), &authorization)
    }
}

/// Sends requests without a token, or each time with another token. It keeps its connections as long as it can.
fn be_a_stranger(guarded: &Guarded, number: usize, source: IpAddr, stop: &AtomicBool, refused: &AtomicU64) {
    let mut asked = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut stream) = guarded.connect(source) else { continue };
        while !stop.load(Ordering::Relaxed) {
            asked += 1;
            let token = format!("Bearer ey.{number}.{asked}");
            let headers = if number.is_multiple_of(10) { &[("Authorization", token.as_str())][..] } else { &[] };
            match http::get_again(&mut stream, "/metrics", headers) {
                Ok((401 | 429, ..)) => refused.fetch_add(1, Ordering::Relaxed),
                // The agent closed the connection in favour of another one. The client opens it again.
                _ => break,
            };
        }
    }
}

#[expect(clippy::print_stdout, reason = "the figures are what is asked for")]
fn who_has_no_token_keeps_out_nobody_who_has_one() -> Result<()> {
    let guarded = Guarded::start(Duration::from_millis(5), "")?;
    let scraper = IpAddr::from([127, 0, 0, 1]);
    for (what, strangers) in [("another address", IpAddr::from([127, 0, 0, 2])), ("the same address", scraper)] {
        let (stop, refused, began) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
        let (reviews_then, mut kept) = (guarded.api.reviews(), None::<Stream>);
        let mut scrape = |number: usize| -> Result<()> {
            // Some requests use a new connection, as after a pause.
            let stream = kept.take().filter(|_| !number.is_multiple_of(25));
            let mut stream = stream.map_or_else(|| guarded.connect(scraper), Ok)?;
            let authorization = [("Authorization", &*format!("Bearer {GOOD}"))];
            let (code, _, says) = http::get_again(&mut stream, "/metrics", &authorization)
                .with_context(|| format!("scrape {number}, strangers at {what}"))?;
            let says = String::from_utf8_lossy(&says);
            ensure!(code == 200, "scrape {number}, strangers at {what}, is {code}: {says}");
            kept = Some(stream);
            Ok(())
        };
        // The scraper is like a Prometheus that was there before the strangers.
        scrape(0)?;
        let scraped = thread::scope(|scope| {
            let ask = |number| be_a_stranger(&guarded, number, strangers, &stop, &refused);
            for number in 0..STRANGERS {
                scope.spawn(move || ask(number));
            }
            let come =
                within(SOON, "strangers are refused", || Ok((refused.load(Ordering::Relaxed) > 50).then_some(())));
            let scraped = come.and_then(|()| {
                (1..=SCRAPES).try_for_each(|number| {
                    thread::sleep(Duration::from_millis(50));
                    scrape(number)
                })
            });
            stop.store(true, Ordering::Relaxed);
            scraped
        });
        scraped?;
        let (reviews, seconds) = (guarded.api.reviews() - reviews_then, began.elapsed().as_secs());
        println!(
            "strangers at {what}: {SCRAPES} of {SCRAPES} scrapes are 200 beside {} refused requests; {reviews} reviews in \
             {seconds} s",
            refused.into_inner()
        );
        // An address gets 5 reviews a second, and the size of the bucket. The scraper's own token gets one review a
        // minute.
        ensure!(reviews <= 5 * (seconds + 2) + seconds / 60 + 1, "{reviews} reviews in {seconds} s");
    }
    Ok(())
}

fn requests_with_one_token_wait_for_one_review() -> Result<()> {
    let guarded = Guarded::start(Duration::from_millis(500), "")?;
    let source = IpAddr::from([127, 0, 0, 1]);
    let codes = thread::scope(|scope| {
        let ask = |_| {
            scope.spawn(|| -> Result<u16> {
                let authorization = [("Authorization", &*format!("Bearer {GOOD}"))];
                Ok(http::get_again(&mut guarded.connect(source)?, "/metrics", &authorization)?.0)
            })
        };
        let asking: Vec<_> = (0..20).map(ask).collect();
        asking.into_iter().map(|thread| thread.join().ok()?.ok()).collect::<Vec<_>>()
    });
    ensure!(codes.iter().all(|code| *code == Some(200)), "{codes:?}");
    ensure!(guarded.api.reviews() == 1, "{} reviews of one token", guarded.api.reviews());
    Ok(())
}
