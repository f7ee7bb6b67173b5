//! Compares the cost of two builds' programs at each switch, in one run.

use std::{fmt::Write as _, path::Path};

use anyhow::{Context as _, Result};
use podperf_tests::{bpf, load::ring::Spread, programs::Programs};

use super::{
    BenchArgs, Ring,
    monitor::{MONITORS, Monitor},
    progress,
    setup::Setup,
};

/// Returns the time of a monitor's programs at each switch of the ring, in ns, by the kernel's statistics.
pub(super) fn ns_per_switch(args: &BenchArgs, agent: &Path, monitor: &Monitor, cpu: usize) -> Result<f64> {
    let setup = Setup::new(args, agent.to_owned())?;
    let ring = Ring::new(args, cpu, &setup.cgroups)?;
    let _statistics = bpf::enable_run_statistics()?;
    let known = Programs::list()?;
    let mut running = monitor.start(&setup)?;
    let then = Programs::list()?;
    let report = ring.run()?;
    running.check()?;
    let ns = Programs::list()?.new_since(&known).ns_per_switch(&then, report.hops);
    ns.context("no program ran at each switch")
}

/// Measures each of the agent's monitors with both builds, in turn, and returns a table: ns a BPF run, and the ratio
/// of each pair.
pub(super) fn run(args: &BenchArgs, agent: &Path, before: &Path, cpu: usize) -> Result<String> {
    let mut text = "\n| monitor | ns a run before | ns a run now | now over before |\n|---|---|---|---|\n".to_owned();
    let wanted = |key: &str| args.only.is_empty() || args.only.iter().any(|only| only == key);
    for monitor in MONITORS.iter().filter(|monitor| monitor.is_agent() && wanted(monitor.key)) {
        let mut pairs = Vec::new();
        for round in 1..=args.rounds {
            progress(&format!("round {round}/{}: {}, both builds", args.rounds, monitor.title));
            let of = |agent: &Path| ns_per_switch(args, agent, monitor, cpu);
            // The order changes with each round.
            pairs.push(if round % 2 == 0 {
                let now = of(agent)?;
                (of(before)?, now)
            } else {
                (of(before)?, of(agent)?)
            });
        }
        let median =
            |of: fn(&(f64, f64)) -> f64| Spread::of(pairs.iter().map(of).collect()).map(|spread| spread.median);
        let [old, new, ratio] = [median(|pair| pair.0), median(|pair| pair.1), median(|pair| pair.1 / pair.0)];
        let [old, new, ratio] = [old, new, ratio].map(Option::unwrap_or_default);
        writeln!(text, "| {} | {old:.0} | {new:.0} | {ratio:.3} |", monitor.title)?;
    }
    Ok(text)
}
