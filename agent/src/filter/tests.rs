use proptest::prelude::*;

use super::*;
use crate::{attribution::Subject, model::wait::WaitReason};

const CGROUP: &str = "/system.slice/web.service";

fn known(subject: &Subject) -> Known<'_> {
    Known { state: StateTerm::Interruptible, process: 7, path: CGROUP, subject, reason: Some(WaitReason::Futex) }
}

fn passes(expression: &str, bits: u16) -> bool {
    let subject = Subject::Cgroup(CGROUP.into());
    Filter::parse(expression).unwrap().passes(bits, &known(&subject))
}

/// Returns the error message with the marked column.
fn refused(expression: &str) -> String {
    Filter::parse(expression).unwrap_err().to_string()
}

#[test]
fn nothing_asked_for_passes_everything() {
    assert!(passes("", 0) && passes("  ", 0) && Filter::parse("").unwrap().is_empty());
}

#[test]
fn what_is_known_here_is_looked_at_here() {
    for (expression, expected) in [
        ("state == S", true),
        ("state == D", false),
        ("state != D", true),
        ("pid == 7", true),
        ("pid != 7", false),
        ("reason == futex && pid == 7", true),
        ("reason == disk || pid == 7", true),
        ("!(reason == disk || pid == 7)", false),
        ("!(reason == disk && pid == 7)", true),
        ("cgroup == /system.slice/*", true),
        ("cgroup == \"/system.slice\"", false),
        // A cgroup outside of pods has no fields of a pod.
        ("namespace == shop", false),
        ("namespace != shop", true),
        ("label.app == web", false),
    ] {
        assert_eq!(passes(expression, 0), expected, "{expression}");
    }
}

#[test]
fn each_alternative_of_the_kernels_has_a_bit_of_its_own() {
    let expression = "duration > 1ms && comm == nginx || tid == 5 && reason == disk || pid == 8";
    let filter = Filter::parse(expression).unwrap();
    let bits: Vec<_> = filter.kernel_terms().iter().map(|term| (term.bit, term.field, term.negated)).collect();
    let expected =
        [(0, abi::PODPERF_FILTER_AT_LEAST, 0), (0, abi::PODPERF_FILTER_COMM, 0), (1, abi::PODPERF_FILTER_THREAD, 0)];
    assert_eq!(bits, expected);
    assert!(passes(expression, 0b01));
    assert!(!passes(expression, 0b10), "the reason is another");
    assert!(!passes(expression, 0));
}

#[test]
fn durations_and_names_are_compared_as_asked() {
    let entry = |expression: &str| Filter::parse(expression).unwrap().kernel_terms()[0];
    let (longer, shorter) = (entry("duration >= 1500us"), entry("duration < 1ms500us"));
    assert_eq!((longer.value, longer.negated, shorter.value, shorter.negated), (1_500_000, 0, 1_500_000, 1));
    let whole = entry("comm == nginx");
    assert_eq!((whole.value, &bytemuck::bytes_of(&whole.comm)[..6]), (6, &b"nginx\0"[..]));
    assert_eq!(entry("comm == nginx*").value, 5);
    assert_eq!(entry("comm == \"a name longer than the kernel's\"").value, 16);
}

#[test]
fn errors_point_at_the_column() {
    for (expression, column, message) in [
        ("state = D", 6, "`=` is unexpected (write `==`)"),
        ("state == X", 9, "`X` is no state"),
        ("duration == 1ms", 9, "compared by `>`"),
        ("duration > soon", 11, "`soon` is no duration"),
        ("naemspace == a", 0, "unknown field `naemspace`"),
        ("state == D &&", 13, "a field is missing"),
        ("state == D pid == 1", 11, "`pid` is unexpected"),
        ("(state == D", 11, "a bracket without its end"),
        ("comm == \"a", 8, "a quote without its end"),
        ("pid == x", 7, "`x` is no process id"),
        ("reason == hunger", 10, "one of futex"),
        ("pid > 3", 4, "`pid` is compared by `==` or `!=`"),
        ("&& pid == 3", 0, "`&&` is no field"),
    ] {
        let error = Filter::parse(expression).unwrap_err();
        assert!(error.message.contains(message), "{expression}: {error}");
        assert_eq!(error.column, column, "{error}");
    }
    assert!(refused("pid == é && x == 1").ends_with("\n         ^"), "{}", refused("pid == é && x == 1"));
}

#[test]
fn what_would_be_too_much_is_refused() {
    let many = (0..17).map(|tid| format!("tid == {tid}")).collect::<Vec<_>>().join(" || ");
    assert!(refused(&many).contains("too many alternatives of duration, thread or name: 17"), "{}", refused(&many));
    let pairs = (0..12).map(|n| format!("(pid == {n} || tid == {n})")).collect::<Vec<_>>().join(" && ");
    assert!(refused(&pairs).contains("too many terms, with `&&` multiplied out over `||` (at most 64)"));
    // The limit holds for `&&` and for `||`.
    for joined in [" && ", " || "] {
        let terms = |count: usize| (0..count).map(|n| format!("pid != {n}")).collect::<Vec<_>>().join(joined);
        assert!(Filter::parse(&terms(64)).is_ok());
        assert!(refused(&terms(65)).contains("too many terms"), "{joined}");
    }
    assert!(refused(&format!("(pid == 1 || pid == 2) && {}", vec!["pid != 3"; 40].join(" && "))).contains("too many"));
    assert!(refused(&"!".repeat(100)).contains("nested too deeply"));
    let alternatives = (0..12).map(|n| format!("pid == {n} && state == S")).collect::<Vec<_>>().join(" || ");
    assert!(Filter::parse(&alternatives).is_ok(), "its contrary has 4,096 alternatives, and nobody asked for that");
}

proptest! {
    #[test]
    fn no_text_is_too_strange(text in ".{0,80}") {
        Filter::parse(&text).ok();
    }

    /// Tests De Morgan's laws by another method than the parser's.
    #[test]
    fn the_contrary_of_an_expression_is_its_contrary(parts in prop::collection::vec((0..3_usize, any::<bool>()), 1..4)) {
        let words = ["state == S", "pid == 8", "reason == futex"];
        let text = parts.iter().map(|(word, either)| {
            format!("{} {} ", words[*word], if *either { "||" } else { "&&" })
        }).collect::<String>() + "pid == 7";
        prop_assert_ne!(passes(&text, 0), passes(&format!("!({text})"), 0));
    }
}
