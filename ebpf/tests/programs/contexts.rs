//! Checks the maps that the programs reach in the built object. The sampler may reach only some of them: with `cycles`
//! on x86 the sampler is a non-maskable interrupt (NMI), which may come while another program holds the lock of a map.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::code::{Programs, Result, compile};
use aya_obj::generated::bpf_map_type;

/// The section of programs that perf events call.
const SAMPLER: &str = "perf_event";
/// The page with the table of programs and maps.
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/programs.md");

/// The sections, and the context in which their programs run.
const CONTEXTS: [(&str, &str); 11] = [
    (SAMPLER, "NMI (`cycles` on x86), else an interrupt"),
    ("tp_btf/sched_switch", "task, run queue locked, interrupts off"),
    ("raw_tp/sched_switch", "task, run queue locked, interrupts off"),
    ("tp_btf/sched_waking", "task, softirq or interrupt; the woken task locked, interrupts off"),
    ("tp_btf/cgroup_attach_task", "task"),
    ("tp_btf/cgroup_mkdir", "task"),
    ("tp_btf/cgroup_rename", "task"),
    ("tp_btf/cgroup_rmdir", "task"),
    ("tp_btf/task_newtask", "task"),
    ("raw_tp", "task or interrupt, run by the agent"),
    ("iter/task", "task, run by the agent"),
];

/// Returns the context in which a program runs: of its section, or by the description of its sensor.
fn context(section: &str, program: &str) -> Option<&'static str> {
    let of_sensors = podperf_ebpf::sensors::ALL.into_iter().flat_map(|sensor| sensor.programs);
    let own = of_sensors.filter(|of| of.name == program).map(|of| of.context).next();
    own.or_else(|| CONTEXTS.iter().find(|(of, _)| *of == section).map(|(_, context)| *context))
}

/// The maps that a program reaches, by its section and its name.
type Reached = BTreeMap<(String, String), BTreeSet<String>>;

/// Returns the maps of each program of the object.
fn reached(bytes: &[u8]) -> Result<Reached> {
    let programs = Programs::parse(bytes)?;
    let mut reached = Reached::new();
    for (section, name, program) in programs.entries()? {
        let maps = reached.entry((section, name)).or_default();
        for function in programs.nested(program)? {
            maps.extend(programs.references(function)?.maps);
        }
    }
    Ok(reached)
}

/// Returns the kind of each map. Variables are in arrays.
fn kinds(bytes: &[u8]) -> Result<BTreeMap<String, bpf_map_type>> {
    let parsed = aya_obj::Object::parse(bytes)?;
    let kind = |(name, map): (&String, &aya_obj::Map)| Ok((name.clone(), bpf_map_type::try_from(map.map_type())?));
    parsed
        .maps
        .iter()
        .map(kind)
        .collect::<std::result::Result<_, aya_obj::InvalidTypeBinding<u32>>>()
        .map_err(|_unknown| "a map of a kind that is not known".into())
}

/// Returns the maps that the sampler must not reach, with the reason.
fn findings(reached: &Reached, kinds: &BTreeMap<String, bpf_map_type>, allocating: &BTreeSet<String>) -> Vec<String> {
    let mut findings = Vec::new();
    let of_sampler = reached.iter().filter(|((section, _), _)| section == SAMPLER);
    for (program, map) in of_sampler.flat_map(|((_, program), maps)| maps.iter().map(move |map| (program, map))) {
        let others: Vec<&str> = reached
            .iter()
            .filter(|((section, _), maps)| section != SAMPLER && maps.contains(map))
            .map(|((_, other), _)| other.as_str())
            .collect();
        let kind = if map.starts_with('.') { Some(bpf_map_type::BPF_MAP_TYPE_ARRAY) } else { kinds.get(map).copied() };
        match kind {
            // Arrays have no lock.
            Some(
                bpf_map_type::BPF_MAP_TYPE_ARRAY
                | bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY
                | bpf_map_type::BPF_MAP_TYPE_PERF_EVENT_ARRAY,
            ) => {}
            // In an NMI the kernel only tries to lock a ring buffer (`__bpf_ringbuf_reserve`, since Linux 5.8).
            Some(bpf_map_type::BPF_MAP_TYPE_RINGBUF) => {}
            Some(bpf_map_type::BPF_MAP_TYPE_HASH) if allocating.contains(map) => {
                findings.push(format!("`{program}` may be an NMI, and allocates in `{map}`"));
            }
            // An NMI never waits for a bucket that it has interrupted if only NMIs and system calls write: a system
            // call keeps sampling programs off its CPU meanwhile (`bpf_disable_instrumentation`).
            Some(bpf_map_type::BPF_MAP_TYPE_HASH) if others.is_empty() => {}
            kind => findings.push(format!(
                "`{program}` may interrupt others as an NMI, and reaches `{map}` ({kind:?}) as {others:?} do"
            )),
        }
    }
    findings
}

/// Returns the maps that allocate an entry when it is inserted.
fn allocating(bytes: &[u8]) -> Result<BTreeSet<String>> {
    const BPF_F_NO_PREALLOC: u32 = 1;
    let maps = aya_obj::Object::parse(bytes)?.maps;
    Ok(maps.into_iter().filter(|(_, map)| map.map_flags() & BPF_F_NO_PREALLOC != 0).map(|(name, _)| name).collect())
}

fn own() -> (Reached, BTreeMap<String, bpf_map_type>) {
    (reached(podperf_ebpf::OBJECT).unwrap(), kinds(podperf_ebpf::OBJECT).unwrap())
}

#[test]
fn what_the_sampler_reaches_is_safe_in_an_nmi() {
    let (reached, kinds) = own();
    let sampler: BTreeSet<&str> = reached
        .iter()
        .filter(|((section, _), _)| section == SAMPLER)
        .flat_map(|(_, maps)| maps)
        .map(String::as_str)
        .collect();
    assert!(sampler.is_superset(&BTreeSet::from(["stack_ring", "cpus"])), "{sampler:?}");
    assert_eq!(findings(&reached, &kinds, &allocating(podperf_ebpf::OBJECT).unwrap()), [""; 0]);
}

/// The sampler has stricter rules: see `findings`.
#[test]
fn programs_of_sensors_in_an_nmi_allocate_nothing() {
    let (reached, kinds) = own();
    let allocating = allocating(podperf_ebpf::OBJECT).unwrap();
    let programs = podperf_ebpf::sensors::ALL.into_iter().flat_map(|sensor| sensor.programs);
    for program in programs.filter(|program| program.context.contains("NMI")) {
        let (_, maps) = reached.iter().find(|((_, name), _)| name == program.name).unwrap();
        for map in maps.iter().filter(|map| !map.starts_with('.')) {
            let kind = kinds[map];
            let is_safe = matches!(
                kind,
                bpf_map_type::BPF_MAP_TYPE_ARRAY
                    | bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY
                    | bpf_map_type::BPF_MAP_TYPE_HASH
                    | bpf_map_type::BPF_MAP_TYPE_PERCPU_HASH
            );
            assert!(is_safe && !allocating.contains(map), "`{}` reaches `{map}` ({kind:?})", program.name);
        }
    }
}

fn compiled(source: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let from = directory.path().join("program.bpf.c");
    fs::write(&from, source).unwrap();
    compile(&from, "x86")
}

/// Returns the findings for a map of this kind. A function writes to the map: the sampler calls this function, and
/// so does another program if `other_calls`.
fn shared(kind: &str, flags: &str, other_calls: bool) -> Vec<String> {
    let call = if other_calls { "touch(1)" } else { "0" };
    let bytes = compiled(&format!(
        r#"
        #include "kernel.h"
        struct {{
            __uint(type, {kind});
            __uint(map_flags, {flags});
            __uint(max_entries, 16);
            __type(key, __u64);
            __type(value, __u64);
        }} table SEC(".maps");
        static __noinline int touch(__u64 key) {{ return bpf_map_update_elem(&table, &key, &key, BPF_ANY); }}
        SEC("perf_event") int sample(void *ctx) {{ return touch(0); }}
        SEC("tp_btf/sched_switch") int sched_switch(void *ctx) {{ return {call}; }}
        "#
    ));
    findings(&reached(&bytes).unwrap(), &kinds(&bytes).unwrap(), &allocating(&bytes).unwrap())
}

#[test]
fn a_map_that_an_nmi_must_not_reach_is_found_through_calls() {
    for kind in ["BPF_MAP_TYPE_LRU_HASH", "BPF_MAP_TYPE_HASH", "BPF_MAP_TYPE_LRU_PERCPU_HASH"] {
        let found = shared(kind, "0", true);
        assert!(matches!(&found[..], [one] if one.contains("`table`") && one.contains("sched_switch")), "{found:?}");
    }
    assert_eq!(shared("BPF_MAP_TYPE_HASH", "0", false), [""; 0]);
    assert_eq!(shared("BPF_MAP_TYPE_HASH", "BPF_F_NO_PREALLOC", false).len(), 1, "it would allocate in the NMI");
    assert_eq!(shared("BPF_MAP_TYPE_LRU_HASH", "0", false).len(), 1, "its lock is not the bucket's");
}

#[test]
fn the_table_of_programs_and_maps_is_generated_from_the_object() {
    let (reached, kinds) = own();
    let mut table = String::new();
    for ((section, program), maps) in &reached {
        let context =
            context(section, program).unwrap_or_else(|| panic!("no context for `{section}`, where `{program}` is"));
        // One row stands for the sixteen maps `event0` to `event15`.
        let is_one_of_many = |map: &str| map.strip_prefix("event").is_some_and(|number| number != "0");
        for map in maps.iter().filter(|map| !map.starts_with(".rodata") && !is_one_of_many(map)) {
            let kind = kinds.get(map).map(|kind| format!("{kind:?}").replace("BPF_MAP_TYPE_", "").to_lowercase());
            let kind = if map.starts_with('.') { "variables".to_owned() } else { kind.unwrap_or_default() };
            let more = if map == "event0" { " to `event15`" } else { "" };
            table += &format!("| `{program}` | `{map}`{more} | {kind} | {context} |\n");
        }
    }
    let begin = "| program | map | kind | context |\n|---|---|---|---|\n";
    let known = fs::read_to_string(DOCUMENT).unwrap();
    let (text, _) = known.split_once(begin).unwrap();
    let now = format!("{text}{begin}{table}");
    if std::env::var_os("PODPERF_WRITE_GOLDEN").is_some() {
        fs::write(Path::new(DOCUMENT), &now).unwrap();
        return;
    }
    assert!(known == now, "docs/programs.md is not of this object: `make golden` writes it\n{table}");
}
