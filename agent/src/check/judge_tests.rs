use std::io;

use super::*;
use crate::{
    check::probe::Started,
    events::plan::{Limits, plan},
    kernel::{SampleEvent, Tracepoint},
    pods::SourceError,
};

/// The findings on a machine that lacks nothing, with one event.
fn findings() -> Findings {
    Findings {
        host: whole(),
        programs: started(Tracepoint::Btf),
        perf_event_open: Ok(()),
        counters: vec![counter("cycles", Ok(0))],
        pods: Ok((State::Healthy, "2 pods of node `n` by watch".into())),
        export: None,
        metrics_export: None,
        listen: Ok(Listen::Free),
        memory: Ok((None, None)),
        run_dir: Ok(None),
        pins: Some(Ok(0)),
    }
}

fn counter(event: &str, slot: Result<usize, String>) -> OpenCounter {
    let limits = Limits { events: 1, groups: 1 };
    let plan = plan(&[vec![event.to_owned()]], "/nonexistent".as_ref(), limits).unwrap();
    let counter = plan.groups[0][0].clone();
    let (state, detail) = match slot {
        Ok(_) => (EventState::Placed, counter.kernel_event.clone()),
        Err(reason) => (EventState::Unsupported, reason),
    };
    OpenCounter { counter, slot: None, group: None, state, detail }
}

fn started(tracepoint: Tracepoint) -> Option<anyhow::Result<Started>> {
    Some(Ok(Started { tracepoint, samples: Ok(Some(SampleEvent::CpuClock)), sensors: Vec::new() }))
}

/// A host that has even the capabilities that only names need.
fn whole() -> Host {
    let for_names = [Capability::CAP_SYSLOG, Capability::CAP_SYS_PTRACE];
    let example = Host::example();
    Host { capabilities: example.capabilities.iter().copied().chain(for_names).collect(), ..example }
}

fn error(errno: i32, context: &'static str) -> anyhow::Error {
    anyhow::Error::new(io::Error::from_raw_os_error(errno)).context(context)
}

fn report(findings: &Findings) -> Report {
    judge(&Config::default(), findings)
}

/// The line of this name: state, detail and remedy.
fn line(findings: &Findings, name: &str) -> (&'static str, String, String) {
    line_of(&report(findings), name)
}

fn line_of(report: &Report, name: &str) -> (&'static str, String, String) {
    let check = report.checks.iter().find(|check| check.check == name).unwrap().clone();
    (check.state, check.detail, check.fix.unwrap_or_default())
}

#[test]
fn a_machine_that_lacks_nothing_is_usable() {
    let report = report(&findings());
    assert_eq!(report.verdict, Verdict::Usable, "{report:?}");
    assert!(report.checks.iter().all(|check| check.fix.is_none() || check.verdict != Verdict::Usable), "{report:?}");
    let names: Vec<_> = report.checks.iter().map(|check| check.check.as_str()).collect();
    assert_eq!(
        names.join(", "),
        "kernel, btf, cgroup2, lockdown, capabilities, bpf programs, stacks, cpu samples, perf_event_open, cycles, nmi \
         watchdog, pods, listen, memory, run directory, restart"
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
    let machines = [
        ("btf", Host { btf: false, ..Host::example() }),
        ("cgroup2", Host { cgroup_root: None, is_cgroup2: false, ..Host::example() }),
        ("cgroup2", Host { is_cgroup2: false, ..Host::example() }),
        ("lockdown", Host { lockdown: Some("confidentiality".into()), ..Host::example() }),
        ("capabilities", Host { capabilities: vec![Capability::CAP_BPF], ..Host::example() }),
        ("capabilities", Host { user_namespace: true, ..Host::example() }),
    ];
    for (name, host) in machines {
        let words = host.problems()[0].to_string();
        let findings = Findings { host, programs: None, ..findings() };
        assert_eq!(report(&findings).verdict, Verdict::Unusable, "{name}");
        let (state, detail, fix) = line(&findings, name);
        assert_eq!(state, "unsupported");
        assert_eq!(format!("{detail} ({fix})"), words);
        let (state, detail, _) = line(&findings, "bpf programs");
        assert_eq!((state, detail), ("unsupported", format!("not tried, for want of: {name}")));
    }
}

#[test]
fn an_event_that_is_not_counted_is_told_and_degrades() {
    let counters = vec![counter("cycles", Ok(0)), counter("instructions", Err("not counted (a VM)".into()))];
    let findings = Findings { counters, ..findings() };
    assert_eq!(report(&findings).verdict, Verdict::Degraded);
    assert_eq!(line(&findings, "cycles"), ("placed", "PERF_TYPE_HARDWARE:0".into(), String::new()));
    assert_eq!(line(&findings, "instructions"), ("unsupported", "not counted".into(), "a VM".into()));
}

#[test]
fn a_refused_perf_event_open_matters_only_to_those_who_count() {
    let refused = Findings { perf_event_open: Err("permission denied (allow it)".into()), ..findings() };
    assert_eq!(line(&refused, "perf_event_open"), ("degraded", "permission denied".into(), "allow it".into()));
    let without = Findings { counters: Vec::new(), ..refused };
    assert_eq!(line(&without, "perf_event_open").0, "healthy");
    assert_eq!(report(&without).verdict, Verdict::Usable);
}

#[test]
fn paranoia_is_told_by_whether_it_matters() {
    assert!(line(&findings(), "perf_event_open").1.contains("does not matter with CAP_PERFMON"));
    let host = Host { capabilities: Vec::new(), perf_event_paranoid: Some(-1), ..Host::example() };
    let detail = line(&Findings { host, ..findings() }, "perf_event_open").1;
    assert_eq!(detail, "allowed; kernel.perf_event_paranoid is -1");
}

#[test]
fn the_watchdog_is_blamed_only_where_it_holds_a_counter_that_is_needed() {
    let refused = |event| vec![counter(event, Err("too few (split)".into()))];
    for (on, pmu, counters, state) in [
        (true, Some("cpu"), refused("cycles"), "degraded"),
        (true, Some("cpu"), vec![counter("cycles", Ok(0))], "healthy"),
        (true, Some("cpu"), refused("page-faults"), "healthy"),
        (true, None, refused("cycles"), "healthy"),
        (false, Some("cpu"), refused("cycles"), "healthy"),
    ] {
        let host = Host { nmi_watchdog: on, cpu_pmu: pmu.map(str::to_owned), ..Host::example() };
        let (said, detail, fix) = line(&Findings { host, counters, ..findings() }, "nmi watchdog");
        assert_eq!(said, state, "{on} {pmu:?}: {detail}");
        assert_eq!(fix.contains("sysctl kernel.nmi_watchdog=0"), state == "degraded", "{fix}");
    }
}

#[test]
fn names_in_profiles_matter_only_where_there_are_profiles() {
    assert_eq!(line(&findings(), "stacks").0, "healthy");
    let mut config = Config::default();
    config.otlp.endpoint = "http://x:4317".into();
    let findings = Findings { export: Some(Ok(())), host: Host::example(), ..findings() };
    let report = judge(&config, &findings);
    let (state, detail, fix) = line_of(&report, "stacks");
    assert_eq!((state, report.verdict), ("degraded", Verdict::Degraded));
    assert_eq!(
        detail,
        "without kernel names (needs CAP_SYSLOG) and names in other users' processes (needs CAP_SYS_PTRACE)"
    );
    assert_eq!(fix, "give it CAP_SYSLOG and CAP_SYS_PTRACE, or do without these names");
    assert_eq!(line_of(&report, "profile export").1, "http://x:4317 takes profiles");
    config.stacks.enabled = false;
    assert_eq!(line_of(&judge(&config, &findings), "stacks").1, "not taken: `stacks.enabled` is false");
}

#[test]
fn certificates_that_the_agent_refuses_make_the_machine_unusable() {
    let refused = || Some(Err(NoExport::Configuration("failed to read `otlp.tls.caFile` (mount it)".into())));
    let findings = Findings { export: refused(), metrics_export: refused(), ..findings() };
    for name in ["profile export", "metrics export"] {
        let (state, detail, way) = line(&findings, name);
        assert_eq!((state, detail.as_str(), way.as_str()), ("failed", "failed to read `otlp.tls.caFile`", "mount it"));
    }
    assert_eq!(report(&findings).verdict, Verdict::Unusable);
}

#[test]
fn a_receivers_refusal_names_what_would_help() {
    for (error, fix) in [
        ("transport error: tcp connect error: Connection refused (os error 111)", "start an OTLP receiver"),
        ("no answer within 5s", "start an OTLP receiver"),
        ("Unimplemented: unknown service opentelemetry.proto.collector.profiles", "switch the signal on"),
        ("Unauthenticated: no token", "`otlp.headers`"),
        ("transport error: invalid peer certificate: UnknownIssuer", "`otlp.tls.caFile`"),
        ("transport error: dns error: failed to lookup address information", "ClusterFirstWithHostNet"),
    ] {
        let findings = Findings { export: Some(Err(NoExport::Receiver(error.into()))), ..findings() };
        let (state, detail, way) = line(&findings, "profile export");
        assert_eq!((state, detail.ends_with(error)), ("degraded", true), "{detail}");
        assert!(way.contains(fix), "{error}: {way}");
    }
}

#[test]
fn pods_without_an_answer_degrade_and_without_credentials_refuse() {
    let degraded = (State::Degraded, "may not list `pods` (grant it)".to_owned());
    let findings_of = |pods| Findings { pods, ..findings() };
    let findings = findings_of(Ok(degraded));
    assert_eq!(line(&findings, "pods"), ("degraded", "may not list `pods`".into(), "grant it".into()));
    assert_eq!(report(&findings).verdict, Verdict::Degraded);
    let findings = findings_of(Err(SourceError::NoCredentials));
    assert_eq!(line(&findings, "pods").0, "failed");
    assert!(line(&findings, "pods").2.contains("`identity: none`"));
    assert_eq!(report(&findings).verdict, Verdict::Unusable);
}

#[test]
fn programs_that_the_kernel_refuses_say_what_stands_in_the_way() {
    for (errno, fix) in [(libc::EPERM, "seccomp"), (libc::ENOMEM, "more memory"), (libc::EINVAL, "report this")] {
        let findings = Findings { programs: Some(Err(error(errno, "failed to load"))), ..findings() };
        let (state, detail, way) = line(&findings, "bpf programs");
        assert!(state == "failed" && detail.starts_with("failed to load: "), "{detail}");
        assert!(way.contains(fix), "{errno}: {way}");
        assert_eq!(report(&findings).verdict, Verdict::Unusable);
    }
    let rebuild = Findings { programs: Some(Err(LoadError::Missing("flush").into())), ..findings() };
    assert_eq!(line(&rebuild, "bpf programs").2, "rebuild podperf");
    let raw = Findings { programs: started(Tracepoint::Raw), ..findings() };
    assert_eq!(line(&raw, "bpf programs").0, "degraded");
    let mut config = Config::default();
    config.testing.tracepoint = Tracepoint::Raw;
    let report = judge(&config, &raw);
    assert_eq!(line_of(&report, "bpf programs"), ("healthy", "loaded and attached: raw tracepoint".into(), "".into()));
}

#[test]
fn what_the_verifier_says_is_told_in_one_line() {
    let log =
        format!("func#0 @0\n{}R1 invalid mem access 'scalar'\nprocessed 9 insns", "0: (bf) r6 = r1\n".repeat(500));
    let source = ProgramError::LoadError {
        io_error: io::Error::from_raw_os_error(libc::EACCES),
        verifier_log: aya_obj::VerifierLog::new(log),
    };
    let refused = LoadError::Program { program: "sched_switch", source: Box::new(source) };
    let findings = Findings { programs: Some(Err(refused.into())), ..findings() };
    let (_, detail, way) = line(&findings, "bpf programs");
    assert!(
        detail.starts_with("failed to start BPF program `sched_switch`: the verifier refused it: func#0"),
        "{detail}"
    );
    assert!(detail.ends_with("R1 invalid mem access 'scalar' processed 9 insns"), "{detail}");
    assert!(way.starts_with("report this as a bug"), "not that permissions are missing: {way}");
}

#[test]
fn a_kernel_in_lockdown_that_does_not_show_it_is_unsupported_and_no_bug() {
    let refused = LoadError::Lockdown { program: "cgroup_mkdir" };
    let findings = Findings { programs: Some(Err(refused.into())), ..findings() };
    let (state, detail, way) = line(&findings, "bpf programs");
    assert!(state == "unsupported" && detail.contains("kernel lockdown is `confidentiality`"), "{state} {detail}");
    assert_eq!(way, "boot with `lockdown=integrity`");
}

#[test]
fn a_kernel_without_features_is_unsupported_and_they_are_named() {
    let missing = vec!["`bpf_task_pt_regs` (Linux 5.15)"];
    let refused = LoadError::Features(Unsupported::Features { release: "5.10.0-32".into(), missing });
    let findings = Findings { programs: Some(Err(refused.into())), ..findings() };
    assert_eq!(report(&findings).verdict, Verdict::Unusable);
    let (state, detail, way) = line(&findings, "bpf programs");
    assert_eq!((state, &*detail), ("unsupported", "kernel `5.10.0-32` lacks `bpf_task_pt_regs` (Linux 5.15)"));
    assert!(way.starts_with("use Linux 5.15 or newer"), "{way}");
}

#[test]
fn an_old_number_is_told_and_refuses_nothing() {
    let host = Host { kernel: "5.14.0-503.11.1.el9_5.x86_64".into(), ..Host::example() };
    let findings = Findings { host, ..findings() };
    let (state, detail, _) = line(&findings, "kernel");
    assert_eq!(state, "healthy");
    assert_eq!(detail, "5.14.0-503.11.1.el9_5.x86_64, not tested; podperf is tested on 6.1 and newer");
}

#[test]
fn maps_are_held_against_the_budget_of_memory() {
    let budget = Budget::share_of(512 << 20);
    let fits = Findings { memory: Ok((Some(budget), None)), ..findings() };
    assert_eq!(line(&fits, "memory").1, "the maps fit into 410 MiB, 80 % of the container's 512 MiB");
    let reduced = Findings { memory: Ok((Some(budget), Some("fewer stacks (raise the limit)".into()))), ..findings() };
    assert_eq!(line(&reduced, "memory"), ("degraded", "fewer stacks".into(), "raise the limit".into()));
    let error = ConfigError::Value { key: "overhead.maxMemory", message: "too little (raise it)".into() };
    let refused = Findings { memory: Err(error), ..findings() };
    assert_eq!((report(&refused).verdict, &*line(&refused, "memory").2), (Verdict::Unusable, "raise it"));
}

#[test]
fn an_agent_that_already_runs_is_no_fault_and_another_program_is() {
    let agent = "podperf 0.1.0 on node n".to_owned();
    let running = Findings { listen: Ok(Listen::Podperf(agent.clone())), run_dir: Ok(Some(7)), ..findings() };
    assert_eq!(report(&running).verdict, Verdict::Usable);
    assert!(line(&running, "listen").1.contains(&agent));
    assert!(line(&running, "run directory").1.contains("pid 7"));
    for (name, findings) in [
        ("listen", Findings { listen: Err(error(98, "failed to listen on `a` (set `listen`)")), ..findings() }),
        ("run directory", Findings { run_dir: Err(error(13, "failed to open lock `b` (set `runDir`)")), ..findings() }),
    ] {
        assert_eq!(report(&findings).verdict, Verdict::Unusable);
        let (state, detail, fix) = line(&findings, name);
        assert!(state == "failed" && detail.contains("(os error ") && fix.starts_with("set `"), "{detail} {fix}");
    }
}

#[test]
fn samples_that_cannot_be_taken_matter_only_to_those_who_want_them() {
    let samples = |samples| {
        let started = Started { tracepoint: Tracepoint::Btf, samples, sensors: Vec::new() };
        Findings { programs: Some(Ok(started)), ..findings() }
    };
    let refused = samples(Err("permission denied".into()));
    let (state, detail, way) = line(&refused, "cpu samples");
    assert_eq!((state, &*detail), ("degraded", "none: permission denied"));
    assert!(way.contains("`stacks.onCpuHertz: 0`"), "{way}");
    assert_eq!(report(&refused).verdict, Verdict::Degraded);
    assert_eq!(line(&samples(Ok(None)), "cpu samples").0, "healthy");
}

#[test]
fn where_nothing_can_be_pinned_the_line_says_what_is_lost() {
    let with = |pins| line(&Findings { pins, ..findings() }, "restart");
    assert_eq!(with(None).0, "healthy");
    assert_eq!(with(Some(Ok(0))).0, "healthy");
    assert!(with(Some(Ok(1))).1.ends_with("where some are"));
    let read_only = Some(Err(error(30, "failed to use `/a` (make it writable)")));
    let said = "counts end with the agent: failed to use `/a`: Read-only file system (os error 30)".to_owned();
    assert_eq!(with(read_only), ("degraded", said, "make it writable".to_owned()));
}
