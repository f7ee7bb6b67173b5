//! Loads and attaches the object's programs, and gives its maps to their readers.

use aya::{
    Btf,
    maps::{Map, MapData, RingBuf},
    programs::{BtfTracePoint, Iter, KProbe, RawTracePoint},
};
use podperf_ebpf::abi;
use tracing::debug;

use super::{counters::Counters, error::LoadError, flush::flush_on, load::Tracepoint, object::Object};

/// Moves the arrays of counters out of the object into `counters`: a second descriptor of each array would cost one
/// more per event. With `adopted`, the arrays still hold the counters of another agent, and these counters replace
/// them.
pub(super) fn pass_counters(
    object: &mut Object,
    counters: &mut Counters,
    cpus: &[u32],
    adopted: bool,
) -> Result<(), LoadError> {
    const EVENTS: [&str; abi::PODPERF_MAX_EVENTS as usize] = [
        "event0", "event1", "event2", "event3", "event4", "event5", "event6", "event7", "event8", "event9", "event10",
        "event11", "event12", "event13", "event14", "event15",
    ];
    let mut take = |name: &'static str| object.take_map(name).ok_or(LoadError::Missing(name));
    let events = EVENTS.into_iter().map(&mut take).collect::<Result<_, _>>()?;
    let controls = take("controls")?;
    let passed = if adopted && counters.slots() > 0 {
        counters.replace(events, controls, cpus, |cpu| flush_on(object, cpu))
    } else {
        counters.pass(events, controls, cpus)
    };
    passed.map_err(LoadError::Counter)
}

pub(super) fn attach_btf(
    object: &mut Object,
    program: &'static str,
    tracepoint: &str,
    btf: &Btf,
) -> Result<(), LoadError> {
    let failed = |source| LoadError::refused(program, source);
    let loaded: &mut BtfTracePoint =
        object.program_mut(program).ok_or(LoadError::Missing(program))?.try_into().map_err(failed)?;
    loaded.load(tracepoint, btf).map_err(failed)?;
    let link = loaded.attach().and_then(|id| loaded.take_link(id)).map_err(failed)?;
    object.keep_attached(program, link);
    Ok(())
}

/// Attaches the scheduling tracepoint in the wanted form, and returns the attached form and the program's name.
pub(super) fn attach_scheduling(
    object: &mut Object,
    wanted: Tracepoint,
    btf: &Btf,
) -> Result<(Tracepoint, &'static str), LoadError> {
    if wanted != Tracepoint::Raw {
        match attach_btf(object, "sched_switch", "sched_switch", btf) {
            Ok(()) => return Ok((Tracepoint::Btf, "sched_switch")),
            Err(error) if wanted == Tracepoint::Btf => return Err(error),
            Err(error) => debug!(%error, "no BTF-typed tracepoint, taking the raw one"),
        }
    }
    load_raw(object, "sched_switch_raw", Some("sched_switch"))?;
    Ok((Tracepoint::Raw, "sched_switch_raw"))
}

pub(super) fn load_raw(object: &mut Object, program: &'static str, tracepoint: Option<&str>) -> Result<(), LoadError> {
    let failed = |source| LoadError::refused(program, source);
    let loaded: &mut RawTracePoint =
        object.program_mut(program).ok_or(LoadError::Missing(program))?.try_into().map_err(failed)?;
    loaded.load().map_err(failed)?;
    if let Some(tracepoint) = tracepoint {
        let link = loaded.attach(tracepoint).and_then(|id| loaded.take_link(id)).map_err(failed)?;
        object.keep_attached(program, link);
    }
    Ok(())
}

/// Loads a program that functions call. Nothing calls it yet.
pub(super) fn load_probe(object: &mut Object, program: &'static str) -> Result<(), LoadError> {
    let failed = |source| LoadError::refused(program, source);
    let loaded: &mut KProbe =
        object.program_mut(program).ok_or(LoadError::Missing(program))?.try_into().map_err(failed)?;
    loaded.load().map_err(failed)
}

/// Loads and attaches an iterator over tasks; its program runs when the iterator is read.
pub(super) fn load_iter(object: &mut Object, program: &'static str, btf: &Btf) -> Result<(), LoadError> {
    let failed = |source| LoadError::refused(program, source);
    let loaded: &mut Iter =
        object.program_mut(program).ok_or(LoadError::Missing(program))?.try_into().map_err(failed)?;
    loaded.load("task", btf).map_err(failed)?;
    object.attach_iterator(program).map_err(|error| failed(error.into()))
}

pub(super) fn take_ring(object: &mut Object, name: &'static str) -> Result<RingBuf<MapData>, LoadError> {
    let map = object.take_map(name).ok_or(LoadError::Missing(name))?;
    match map {
        Map::RingBuf(_) => RingBuf::try_from(map).map_err(|error| LoadError::Object(Box::new(error.into()))),
        _ => Err(LoadError::Missing(name)),
    }
}
