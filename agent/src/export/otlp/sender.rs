//! Sends one request to one receiver, with the best compression that the receiver reads and the current certificates.

use std::time::Duration;

use http::Uri;

use super::{
    EndpointError,
    answer::Accepted,
    attempt::{Connections, Signal},
    failure::Failure,
    link::Link,
    settings::{Protocol, Settings},
};
use crate::transport::compression::Compression;

/// The number of requests, after 404s at both paths, that do not try the other path. Else a receiver without profiles
/// would get all requests twice.
const NOT_ASKED: u32 = 60;

/// The way to a receiver, with the compression and the path that work there.
#[derive(Debug)]
pub(in crate::export) struct Sender {
    link: Link,
    connections: Connections,
    protocol: Protocol,
    /// The best compression that the receiver has not refused.
    compression: Compression,
    timeout: Duration,
    /// Number of requests until the other path is tried again.
    not_asked: u32,
}

impl Sender {
    pub(in crate::export) fn new(settings: &Settings) -> Result<Self, EndpointError> {
        Self::over(Link::new(settings)?, settings)
    }

    pub(super) fn over(link: Link, settings: &Settings) -> Result<Self, EndpointError> {
        let connections = Connections::open(&link, settings.protocol)?;
        let Settings { protocol, compression, timeout, .. } = *settings;
        Ok(Self { link, connections, protocol, compression, timeout, not_asked: 0 })
    }

    pub(in crate::export) const fn uri(&self) -> &Uri {
        self.link.uri()
    }

    /// Returns why the current certificate files cannot be used.
    pub(in crate::export) fn problem(&self) -> Option<&str> {
        self.link.problem()
    }

    #[cfg(test)]
    pub(super) const fn compression(&self) -> Compression {
        self.compression
    }

    /// Makes one attempt, one more for each compression that the receiver refuses, and one at the other path for
    /// profiles if there is nothing at this path. The other path is kept once it has accepted a request.
    pub(in crate::export) async fn send(&mut self, signal: &Signal) -> Result<Accepted, Failure> {
        if self.link.refresh() {
            self.reopen()?;
        }
        let compression = self.compression;
        let mut not_found: Option<Failure> = None;
        loop {
            let attempt = self.connections.attempt(&self.link, signal.clone(), self.compression, self.timeout).await;
            let failure = match attempt {
                Ok(accepted) => {
                    if self.compression != compression {
                        let (from, to) = (compression.name(), self.compression.name());
                        tracing::info!(from, to, endpoint = %self.uri(), "the receiver does not read this compression");
                    }
                    if not_found.is_some() {
                        tracing::info!(endpoint = %self.uri(), "the receiver takes profiles at this path");
                    }
                    return Ok(accepted);
                }
                Err(failure) => failure,
            };
            if failure.not_found && not_found.is_none() && self.turn() {
                not_found = Some(failure);
                continue;
            }
            if failure.encoding_refused
                && let Some(lower) = self.compression.lower()
            {
                self.compression = lower;
                continue;
            }
            let failure = match not_found {
                Some(first) => self.turn_back(first, failure),
                None => failure,
            };
            if failure.retry.is_none() {
                // The compression was not the cause.
                self.compression = compression;
            }
            if !failure.answered {
                // The connection may be dead; the next attempt gets a new one.
                self.reopen()?;
            }
            return Err(failure);
        }
    }

    /// Switches to the other path for profiles, and returns whether there is one that should be tried now.
    fn turn(&mut self) -> bool {
        if self.not_asked > 0 {
            self.not_asked -= 1;
            return false;
        }
        self.link.turn()
    }

    /// Switches back from a path that accepted no request, and returns the failure to report. This is the first
    /// failure, which names the configured path, unless a retry of the second one may succeed.
    fn turn_back(&mut self, first: Failure, second: Failure) -> Failure {
        self.link.turn();
        if second.not_found {
            self.not_asked = NOT_ASKED;
        }
        if second.retry.is_some() { second } else { first }
    }

    fn reopen(&mut self) -> Result<(), Failure> {
        self.connections =
            Connections::open(&self.link, self.protocol).map_err(|error| Failure::own(error.to_string()))?;
        Ok(())
    }
}
