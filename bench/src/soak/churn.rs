//! Applies weeks of a busy node's work to an agent within minutes: cgroups and processes are born and die, clients ask
//! for pages and recordings and close the connection early, the configuration is reloaded.

use std::{
    io::Write as _,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result};
use podperf_tests::{cgroup::TestCgroup, http, load, process};

/// The pause between two loads of one kind, so that loads do not fill the machine.
const PAUSE: Duration = Duration::from_millis(100);

/// The whole churn, which stops on drop.
#[derive(Debug)]
pub struct Churn {
    over: Arc<AtomicBool>,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

/// The numbers of loads and requests.
#[derive(Debug, Default)]
pub struct Counts {
    /// Loads that ran to their end.
    pub loads: AtomicU64,
    /// Loads that failed.
    pub failed: AtomicU64,
    /// Requests that were answered.
    pub answers: AtomicU64,
    /// Requests whose client closed the connection without waiting.
    pub hung_up: AtomicU64,
}

impl Churn {
    /// Starts the churn, with cgroups inside `cgroup` and requests to `agent`.
    pub fn start(cgroup: &TestCgroup, agent: SocketAddr) -> Result<Self> {
        let mut churn = Self { over: Arc::default(), counts: Arc::default(), threads: Vec::new() };
        let program = load::binary()?;
        let inside = cgroup.path().to_owned();
        let loads: [&[&str]; 3] = [
            &["churn", "--count", "10"],
            &["sleepers", "--waits", "40", "--millis", "5"],
            &["spin", "--seconds", "0.05"],
        ];
        for arguments in loads {
            let (program, inside) = (program.clone(), inside.clone());
            churn.repeat(PAUSE, move |counts| {
                let ran = run(&program, arguments, &inside).is_ok();
                if ran { &counts.loads } else { &counts.failed }.fetch_add(1, Ordering::Relaxed);
            });
        }
        for path in ["/flamegraph", "/", "/debug/waits", "/debug/profile?seconds=1&format=pb", "/status"] {
            churn.repeat(20 * PAUSE, move |counts| {
                if http::get(agent, path, &[("Accept", "text/html")]).is_ok() {
                    counts.answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        churn.repeat(5 * PAUSE, move |counts| {
            if let Ok(mut stream) = TcpStream::connect(agent) {
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Never-Ends: ").ok();
                thread::sleep(PAUSE);
                counts.hung_up.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(churn)
    }

    fn repeat(&mut self, pause: Duration, act: impl Fn(&Counts) + Send + 'static) {
        let (over, counts) = (Arc::clone(&self.over), Arc::clone(&self.counts));
        self.threads.push(thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                act(&counts);
                thread::sleep(pause);
            }
        }));
    }

    /// Stops the churn, and returns its numbers of loads and requests.
    #[must_use]
    pub fn end(mut self) -> Arc<Counts> {
        self.stop();
        Arc::clone(&self.counts)
    }

    fn stop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(program: &PathBuf, arguments: &[&str], cgroup: &Path) -> Result<()> {
    let mut command = Command::new(program);
    process::bind_to_parent(&mut command);
    command.args(arguments).arg("--cgroup").arg(cgroup);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().context("failed to start podperf-load")?;
    status.success().then_some(()).context("a load ended badly")
}
