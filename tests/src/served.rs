//! A server that returns a text to any scraper.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Result;

const LOOK_EVERY: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(30);

/// A server on loopback, which ends on drop.
#[derive(Debug)]
pub struct Served {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    /// Answers every request with the current result of `text`, as Prometheus text 0.0.4.
    pub fn start(mut text: impl FnMut() -> String + Send + 'static) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let thread = thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let Ok((mut stream, _)) = listener.accept() else {
                    thread::sleep(LOOK_EVERY);
                    continue;
                };
                // Requests have no body and arrive in one piece. A client whose connection fails tries again.
                let mut request = [0; 4096];
                stream.set_nonblocking(false).ok();
                stream.set_read_timeout(Some(PATIENCE)).ok();
                if stream.read(&mut request).is_err() {
                    continue;
                }
                let body = text();
                let head = "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n";
                write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).ok();
            }
        });
        Ok(Self { address, over, thread: Some(thread) })
    }

    /// Returns the address of the server.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}
