//! Findings on machines that lack nothing, or something.

use std::io;

use super::*;

/// The findings on a machine that lacks nothing, with one event.
pub(super) fn findings() -> Findings {
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

pub(super) fn counter(event: &str, state: EventState) -> OpenCounter {
    let limits = Limits { events: 1, groups: 1 };
    let plan = plan(&[vec![event.to_owned()]], "/nonexistent".as_ref(), limits).unwrap();
    let counter = plan.groups[0][0].clone();
    let detail = match state {
        EventState::Placed => counter.kernel_event.clone(),
        _ => "not counted (the remedy)".into(),
    };
    OpenCounter { counter, slot: None, group: None, state, detail }
}

pub(super) fn started(tracepoint: Tracepoint) -> Option<anyhow::Result<Started>> {
    let samples = Ok(Some(SampleEvent::CpuClock));
    Some(Ok(Started { tracepoint, sees_all_tasks: true, samples, copies_refused: None, sensors: Vec::new() }))
}

/// Returns the findings in a container that does not share the node's process ids.
pub(super) fn in_own_pid_namespace() -> Findings {
    let (tracepoint, samples) = (Tracepoint::Btf, Ok(None));
    let started = Started { tracepoint, sees_all_tasks: false, samples, copies_refused: None, sensors: Vec::new() };
    let host = Host { sees_all_processes: false, ..whole() };
    Findings { programs: Some(Ok(started)), host, ..findings() }
}

/// Returns the findings with another event of samples, and with these states of a sensor.
pub(super) fn with_samples(samples: Result<Option<SampleEvent>, String>, states: &[State]) -> Findings {
    let sensors = states.iter().map(|state| SensorState { sensor: ALL[0], state: *state, detail: "detail".into() });
    let (tracepoint, sensors) = (Tracepoint::Btf, sensors.collect());
    let started = Started { tracepoint, sees_all_tasks: true, samples, copies_refused: None, sensors };
    Findings { programs: Some(Ok(started)), ..findings() }
}

/// Returns the findings with this way to find user stacks, whatever the default is, and with a program that the kernel
/// may have refused while it copied stacks.
pub(super) fn with_unwinding(unwind: Unwinding, refused: Option<&str>) -> (Config, Findings) {
    let mut config = Config::default();
    config.stacks.unwind = unwind;
    let copies_refused = refused.map(str::to_owned);
    let (tracepoint, samples) = (Tracepoint::Btf, Ok(None));
    let started = Started { tracepoint, sees_all_tasks: true, samples, copies_refused, sensors: Vec::new() };
    (config, Findings { programs: Some(Ok(started)), ..findings() })
}

/// The error of such a program.
pub(super) const REFUSED_COPIES: &str = "failed to start BPF program `sched_switch`";

pub(super) fn tried(state: State, detail: &str, connected: bool) -> Result<Pods, SourceError> {
    Ok(Pods::Tried(Trial { state, detail: detail.into(), connected }))
}

/// A host that has even the capabilities that only names need.
pub(super) fn whole() -> Host {
    let for_names = [Capability::CAP_SYSLOG, Capability::CAP_SYS_PTRACE];
    let example = Host::example();
    Host { capabilities: example.capabilities.iter().copied().chain(for_names).collect(), ..example }
}

/// Hosts that lack something without which the agent does not start, each with the code.
pub(super) fn lacking() -> Vec<(Code, Host)> {
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

pub(super) fn error(errno: i32, context: &'static str) -> anyhow::Error {
    anyhow::Error::new(io::Error::from_raw_os_error(errno)).context(context)
}

/// Returns the error of a program that the verifier rejects with a long log.
pub(super) fn rejected() -> anyhow::Error {
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
pub(super) fn refused_programs() -> Vec<(anyhow::Error, Code, &'static str, Option<Remedy>)> {
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
pub(super) fn refused_exports() -> Vec<(&'static str, Code, Remedy)> {
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

pub(super) fn words(text: &str) -> Remedy {
    Remedy::Words(text.into())
}

pub(super) fn with_watchdog(pmu: Option<&str>, event: &str, state: EventState) -> Findings {
    let host = Host { nmi_watchdog: true, cpu_pmu: pmu.map(str::to_owned), ..whole() };
    Findings { host, counters: vec![counter(event, state)], ..findings() }
}

/// Returns situations that together have every finding.
pub(super) fn situations() -> Vec<(Config, Findings)> {
    let mut all = vec![
        findings(),
        Findings { host: Host { kernel: "5.14.0-503.11.1.el9_5.x86_64".into(), ..whole() }, ..findings() },
        Findings { host: Host { sees_all_cgroups: false, ..whole() }, ..findings() },
        Findings { programs: started(Tracepoint::Raw), ..findings() },
        Findings { host: Host { scheduler: Some("lavd".into()), ..whole() }, ..findings() },
        hidden_names(),
        in_own_pid_namespace(),
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
    let all = all.into_iter().map(|findings| (Config::default(), findings));
    let unwinding =
        [(Unwinding::Tables, None), (Unwinding::FramePointers, None), (Unwinding::Tables, Some(REFUSED_COPIES))];
    // They come first: the default of `stacks.unwind` depends on the architecture.
    let unwinding = unwinding.into_iter().map(|(unwind, refused)| with_unwinding(unwind, refused));
    let mut all: Vec<_> = unwinding.chain(all).collect();

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

pub(super) fn hidden_names() -> Findings {
    Findings { host: Host { kernel_names: KernelNames::Hidden, ..whole() }, ..findings() }
}

pub(super) fn reduced_memory() -> Findings {
    let memory = (Some(Budget::share_of(512 << 20)), Some("fewer stacks (raise the limit)".into()));
    Findings { memory: Ok(memory), ..findings() }
}

pub(super) fn refused_memory() -> Findings {
    let error = ConfigError::Value { key: "overhead.maxMemory", message: "too little (raise it)".into() };
    Findings { memory: Err(error), ..findings() }
}

pub(super) fn read_only_pins() -> Findings {
    Findings { pins: Some(Err(error(30, "failed to use `/a` (make it writable)"))), ..findings() }
}
