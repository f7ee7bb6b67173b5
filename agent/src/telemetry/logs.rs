//! Counts the agent's log messages by level.

use std::sync::atomic::{AtomicU64, Ordering};

use tracing::Level;
use tracing_subscriber::layer::{Context, Layer};

/// The number of log messages by level, counted as the messages are written.
#[derive(Debug, Default)]
pub struct LogCounts(pub(crate) [AtomicU64; 3]);

impl LogCounts {
    /// Returns counts that are all zero.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 3])
    }
}

/// The counted levels, with their label values.
pub(crate) const LEVELS: [(Level, &str); 3] = [(Level::ERROR, "error"), (Level::WARN, "warn"), (Level::INFO, "info")];

impl<S: tracing::Subscriber> Layer<S> for &'static LogCounts {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let level = LEVELS.iter().position(|(level, _)| level == event.metadata().level());
        if let Some(count) = level.and_then(|level| self.0.get(level)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}
