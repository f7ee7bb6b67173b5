//! The benchmark's results as Markdown, for the pages that show them.

use std::fmt::Write as _;

use podperf_tests::load::ring::Spread;

use super::{
    Measurement,
    profiles::{PROGRAMS, Profiles},
    table::{GOALS, Goal, RIDERS, SYMBOLS_RSS_MIB, WAKEUPS_PERCENT, extra_of},
};

/// Returns one row per monitor.
pub fn measurements(measurements: &[Measurement]) -> String {
    let mut text =
        "\n### Extra CPU ns per hop\n\n| monitor | extra | least..greatest | with / without | BPF ns per run |\n\
                    |---|---|---|---|---|\n"
            .to_owned();
    for one in measurements {
        let title = one.monitor.title;
        let _ = match (&one.failure, one.extra_ns(), one.ratio()) {
            (Some(failure), ..) => writeln!(text, "| {title} | not measured: {failure} | | | |"),
            (None, Some(extra), Some(ratio)) => {
                let bpf = one.bpf_ns_per_run.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}"));
                writeln!(
                    text,
                    "| {title} | {:+.0} | {:+.0}..{:+.0} | {:.2} | {bpf} |",
                    extra.median, extra.min, extra.max, ratio.median
                )
            }
            _ => writeln!(text, "| {title} | not measured: no rounds | | | |"),
        };
    }
    let bases: Vec<f64> = measurements.iter().flat_map(|m| &m.pairs).map(|pair| pair.0).collect();
    if let Some(base) = Spread::of(bases) {
        let (median, min, max) = (base.median, base.min, base.max);
        let rounds = measurements.iter().map(|one| one.pairs.len()).max().unwrap_or(0);
        let _ = writeln!(text, "\nMedians of {rounds} rounds; base {median:.0} ({min:.0}..{max:.0}) ns per hop.");
    }
    text
}

/// Returns one row per goal.
pub fn goals(measurements: &[Measurement]) -> String {
    let mut text =
        "\n### Goals\n\n| extra of | to that of | at most | measured | holds |\n|---|---|---|---|---|\n".to_owned();
    for Goal { of, to, at_most } in &GOALS {
        let _ = match extra_of(measurements, of).zip(extra_of(measurements, to)) {
            Some((part, whole)) => writeln!(
                text,
                "| {of} | {to} | {at_most} | {:.2} ({part:+.0} / {whole:+.0} ns) | {} |",
                part / whole,
                holds(part / whole, *at_most)
            ),
            None => writeln!(text, "| {of} | {to} | {at_most} | not measured | |"),
        };
    }
    for rider in RIDERS {
        let Some(added) = rider.adds(measurements) else { continue };
        let verdict = holds(added, rider.most_ns);
        let _ = writeln!(
            text,
            "\nThe sensor `{}` adds {added:+.0} ns to a BPF run of podperf-times; the goal is {:.0} ns: {verdict}.",
            rider.sensor, rider.most_ns
        );
    }
    text
}

/// Returns the measurements of the whole agent with the wake-ups and with the programs, and the goals.
pub fn profiles(profiles: &Profiles) -> String {
    let mut rows = String::new();
    let mut row = |what: &str, measured: &str, goal: &str| {
        let _ = writeln!(rows, "| {what} | {measured} | {goal} |");
    };
    let goal = |value: f64, at_most: f64, unit: &str| format!("{at_most} {unit}: {}", holds(value, at_most));
    match &profiles.cost {
        Ok(cost) => {
            let [own, counted] = cost.wakeups_per_second.map(|count| format!("{count:.0}"));
            let programs = format!(
                "{:.2} % ({:.0} runs a second, {:.0} ns each)",
                cost.programs_percent, cost.runs_per_second, cost.ns_per_run
            );
            let ratio = cost.own_percent;
            let kernel = cost.kernel_percent();
            row("wake-ups a second", &format!("{own}, then {counted}"), "");
            row("the load itself", &format!("{:.2} %", cost.load_percent), "");
            row(
                "podperf by its own account, least..greatest",
                &format!("**{:.2} %** ({:.2}..{:.2})", ratio.median, ratio.min, ratio.max),
                &goal(ratio.median, WAKEUPS_PERCENT, "%"),
            );
            row("its process meanwhile, by the kernel", &format!("{:.2} %", cost.process_percent), "");
            row("its programs by the kernel's statistics", &programs, "");
            row("its process meanwhile", &format!("{:.2} %", cost.process_percent_counted), "");
            row("podperf by the kernel's account", &format!("**{kernel:.2} %**"), &goal(kernel, WAKEUPS_PERCENT, "%"));
            let walks = format!("{:.0} of {:.0}", cost.walks_per_second, cost.waits_per_second);
            row("walks of waits with a stack, a second", &walks, "");
            row("features given up below the cap", &format!("{:.0}", cost.shed), "");
        }
        Err(error) => row("cost of wake-ups", &format!("not measured: {error:#}"), ""),
    }
    match &profiles.memory {
        Ok(memory) => {
            row("memory before the programs", &format!("{:.1} MiB", memory.before_mib), "");
            row(
                &format!("memory with the symbols of {} programs", memory.programs),
                &format!("**{:.1} MiB** (peak {:.1})", memory.most_mib, memory.peak_mib),
                &goal(memory.most_mib, SYMBOLS_RSS_MIB, "MiB"),
            );
            row("frames with and without a name", &format!("{:.0}, {:.0}", memory.named, memory.unnamed), "");
        }
        Err(error) => {
            row(&format!("symbols of {PROGRAMS} programs"), &format!("not measured: {error:#}"), "");
        }
    }
    let cpus = profiles.cost.as_ref().map_or(0, |cost| cost.cpus);
    let seconds = profiles.args.profile_seconds;
    format!(
        "\n### The whole agent, as shipped\n\nPercent are of the time of all {cpus} CPUs, over {seconds} s.\n\n\
         | what | measured | goal, at most |\n|---|---|---|\n{rows}"
    )
}

pub(super) const fn holds(value: f64, at_most: f64) -> &'static str {
    if value <= at_most { "holds" } else { "missed" }
}
