//! One request to one receiver, with as much compression as it reads, and the certificates as they are now.

use std::time::Duration;

use http::Uri;

use super::{
    EndpointError,
    failure::Failure,
    link::Link,
    settings::{Compression, Protocol, Settings},
    transport::{Accepted, Signal, Transport},
};

/// Requests after two 404s that do not ask at the other path: a receiver without profiles is not sent all of them twice.
const NOT_ASKED: u32 = 60;

/// The way to a receiver, and what is known of it.
#[derive(Debug)]
pub(in crate::export) struct Sender {
    link: Link,
    transport: Transport,
    protocol: Protocol,
    /// What the receiver is known to read, or not known not to.
    compression: Compression,
    timeout: Duration,
    /// Requests until the other path is asked again.
    not_asked: u32,
}

impl Sender {
    pub(in crate::export) fn new(settings: &Settings) -> Result<Self, EndpointError> {
        let link = Link::new(settings)?;
        let transport = Transport::open(&link, settings.protocol)?;
        let Settings { protocol, compression, timeout, .. } = *settings;
        Ok(Self { link, transport, protocol, compression, timeout, not_asked: 0 })
    }

    pub(in crate::export) const fn uri(&self) -> &Uri {
        self.link.uri()
    }

    /// Why the certificates as they are now cannot be used.
    pub(in crate::export) fn problem(&self) -> Option<&str> {
        self.link.problem()
    }

    #[cfg(test)]
    pub(super) const fn compression(&self) -> Compression {
        self.compression
    }

    /// One attempt, one more for each compression that the receiver refuses, and one at the other path for profiles where
    /// there is nothing at this one. The other path is kept once it has accepted something.
    pub(in crate::export) async fn send(&mut self, signal: &Signal) -> Result<Accepted, Failure> {
        if self.link.refresh() {
            self.reopen()?;
        }
        let compression = self.compression;
        let mut not_found: Option<Failure> = None;
        loop {
            let attempt = self.transport.attempt(&self.link, signal.clone(), self.compression, self.timeout).await;
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
                // It was not the compression.
                self.compression = compression;
            }
            if !failure.answered {
                // The connection may lead nowhere; the next attempt gets a new one.
                self.reopen()?;
            }
            return Err(failure);
        }
    }

    /// Turns to the other path for profiles, and returns whether there is one that is to be asked now.
    fn turn(&mut self) -> bool {
        if self.not_asked > 0 {
            self.not_asked -= 1;
            return false;
        }
        self.link.turn()
    }

    /// Turns back from a path that did not accept anything, and returns the failure to report: the first one, whose path is
    /// the configured one, unless a second request may succeed.
    fn turn_back(&mut self, first: Failure, second: Failure) -> Failure {
        self.link.turn();
        if second.not_found {
            self.not_asked = NOT_ASKED;
        }
        if second.retry.is_some() { second } else { first }
    }

    fn reopen(&mut self) -> Result<(), Failure> {
        self.transport = Transport::open(&self.link, self.protocol).map_err(|error| Failure::own(error.to_string()))?;
        Ok(())
    }
}
