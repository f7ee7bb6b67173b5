//! Work that blocks, beside the requests.

/// Runs work on a thread that may block. It goes on if the request is given up, and its result is dropped. A panic of
/// the work goes on in the caller.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
