//! Posts compressed requests over HTTP/1.1, and reads only a bounded part of the answer.

use std::io::Write;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Uri,
    header::{self, CONTENT_ENCODING, CONTENT_TYPE},
    response::Parts,
};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::TokioExecutor,
};

use super::{failure::ANSWER_BYTES, settings::Compression};

/// The `User-Agent` of the agent's requests.
pub(in crate::export) const USER_AGENT: &str = concat!("podperf/", env!("CARGO_PKG_VERSION"));

/// The only content type that this agent sends.
pub(in crate::export) const PROTOBUF: &str = "application/x-protobuf";
/// The most bytes of status line and headers; hyper accepts no smaller limit.
const HEAD_BYTES: usize = 16 * 1024;

/// The connections to one receiver, kept open between requests.
#[derive(Clone, Debug)]
pub(in crate::export) struct Client(legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

/// The answer of a receiver.
#[derive(Debug)]
pub(in crate::export) struct Answer {
    pub(in crate::export) head: Parts,
    pub(in crate::export) body: Result<Bytes, BadBody>,
}

/// The reasons why the body of an answer was not read, although its head was.
#[derive(Debug, thiserror::Error)]
pub(in crate::export) enum BadBody {
    #[error("the answer has more than {ANSWER_BYTES} bytes")]
    TooLarge,
    #[error("the answer breaks off")]
    Broken,
}

impl Client {
    pub(super) fn new(connector: HttpsConnector<HttpConnector>) -> Self {
        Self(legacy::Client::builder(TokioExecutor::new()).http1_max_buf_size(HEAD_BYTES).build(connector))
    }

    /// Posts a message that is already encoded.
    pub(super) async fn post(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        body: Bytes,
        compression: Compression,
    ) -> Result<Answer, legacy::Error> {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = headers.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        if compression != Compression::None {
            request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(compression.name()));
        }
        self.send(request).await
    }

    /// Sends a request without changes.
    pub(in crate::export) async fn send(&self, request: Request<Bytes>) -> Result<Answer, legacy::Error> {
        let (head, body) = self.0.request(request.map(Full::new)).await?.into_parts();
        let body = match Limited::new(body, ANSWER_BYTES).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(BadBody::TooLarge),
            Err(_) => Err(BadBody::Broken),
        };
        Ok(Answer { head, body })
    }
}

/// Compresses a message. Megabytes take milliseconds, so this must not run on a thread that serves sockets.
pub(super) fn compress(message: Vec<u8>, compression: Compression) -> std::io::Result<Vec<u8>> {
    match compression {
        Compression::None => Ok(message),
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(&message)?;
            encoder.finish()
        }
        Compression::Zstd => zstd::encode_all(message.as_slice(), zstd::DEFAULT_COMPRESSION_LEVEL),
    }
}
