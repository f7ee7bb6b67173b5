//! Times on the command line. Pure.

use std::time::Duration;

use humantime_serde::re::humantime;

/// Parses a time such as `10s` or `1m 30s`.
pub(super) fn parse(text: &str) -> Result<Duration, &'static str> {
    // humantime's own message names positions of letters, and shows no example.
    humantime::parse_duration(text).ok().ok_or("expected a time such as `10s`")
}
