//! A connection to a server that can be slow, cut, or dead: a proxy that copies bytes, in threads of the test.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use podperf_tests::cluster::Spoilt;

/// The bytes that [`Way::Slow`] forwards at once: a kilobyte each tenth of a second.
const CHUNK: usize = 1024;
const CHUNK_TIME: Duration = Duration::from_millis(100);
/// The interval in which a waiting thread checks the state of the line.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The state of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Forwards everything.
    Open,
    /// Forwards 10 KB a second from the server.
    Slow,
    /// Ends all connections after this number of further bytes from the server. Then the line is [`Way::Open`] again.
    CutAfter(usize),
    /// Accepts connections and forwards nothing.
    Dead,
    /// Accepts connections, and forwards no bytes of a client after the server's first answer. Requests get no answer.
    Deaf,
}

/// A line. Drop ends all its connections.
#[derive(Debug)]
pub(crate) struct Line {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    way: Mutex<Way>,
    open: Mutex<Vec<TcpStream>>,
    carried: AtomicUsize,
    over: AtomicBool,
}

impl Line {
    /// Opens a line from its own port to `server`.
    pub(crate) fn to(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            way: Mutex::new(Way::Open),
            open: Mutex::default(),
            carried: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let line = Self { address, shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if shared.over.load(Ordering::Relaxed) {
                    return;
                }
                // If the server is not there, the connection ends.
                shared.connect(&near, server).ok();
            }
        });
        Ok(line)
    }

    /// Changes the kubeconfig so that its users connect over this line.
    pub(crate) fn lead(&self, spoilt: &Spoilt) -> Result<()> {
        let path = spoilt.credentials.kubeconfig();
        let (kubeconfig, there) = (fs::read_to_string(&path)?, spoilt.plane.address().to_string());
        ensure!(kubeconfig.contains(&there), "another server: {kubeconfig}");
        Ok(fs::write(path, kubeconfig.replace(&there, &self.address.to_string()))?)
    }

    /// Returns the address of the line's own port.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of forwarded bytes from the server.
    pub(crate) fn carried(&self) -> usize {
        self.shared.carried.load(Ordering::Relaxed)
    }

    pub(crate) fn way(&self) -> Way {
        *self.shared.way()
    }

    pub(crate) fn set(&self, way: Way) {
        *self.shared.way() = way;
    }

    /// Ends all open connections.
    pub(crate) fn cut(&self) {
        self.shared.cut();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.shared.cut();
        // The thread waits for one more connection.
        TcpStream::connect(self.address).ok();
    }
}

impl Shared {
    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut(&self) {
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn connect(self: &Arc<Self>, near: &TcpStream, server: SocketAddr) -> std::io::Result<()> {
        let far = TcpStream::connect(server)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.extend([near.try_clone()?, far.try_clone()?]);
        drop(open);
        let spoken = Arc::new(AtomicBool::new(false));
        for (from, to, from_server) in
            [(near.try_clone()?, far.try_clone()?, false), (far.try_clone()?, near.try_clone()?, true)]
        {
            let (shared, spoken) = (Arc::clone(self), Arc::clone(&spoken));
            thread::spawn(move || {
                shared.copy(&from, &to, from_server, &spoken).ok();
                from.shutdown(Shutdown::Both).ok();
                to.shutdown(Shutdown::Both).ok();
            });
        }
        Ok(())
    }

    /// Copies bytes until either end closes.
    fn copy(
        &self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        from_server: bool,
        spoken: &AtomicBool,
    ) -> std::io::Result<()> {
        let mut buffer = [0; CHUNK];
        loop {
            let read = from.read(&mut buffer)?;
            if read == 0 {
                return Ok(());
            }
            let bytes = &buffer[..read];
            self.wait(!from_server && spoken.load(Ordering::Relaxed));
            if from_server {
                spoken.store(true, Ordering::Relaxed);
                let allowed = self.allow(read);
                to.write_all(&bytes[..allowed])?;
                self.carried.fetch_add(allowed, Ordering::Relaxed);
                if allowed < read {
                    self.cut();
                    return Ok(());
                }
            } else {
                to.write_all(bytes)?;
            }
        }
    }

    /// Waits while the line forwards nothing. `request` is true for a client's bytes after the server's first answer.
    fn wait(&self, request: bool) {
        loop {
            let way = *self.way();
            let dead = match way {
                Way::Dead => true,
                Way::Deaf => request,
                _ => false,
            };
            if !dead || self.over.load(Ordering::Relaxed) {
                if way == Way::Slow {
                    thread::sleep(CHUNK_TIME);
                }
                return;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Returns how many of these bytes the line may forward.
    fn allow(&self, bytes: usize) -> usize {
        let mut way = self.way();
        match *way {
            Way::CutAfter(left) if left < bytes => {
                *way = Way::Open;
                left
            }
            Way::CutAfter(left) => {
                *way = Way::CutAfter(left - bytes);
                bytes
            }
            _ => bytes,
        }
    }
}
