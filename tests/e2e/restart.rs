//! The checkpoint and pinned programs of an agent from the user's view: permissions, removal, and logs without them.

use std::{
    collections::BTreeSet,
    fs::{self, File, Permissions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf::{
    attribution::Row,
    checkpoint::format::{decode, encode},
    model::{facts::Fact, wait::WaitState},
};
use podperf_tests::{
    agent::{self, Agent, Metrics, NO_STACKS},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    collector::Collector,
    command::{Refusal, load_command},
    prometheus::Prometheus,
    running::{Load, OFFCPU},
    suite::{Need, Test, within},
    tests,
};
use tempfile::TempDir;

use crate::{
    lifecycle::{is_loaded, programs_of},
    profiles::{DEADLINE, GO},
    scrape::{OPEN_METRICS, PROTOBUF},
};

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] #[exact] unpin_leaves_nothing_and_says_what_there_was: &[Need::Program("bpftool")],
    #[land] #[beside] #[exact] a_second_agent_is_refused_and_the_firsts_pins_are_untouched,
    #[land] #[beside] #[exact] another_user_can_neither_take_the_lock_nor_read_what_is_kept: &[Need::Program("setpriv"), Need::Program("flock")],
    #[land] #[beside] #[exact] a_strangers_lock_on_the_pins_stops_no_agent,
    #[land] #[beside] another_users_directory_is_not_used_for_pins,
    #[land] #[beside] without_a_bpffs_the_agent_says_what_is_lost,
    #[exact] the_next_agent_takes_the_stacks_that_one_gave_up,
    #[beside] a_total_grows_beyond_64_bits_over_a_restart_in_every_format: &[GO],
    #[exact] prometheus_sees_no_reset_over_kills: &[Need::Program("prometheus")],
    #[exact] prometheus_sees_no_reset_over_upgrades_to_another_layout: &[Need::Program("prometheus")] => prometheus_sees_no_reset_over_upgrades,
];

/// 2^64 nanoseconds, in seconds.
const FULL: f64 = 18_446_744_073.709_55;
const END_DEADLINE: Duration = Duration::from_secs(10);
const KILLS: usize = 5;
/// The time limit for the agent to give up a feature. It measures its cost over five seconds at least.
const GIVEN_UP: Duration = Duration::from_secs(120);

fn without_stacks(bpffs: &Bpffs) -> String {
    format!("{}\n{NO_STACKS}", bpffs.yaml())
}

fn unpin(directory: &TempDir, yaml: &str) -> Result<String> {
    // The other agent reads the same file.
    agent::command(directory.path(), yaml)?;
    let config = directory.path().join("podperf.yaml");
    let output = Command::new(agent::binary()?).args(["unpin", "--config"]).arg(config).output()?;
    ensure!(output.status.code() == Some(0), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn unpin_leaves_nothing_and_says_what_there_was() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let mut agent = Agent::start(&bpffs.yaml())?;
    agent.metrics().context("what is kept is written with a reading")?;
    // The former name of `podperf unpin`.
    let refused = Refusal::of(agent::command(agent.directory(), &bpffs.yaml())?.arg("--unpin"))?;
    refused.expect(1, &["another podperf agent is running", "stop it first"])?;
    let programs = programs_of(agent.pid())?;
    agent.signal(Signal::SIGTERM)?;
    agent.wait(END_DEADLINE)?;
    ensure!(programs.len() > 5 && programs.iter().all(|id| is_loaded(id)), "they did not stay: {}", agent.log());

    let directory = TempDir::new()?;
    fs::copy(agent.directory().join("kept.state"), directory.path().join("kept.state"))?;
    let said = unpin(&directory, &bpffs.yaml())?;
    ensure!(said.contains("removed the pins `") && said.contains("kept.state`"), "{said}");
    ensure!(!bpffs.pins().exists() && !directory.path().join("kept.state").exists());
    within(END_DEADLINE, "its programs are gone", || Ok((!programs.iter().any(|id| is_loaded(id))).then_some(())))?;
    let said = unpin(&directory, &bpffs.yaml())?;
    ensure!(said.contains("nothing was pinned"), "{said}");
    Ok(())
}

fn a_second_agent_is_refused_and_the_firsts_pins_are_untouched() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let agent = Agent::start(&without_stacks(&bpffs))?;
    let pins = || -> Result<Vec<String>> {
        let output = Command::new("find").arg(bpffs.pins()).arg("-printf").arg("%p %i\n").output()?;
        let mut pins: Vec<_> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
        pins.sort_unstable();
        Ok(pins)
    };
    let before = pins()?;
    ensure!(before.iter().any(|pin| pin.contains("links/sched_switch")), "{before:?}");
    // The second agent has the same lock in the first case, and its own lock in the second case.
    let second = Refusal::of(&mut agent::command(agent.directory(), &without_stacks(&bpffs))?)?;
    second.expect(1, &["another podperf agent is running"])?;
    let elsewhere = TempDir::new()?;
    let third = Refusal::of(&mut agent::command(elsewhere.path(), &without_stacks(&bpffs))?)?;
    third.expect(1, &["another podperf agent has its pins in", "restart.directory"])?;
    ensure!(pins()? == before, "{:?}", pins()?);
    ensure!(agent.metrics()?.get("podperf_starts_total", &[("how", "first")]) == Some(1.0));
    Ok(())
}

/// Three seconds of waiting are missing to 2^64 nanoseconds when the next agent begins.
fn a_total_grows_beyond_64_bits_over_a_restart_in_every_format() -> Result<()> {
    let (bpffs, collector) = (Bpffs::mount()?, Collector::start()?);
    let push = format!("otlp: {{endpoint: '{}', metrics: {{enabled: true, interval: 1s}}}}", collector.endpoint());
    let yaml = format!("{}{push}\n", without_stacks(&bpffs));
    let mut agent = Agent::start(&yaml)?;
    let cgroup = TestCgroup::new("full")?;
    let _load = Load::start(&format!("sleepers --waits 1000000 --millis 5 --cgroup {}", cgroup.path().display()))?;
    let labels = [("cgroup", cgroup.kernel_path()), ("state", "interruptible")];
    within(DEADLINE, "the load waits", || Ok(agent.fresh_metrics()?.get(OFFCPU, &labels).filter(|it| *it > 0.5)))?;
    agent.kill()?;

    let file = agent.directory().join("kept.state");
    let mut state = decode(&fs::read(&file)?)?;
    let name = Fact::off_cpu(WaitState::Interruptible).saved_as();
    let place = state.labels.iter().position(|label| *label == name).with_context(|| format!("no label `{name}`"))?;
    let row = Row::Cgroup(cgroup.kernel_path().into());
    let account = state.ledger.accounts.iter_mut().find(|account| account.row == row).context("no account")?;
    *account.usage.get_mut(place).context("no number of waits")? = (1_u128 << 64) - 3_000_000_000;
    fs::write(&file, encode(&state)?)?;
    agent.begin_again(&agent::binary()?, &yaml)?;
    agent.wait_until_ready()?;

    let is_beyond = |seconds: &f64| (FULL + 1.0..FULL + 3600.0).contains(seconds);
    let scrape = |accept: &str| -> Result<Vec<u8>> { Ok(agent.get("/metrics", &[("Accept", accept)])?.2) };
    for accept in ["text/plain", OPEN_METRICS] {
        within(DEADLINE, accept, || {
            let metrics = Metrics::parse(&String::from_utf8(scrape(accept)?)?);
            Ok(metrics.get(OFFCPU, &labels).filter(is_beyond))
        })?;
    }
    // No other row has so large a value.
    let is_double = |bytes: &[u8]| bytes.try_into().is_ok_and(|bytes: [u8; 8]| is_beyond(&f64::from_le_bytes(bytes)));
    ensure!(scrape(PROTOBUF)?.windows(8).any(is_double), "protobuf has no value beyond {FULL} s");
    let series = format!("podperf.cgroup.path={} podperf.offcpu.state=interruptible", cgroup.kernel_path());
    within(DEADLINE, "it is pushed", || {
        Ok(collector.metric("podperf.cgroup.offcpu.time")?.get(&series).copied().filter(is_beyond))
    })?;
    Ok(())
}

fn another_user_can_neither_take_the_lock_nor_read_what_is_kept() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let mut agent = Agent::start(&without_stacks(&bpffs))?;
    agent.metrics().context("what is kept is written with a reading")?;
    let path = |name: &str| agent.directory().join(name).display().to_string();
    let (lock, kept, readable) = (path("agent.lock"), path("kept.state"), path("podperf.yaml"));
    // A directory with other files keeps its mode, so the agent must restrict its own files.
    fs::set_permissions(agent.directory(), Permissions::from_mode(0o755))?;
    let nobody = |command: &[&str]| -> Result<(bool, String)> {
        let as_nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"];
        let output = Command::new("setpriv").args(as_nobody).args(command).output()?;
        Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let try_all = || -> Result<()> {
        ensure!(nobody(&["cat", &readable])?.0, "it cannot even see the directory");
        for command in [&["cat", &lock][..], &["cat", &kept], &["flock", "--nonblock", &lock, "true"]] {
            let (done, says) = nobody(command)?;
            ensure!(!done && says.contains("Permission denied"), "{command:?} as another user: {says:?}");
        }
        Ok(())
    };
    try_all()?;
    // An older version may leave its files readable. The agent restricts them at its start, and when it writes.
    for file in [&lock, &kept] {
        fs::set_permissions(file, Permissions::from_mode(0o644))?;
    }
    agent.signal(Signal::SIGTERM)?;
    agent.wait(END_DEADLINE)?;
    agent.restart(Signal::SIGTERM, &without_stacks(&bpffs))?;
    ensure!(fs::metadata(&lock)?.mode() & 0o777 == 0o600, "the lock is still open");
    agent.metrics()?;
    try_all()
}

/// Root in a container with a read-only bpffs may take `flock` on any directory there.
fn a_strangers_lock_on_the_pins_stops_no_agent() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let mut agent = Agent::start(&without_stacks(&bpffs))?;
    agent.metrics()?;
    let mode = || -> Result<u32> { Ok(fs::metadata(bpffs.pins())?.mode() & 0o7777) };
    ensure!(mode()? == 0o700, "the directory is open to others: {:o}", mode()?);
    agent.kill()?;
    let stranger = File::open(bpffs.pins())?;
    stranger.lock()?;
    // As an older version has left it.
    fs::set_permissions(bpffs.pins(), Permissions::from_mode(0o755))?;
    agent.begin_again(&agent::binary()?, &without_stacks(&bpffs))?;
    agent.wait_until_ready()?;
    ensure!(agent.log().contains("a process that is no agent has locked the directory"), "{}", agent.log());
    ensure!(mode()? == 0o700, "the directory is open to others: {:o}", mode()?);
    ensure!(agent.metrics()?.get("podperf_starts_total", &[("how", "adopted")]) == Some(1.0), "{}", agent.log());
    Ok(())
}

fn another_users_directory_is_not_used_for_pins() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    fs::create_dir(bpffs.pins())?;
    chown(bpffs.pins(), Some(65534), None)?;
    let mut agent = Agent::start(&without_stacks(&bpffs))?;
    let line = agent.wait_for_log("counts end with this agent", END_DEADLINE)?;
    for words in ["WARN", "degraded", "belongs to user 65534", "another `restart.directory`"] {
        ensure!(line.contains(words), "{words}: {line}");
    }
    ensure!(fs::read_dir(bpffs.pins())?.next().is_none(), "it has pins there");
    Ok(())
}

fn without_a_bpffs_the_agent_says_what_is_lost() -> Result<()> {
    let directory = TempDir::new()?;
    let yaml = format!("restart: {{directory: {}/podperf}}\n{NO_STACKS}", directory.path().display());
    let mut agent = Agent::start(&yaml)?;
    let line = agent.wait_for_log("counts end with this agent", END_DEADLINE)?;
    for words in ["WARN", "degraded", "not in a mounted bpffs", "mount -t bpf bpf /sys/fs/bpf", "restart.pin: false"] {
        ensure!(line.contains(words), "{words}: {line}");
    }
    let metrics = agent.metrics()?;
    ensure!(metrics.get("podperf_part_state", &[("part", "restart"), ("state", "degraded")]) == Some(1.0));
    ensure!(metrics.get("podperf_starts_total", &[]).is_none(), "nothing is kept");
    ensure!(!agent.directory().join("kept.state").exists());
    Ok(())
}

fn the_next_agent_takes_the_stacks_that_one_gave_up() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let mut agent = Agent::start(&format!("{}\noverhead: {{maxPercent: 0.00001}}", bpffs.yaml()))?;
    within(GIVEN_UP, "stacks are given up", || {
        let shed = agent.fresh_metrics()?.get("podperf_overhead_shed", &[("cap", "cpu"), ("feature", "stacks")]);
        Ok((shed == Some(1.0)).then_some(()))
    })?;
    agent.restart(Signal::SIGTERM, &bpffs.yaml())?;
    let counts = || -> Result<(f64, f64)> {
        let metrics = agent.fresh_metrics()?;
        let shed = metrics.sum("podperf_bpf_drops_total", &[("reason", "stack_shed")]);
        Ok((metrics.sum("podperf_stack_waits_total", &[]), shed))
    };
    counts()?;
    let before = counts()?;
    let now = within(END_DEADLINE, "somebody waits", || {
        let now = counts()?;
        Ok((now.0 > before.0).then_some(now))
    })?;
    ensure!(agent.metrics()?.get("podperf_starts_total", &[("how", "adopted")]) == Some(1.0), "{}", agent.log());
    ensure!(before.1 > 0.0, "no stack was left out: {before:?}, {now:?}");
    ensure!(now.1 == before.1, "it leaves stacks out that nobody gave up: {before:?}, {now:?}");
    Ok(())
}

fn prometheus_sees_no_reset_over_kills() -> Result<()> {
    no_reset(&[agent::binary()?], "adopted")
}

fn prometheus_sees_no_reset_over_upgrades() -> Result<()> {
    no_reset(&[agent::other_layout()?, agent::binary()?], "taken_over")
}

/// Kills the agent repeatedly, and starts these programs in turn.
fn no_reset(programs: &[PathBuf], how: &str) -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let cgroup = TestCgroup::new("resets")?;
    let mut agent = Agent::start(&bpffs.yaml())?;
    let prometheus = Prometheus::start(agent.address())?;
    let mut load = load_command(cgroup.path(), &["mixed", "--seconds", "120"])?.spawn()?;
    let value = |query: &str| -> Result<Option<f64>> {
        Ok(prometheus.query(query).ok().and_then(|series| Some(series.first()?.value)))
    };
    let selector = format!("{{cgroup=\"{}\"}}", cgroup.kernel_path());
    let survived = (|| -> Result<()> {
        for kill in 0..KILLS {
            let scraped = format!("count_over_time(podperf_cgroup_oncpu_seconds_total{selector}[10m])");
            let before = value(&scraped)?.unwrap_or(0.0);
            within(Duration::from_secs(60), "it is scraped again", || {
                Ok(value(&scraped)?.filter(|scraped| *scraped >= before + 3.0).map(|_| ()))
            })
            .with_context(|| format!("after {kill} kills"))?;
            agent.restart_as(&programs[kill % programs.len()], Signal::SIGKILL, &bpffs.yaml())?;
        }
        within(Duration::from_secs(30), "the kills are scraped", || {
            Ok(value(&format!("podperf_starts_total{{how=\"{how}\"}}"))?.filter(|starts| *starts >= 5.0).map(|_| ()))
        })?;
        // The process's own counters start at zero with each process.
        let own = [
            "process_",
            "podperf_access_",
            "podperf_http_",
            "podperf_log_",
            "podperf_otlp_",
            "podperf_server_",
            "podperf_stack_cut_",
            "podperf_stack_symbol",
            "podperf_stack_unsymbol",
        ];
        let metrics = agent.metrics()?;
        let names = metrics.samples().iter().map(|sample| sample.name.as_str());
        let names: BTreeSet<&str> = names
            .filter(|name| name.ends_with("_total") && !own.iter().any(|prefix| name.starts_with(prefix)))
            .collect();
        ensure!(names.contains("podperf_cgroup_context_switches_total") && names.len() > 15, "{names:?}");
        for name in names {
            let reset = prometheus.query(&format!("resets({name}[10m]) > 0"))?;
            ensure!(reset.is_empty(), "{name}: {reset:?}");
        }
        let grown = value(&format!("increase(podperf_cgroup_oncpu_seconds_total{selector}[10m])"))?;
        ensure!(grown.is_some_and(|grown| grown > 0.5), "{grown:?}");
        Ok(())
    })();
    load.kill().ok();
    load.wait().ok();
    survived
}
