use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use tempfile::TempDir;

use super::*;
use crate::stacks::debuginfod::cache::name_of;

const MAX: u64 = 4000;
const LONGEST: Duration = Duration::from_secs(30);

fn id(number: u8) -> String {
    format!("{number:02x}").repeat(20)
}

/// Returns a file of this size that looks like a debug file.
fn elf(bytes: usize) -> Vec<u8> {
    let mut file = b"\x7fELF".to_vec();
    file.resize(bytes, 7);
    file
}

/// A server with the files whose ids it is given, and the paths that it was asked for.
struct Server {
    address: SocketAddr,
    paths: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts a server, which answers one request on each connection.
    fn start(files: Vec<(String, Vec<u8>)>) -> Self {
        Self::start_slow(files, || ())
    }

    /// Starts the same server. It calls `wait` before each answer.
    fn start_slow(files: Vec<(String, Vec<u8>)>, wait: impl Fn() + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let paths = Arc::<Mutex<Vec<String>>>::default();
        let asked = Arc::clone(&paths);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = Vec::new();
                let mut buffer = [0; 1024];
                while !request.ends_with(b"\r\n\r\n") {
                    let read = stream.read(&mut buffer).unwrap();
                    assert!(read > 0, "the request breaks off");
                    request.extend(&buffer[..read]);
                }
                let request = String::from_utf8(request).unwrap();
                let path = request.split(' ').nth(1).unwrap().to_owned();
                let file = files.iter().find(|(id, _)| path == format!("/base/buildid/{id}/debuginfo"));
                asked.lock().unwrap().push(path);
                wait();
                let (status, body) = file.map_or(("404 Not Found", &[][..]), |(_, body)| ("200 OK", &body[..]));
                let length = body.len();
                write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n").unwrap();
                // The client may not want it.
                stream.write_all(body).ok();
            }
        });
        Self { address, paths }
    }

    fn url(&self) -> String {
        format!("http://{}/base/", self.address)
    }

    fn asked(&self) -> usize {
        self.paths.lock().unwrap().len()
    }
}

/// The other ends of a worker.
struct Case {
    notes: mpsc::Sender<Note>,
    arrived: std_mpsc::Receiver<String>,
    counts: FetchCounts,
    status: Status,
    thread: thread::JoinHandle<()>,
}

impl Case {
    fn start(urls: &[String], directory: &Path) -> Self {
        let (notes, noted) = mpsc::channel(64);
        let (send_arrived, arrived) = std_mpsc::channel();
        let (counts, status) = (FetchCounts::default(), Status::default());
        let servers = Servers::new(urls, |_| None).unwrap();
        let cache = Cache::open(directory, MAX).unwrap();
        let queue = Queue::new(cache.max_file());
        let worker = Worker::new(servers, queue, cache, counts.clone(), send_arrived, status.clone());
        let thread = thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(worker.run(noted));
        });
        Self { notes, arrived, counts, status, thread }
    }

    /// Ends the worker, so that the next one can have its directory.
    fn end(self) {
        drop(self.notes);
        self.thread.join().unwrap();
    }

    fn note(&self, build_id: String, debug_file: DebugFile) {
        self.notes.try_send(Note { owner: "/a".into(), build_id, debug_file }).unwrap();
    }

    /// Waits until an outcome has this count.
    fn wait(&self, outcome: Outcome, count: u64) {
        self.until(|| self.counts.stats().outcomes[outcome as usize] == count);
    }

    fn until(&self, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < LONGEST, "{:?} {:?}", self.counts.stats(), self.status.parts());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the next build id whose file has changed.
    fn arrived(&self) -> String {
        self.arrived.recv_timeout(LONGEST).unwrap()
    }

    fn state(&self) -> State {
        self.status.parts()[0].state
    }
}

fn directory() -> (TempDir, std::path::PathBuf) {
    let top = tempfile::tempdir().unwrap();
    let directory = top.path().join("debuginfod");
    (top, directory)
}

#[test]
fn a_missing_file_is_asked_for_once_and_the_next_agent_has_it() {
    let server = Server::start(vec![(id(1), elf(900)), (id(3), elf(1001))]);
    let (_top, directory) = directory();
    let case = Case::start(&[server.url()], &directory);
    for number in [1, 2, 3] {
        case.note(id(number), DebugFile::Missing);
    }
    case.wait(Outcome::Found, 1);
    case.wait(Outcome::NotFound, 1);
    case.wait(Outcome::TooLarge, 1);
    assert_eq!(case.arrived(), id(1));
    assert_eq!(fs::read(directory.join(name_of(&id(1)))).unwrap(), elf(900));
    assert_eq!((case.state(), case.counts.stats().cache_bytes), (State::Healthy, 900));
    // The lookup of the first one began before the file arrived; the others are known not to be there.
    for number in [1, 2, 3] {
        case.note(id(number), DebugFile::Missing);
    }
    assert_eq!(case.arrived(), id(1));
    case.end();
    let case = Case::start(&[server.url()], &directory);
    case.note(id(1), DebugFile::Missing);
    assert_eq!(case.arrived(), id(1));
    assert_eq!(server.asked(), 3, "{:?}", server.paths);
}

#[test]
fn a_file_that_cannot_be_used_is_asked_for_again_only_if_an_earlier_agent_left_it() {
    let server = Server::start(vec![(id(1), elf(100))]);
    let (_top, directory) = directory();
    let left = directory.join(name_of(&id(1)));
    drop(Cache::open(&directory, MAX).unwrap());
    fs::write(&left, "torn").unwrap();
    let case = Case::start(&[server.url()], &directory);
    case.note(id(1), DebugFile::Unusable);
    assert_eq!(case.arrived(), id(1), "it is looked up again");
    assert!(!left.exists());
    case.note(id(1), DebugFile::Missing);
    assert_eq!(case.arrived(), id(1));
    assert!(left.exists());
    case.note(id(1), DebugFile::Unusable);
    case.until(|| case.state() == State::Degraded);
    let says = case.status.parts()[0].detail.clone();
    assert!(says.ends_with(&format!("without symbols: `http://{}`", server.address)), "{says}");
    let stats = case.counts.stats();
    assert_eq!((stats.outcomes[Outcome::Unusable as usize], stats.cache_bytes), (2, 0));
    case.note(id(1), DebugFile::Missing);
    case.note(id(2), DebugFile::Missing);
    case.wait(Outcome::NotFound, 1);
    assert!(!left.exists() && server.asked() == 2, "{:?}", server.paths);
}

#[test]
fn a_second_server_is_asked_if_the_first_one_has_no_file_or_does_not_answer() {
    let (empty, server) = (Server::start(vec![]), Server::start(vec![(id(1), elf(10)), (id(2), elf(10))]));
    let (_top, directory) = directory();
    let case = Case::start(&["http://127.0.0.1:1".into(), empty.url(), server.url()], &directory);
    case.note(id(1), DebugFile::Missing);
    case.wait(Outcome::Found, 1);
    case.note(id(2), DebugFile::Missing);
    case.wait(Outcome::Found, 2);
    assert_eq!((empty.asked(), server.asked(), case.state()), (2, 2, State::Healthy));
    case.note(id(3), DebugFile::Missing);
    case.wait(Outcome::Failed, 1);
    assert_eq!(case.counts.stats().outcomes[Outcome::NotFound as usize], 0, "the first server may have it");
    case.end();
    let case = Case::start(&["http://127.0.0.1:1".into()], &directory);
    case.note(id(4), DebugFile::Missing);
    case.wait(Outcome::Failed, 1);
    case.until(|| case.state() == State::Degraded);
}

#[test]
fn a_file_that_is_noted_again_while_it_is_asked_for_is_fetched_once() {
    let (release, released) = std_mpsc::channel::<()>();
    // Once the sender is dropped, no answer waits.
    let server = Server::start_slow(vec![(id(1), elf(10))], move || released.recv().unwrap_or_default());
    let (_top, directory) = directory();
    let case = Case::start(&[server.url()], &directory);
    case.note(id(1), DebugFile::Missing);
    case.until(|| server.asked() == 1);
    case.note(id(1), DebugFile::Missing);
    case.until(|| case.notes.capacity() == case.notes.max_capacity());
    drop(release);
    case.wait(Outcome::Found, 1);
    case.note(id(2), DebugFile::Missing);
    case.wait(Outcome::NotFound, 1);
    assert_eq!((server.asked(), case.counts.stats().outcomes[Outcome::Found as usize]), (2, 1), "{:?}", server.paths);
}
