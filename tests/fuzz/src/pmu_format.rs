//! The kernel's files on a PMU, and events in their terms. Drivers write the files, and the configuration contains the
//! events.
//!
//! The first line is the event, each other one a file of the PMU with its text: `format/event config:0-7,32-35`.

use std::{fs, path::Path, sync::LazyLock};

use podperf::events::{
    parse::{PmuSpec, Target, parse},
    pmu::{Encoding, Resolution, TermError, resolve},
};
use tempfile::TempDir;

const FILES: [&str; 10] = [
    "type",
    "cpus",
    "cpumask",
    "format/event",
    "format/umask",
    "format/any",
    "format/ldlat",
    "events/cpu-cycles",
    "events/mem-loads",
    "events/event",
];

static SYSFS: LazyLock<TempDir> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.unwrap()
});

pub(crate) fn check(text: &str) {
    let mut lines = text.lines();
    let event = lines.next().unwrap_or_default();
    let characters = event.chars().count();
    let spec = match parse(event) {
        Ok(spec) => spec,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let Target::Pmu(pmu) = spec.target else { return };
    // The name of a PMU is one directory.
    assert!(Path::new(&pmu.pmu).components().count() == 1 && !pmu.terms.is_empty());
    assert!(pmu.terms.iter().all(|term| (1..=characters).contains(&term.position)));

    let directory = SYSFS.path().join("cpu");
    fs::remove_dir_all(&directory).ok();
    for below in ["format", "events"] {
        fs::create_dir_all(directory.join(below)).unwrap();
    }
    for (file, text) in lines.filter_map(|line| line.split_once(' ')).filter(|(file, _)| FILES.contains(file)) {
        fs::write(directory.join(file), text).unwrap();
    }
    let pmu = PmuSpec { pmu: "cpu".into(), ..pmu };
    match resolve(&pmu, SYSFS.path()) {
        Ok(Resolution::Supported(encoding)) => is_what_it_says(&encoding),
        Ok(Resolution::Unsupported(reason)) => assert!(!reason.is_empty()),
        Err(TermError::Unknown { position, .. } | TermError::ValueOfEvent { position, .. }) => {
            assert!((1..=characters).contains(&position));
        }
        Err(TermError::OutOfRange { bits, value, .. }) => assert!(bits < 64 && value >> bits > 0),
        Err(TermError::Open { .. }) => {}
    }
}

/// Checks that the reported kernel event resolves to the same encoding.
fn is_what_it_says(encoding: &Encoding) {
    let said = parse(&encoding.kernel_event).unwrap();
    let Target::Pmu(said) = said.target else { panic!("no event of a PMU: {}", encoding.kernel_event) };
    let Ok(Resolution::Supported(again)) = resolve(&said, SYSFS.path()) else {
        panic!("not taken: {}", encoding.kernel_event);
    };
    assert_eq!(&again, encoding);
}
