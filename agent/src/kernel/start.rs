//! How the programs come to run: adopted, if the ones that are wanted are pinned, else loaded and attached.

use std::io;

use aya::{Btf, EbpfLoader};
use podperf_ebpf::abi;
use tracing::warn;

use super::{
    attach::{attach_btf, attach_scheduling, load_iter, load_raw},
    clock::monotonic_ns,
    counters::Counters,
    handover,
    host::in_initial_pid_namespace,
    layout::Layout,
    load::{LoadError, SensorSettings},
    object::Object,
    pins::{Generation, Pins},
    raw,
    rows::Rows,
    sensors::{COLLECT, fd},
    symbols,
};

/// What is pinned.
pub(super) struct Found {
    /// What is wanted.
    pub(super) same: Option<(Generation, Object)>,
    /// Others, which can be taken over.
    pub(super) others: Vec<Generation>,
}

/// Looks for what is pinned, and removes what is of no use.
pub(super) fn find(pins: &Pins, layout: &str) -> Result<Found, LoadError> {
    let failed = |source| pins.failed(source);
    let mut found = Found { same: None, others: Vec::new() };
    let version = |layout: &str| layout.split('-').next().map(str::to_owned);
    for generation in pins.generations().map_err(failed)? {
        if generation.layout == layout {
            match Object::pinned(&pins.of(&generation.name)) {
                Ok(object) => {
                    found.same = Some((generation, object));
                    continue;
                }
                Err(error) => {
                    warn!(generation = generation.name, %error, "what is pinned is not whole, and is removed")
                }
            }
        } else if version(&generation.layout) == version(layout) && handover::word(pins).is_some() {
            found.others.push(generation);
            continue;
        } else {
            warn!(generation = generation.name, "what is pinned is of another version, and is removed");
        }
        pins.remove(&generation.name).map_err(failed)?;
    }
    Ok(found)
}

/// What the programs are told.
pub(super) fn layout(settings: &SensorSettings, counters: &Counters, rows: &Rows, copies: usize) -> Layout {
    let copies = u32::try_from(copies).unwrap_or(1);
    let max_stacks = if settings.stacks { settings.max_stacks } else { 1 };
    let max_samples = if settings.stacks { settings.max_samples } else { 1 };
    let (interrupts, scheduler) = symbols::text(settings.stacks);
    Layout::default()
        .global("nr_events", u32::try_from(counters.slots()).unwrap_or(0))
        .global("leader_of", counters.leader_of())
        .global("facts_enabled", u8::from(settings.facts))
        .global("stacks_enabled", u8::from(settings.stacks))
        .global("long_wait_ns", settings.long_wait_ns)
        .global("waker_after_ns", settings.waker_after_ns)
        .global("waker_stacks", u8::from(settings.waker_stacks))
        .global("irq_text_begin", interrupts.start)
        .global("irq_text_end", interrupts.end)
        .global("schedule_begin", scheduler.start)
        .global("schedule_end", scheduler.end)
        .global("walk_every_ns", apart_ns(settings.max_walks))
        .global("sample_ns", apart_ns(settings.oncpu_hertz))
        .global("max_samples", max_samples)
        .global("shadow", u8::from(settings.shadow))
        .global("sums_enabled", u8::from(in_initial_pid_namespace()))
        .global("slot_shift", rows.slot_shift())
        .size("cgroups", settings.max_cgroups)
        .size("rows", rows.slots())
        .size("rows_by_id", rows.by_id())
        .size("cpus", copies)
        .size("controls", copies)
        .size("stack_memo", max_stacks)
        .size("stacks_sent", max_stacks)
        .size("samples0", max_samples)
        .size("samples1", max_samples)
        .besides(format!("{:?}", settings.tracepoint))
        // What the slots of counters are.
        .besides(format!("{:?}", counters.names()))
}

/// Loads the object, pins its maps where that is wanted, and attaches its programs. They count at once, unless there are
/// others to be taken over.
pub(super) fn load(
    settings: &SensorSettings,
    layout: &Layout,
    pins: Option<&Pins>,
    others: &[Generation],
) -> Result<(Object, u64), LoadError> {
    // The kernel's types are by far the largest thing in the agent: they are gone when this is done.
    let btf = Btf::from_sys_fs()?;
    let number = others.iter().map(|other| other.number).max().unwrap_or(0) + 1;
    let word = pins.filter(|_| !others.is_empty()).and_then(handover::word);
    let word = word.unwrap_or_else(|| abi::podperf_handover { generation: number, since_ns: monotonic_ns() });
    let mut loader = EbpfLoader::new();
    // Task storage: made and filled by the programs, never touched from here.
    loader.btf(Some(&btf)).allow_unsupported_maps();
    loader.override_global("loaded_at_ns", bytemuck::bytes_of(&word.since_ns), true);
    loader.override_global("generation", bytemuck::bytes_of(&number), true);
    loader.override_global("handover", bytemuck::bytes_of(&word), true);
    if let Some(pins) = pins {
        if others.is_empty() {
            pins.begin_shared().map_err(|source| pins.failed(source))?;
        }
        loader.map_pin_path(".data.handover", pins.shared().join(handover::WORD));
        loader.map_pin_path("tasks", pins.shared().join("tasks"));
    }
    layout.tell(&mut loader);
    let ebpf = loader.load(podperf_ebpf::OBJECT).map_err(|error| LoadError::Object(Box::new(error)))?;
    let mut object = Object::loaded(ebpf);
    if let Some(pins) = pins {
        pins.begin().and_then(|path| object.pin_maps(&path)).map_err(|source| pins.failed(source))?;
    }
    for program in ["cgroup_mkdir", "cgroup_rename", "cgroup_rmdir", "cgroup_attach_task"] {
        attach_btf(&mut object, program, program, &btf)?;
    }
    for program in ["flush", "forget"] {
        load_raw(&mut object, program, None)?;
    }
    attach_scheduling(&mut object, settings.tracepoint, &btf)?;
    if settings.stacks {
        load_iter(&mut object, COLLECT, &btf)?;
    }
    if settings.stacks && settings.waker_after_ns > 0 {
        attach_btf(&mut object, "sched_waking", "sched_waking", &btf)?;
    }
    Ok((object, number))
}

/// Has all stacks sent again: nothing is known here of those that were sent to an agent before.
pub(super) fn forget_stacks(object: &Object) -> io::Result<()> {
    raw::clear::<u64>(fd(object, "stacks_sent")?)?;
    raw::clear::<u64>(fd(object, "stack_memo")?)
}

pub(super) fn is_loaded(object: &Object, program: &str) -> bool {
    object.descriptor(program).is_some()
}

/// How far apart so many in a second are; 0 for none.
fn apart_ns(in_a_second: u32) -> u64 {
    1_000_000_000_u64.checked_div(in_a_second.into()).unwrap_or(0)
}
