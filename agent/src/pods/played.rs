//! A played API server, or kubelet: HTTP/1.1 by hand, each request answered as the test says.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// What is answered.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// A whole body.
    Body(u16, String),
    /// A watch of these lines, and how it goes on.
    Lines(Vec<String>, End),
    /// Nothing, ever.
    Nothing,
    /// First nothing, then this.
    Late(Duration, Box<Self>),
}

/// How a watch goes on after its lines.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// As it should end.
    Close,
    /// In the middle of a chunk, with a TCP reset.
    Break,
    /// Not at all.
    Stay,
}

/// A running server; it is gone when dropped.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) address: SocketAddr,
    /// Heads of requests.
    pub(super) requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Played {
    /// Answers requests, each by its number and its head.
    pub(super) async fn start(answer: impl Fn(usize, &str) -> Answer + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), answer).await
    }

    pub(super) async fn start_at(
        address: SocketAddr,
        answer: impl Fn(usize, &str) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        let listener: TcpListener = socket.listen(16).unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, seen) = (Arc::new(answer), Arc::clone(&requests));
        let task = tokio::spawn(async move {
            // Dropped with the task, and the connections with them.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
                connections.spawn(async move {
                    serve(stream, |head| {
                        let mut seen = seen.lock().unwrap();
                        seen.push(head.to_owned());
                        let number = seen.len() - 1;
                        drop(seen);
                        answer(number, head)
                    })
                    .await
                });
            }
        });
        Self { address, requests, task }
    }

    /// The requests so far, of which each has this.
    pub(super) fn seen(&self, what: &str) -> Vec<String> {
        self.requests.lock().unwrap().iter().filter(|head| head.contains(what)).cloned().collect()
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, answer: impl FnOnce(&str) -> Answer) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let mut answer = answer(std::str::from_utf8(&head).unwrap());
    while let Answer::Late(delay, then) = answer {
        tokio::time::sleep(delay).await;
        answer = *then;
    }
    match answer {
        Answer::Body(status, body) => {
            let length = body.len();
            let head = format!("HTTP/1.1 {status} -\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            stream.write_all(head.as_bytes()).await.ok()?;
            stream.shutdown().await.ok()
        }
        Answer::Lines(lines, end) => {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
            stream.write_all(head.as_bytes()).await.ok()?;
            for line in lines {
                let chunk = format!("{:x}\r\n{line}\n\r\n", line.len() + 1);
                stream.write_all(chunk.as_bytes()).await.ok()?;
            }
            match end {
                End::Close => {
                    stream.write_all(b"0\r\n\r\n").await.ok()?;
                    stream.shutdown().await.ok()
                }
                End::Break => {
                    // What was sent is read before the reset comes.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    stream.write_all(b"ff\r\n{").await.ok()?;
                    stream.set_zero_linger().ok()
                }
                End::Stay => std::future::pending().await,
            }
        }
        Answer::Nothing | Answer::Late(..) => std::future::pending().await,
    }
}
