//! A pod that loses time for a known cause, or has nothing to do, until stdin has a line or ends.
//!
//! Where a cause needs a second pod, the load forks it.

mod account;

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::{fd::AsFd as _, unix::fs::FileExt as _},
    path::{Path, PathBuf},
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
    unistd::pipe,
};
use serde::{Deserialize, Serialize};

use self::account::Account;
pub use self::account::Waits;
use crate::{
    cgroup,
    process::{self, Child},
};

/// The time for which a thread of the convoy holds the lock, and its pause before it wants the lock again.
const HOLD: Duration = Duration::from_millis(4);
const THINK: Duration = Duration::from_millis(1);
/// The time that the slow server takes for an answer. A wait as short as this is counted when it ends.
const ANSWER: Duration = Duration::from_millis(60);
/// The pause of its clients between two requests. It is longer than the waits whose waker is not looked for.
const PAUSE: Duration = Duration::from_millis(15);
/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time between two jobs, two requests on an idle connection, and two ticks of a timer.
const EVERY: Duration = Duration::from_secs(1);
/// The CPU of the hog and of the pod that it starves.
const CPU: usize = 1;
/// The nice value of the starved pod, whose share of the CPU is then below 3 %.
const NICE: i32 = 19;
/// The CPU time between two looks at the end of the run.
const MOMENT: Duration = Duration::from_millis(1);
/// Number of bytes of a write to the disk. All writes go to the same place.
const BLOCK: usize = 4096;
const REQUEST: &[u8] = b"GET / HTTP/1.0\r\n\r\n";
const OK: &[u8] = b"HTTP/1.0 200 OK\r\n\r\n";

/// `podperf-load causes`.
#[derive(Args, Clone, Debug)]
pub struct CausesArgs {
    /// The cause of the waits
    #[arg(long)]
    pub of: Known,
    /// Cgroup of the pod that waits
    #[arg(long)]
    pub cgroup: PathBuf,
    /// Cgroup of the second pod: a slow server, a hog, or the client of idle connections
    #[arg(long)]
    pub other: Option<PathBuf>,
    /// Number of threads of each pod; the hog has one
    #[arg(long, default_value_t = 8)]
    pub threads: u32,
    /// Longest run, in seconds
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// Directory of the files for `storage`
    #[arg(long, default_value = ".")]
    pub directory: PathBuf,
}

/// A cause of waits: the first four are trouble, and the rest is idleness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Known {
    /// A lock that one of the threads holds nearly all the time
    Lock,
    /// The answers of a slow server, with a connection for each request
    Peer,
    /// A CPU that a hog has
    Cpu,
    /// Data that must be on the disk
    Storage,
    /// Requests on connections that stay open
    KeepAlive,
    /// Jobs that come once a second, each for one thread
    Jobs,
    /// A condition that does not come
    Condition,
    /// Events that do not come
    Events,
    /// Ticks of a timer, once a second
    Timer,
}

/// The accounts of both pods.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CausesReport {
    /// The pod that waits for the cause.
    pub own: Waits,
    /// The second pod; zeros without one.
    pub other: Waits,
}

/// The end of the run.
struct Until {
    end: Instant,
    is_over: AtomicBool,
    mutex: Mutex<()>,
    changed: Condvar,
}

impl Until {
    fn new(seconds: u64) -> Self {
        let end = Instant::now() + Duration::from_secs(seconds);
        Self { end, is_over: AtomicBool::new(false), mutex: Mutex::new(()), changed: Condvar::new() }
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed) || self.left().is_zero()
    }

    /// Waits for the end, and then wakes all threads of a pool. Calls `tick` once a second.
    fn wait(&self, tick: impl Fn()) -> Result<()> {
        let stdin = io::stdin();
        let every = PollTimeout::try_from(EVERY).context("too long")?;
        while !self.is_over() && poll(&mut [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)], every)? == 0 {
            tick();
        }
        // A thread that looked at the flag before this holds the mutex until it waits.
        let held = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_over.store(true, Ordering::Relaxed);
        drop(held);
        self.changed.notify_all();
        Ok(())
    }
}

/// Runs the pods until the end.
pub fn run(args: &CausesArgs) -> Result<CausesReport> {
    let (until, count) = (Until::new(args.seconds), args.threads);
    let until = &until;
    let ends = || until.wait(|| ());
    match args.of {
        Known::Lock => {
            let lock = Mutex::new(());
            alone(args, || account::run(count, |account| convoy(account, &lock, until), ends))
        }
        Known::Peer => {
            let (listener, address) = listen()?;
            let server = || account::run(count, |account| answer(account, &listener), || Ok(()));
            two(args, || account::run(count, |account| ask(account, address, until), ends), server)
        }
        Known::Cpu => {
            let starved = || {
                process::pin(CPU)?;
                process::renice(NICE)?;
                account::run(count, |_| burn(until), ends)
            };
            let hog = || {
                process::pin(CPU)?;
                account::run(1, |_| burn(until), ends)
            };
            two(args, starved, hog)
        }
        Known::Storage => alone(args, || account::run(count, |_| write(&args.directory, until), ends)),
        Known::KeepAlive => {
            let (listener, address) = listen()?;
            let client = || account::run(count, |account| visit(account, address, until), ends);
            two(args, || account::run(count, |account| serve(account, &listener), || Ok(())), client)
        }
        Known::Jobs => {
            let jobs = || until.wait(|| until.changed.notify_one());
            alone(args, || account::run(count, |account| park(account, until), jobs))
        }
        Known::Condition => alone(args, || account::run(count, |account| park(account, until), ends)),
        Known::Events => alone(args, || account::run(count, |account| watch(account, None, until), ends)),
        Known::Timer => alone(args, || account::run(count, |account| watch(account, Some(EVERY), until), ends)),
    }
}

/// Runs one pod.
fn alone(args: &CausesArgs, own: impl FnOnce() -> Result<Waits>) -> Result<CausesReport> {
    cgroup::join(&args.cgroup)?;
    Ok(CausesReport { own: own()?, other: Waits::default() })
}

/// Runs two pods, the second one in a child.
fn two(
    args: &CausesArgs,
    own: impl FnOnce() -> Result<Waits>,
    other: impl FnOnce() -> Result<Waits>,
) -> Result<CausesReport> {
    let cgroup = args.other.as_ref().context("`--other` is missing")?;
    let (reader, writer) = pipe().context("failed to make a pipe")?;
    let child = Child::fork(|| {
        cgroup::join(cgroup)?;
        process::send(writer.try_clone()?, &other()?)
    })?;
    drop(writer);
    cgroup::join(&args.cgroup)?;
    let own = own()?;
    let other = process::receive(reader)?.pop().context("the second pod ended without a report")?;
    child.wait()?;
    Ok(CausesReport { own, other })
}

fn convoy(account: &mut Account, lock: &Mutex<()>, until: &Until) -> Result<()> {
    while !until.is_over() {
        let held = lock.lock().unwrap_or_else(PoisonError::into_inner);
        account.idle(|| thread::sleep(HOLD));
        drop(held);
        account.idle(|| thread::sleep(THINK));
    }
    Ok(())
}

fn listen() -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("failed to listen")?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Waits for answers as a client with a timeout does: it polls before it reads.
fn ask(account: &mut Account, address: SocketAddr, until: &Until) -> Result<()> {
    let patience = PollTimeout::try_from(PATIENCE).context("too long")?;
    while !until.is_over() {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(REQUEST)?;
        let ready = poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], patience)?;
        ensure!(ready == 1, "no answer in {PATIENCE:?}");
        stream.read_to_end(&mut Vec::new())?;
        account.idle(|| thread::sleep(PAUSE));
    }
    // A connection without a request ends a thread of the server.
    TcpStream::connect(address)?;
    Ok(())
}

fn answer(account: &mut Account, listener: &TcpListener) -> Result<()> {
    loop {
        let (mut stream, _) = account.idle(|| listener.accept())?;
        if account.idle(|| stream.read(&mut [0; REQUEST.len()]))? == 0 {
            return Ok(());
        }
        account.idle(|| thread::sleep(ANSWER));
        stream.write_all(OK)?;
    }
}

fn burn(until: &Until) -> Result<()> {
    while !until.is_over() {
        process::burn(MOMENT)?;
    }
    Ok(())
}

fn write(directory: &Path, until: &Until) -> Result<()> {
    let file = tempfile::tempfile_in(directory).context("failed to make a file")?;
    while !until.is_over() {
        file.write_all_at(&[0; BLOCK], 0)?;
        file.sync_data()?;
    }
    Ok(())
}

/// Serves the requests of one connection.
fn serve(account: &mut Account, listener: &TcpListener) -> Result<()> {
    let (mut stream, _) = account.idle(|| listener.accept())?;
    while account.idle(|| stream.read(&mut [0; REQUEST.len()]))? > 0 {
        stream.write_all(OK)?;
    }
    Ok(())
}

fn visit(account: &mut Account, address: SocketAddr, until: &Until) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    while !until.is_over() {
        account.idle(|| thread::sleep(EVERY));
        stream.write_all(REQUEST)?;
        stream.read_exact(&mut [0; OK.len()])?;
    }
    Ok(())
}

/// Waits as a thread of a pool does.
fn park(account: &mut Account, until: &Until) -> Result<()> {
    account.idle(|| {
        let mut held = until.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        while !until.is_over() {
            held = until.changed.wait_timeout(held, until.left()).unwrap_or_else(PoisonError::into_inner).0;
        }
    });
    Ok(())
}

/// Waits for events as an event loop does. The only one is the end of the run.
fn watch(account: &mut Account, every: Option<Duration>, until: &Until) -> Result<()> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(io::stdin(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    while !until.is_over() {
        let most = PollTimeout::try_from(every.unwrap_or_else(|| until.left())).context("too long")?;
        account.idle(|| epoll.wait(&mut [EpollEvent::empty()], most))?;
    }
    Ok(())
}
