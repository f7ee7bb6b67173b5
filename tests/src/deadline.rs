//! Time limits that know the machine: a limit grows by the time in which some task waited for a CPU or the host took one,
//! at most threefold.

use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

use crate::weather::Begin;

/// A limit is at most this many times its own length.
const MOST: u32 = 3;

/// A time limit that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    limit: Duration,
    begin: Begin,
}

/// The error of a missed deadline. A ring of tests may try such a test again.
#[derive(Debug)]
pub struct Late(pub(crate) String);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Late {}

impl Deadline {
    /// Begins a limit.
    #[must_use]
    pub fn begin(limit: Duration) -> Self {
        Self { limit, begin: Begin::now() }
    }

    /// Returns the time that is left, as far as is known now; zero if the deadline is missed.
    #[must_use]
    pub fn left(&self) -> Duration {
        let elapsed = self.begin.elapsed();
        if elapsed < self.limit {
            return self.limit - elapsed;
        }
        grown(self.limit, self.begin.lost()).saturating_sub(elapsed)
    }

    /// Returns the error of the missed deadline.
    ///
    /// # Errors
    ///
    /// [`Late`] with these words, when no time is left.
    pub fn check(&self, what: impl FnOnce() -> String) -> Result<(), Late> {
        if self.left() > Duration::ZERO {
            return Ok(());
        }
        let (limit, took, lost) = (self.limit, self.begin.elapsed(), self.begin.lost());
        Err(Late(format!("not within {limit:?} ({took:.1?}, and the machine was busy for {lost:.1?}): {}", what())))
    }
}

/// Returns the limit of a span in which the machine has lost this time.
fn grown(limit: Duration, lost: Duration) -> Duration {
    (limit + lost).min(limit * MOST)
}

/// Returns whether a test failed by a missed deadline.
pub fn is_late(error: &anyhow::Error) -> bool {
    let within_io = |cause: &(dyn std::error::Error + 'static)| {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        matches!(inner, Some(inner) if inner.is::<Late>())
    };
    error.chain().any(|cause| cause.is::<Late>() || within_io(cause))
}

/// A connection on which each read has a deadline. A read that misses it is an error of the kind `TimedOut`.
#[derive(Debug)]
pub struct Timed {
    stream: TcpStream,
    limit: Duration,
}

impl Timed {
    /// Limits each read of a connection.
    #[must_use]
    pub fn new(stream: TcpStream, limit: Duration) -> Self {
        Self { stream, limit }
    }

    /// Returns the connection itself.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let deadline = Deadline::begin(self.limit);
        loop {
            let left = deadline.left();
            if left.is_zero() {
                let late = deadline.check(|| "the peer answers".to_owned()).err();
                return Err(io::Error::new(ErrorKind::TimedOut, late.unwrap_or_else(|| Late("no answer".into()))));
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                result => return result,
            }
        }
    }
}

impl Write for Timed {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use anyhow::{Context as _, Result};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_limit_grows_by_what_the_machine_lost_and_at_most_threefold() {
        assert_eq!(grown(SECOND * 10, Duration::ZERO), SECOND * 10);
        assert_eq!(grown(SECOND * 10, SECOND * 4), SECOND * 14);
        assert_eq!(grown(SECOND * 10, SECOND * 100), SECOND * 30);
    }

    #[test]
    fn a_missed_deadline_is_known_through_contexts_and_connections() -> Result<()> {
        let late = || Deadline::begin(Duration::ZERO).check(|| "it is there".into());
        assert!(late().is_err() && Deadline::begin(SECOND).check(String::new).is_ok());
        let error = late().context("an outer one").err().context("no error")?;
        assert!(is_late(&error) && format!("{error:#}").contains("it is there"), "{error:#}");
        assert!(!is_late(&anyhow::anyhow!("not within 3 s: a text")));

        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let mut silent = Timed::new(TcpStream::connect(listener.local_addr()?)?, Duration::from_millis(10));
        let error = silent.read(&mut [0]).context("a silent peer").err().context("an answer")?;
        assert!(is_late(&error), "{error:#}");
        Ok(())
    }
}
