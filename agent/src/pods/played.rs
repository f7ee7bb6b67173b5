//! A played API server, or kubelet: hand-written HTTP/1.1 that answers each request as the test demands.

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

/// An answer of the server.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// A whole body, after a status code.
    Body(u16, String),
    /// A watch with these lines, and its end.
    Lines(Vec<String>, End),
    /// No answer, ever.
    Nothing,
    /// Silence for this time, then the answer.
    Late(Duration, Box<Self>),
}

/// The end of a watch, after its lines.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// A regular end.
    Close,
    /// A TCP reset in the middle of a chunk.
    Break,
    /// No end: the connection stays open.
    Stay,
}

/// A running server, which ends when dropped.
#[derive(Debug)]
pub(super) struct Played {
    pub(super) address: SocketAddr,
    /// Heads of the requests.
    pub(super) requests: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Played {
    /// Starts a server. `answer` gets the number and the head of each request.
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
            // Dropped with the task, together with the connections.
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

    /// Returns the requests so far that contain `what`.
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
                    // The client must read the lines before the reset arrives.
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
