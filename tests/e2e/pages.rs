//! The agent's pages, in a real browser.

use podperf_tests::suite::Test;

pub(crate) const TESTS: &[Test] = &[];
