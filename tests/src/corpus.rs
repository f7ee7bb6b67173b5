//! Replays the kept inputs of the fuzz targets, so an old bug is found without a fuzzer.

use std::{collections::BTreeSet, fs, path::Path};

#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "the fuzz targets are another crate")]
mod fuzz;

/// Returns the names of the entries of a folder of `tests/fuzz`, without their endings.
fn names(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn every_fuzz_target_has_a_folder_of_inputs() {
    let targets: BTreeSet<_> = fuzz::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names("corpus"), targets);
    assert_eq!(names("fuzz_targets"), targets);
}

#[test]
fn kept_inputs_of_the_fuzz_targets_pass() {
    for (target, _) in fuzz::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        let inputs: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!inputs.is_empty(), "no inputs of `{target}`");
        for input in inputs {
            println!("{}", input.display());
            fuzz::check(target, &fs::read(&input).unwrap());
        }
    }
}
