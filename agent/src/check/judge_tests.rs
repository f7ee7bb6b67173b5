//! The codes, states and remedies of the lines in each situation. Their sentences are in `golden.txt` only.

use std::collections::{BTreeMap, BTreeSet};

#[path = "judge_situations.rs"]
mod situations;

use situations::*;

use super::*;
use crate::{
    check::{probe::Started, table},
    events::plan::{Limits, plan},
    kernel::{SampleEvent, Tracepoint, host::NamesNeed, isolation::Isolation, symbols::KernelNames},
    model::sensors::ALL,
};

fn report(findings: &Findings) -> Report {
    judge(&Config::default(), findings)
}

/// Returns the line with this code.
fn line(report: &Report, id: Code) -> &Check {
    report.checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("no {id:?} in {report:#?}"))
}

/// Checks the code, the state and the remedy of a line, and the verdict of the report.
fn expect(findings: &Findings, id: Code, state: &str, fix: Option<Remedy>, verdict: Verdict) {
    let report = report(findings);
    let found = line(&report, id);
    assert_eq!((found.state, &found.fix, report.verdict), (state, &fix, verdict), "{report:#?}");
}

#[test]
fn the_table_of_all_findings_is_generated() {
    let mut found = BTreeMap::new();
    for check in situations().iter().flat_map(|(config, findings)| judge(config, findings).checks) {
        found.entry(check.id).or_insert(check);
    }
    let codes: Vec<_> = found.keys().copied().collect();
    assert_eq!(codes, Code::ALL);
    let table = table::render(&Report::from(found.into_values().collect::<Vec<_>>()), false);
    if std::env::var_os("PODPERF_WRITE_GOLDEN").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/check/golden.txt"), &table).unwrap();
        return;
    }
    assert_eq!(table, include_str!("golden.txt"), "`make golden` writes agent/src/check/golden.txt");
}

/// A release is no obstacle, and isolated CPUs are interrupted or not, as configured.
#[test]
fn each_other_line_that_can_be_healthy_can_be_otherwise() {
    let situations = situations();
    let checks: Vec<_> = situations.iter().flat_map(|(config, findings)| judge(config, findings).checks).collect();
    let names = |is_healthy: bool| -> BTreeSet<&str> {
        let checks = checks.iter().filter(|check| (check.state == "healthy") == is_healthy);
        checks.map(|check| check.check.as_str()).collect()
    };
    let always: Vec<_> = names(true).difference(&names(false)).copied().collect();
    assert_eq!(always, ["isolated cpus", "kernel"]);
}

#[test]
fn a_machine_that_lacks_nothing_is_usable() {
    let report = report(&findings());
    assert_eq!(report.verdict, Verdict::Usable, "{report:?}");
    assert!(report.checks.iter().all(|check| check.fix.is_none()), "{report:?}");
    let ids: Vec<_> = report.checks.iter().map(|check| check.id.name()).collect();
    let unwinding = if Unwinding::DEFAULT == Unwinding::Tables { "tables" } else { "frame-pointers" };
    let expected = format!(
        "kernel-tested btf-found cgroup2-found lockdown-open capabilities-held programs-attached stacks-taken \
         unwinding-{unwinding} samples-taken perf-allowed event-placed watchdog-off pods-known listen-free \
         memory-no-budget run-directory-writable restart-empty"
    );
    assert_eq!(ids.join(" "), expected);
}

#[test]
fn every_line_is_explained() {
    let docs = include_str!("../../../docs/check.md");
    let away = || Some(Err(NoExport::Receiver("away".into())));
    let (export, metrics_export) = (away(), away());
    for check in report(&Findings { export, metrics_export, counters: Vec::new(), ..findings() }).checks {
        assert!(docs.contains(&format!("| `{}`", check.check)), "docs/check.md does not explain `{}`", check.check);
    }
}

#[test]
fn every_problem_of_the_host_makes_its_line_unsupported_with_the_agents_words() {
    for (id, host) in lacking() {
        let says = host.problems()[0].to_string();
        let report = report(&Findings { host, programs: None, ..findings() });
        let found = line(&report, id);
        assert_eq!((found.state, report.verdict), ("unsupported", Verdict::Unusable));
        assert_eq!(format!("{} ({})", found.detail, found.fix.as_ref().unwrap()), says);
        let programs = line(&report, Code::ProgramsNotTried);
        assert_eq!((programs.state, &programs.fix), ("unsupported", &Some(Remedy::FixFirst)));
        assert!(programs.detail.ends_with(&found.check), "{programs:?}");
    }
}

#[test]
fn programs_that_the_kernel_refuses_have_the_remedy_that_fits() {
    for (error, id, state, fix) in refused_programs() {
        let report = report(&Findings { programs: Some(Err(error)), ..findings() });
        let found = line(&report, id);
        assert_eq!((found.check.as_str(), found.state, report.verdict), (PROGRAMS, state, Verdict::Unusable));
        match fix {
            Some(fix) => assert_eq!(found.fix, Some(fix)),
            None => assert!(matches!(found.fix, Some(Remedy::Words(_))), "{found:?}"),
        }
    }
}

#[test]
fn the_raw_tracepoint_degrades_unless_it_is_asked_for() {
    let raw = Findings { programs: started(Tracepoint::Raw), ..findings() };
    expect(&raw, Code::ProgramsRawTracepoint, "degraded", Some(Remedy::BtfTracepoints), Verdict::Degraded);
    let mut config = Config::default();
    config.testing.tracepoint = Tracepoint::Raw;
    assert_eq!(line(&judge(&config, &raw), Code::ProgramsAttached).state, "healthy");
}

#[test]
fn an_event_that_is_not_counted_is_told_and_degrades() {
    let remedy = Some(words("the remedy"));
    for (state, id, fix, verdict) in [
        (EventState::Placed, Code::EventPlaced, None, Verdict::Usable),
        (EventState::Shared, Code::EventShared, remedy.clone(), Verdict::Usable),
        (EventState::Yielded, Code::EventYielded, remedy.clone(), Verdict::Degraded),
        (EventState::Unsupported, Code::EventUnsupported, remedy.clone(), Verdict::Usable),
        (EventState::Implausible, Code::EventImplausible, remedy, Verdict::Degraded),
    ] {
        let findings = Findings { counters: vec![counter("cycles", state)], ..findings() };
        expect(&findings, id, state.name(), fix, verdict);
    }
}

#[test]
fn an_event_that_the_machine_lacks_degrades_if_it_was_asked_for() {
    let findings = Findings { counters: vec![counter("cycles", EventState::Unsupported)], ..findings() };
    let mut config = Config::default();
    config.counters.groups.truncate(1);
    assert_eq!(judge(&config, &findings).verdict, Verdict::Degraded);
    assert_eq!(judge(&Config::default(), &findings).verdict, Verdict::Usable, "the default asks for none by name");
}

#[test]
fn a_refused_perf_event_open_matters_only_to_those_who_count() {
    let refused = Findings { perf_event_open: Err("permission denied (allow it)".into()), ..findings() };
    expect(&refused, Code::PerfRefused, "degraded", Some(words("allow it")), Verdict::Degraded);
    let without = Findings { counters: Vec::new(), ..refused };
    expect(&without, Code::PerfNotNeeded, "healthy", None, Verdict::Usable);
}

#[test]
fn the_watchdog_is_blamed_only_where_it_holds_a_counter_that_is_needed() {
    let refused = EventState::Unsupported;
    for (findings, id) in [
        (with_watchdog(Some("cpu"), "cycles", refused), Code::WatchdogInTheWay),
        (with_watchdog(Some("cpu"), "cycles", EventState::Placed), Code::WatchdogFits),
        (with_watchdog(Some("cpu"), "page-faults", refused), Code::WatchdogFits),
        (with_watchdog(None, "cycles", refused), Code::WatchdogOff),
        (Findings { host: whole(), ..with_watchdog(Some("cpu"), "cycles", refused) }, Code::WatchdogOff),
    ] {
        let is_blamed = id == Code::WatchdogInTheWay;
        let report = report(&findings);
        let found = line(&report, id);
        assert_eq!(found.state, if is_blamed { "degraded" } else { "healthy" });
        assert_eq!(found.fix, is_blamed.then_some(Remedy::TurnWatchdogOff));
    }
}

#[test]
fn names_in_profiles_matter_only_where_there_are_profiles() {
    let findings = Findings { export: Some(Ok(())), host: Host::example(), ..findings() };
    expect(&findings, Code::StacksWithoutNames, "healthy", None, Verdict::Usable);
    let mut config = Config::default();
    config.otlp.endpoint = "http://x:4317".into();
    let report = judge(&config, &findings);
    let found = line(&report, Code::StacksWithoutNames);
    let missing = vec![NamesNeed::Capability(Capability::CAP_SYS_PTRACE)];
    assert_eq!((found.state, &found.fix), ("degraded", &Some(Remedy::ProvideNames(missing))));
    assert_eq!((line(&report, Code::ExportAccepted).state, report.verdict), ("healthy", Verdict::Degraded));
    let fix = Some(Remedy::ProvideNames(vec![NamesNeed::Addresses]));
    expect(&hidden_names(), Code::StacksWithoutNames, "degraded", fix, Verdict::Degraded);
    config.stacks.enabled = false;
    assert_eq!(line(&judge(&config, &hidden_names()), Code::StacksOff).state, "healthy");
}

#[test]
fn processes_that_are_not_visible_degrade_programs_and_names() {
    let way = words("set `hostPID: true`, or in Docker `--pid=host`");
    let findings = in_own_pid_namespace();
    expect(&findings, Code::ProgramsOwnProcesses, "degraded", Some(way), Verdict::Degraded);
    let fix = Some(Remedy::ProvideNames(vec![NamesNeed::Processes]));
    expect(&findings, Code::StacksWithoutNames, "degraded", fix, Verdict::Degraded);
}

#[test]
fn what_tables_lack_is_told_with_the_way_out() {
    let at = |unwind, refused| {
        let (config, findings) = with_unwinding(unwind, refused);
        judge(&config, &findings)
    };
    assert_eq!(line(&at(Unwinding::Tables, None), Code::UnwindingTables).state, "healthy");
    assert_eq!(line(&at(Unwinding::FramePointers, None), Code::UnwindingFramePointers).state, "healthy");
    let refused = at(Unwinding::Tables, Some(REFUSED_COPIES));
    let found = line(&refused, Code::UnwindingWithoutTables);
    let fix = "report this as a bug, with the kernel's version, or set `stacks.unwind: frame-pointers`";
    assert_eq!((found.state, &found.fix, refused.verdict), ("degraded", &Some(words(fix)), Verdict::Degraded));
    assert!(found.detail.ends_with(REFUSED_COPIES), "{found:?}");
    let (config, mut findings) = with_unwinding(Unwinding::Tables, None);
    let reduced = format!("{}: too much (raise it)", parts::NO_ROOM_FOR_TABLES);
    findings.memory = Ok((Some(Budget::share_of(512 << 20)), Some(reduced)));
    let no_room = judge(&config, &findings);
    let found = line(&no_room, Code::UnwindingWithoutTables);
    assert!(found.state == "degraded" && found.detail.contains("the budget of memory"), "{found:?}");
    // Without a receiver nobody has asked for what is missing.
    let (mut config, mut findings) = with_unwinding(Unwinding::Tables, None);
    findings.host = Host::example();
    let found = judge(&config, &findings);
    let found = line(&found, Code::UnwindingWithoutTables);
    assert!(found.state == "healthy" && found.detail.contains("CAP_SYS_PTRACE"), "{found:?}");
    config.otlp.endpoint = "http://x:4317".into();
    let found = judge(&config, &findings);
    let found = line(&found, Code::UnwindingWithoutTables);
    let gives = |fix: &Remedy| fix.to_string().starts_with("give it CAP_SYS_PTRACE, or ");
    assert!(found.state == "degraded" && found.fix.as_ref().is_some_and(gives), "{found:?}");
    // Where no stacks are taken, none are found in any way.
    config.stacks.enabled = false;
    assert!(judge(&config, &findings).checks.iter().all(|check| check.check != "unwinding"));
}

#[test]
fn certificates_that_the_agent_refuses_make_the_machine_unusable() {
    let refused = || Some(Err(NoExport::Configuration("failed to read `otlp.tls.caFile` (mount it)".into())));
    let (by_profiles, by_metrics) =
        (Findings { export: refused(), ..findings() }, Findings { metrics_export: refused(), ..findings() });
    for findings in [by_profiles, by_metrics] {
        let fix = Some(words("mount it"));
        expect(&findings, Code::ExportBadConfiguration, "failed", fix, Verdict::Unusable);
    }
}

#[test]
fn a_receivers_refusal_has_the_remedy_that_fits() {
    for (error, id, fix) in refused_exports() {
        let findings = Findings { export: Some(Err(NoExport::Receiver(error.into()))), ..findings() };
        expect(&findings, id, "degraded", Some(fix), Verdict::Degraded);
    }
}

#[test]
fn pods_without_an_answer_degrade_and_without_credentials_refuse() {
    let with = |pods| Findings { pods, ..findings() };
    let refused = with(tried(State::Degraded, "may not list `pods` (grant it)", false));
    expect(&refused, Code::PodsRefused, "degraded", Some(words("grant it")), Verdict::Degraded);
    let none = with(tried(State::Degraded, "no pods of node `n` (set `nodeName`)", true));
    expect(&none, Code::PodsNone, "degraded", Some(words("set `nodeName`")), Verdict::Degraded);
    expect(&with(Ok(Pods::Off("not in a cluster"))), Code::PodsOff, "healthy", None, Verdict::Usable);
    let report = report(&with(Err(SourceError::NoCredentials)));
    assert_eq!((line(&report, Code::PodsNoCredentials).state, report.verdict), ("failed", Verdict::Unusable));
}

#[test]
fn an_old_number_is_told_and_refuses_nothing() {
    let host = Host { kernel: "5.14.0-503.11.1.el9_5.x86_64".into(), ..whole() };
    expect(&Findings { host, ..findings() }, Code::KernelUntested, "healthy", None, Verdict::Usable);
}

#[test]
fn maps_are_held_against_the_budget_of_memory() {
    let fits = Findings { memory: Ok((Some(Budget::share_of(512 << 20)), None)), ..findings() };
    expect(&fits, Code::MemoryFits, "healthy", None, Verdict::Usable);
    let fix = Some(words("raise the limit"));
    expect(&reduced_memory(), Code::MemoryReduced, "degraded", fix, Verdict::Degraded);
    expect(&refused_memory(), Code::MemoryTooSmall, "failed", Some(words("raise it")), Verdict::Unusable);
}

#[test]
fn an_agent_that_already_runs_is_no_fault_and_another_program_is() {
    let agent = Listen::Podperf("podperf 0.1.0 on node n".into());
    let running = Findings { listen: Ok(agent), run_dir: Ok(Some(7)), ..findings() };
    expect(&running, Code::ListenAgent, "healthy", None, Verdict::Usable);
    expect(&running, Code::RunDirectoryAgent, "healthy", None, Verdict::Usable);
    let taken = Findings { listen: Err(error(98, "failed to listen on `a` (set `listen`)")), ..findings() };
    expect(&taken, Code::ListenFailed, "failed", Some(words("set `listen`")), Verdict::Unusable);
    let locked = Findings { run_dir: Err(error(13, "failed to open lock `b` (set `runDir`)")), ..findings() };
    expect(&locked, Code::RunDirectoryFailed, "failed", Some(words("set `runDir`")), Verdict::Unusable);
}

#[test]
fn samples_that_cannot_be_taken_matter_only_to_those_who_want_them() {
    let refused = with_samples(Err("permission denied".into()), &[]);
    expect(&refused, Code::SamplesRefused, "degraded", Some(Remedy::AllowSamples), Verdict::Degraded);
    expect(&with_samples(Ok(None), &[]), Code::SamplesOff, "healthy", None, Verdict::Usable);
}

#[test]
fn a_sensor_that_does_not_count_degrades() {
    let off = || Some(Remedy::TurnSensorOff(ALL[0].names.sensor));
    for (state, id, fix, verdict) in [
        (State::Healthy, Code::SensorCounts, None, Verdict::Usable),
        (State::Unsupported, Code::SensorUnsupported, off(), Verdict::Degraded),
        (State::Degraded, Code::SensorRefused, off(), Verdict::Degraded),
    ] {
        expect(&with_samples(Ok(None), &[state]), id, state.name(), fix, verdict);
    }
}

#[test]
fn where_nothing_can_be_pinned_counts_end_with_the_agent() {
    let with = |pins| Findings { pins, ..findings() };
    expect(&with(None), Code::RestartOff, "healthy", None, Verdict::Usable);
    expect(&with(Some(Ok(1))), Code::RestartKept, "healthy", None, Verdict::Usable);
    let fix = Some(words("make it writable"));
    expect(&read_only_pins(), Code::RestartFailed, "degraded", fix, Verdict::Degraded);
}
