//! A connection that fails when the client does not read its answer: an unread answer holds memory.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Writes fail when the client has read nothing for this time.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A stream whose writes fail when they make no progress. Reads have no time limit.
#[derive(Debug)]
pub(super) struct Patient<S> {
    stream: S,
    patience: Duration,
    /// The timer of a write that waits; `None` while no write waits.
    limit: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self { stream, patience: PATIENCE, limit: None }
    }

    /// Returns the result of a write, or an error if the write has waited too long.
    fn limited<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.limit = None;
            return result;
        }
        let patience = self.patience;
        ready!(self.limit.get_or_insert_with(|| Box::pin(sleep(patience))).as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.limited(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.limited(cx, result)
    }

    /// Without vectored writes an answer would be copied before it is sent.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.limited(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.limited(cx, result)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use http_body_util::Full;
    use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    /// The bytes that the stream holds.
    const HOLDS: usize = 1024;
    /// The test fails after this time if the write hangs.
    const DEADLINE: Duration = Duration::from_secs(60);

    fn pair(patience: Duration) -> (Patient<DuplexStream>, DuplexStream) {
        let (ours, theirs) = duplex(HOLDS);
        (Patient { patience, ..Patient::new(ours) }, theirs)
    }

    #[tokio::test]
    async fn an_answer_that_nobody_reads_is_let_go() {
        struct Body(Arc<[u8]>);
        impl AsRef<[u8]> for Body {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let (ours, mut theirs) = pair(Duration::from_millis(50));
        let body = Arc::<[u8]>::from(vec![b'x'; 8 * HOLDS]);
        let answer = Arc::clone(&body);
        let service = service_fn(move |_: Request<Incoming>| {
            let body = Full::new(Bytes::from_owner(Body(Arc::clone(&answer))));
            async { Ok::<_, std::convert::Infallible>(Response::new(body)) }
        });
        theirs.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let connection = http1::Builder::new().serve_connection(TokioIo::new(ours), service);
        tokio::time::timeout(DEADLINE, connection).await.unwrap().unwrap_err();
        assert_eq!(Arc::strong_count(&body), 1, "the connection has ended, and its answer is still held");
        // The client is still connected; it only does not read.
        theirs.read_u8().await.unwrap();
    }

    #[tokio::test]
    async fn who_reads_slowly_gets_all() {
        let (mut ours, mut theirs) = pair(Duration::from_millis(500));
        let write = async {
            ours.write_all(&[b'x'; 21 * HOLDS]).await?;
            ours.shutdown().await
        };
        let read = async {
            let (mut part, mut all) = ([0; HOLDS], 0);
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                match theirs.read(&mut part).await {
                    Ok(0) => return all,
                    Ok(bytes) => all += bytes,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let (written, read) = tokio::join!(write, read);
        written.unwrap();
        assert_eq!(read, 21 * HOLDS);
    }
}
