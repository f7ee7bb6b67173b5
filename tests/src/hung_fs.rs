//! A file system that stops answering reads: one program on a FUSE mount, served by a thread of the test.
//!
//! It answers the few requests that running a program needs, with the numbers of the kernel's header for FUSE.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _},
        unix::fs::FileExt as _,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use tempfile::TempDir;

const NAME: &str = "program";
const ROOT: u64 = 1;
const PROGRAM: u64 = 2;
/// Seconds for which the kernel may cache names and attributes.
const VALID: u64 = 3600;
/// `struct fuse_in_header`.
const HEADER: usize = 40;
/// Number of bytes at the end of the program that stay unread: more than the kernel reads ahead.
const UNREAD_END: u64 = 8 << 20;
const LOOK_EVERY_MS: u16 = 50;

/// The mount. When it is dropped, reads that hang there end with an error.
#[derive(Debug)]
pub struct HungFs {
    directory: TempDir,
    hangs: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

/// The way in which the kernel sends reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// A reader sends a request and waits for its answer.
    OneByOne,
    /// `FUSE_ASYNC_READ`: the kernel reads ahead, and a reader waits for a page.
    Ahead,
}

struct Server {
    reads: Reads,
    device: File,
    program: File,
    size: u64,
    hangs: Arc<AtomicBool>,
}

impl HungFs {
    /// Mounts a file system with a copy of this program, and answers its requests.
    pub fn serve(program: &Path) -> Result<Self> {
        Self::serve_with(program, Reads::OneByOne)
    }

    /// Mounts a file system in the same way, with this kind of reads.
    pub fn serve_with(program: &Path, reads: Reads) -> Result<Self> {
        let directory = TempDir::new()?;
        let device = File::options().read(true).write(true).open("/dev/fuse").context("failed to open `/dev/fuse`")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("podperf-test"), directory.path(), Some("fuse"), flags, Some(&*options))
            .context("failed to mount a FUSE file system")?;
        let (hangs, ends) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let program = File::open(program)?;
        let size = program.metadata()?.len();
        let server = Server { reads, device, program, size, hangs: Arc::clone(&hangs) };
        let end = Arc::clone(&ends);
        // The connection ends with the device, which this thread closes.
        let server = thread::spawn(move || while !end.load(Ordering::Relaxed) && server.answer_one().is_ok() {});
        Ok(Self { directory, hangs, ends, server: Some(server) })
    }

    /// Returns the path of the program on the file system.
    #[must_use]
    pub fn program(&self) -> PathBuf {
        self.directory.path().join(NAME)
    }

    /// Answers no read from now on. A running program continues: all its pages except the end, which holds the symbols,
    /// are in the page cache by then.
    pub fn hang(&self) -> Result<()> {
        let program = File::open(self.program())?;
        let (mut at, size) = (0, program.metadata()?.len());
        let mut bytes = vec![0; 1 << 20];
        while at + UNREAD_END < size {
            at += program.read_at(&mut bytes, at)? as u64;
        }
        self.hangs.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for HungFs {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.server.take().map(JoinHandle::join);
        umount2(self.directory.path(), MntFlags::MNT_DETACH).ok();
        fs::remove_dir(self.directory.path()).ok();
    }
}

impl Server {
    /// Reads a request, if one comes soon, and answers it.
    fn answer_one(&self) -> io::Result<()> {
        let mut ready = [PollFd::new(self.device.as_fd(), PollFlags::POLLIN)];
        if poll(&mut ready, PollTimeout::from(LOOK_EVERY_MS))? == 0 {
            return Ok(());
        }
        let mut request = vec![0; 1 << 20];
        let length = match (&self.device).read(&mut request) {
            Ok(length) => length,
            // The request was interrupted before the read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let request = &request[..length];
        let number = |at: usize, size: usize| {
            let bytes = request.get(at..at + size).unwrap_or_default();
            bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let (unique, node) = (number(8, 8), number(16, 8));
        let answer = match number(4, 4) {
            // LOOKUP
            1 if request[HEADER..].strip_suffix(&[0]) == Some(NAME.as_bytes()) => {
                let entry = [PROGRAM, 0, VALID, VALID, 0].map(u64::to_le_bytes).concat();
                Ok([entry, self.attributes(PROGRAM)].concat())
            }
            1 => Err(libc::ENOENT),
            // FORGET, INTERRUPT and BATCH_FORGET have no answer.
            2 | 36 | 42 => return Ok(()),
            // GETATTR
            3 => Ok([[VALID, 0].map(u64::to_le_bytes).concat(), self.attributes(node)].concat()),
            // OPEN and OPENDIR
            14 | 27 => Ok(vec![0; 16]),
            15 if self.hangs.load(Ordering::Relaxed) => return Ok(()),
            // READ
            15 => {
                let mut bytes = vec![0; usize::try_from(number(HEADER + 16, 4)).unwrap_or(0)];
                let read = self.program.read_at(&mut bytes, number(HEADER + 8, 8))?;
                bytes.truncate(read);
                Ok(bytes)
            }
            // RELEASE, FLUSH, RELEASEDIR and ACCESS
            18 | 25 | 29 | 34 => Ok(Vec::new()),
            // INIT: version 7.31. The answer accepts the kernel's options and has writes of one page.
            26 => {
                let flags = u32::from(self.reads == Reads::Ahead);
                let mut answer = [7, 31, 128 << 10, flags, 0, 4096, 1].map(u32::to_le_bytes).concat();
                answer.resize(64, 0);
                Ok(answer)
            }
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = answer.map_or_else(|error| (-error, Vec::new()), |body| (0, body));
        let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
        let head = [&length.to_le_bytes()[..], &error.to_le_bytes(), &unique.to_le_bytes()].concat();
        match (&self.device).write_all(&[head, body].concat()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written,
        }
    }

    /// `struct fuse_attr`.
    fn attributes(&self, node: u64) -> Vec<u8> {
        let (mode, size) = if node == ROOT { (libc::S_IFDIR | 0o755, 0) } else { (libc::S_IFREG | 0o755, self.size) };
        let long = [node, size, size.div_ceil(512), 0, 0, 0].map(u64::to_le_bytes).concat();
        let short = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_le_bytes).concat();
        [long, short].concat()
    }
}
