//! podperf's programs at each context switch: with all sensors off, and with each sensor that rides on them.

use std::{fmt::Write as _, iter};

use anyhow::{Context as _, Result};
use podperf_tests::load::ring::Spread;

use crate::{
    BenchArgs, builds::ns_per_switch, growth::Common, markdown::holds, monitor::MONITORS, progress, table::RIDERS,
};

/// The monitor with all sensors off.
const OFF: &str = "podperf-times";

/// One row of the table.
struct Row {
    title: &'static str,
    monitor: &'static str,
    /// The most that a sensor may add.
    most_ns: Option<f64>,
    /// One figure per round.
    measured: Vec<f64>,
    failure: Option<String>,
}

/// Measures all rows in turn, and returns the text to print.
pub(super) fn run(args: &BenchArgs, common: &Common<'_>, cpu: usize) -> Result<String> {
    let off = ("all off", OFF, None);
    let riders = RIDERS.iter().map(|rider| (rider.sensor, rider.monitor, Some(rider.most_ns)));
    let rows = iter::once(off).chain(riders);
    let mut rows: Vec<Row> = rows
        .map(|(title, monitor, most_ns)| Row { title, monitor, most_ns, measured: Vec::new(), failure: None })
        .collect();
    for round in 1..=common.rounds {
        for row in &mut rows {
            progress(&format!("sensors: round {round}/{}, at each switch: {}", common.rounds, row.title));
            let monitor = MONITORS.iter().find(|monitor| monitor.key == row.monitor).context("no such monitor")?;
            match ns_per_switch(args, common.agent, monitor, cpu) {
                Ok(ns) => row.measured.push(ns),
                Err(error) => row.failure = Some(format!("{error:#}")),
            }
        }
    }
    let mut text = "\n### At each switch\n\nns of podperf's programs without stacks, by the kernel's statistics: \
                    median (least..greatest)\n\n| sensors | ns | above all off | at most | |\n|---|---|---|---|---|\n"
        .to_owned();
    let off = rows.first().and_then(|row| Spread::of(row.measured.clone()));
    for Row { title, most_ns, measured, failure, .. } in &rows {
        let Some(Spread { min, median, max }) = Spread::of(measured.clone()) else {
            writeln!(text, "| {title} | not measured: {} | | | |", failure.as_deref().unwrap_or("no rounds"))?;
            continue;
        };
        let above = match (off, *most_ns) {
            (Some(off), Some(most)) => {
                let above = median - off.median;
                format!("{above:+.0} | {most} | {}", holds(above, most))
            }
            _ => "- | - | ".to_owned(),
        };
        writeln!(text, "| {title} | {median:.0} ({min:.0}..{max:.0}) | {above} |")?;
    }
    Ok(text)
}
