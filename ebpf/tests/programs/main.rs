//! Checks the built object: what its programs reach, and how much stack they need.
#![expect(clippy::unwrap_used, reason = "where nothing else can be told, the test fails")]

mod code;
mod contexts;
mod stack;
