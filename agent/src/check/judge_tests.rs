//! The codes, states and remedies of the lines in each situation. Their sentences are in `golden.txt` only.

use std::{collections::BTreeMap, io};

use super::*;
use crate::{
    check::{probe::Started, table},
    events::plan::{Limits, plan},
    kernel::{SampleEvent, Tracepoint, host::NamesNeed, isolation::Isolation, symbols::KernelNames},
    model::sensors::ALL,
};

/// The findings on a machine that lacks nothing, with one event.
fn findings() -> Findings {
    Findings {
        host: whole(),
        programs: started(Tracepoint::Btf),
        perf_event_open: Ok(()),
        counters: vec![counter("cycles", EventState::Placed)],
        pods: tried(State::Healthy, "2 pods of node `n` by watch", true),
        export: None,
        metrics_export: None,
        listen: Ok(Listen::Free),
        memory: Ok((None, None)),
        run_dir: Ok(None),
        pins: Some(Ok(0)),
    }
}

fn counter(event: &str, state: EventState) -> OpenCounter {
    let limits = Limits { events: 1, groups: 1 };
    let plan = plan(&[vec![event.to_owned()]], "/nonexistent".as_ref(), limits).unwrap();
    let counter = plan.groups[0][0].clone();
    let detail = match state {
        EventState::Placed => counter.kernel_event.clone(),
        _ => "not counted (the remedy)".into(),
    };
    OpenCounter { counter, slot: None, group: None, state, detail }
}

fn started(tracepoint: Tracepoint) -> Option<anyhow::Result<Started>> {
    let samples = Ok(Some(SampleEvent::CpuClock));
    Some(Ok(Started { tracepoint, sees_all_tasks: true, samples, sensors: Vec::new() }))
}

/// Returns the findings with another event of samples, and with these states of a sensor.
fn with_samples(samples: Result<Option<SampleEvent>, String>, states: &[State]) -> Findings {
    let sensors = states.iter().map(|state| SensorState { sensor: ALL[0], state: *state, detail: "detail".into() });
    let started = Started { tracepoint: Tracepoint::Btf, sees_all_tasks: true, samples, sensors: sensors.collect() };
    Findings { programs: Some(Ok(started)), ..findings() }
}

fn tried(state: State, detail: &str, connected: bool) -> Result<Pods, SourceError> {
    Ok(Pods::Tried(Trial { state, detail: detail.into(), connected }))
}

/// A host that has even the capabilities that only names need.
fn whole() -> Host {
    let for_names = [Capability::CAP_SYSLOG, Capability::CAP_SYS_PTRACE];
    let example = Host::example();
    Host { capabilities: example.capabilities.iter().copied().chain(for_names).collect(), ..example }
}

/// Hosts that lack something without which the agent does not start, each with the code.
fn lacking() -> Vec<(Code, Host)> {
    vec![
        (Code::BtfMissing, Host { btf: false, ..whole() }),
        (Code::Cgroup2Missing, Host { cgroup_root: None, cgroup2_mounts: Vec::new(), ..whole() }),
        (Code::Cgroup2Hidden, Host { cgroup_root: None, ..whole() }),
        (Code::Cgroup2Wrong, Host { is_cgroup2: false, ..whole() }),
        (Code::LockdownConfidentiality, Host { lockdown: Some("confidentiality".into()), ..whole() }),
        (Code::CapabilitiesMissing, Host { capabilities: vec![Capability::CAP_BPF], ..whole() }),
        (Code::CapabilitiesUserNamespace, Host { user_namespace: true, ..whole() }),
    ]
}

fn error(errno: i32, context: &'static str) -> anyhow::Error {
    anyhow::Error::new(io::Error::from_raw_os_error(errno)).context(context)
}

/// Returns the error of a program that the verifier rejects with a long log.
fn rejected() -> anyhow::Error {
    let log =
        format!("func#0 @0\n{}R1 invalid mem access 'scalar'\nprocessed 9 insns", "0: (bf) r6 = r1\n".repeat(500));
    let source = ProgramError::LoadError {
        io_error: io::Error::from_raw_os_error(libc::EACCES),
        verifier_log: aya_obj::VerifierLog::new(log),
    };
    LoadError::Program { program: "sched_switch", source: Box::new(source) }.into()
}

/// Errors with which the programs do not start, each with the code, the state and the remedy. With `None`, the error
/// names the remedy.
fn refused_programs() -> Vec<(anyhow::Error, Code, &'static str, Option<Remedy>)> {
    let load = |errno| error(errno, "failed to load");
    let missing = vec!["`bpf_task_pt_regs` (Linux 5.15)"];
    let features = Unsupported::Features { release: "5.10.0-32".into(), missing };
    vec![
        (LoadError::Lockdown { program: "cgroup_mkdir" }.into(), Code::ProgramsLockdown, "unsupported", None),
        (LoadError::Features(features).into(), Code::ProgramsFeatures, "unsupported", None),
        // The verifier rejects with the errno of a missing permission, although no permission is missing.
        (rejected(), Code::ProgramsRejected, "failed", Some(Remedy::ReportBug)),
        (load(libc::EPERM), Code::ProgramsForbidden, "failed", Some(Remedy::AllowBpf)),
        (load(libc::EACCES), Code::ProgramsForbidden, "failed", Some(Remedy::AllowBpf)),
        (load(libc::ENOSYS), Code::ProgramsNoBpf, "failed", Some(Remedy::BuildBpf)),
        (load(libc::ENOMEM), Code::ProgramsNoMemory, "failed", Some(Remedy::MoreMemory)),
        (load(libc::EINVAL), Code::ProgramsFailed, "failed", Some(Remedy::ReportBug)),
        (LoadError::Missing("flush").into(), Code::ProgramsFailed, "failed", None),
    ]
}

/// Answers of a receiver, each with the code and the remedy.
fn refused_exports() -> Vec<(&'static str, Code, Remedy)> {
    let signal = "Unimplemented: unknown service opentelemetry.proto.collector.profiles";
    let certificate = "transport error: invalid peer certificate: UnknownIssuer";
    let name = "transport error: dns error: failed to lookup address information";
    let closed = "transport error: tcp connect error: Connection refused (os error 111)";
    vec![
        (signal, Code::ExportSignalOff, Remedy::SwitchSignalOn),
        ("Unauthenticated: no token", Code::ExportUnauthenticated, Remedy::SetHeaders),
        (certificate, Code::ExportUntrusted, Remedy::TrustAuthority),
        (name, Code::ExportUnknownHost, Remedy::CheckName),
        (closed, Code::ExportFailed, Remedy::StartReceiver),
        ("no answer within 5s", Code::ExportFailed, Remedy::StartReceiver),
        ("HTTP 404 (set `otlp.path`)", Code::ExportFailed, words("set `otlp.path`")),
        ("HTTP 401: Unauthorized (set `otlp.headers`)", Code::ExportUnauthenticated, words("set `otlp.headers`")),
        ("HTTP 403: Forbidden (set `otlp.headers`)", Code::ExportUnauthenticated, words("set `otlp.headers`")),
        (
            "received fatal alert: CertificateRequired (set `otlp.tls.certFile`)",
            Code::ExportUnauthenticated,
            words("set `otlp.tls.certFile`"),
        ),
        (
            "received corrupt message of type InvalidContentType (write `http://`: it does not speak TLS there)",
            Code::ExportFailed,
            words("write `http://`: it does not speak TLS there"),
        ),
        ("tls handshake eof", Code::ExportFailed, Remedy::StartReceiver),
        ("through proxy `p:1`: dns error (check the proxy)", Code::ExportFailed, words("check the proxy")),
    ]
}

fn words(text: &str) -> Remedy {
    Remedy::Words(text.into())
}

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

fn with_watchdog(pmu: Option<&str>, event: &str, state: EventState) -> Findings {
    let host = Host { nmi_watchdog: true, cpu_pmu: pmu.map(str::to_owned), ..whole() };
    Findings { host, counters: vec![counter(event, state)], ..findings() }
}

/// Returns situations that together have every finding.
fn situations() -> Vec<(Config, Findings)> {
    let mut all = vec![
        findings(),
        Findings { host: Host { kernel: "5.14.0-503.11.1.el9_5.x86_64".into(), ..whole() }, ..findings() },
        Findings { host: Host { sees_all_cgroups: false, ..whole() }, ..findings() },
        Findings { programs: started(Tracepoint::Raw), ..findings() },
        Findings { host: Host { scheduler: Some("lavd".into()), ..whole() }, ..findings() },
        hidden_names(),
        with_samples(Ok(None), &[State::Healthy, State::Unsupported, State::Degraded]),
        with_samples(Err("permission denied".into()), &[]),
        Findings { perf_event_open: Err("permission denied (allow it)".into()), ..findings() },
        Findings { perf_event_open: Err("permission denied".into()), counters: Vec::new(), ..findings() },
        with_watchdog(Some("cpu"), "cycles", EventState::Placed),
        with_watchdog(Some("cpu"), "cycles", EventState::Unsupported),
        Findings { pods: Ok(Pods::Off("`identity: none`: pods' cgroups are like all others")), ..findings() },
        Findings { pods: tried(State::Degraded, "no pods of node `n` (set `nodeName`)", true), ..findings() },
        Findings { pods: tried(State::Degraded, "may not list `pods` (grant it)", false), ..findings() },
        Findings { pods: Err(SourceError::NoCredentials), ..findings() },
        Findings { listen: Ok(Listen::Podperf("podperf 0.1.0 on node n".into())), ..findings() },
        Findings { listen: Err(error(98, "failed to listen on `a` (set `listen`)")), ..findings() },
        Findings { memory: Ok((Some(Budget::share_of(512 << 20)), None)), ..findings() },
        reduced_memory(),
        refused_memory(),
        Findings { run_dir: Ok(Some(7)), ..findings() },
        Findings { run_dir: Err(error(13, "failed to open lock `b` (set `runDir`)")), ..findings() },
        Findings { pins: None, ..findings() },
        Findings { pins: Some(Ok(1)), ..findings() },
        read_only_pins(),
    ];
    all.extend(lacking().into_iter().map(|(_, host)| Findings { host, programs: None, ..findings() }));
    all.extend(refused_programs().into_iter().map(|row| Findings { programs: Some(Err(row.0)), ..findings() }));
    let events = EventState::ALL.map(|state| Findings { counters: vec![counter("cycles", state)], ..findings() });
    all.extend(events);
    let mut all: Vec<_> = all.into_iter().map(|findings| (Config::default(), findings)).collect();

    let mut exports = Config::default();
    exports.otlp.endpoint = "http://x:4317".into();
    let export = |tried| Findings { export: Some(tried), host: Host::example(), ..findings() };
    let refused = refused_exports().into_iter().map(|(error, ..)| Err(NoExport::Receiver(error.into())));
    let bad = Err(NoExport::Configuration("failed to read `otlp.tls.caFile` (mount it)".into()));
    all.extend(refused.chain([Ok(()), bad]).map(|tried| (exports.clone(), export(tried))));
    let mut without_stacks = Config::default();
    without_stacks.stacks.enabled = false;
    all.push((without_stacks, findings()));
    all.extend([false, true].map(|interrupt| {
        let mut config = Config::default();
        config.overhead.interrupt_isolated_cpus = interrupt;
        let isolation = Isolation { isolated: vec![2, 3], nohz_full: vec![3, 4] };
        (config, Findings { host: Host { isolation, ..whole() }, ..findings() })
    }));
    all
}

fn hidden_names() -> Findings {
    Findings { host: Host { kernel_names: KernelNames::Hidden, ..whole() }, ..findings() }
}

fn reduced_memory() -> Findings {
    let memory = (Some(Budget::share_of(512 << 20)), Some("fewer stacks (raise the limit)".into()));
    Findings { memory: Ok(memory), ..findings() }
}

fn refused_memory() -> Findings {
    let error = ConfigError::Value { key: "overhead.maxMemory", message: "too little (raise it)".into() };
    Findings { memory: Err(error), ..findings() }
}

fn read_only_pins() -> Findings {
    Findings { pins: Some(Err(error(30, "failed to use `/a` (make it writable)"))), ..findings() }
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

#[test]
fn a_machine_that_lacks_nothing_is_usable() {
    let report = report(&findings());
    assert_eq!(report.verdict, Verdict::Usable, "{report:?}");
    assert!(report.checks.iter().all(|check| check.fix.is_none()), "{report:?}");
    let ids: Vec<_> = report.checks.iter().map(|check| check.id.name()).collect();
    assert_eq!(
        ids.join(" "),
        "kernel-tested btf-found cgroup2-found lockdown-open capabilities-held programs-attached stacks-taken \
         samples-taken perf-allowed event-placed watchdog-off pods-known listen-free memory-no-budget \
         run-directory-writable restart-empty"
    );
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
        (EventState::Unsupported, Code::EventUnsupported, remedy.clone(), Verdict::Degraded),
        (EventState::Implausible, Code::EventImplausible, remedy, Verdict::Degraded),
    ] {
        let findings = Findings { counters: vec![counter("cycles", state)], ..findings() };
        expect(&findings, id, state.name(), fix, verdict);
    }
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
