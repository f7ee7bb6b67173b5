//! A filter may be any text: a user who may request a recording writes it.

use podperf::{
    attribution::Subject,
    filter::{Filter, Known, MAX_BITS, StateTerm},
    model::wait::WaitReason,
};

pub(crate) fn check(text: &str) {
    let filter = match Filter::parse(text) {
        Ok(filter) => filter,
        Err(error) => {
            // The error's column is in the text, or directly after it.
            assert!(error.column <= text.chars().count() && !error.message.is_empty(), "{error}");
            return;
        }
    };
    assert_eq!(filter.to_string(), text);
    assert_eq!(filter.is_empty(), text.trim().is_empty());
    assert!(filter.kernel_terms().iter().all(|term| (term.bit as usize) < MAX_BITS));
    if filter.is_empty() {
        return;
    }
    // Brackets and a double negation change nothing, unless they are nested too deeply. One negation inverts the
    // result.
    let like = |text: String| Filter::parse(&text).ok();
    let same = [like(format!("({text})")), like(format!("!(!({text}))"))];
    // The kernel's bits stand for terms, and a negated filter has other terms.
    let opposite = like(format!("!({text})")).filter(|_| filter.kernel_terms().is_empty());
    let subject = Subject::unresolved();
    for known in samples(&subject) {
        for bits in [0, 1, 0b1010, u16::MAX] {
            let passes = filter.passes(bits, &known);
            assert!(same.iter().flatten().all(|same| same.passes(bits, &known) == passes));
            assert!(opposite.as_ref().is_none_or(|opposite| opposite.passes(bits, &known) != passes));
        }
    }
}

fn samples(subject: &Subject) -> impl Iterator<Item = Known<'_>> {
    let reasons = WaitReason::ALL.iter().map(|reason| (StateTerm::Interruptible, Some(*reason)));
    let others = [(StateTerm::Uninterruptible, Some(WaitReason::ALL[0])), (StateTerm::Runnable, None)];
    let paths = ["", "/a", "/a/b"].into_iter().cycle();
    let sample = move |((state, reason), path)| Known { state, process: 1, path, subject, reason };
    reasons.chain(others).zip(paths).map(sample)
}
