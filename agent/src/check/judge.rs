//! Makes the lines of the report from the findings: one per thing that the agent needs, the most basic first. Pure.

use aya::programs::ProgramError;
use caps::Capability;

use super::{
    Check, Code, Remedy, Report, Verdict,
    probe::{Findings, Listen, NoExport, Pods},
    report::Finding,
    text::{one_line, way_out, way_out_of},
};
use crate::{
    config::{Config, ConfigError, Counters, Unwinding, parts, states},
    events::{plan::Source, state::EventState},
    kernel::{
        LoadError, OpenCounter, SensorState,
        host::{Host, OLDEST_TESTED, Unsupported},
    },
    limits::memory::{Budget, WITHOUT_BUDGET},
    model::status::State,
    pods::{SourceError, Trial},
};

/// The name of the line of the programs.
const PROGRAMS: &str = "bpf programs";

/// Makes the report.
#[must_use]
pub fn judge(config: &Config, findings: &Findings) -> Report {
    let host = &findings.host;
    let mut checks = machine(host);
    checks.push(programs(config, findings));
    checks.extend(host.scheduler.as_deref().map(bpf_scheduler));
    checks.push(stacks(config, host));
    checks.extend(unwinding(config, findings));
    checks.extend(samples(config, findings));
    checks.extend(isolated_cpus(config, host));
    checks.extend(sensors(findings));
    checks.push(perf_event_open(host, findings));
    // Nobody asked for the events of the default by name: they are counted where the machine has them.
    let are_asked_for = config.counters != Counters::default();
    checks.extend(findings.counters.iter().map(|open| event(open, are_asked_for)));
    checks.push(nmi_watchdog(host, &findings.counters));
    checks.push(pods(&findings.pods));
    let endpoint = &config.otlp.endpoint;
    checks.extend(findings.export.as_ref().map(|tried| export("profile export", "profiles", endpoint, tried)));
    checks.extend(findings.metrics_export.as_ref().map(|tried| export("metrics export", "metrics", endpoint, tried)));
    checks.push(listen(config, &findings.listen));
    checks.push(memory(&findings.memory));
    checks.push(run_directory(config, &findings.run_dir));
    checks.push(restart(config, findings));
    Report::from(checks)
}

/// Makes the line of an event. Its state is the event's state.
fn event(open: &OpenCounter, is_asked_for: bool) -> Check {
    let may_be_missing = open.state == EventState::Unsupported && !is_asked_for;
    let verdict = if open.state.is_counted() || may_be_missing { Verdict::Usable } else { Verdict::Degraded };
    let finding = match open.state {
        EventState::Placed => (open.detail.clone(), None),
        _ => way_out(&open.detail),
    };
    let id = match open.state {
        EventState::Placed => Code::EventPlaced,
        EventState::Shared => Code::EventShared,
        EventState::Yielded => Code::EventYielded,
        EventState::Unsupported => Code::EventUnsupported,
        EventState::Implausible => Code::EventImplausible,
    };
    Check::new(id, &open.counter.name, open.state.name(), verdict, finding)
}

/// Makes the line of a part of the agent. The agent runs without this part.
fn part(id: Code, name: &str, state: State, finding: Finding) -> Check {
    match state {
        State::Healthy => Check::healthy(id, name, finding.0),
        state => Check::new(id, name, state.name(), Verdict::Degraded, finding),
    }
}

fn pods(found: &Result<Pods, SourceError>) -> Check {
    const NAME: &str = "pods";
    match found {
        Ok(Pods::Off(reason)) => Check::healthy(Code::PodsOff, NAME, *reason),
        Ok(Pods::Tried(Trial { state, detail, connected })) => {
            let id = match state {
                State::Healthy => Code::PodsKnown,
                _ if *connected => Code::PodsNone,
                _ => Code::PodsRefused,
            };
            part(id, NAME, *state, way_out(detail))
        }
        Err(error) => Check::failed(Code::PodsNoCredentials, NAME, way_out(&error.to_string())),
    }
}

/// Makes the lines of the things without which the agent refuses to start.
fn machine(host: &Host) -> Vec<Check> {
    let (major, minor) = OLDEST_TESTED;
    let untested = if host.is_untested() { ", not tested" } else { "" };
    let (tree, cgroup2) = states::cgroup2(host);
    let of_tree = if tree == State::Healthy { Code::Cgroup2Found } else { Code::Cgroup2Part };
    let lockdown = match host.lockdown.as_deref() {
        None => "not in force, as far as can be seen from here".to_owned(),
        Some(mode) => format!("`{mode}`"),
    };
    let kernel = if host.is_untested() { Code::KernelUntested } else { Code::KernelTested };
    let release = format!("{}{untested}; podperf is tested on {major}.{minor} and newer", host.kernel);
    let without_problems = [
        (kernel, "kernel", State::Healthy, release),
        (Code::BtfFound, "btf", State::Healthy, "the kernel describes its types".into()),
        (of_tree, "cgroup2", tree, cgroup2),
        (Code::LockdownOpen, "lockdown", State::Healthy, lockdown),
        (Code::CapabilitiesHeld, "capabilities", State::Healthy, "CAP_BPF and CAP_PERFMON".into()),
    ];
    let problems = host.problems();
    let line = |(id, name, state, detail): (Code, &str, State, String)| {
        let problem = problems.iter().find(|problem| check_of(problem).1 == name);
        problem.map_or_else(
            || part(id, name, state, way_out(&detail)),
            |problem| Check::unsupported(check_of(problem).0, name, way_out(&problem.to_string())),
        )
    };
    without_problems.into_iter().map(line).collect()
}

/// Returns the code of a problem, and the name of the line that reports it.
const fn check_of(problem: &Unsupported) -> (Code, &'static str) {
    match problem {
        Unsupported::Features { .. } => (Code::ProgramsFeatures, PROGRAMS),
        Unsupported::Btf => (Code::BtfMissing, "btf"),
        Unsupported::NoCgroup2 => (Code::Cgroup2Missing, "cgroup2"),
        Unsupported::HiddenCgroup2(_) => (Code::Cgroup2Hidden, "cgroup2"),
        Unsupported::NotCgroup2(_) => (Code::Cgroup2Wrong, "cgroup2"),
        Unsupported::Lockdown => (Code::LockdownConfidentiality, "lockdown"),
        Unsupported::UserNamespace => (Code::CapabilitiesUserNamespace, "capabilities"),
        Unsupported::Capabilities(_) => (Code::CapabilitiesMissing, "capabilities"),
    }
}

fn programs(config: &Config, findings: &Findings) -> Check {
    const NAME: &str = PROGRAMS;
    match &findings.programs {
        None => {
            let problems = findings.host.problems();
            let named: Vec<_> = problems.iter().map(|problem| check_of(problem).1).collect();
            let detail = format!("not tried, missing: {}", named.join(", "));
            Check::unsupported(Code::ProgramsNotTried, NAME, (detail, Some(Remedy::FixFirst)))
        }
        Some(Ok(got)) => {
            let (state, detail) = states::scheduling(config.testing.tracepoint, got.tracepoint, got.sees_all_tasks);
            let id = match state {
                State::Healthy => Code::ProgramsAttached,
                _ if got.sees_all_tasks => Code::ProgramsRawTracepoint,
                _ => Code::ProgramsOwnProcesses,
            };
            let (detail, way) = way_out(&detail);
            let way = way.unwrap_or(Remedy::BtfTracepoints);
            part(id, NAME, state, (format!("loaded and attached: {detail}"), Some(way)))
        }
        Some(Err(error)) => match error.downcast_ref() {
            Some(LoadError::Lockdown { .. }) => {
                Check::unsupported(Code::ProgramsLockdown, NAME, way_out(&error.to_string()))
            }
            Some(LoadError::Features(_)) => {
                Check::unsupported(Code::ProgramsFeatures, NAME, way_out(&error.to_string()))
            }
            _ => {
                let (id, finding) = load_error(error);
                Check::failed(id, NAME, finding)
            }
        },
    }
}

/// Returns the failed step and the kernel's reason. The errors between these two are the library's, and name one of
/// many maps.
fn load_error(error: &anyhow::Error) -> (Code, Finding) {
    let (what, way) = way_out(&error.to_string());
    let Some(cause) = error.chain().skip(1).last() else { return (Code::ProgramsFailed, (what, way)) };
    let refusal = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    let (detail, code, remedy) = match (verifier_log(error), refusal) {
        // The verifier rejects a program with EACCES or EINVAL, and its log has the reason.
        (Some(log), Some(libc::ENOMEM)) => (rejection(&log), Code::ProgramsNoMemory, Remedy::MoreMemory),
        (Some(log), _) => (rejection(&log), Code::ProgramsRejected, Remedy::ReportBug),
        (None, Some(libc::EPERM | libc::EACCES)) => (cause.to_string(), Code::ProgramsForbidden, Remedy::AllowBpf),
        (None, Some(libc::ENOSYS)) => (cause.to_string(), Code::ProgramsNoBpf, Remedy::BuildBpf),
        (None, Some(libc::ENOMEM)) => (cause.to_string(), Code::ProgramsNoMemory, Remedy::MoreMemory),
        (None, _) => (cause.to_string(), Code::ProgramsFailed, Remedy::ReportBug),
    };
    (code, (one_line(&format!("{what}: {detail}")), Some(remedy)))
}

fn rejection(log: &str) -> String {
    format!("the verifier refused it: {log}")
}

/// Returns the verifier's log for a rejected program.
fn verifier_log(error: &anyhow::Error) -> Option<String> {
    let LoadError::Program { source, .. } = error.downcast_ref()? else { return None };
    let ProgramError::LoadError { verifier_log, .. } = source.as_ref() else { return None };
    Some(verifier_log.to_string()).filter(|log| !log.trim().is_empty())
}

/// Makes the line of a BPF scheduler.
fn bpf_scheduler(name: &str) -> Check {
    let (state, detail) = states::bpf_scheduler(name);
    part(Code::SchedulerBpf, "scheduler", state, (detail, None))
}

fn stacks(config: &Config, host: &Host) -> Check {
    let (state, detail) = states::stacks(config, host);
    let missing: Vec<_> = host.without_names(parts::mode(config)).into_iter().map(|(_, need)| need).collect();
    let id = match parts::wants_profiles(config) {
        false => Code::StacksOff,
        true if missing.is_empty() => Code::StacksTaken,
        true => Code::StacksWithoutNames,
    };
    part(id, "stacks", state, (detail, Some(Remedy::ProvideNames(missing))))
}

/// Makes the line of the way to find user stacks; `None` where none are taken, or the programs did not start.
fn unwinding(config: &Config, findings: &Findings) -> Option<Check> {
    let Some(Ok(started)) = &findings.programs else { return None };
    let (host, refused) = (&findings.host, started.copies_refused.as_deref());
    let (mut state, mut detail) = states::unwinding(config, host, refused)?;
    let reduced = findings.memory.as_ref().ok().and_then(|(_, reduced)| reduced.as_deref());
    let has_room = !reduced.is_some_and(|reduced| reduced.starts_with(parts::NO_ROOM_FOR_TABLES));
    if !has_room {
        (state, detail) = states::unwinding_without_room();
    }
    let id = match config.stacks.unwind {
        Unwinding::None => return None,
        Unwinding::FramePointers => Code::UnwindingFramePointers,
        Unwinding::Tables if parts::copies_stacks(config, host) && refused.is_none() && has_room => {
            Code::UnwindingTables
        }
        Unwinding::Tables => Code::UnwindingWithoutTables,
    };
    // A line without a remedy keeps what its detail needs.
    let finding = if state == State::Healthy { (detail, None) } else { way_out(&detail) };
    Some(part(id, "unwinding", state, finding))
}

/// Makes the line of samples; `None` where the programs themselves did not start.
fn samples(config: &Config, findings: &Findings) -> Option<Check> {
    let Some(Ok(started)) = &findings.programs else { return None };
    let (state, detail) = states::samples(config, &findings.host, &started.samples);
    let id = match started.samples {
        Ok(Some(_)) => Code::SamplesTaken,
        Ok(None) => Code::SamplesOff,
        Err(_) => Code::SamplesRefused,
    };
    Some(part(id, "cpu samples", state, (detail, Some(Remedy::AllowSamples))))
}

/// Makes the line of isolated CPUs; `None` on a machine without any.
fn isolated_cpus(config: &Config, host: &Host) -> Option<Check> {
    let (state, detail) = states::isolated_cpus(config, host)?;
    let id = match config.overhead.interrupt_isolated_cpus {
        false => Code::IsolatedCpusLeftAlone,
        true => Code::IsolatedCpusInterrupted,
    };
    Some(part(id, "isolated cpus", state, (detail, None)))
}

/// Makes a line of each sensor that is on; none where the programs themselves did not start.
fn sensors(findings: &Findings) -> Vec<Check> {
    let Some(Ok(started)) = &findings.programs else { return Vec::new() };
    let check = |of: &SensorState| {
        let name = of.sensor.names.sensor;
        let (detail, way) = way_out(&of.detail);
        let way = way.unwrap_or(Remedy::TurnSensorOff(name));
        let id = match of.state {
            State::Healthy => Code::SensorCounts,
            State::Unsupported => Code::SensorUnsupported,
            State::Degraded | State::Failed => Code::SensorRefused,
        };
        part(id, name, of.state, (one_line(&detail), Some(way)))
    };
    started.sensors.iter().map(check).collect()
}

fn perf_event_open(host: &Host, findings: &Findings) -> Check {
    const NAME: &str = "perf_event_open";
    let paranoid = host.perf_event_paranoid.map_or_else(|| "not known".into(), |level| level.to_string());
    match &findings.perf_event_open {
        Ok(()) if host.has(Capability::CAP_PERFMON) => {
            let detail = format!("allowed; kernel.perf_event_paranoid, {paranoid}, does not matter with CAP_PERFMON");
            Check::healthy(Code::PerfAllowed, NAME, detail)
        }
        Ok(()) => Check::healthy(Code::PerfAllowed, NAME, format!("allowed; kernel.perf_event_paranoid is {paranoid}")),
        Err(_) if findings.counters.is_empty() => {
            Check::healthy(Code::PerfNotNeeded, NAME, "refused, but no events are configured")
        }
        Err(reason) => Check::degraded(Code::PerfRefused, NAME, way_out(reason)),
    }
}

/// Makes the line of the NMI watchdog. It holds a counter of each CPU, which matters only if events need that counter.
fn nmi_watchdog(host: &Host, counters: &[OpenCounter]) -> Check {
    const NAME: &str = "nmi watchdog";
    let Some(pmu) = host.cpu_pmu.as_deref().filter(|_| host.nmi_watchdog) else {
        let detail = if host.nmi_watchdog { "on, but the CPUs have no counter that it could hold" } else { "off" };
        return Check::healthy(Code::WatchdogOff, NAME, detail);
    };
    let is_hardware = |open: &&OpenCounter| matches!(&open.counter.source, Source::Attr(attr) if !attr.is_software());
    let left_out = counters.iter().filter(is_hardware).any(|open| !open.state.is_counted());
    if left_out {
        let detail = format!("on: it may hold a counter of each CPU (PMU `{pmu}`), and not all events could be placed");
        return Check::degraded(Code::WatchdogInTheWay, NAME, (detail, Some(Remedy::TurnWatchdogOff)));
    }
    let detail = format!("on: it may hold a counter of each CPU (PMU `{pmu}`), and the events fit beside it");
    Check::healthy(Code::WatchdogFits, NAME, detail)
}

fn export(name: &str, what: &str, endpoint: &str, tried: &Result<(), NoExport>) -> Check {
    match tried {
        Ok(()) => Check::healthy(Code::ExportAccepted, name, format!("{endpoint} takes {what}")),
        Err(NoExport::Receiver(error)) => {
            let (what, way) = way_out(error);
            let (id, remedy) = receiver(&what);
            Check::degraded(id, name, (format!("{endpoint}: {what}"), Some(way.unwrap_or(remedy))))
        }
        Err(NoExport::Configuration(error)) => Check::failed(Code::ExportBadConfiguration, name, way_out(error)),
    }
}

/// Returns the code and the remedy for an error of the receiver, of gRPC, of TLS or of the system. `error` has no remedy.
fn receiver(error: &str) -> (Code, Remedy) {
    let lower = error.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if has(&["unimplemented", "unknown service"]) {
        (Code::ExportSignalOff, Remedy::SwitchSignalOn)
    } else if has(&["unauthenticated", "permissiondenied", "http 401", "http 403", "certificaterequired"]) {
        (Code::ExportUnauthenticated, Remedy::SetHeaders)
    } else if has(&["invalid peer certificate"]) {
        (Code::ExportUntrusted, Remedy::TrustAuthority)
    } else if has(&["dns", "lookup", "name or service", "name resolution"]) && !has(&["through proxy"]) {
        (Code::ExportUnknownHost, Remedy::CheckName)
    } else {
        (Code::ExportFailed, Remedy::StartReceiver)
    }
}

fn listen(config: &Config, listen: &anyhow::Result<Listen>) -> Check {
    const NAME: &str = "listen";
    let address = config.listen;
    match listen {
        Ok(Listen::Free) => Check::healthy(Code::ListenFree, NAME, format!("{address} is free")),
        Ok(Listen::Podperf(agent)) => {
            Check::healthy(Code::ListenAgent, NAME, format!("at {address} an agent answers: {agent}"))
        }
        Err(error) => Check::failed(Code::ListenFailed, NAME, way_out_of(error)),
    }
}

fn memory(found: &Result<(Option<Budget>, Option<String>), ConfigError>) -> Check {
    const NAME: &str = "memory";
    match found {
        Ok((None, _)) => Check::healthy(Code::MemoryNoBudget, NAME, WITHOUT_BUDGET),
        Ok((Some(budget), None)) => Check::healthy(Code::MemoryFits, NAME, format!("the maps fit into {budget}")),
        Ok((Some(_), Some(reduced))) => Check::degraded(Code::MemoryReduced, NAME, way_out(reduced)),
        Err(error) => Check::failed(Code::MemoryTooSmall, NAME, way_out(&error.to_string())),
    }
}

fn run_directory(config: &Config, run_dir: &anyhow::Result<Option<u32>>) -> Check {
    const NAME: &str = "run directory";
    let path = config.run_dir.display();
    match run_dir {
        Ok(None) => Check::healthy(Code::RunDirectoryWritable, NAME, format!("`{path}` can be written")),
        Ok(Some(pid)) => {
            Check::healthy(Code::RunDirectoryAgent, NAME, format!("`{path}` is that of the agent with pid {pid}"))
        }
        Err(error) => Check::failed(Code::RunDirectoryFailed, NAME, way_out_of(error)),
    }
}

/// Makes the line of the pins that the next agent takes over.
fn restart(config: &Config, findings: &Findings) -> Check {
    const NAME: &str = "restart";
    let path = config.restart.directory.display();
    let kept =
        |id, some| Check::healthy(id, NAME, format!("counts stay when the agent ends, in `{path}`, where {some}"));
    match &findings.pins {
        None => Check::healthy(Code::RestartOff, NAME, "counts end with the agent: `restart.pin` is false"),
        Some(Ok(0)) => kept(Code::RestartEmpty, "none are yet"),
        Some(Ok(_)) => kept(Code::RestartKept, "some are"),
        Some(Err(error)) => {
            let (what, fix) = way_out_of(error);
            Check::degraded(Code::RestartFailed, NAME, (format!("counts end with the agent: {what}"), fix))
        }
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
