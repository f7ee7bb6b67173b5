//! Commands in a guest: the guest runs each command that arrives at its own port, and returns the result.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};

/// The longest wait for an answer, longer than any command of a test takes.
const ANSWER_DEADLINE: Duration = Duration::from_secs(120);
/// The time between two checks of a deadline.
const PATIENCE: Duration = Duration::from_millis(200);

/// The guest's port. tests/node/guest/console is its other end.
#[derive(Debug)]
pub(super) struct Console {
    stream: BufReader<UnixStream>,
    asked: u32,
}

impl Console {
    /// Connects to the emulator's socket. The guest listens when it is up, and then reports it.
    pub(super) fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), asked: 0 })
    }

    /// Waits until the guest listens.
    pub(super) fn wait(&mut self, deadline: Duration) -> Result<()> {
        self.answer("up", deadline).map(drop).context("the guest does not listen")
    }

    /// Runs a command, and returns its stdout and stderr. If the command fails, the error contains them.
    pub(super) fn run(&mut self, command: &str) -> Result<String> {
        self.asked += 1;
        let id = self.asked.to_string();
        writeln!(self.stream.get_mut(), "{id} {}", STANDARD.encode(command))?;
        let (status, output) = self.answer(&id, ANSWER_DEADLINE).with_context(|| format!("asked to `{command}`"))?;
        ensure!(status == "0", "`{command}` failed in the guest ({status}): {output}");
        Ok(output)
    }

    /// Returns the text before the line `@ID STATUS`. Late answers to other commands are dropped.
    fn answer(&mut self, id: &str, deadline: Duration) -> Result<(String, String)> {
        let start = Instant::now();
        let (mut output, mut line) = (String::new(), Vec::new());
        loop {
            match self.stream.read_until(b'\n', &mut line) {
                Ok(0) => bail!("the guest has ended"),
                Ok(_) if line.ends_with(b"\n") => {}
                Ok(_) => continue,
                // The part of the line that has arrived stays in `line`.
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
