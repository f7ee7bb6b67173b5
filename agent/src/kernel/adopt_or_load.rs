//! Starts the programs: adopts them if the wanted ones are pinned, else loads and attaches them.

use super::programs::TASKS;
use std::io;

use aya::{Btf, EbpfLoader};
use podperf_ebpf::abi;
use tracing::warn;

use super::{
    attach::{attach_btf, attach_scheduling, load_iter, load_raw},
    clock::monotonic_ns,
    copies,
    counters::Counters,
    error::LoadError,
    hash_key::HashKey,
    host::in_initial_pid_namespace,
    listed,
    load::SensorSettings,
    object::{Object, fd},
    orders::{Lowered, apart_ns},
    programs::{ADOPT, CARRY, COLLECT, ORDERS, SEE},
    raw,
    rows::Rows,
    sensor_programs::{self, SensorState},
    sent, symbols,
    takeover::{
        description::{self, Description},
        generations,
        layout::Layout,
        pins::{Generation, Pins},
    },
};
use crate::model::{sensors::Sensor, settings::Constant};

/// The pinned generations.
#[derive(Default)]
pub(super) struct Found {
    /// The generation with the wanted layout.
    pub(super) same: Option<(Generation, Object)>,
    /// Generations that cannot be adopted, but can be taken over.
    pub(super) others: Vec<Generation>,
    /// The active generation, if it is one of `others`.
    pub(super) counting: Option<Generation>,
}

/// Finds the pinned generations, and removes those that cannot be used.
pub(super) fn find(pins: &Pins, layout: &str) -> Result<Found, LoadError> {
    let failed = |source| pins.failed(source);
    let mut found = Found::default();
    let generations = pins.generations().map_err(failed)?;
    let word = generations::word(pins);
    let counting = generations.iter().find(|generation| word.is_some_and(|word| word.generation == generation.number));
    let remembered = |generation: &Generation| pins.map_id(generation, TASKS);
    let current = counting.and_then(remembered);
    for generation in &generations {
        // A generation that gave way to another layout has outdated records of tasks: it is only read, not adopted.
        if generation.layout == layout && (current.is_none() || remembered(generation) == current) {
            match Object::pinned(&pins.of(&generation.name)) {
                Ok(object) => {
                    found.same = Some((generation.clone(), object));
                    continue;
                }
                Err(error) => {
                    warn!(generation = generation.name, %error, "what is pinned is not whole, and is removed")
                }
            }
        } else if word.is_some() && generations::description(&pins.of(&generation.name)).is_some() {
            found.others.push(generation.clone());
            continue;
        } else {
            warn!(
                generation = generation.name,
                "what is pinned does not say what it holds, and is removed (it is of an older version)"
            );
        }
        pins.remove(&generation.name).map_err(failed)?;
    }
    found.counting = counting.filter(|counting| found.others.iter().any(|other| other.name == counting.name)).cloned();
    Ok(found)
}

/// Returns the constants and map sizes with which the programs are loaded.
pub(super) fn layout(
    settings: &SensorSettings,
    on: &[&'static Sensor],
    counters: &Counters,
    rows: &Rows,
    copies: usize,
) -> Layout {
    let copies = u32::try_from(copies).unwrap_or(1);
    let max_stacks = if settings.stacks { settings.max_stacks } else { 1 };
    let max_samples = if settings.stacks { settings.max_samples } else { 1 };
    let max_oncpu_samples = max_oncpu_samples(settings, copies);
    let of_copies = copies::Sizes::of(max_stacks, copies, settings.stacks && settings.copies);
    let (interrupts, scheduler) = symbols::text(settings.stacks);
    let mut layout = Layout::default();
    for sensor in on {
        let names = sensor.names;
        layout = layout
            .global(names.enabled, 1_u8)
            .size(names.rows, rows.slots_of(sensor))
            .size(names.rows_by_id, rows.slots_of(sensor));
        // The configuration may give the labels. Rows hold the same words only under the same labels.
        let series = sensor.families.iter().flat_map(|family| family.series);
        layout = layout.besides(format!("{:?}", series.map(|series| series.labels[0]).collect::<Vec<_>>()));
        for map in sensor.maps {
            layout = layout.size(map.name, map.entries.with(rows.sensor_slots(), copies));
        }
    }
    for (constant, value) in settings.values.constants() {
        layout = match value {
            Constant::Flag(flag) => layout.global(constant, u8::from(flag)),
            Constant::Number(number) => layout.global(constant, number),
        };
    }
    for name in copies::BUFFERS {
        layout = layout.size(name, of_copies.buffers);
    }
    layout
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
        .global("sample_ns", apart_ns(settings.oncpu_hertz))
        .global("max_samples", max_samples)
        .global("max_oncpu_samples", max_oncpu_samples)
        .global("sent_mask", sent::sets(max_stacks) - 1)
        .global("shadow", u8::from(settings.shadow))
        .global("copies_enabled", u8::from(settings.copies))
        .global("user_frames", u8::from(settings.user_frames))
        .global("sees_all_tasks", u8::from(in_initial_pid_namespace()))
        .global("max_cgroups", settings.max_cgroups)
        .global("max_inner_cgroups", listed::max_inner(settings.max_cgroups))
        .global("max_outer_cgroups", listed::max_outer(settings.max_cgroups))
        .global("max_inner_rows", listed::max_inner_rows(rows.by_id()))
        .global("slot_shift", rows.slot_shift())
        .global("sensor_slot_shift", rows.sensor_slot_shift())
        .size(listed::CGROUPS, settings.max_cgroups)
        .size(listed::CHARGED, settings.max_cgroups)
        .size("rows_so_far", settings.max_cgroups)
        .size("rows", rows.slots())
        .size("rows_by_id", rows.by_id())
        .size("cpus", copies)
        .size("controls", copies)
        .size("stack_cache", max_stacks)
        .size("stacks_sent", sent::sets(max_stacks))
        .size(copies::RING, of_copies.ring)
        .size(copies::RECIPES, of_copies.recipes)
        .size(copies::PAGES, of_copies.pages)
        .size(copies::STACKS, of_copies.stacks)
        .size("waits_even", max_samples)
        .size("waits_odd", max_samples)
        .size("oncpu_even", max_oncpu_samples)
        .size("oncpu_odd", max_oncpu_samples)
        .besides(format!("{:?}", settings.tracepoint))
        // The names of the counters by slot.
        .besides(format!("{:?}", counters.names()))
}

/// Loads the object, pins its maps if that is wanted, and attaches its programs. The programs count at once, unless
/// there are other programs to take over from. Also returns the number of the generation, and the states of the
/// sensors `on`.
pub(super) fn load(
    settings: &SensorSettings,
    on: &[&'static Sensor],
    layout: &Layout,
    pins: Option<&Pins>,
    found: &Found,
) -> Result<(Object, u64, Vec<SensorState>), LoadError> {
    let others = &found.others;
    // The kernel's types are by far the largest data in the agent, and are freed when this function returns.
    let btf = Btf::from_sys_fs()?;
    let number = others.iter().map(|other| other.number).max().unwrap_or(0) + 1;
    let word = pins.filter(|_| !others.is_empty()).and_then(generations::word);
    let word = word.unwrap_or_else(|| abi::podperf_handover { generation: number, since_ns: monotonic_ns() });
    let carried;
    let mut loader = EbpfLoader::new();
    // aya does not support task storage, which only the programs create and fill.
    loader.btf(Some(&btf)).allow_unsupported_maps();
    loader.override_global("loaded_at_ns", bytemuck::bytes_of(&word.since_ns), true);
    loader.override_global("generation", bytemuck::bytes_of(&number), true);
    loader.override_global("handover", bytemuck::bytes_of(&word), true);
    let key = hash_key(pins, found).map_err(LoadError::Counter)?;
    let key_constant = key.constant();
    loader.override_global("hash_key", bytemuck::bytes_of(&key_constant), true);
    let mut carries = false;
    if let Some(pins) = pins {
        if others.is_empty() {
            pins.begin_shared().map_err(|source| pins.failed(source))?;
        }
        loader.map_pin_path(".data.handover", pins.shared().join(generations::WORD));
        if let Some(counting) = &found.counting {
            // Programs of one layout share the records of tasks. Programs of another layout migrate the records.
            let theirs = pins.of(&counting.name);
            carries = counting.version() != abi::PODPERF_LAYOUT.to_string();
            loader.map_pin_path(if carries { "tasks_before" } else { TASKS }, Object::pin_of(&theirs, TASKS));
            for map in on.iter().flat_map(|sensor| sensor.maps).filter(|map| map.is_inherited) {
                if pins.sizes(counting, map.name) == layout.entries(map.name).map(|entries| (entries, map.value_bytes))
                {
                    loader.map_pin_path(map.name, Object::pin_of(&theirs, map.name));
                }
            }
            if carries && let Some(description) = generations::description(&theirs) {
                let anew;
                (carried, anew) = description.carried(&Description::own());
                if !anew.is_empty() {
                    warn!(?anew, "the previous programs do not keep these fields of tasks: they begin anew");
                }
                loader.override_global("carries", bytemuck::bytes_of(&1_u8), true);
                loader.override_global("carried", bytemuck::bytes_of(&carried), true);
            }
        }
    }
    layout.apply(&mut loader);
    let description = pieces(&(description::text() + &key.line()));
    loader.map_max_entries("description", u32::try_from(description.len()).unwrap_or(u32::MAX));
    let ebpf = loader.load(podperf_ebpf::OBJECT).map_err(|error| LoadError::Object(Box::new(error)))?;
    let mut object = Object::loaded(ebpf);
    for (index, piece) in (0_u32..).zip(&description) {
        raw::update(fd(&object, generations::DESCRIPTION).map_err(LoadError::Counter)?, index, *piece)
            .map_err(LoadError::Counter)?;
    }
    if let Some(pins) = pins {
        pins.begin().and_then(|path| object.pin_maps(&path)).map_err(|source| pins.failed(source))?;
    }
    // No program has listed a cgroup yet.
    listed::name_levels(&object, &settings.levels).map_err(LoadError::Counter)?;
    for program in ["cgroup_mkdir", "cgroup_rename", "cgroup_rmdir", "cgroup_attach_task"] {
        attach_btf(&mut object, program, program, &btf)?;
    }
    for program in ["flush", "forget"] {
        load_raw(&mut object, program, None)?;
    }
    // A switch only looks up a task's record and does not create it.
    if settings.facts {
        attach_btf(&mut object, "task_newtask", "task_newtask", &btf)?;
        let mut orders = abi::podperf_orders { births_since_ns: monotonic_ns(), ..bytemuck::Zeroable::zeroed() };
        Lowered::default().apply(&mut orders, settings.max_walks, monotonic_ns());
        fd(&object, ORDERS).and_then(|map| raw::update(map, 0_u32, orders)).map_err(LoadError::Counter)?;
        load_iter(&mut object, ADOPT, &btf)?;
        object.iterate(ADOPT).map_err(LoadError::Counter)?;
    }
    attach_scheduling(&mut object, settings.tracepoint, &btf)?;
    if settings.facts {
        load_iter(&mut object, COLLECT, &btf)?;
        load_iter(&mut object, SEE, &btf)?;
    }
    if carries {
        load_iter(&mut object, CARRY, &btf)?;
    }
    if settings.stacks && settings.waker_after_ns > 0 {
        attach_btf(&mut object, "sched_waking", "sched_waking", &btf)?;
    }
    let states = sensor_programs::attach(&mut object, on, &btf);
    Ok((object, number, states))
}

/// Returns the hash key for ids. It is the key of the previous programs, if any, because migrated records of tasks
/// contain ids of stacks that were made with it.
fn hash_key(pins: Option<&Pins>, found: &Found) -> io::Result<HashKey> {
    let before = pins.into_iter().flat_map(|pins| found.others.iter().map(|other| pins.of(&other.name)));
    let mut keys = before.filter_map(|directory| HashKey::parse(&generations::description(&directory)?));
    keys.next().map_or_else(HashKey::random, Ok)
}

/// Splits a text into the values of its map.
fn pieces(text: &str) -> Vec<[u8; generations::PIECE]> {
    let piece = |bytes: &[u8]| {
        let mut piece = [0; generations::PIECE];
        piece[..bytes.len()].copy_from_slice(bytes);
        piece
    };
    text.as_bytes().chunks(generations::PIECE).map(piece).collect()
}

/// Makes the programs send all stacks again, because this agent does not know the stacks that a previous agent
/// received.
pub(super) fn forget_stacks(object: &Object) -> io::Result<()> {
    sent::forget_all(object)?;
    raw::clear::<u64>(fd(object, "stack_cache")?)?;
    copies::forget_all(object)
}

pub(super) fn is_loaded(object: &Object, program: &str) -> bool {
    object.descriptor(program).is_some()
}

/// Returns the table size for samples on the CPU: enough for the longest time between two readings, and at most the
/// table size for waits.
pub(super) fn max_oncpu_samples(settings: &SensorSettings, copies: u32) -> u32 {
    const SECONDS: u32 = 15;
    const LEAST: u32 = 256;
    if !settings.stacks || settings.oncpu_hertz == 0 {
        return 1;
    }
    settings.oncpu_hertz.saturating_mul(copies).saturating_mul(SECONDS).max(LEAST).min(settings.max_samples)
}
