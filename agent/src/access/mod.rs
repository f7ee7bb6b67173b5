//! Who may read what of the agent: Kubernetes says.
//!
//! A request's token is reviewed by the API server, and so is whether its owner may use the path, as it stands in the
//! request, by the method (`review`). Answers are remembered for a short time (`cache`), and longer while the API server
//! cannot be asked. Without an answer nobody may anything. Tokens are neither logged nor kept: the cache has their hashes.
//!
//! The work for strangers' tokens is bounded: the caller says how many may be reviewed, a few are reviewed at a time,
//! and requests with the same token, verb and path wait for one review. Tokens that were admitted before have places
//! of their own.

mod cache;
mod flights;
mod review;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::Semaphore, time::timeout};

use crate::{
    model::status::{State, Status},
    pods::{Credentials, SourceError},
};
use cache::{Cache, Key, Known};
use flights::Flights;
use review::Reviewer;

/// The part's name at `/status`.
const PART: &str = "access";
/// Reviews at a time of tokens that were admitted before, and as many of other tokens. Further requests wait for
/// [`WAIT`].
const AT_A_TIME: usize = 4;
const WAIT: Duration = Duration::from_secs(2);
/// After a failure nobody is asked for so long.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// What may be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is allowed.
    Allowed {
        /// The token's owner, as the API server knows it.
        user: Arc<str>,
    },
    /// The token is nobody's, or no longer.
    BadToken,
    /// Its owner may not.
    Forbidden {
        /// As the API server knows it.
        user: String,
    },
}

/// Why there is no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// The API server does not answer.
    Unavailable,
    /// Too many tokens that nobody knows.
    TooOften,
}

/// Reviews by what came of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessStats {
    /// It may.
    pub allowed: u64,
    /// The owner may not.
    pub forbidden: u64,
    /// The token is not good.
    pub unauthenticated: u64,
    /// There was no answer.
    pub failed: u64,
}

/// How to find out.
#[derive(Debug)]
pub struct AccessSettings {
    pub(crate) credentials: Credentials,
    /// For whom tokens are to be made; nothing for the API server.
    pub audiences: Vec<String>,
}

/// Decides who may read.
#[derive(Debug)]
pub struct Access {
    reviewer: Reviewer,
    cache: Mutex<Cache>,
    /// When the API server failed.
    failed: Mutex<Option<Instant>>,
    /// For tokens that were admitted before, and for others.
    permits: [Semaphore; 2],
    flights: Flights,
    counts: [AtomicU64; 4],
    status: Status,
}

impl Access {
    /// Reads the credentials; no server is asked.
    ///
    /// # Errors
    ///
    /// When there are none, or none that can be used.
    pub fn new(settings: AccessSettings, status: Status) -> Result<Self, SourceError> {
        let reviewer = Reviewer::new(settings.credentials, settings.audiences)?;
        status.set(PART, State::Healthy, format!("tokens are reviewed by {}", reviewer.server()));
        Ok(Self {
            reviewer,
            cache: Mutex::default(),
            failed: Mutex::default(),
            permits: [Semaphore::new(AT_A_TIME), Semaphore::new(AT_A_TIME)],
            flights: Flights::default(),
            counts: Default::default(),
            status,
        })
    }

    /// Returns whether the owner of a token may do this. `may_review` is called before the API server is asked, unless
    /// the token was admitted before.
    ///
    /// # Errors
    ///
    /// When the API server does not answer, or `may_review` returns false.
    pub async fn decide(
        &self,
        token: &str,
        verb: &str,
        path: &str,
        may_review: impl FnOnce() -> bool,
    ) -> Result<Verdict, Undecided> {
        let key = Key::new(token, verb, path);
        let known = || lock(&self.cache).get(&key, Instant::now());
        if let Some(Known::Fresh(verdict)) = known() {
            return Ok(verdict);
        }
        // The first one asks; equal requests then find its answer.
        let flight = self.flights.of(&key);
        let _first = flight.lock().await;
        let stale = match known() {
            Some(Known::Fresh(verdict)) => return Ok(verdict),
            Some(Known::Stale(verdict)) => Some(verdict),
            None => None,
        };
        let otherwise = || stale.clone().ok_or(Undecided::Unavailable);
        if lock(&self.failed).is_some_and(|failed| failed.elapsed() < PAUSE) {
            return otherwise();
        }
        let was_admitted = matches!(stale, Some(Verdict::Allowed { .. }));
        if !was_admitted && !may_review() {
            return Err(Undecided::TooOften);
        }
        let [admitted, others] = &self.permits;
        let permits = if was_admitted { admitted } else { others };
        // They are never closed; if it takes too long, many ask.
        let Ok(Ok(_permit)) = timeout(WAIT, permits.acquire()).await else { return otherwise() };
        match self.reviewer.review(token, verb, path).await {
            Ok(verdict) => {
                self.count(match verdict {
                    Verdict::Allowed { .. } => 0,
                    Verdict::Forbidden { .. } => 1,
                    Verdict::BadToken => 2,
                });
                if lock(&self.failed).take().is_some() {
                    self.status.set(PART, State::Healthy, format!("tokens are reviewed by {}", self.reviewer.server()));
                }
                lock(&self.cache).put(&key, verdict.clone(), Instant::now());
                Ok(verdict)
            }
            Err(reason) => {
                self.count(3);
                *lock(&self.failed) = Some(Instant::now());
                self.status.set(PART, State::Degraded, format!("only who was known before may read: {reason}"));
                otherwise()
            }
        }
    }

    /// What came of the reviews so far.
    #[must_use]
    pub fn stats(&self) -> AccessStats {
        let [allowed, forbidden, unauthenticated, failed] =
            self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        AccessStats { allowed, forbidden, unauthenticated, failed }
    }

    fn count(&self, which: usize) {
        if let Some(count) = self.counts.get(which) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
