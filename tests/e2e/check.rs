//! `podperf check`: each line is true in each situation, and a check never disturbs a running agent.

use std::{fs, net::TcpListener, os::unix::fs::chown, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::{sys::utsname::uname, unistd::pipe};
use podperf_tests::{
    agent::{self, Agent},
    bpffs::Bpffs,
    cgroup,
    collector::Collector,
    command::{Refusal, through},
    process::refuse_call,
    suite::{Need, Test, within},
    tests,
};
use tempfile::TempDir;

use crate::{
    checked::{Output, Report, command, kubeconfig, silent_server},
    nobody::{ForNobody, NOBODY},
};

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] check_says_what_is_true_of_this_machine,
    #[beside] check_without_events_is_usable,
    #[land] #[beside] check_as_nobody_names_the_capabilities: &[SETPRIV],
    #[beside] check_with_two_capabilities_says_the_same_as_root: &[SETPRIV],
    #[beside] check_names_the_capabilities_that_names_in_profiles_take: &[SETPRIV],
    #[beside] check_in_a_container_without_capabilities_names_them: &[SETPRIV, UNSHARE],
    #[land] #[beside] check_in_a_rootless_container_names_its_user_namespace: &[UNSHARE],
    #[land] #[beside] check_without_the_kernels_types_names_them: &[UNSHARE],
    #[land] #[beside] check_without_cgroup2_names_it: &[UNSHARE],
    #[beside] check_tells_an_untested_kernel_and_tries_it: &[Need::Program("setarch")],
    #[beside] check_under_a_seccomp_profile_names_the_call,
    #[beside] check_beside_an_agent_says_so_and_leaves_it_alone,
    #[beside] check_where_another_program_listens_is_refused_as_the_agent_is,
    #[beside] check_of_a_run_directory_that_cannot_be_is_refused_as_the_agent_is,
    #[beside] check_says_what_is_left_to_the_next_agent_and_changes_nothing,
    check_of_servers_that_never_answer_is_over_in_time,
    #[beside] check_of_a_collector_sends_it_no_profile: &[Need::Program("go")],
    #[beside] check_without_credentials_is_unusable,
    #[land] #[beside] check_refuses_bad_configuration_and_arguments_as_the_agent_does,
];

const SETPRIV: Need = Need::Program("setpriv");
const UNSHARE: Need = Need::Program("unshare");
const NO_EVENTS: &str = "counters: {groups: []}\nstacks: {onCpuHertz: 0}";
const NO_PINS: &str = "restart: {pin: false}";
const DEFAULT_EVENTS: [&str; 4] = ["cycles", "instructions", "cache-references", "cache-misses"];
const DEADLINE: Duration = Duration::from_secs(20);
/// An address without a listener.
const NOWHERE: &str = "127.0.0.1:1";

/// Returns the report of a check with this configuration.
fn report(yaml: &str) -> Result<Report> {
    changed(yaml, Ok)
}

/// Returns the same report from a check that a wrapper starts.
fn report_through(wrapper: &[&str], yaml: &str) -> Result<Report> {
    changed(yaml, |command| through(wrapper, &command))
}

fn changed(yaml: &str, change: impl Fn(Command) -> Result<Command>) -> Result<Report> {
    let directory = TempDir::new()?;
    Report::of(|| change(command(directory.path(), yaml)?))
}

/// Returns a command whose configuration file holds this text and no more.
fn podperf(subcommand: &str, directory: &Path, text: &str) -> Result<Command> {
    let config = directory.join("podperf.yaml");
    fs::write(&config, text)?;
    let mut command = Command::new(agent::binary()?);
    command.arg(subcommand).arg("--config").arg(config);
    Ok(command)
}

/// Returns the report of a check in its own mount namespace, after a shell command. The agent refuses to run there,
/// with the words of this line.
fn refused_among_other_mounts(script: &str, line: &str) -> Result<Report> {
    let script = format!("{script} && exec \"$@\"");
    let wrapper = ["unshare", "--mount", "sh", "-c", &script, "sh"];
    let report = report_through(&wrapper, NO_EVENTS)?;
    let words = report.line(line)?.agents_words();
    let directory = TempDir::new()?;
    let agent = agent::command(directory.path(), NO_EVENTS)?;
    Refusal::of(&mut through(&wrapper, &agent)?)?.expect(3, &[&words])?;
    Ok(report)
}

fn has_pmu() -> bool {
    ["cpu", "cpu_core", "armv8_pmuv3_0", "armv8_pmuv3"]
        .iter()
        .any(|name| Path::new("/sys/bus/event_source/devices").join(name).exists())
}

fn check_says_what_is_true_of_this_machine() -> Result<()> {
    let report = report("")?;
    let kernel = uname()?.release().to_string_lossy().into_owned();
    report.line("kernel")?.names(&[&kernel])?;
    report.expect("btf", "btf-found", "healthy")?;
    report.expect("cgroup2", "cgroup2-found", "healthy")?.names(&[&cgroup::mount_point()?.display().to_string()])?;
    report.expect("lockdown", "lockdown-open", "healthy")?;
    report.expect("capabilities", "capabilities-held", "healthy")?;
    report.expect("bpf programs", "programs-attached", "healthy")?;
    report.expect("stacks", "stacks-taken", "healthy")?;
    let unwinding = if cfg!(target_arch = "x86_64") { "unwinding-tables" } else { "unwinding-frame-pointers" };
    report.expect("unwinding", unwinding, "healthy")?;
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")?;
    report.expect("perf_event_open", "perf-allowed", "healthy")?.names(&[paranoid.trim()])?;
    report.expect("listen", "listen-free", "healthy")?;
    report.expect("run directory", "run-directory-writable", "healthy")?;
    let events: Vec<_> = DEFAULT_EVENTS.iter().map(|event| report.line(event)).collect::<Result<_>>()?;
    if has_pmu() {
        // The number of counters that the PMU has does not matter here.
        ensure!(events[0].state != "unsupported", "a PMU without cycles: {events:?}");
    } else {
        for event in events {
            report.expect(&event.check, "event-unsupported", "unsupported")?;
        }
        report.expect_verdict("usable", &DEFAULT_EVENTS)?;
        report.expect("nmi watchdog", "watchdog-off", "healthy")?;
    }
    Ok(())
}

fn check_without_events_is_usable() -> Result<()> {
    let report = report(NO_EVENTS)?;
    report.expect_verdict("usable", &[])?;
    ensure!(report.line("cycles").is_err(), "an event that nobody wants: {report:#?}");
    // Every kernel counts this event.
    let report = self::report("counters: {groups: [[page-faults]]}")?;
    report.expect("page-faults", "event-placed", "placed")?;
    report.expect_verdict("usable", &[])
}

fn check_as_nobody_names_the_capabilities() -> Result<()> {
    const BPF: &str = "CAP_BPF (to load the BPF programs)";
    const PERFMON: &str = "CAP_PERFMON (to attach them and to open perf events)";
    let nobody = ForNobody::new()?;
    for (capabilities, missing, there) in [
        (None, &[BPF, PERFMON][..], &[][..]),
        (Some("+bpf"), &[PERFMON], &[BPF]),
        (Some("+perfmon"), &[BPF], &[PERFMON]),
    ] {
        let report = Report::of(|| nobody.command(&command(nobody.directory(), NO_EVENTS)?, capabilities))?;
        report.expect("capabilities", "capabilities-missing", "unsupported")?.names(missing)?;
        let words = report.line("capabilities")?.agents_words();
        ensure!(
            words.starts_with("missing CAP_") && words.contains("run as root") && words.contains("setcap"),
            "{words}"
        );
        ensure!(there.iter().all(|name| !words.contains(name)), "{words}");
        report.expect("bpf programs", "programs-not-tried", "unsupported")?.names(&["capabilities"])?;
        report.expect_verdict("unusable", &["capabilities", "bpf programs", "stacks"])?;
        // The agent reports the same error.
        Refusal::of(&mut nobody.agent("", capabilities)?)?.expect(3, &[&format!("error: {words}")])?;
    }
    let report = Report::of(|| nobody.command(&command(nobody.directory(), "")?, None))?;
    report.expect("perf_event_open", "perf-refused", "degraded")?.names(&["CAP_PERFMON", "perf_event_paranoid"])?;
    report.expect("cycles", "event-unsupported", "unsupported")?;
    Ok(())
}

fn check_with_two_capabilities_says_the_same_as_root() -> Result<()> {
    let nobody = ForNobody::new()?;
    // Names in stacks would need more capabilities.
    const YAML: &str = "stacks: {enabled: false}";
    // The directory is the same. Each user owns it in turn.
    let directory = nobody.directory();
    chown(directory, Some(0), None)?;
    let of_root = Report::of(|| command(directory, YAML))?;
    chown(directory, Some(NOBODY), None)?;
    let of_nobody = Report::of(|| nobody.command(&command(nobody.directory(), YAML)?, Some("+bpf,+perfmon")))?;
    ensure!(of_root == of_nobody, "root: {of_root:#?}\nnobody: {of_nobody:#?}");
    Ok(())
}

fn check_names_the_capabilities_that_names_in_profiles_take() -> Result<()> {
    let nobody = ForNobody::new()?;
    let yaml = format!(
        "counters: {{groups: []}}\nstacks: {{onCpuHertz: 0, unwind: tables}}\notlp: {{endpoint: 'http://{NOWHERE}'}}"
    );
    for (capabilities, missing, stacks, unwinding) in [
        ("+bpf,+perfmon", &["CAP_SYSLOG", "CAP_SYS_PTRACE"][..], "stacks-without-names", "unwinding-without-tables"),
        ("+bpf,+perfmon,+syslog", &["CAP_SYS_PTRACE"], "stacks-without-names", "unwinding-without-tables"),
        ("+bpf,+perfmon,+syslog,+sys_ptrace", &[], "stacks-taken", "unwinding-tables"),
    ] {
        let report = Report::of(|| nobody.command(&command(nobody.directory(), &yaml)?, Some(capabilities)))?;
        let state = if missing.is_empty() { "healthy" } else { "degraded" };
        report.expect("stacks", stacks, state)?.names(missing)?;
        let words = report.line("stacks")?.agents_words();
        ensure!(words.contains("CAP_SYSLOG") == missing.contains(&"CAP_SYSLOG"), "{capabilities}: {words}");
        // Without the files of other users' processes, there are no tables to unwind by.
        report.expect("unwinding", unwinding, state)?;
    }
    Ok(())
}

fn check_in_a_container_without_capabilities_names_them() -> Result<()> {
    let dropped = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    let container = [&["unshare", "--mount", "--pid", "--fork"][..], &dropped].concat();
    let report = report_through(&container, NO_EVENTS)?;
    report.expect("capabilities", "capabilities-missing", "unsupported")?.names(&["CAP_BPF", "CAP_PERFMON"])?;
    // Everything else is as on the host.
    report.expect_verdict("unusable", &["capabilities", "bpf programs", "stacks"])?;
    let added = ["setpriv", "--bounding-set=-all,+bpf,+perfmon", "--inh-caps=-all"];
    let container = [&["unshare", "--mount", "--pid", "--fork"][..], &added].concat();
    let report = report_through(&container, NO_EVENTS)?;
    // It counts, but waits only when they end, as the container has its own process ids.
    report.expect("bpf programs", "programs-own-processes", "degraded")?.names(&["`--pid=host`"])?;
    report.line("stacks")?.names(&["CAP_SYSLOG", "`--pid=host`"])?;
    report.expect_verdict("degraded", &["bpf programs", "stacks"])
}

fn check_in_a_rootless_container_names_its_user_namespace() -> Result<()> {
    let report = report_through(&["unshare", "--user", "--map-root-user", "--mount"], NO_EVENTS)?;
    report.expect("capabilities", "capabilities-user-namespace", "unsupported")?;
    report.expect_verdict("unusable", &["capabilities", "bpf programs", "stacks"])
}

fn check_without_the_kernels_types_names_them() -> Result<()> {
    let report = refused_among_other_mounts("mount -t tmpfs none /sys/kernel/btf", "btf")?;
    let line = report.expect("btf", "btf-missing", "unsupported")?;
    line.names(&["no BTF at `/sys/kernel/btf/vmlinux`", "CONFIG_DEBUG_INFO_BTF=y"])?;
    report.expect("bpf programs", "programs-not-tried", "unsupported")?.names(&["btf"])?;
    report.expect_verdict("unusable", &["btf", "bpf programs"])
}

fn check_without_cgroup2_names_it() -> Result<()> {
    let report = refused_among_other_mounts("umount --all --lazy --types cgroup2", "cgroup2")?;
    report.expect("cgroup2", "cgroup2-missing", "unsupported")?.names(&["no cgroup2 mount", "--cgroup-root DIR"])?;
    report.expect_verdict("unusable", &["cgroup2", "bpf programs"])?;
    let report = self::report(&format!("{NO_EVENTS}\ncgroups: {{root: /proc}}"))?;
    report.expect("cgroup2", "cgroup2-wrong", "unsupported")?.names(&["`/proc`"])
}

fn check_tells_an_untested_kernel_and_tries_it() -> Result<()> {
    let report = report_through(&["setarch", "--uname-2.6"], NO_EVENTS)?;
    report.expect("kernel", "kernel-untested", "healthy")?.names(&["2.6."])?;
    report.expect("bpf programs", "programs-attached", "healthy")?;
    Ok(())
}

fn check_under_a_seccomp_profile_names_the_call() -> Result<()> {
    let refusing = |call, yaml| {
        changed(yaml, |mut command| {
            refuse_call(&mut command, call);
            Ok(command)
        })
    };
    let events = "counters: {groups: [[page-faults]]}";
    let report = refusing(libc::SYS_perf_event_open, events)?;
    report.expect("perf_event_open", "perf-refused", "degraded")?.names(&["seccomp"])?;
    report.expect("cpu samples", "samples-refused", "degraded")?.names(&["Operation not permitted"])?;
    report.expect_verdict("degraded", &["cpu samples", "perf_event_open", "page-faults"])?;
    refusing(libc::SYS_perf_event_open, NO_EVENTS)?.expect_verdict("usable", &[])?;
    let report = refusing(libc::SYS_bpf, events)?;
    report.expect("bpf programs", "programs-forbidden", "failed")?.names(&["Operation not permitted"])?;
    report.expect_verdict("unusable", &["bpf programs"])?;
    // The exit code 1 would mean that the agent starts.
    let directory = TempDir::new()?;
    let output = Output::of(refuse_call(&mut command(directory.path(), "")?, libc::SYS_epoll_create1))?;
    ensure!(output.code == Some(2) && output.stderr.contains("failed to start the runtime"), "{output:?}");
    Ok(())
}

fn check_beside_an_agent_says_so_and_leaves_it_alone() -> Result<()> {
    let mut agent = Agent::start(NO_EVENTS)?;
    let config = agent.directory().join("podperf.yaml");
    let address = agent.address().to_string();
    let look = || {
        let report = Report::of(|| {
            let mut command = Command::new(agent::binary()?);
            command.args(["check", "--listen", &address, "--config"]).arg(&config);
            Ok(command)
        })?;
        report.expect("listen", "listen-agent", "healthy")?.names(&[&address])?;
        Ok::<_, anyhow::Error>(report)
    };
    // A check asks the agent for its state, and waits for a second.
    let mut last = None;
    let report = within(DEADLINE, "the check hears the agent", || match look() {
        Ok(report) => Ok(Some(report)),
        Err(error) => {
            last = Some(error);
            Ok(None)
        }
    });
    let report = report.with_context(|| format!("{last:?}"))?;
    report.expect_verdict("usable", &[])?;
    report.expect("run directory", "run-directory-agent", "healthy")?.names(&[&format!("pid {}", agent.pid())])?;
    agent.check()?;
    ensure!(agent.fresh_metrics()?.get("podperf_cgroup_oncpu_seconds_total", &[]).is_some(), "{}", agent.log());
    // The check creates none of the agent's files.
    let directory = TempDir::new()?;
    let run_dir = directory.path().join("run");
    let text = format!("listen: 127.0.0.1:0\nrunDir: {}", run_dir.display());
    let report = Report::of(|| podperf("check", directory.path(), &text))?;
    let line = report.expect("run directory", "run-directory-writable", "healthy")?;
    line.names(&[&run_dir.display().to_string()])?;
    ensure!(!run_dir.exists(), "the check made `{}`", run_dir.display());
    Ok(())
}

fn check_where_another_program_listens_is_refused_as_the_agent_is() -> Result<()> {
    let taken = TcpListener::bind(("127.0.0.1", 0))?;
    let address = taken.local_addr()?.to_string();
    let report = changed(NO_EVENTS, |mut command| {
        command.args(["--listen", &address]);
        Ok(command)
    })?;
    report.expect("listen", "listen-failed", "failed")?.names(&[&address])?;
    report.expect_verdict("unusable", &["listen"])
}

fn check_of_a_run_directory_that_cannot_be_is_refused_as_the_agent_is() -> Result<()> {
    let directory = TempDir::new()?;
    let file = directory.path().join("file");
    fs::write(&file, "")?;
    let run_dir = file.join("run");
    let text = format!("listen: 127.0.0.1:0\nrunDir: {}\n{NO_EVENTS}\n{NO_PINS}", run_dir.display());
    let report = Report::of(|| podperf("check", directory.path(), &text))?;
    let lock = format!("failed to open lock `{}/agent.lock`", run_dir.display());
    let line = report.expect("run directory", "run-directory-failed", "failed")?;
    line.names(&[&lock, "`runDir`"])?;
    report.expect_verdict("unusable", &["run directory"])?;
    Refusal::of(&mut podperf("agent", directory.path(), &text)?)?.expect(1, &[&lock, "`runDir`"])
}

fn check_says_what_is_left_to_the_next_agent_and_changes_nothing() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let yaml = format!("{NO_EVENTS}\n{}", bpffs.yaml());
    report(&yaml)?.expect("restart", "restart-empty", "healthy")?;
    ensure!(!bpffs.pins().exists(), "the check made `{}`", bpffs.pins().display());
    let agent = Agent::start(&yaml)?;
    report(&yaml)?.expect("restart", "restart-kept", "healthy")?;
    drop(agent);
    bpffs.make_read_only()?;
    let read_only = report(&yaml)?;
    read_only.expect("restart", "restart-failed", "degraded")?.names(&["Read-only file system"])?;
    read_only.expect_verdict("degraded", &["restart"])?;
    let elsewhere = TempDir::new()?;
    let yaml = format!("{NO_EVENTS}\nrestart: {{directory: {}/podperf}}", elsewhere.path().display());
    let report = report(&yaml)?;
    let mount = "mount -t bpf bpf /sys/fs/bpf";
    report.expect("restart", "restart-failed", "degraded")?.names(&[mount])?;
    ensure!(!elsewhere.path().join("podperf").exists(), "the check made it");
    Ok(())
}

fn check_of_servers_that_never_answer_is_over_in_time() -> Result<()> {
    let (_listener, address) = silent_server()?;
    let directory = TempDir::new()?;
    let kubeconfig = kubeconfig(directory.path(), address)?;
    // All servers are silent at the same time, and their timeouts are longer than the time of a check.
    let text = format!(
        "{NO_EVENTS}\n{NO_PINS}\nrunDir: {}\nlisten: {address}\notlp: {{endpoint: 'http://{address}', timeout: 60s}}\n{kubeconfig}",
        directory.path().display()
    );
    let report = Report::of(|| podperf("check", directory.path(), &text))?;
    report.expect("pods", "pods-refused", "degraded")?;
    report.expect("profile export", "export-failed", "degraded")?.names(&["5s"])?;
    report.expect("listen", "listen-failed", "failed")?;
    Ok(())
}

fn check_of_a_collector_sends_it_no_profile() -> Result<()> {
    let collector = Collector::start()?;
    for (endpoint, protocol) in [(collector.endpoint(), "grpc"), (collector.http_endpoint(), "http/protobuf")] {
        let otlp = format!("{{endpoint: '{endpoint}', protocol: {protocol}, metrics: {{enabled: true}}}}");
        let report = report(&format!("{NO_EVENTS}\notlp: {otlp}"))?;
        for name in ["profile export", "metrics export"] {
            report.expect(name, "export-accepted", "healthy")?.names(&[&endpoint])?;
        }
        report.expect("stacks", "stacks-taken", "healthy")?;
        report.expect_verdict("usable", &[])?;
    }
    ensure!(collector.profiles()?.is_empty(), "profiles arrived: {:?}", collector.profiles()?);
    Ok(())
}

fn check_without_credentials_is_unusable() -> Result<()> {
    let yaml = format!("{NO_EVENTS}\nidentity: kubernetes\nkubernetes: {{kubeconfig: /nonexistent}}");
    let report = report(&yaml)?;
    report.expect("pods", "pods-no-credentials", "failed")?.names(&["`/nonexistent`", "`--kubeconfig FILE`"])?;
    report.expect_verdict("unusable", &["pods"])?;
    // The agent does not start for the same reason.
    let directory = TempDir::new()?;
    let words = report.line("pods")?.agents_words();
    Refusal::of(&mut agent::command(directory.path(), &yaml)?)?.expect(2, &[&words])?;
    self::report(&format!("{NO_EVENTS}\nidentity: none"))?.expect("pods", "pods-off", "healthy")?;
    Ok(())
}

fn check_refuses_bad_configuration_and_arguments_as_the_agent_does() -> Result<()> {
    let directory = TempDir::new()?;
    for yaml in
        ["cgroups: {dept: 3}", "otlp: {endpoint: 'ftp://x:1'}", "counters: {groups: [[cycels]]}", "cgroups: {max: 1}"]
    {
        let check = Output::of(&mut command(directory.path(), yaml)?)?;
        let agent = Refusal::of(&mut agent::command(directory.path(), yaml)?)?;
        agent.expect(2, &[&check.stderr])?;
        ensure!(check.code == Some(2) && check.stdout.is_empty() && !check.stderr.is_empty(), "{check:?}");
    }
    for (arguments, says) in [
        (&["check", "--lisen", "127.0.0.1:0"][..], "--listen"),
        (&["check", "--config", "/nonexistent"], "failed to read configuration `/nonexistent`"),
    ] {
        let check = Output::of(Command::new(agent::binary()?).args(arguments))?;
        ensure!(check.code == Some(2) && check.stderr.contains(says) && check.stdout.is_empty(), "{check:?}");
    }
    // The reader of the output may close its end.
    let status = command(directory.path(), NO_EVENTS)?.stdout(pipe()?.1).status()?;
    ensure!(status.code() == Some(0), "{status}");
    Ok(())
}
