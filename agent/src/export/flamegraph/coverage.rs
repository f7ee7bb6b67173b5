//! The sentence about how much of a picture's time has a stack. Pure.

use super::formatting::{percent, share};
use crate::{
    model::wait::Unwind,
    recording::{Coverage, Merged},
};

/// The share of time without callers from which a reader is warned.
const WARN_FROM: f64 = 0.2;

/// Returns the sentence, and behind it the way to turn user frames on if they are off; `None` without any time.
#[must_use]
pub fn sentence(merged: &Merged) -> Option<String> {
    let (coverage, off) = (&merged.coverage, merged.user_frames_off);
    let shares = stack_shares(coverage, off.is_some())?;
    let off = off.map(|way| format!(" User frames are off ({way}).")).unwrap_or_default();
    // A stack without its callers is not drawn below them.
    let warning = if is_thin(coverage) { ", so outer functions look too small" } else { "" };
    Some(format!("Stacks, by time: {shares}{warning}.{off}"))
}

/// Returns which share of this time has which stacks, and why callers are missing; `None` without any time.
#[must_use]
pub fn stack_shares(coverage: &Coverage, user_frames_off: bool) -> Option<String> {
    let total = coverage.total();
    let part = |time: u64, what: &str| (time > 0).then(|| format!("{} {what}", percent(time, total)));
    let causes = Unwind::ALL.into_iter().filter(|end| !matches!(end, Unwind::Whole | Unwind::Guessed));
    let mut causes: Vec<_> = causes.map(|end| (coverage.of(end), end.name())).filter(|(time, _)| *time > 0).collect();
    causes.sort_unstable_by(|a, b| b.cmp(a));
    let causes: Vec<_> = match &*causes {
        [(_, only)] => vec![(*only).to_owned()],
        several => several.iter().map(|(time, name)| format!("{name} {}", percent(*time, total))).collect(),
    };
    // If user frames are off, one frame stands for all code of programs.
    let whole = if user_frames_off { "in user code" } else { "whole" };
    let parts = [
        part(coverage.of(Unwind::Whole), whole),
        part(coverage.of(Unwind::Guessed), "guessed"),
        part(coverage.incomplete(), &format!("incomplete ({})", causes.join(", "))),
        part(coverage.kernel_only, "of the kernel alone"),
        part(coverage.none, "without a stack"),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (total > 0).then(|| parts.join(", "))
}

/// Returns true if so much time has no callers that the picture may mislead.
pub(super) fn is_thin(coverage: &Coverage) -> bool {
    share(coverage.incomplete() + coverage.none, coverage.total()) >= WARN_FROM
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::model::wait::WaitReason;

    #[test]
    fn user_frames_that_are_off_are_said_with_the_way_to_turn_them_on() {
        let on = recording(vec![wait(WaitReason::Disk, &["io_schedule"], &[], 3)]);
        assert_eq!(sentence(&on).unwrap(), "Stacks, by time: 100 % of the kernel alone.");
        let off = |merged: Merged| sentence(&Merged { user_frames_off: Some("set x"), ..merged }).unwrap();
        assert_eq!(off(on), "Stacks, by time: 100 % of the kernel alone. User frames are off (set x).");
        let code = recording(vec![on_cpu(&["[user code]"], 3)]);
        assert_eq!(off(code), "Stacks, by time: 100 % in user code. User frames are off (set x).");
    }
}
