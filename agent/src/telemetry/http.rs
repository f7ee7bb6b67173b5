//! What the server counts of itself.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use axum::http::StatusCode;

/// Why somebody was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too many were open: one was closed.
    Connections,
    /// Too many requests a second.
    Rate,
    /// Answering took too much CPU time.
    Cpu,
    /// It has a body.
    Body,
    /// It has no token.
    NoToken,
    /// Its token is nobody's.
    BadToken,
    /// The token's owner may not.
    Forbidden,
    /// Nobody could say whether he may.
    Unavailable,
}

impl Refusal {
    const ALL: [Self; 8] = [
        Self::Connections,
        Self::Rate,
        Self::Cpu,
        Self::Body,
        Self::NoToken,
        Self::BadToken,
        Self::Forbidden,
        Self::Unavailable,
    ];

    /// As a label has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Rate => "rate",
            Self::Cpu => "cpu",
            Self::Body => "body",
            Self::NoToken => "no_token",
            Self::BadToken => "bad_token",
            Self::Forbidden => "forbidden",
            Self::Unavailable => "unavailable",
        }
    }
}

/// The server's counts; it adds, others look.
#[derive(Debug)]
pub struct ServerCounts {
    codes: Mutex<BTreeMap<u16, u64>>,
    refusals: [AtomicU64; Refusal::ALL.len()],
    /// Unix time; 0 for none.
    certificate_ends: AtomicI64,
    share: Mutex<Share>,
}

/// The share of the node's CPU time that answering takes, in percent of all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// Over the last seconds.
    pub percent: f64,
    /// The cap; 0 is none.
    pub most_percent: f64,
}

/// The same at a moment.
#[derive(Clone, Debug, Default)]
pub struct ServerStats {
    /// Answers by status code.
    pub codes: BTreeMap<u16, u64>,
    /// All reasons, each with its count.
    pub refusals: Vec<(Refusal, u64)>,
    /// When the certificate ends, Unix time; `None` without TLS.
    pub certificate_ends: Option<i64>,
    /// Returns the share of CPU time that answering takes.
    pub share: Share,
}

impl Default for ServerCounts {
    fn default() -> Self {
        // What is hoped for is there from the start.
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

    /// As they are now.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let count = |(why, count): (Refusal, &AtomicU64)| (why, count.load(Ordering::Relaxed));
        ServerStats {
            codes: self.codes.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            refusals: Refusal::ALL.into_iter().zip(&self.refusals).map(count).collect(),
            certificate_ends: Some(self.certificate_ends.load(Ordering::Relaxed)).filter(|end| *end != 0),
            share: *self.share.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}
