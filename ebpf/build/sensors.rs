//! Finds the sensors, each a folder of `sensors/`, and writes the code that calls them.
//!
//! A folder NAME has `NAME.h` (the row: `struct podperf_NAME`), `NAME.bpf.h` (`SENSOR(NAME)`) and `sensor.rs` (its
//! description). A sensor with a rider at a point also has a file such as `on_exit.bpf.h` (`NAME_on_exit`), and one with
//! programs of its own `NAME.bpf.c`.

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

/// Returns an error if a sensor has a file of a rider that no point would call.
fn check_riders(sensor: &str) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(Path::new(FOLDER).join(sensor))? {
        let file = entry?.file_name().to_string_lossy().into_owned();
        let point = file.strip_prefix("on_").and_then(|rest| rest.strip_suffix(".bpf.h"));
        if point.is_some_and(|point| POINTS.iter().all(|known| known.name != point)) {
            let known = POINTS.map(|point| point.name).join(", ");
            return Err(format!("{FOLDER}/{sensor}/{file}: no point has this name (there are {known})").into());
        }
    }
    Ok(())
}

/// Includes the ABI, but for that of the sensors.
const ABI: &str = "#include \"podperf.h\"\n#include \"copies.h\"\n#include \"recorded_calls.h\"\n";

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

/// Writes the headers for the programs and for bindgen, and the list of descriptions, into `to`. Returns the reasons for
/// drops of all sensors, which follow those of `enum podperf_drop`.
pub(crate) fn write(names: &[String], to: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    fs::create_dir_all(to)?;
    names.iter().try_for_each(|name| check_riders(name))?;
    let (drops, are_reasons) = drops(names, &to.join("sensor_drops.h"))?;
    let include =
        |suffix: &str| -> String { names.iter().map(|name| format!("#include \"{name}/{name}{suffix}\"\n")).collect() };
    fs::write(to.join("abi.h"), format!("{ABI}{}", include(".h")))?;
    let mut riders = include(".bpf.h");
    for Point { name: point, parameters, before, arguments } in POINTS {
        let (mut all_off, mut calls) = (Vec::new(), String::new());
        for name in names {
            let file = format!("{name}/on_{point}.bpf.h");
            if Path::new(FOLDER).join(&file).exists() {
                riders.push_str(&format!("#include \"{file}\"\n"));
                all_off.push(format!("!{name}_enabled"));
                calls.push_str(&format!("\tif ({name}_enabled)\n\t\t{name}_on_{point}({arguments});\n"));
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
         /// The number of programs of all sensors.\npub const PROGRAMS: usize = {};\n{orders}{are_reasons}",
        modules.collect::<String>(),
        all.len(),
        all.join(", "),
        programs.join(" + ")
    );
    fs::write(to.join("sensors.rs"), list)?;
    Ok(drops)
}

/// Returns the assertion that a sensor describes its programs in the order of `enum NAME_program`, which is the order of
/// their accounts.
fn order(name: &str) -> Result<String, Box<dyn Error>> {
    let file = Path::new(FOLDER).join(format!("{name}/{name}.bpf.c"));
    let programs = values(&file, &format!("enum {name}_program {{"), &format!("{name}_programs"))?
        .ok_or_else(|| format!("no `enum {name}_program` in `{}`", file.display()))?;
    let order = format!("`enum {name}_program` and the programs in {name}/sensor.rs are in the same order");
    Ok(format!("const _: () = assert!(super::sensor::are_named({name}::SENSOR.programs, &{programs:?}), {order:?});\n"))
}

/// Returns the reasons for drops of all sensors: the values of each `enum NAME_drop` in NAME.bpf.h. Also returns the
/// assertions that the sensors describe them in the same order. Writes `NAME_FIRST_DROP`, the first value of each
/// enumeration, and `PODPERF_ALL_DROPS`, the number of all reasons, into `header`.
fn drops(names: &[String], header: &Path) -> Result<(Vec<String>, String), Box<dyn Error>> {
    let (mut drops, mut are_reasons, mut defines) = (Vec::new(), String::new(), String::new());
    for name in names {
        let (first, prefix) = (format!("{}_FIRST_DROP", name.to_uppercase()), format!("{name}_drop_"));
        defines.push_str(&format!("#define {first} (PODPERF_DROPS + {})\n", drops.len()));
        let file = Path::new(FOLDER).join(format!("{name}/{name}.bpf.h"));
        let mut own = values(&file, &format!("enum {name}_drop {{"), &format!("{name}_drops"))?.unwrap_or_default();
        if let Some(begin) = own.first_mut() {
            let counts = begin.strip_suffix(&format!(" = {}", first.to_lowercase()));
            *begin = counts.ok_or_else(|| format!("`enum {name}_drop` does not begin with `{first}`"))?.to_owned();
        }
        let label = |value: &String| Some(format!("{name}_{}", value.strip_prefix(&prefix)?));
        let labels = own.iter().map(label).collect::<Option<Vec<_>>>();
        let labels = labels.ok_or_else(|| format!("a value of `enum {name}_drop` does not begin with `{prefix}`"))?;
        let order = format!("`enum {name}_drop` and the drops in {name}/sensor.rs are in the same order");
        are_reasons.push_str(&format!(
            "const _: () = assert!(super::sensor::are_reasons({name}::SENSOR.drops, &{labels:?}), {order:?});\n"
        ));
        drops.extend(labels);
    }
    defines.push_str(&format!("#define PODPERF_ALL_DROPS (PODPERF_DROPS + {})\n", drops.len()));
    fs::write(header, defines)?;
    Ok((drops, are_reasons))
}

/// Returns the values of an enumeration in lower case, without the last value, which is the number of values. The
/// enumeration has one value in each line. Returns `None` if it is not in the file.
fn values(file: &Path, begin: &str, number: &str) -> Result<Option<Vec<String>>, Box<dyn Error>> {
    let text = fs::read_to_string(file)?;
    let Some((_, rest)) = text.split_once(begin) else { return Ok(None) };
    let wrong = || format!("`{begin}` has not one name in each line and then `{number}` in `{}`", file.display());
    let lines = rest.split_once('}').ok_or_else(wrong)?.0.lines();
    let lines = lines.map(|line| line.split("/*").next().unwrap_or_default().trim()).filter(|line| !line.is_empty());
    let value = |line: &str| line.strip_suffix(',').map(str::to_lowercase);
    let mut values: Vec<String> = lines.map(value).collect::<Option<_>>().ok_or_else(wrong)?;
    if values.pop().as_deref() != Some(number) {
        return Err(wrong().into());
    }
    Ok(Some(values))
}
