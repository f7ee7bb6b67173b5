use std::{collections::HashSet, error::Error};

use super::*;
use crate::events::{
    catalogue::EVENTS,
    fixture::{Sysfs, random_texts},
};

const LIMITS: Limits = Limits { events: 6, groups: 3 };

fn planned(groups: &[&[&str]]) -> Result<Plan, PlanError> {
    let groups: Vec<Vec<String>> = groups.iter().map(|group| group.iter().map(ToString::to_string).collect()).collect();
    plan(&groups, Sysfs::new().path(), LIMITS)
}

fn one(event: &str) -> Counter {
    planned(&[&[event]]).unwrap().groups.remove(0).remove(0)
}

fn error(groups: &[&[&str]]) -> String {
    let error = planned(groups).unwrap_err();
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

#[test]
fn a_named_event_is_its_row() {
    let cycles = one("cpu-cycles:u");
    assert_eq!((cycles.name.as_str(), cycles.family, cycles.event_label), ("cpu-cycles:u", "cpu_cycles", None));
    assert_eq!((cycles.mode, cycles.scale), (Some(Mode::User), Scale::Count));
    assert_eq!(cycles.kernel_event, "PERF_TYPE_HARDWARE:0:u");
    let Source::Attr(attr) = cycles.source else { panic!() };
    assert_eq!((attr.exclude_user, attr.exclude_kernel, attr.is_software()), (false, true, false));
    let clock = one("cpu-clock");
    assert_eq!((clock.family, clock.scale), ("cpu_clock_seconds", Scale::Nanoseconds));
    assert!(matches!(clock.source, Source::Attr(attr) if attr.is_software()));
    assert_eq!(one("LLC-load-misses").kernel_event, "PERF_TYPE_HW_CACHE:0x10002");
}

#[test]
fn events_without_a_family_share_one_and_are_distinguished_by_label() {
    for (event, label, asked) in [
        ("faults:u", "faults", "PERF_TYPE_SOFTWARE:2:u"),
        ("r1a8:k", "r1a8", "PERF_TYPE_RAW:0x1a8:k"),
        ("cpu/branch-misses/", "cpu/branch-misses/", "cpu/event=0xc5,umask=0x0/"),
        ("cpu/event=0x3c,name=core/u", "core", "cpu/event=0x3c/u"),
        ("nowhere/event=0x3c,x,name=core/", "core", "nowhere/event=0x3c,x/"),
    ] {
        let counter = one(event);
        assert_eq!(counter.family, SHARED_FAMILY, "{event}");
        assert_eq!(counter.event_label.as_deref(), Some(label), "{event}");
        assert_eq!(counter.kernel_event, asked, "{event}");
    }
}

#[test]
fn both_modes_are_the_whole() {
    let whole = one("cycles:uk");
    assert_eq!((whole.mode, whole.kernel_event.as_str()), (None, "PERF_TYPE_HARDWARE:0"));
    assert!(matches!(whole.source, Source::Attr(attr) if !attr.exclude_user && !attr.exclude_kernel));
}

#[test]
fn what_the_machine_lacks_is_unsupported_and_the_rest_is_counted() {
    let plan = planned(&[&["nowhere/event=1/", "cycles"], &["uncore_imc_0/event=1/"]]).unwrap();
    assert!(matches!(&plan.groups[0][0].source, Source::Unsupported(reason) if reason.starts_with("no PMU `nowhere`")));
    assert!(matches!(plan.groups[0][1].source, Source::Attr(_)));
    assert!(matches!(&plan.groups[1][0].source, Source::Unsupported(reason) if reason.contains("whole packages")));
}

#[test]
fn the_same_event_twice_is_an_error() {
    assert_eq!(
        error(&[&["cycles"], &["instructions", "cpu-cycles:uk"]]),
        "same event twice: `cycles` at `counters.groups[0][0]` and `cpu-cycles:uk` at `counters.groups[1][1]` \
         (remove one; in the terms of a PMU, another `name=` helps too)"
    );
    for pair in [
        ["faults", "page-faults"],
        ["faults:u", "page-faults:u"],
        ["r1a8", " r1a8"],
        ["cpu/event=1,name=a/", "cpu/event=2,name=a/"],
        ["cpu/event=1,name=faults/", "faults"],
    ] {
        assert!(matches!(planned(&[&pair]), Err(PlanError::Twice { .. })), "{pair:?}");
    }
}

#[test]
fn an_event_both_whole_and_by_mode_is_an_error() {
    let expected = "event both whole and by mode: `cycles:u` at `counters.groups[0][0]` and `cycles` at \
                    `counters.groups[0][1]`, which a sum counts twice (keep the whole, or `:u` and `:k`)";
    assert_eq!(error(&[&["cycles:u", "cycles"]]), expected);
    for pair in [["cycles", "cycles:k"], ["cpu/event=1/", "cpu/event=1/u"], ["faults", "page-faults:u"]] {
        assert!(matches!(planned(&[&pair]), Err(PlanError::WholeAndSplit { .. })), "{pair:?}");
    }
}

#[test]
fn different_series_stand_side_by_side() {
    for pair in [
        ["cycles:u", "cycles:k"],
        ["cpu/event=1,name=cycles/", "cycles"],
        ["cpu/event=1/", "cpu/event=1,name=again/"],
        ["faults", "minor-faults:u"],
    ] {
        assert!(planned(&[&pair]).is_ok(), "{pair:?}");
    }
}

#[test]
fn more_than_fits_is_an_error() {
    let six = ["cycles", "instructions", "faults", "cs", "r1", "r2"];
    assert!(planned(&[&six]).is_ok());
    assert_eq!(error(&[&six, &["r3"]]), "too many events in `counters.groups`: 7, and at most 6 fit (remove some)");
    assert_eq!(
        error(&[&["r1"], &["r2"], &["r3"], &["r4"]]),
        "too many groups in `counters.groups`: 4, and at most 3 fit (merge or remove some)"
    );
    assert_eq!(error(&[&["r1"], &[]]), "empty group `counters.groups[1]` (name an event in it, or remove it)");
    assert_eq!(planned(&[]), Ok(Plan::default()));
}

#[test]
fn a_mode_that_the_kernel_would_ignore_is_an_error() {
    assert_eq!(
        error(&[&["cpu-clock:u"]]),
        "no modes of event `cpu-clock:u` at `counters.groups[0][0]`: the kernel counts it only as a whole \
         (remove the modifier)"
    );
    assert!(planned(&[&["cpu-clock:uk", "minor-faults:k"]]).is_ok());
}

#[test]
fn an_error_names_its_place_and_its_cause() {
    assert_eq!(
        error(&[&["cycles"], &["instructions", "cylces"]]),
        "failed to read event at `counters.groups[1][1]`: unknown event `cylces` (did you mean `cycles`?)"
    );
    assert_eq!(
        error(&[&["cpu/event=256/"]]),
        "failed to find event `cpu/event=256/` at `counters.groups[0][0]`: \
         too large value 0x100 of 8-bit field `event` (at most 0xff)"
    );
}

#[test]
fn events_of_one_kind_of_cpus_are_opened_there_only() {
    let sysfs = Sysfs::hybrid();
    let on = |event: &str| {
        let plan = plan(&[vec![event.to_owned()]], sysfs.path(), LIMITS).unwrap();
        let counter = plan.groups[0][0].clone();
        let Source::Attr(attr) = counter.source else { panic!("{event}: {:?}", counter.source) };
        (counter.cpus, attr.core)
    };
    assert_eq!(on("cpu_atom/event=0x3c/"), (Some(vec![4, 5, 7]), true));
    assert_eq!(on("armv8_pmuv3_0/event=0x11/"), (Some(vec![0, 1, 2, 3]), true));
    // The kernel finds the PMU of each CPU itself.
    assert_eq!(on("cycles"), (None, true));
    assert_eq!(on("cpu-clock"), (None, false));
}

#[test]
fn a_raw_code_means_nothing_on_several_kinds_of_cpus() {
    let plan = |sysfs: &Sysfs| plan(&[vec!["r1a8".to_owned()]], sysfs.path(), LIMITS).unwrap();
    assert!(matches!(plan(&Sysfs::new()).groups[0][0].source, Source::Attr(_)));
    let Source::Unsupported(reason) = &plan(&Sysfs::hybrid()).groups[0][0].source else { panic!() };
    assert!(reason.contains("`PMU/config=0x1a8/` with one of `armv8_pmuv3_0`, `cpu_atom`"), "{reason}");
}

#[test]
fn the_whole_catalogue_is_one_plan_of_different_counters() {
    let names: Vec<String> = EVENTS.iter().map(|event| event.name.to_owned()).collect();
    let limits = Limits { events: names.len(), groups: 1 };
    let plan = plan(&[names], Sysfs::new().path(), limits).unwrap();
    let series: HashSet<_> = plan.groups[0].iter().map(|counter| (counter.family, &counter.event_label)).collect();
    assert_eq!(series.len(), EVENTS.len());
}

#[test]
fn no_text_makes_it_panic() {
    let sysfs = Sysfs::new();
    let (mut planned, mut refused) = (0, 0);
    // Only every seventh text, because most texts read a PMU.
    for text in random_texts().step_by(7) {
        match plan(&[vec![text]], sysfs.path(), LIMITS) {
            Ok(_) => planned += 1,
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!(planned > 100 && refused > 100, "{planned} planned, {refused} refused");
}
