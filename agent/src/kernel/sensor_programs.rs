//! The programs of the sensors: which of them this kernel can run, their attachment, and their accounts.

use std::{collections::BTreeSet, fs, io};

use aya::Btf;
use podperf_ebpf::abi;

use super::{
    attach::{attach_btf, load_probe},
    object::{Object, fd},
    raw::{self, Then},
};
use crate::model::{
    sensors::{self, Hook, Program, Sensor},
    status::State,
};

/// The accounts of all programs of all sensors, in the order of [`programs`].
pub(super) type Accounts = [abi::podperf_runs; sensors::PROGRAMS];

/// A sensor that the configuration turns on, and its state.
#[derive(Clone, Debug)]
pub struct SensorState {
    /// The sensor.
    pub sensor: &'static Sensor,
    /// The state.
    pub state: State,
    /// The activity, or the reason why it does not work.
    pub detail: String,
}

impl SensorState {
    const fn new(sensor: &'static Sensor, state: State, detail: String) -> Self {
        Self { sensor, state, detail }
    }

    /// Returns the state of a sensor that works.
    #[must_use]
    pub fn healthy(sensor: &'static Sensor) -> Self {
        Self::new(sensor, State::Healthy, sensor.about.to_owned())
    }
}

/// Returns the programs of all sensors, in the order of their accounts.
pub(super) fn programs() -> impl Iterator<Item = (&'static Sensor, &'static Program)> {
    sensors::ALL.into_iter().flat_map(|sensor| sensor.programs.iter().map(move |program| (sensor, program)))
}

/// Returns the sensors that this kernel can run, and the states of the remaining ones.
pub(super) fn supported(wanted: &[&'static Sensor]) -> (Vec<&'static Sensor>, Vec<SensorState>) {
    if wanted.iter().all(|sensor| sensor.programs.is_empty()) {
        return (wanted.to_vec(), Vec::new());
    }
    match fs::read(KERNEL_TYPES) {
        Ok(types) => split(wanted, &tracepoints(&types)),
        // Without this file nothing can be loaded, and the agent says so elsewhere.
        Err(_) => (wanted.to_vec(), Vec::new()),
    }
}

/// Splits the sensors into those whose tracepoints are there, and the states of the remaining ones.
fn split(wanted: &[&'static Sensor], there: &BTreeSet<&[u8]>) -> (Vec<&'static Sensor>, Vec<SensorState>) {
    let (mut runs, mut lacks) = (Vec::new(), Vec::new());
    for &sensor in wanted {
        let lacking = |program: &Program| match program.hook {
            Hook::Tracepoint { name, since } if !there.contains(name.as_bytes()) => Some((name, since)),
            _ => None,
        };
        match sensor.programs.iter().find_map(lacking) {
            None => runs.push(sensor),
            Some((name, since)) => {
                let detail = format!("this kernel has no tracepoint `{name}` (needs {since})");
                lacks.push(SensorState::new(sensor, State::Unsupported, detail));
            }
        }
    }
    (runs, lacks)
}

/// The file in which the kernel describes its types.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// Returns the tracepoints that are among the kernel's types. Their names are text in `types`, so this needs far less
/// memory than to parse all types.
fn tracepoints(types: &[u8]) -> BTreeSet<&[u8]> {
    types.split(|byte| *byte == 0).filter_map(|name| name.strip_prefix(b"btf_trace_")).collect()
}

/// Attaches the programs of these sensors, which are loaded by this agent, and returns the state of each. A sensor
/// whose programs cannot all be attached has none of them. A program that functions call is only loaded:
/// [`super::Probes`] attaches it.
pub(super) fn attach(object: &mut Object, on: &[&'static Sensor], btf: &Btf) -> Vec<SensorState> {
    let mut attach = |sensor: &'static Sensor| {
        let attached = sensor.programs.iter().try_for_each(|program| match program.hook {
            Hook::Tracepoint { name, .. } => attach_btf(object, program.name, name, btf),
            Hook::FunctionBegin | Hook::FunctionEnd => load_probe(object, program.name),
        });
        let Err(error) = attached else { return SensorState::healthy(sensor) };
        sensor.programs.iter().for_each(|program| object.unload(program.name));
        let detail = format!("{:#} (its metrics are not complete)", anyhow::Error::new(error));
        SensorState::new(sensor, State::Degraded, detail)
    };
    on.iter().map(|sensor| attach(sensor)).collect()
}

/// Returns the states of these sensors, whose programs a previous agent has loaded.
pub(super) fn adopt(object: &Object, on: &[&'static Sensor]) -> Vec<SensorState> {
    let adopt = |sensor: &&'static Sensor| {
        let Some(missing) = sensor.programs.iter().find(|program| object.descriptor(program.name).is_none()) else {
            return SensorState::healthy(sensor);
        };
        let detail = format!(
            "a previous agent failed to start BPF program `{}`, and its log has the reason (to try again, turn the \
             sensor off, and on again)",
            missing.name
        );
        SensorState::new(sensor, State::Degraded, detail)
    };
    on.iter().map(adopt).collect()
}

/// Reads the accounts of the programs. `names` returns the names of the programs in the account map of a sensor, in
/// order. A sensor without such a map is not there.
pub(super) fn accounts(
    object: &Object,
    copies: usize,
    names: impl Fn(&'static Sensor) -> Vec<String>,
) -> io::Result<Accounts> {
    let mut accounts: Accounts = bytemuck::Zeroable::zeroed();
    for sensor in sensors::ALL.into_iter().filter(|sensor| !sensor.programs.is_empty()) {
        let names = names(sensor);
        if names.is_empty() || object.map(sensor.names.runs).is_none() {
            continue;
        }
        let map = fd(object, sensor.names.runs)?;
        raw::read_all(map, copies, Then::Keep, |place: u32, copies: &[abi::podperf_runs]| {
            let name = names.get(place as usize);
            let Some(account) = programs().position(|(_, program)| name.is_some_and(|name| name == program.name))
            else {
                return;
            };
            for copy in copies {
                accounts[account].runs = accounts[account].runs.wrapping_add(copy.runs);
                accounts[account].ns = accounts[account].ns.wrapping_add(copy.ns);
            }
        })?;
    }
    Ok(accounts)
}

/// Returns the names of a sensor's own programs, in the order of their accounts.
pub(super) fn names(sensor: &'static Sensor) -> Vec<String> {
    sensor.programs.iter().map(|program| program.name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::DROPS;

    #[test]
    fn tracepoints_are_among_the_names_of_types() {
        let types = b"\x9f\xeb\x01\0int\0btf_trace_contention_begin\0contention_end\0btf_trace_a\0";
        assert_eq!(tracepoints(types), BTreeSet::from([b"contention_begin".as_slice(), b"a"]));
        assert!(tracepoints(b"").is_empty());
    }

    #[test]
    fn a_sensor_without_its_tracepoint_is_unsupported_and_the_others_run() {
        let program = |name| {
            let hook = Hook::Tracepoint { name, since: "Linux 5.19" };
            Box::leak(Box::new([Program { name: "a_b", hook, context: "task" }]))
        };
        let sensor = |programs: &'static [Program]| -> &'static Sensor {
            let names = sensors::ALL[0].names;
            let of = Sensor {
                names,
                about: "",
                is_default: false,
                settings: &[],
                words: 1,
                families: &[],
                node: &[],
                programs,
                maps: &[],
                drops: &[],
            };
            Box::leak(Box::new(of))
        };
        let wanted = [sensor(program("there")), sensor(program("not_there")), sensor(&[])];
        let (runs, lacks) = split(&wanted, &BTreeSet::from([b"there".as_slice()]));
        assert!(runs.len() == 2 && std::ptr::eq(runs[0], wanted[0]) && std::ptr::eq(runs[1], wanted[2]));
        let [lacks] = &lacks[..] else { panic!("{lacks:?}") };
        assert_eq!(lacks.state, State::Unsupported);
        assert_eq!(lacks.detail, "this kernel has no tracepoint `not_there` (needs Linux 5.19)");
    }

    #[test]
    fn names_of_programs_maps_and_drops_begin_with_their_sensor() {
        for (sensor, program) in programs() {
            assert!(program.name.starts_with(&format!("{}_", sensor.names.sensor)), "{}", program.name);
        }
        let maps = sensors::ALL.into_iter().flat_map(|sensor| sensor.maps.iter().map(move |map| (sensor, map)));
        for (sensor, map) in maps {
            assert!(map.name.starts_with(&format!("{}_", sensor.names.sensor)), "{}", map.name);
        }
        for sensor in sensors::ALL {
            for own in sensor.drops {
                assert!(own.name.starts_with(&format!("{}_", sensor.names.sensor)), "{}", own.name);
                assert_eq!(DROPS.iter().filter(|reason| **reason == own.name).count(), 1, "{}", own.name);
            }
        }
        assert_eq!(DROPS.len(), abi::PODPERF_DROPS as usize + sensors::drops().count());
    }
}
