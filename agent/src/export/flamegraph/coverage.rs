//! The sentence about how much of a picture's time has a stack. Pure.

use super::formatting::{percent, share};
use crate::{model::wait::Unwind, recording::Coverage};

/// The share of time without callers from which a reader is warned.
const WARN_FROM: f64 = 0.2;

/// Returns the sentence; `None` without any time.
pub(super) fn sentence(coverage: &Coverage) -> Option<String> {
    let total = coverage.total();
    let part = |time: u64, what: &str| (time > 0).then(|| format!("{} {what}", percent(time, total)));
    let causes = Unwind::ALL.into_iter().filter(|end| !matches!(end, Unwind::Whole | Unwind::Guessed));
    let mut causes: Vec<_> = causes.map(|end| (coverage.of(end), end.name())).filter(|(time, _)| *time > 0).collect();
    causes.sort_unstable_by(|a, b| b.cmp(a));
    let causes: Vec<_> = causes.iter().map(|(time, name)| format!("{name} {}", percent(*time, total))).collect();
    let parts = [
        part(coverage.of(Unwind::Whole), "whole"),
        part(coverage.of(Unwind::Guessed), "guessed"),
        part(coverage.incomplete(), &format!("incomplete ({})", causes.join(", "))),
        part(coverage.kernel_only, "of the kernel alone"),
        part(coverage.none, "without a stack"),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (total > 0).then(|| format!("Stacks, by time: {}.", parts.join(", ")))
}

/// Returns true if so much time has no callers that the picture may mislead.
pub(super) fn is_thin(coverage: &Coverage) -> bool {
    share(coverage.incomplete() + coverage.none, coverage.total()) >= WARN_FROM
}
