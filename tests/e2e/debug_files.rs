//! Names of stripped programs from a debuginfod server. A part of this program plays the server.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    suite::{Test, within},
    tests,
};
use tempfile::TempDir;

use crate::names::{CC, Case, DEADLINE, FLAGS, GO, NAP, OBJCOPY, ensure_of, run};

pub(crate) const TESTS: &[Test] = tests![
    #[beside] a_stripped_program_has_the_names_that_a_server_has: &[GO, CC, OBJCOPY] => server_has_names,
    #[beside] a_debug_file_of_another_build_gives_no_names: &[GO, CC, OBJCOPY] => another_build_is_refused,
];

/// The build ids of the programs. Agents of other tests see these programs, too.
const BUILD_ID: &str = "00112233445566778899aabbccddeeff01234567";
const REFUSED: &str = "aa112233445566778899aabbccddeeff01234567";
const OTHER: &str = "ffeeddccbbaa99887766554433221100ffeeddcc";
/// A time of several windows.
const WINDOWS: Duration = Duration::from_secs(4);

/// A debuginfod server with some debug files, by build id.
struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(files: HashMap<String, Vec<u8>>) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let (address, asked) = (listener.local_addr()?, Arc::<Mutex<Vec<String>>>::default());
        let paths = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &files, &paths).ok();
            }
        });
        Ok(Self { address, asked })
    }

    /// Returns how often the server was asked for the debug file of a build id.
    fn asked(&self, build_id: &str) -> usize {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().filter(|path| **path == path_of(build_id)).count()
    }
}

fn path_of(build_id: &str) -> String {
    format!("/buildid/{build_id}/debuginfo")
}

/// Answers one request, and closes the connection.
fn answer(mut stream: TcpStream, files: &HashMap<String, Vec<u8>>, asked: &Mutex<Vec<String>>) -> Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().context("no request")??;
    // The headers are not needed.
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let path = request.split(' ').nth(1).context("no path")?.to_owned();
    let file = files.iter().find(|(build_id, _)| path_of(build_id) == path);
    asked.lock().unwrap_or_else(PoisonError::into_inner).push(path);
    let (status, body) = file.map_or(("404 Not Found", &[][..]), |(_, file)| ("200 OK", &file[..]));
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    Ok(stream.write_all(body)?)
}

fn yaml(server: &Server, cache: &Path) -> String {
    let urls = format!("['http://{}']", server.address);
    format!("stacks: {{filter: 'comm == napper', debuginfod: {{urls: {urls}, cacheDir: {}}}}}", cache.display())
}

/// Builds a stripped program, and returns the content of its debug file.
fn build(directory: &Path, build_id: &str) -> Result<Vec<u8>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/programs/napper.c");
    let (program, debug) = (directory.join("napper"), directory.join("debug"));
    let id = format!("-Wl,--build-id=0x{build_id}");
    run(Command::new("cc").args(FLAGS).arg(id).arg("-o").args([&program, &source]))?;
    run(Command::new("objcopy").arg("--only-keep-debug").args([&program, &debug]))?;
    run(Command::new("objcopy").arg("--strip-all").arg(&program))?;
    let content = fs::read(&debug)?;
    fs::remove_file(&debug)?;
    Ok(content)
}

fn server_has_names() -> Result<()> {
    let directory = TempDir::new()?;
    let file = build(directory.path(), BUILD_ID)?;
    let server = Server::start(HashMap::from([(BUILD_ID.to_owned(), file)]))?;
    let (program, cache) = (directory.path().join("napper"), directory.path().join("cache"));
    for agent in ["first", "second"] {
        let mut case = Case::new(&yaml(&server, &cache))?;
        case.start(&format!("exec {}", program.display()))?;
        ensure_of(&case.frames(&NAP)?, &program.display().to_string())?;
        ensure!(server.asked(BUILD_ID) == 1, "asked {} times at the {agent} agent", server.asked(BUILD_ID));
        // One file is in the cache; the server has no debug files of libraries.
        let (metrics, fetched) = (case.agent.metrics()?, f64::from(u8::from(agent == "first")));
        let found = metrics.get("podperf_debuginfod_files_total", &[("outcome", "found")]);
        ensure!(found == Some(fetched), "{found:?} at the {agent} agent");
        let bytes = metrics.get("podperf_debuginfod_cache_bytes", &[]);
        ensure!(bytes.is_some_and(|bytes| bytes > 0.0), "{bytes:?}");
    }
    Ok(())
}

fn another_build_is_refused() -> Result<()> {
    let (directory, other) = (TempDir::new()?, TempDir::new()?);
    build(directory.path(), REFUSED)?;
    let file = build(other.path(), OTHER)?;
    let server = Server::start(HashMap::from([(REFUSED.to_owned(), file)]))?;
    let mut case = Case::new(&yaml(&server, &directory.path().join("cache")))?;
    let program = directory.path().join("napper").display().to_string();
    case.start(&format!("exec {program}"))?;
    within(DEADLINE, "the file is refused", || {
        let unusable = case.agent.metrics()?.get("podperf_debuginfod_files_total", &[("outcome", "unusable")]);
        Ok((unusable == Some(1.0)).then_some(()))
    })?;
    thread::sleep(WINDOWS);
    ensure!(server.asked(REFUSED) == 1, "asked {} times", server.asked(REFUSED));
    let samples = case.samples()?;
    ensure!(samples.iter().any(|sample| sample.frames.iter().any(|frame| frame.file == program)), "no frames");
    ensure!(!samples.iter().any(|sample| sample.functions().contains(&NAP[0])), "names of another build");
    Ok(())
}
