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

/// The way to a receiver, and what is known of it.
#[derive(Debug)]
pub(in crate::export) struct Sender {
    link: Link,
    transport: Transport,
    protocol: Protocol,
    /// What the receiver is known to read, or not known not to.
    compression: Compression,
    timeout: Duration,
}

impl Sender {
    pub(in crate::export) fn new(settings: &Settings) -> Result<Self, EndpointError> {
        let link = Link::new(settings)?;
        let transport = Transport::open(&link, settings.protocol)?;
        let Settings { protocol, compression, timeout, .. } = *settings;
        Ok(Self { link, transport, protocol, compression, timeout })
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

    /// One attempt, and one more for each compression that the receiver refuses.
    pub(in crate::export) async fn send(&mut self, signal: &Signal) -> Result<Accepted, Failure> {
        if self.link.refresh() {
            self.reopen()?;
        }
        let compression = self.compression;
        loop {
            let attempt = self.transport.attempt(&self.link, signal.clone(), self.compression, self.timeout).await;
            let failure = match attempt {
                Ok(accepted) => {
                    if self.compression != compression {
                        let (from, to) = (compression.name(), self.compression.name());
                        tracing::info!(from, to, endpoint = %self.uri(), "the receiver does not read this compression");
                    }
                    return Ok(accepted);
                }
                Err(failure) => failure,
            };
            if failure.encoding_refused
                && let Some(lower) = self.compression.lower()
            {
                self.compression = lower;
                continue;
            }
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

    fn reopen(&mut self) -> Result<(), Failure> {
        self.transport = Transport::open(&self.link, self.protocol).map_err(|error| Failure::own(error.to_string()))?;
        Ok(())
    }
}
