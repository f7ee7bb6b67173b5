//! Commands in a guest: it runs what it is asked for over a port of its own, and says what came of it.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};

/// Longer than anything that a test asks of a guest.
const ANSWER_DEADLINE: Duration = Duration::from_secs(120);
/// How often a deadline is looked at.
const PATIENCE: Duration = Duration::from_millis(200);

/// The guest's port; tests/node/guest/console is its other end.
#[derive(Debug)]
pub(super) struct Console {
    stream: BufReader<UnixStream>,
    asked: u32,
}

impl Console {
    /// The socket is the emulator's; the guest listens once it is up, and is heard then.
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), asked: 0 })
    }

    /// Waits until the guest listens.
    pub(super) fn wait(&mut self, deadline: Duration) -> Result<()> {
        self.answer("up", deadline).map(drop).context("the guest does not listen")
    }

    /// What a command printed on stdout and stderr; an error with that when it failed.
    pub(super) fn run(&mut self, command: &str) -> Result<String> {
        self.asked += 1;
        let id = self.asked.to_string();
        writeln!(self.stream.get_mut(), "{id} {}", STANDARD.encode(command))?;
        let (status, output) = self.answer(&id, ANSWER_DEADLINE).with_context(|| format!("asked to `{command}`"))?;
        ensure!(status == "0", "`{command}` failed in the guest ({status}): {output}");
        Ok(output)
    }

    /// What comes before the line `@ID STATUS`; late answers to others are left out.
    fn answer(&mut self, id: &str, deadline: Duration) -> Result<(String, String)> {
        let start = Instant::now();
        let (mut output, mut line) = (String::new(), Vec::new());
        loop {
            match self.stream.read_until(b'\n', &mut line) {
                Ok(0) => bail!("the guest has ended"),
                Ok(_) if line.ends_with(b"\n") => {}
                Ok(_) => continue,
                // What has come of the line stays in it.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    ensure!(start.elapsed() < deadline, "no answer from the guest in {deadline:?}");
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let text = String::from_utf8_lossy(&line).into_owned();
            line.clear();
            match text.trim_end().strip_prefix('@').and_then(|end| end.split_once(' ')) {
                Some((of, status)) if of == id => return Ok((status.to_owned(), output.trim_end().to_owned())),
                Some(_) => output.clear(),
                None => output.push_str(&text),
            }
        }
    }
}
