//! The rules for waste ignore noise, and find waste beside noise.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use podperf_tests::{
    rules::{RULES, root},
    suite::{Need, Test},
    tests,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::promtool::promtool;

pub(crate) const TESTS: &[Test] = tests![
    #[rings] noise_is_no_waste: &[Need::Program("promtool")],
];

/// The length of the series in minutes: a day, the hour that is left out of it, the hour that the rules look at, and a
/// margin.
const MINUTES: u32 = 27 * 60;
/// The minute from which the wasteful pod needs more cycles.
const CHANGE: u32 = 25 * 60 + 30;
const CYCLES: f64 = 6e10;
const QUIET: usize = 8;

/// Random numbers of mean 0 and deviation 1, nearly normal: sums of twelve uniform numbers.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f64::from(u32::try_from(self.0 >> 32).unwrap_or(0)) / 2_f64.powi(32)
        };
        (0..12).map(|_| uniform()).sum::<f64>() - 6.0
    }
}

/// Returns the series of a pod on half a CPU. In each five minutes its instructions per cycle deviate from 1 by
/// `deviation`. After the change they are less by the share `loses`.
fn series(workload: &str, deviation: f64, loses: f64, noise: &mut Noise) -> Vec<Value> {
    let (mut cycles, mut instructions) = (String::new(), String::new());
    let (mut sum, mut ipc) = (0.0, 1.0);
    for minute in 0..MINUTES {
        if minute % 5 == 0 {
            ipc = 1.0 + deviation * noise.next();
        }
        sum += CYCLES * ipc * if minute < CHANGE { 1.0 } else { 1.0 - loses };
        write!(cycles, "{} ", CYCLES * f64::from(minute + 1)).ok();
        write!(instructions, "{sum:.0} ").ok();
    }
    let of = |name: &str, more: &str, values: &str| {
        let labels = format!(
            "job=\"podperf\", cluster=\"c\", instance=\"n1\", node=\"n1\", namespace=\"shop\", pod=\"{workload}-0\", {more}"
        );
        json!({"series": format!("{name}{{{labels}}}"), "values": values.trim_end()})
    };
    let app = "container=\"app\"";
    let info = format!("uid=\"u\", workload=\"{workload}\", workload_type=\"deployment\"");
    vec![
        of("podperf_container_cpu_cycles_total", app, &cycles),
        of("podperf_container_cpu_instructions_total", app, &instructions),
        of("podperf_container_oncpu_seconds_total", app, &format!("0+30x{MINUTES}")),
        of("podperf_pod_info", &info, &format!("1x{MINUTES}")),
    ]
}

fn noise_is_no_waste() -> Result<()> {
    let mut noise = Noise(1);
    let mut input: Vec<Value> =
        (0..QUIET).flat_map(|number| series(&format!("quiet-{number}"), 0.2, 0.0, &mut noise)).collect();
    input.extend(series("wasteful", 0.05, 0.5, &mut noise));
    let wasted = "namespace_workload:podperf_wasted_cores:rate1h";
    // Each pod uses half a CPU. All quiet pods together waste less than a hundredth of that, at any of these times.
    let asks = |minute: u32, expression: String| json!({"expr": expression, "eval_time": format!("{minute}m"), "exp_samples": [{"labels": "{}", "value": 1}]});
    let quiet = |minute: u32| {
        asks(
            minute,
            format!(
                "sum({wasted}{{workload=~\"quiet-.*\"}}) < bool {}",
                0.5 * 0.01 * f64::from(u32::try_from(QUIET).unwrap_or(0))
            ),
        )
    };
    let mut tests: Vec<Value> = (0..5).map(|step| quiet(26 * 60 + 10 * step)).collect();
    // The waste is a quarter of a core minus a tenth of that: the deviation includes the change itself.
    tests.push(asks(MINUTES - 10, format!("abs(sum({wasted}{{workload=\"wasteful\"}}) - 0.225) < bool 0.025")));
    let groups = ["agent", "container", "pod", "workload", "baseline", "waste"];
    let groups = groups.map(|group| format!("podperf.rules.{group}"));
    let files = ["podperf-rules.yaml", "podperf-workload-rules.yaml"].map(|name| root().join(RULES).join(name));
    let cpu = json!({
        "series": "podperf_node_cpu_info{job=\"podperf\", cluster=\"c\", instance=\"n1\", node=\"n1\", cpuid=\"k1\"}",
        "values": format!("1x{MINUTES}"),
    });
    input.push(cpu);
    let file = json!({
        "rule_files": files,
        "evaluation_interval": "5m",
        "group_eval_order": groups,
        "tests": [{"name": "noise is no waste", "interval": "1m", "input_series": input, "promql_expr_test": tests}],
    });
    let directory = TempDir::new()?;
    let path = directory.path().join("noise_test.yaml");
    std::fs::write(&path, file.to_string()).context("failed to write the test")?;
    promtool(&["test", "rules"], vec![path])
}
