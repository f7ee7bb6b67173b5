//! Checks who may read from the agent, by Kubernetes' RBAC.
//!
//! The API server reviews a request's token. It also reviews whether the token's owner may use the path with the method
//! (`review`). The path is the one in the request, unchanged. The agent caches answers for a short time (`cache`), and
//! longer while the API server is out of reach. A request without a new or cached answer is rejected. Tokens are
//! neither logged nor stored: the cache holds their hashes.
//!
//! The work for strangers' tokens is bounded: the caller limits the number of reviews, only a few reviews run at a
//! time, and requests with the same token, verb and path wait for one review. Tokens that were admitted before have
//! permits of their own.

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
/// Largest number of concurrent reviews for tokens that were admitted before, and the same number for other tokens.
/// Further requests wait for [`WAIT`].
const AT_A_TIME: usize = 4;
const WAIT: Duration = Duration::from_secs(2);
/// Time without reviews after a failure.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// The result of a review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is allowed.
    Allowed {
        /// The API server's name for the token's owner.
        user: Arc<str>,
    },
    /// The token belongs to no user, has expired, or is for another audience.
    BadToken,
    /// The token's owner may not make this request.
    Forbidden {
        /// The API server's name for the token's owner.
        user: String,
    },
}

/// Reason why there is no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// The API server does not answer.
    Unavailable,
    /// There were too many unknown tokens.
    TooOften,
}

/// Number of reviews, by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessStats {
    /// The request was allowed.
    pub allowed: u64,
    /// The owner may not make the request.
    pub forbidden: u64,
    /// The token is not valid.
    pub unauthenticated: u64,
    /// The API server did not answer.
    pub failed: u64,
}

/// Settings of the reviews.
#[derive(Debug)]
pub struct AccessSettings {
    pub(crate) credentials: Credentials,
    /// Audiences that tokens must be made for; empty for the API server's own audience.
    pub audiences: Vec<String>,
}

/// Decides who may read.
#[derive(Debug)]
pub struct Access {
    reviewer: Reviewer,
    cache: Mutex<Cache>,
    /// Time of the API server's last failure; `None` after a success.
    failed: Mutex<Option<Instant>>,
    /// Permits for tokens that were admitted before, and for other tokens.
    permits: [Semaphore; 2],
    flights: Flights,
    counts: [AtomicU64; 4],
    status: Status,
}

impl Access {
    /// Reads the credentials; sends no request.
    ///
    /// # Errors
    ///
    /// Fails without credentials, or if none of them can be used.
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

    /// Returns the verdict on a request with this token. Calls `may_review` before a request to the API server, unless
    /// the token was admitted before.
    ///
    /// # Errors
    ///
    /// Fails if the API server does not answer, or if `may_review` returns false.
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
        // The first request asks the API server; equal requests then find its answer in the cache.
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
        // The semaphores are never closed. A timeout means that too many reviews wait.
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

    /// Returns the number of reviews so far, by result.
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
