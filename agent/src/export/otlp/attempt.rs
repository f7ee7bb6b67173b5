//! Makes one attempt at one request, for either signal and either protocol.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request,
    header::{self, CONTENT_ENCODING, CONTENT_TYPE},
};
use opentelemetry_proto::tonic::collector::{
    metrics::v1::{ExportMetricsServiceRequest, metrics_service_client::MetricsServiceClient},
    profiles::v1development::{
        ExportProfilesServiceRequest, ExportProfilesServiceResponse, profiles_service_client::ProfilesServiceClient,
    },
};
use prost::Message;
use tonic::{Extensions, codec::CompressionEncoding, metadata::MetadataMap, transport::Channel};

use super::{
    EndpointError,
    answer::{self, Accepted, PROTOBUF},
    failure::{ANSWER_BYTES, Failure},
    http_failure,
    link::{Link, USER_AGENT},
    request::PROFILES_VERSION,
    settings::Protocol,
};
use crate::transport::{compression::Compression, http::Client};

/// A request of one of the two signals.
#[derive(Clone, Debug)]
pub(in crate::export) enum Signal {
    Profiles(ExportProfilesServiceRequest),
    Metrics(ExportMetricsServiceRequest),
}

impl Signal {
    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Profiles(request) => request.encode_to_vec(),
            Self::Metrics(request) => request.encode_to_vec(),
        }
    }

    /// Returns the configured headers, with the version of the message for profiles.
    fn headers(&self, configured: &HeaderMap) -> HeaderMap {
        let mut headers = configured.clone();
        if matches!(self, Self::Profiles(_)) {
            let (name, version) = PROFILES_VERSION;
            headers.insert(name, HeaderValue::from_static(version));
        }
        headers
    }
}

/// The open connections to the receiver.
#[derive(Debug)]
pub(super) enum Connections {
    Grpc(Channel),
    Http(Box<Client>),
}

impl Connections {
    /// Makes the client. The first request opens the connection.
    pub(super) fn open(link: &Link, protocol: Protocol) -> Result<Self, EndpointError> {
        Ok(match protocol {
            Protocol::Grpc => Self::Grpc(link.channel()?),
            Protocol::Http => Self::Http(Box::new(link.client()?)),
        })
    }

    pub(super) async fn attempt(
        &self,
        link: &Link,
        signal: Signal,
        compression: Compression,
        timeout: Duration,
    ) -> Result<Accepted, Failure> {
        link.expect_answer();
        let answer = async {
            match self {
                Self::Grpc(channel) => send_grpc(channel.clone(), link, signal, compression).await,
                Self::Http(client) => send_http(client, link, signal, compression).await,
            }
        };
        // All that is reported of a receiver passes here.
        match tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| Err(Failure::silence(timeout))) {
            Ok(accepted) => Ok(Accepted { message: link.secrets.hide(&accepted.message), ..accepted }),
            Err(failure) => Err(link.tell(failure)),
        }
    }
}

/// A macro, since the generated clients have no type in common.
macro_rules! grpc_client {
    ($client:ident, $channel:expr, $compression:expr) => {{
        // gRPC for Go compresses its answer as the request was compressed, without checking whether the client reads
        // that.
        let client = $client::new($channel)
            .max_decoding_message_size(ANSWER_BYTES)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd);
        match $compression {
            Compression::Gzip => client.send_compressed(CompressionEncoding::Gzip),
            Compression::Zstd => client.send_compressed(CompressionEncoding::Zstd),
            Compression::None => client,
        }
    }};
}

async fn send_grpc(
    channel: Channel,
    link: &Link,
    signal: Signal,
    compression: Compression,
) -> Result<Accepted, Failure> {
    let headers = MetadataMap::from_headers(signal.headers(&link.headers));
    let answer = match signal {
        Signal::Profiles(request) => {
            let mut client = grpc_client!(ProfilesServiceClient, channel, compression);
            let answer = client.export(tonic::Request::from_parts(headers, Extensions::default(), request)).await;
            let partial = |it: ExportProfilesServiceResponse| it.partial_success.unwrap_or_default();
            answer.map(|it| partial(it.into_inner())).map(|it| Accepted::of(it.rejected_profiles, &it.error_message))
        }
        Signal::Metrics(request) => {
            let mut client = grpc_client!(MetricsServiceClient, channel, compression);
            let answer = client.export(tonic::Request::from_parts(headers, Extensions::default(), request)).await;
            let partial = answer.map(|it| it.into_inner().partial_success.unwrap_or_default());
            partial.map(|it| Accepted::of(it.rejected_data_points, &it.error_message))
        }
    };
    match answer {
        Ok(accepted) => Ok(accepted),
        // The receiver accepted the request, but its answer is too long to read.
        Err(status) if Failure::is_of_answer(&status) => Ok(Accepted::unread(status.message())),
        Err(status) => Err(Failure::of(&status)),
    }
}

async fn send_http(
    client: &Client,
    link: &Link,
    signal: Signal,
    compression: Compression,
) -> Result<Accepted, Failure> {
    let headers = signal.headers(&link.headers);
    let body = tokio::task::spawn_blocking(move || compression.compress(signal.encode())).await;
    let body = match body {
        Ok(Ok(body)) => Bytes::from(body),
        Ok(Err(error)) => return Err(Failure::own(format!("failed to compress the request: {error}"))),
        Err(error) => return Err(Failure::own(format!("failed to encode the request: {error}"))),
    };
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = link.uri().clone();
    *request.headers_mut() = headers;
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
    request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    if let Some(login) = link.proxy_login() {
        request.headers_mut().insert(header::PROXY_AUTHORIZATION, login.clone());
    }
    if compression != Compression::None {
        request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(compression.name()));
    }
    let (head, body) = client.send(request).await.map_err(|error| Failure::unreachable(&error))?;
    if !head.status.is_success() {
        return Err(http_failure::of(&head, body.as_deref().unwrap_or_default(), compression));
    }
    answer::read(&head, body)
}
