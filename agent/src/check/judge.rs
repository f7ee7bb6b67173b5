//! Makes the lines of the report from the findings: one per thing that the agent needs, the most basic first. Pure.

use aya::programs::ProgramError;
use caps::Capability;

use super::{
    Check, Report, Verdict,
    probe::{Findings, Listen, NoExport},
    text::{one_line, way_out, way_out_of},
};
use crate::{
    config::{Config, ConfigError, parts},
    events::{plan::Source, state::EventState},
    kernel::{
        LoadError, OpenCounter, SensorState,
        host::{Host, OLDEST_TESTED, Unsupported, in_initial_pid_namespace},
    },
    limits::memory::Budget,
    model::status::State,
};

/// The detail of a line, and the remedy.
type Said = (String, Option<String>);

/// Makes the report.
#[must_use]
pub fn judge(config: &Config, findings: &Findings) -> Report {
    let host = &findings.host;
    let mut checks = machine(host);
    checks.push(programs(config, findings));
    checks.push(stacks(config, host));
    checks.extend(samples(config, findings));
    checks.extend(sensors(findings));
    checks.push(perf_event_open(host, findings));
    checks.extend(findings.counters.iter().map(event));
    checks.push(nmi_watchdog(host, &findings.counters));
    checks.push(match &findings.pods {
        Ok((state, detail)) => part("pods", *state, way_out(detail)),
        Err(error) => Check::failed("pods", way_out(&error.to_string())),
    });
    let endpoint = &config.otlp.endpoint;
    checks.extend(findings.export.as_ref().map(|tried| export("profile export", "profiles", endpoint, tried)));
    checks.extend(findings.metrics_export.as_ref().map(|tried| export("metrics export", "metrics", endpoint, tried)));
    checks.push(listen(config, &findings.listen));
    checks.push(memory(&findings.memory));
    checks.push(run_directory(config, &findings.run_dir));
    checks.push(restart(config, findings));
    Report::from(checks)
}

/// Makes the line of a configured event. Its state is the event's state.
fn event(open: &OpenCounter) -> Check {
    let verdict = if open.state.is_counted() { Verdict::Usable } else { Verdict::Degraded };
    let said = match open.state {
        EventState::Placed => (open.detail.clone(), None),
        _ => way_out(&open.detail),
    };
    Check::new(&open.counter.name, open.state.name(), verdict, said)
}

/// Makes the line of a part of the agent. The agent runs without this part.
fn part(name: &str, state: State, said: Said) -> Check {
    match state {
        State::Healthy => Check::healthy(name, said.0),
        state => Check::new(name, state.name(), Verdict::Degraded, said),
    }
}

/// Makes the lines of the things without which the agent refuses to start.
fn machine(host: &Host) -> Vec<Check> {
    let (major, minor) = OLDEST_TESTED;
    let untested = if host.is_untested() { ", not tested" } else { "" };
    let cgroup_root = host.cgroup_root.as_deref().unwrap_or_else(|| "".as_ref()).display();
    let lockdown = match host.lockdown.as_deref() {
        None => "not in force, as far as can be seen from here".to_owned(),
        Some(mode) => format!("`{mode}`"),
    };
    let healthy = [
        ("kernel", format!("{}{untested}; podperf is tested on {major}.{minor} and newer", host.kernel)),
        ("btf", "the kernel describes its types".into()),
        ("cgroup2", format!("`{cgroup_root}`")),
        ("lockdown", lockdown),
        ("capabilities", "CAP_BPF and CAP_PERFMON".into()),
    ];
    let problems = host.problems();
    let line = |(name, detail): (&str, String)| {
        let problem = problems.iter().find(|problem| check_of(problem) == name);
        problem.map_or_else(
            || Check::healthy(name, detail),
            |problem| Check::unsupported(name, way_out(&problem.to_string())),
        )
    };
    healthy.into_iter().map(line).collect()
}

/// Returns the name of the line that reports a problem.
const fn check_of(problem: &Unsupported) -> &'static str {
    match problem {
        Unsupported::Features { .. } => "kernel",
        Unsupported::Btf => "btf",
        Unsupported::NoCgroup2 | Unsupported::NotCgroup2(_) => "cgroup2",
        Unsupported::Lockdown => "lockdown",
        Unsupported::UserNamespace | Unsupported::Capabilities(_) => "capabilities",
    }
}

fn programs(config: &Config, findings: &Findings) -> Check {
    const NAME: &str = "bpf programs";
    match &findings.programs {
        None => {
            let named: Vec<_> = findings.host.problems().iter().map(check_of).collect();
            let said = (format!("not tried, for want of: {}", named.join(", ")), Some("mend those first".into()));
            Check::unsupported(NAME, said)
        }
        Some(Ok(got)) => {
            let (state, detail) =
                parts::scheduling(config.testing.tracepoint, got.tracepoint, in_initial_pid_namespace());
            let way = "a kernel with BTF-typed tracepoints";
            part(NAME, state, (format!("loaded and attached: {detail}"), Some(way.into())))
        }
        Some(Err(error)) if error.downcast_ref().is_some_and(LoadError::is_unsupported) => {
            Check::unsupported(NAME, way_out(&error.to_string()))
        }
        Some(Err(error)) => Check::failed(NAME, load_error(error)),
    }
}

/// Returns the failed step and the kernel's reason. The errors between these two are the library's, and name one of
/// many maps.
fn load_error(error: &anyhow::Error) -> Said {
    let (what, way) = way_out(&error.to_string());
    let Some(cause) = error.chain().skip(1).last() else { return (what, way) };
    let refusal = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    let (cause, refusal) = match verifier_log(error) {
        // The verifier rejects a program with EACCES or EINVAL, and its log has the reason.
        Some(log) => (format!("the verifier refused it: {log}"), refusal.filter(|errno| *errno == libc::ENOMEM)),
        None => (cause.to_string(), refusal),
    };
    let way = match refusal {
        Some(libc::EPERM | libc::EACCES) => {
            "allow bpf(2): the capabilities are there, so a seccomp profile or a security module stands in the way"
        }
        Some(libc::ENOSYS) => "a kernel built with CONFIG_BPF_SYSCALL=y, or a seccomp profile that allows bpf(2)",
        Some(libc::ENOMEM) => "more memory for this container, or for the machine",
        _ => "report this as a bug, with the kernel's version",
    };
    (one_line(&format!("{what}: {cause}")), Some(way.into()))
}

/// Returns the verifier's log for a rejected program.
fn verifier_log(error: &anyhow::Error) -> Option<String> {
    let LoadError::Program { source, .. } = error.downcast_ref()? else { return None };
    let ProgramError::LoadError { verifier_log, .. } = source.as_ref() else { return None };
    Some(verifier_log.to_string()).filter(|log| !log.trim().is_empty())
}

fn stacks(config: &Config, host: &Host) -> Check {
    let (state, detail) = parts::stacks(config, host);
    let missing: Vec<_> = [Capability::CAP_SYSLOG, Capability::CAP_SYS_PTRACE]
        .into_iter()
        .filter(|capability| !host.has(*capability))
        .map(|capability| capability.to_string())
        .collect();
    part("stacks", state, (detail, Some(format!("give it {}, or do without these names", missing.join(" and ")))))
}

/// Makes the line of samples; `None` where the programs themselves did not start.
fn samples(config: &Config, findings: &Findings) -> Option<Check> {
    let Some(Ok(started)) = &findings.programs else { return None };
    let (state, detail) = parts::samples(config, &started.samples);
    let way = "allow perf_event_open(2), see the line below, or do without: `stacks.onCpuHertz: 0`";
    Some(part("cpu samples", state, (detail, Some(way.into()))))
}

/// Makes a line of each sensor that is on; none where the programs themselves did not start.
fn sensors(findings: &Findings) -> Vec<Check> {
    let Some(Ok(started)) = &findings.programs else { return Vec::new() };
    let check = |of: &SensorState| {
        let (detail, way) = way_out(&of.detail);
        let way = way.or_else(|| Some(format!("or do without: `sensors.{}.enabled: false`", of.sensor.names.sensor)));
        part(of.sensor.names.sensor, of.state, (one_line(&detail), way))
    };
    started.sensors.iter().map(check).collect()
}

fn perf_event_open(host: &Host, findings: &Findings) -> Check {
    const NAME: &str = "perf_event_open";
    let paranoid = host.perf_event_paranoid.map_or_else(|| "not known".into(), |level| level.to_string());
    match &findings.perf_event_open {
        Ok(()) if host.has(Capability::CAP_PERFMON) => {
            let detail = format!("allowed; kernel.perf_event_paranoid, {paranoid}, does not matter with CAP_PERFMON");
            Check::healthy(NAME, detail)
        }
        Ok(()) => Check::healthy(NAME, format!("allowed; kernel.perf_event_paranoid is {paranoid}")),
        Err(_) if findings.counters.is_empty() => Check::healthy(NAME, "refused, but no events are configured"),
        Err(reason) => Check::degraded(NAME, way_out(reason)),
    }
}

/// Makes the line of the NMI watchdog. It holds a counter of each CPU, which matters only if events need that counter.
fn nmi_watchdog(host: &Host, counters: &[OpenCounter]) -> Check {
    const NAME: &str = "nmi watchdog";
    let Some(pmu) = host.cpu_pmu.as_deref().filter(|_| host.nmi_watchdog) else {
        let detail = if host.nmi_watchdog { "on, but the CPUs have no counter that it could hold" } else { "off" };
        return Check::healthy(NAME, detail);
    };
    let is_hardware = |open: &&OpenCounter| matches!(&open.counter.source, Source::Attr(attr) if !attr.is_software());
    let left_out = counters.iter().filter(is_hardware).any(|open| event(open).verdict != Verdict::Usable);
    if left_out {
        let said = (
            format!("on: it may hold a counter of each CPU (PMU `{pmu}`), and not all events could be placed"),
            Some("`sysctl kernel.nmi_watchdog=0`, and in /etc/sysctl.d for good".into()),
        );
        return Check::degraded(NAME, said);
    }
    Check::healthy(NAME, format!("on: it may hold a counter of each CPU (PMU `{pmu}`), and the events fit beside it"))
}

fn export(name: &str, what: &str, endpoint: &str, tried: &Result<(), NoExport>) -> Check {
    match tried {
        Ok(()) => Check::healthy(name, format!("{endpoint} takes {what}")),
        Err(NoExport::Receiver(error)) => {
            let (what, fix) = way_out(&format!("{endpoint}: {error}"));
            Check::degraded(name, (what, fix.or_else(|| Some(receiver_way_out(error).into()))))
        }
        Err(NoExport::Configuration(error)) => Check::failed(name, way_out(error)),
    }
}

/// Returns the remedy that fits the error text of the receiver, of gRPC or of the system.
fn receiver_way_out(error: &str) -> &'static str {
    let lower = error.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if has(&["unimplemented", "unknown service"]) {
        "switch the signal on in the receiver: it takes OTLP, but not this"
    } else if has(&["unauthenticated", "permissiondenied"]) {
        "set `otlp.headers` to what the receiver asks for"
    } else if has(&["certificate", "tls", "unknownissuer"]) {
        "set `otlp.tls.caFile` to the authority that signed the receiver's certificate"
    } else if has(&["dns", "lookup", "name or service", "name resolution"]) {
        "check the name in `otlp.endpoint`; with `hostNetwork`, `dnsPolicy` must be `ClusterFirstWithHostNet`"
    } else {
        "start an OTLP receiver there, or set `otlp.endpoint` and `otlp.protocol` to where one is"
    }
}

fn listen(config: &Config, listen: &anyhow::Result<Listen>) -> Check {
    const NAME: &str = "listen";
    let address = config.listen;
    match listen {
        Ok(Listen::Free) => Check::healthy(NAME, format!("{address} is free")),
        Ok(Listen::Podperf(agent)) => Check::healthy(NAME, format!("at {address} an agent answers: {agent}")),
        Err(error) => Check::failed(NAME, way_out_of(error)),
    }
}

fn memory(found: &Result<(Option<Budget>, Option<String>), ConfigError>) -> Check {
    const NAME: &str = "memory";
    match found {
        Ok((None, _)) => {
            Check::healthy(NAME, "without a budget: `overhead.maxMemory` is 0, or the container has no limit")
        }
        Ok((Some(budget), None)) => Check::healthy(NAME, format!("the maps fit into {budget}")),
        Ok((Some(_), Some(reduced))) => Check::degraded(NAME, way_out(reduced)),
        Err(error) => Check::failed(NAME, way_out(&error.to_string())),
    }
}

fn run_directory(config: &Config, run_dir: &anyhow::Result<Option<u32>>) -> Check {
    const NAME: &str = "run directory";
    let path = config.run_dir.display();
    match run_dir {
        Ok(None) => Check::healthy(NAME, format!("`{path}` can be written")),
        Ok(Some(pid)) => Check::healthy(NAME, format!("`{path}` is that of the agent with pid {pid}")),
        Err(error) => Check::failed(NAME, way_out_of(error)),
    }
}

/// Makes the line of the pins that the next agent takes over.
fn restart(config: &Config, findings: &Findings) -> Check {
    const NAME: &str = "restart";
    let path = config.restart.directory.display();
    match &findings.pins {
        None => Check::healthy(NAME, "counts end with the agent: `restart.pin` is false"),
        Some(Ok(0)) => {
            Check::healthy(NAME, format!("counts stay when the agent ends, in `{path}`, where none are yet"))
        }
        Some(Ok(_)) => Check::healthy(NAME, format!("counts stay when the agent ends, in `{path}`, where some are")),
        Some(Err(error)) => {
            let (what, fix) = way_out_of(error);
            Check::degraded(NAME, (format!("counts end with the agent: {what}"), fix))
        }
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
