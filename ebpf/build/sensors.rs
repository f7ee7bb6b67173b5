//! Finds the sensors, each a folder of `sensors/`, and writes the code that calls them.
//!
//! A folder NAME has `NAME.h` (the row: `struct podperf_NAME`), `NAME.bpf.h` (`SENSOR(NAME)` and its riders) and
//! `sensor.rs` (its description). A sensor with programs of its own also has `NAME.bpf.c`.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
};

/// A point at which riders run.
struct Point {
    name: &'static str,
    parameters: &'static str,
    /// Code that runs once before all riders.
    before: &'static str,
    /// The arguments of each rider.
    arguments: &'static str,
}

/// The points.
///
/// `wait_begin`: `task`, whose record is `t`, leaves its CPU, or was found asleep. `t->activity` says how it left.
///
/// `wait_end`: a task of `cgroup` has ended a wait, which began with `call` in its record. It was in the state
/// `activity` for `ns` nanoseconds, and then in the run queue for `queued_ns`. If `activity` is `PODPERF_RUN_QUEUE` or
/// `PODPERF_THROTTLED`, `queued_ns` is 0. `slot` is the slot of `cgroup` in the rows of each sensor.
///
/// `exit`: the thread `pid` has ended, and leaves its CPU for the last time.
const POINTS: [Point; 3] = [
    Point {
        name: "wait_begin",
        parameters: "struct task_struct *task, struct task *t",
        before: "",
        arguments: "task, t",
    },
    Point {
        name: "wait_end",
        parameters: "__u64 cgroup, __u8 call, __u32 activity, __u64 ns, __u64 queued_ns",
        before: "\t__u32 slot = sensor_slot(cgroup);\n\n",
        arguments: "slot, cgroup, call, activity, ns, queued_ns",
    },
    Point { name: "exit", parameters: "__u32 pid", before: "", arguments: "pid" },
];

/// The folder of all sensors.
pub(crate) const FOLDER: &str = "sensors";

/// Returns the names of all sensors, in alphabetical order.
pub(crate) fn names() -> Result<Vec<String>, Box<dyn Error>> {
    println!("cargo::rerun-if-changed={FOLDER}");
    let mut names = Vec::new();
    for entry in fs::read_dir(FOLDER)? {
        let path = entry?.path();
        names.extend(path.is_dir().then(|| path.file_name().unwrap_or_default().to_string_lossy().into_owned()));
    }
    names.sort_unstable();
    Ok(names)
}

/// Writes the headers for the programs and for bindgen, and the list of descriptions, into `to`.
pub(crate) fn write(names: &[String], to: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to)?;
    let include =
        |suffix: &str| -> String { names.iter().map(|name| format!("#include \"{name}/{name}{suffix}\"\n")).collect() };
    fs::write(to.join("abi.h"), format!("#include \"podperf.h\"\n{}", include(".h")))?;
    let mut riders = include(".bpf.h");
    for Point { name: point, parameters, before, arguments } in POINTS {
        let (mut all_off, mut calls) = (Vec::new(), String::new());
        for name in names {
            let function = format!("{name}_on_{point}(");
            if fs::read_to_string(Path::new(FOLDER).join(format!("{name}/{name}.bpf.h")))?.contains(&function) {
                all_off.push(format!("!{name}_enabled"));
                calls.push_str(&format!("\tif ({name}_enabled)\n\t\t{function}{arguments});\n"));
            }
        }
        if !calls.is_empty() {
            calls = format!("\tif ({})\n\t\treturn;\n{before}{calls}", all_off.join(" && "));
        }
        riders.push_str(&format!("static __always_inline void ride_{point}({parameters})\n{{\n{calls}}}\n"));
    }
    let frees: String = names.iter().map(|name| format!("\tif ({name}_enabled)\n\t\t{name}_free(id);\n")).collect();
    riders.push_str(&format!("static __always_inline void free_sensor_slots(__u64 id)\n{{\n{frees}}}\n"));
    fs::write(to.join("riders.bpf.h"), riders)?;
    let has_programs = |name: &&String| Path::new(FOLDER).join(format!("{name}/{name}.bpf.c")).exists();
    let programs = names.iter().filter(has_programs).map(|name| format!("#include \"{name}/{name}.bpf.c\"\n"));
    fs::write(to.join("programs.bpf.h"), programs.collect::<String>())?;
    let folder = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join(FOLDER);
    let modules = names.iter().map(|name| {
        let file = folder.join(name).join("sensor.rs");
        format!("#[path = {file:?}]\nmod {name};\n")
    });
    let all: Vec<_> = names.iter().map(|name| format!("&{name}::SENSOR")).collect();
    let programs: Vec<_> = names.iter().map(|name| format!("{name}::SENSOR.programs.len()")).collect();
    let orders = names.iter().filter(has_programs).map(|name| order(name)).collect::<Result<String, _>>()?;
    let list = format!(
        "{}/// All sensors, in alphabetical order.\npub static ALL: [&Sensor; {}] = [{}];\n\
         /// The number of programs of all sensors.\npub const PROGRAMS: usize = {};\n{orders}",
        modules.collect::<String>(),
        all.len(),
        all.join(", "),
        programs.join(" + ")
    );
    Ok(fs::write(to.join("sensors.rs"), list)?)
}

/// Returns the assertion that a sensor describes its programs in the order of `enum NAME_program`, which is the order of
/// their accounts.
fn order(name: &str) -> Result<String, Box<dyn Error>> {
    let file = Path::new(FOLDER).join(format!("{name}/{name}.bpf.c"));
    let text = fs::read_to_string(&file)?;
    let begin = format!("enum {name}_program {{");
    let missing = || format!("no `{begin}` with one name in each line in `{}`", file.display());
    let values = text.split_once(&begin).and_then(|(_, rest)| rest.split_once('}')).ok_or_else(missing)?.0;
    let values: Vec<_> = values.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let value = |line: &&str| line.strip_suffix(',').map(str::to_lowercase);
    let mut programs: Vec<String> = values.iter().map(value).collect::<Option<_>>().ok_or_else(missing)?;
    // The last value is the number of programs.
    if programs.pop() != Some(format!("{name}_programs")) {
        return Err(missing().into());
    }
    let order = format!("`enum {name}_program` and the programs in {name}/sensor.rs are in the same order");
    Ok(format!("const _: () = assert!(super::sensor::are_named({name}::SENSOR.programs, &{programs:?}), {order:?});\n"))
}
