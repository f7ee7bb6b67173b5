//! The description of the sensor `histograms`.

use std::mem::offset_of;

use crate::{
    abi::{PODPERF_HISTOGRAM_BUCKETS, podperf_histograms},
    sensor::{Family, Label, Sensor, Series, Unit, Words, names},
};

/// Returns the histogram whose first word is at this offset.
const fn histogram(label: &'static str, offset: usize) -> Series {
    Series { labels: [label, ""], words: Words::histogram(offset, PODPERF_HISTOGRAM_BUCKETS) }
}

/// See README.md.
pub(super) static SENSOR: Sensor = Sensor {
    names: names!("histograms"),
    about: "counts waits for a CPU, and all other waits, by their length",
    is_default: false,
    settings: &[],
    words: size_of::<podperf_histograms>() / size_of::<u64>(),
    families: &[
        Family {
            name: "runqueue_latency",
            instrument: "runqueue.latency",
            help: "Length of waits for a CPU: from the wake-up, or from the loss of the CPU, until the thread runs",
            unit: Unit::Seconds,
            labels: &[],
            series: &[histogram("", offset_of!(podperf_histograms, run_queue))],
        },
        Family {
            name: "wait_duration",
            instrument: "wait.duration",
            help: "Length of waits that ended, without the time in the run queue after them",
            unit: Unit::Seconds,
            labels: &[Label { name: "state", attribute: "podperf.offcpu.state" }],
            series: &[
                histogram("interruptible", offset_of!(podperf_histograms, interruptible)),
                histogram("uninterruptible", offset_of!(podperf_histograms, uninterruptible)),
                histogram("throttled", offset_of!(podperf_histograms, throttled)),
            ],
        },
    ],
    node: &[],
    programs: &[],
    maps: &[],
    drops: &[],
};
