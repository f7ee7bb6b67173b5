//! The agent's server with TLS: replaced certificates, and commands that connect to such an agent.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use podperf_tests::{
    agent::{self, Agent, Metrics, NO_STACKS},
    certificates::Authority,
    command::Refusal,
    http,
    https::{Https, Stream, certificate_of},
    suite::{Test, within},
    tests,
};
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] = tests![
    #[land]
    #[beside]
    #[exact]
    a_certificate_is_replaced_without_a_scrape_lost,
    #[land]
    #[beside]
    with_tls_nothing_is_said_in_clear_text,
    #[beside]
    probe_and_record_ask_an_agent_with_tls,
    #[land]
    #[beside]
    certificates_that_cannot_be_used_are_refused_by_their_key,
];

/// The time limit of a reload. The agent reads the files every five seconds.
const RELOADED: Duration = Duration::from_secs(30);

/// A certificate authority, and the files of a server.
struct Files {
    authority: Authority,
    directory: TempDir,
}

impl Files {
    fn new() -> Result<Self> {
        let files = Self { authority: Authority::new("test-authority")?, directory: TempDir::new()? };
        files.authority.write(&files.ca())?;
        files.issue()?;
        Ok(files)
    }

    /// Issues a new certificate and key, and replaces each file atomically.
    fn issue(&self) -> Result<()> {
        let new = TempDir::new_in(self.directory.path())?;
        self.authority.issue("podperf", new.path(), "tls")?;
        for name in ["tls.crt", "tls.key"] {
            fs::rename(new.path().join(name), self.directory.path().join(name))?;
        }
        Ok(())
    }

    fn ca(&self) -> std::path::PathBuf {
        self.directory.path().join("ca.crt")
    }

    fn yaml(&self) -> String {
        let path = self.directory.path().display();
        format!(
            "server: {{tls: {{certFile: {path}/tls.crt, keyFile: {path}/tls.key}}, limits: {{requestsPerSecond: 0}}}}\n{NO_STACKS}"
        )
    }
}

fn a_certificate_is_replaced_without_a_scrape_lost() -> Result<()> {
    let files = Files::new()?;
    let agent = Agent::start(&files.yaml())?;
    let (https, address) = (Https::trusting(&files.ca())?, agent.address());
    let mut kept = https.connect(address)?;
    let old = certificate_of(&kept)?;
    ask_again(&mut kept)?;

    let (over, scrapes) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let scraper = {
        let (https, over, scrapes) = (https.clone(), Arc::clone(&over), Arc::clone(&scrapes));
        thread::spawn(move || -> Result<()> {
            while !over.load(Ordering::Relaxed) {
                let (code, _, _) = https.ask(address, "GET /metrics", &[]).context("a scrape was lost")?;
                ensure!(code == 200, "/metrics answered {code}");
                scrapes.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        })
    };
    let some_scrapes = || {
        let before = scrapes.load(Ordering::Relaxed);
        within(RELOADED, "scrapes go on", || Ok((scrapes.load(Ordering::Relaxed) > before + 5).then_some(())))
    };
    let replaced = some_scrapes().and_then(|()| {
        files.issue()?;
        within(RELOADED, "the new certificate is shown", || {
            Ok((certificate_of(&https.connect(address)?)? != old).then_some(()))
        })?;
        some_scrapes()
    });
    // A connection that began with the previous certificate stays open.
    let again = ask_again(&mut kept);
    over.store(true, Ordering::Relaxed);
    scraper.join().map_err(|_panic| anyhow!("the scraper panicked"))??;
    replaced.and(again)?;

    let (_, _, body) = https.ask(address, "GET /metrics", &[])?;
    let ends =
        Metrics::parse(&String::from_utf8(body)?).sum("podperf_server_certificate_expiry_timestamp_seconds", &[]);
    // rcgen's certificates end with the year 4096.
    ensure!(ends == 67_090_118_400.0, "the certificate ends at {ends}");
    Ok(())
}

/// Sends one of several requests on a connection.
fn ask_again(stream: &mut Stream) -> Result<()> {
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let (mut answer, mut bytes) = (Vec::new(), [0; 1024]);
    while !answer.ends_with(b"ok\n") {
        let read = stream.read(&mut bytes)?;
        ensure!(read > 0, "it was closed");
        answer.extend_from_slice(&bytes[..read]);
    }
    Ok(())
}

fn with_tls_nothing_is_said_in_clear_text() -> Result<()> {
    let files = Files::new()?;
    let agent = Agent::start(&files.yaml())?;
    ensure!(agent.log().contains(&format!("listening on https://{}", agent.address())), "{}", agent.log());
    let answer = http::get(agent.address(), "/metrics", &[]);
    ensure!(answer.is_err(), "it answers: {answer:?}");
    let strangers = TempDir::new()?;
    Authority::new("other")?.write(&strangers.path().join("ca.crt"))?;
    let stranger = Https::trusting(&strangers.path().join("ca.crt"))?.connect(agent.address());
    ensure!(stranger.is_err(), "it is believed by who knows another authority");
    Ok(())
}

fn podperf(arguments: &[&str]) -> Result<(bool, String)> {
    let output = Command::new(agent::binary()?).args(arguments).stdin(Stdio::null()).output()?;
    let says = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&says).into_owned()))
}

fn probe_and_record_ask_an_agent_with_tls() -> Result<()> {
    let files = Files::new()?;
    let agent = Agent::start(&files.yaml().replace(NO_STACKS, ""))?;
    let (url, ca) = (format!("https://127.0.0.1:{}", agent.address().port()), files.ca().display().to_string());
    let (well, says) = podperf(&["probe", &url, "--ca-file", &ca, "--wait", "20s"])?;
    ensure!(well && says.contains("ready"), "{says}");
    let (well, says) = podperf(&["probe", &url, "--ca-file", &ca, "--server-name", "elsewhere"])?;
    ensure!(!well && says.contains("certificate"), "{says}");
    let plain = format!("http://127.0.0.1:{}", agent.address().port());
    let (well, says) = podperf(&["probe", &plain, "--token-file", &ca])?;
    ensure!(!well && says.contains("clear text"), "{says}");

    let output = files.directory.path().join("all.folded");
    let record = |more: &[&str]| {
        podperf(&[&["record", "--all", "--duration", "1s", "-o", &output.display().to_string()], more].concat())
    };
    let (well, says) = record(&["--agent", &url, "--ca-file", &ca])?;
    ensure!(well && says.contains("through the agent") && output.exists(), "{says}");
    // The agent's own configuration contains its TLS settings.
    let config = config_with_address(&agent, agent.directory())?;
    let (well, says) = record(&["--config", &config, "--ca-file", &ca])?;
    ensure!(well && says.contains("through the agent at `https://"), "{says}");
    Ok(())
}

/// Returns the agent's configuration file with the address that the agent picked.
fn config_with_address(agent: &Agent, directory: &Path) -> Result<String> {
    let text = fs::read_to_string(directory.join("podperf.yaml"))?;
    let path = directory.join("with-address.yaml");
    fs::write(&path, text.replace("listen: 127.0.0.1:0", &format!("listen: {}", agent.address())))?;
    Ok(path.display().to_string())
}

fn certificates_that_cannot_be_used_are_refused_by_their_key() -> Result<()> {
    let files = Files::new()?;
    let refusal = |says: &[&str]| -> Result<()> {
        let directory = TempDir::new()?;
        Refusal::of(&mut agent::command(directory.path(), &files.yaml())?)?.expect(2, says)
    };
    let at = |name: &str| files.directory.path().join(name);
    let key = fs::read(at("tls.key"))?;
    fs::write(at("tls.key"), "none")?;
    refusal(&["failed to parse `server.tls.keyFile`", "no private key in it"])?;
    fs::write(at("tls.key"), key)?;
    files.authority.issue("other", files.directory.path(), "other")?;
    fs::rename(at("other.crt"), at("tls.crt"))?;
    refusal(&["failed to use `server.tls.certFile` and `server.tls.keyFile`", "the key must be that"])?;
    fs::remove_file(at("tls.crt"))?;
    refusal(&["failed to read `server.tls.certFile`", "mount it"])
}
