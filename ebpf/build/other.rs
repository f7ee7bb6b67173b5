//! Builds the same programs with another layout for tests, as if a version between had moved the fields that stay.

use std::{error::Error, fs, path::Path};

/// The file, the text in it, and its replacement.
const CHANGES: [(&str, &str, &str); 8] = [
    ("podperf.h", "#define PODPERF_LAYOUT ", "#define PODPERF_LAYOUT 1000"),
    // Fields in another order, and new ones between.
    ("podperf.h", "__u64 voluntary;\n\t__u64 involuntary;", "__u64 involuntary;\n\t__u64 voluntary;"),
    ("podperf.h", "__u64 migrations;\n\t__u64 minor_faults;", "__u64 minor_faults;\n\t__u64 new;\n\t__u64 migrations;"),
    ("podperf.h", "sizeof(struct podperf_cgroup) == 64 + 24", "sizeof(struct podperf_cgroup) == 64 + 32"),
    (
        "podperf.h",
        "offsetof(struct podperf_cgroup, migrations) == 64",
        "offsetof(struct podperf_cgroup, migrations) == 80",
    ),
    ("podperf.h", "__u64 idle_ns;\n\t__u64 switches_recovered;", "__u64 switches_recovered;\n\t__u64 idle_ns;"),
    (
        "tasks.bpf.h",
        "__u64 run_ns;\n\t__u64 runqueue_ns;\n\t__u64 voluntary;",
        "__u64 voluntary;\n\t__u64 new;\n\t__u64 runqueue_ns;\n\t__u64 run_ns;",
    ),
    ("tasks.bpf.h", "struct facts settled; ", "__u32 new[4];\n\tstruct facts settled; "),
];

/// Writes the sources with these changes into `to`.
pub(crate) fn write(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    // A file of an earlier build could be found in place of a new one.
    fs::remove_dir_all(to).ok();
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut text = fs::read_to_string(&path)?;
        for (_, before, after) in CHANGES.iter().filter(|(file, ..)| *file == name) {
            if text.matches(before).count() != 1 {
                return Err(format!("`{before}` is not once in `{name}` (see ebpf/build/other.rs)").into());
            }
            text = text.replacen(before, after, 1);
        }
        fs::write(to.join(&name), text)?;
    }
    Ok(())
}

/// Writes the sensors into `to`, each with a row that has another word before its own words.
pub(crate) fn write_sensors(names: &[String], from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    const BEFORE: &str = "\t__u64 id;";
    for name in names {
        fs::create_dir_all(to.join(name))?;
        for entry in fs::read_dir(from.join(name))? {
            let path = entry?.path();
            let file = path.file_name().unwrap_or_default();
            let mut text = fs::read_to_string(&path)?;
            if file.to_string_lossy() == format!("{name}.h") {
                text = text.replacen(BEFORE, "\t__u64 id;\n\t__u64 new;", 1);
            }
            fs::write(to.join(name).join(file), text)?;
        }
    }
    Ok(())
}
