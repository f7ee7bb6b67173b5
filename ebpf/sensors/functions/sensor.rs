//! The description of the sensor `functions`. The agent replaces the labels of its series by the names that the
//! configuration gives to the functions.

use std::mem::offset_of;

use crate::{
    abi::{PODPERF_FUNCTIONS, PODPERF_HISTOGRAM_BUCKETS, podperf_call, podperf_functions},
    sensor::{DropReason, Entries, Family, Hook, Label, Map, Program, Sensor, Series, Unit, Words, names},
};

/// Returns the histogram whose first word is at this offset.
const fn histogram(label: &'static str, offset: usize) -> Series {
    Series { labels: [label, ""], words: Words::histogram(offset, PODPERF_HISTOGRAM_BUCKETS) }
}

const WHEREVER_IT_IS_CALLED: &str = "task; wherever a function of the configuration is called";

/// See README.md.
pub(super) static SENSOR: Sensor = Sensor {
    names: names!("functions"),
    about: "measures calls of the functions that `functions` names",
    is_default: false,
    settings: &[],
    words: size_of::<podperf_functions>() / size_of::<u64>(),
    families: &[Family {
        name: "function_latency",
        instrument: "function.latency",
        help: "Length of calls of functions that the configuration names, from the begin to the return",
        unit: Unit::Seconds,
        labels: &[Label { name: "function", attribute: "podperf.function" }],
        series: &[
            histogram("1", offset_of!(podperf_functions, first)),
            histogram("2", offset_of!(podperf_functions, second)),
            histogram("3", offset_of!(podperf_functions, third)),
            histogram("4", offset_of!(podperf_functions, fourth)),
            histogram("5", offset_of!(podperf_functions, fifth)),
            histogram("6", offset_of!(podperf_functions, sixth)),
            histogram("7", offset_of!(podperf_functions, seventh)),
            histogram("8", offset_of!(podperf_functions, eighth)),
        ],
    }],
    node: &[],
    programs: &[
        Program { name: "functions_end", hook: Hook::FunctionEnd, context: WHEREVER_IT_IS_CALLED },
        Program { name: "functions_begin", hook: Hook::FunctionBegin, context: WHEREVER_IT_IS_CALLED },
    ],
    maps: &[
        Map {
            name: "functions_calls",
            entries: Entries::PerSlot(4),
            value_bytes: size_of::<podperf_call>(),
            is_per_cpu: false,
            is_inherited: false,
        },
        Map {
            name: "functions_lent",
            entries: Entries::PerSlot(1),
            value_bytes: size_of::<podperf_call>(),
            is_per_cpu: false,
            is_inherited: false,
        },
        Map {
            name: "functions_shares",
            entries: Entries::PerSlot(1),
            value_bytes: size_of::<u32>(),
            is_per_cpu: false,
            is_inherited: false,
        },
        Map {
            name: "functions_begun",
            entries: Entries::Fixed(PODPERF_FUNCTIONS),
            value_bytes: size_of::<u64>(),
            is_per_cpu: true,
            is_inherited: false,
        },
    ],
    drops: &[DropReason {
        name: "functions_missed_end",
        lost: "the end of a call of a function was not seen, and the call is not counted",
    }],
};
