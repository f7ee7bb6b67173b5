use super::*;
use crate::events::{
    SYSFS,
    fixture::Sysfs,
    parse::{Target, parse},
};

fn resolve_in(sysfs: &Path, text: &str) -> Result<Resolution, TermError> {
    let Target::Pmu(spec) = parse(text).unwrap().target else { panic!("{text}") };
    resolve(&spec, sysfs)
}

fn encoding(text: &str) -> Encoding {
    let sysfs = Sysfs::new();
    match resolve_in(sysfs.path(), text) {
        Ok(Resolution::Supported(encoding)) => encoding,
        other => panic!("{text}: {other:?}"),
    }
}

fn error(text: &str) -> String {
    let sysfs = Sysfs::new();
    resolve_in(sysfs.path(), text).unwrap_err().to_string()
}

fn reason(text: &str) -> String {
    let sysfs = Sysfs::new();
    match resolve_in(sysfs.path(), text) {
        Ok(Resolution::Unsupported(reason)) => reason.replace(&sysfs.path().display().to_string(), "DIR"),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn fields_go_to_their_bits() {
    for (text, config) in [
        ("cpu/event=0x3c/", [0x3c, 0, 0]),
        ("cpu/event=0x3c,umask=0x01,edge,inv=1,cmask=255/", [0xff84_013c, 0, 0]),
        ("cpu/event=1,edge=0/", [1, 0, 0]),
        ("cpu/ldlat=0xffff,event=0xcd/", [0xcd, 0xffff, 0]),
        ("cpu/whole=0xffffffffffffffff/", [0, 0, u64::MAX]),
        ("cpu/split=0x9a/", [0x9_0000_000a, 0, 0]),
        ("cpu/config=0xffff,event=0,config1=7,config2=9/", [0xff00, 7, 9]),
        ("cpu/new=0,event=2/", [2, 0, 0]),
        ("cpu/r1a8/", [0x1a8, 0, 0]),
    ] {
        let encoding = encoding(text);
        assert_eq!((encoding.kind, encoding.config), (4, config), "{text}");
    }
}

#[test]
fn events_of_the_pmu_expand() {
    let loads = encoding("cpu/mem-loads/");
    assert_eq!(loads.config, [0x1cd, 3, 0]);
    assert_eq!(loads.kernel_event, "cpu/event=0xcd,umask=0x1,ldlat=0x3/");
    let cycles = encoding("armv8_pmuv3_0/cpu_cycles/");
    assert_eq!((cycles.kind, cycles.config), (8, [0x11, 0, 0]));
}

#[test]
fn terms_override_those_of_an_event_wherever_they_stand() {
    for text in ["cpu/mem-loads,ldlat=30,inv/", "cpu/ldlat=30,inv,mem-loads/"] {
        let encoding = encoding(text);
        assert_eq!(encoding.config, [0x0080_01cd, 30, 0], "{text}");
        assert_eq!(encoding.kernel_event, "cpu/event=0xcd,umask=0x1,ldlat=0x1e,inv=0x1/", "{text}");
    }
}

#[test]
fn an_open_field_of_an_event_must_be_given() {
    assert_eq!(
        error("cpu/asks/"),
        "missing field `umask`, which event `asks` of PMU `cpu` leaves open (add `umask=...`)"
    );
    assert_eq!(encoding("cpu/asks,umask=2/").config, [0x210, 0, 0]);
}

#[test]
fn a_value_wider_than_its_field_is_an_error() {
    assert_eq!(error("cpu/event=0x100/"), "too large value 0x100 of 8-bit field `event` (at most 0xff)");
    assert_eq!(error("cpu/edge=2/"), "too large value 0x2 of 1-bit field `edge` (at most 0x1)");
    assert_eq!(error("cpu/split=256/"), "too large value 0x100 of 8-bit field `split` (at most 0xff)");
}

#[test]
fn an_unknown_term_is_an_error_that_names_the_nearest() {
    assert_eq!(
        error("cpu/event=1,umsk=1/"),
        "unknown term `umsk` at position 13: PMU `cpu` has no such field or event (did you mean `umask`?)"
    );
    assert_eq!(
        error("cpu/zzz/"),
        "unknown term `zzz` at position 5: PMU `cpu` has no such field or event \
         (see its `format` and `events` in /sys/bus/event_source/devices)"
    );
    assert_eq!(
        error("cpu/cpu-cycles=1/"),
        "unexpected value in term `cpu-cycles=1` at position 5: an event of PMU `cpu` takes no value (write `cpu-cycles`)"
    );
    assert!(error("cpu/mem-loads.scale/").contains("did you mean `mem-loads`?"));
}

#[test]
fn a_missing_pmu_is_unsupported_and_lists_those_there() {
    assert_eq!(
        reason("cpu_core/event=1/"),
        "no PMU `cpu_core` on this machine \
         (see DIR: armv8_pmuv3_0, cpu, untyped, 1 that count for whole packages)"
    );
    let nowhere = resolve_in(Path::new("/nonexistent"), "cpu/event=1/");
    let expected = "no PMU `cpu` on this machine (see /nonexistent: none)".to_owned();
    assert_eq!(nowhere, Ok(Resolution::Unsupported(expected)));
}

#[test]
fn what_the_machine_or_podperf_cannot_do_is_unsupported() {
    for (text, expected) in [
        ("uncore_imc_0/event=1/", "counts for whole packages, on CPUs 0,24, so its counts belong to no cgroup"),
        ("uncore_imc_0/nonsense/", "counts for whole packages"),
        ("untyped/event=1/", "failed to read PMU `untyped`"),
        ("cpu/new=1/", "wants bits in `config3`"),
        ("cpu/config3=1/", "wants bits in `config3`"),
        ("cpu/broken=1/", "`cpu/format/broken` is not understood"),
        ("cpu/overflows/", "`cpu/events/overflows` is not understood"),
        ("cpu/backwards/", "`cpu/events/backwards` is not understood"),
    ] {
        assert!(reason(text).contains(expected), "{text}: {}", reason(text));
    }
}

#[test]
fn the_cpus_of_a_pmu_are_noted() {
    let sysfs = Sysfs::new();
    let pmu = Pmu::read(sysfs.path(), "armv8_pmuv3_0").unwrap();
    assert_eq!((pmu.cpus.as_deref(), pmu.cpumask), (Some("0-3"), None));
}

#[test]
fn formats_that_no_kernel_writes_are_refused() {
    for text in ["", "config", "config:", "config4:0", "config:64", "config:1-0", "config:a", "config:0-63,0"] {
        assert_eq!(Field::parse(text), None, "{text}");
    }
}

#[test]
fn the_time_stamp_counter_of_this_machine_is_found() {
    let sysfs = Path::new(SYSFS);
    if !sysfs.join("msr/events/tsc").exists() {
        println!("skipped: this machine has no `msr/tsc/`");
        return;
    }
    let Ok(Resolution::Supported(tsc)) = resolve_in(sysfs, "msr/tsc/") else { panic!() };
    assert_eq!((tsc.config, tsc.kernel_event.as_str()), ([0, 0, 0], "msr/event=0x0/"));
    assert_eq!(tsc.kind, Pmu::read(sysfs, "msr").unwrap().kind);
}

#[test]
fn lists_of_cpus_are_ranges_and_numbers() {
    for (text, cpus) in [
        ("0-3,8\n", Some(vec![0, 1, 2, 3, 8])),
        ("5", Some(vec![5])),
        ("\n", Some(vec![])),
        ("3-1", None),
        ("0-70000", None),
        ("a", None),
    ] {
        assert_eq!(cpu_list(text), cpus, "{text}");
    }
}
