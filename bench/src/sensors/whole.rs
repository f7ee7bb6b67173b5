//! The whole agent, as shipped and with all sensors on, in turn, with many wake-ups.

use std::{fmt::Write as _, path::Path};

use anyhow::Result;
use podperf::model::sensors::ALL;
use podperf_tests::load::{self, ring::Spread};

use super::watch::Function;
use crate::{
    agent::CAP,
    growth::Common,
    markdown::holds,
    profiles::{self, Cost, ProfilesArgs},
    progress,
};

/// The most that the agent may take with all of them, in percent of the node.
const MOST_PERCENT: f64 = 0.7;
/// More rounds would take too long.
const MOST_ROUNDS: usize = 3;

/// Returns the configuration with all sensors on. The load does not call the measured function: that has its own price.
fn all_on(binary: &Path) -> String {
    let sensors = ALL.map(|sensor| format!("{}: {{enabled: true}}", sensor.names.sensor)).join(", ");
    format!("{CAP}sensors: {{{sensors}}}\nfunctions: [{}]\n", Function::Program.keys(binary))
}

/// Measures both configurations, and returns the text to print.
pub(super) fn run(wakeups: &ProfilesArgs, common: &Common<'_>) -> Result<String> {
    let yamls = [CAP.to_owned(), all_on(&load::binary()?)];
    let mut measured: [Vec<Cost>; 2] = Default::default();
    let mut failure = None;
    for round in 1..=common.rounds.min(MOST_ROUNDS) {
        for (yaml, costs) in yamls.iter().zip(&mut measured) {
            progress(&format!("sensors: all of them, round {round}"));
            match profiles::cost(wakeups, common.agent, yaml) {
                Ok(cost) => costs.push(cost),
                Err(error) => failure = Some(format!("{error:#}")),
            }
        }
    }
    let mut text = format!(
        "\n### All sensors on\n\nPercent of the node, at {} wake-ups a second: median (least..greatest)\n\n\
         | podperf | by the kernel's account | its programs | its process | by its own account | given up |\n\
         |---|---|---|---|---|---|\n",
        wakeups.wakeups
    );
    for (title, costs) in ["as shipped", "all sensors on"].into_iter().zip(&measured) {
        let [kernel, programs, process, own] = [
            figure(costs, Cost::kernel_percent),
            figure(costs, |cost| cost.programs_percent),
            figure(costs, |cost| cost.process_percent_counted),
            figure(costs, |cost| cost.own_percent.median),
        ];
        let shed = costs.iter().map(|cost| cost.shed).fold(0.0, f64::max);
        writeln!(text, "| {title} | {kernel} | {programs} | {process} | {own} | {shed} |")?;
    }
    if let Some(failure) = failure {
        writeln!(text, "\nAt least one round was not measured: {failure}")?;
    }
    if let Some(Spread { median, .. }) = spread(&measured[1], Cost::kernel_percent) {
        let verdict = holds(median, MOST_PERCENT);
        writeln!(text, "\nThe goal with all sensors is {MOST_PERCENT} % by the kernel's account: {verdict}.")?;
    }
    Ok(text)
}

fn spread(costs: &[Cost], of: fn(&Cost) -> f64) -> Option<Spread> {
    Spread::of(costs.iter().map(of).collect())
}

fn figure(costs: &[Cost], of: fn(&Cost) -> f64) -> String {
    spread(costs, of).map_or_else(
        || "not measured".to_owned(),
        |Spread { min, median, max }| format!("{median:.2} ({min:.2}..{max:.2})"),
    )
}

#[cfg(test)]
mod tests {
    use podperf::config::{Config, Settings};

    use super::*;

    #[test]
    fn the_agent_takes_all_sensors() {
        let config = Config::parse(&all_on(Path::new("/bin/true"))).unwrap();
        assert!(config.sensors.values().all(|keys| keys.enabled));
        assert!(Settings::try_from(config).is_ok());
    }
}
