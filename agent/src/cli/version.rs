//! The text of `podperf --version`: one line for `-V`, and the facts about the build for `--version`. The build script
//! records these facts.

/// The version, and below it one line for each fact.
pub(super) const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("PODPERF_BUILT_COMMIT"),
    "\ndate: ",
    env!("PODPERF_BUILT_DATE"),
    "\ntarget: ",
    env!("PODPERF_BUILT_TARGET"),
    "\nprofile: ",
    env!("PODPERF_BUILT_PROFILE"),
    "\naya: ",
    env!("PODPERF_BUILT_AYA"),
    "\nlibbpf headers: ",
    env!("PODPERF_BUILT_LIBBPF"),
    "\nfeatures: ",
    env!("PODPERF_BUILT_FEATURES"),
);

#[cfg(test)]
#[path = "../../build/date.rs"]
mod date;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fact_of_the_build_has_a_line_and_a_value() {
        let facts: Vec<_> = LONG.lines().skip(1).map(|line| line.split_once(": ").unwrap()).collect();
        let names: Vec<_> = facts.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["commit", "date", "target", "profile", "aya", "libbpf headers", "features"]);
        assert!(facts.iter().all(|(_, value)| !value.is_empty()), "{LONG}");
        let aya = facts[4].1;
        assert!(aya.starts_with("0.") && aya.split('.').count() == 3, "{aya}");
    }

    #[test]
    fn a_date_is_that_of_the_calendar() {
        // The expected dates come from `date --utc --date=@SECONDS`.
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_767_225_599, "2025-12-31"),
            (1_767_225_600, "2026-01-01"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date::of(seconds), expected, "{seconds}");
        }
    }
}
