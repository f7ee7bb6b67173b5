//! Builds the kernel side: clang makes the BPF object, and that of recordings of system calls; bindgen makes the Rust
//! view of their ABI headers. The script also writes a description of the map values, from the object.
#![expect(clippy::print_stderr, reason = "how a build script talks to cargo")]

#[path = "build/layout.rs"]
mod layout;
#[path = "build/other.rs"]
mod other;
#[path = "build/sensors.rs"]
mod sensors;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    rc::Rc,
};

/// The remedy when the build tools are missing.
const TOOLS: &str = "needs clang 14 or newer, libclang and the libbpf headers: `make setup`, or on Debian and Ubuntu \
                     `apt-get install clang libclang-dev libbpf-dev`";

/// An enumeration whose names the agent shows, or has in the same order.
struct Named {
    enumeration: &'static str,
    /// The prefix of its values.
    prefix: &'static str,
    /// The value that ends the list; `None` if all values with the prefix are in the list.
    end: Option<&'static str>,
    /// The constant that lists the names.
    constant: &'static str,
}

/// The enumeration that the reasons for drops of the sensors follow.
const DROPS: &str = "podperf_drop";

const NAMED: [Named; 4] = [
    Named {
        enumeration: DROPS,
        prefix: "PODPERF_DROP_",
        end: None,
        constant: "/// The reasons for drops: `enum podperf_drop`, then those of each sensor, in the order of the map.\n\
                   pub const DROPS",
    },
    Named {
        enumeration: "podperf_program",
        prefix: "PODPERF_PROGRAM_",
        end: None,
        constant: "/// The programs that have an account, in the order of `enum podperf_program`.\npub const PROGRAMS",
    },
    Named {
        enumeration: "podperf_activity",
        prefix: "PODPERF_",
        end: Some("PODPERF_WAITS"),
        constant: "/// The activities that are waits, in the order of `enum podperf_activity`.\npub const WAITS",
    },
    Named {
        enumeration: "podperf_lock",
        prefix: "PODPERF_LOCK_",
        end: None,
        constant: "/// The kinds of locks, in the order of `enum podperf_lock`.\npub const LOCKS",
    },
];

/// The values of an enumeration, with their numbers. Two values may have one number.
type Values = BTreeMap<String, i64>;

/// Adds the derives that let map values be read as plain bytes, and collects the values of enumerations.
#[derive(Debug, Default)]
struct Abi(Rc<RefCell<BTreeMap<String, Values>>>);

impl bindgen::callbacks::ParseCallbacks for Abi {
    fn enum_variant_behavior(
        &self,
        enumeration: Option<&str>,
        name: &str,
        value: bindgen::callbacks::EnumVariantValue,
    ) -> Option<bindgen::callbacks::EnumVariantCustomBehavior> {
        let number = match value {
            bindgen::callbacks::EnumVariantValue::Signed(number) => number,
            bindgen::callbacks::EnumVariantValue::Unsigned(number) => i64::try_from(number).ok()?,
            bindgen::callbacks::EnumVariantValue::Boolean(_) => return None,
        };
        let enumeration = enumeration?.trim_start_matches("enum ").to_owned();
        self.0.borrow_mut().entry(enumeration).or_default().insert(name.to_owned(), number);
        None
    }

    fn add_derives(&self, info: &bindgen::callbacks::DeriveInfo<'_>) -> Vec<String> {
        if info.kind == bindgen::callbacks::TypeKind::Struct {
            vec!["bytemuck::Pod".into(), "bytemuck::Zeroable".into()]
        } else {
            Vec::new()
        }
    }
}

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for directory in ["bpf", "build"] {
        for entry in fs::read_dir(directory)? {
            println!("cargo::rerun-if-changed={}", entry?.path().display());
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CLANG");
    let names = sensors::names()?;
    let generated = out.join("sensors");
    let drops = sensors::write(&names, &generated)?;
    let (mut sources, mut folder) = (PathBuf::from("bpf"), PathBuf::from(sensors::FOLDER));
    if env::var_os("CARGO_FEATURE_OTHER_LAYOUT").is_some() {
        let others = out.join("other");
        other::write(&sources, &others)?;
        other::write_sensors(&names, &folder, &others.join(sensors::FOLDER))?;
        (sources, folder) = (others.clone(), others.join(sensors::FOLDER));
    }
    let include = [&sources, &folder, &generated].map(|directory| format!("-I{}", directory.display()));
    let object = out.join("podperf.bpf.o");
    compile(&sources.join("podperf.bpf.c"), &include, &object)?;
    compile(&sources.join("recorded_calls.bpf.c"), &include, &out.join("recorded_calls.bpf.o"))?;
    fs::write(out.join("layout.txt"), layout::describe(&fs::read(&object)?, &names)?)?;
    bindings(&generated, &include, &drops, &out)
}

fn compile(source: &Path, include: &[String], object: &Path) -> Result<(), Box<dyn Error>> {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let (arch, triple) = match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => ("x86", "x86_64-linux-gnu"),
        "aarch64" => ("arm64", "aarch64-linux-gnu"),
        other => {
            return Err(format!("no BPF register layout for `{other}` (podperf runs on x86_64 and aarch64)").into());
        }
    };
    let mut command = Command::new(&clang);
    command
        .args(["-target", "bpf", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        // BPF_PROG declares parameters that not every program reads.
        .arg("-Wno-unused-parameter")
        // v3 has the atomic exchange, and 5.15 runs it; v4 would exclude kernels before 6.6.
        .arg("-mcpu=v3")
        .arg(format!("-D__TARGET_ARCH_{arch}"))
        // Debian keeps asm/ headers per architecture, and clang does not look there for the bpf target.
        .arg(format!("-I/usr/include/{triple}"))
        .args(include)
        // The object must contain no path of the build machine.
        .arg(format!("-ffile-prefix-map={}=.", env::current_dir()?.display()))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object);
    let output = command.output().map_err(|err| format!("failed to run `{clang}`: {err} ({TOOLS})"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("failed to compile `{}` ({TOOLS}):\n{stderr}", source.display()).into());
    }
    Ok(())
}

/// Writes the bindings and the lists of names. `drops` are the reasons for drops of the sensors.
fn bindings(generated: &Path, include: &[String], drops: &[String], out: &Path) -> Result<(), Box<dyn Error>> {
    let values = Rc::<RefCell<BTreeMap<String, Values>>>::default();
    bindgen::Builder::default()
        .header(generated.join("abi.h").to_string_lossy())
        .clang_args(include)
        .allowlist_file(".*podperf\\.h")
        .allowlist_file(".*copies\\.h")
        .allowlist_file(".*recorded_calls\\.h")
        .allowlist_file(format!(".*{}/[^/]*/[^/.]*\\.h", sensors::FOLDER))
        .prepend_enum_name(false)
        .layout_tests(false)
        .derive_default(false)
        .generate_comments(false)
        .parse_callbacks(Box::new(Abi(Rc::clone(&values))))
        .generate()
        .map_err(|err| format!("failed to read the ABI (bpf/podperf.h and others): {err} ({TOOLS})"))?
        .write_to_file(out.join("abi.rs"))?;
    let more = |named: &Named| if named.enumeration == DROPS { drops } else { &[] };
    let lists = NAMED.iter().map(|named| list(&values.borrow(), named, more(named)));
    let lists = lists.collect::<Result<String, _>>()?;
    Ok(fs::write(out.join("names.rs"), lists)?)
}

/// Returns a constant with the names of an enumeration's values that have the prefix, in lower case and without it, and
/// then `more` names.
fn list(values: &BTreeMap<String, Values>, named: &Named, more: &[String]) -> Result<String, String> {
    let Named { enumeration, prefix, end, constant } = named;
    let values = values
        .get(*enumeration)
        .ok_or_else(|| format!("no `enum {enumeration}` in bpf/podperf.h or in the header of a sensor"))?;
    let end = match end {
        Some(end) => *values.get(*end).ok_or_else(|| format!("no `{end}` in `enum {enumeration}`"))?,
        None => i64::MAX,
    };
    let listed = values.iter().filter(|(_, number)| **number < end);
    let mut names: Vec<_> =
        listed.filter_map(|(name, number)| Some((*number, name.strip_prefix(prefix)?.to_lowercase()))).collect();
    names.sort_unstable();
    if names.iter().zip(0..).any(|((number, _), place)| *number != place) {
        return Err(format!("the values of `enum {enumeration}` do not count up from 0"));
    }
    let names: Vec<_> = names.into_iter().map(|(_, name)| name).chain(more.iter().cloned()).collect();
    Ok(format!("{constant}: [&str; {}] = {names:?};\n", names.len()))
}
