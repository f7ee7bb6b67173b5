//! The sizes of the kernel's tables in the chart, which computes requests and limits of memory from them.

use caps::Capability;

use super::{Config, parts::sensor_settings};
use crate::{
    kernel::{SensorSettings, host::Host, memory::map_bytes_with},
    model::sensors::ALL,
};

const CHART: &str = include_str!("../../../charts/podperf/files/memory.yaml");

/// A number of CPUs with which the tables of samples on the CPU have their largest size.
const CPUS: usize = 1000;

/// Returns the settings of an agent with this configuration and all capabilities.
fn settings(yaml: &str) -> SensorSettings {
    let capabilities = vec![Capability::CAP_BPF, Capability::CAP_PERFMON, Capability::CAP_SYS_PTRACE];
    sensor_settings(&Config::parse(yaml).unwrap(), &Host { capabilities, ..Host::example() })
}

/// Returns the bytes of the tables: the part of all CPUs, and that of each CPU.
fn sizes(settings: &SensorSettings) -> [u64; 2] {
    let all = map_bytes_with(settings, CPUS);
    let of_cpu = map_bytes_with(settings, CPUS + 1) - all;
    [all - CPUS as u64 * of_cpu, of_cpu]
}

fn minus(larger: [u64; 2], smaller: [u64; 2]) -> [u64; 2] {
    [larger[0] - smaller[0], larger[1] - smaller[1]]
}

#[test]
fn the_chart_has_the_sizes_of_these_tables() {
    let of = |yaml: &str| sizes(&settings(yaml));
    let plain = of("stacks: {enabled: false}");
    let counts = minus(of("{stacks: {enabled: false}, cgroups: {max: 8192}}"), plain);
    let walked = of("stacks: {unwind: frame-pointers}");
    assert_eq!(of("stacks: {unwind: none}"), walked, "the mode `reasons` has no tables for copies");
    let copied = minus(of("stacks: {unwind: tables}"), walked);
    let twice = "maxSamples: 32768";
    let copied_twice = minus(
        of(&format!("stacks: {{unwind: tables, {twice}}}")),
        of(&format!("stacks: {{unwind: frame-pointers, {twice}}}")),
    );
    let copies = minus(copied_twice, copied);
    let mut expected = vec![
        ("rings", minus(plain, counts)),
        ("counts", counts),
        ("stacks", minus(walked, plain)),
        ("copies", copies),
        ("copyBuffers", minus(copied, copies)),
    ];
    for sensor in ALL {
        let with = SensorSettings { sensors: vec![sensor], ..settings("stacks: {enabled: false}") };
        expected.push((sensor.names.sensor, minus(sizes(&with), plain)));
    }
    let lines = expected
        .into_iter()
        .map(|(name, [of_all, of_cpu])| format!("{name}: [{}, {}]", of_all.div_ceil(1024), of_cpu.div_ceil(1024)));
    let missing: Vec<_> = lines.filter(|line| !CHART.lines().any(|found| found == line)).collect();
    assert!(missing.is_empty(), "charts/podperf/files/memory.yaml has other lines for these:\n{}", missing.join("\n"));
}
