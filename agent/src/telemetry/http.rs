//! Counts of the HTTP server: answers by status code, refusals by reason, its CPU time and its certificate's end.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use axum::http::StatusCode;
use strum::{IntoStaticStr, VariantArray};

/// The reasons why the server refuses a request or closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Refusal {
    /// Too many connections were open, so the server closed one.
    Connections,
    /// Too many requests a second arrived.
    Rate,
    /// Answering took too much CPU time.
    Cpu,
    /// The request has a body.
    Body,
    /// A browser sent the request for a page of another site.
    Foreign,
    /// The request has no token.
    NoToken,
    /// The API server does not accept the token.
    BadToken,
    /// The token's owner has no permission.
    Forbidden,
    /// The API server did not answer, so the permission is unknown.
    Unavailable,
}

impl Refusal {
    const ALL: &[Self] = Self::VARIANTS;

    /// Returns the label value of the reason.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The counters that the server updates and `/metrics` reads.
#[derive(Debug)]
pub struct ServerCounts {
    codes: Mutex<BTreeMap<u16, u64>>,
    refusals: [AtomicU64; Refusal::ALL.len()],
    /// The end of the certificate, Unix time in seconds; 0 without one.
    certificate_ends: AtomicI64,
    share: Mutex<Share>,
}

/// The share of the node's CPU time that answering takes, in percent of all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// The mean share over the last seconds.
    pub percent: f64,
    /// The configured limit; 0 is no limit.
    pub most_percent: f64,
}

/// A copy of [`ServerCounts`] at one moment.
#[derive(Clone, Debug, Default)]
pub struct ServerStats {
    /// Answers by status code.
    pub codes: BTreeMap<u16, u64>,
    /// Count of each reason, zero included.
    pub refusals: Vec<(Refusal, u64)>,
    /// The end of the certificate, Unix time in seconds; `None` without TLS.
    pub certificate_ends: Option<i64>,
    /// The share of CPU time that answering takes.
    pub share: Share,
}

impl Default for ServerCounts {
    fn default() -> Self {
        // The series of code 200 exists, with 0, before the first answer.
        let codes = Mutex::new(BTreeMap::from([(StatusCode::OK.as_u16(), 0)]));
        Self { codes, refusals: Default::default(), certificate_ends: AtomicI64::default(), share: Mutex::default() }
    }
}

impl ServerCounts {
    pub(crate) fn answered(&self, code: StatusCode) {
        *self.codes.lock().unwrap_or_else(PoisonError::into_inner).entry(code.as_u16()).or_default() += 1;
    }

    pub(crate) fn refused(&self, why: Refusal) {
        if let Some(count) = self.refusals.get(why as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn certificate_ends(&self, end: i64) {
        self.certificate_ends.store(end, Ordering::Relaxed);
    }

    pub(crate) fn takes(&self, share: Share) {
        *self.share.lock().unwrap_or_else(PoisonError::into_inner) = share;
    }

    /// Returns the current values.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let count = |(why, count): (Refusal, &AtomicU64)| (why, count.load(Ordering::Relaxed));
        ServerStats {
            codes: self.codes.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            refusals: Refusal::ALL.iter().copied().zip(&self.refusals).map(count).collect(),
            certificate_ends: Some(self.certificate_ends.load(Ordering::Relaxed)).filter(|end| *end != 0),
            share: *self.share.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}
