//! One attempt at one request, in either protocol.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, ExportProfilesServiceResponse, profiles_service_client::ProfilesServiceClient,
};
use prost::Message;
use tonic::{Extensions, Request, codec::CompressionEncoding, metadata::MetadataMap, transport::Channel};

use super::{
    EndpointError,
    failure::{ANSWER_BYTES, Failure},
    http_failure,
    link::Link,
    post::{Answer, Client, PROTOBUF, compress},
    settings::{Compression, Protocol},
};

/// What is open to the receiver.
#[derive(Debug)]
pub(super) enum Transport {
    Grpc(ProfilesServiceClient<Channel>),
    Http(Client),
}

/// A request that the receiver accepted.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// What it refused out of it.
    pub(super) rejected_profiles: u64,
    /// What it said of that, or why that cannot be told.
    pub(super) message: String,
}

impl Transport {
    /// Opens no connection; the first request does.
    pub(super) fn open(link: &Link, protocol: Protocol, compression: Compression) -> Result<Self, EndpointError> {
        Ok(match protocol {
            Protocol::Grpc => Self::Grpc(grpc(link.channel()?, compression)),
            Protocol::Http => Self::Http(link.client()?),
        })
    }

    pub(super) async fn attempt(
        &mut self,
        link: &Link,
        request: ExportProfilesServiceRequest,
        compression: Compression,
        timeout: Duration,
    ) -> Result<Accepted, Failure> {
        let answer = async {
            match self {
                Self::Grpc(client) => send_grpc(client, link.headers(), request).await,
                Self::Http(client) => send_http(client, link, request, compression).await,
            }
        };
        tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_| Err(Failure::silence(timeout)))
    }
}

fn grpc(channel: Channel, compression: Compression) -> ProfilesServiceClient<Channel> {
    // gRPC for Go answers in the encoding of the request without asking whether that is understood.
    let client = ProfilesServiceClient::new(channel)
        .max_decoding_message_size(ANSWER_BYTES)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Zstd);
    match compression {
        Compression::Gzip => client.send_compressed(CompressionEncoding::Gzip),
        Compression::Zstd => client.send_compressed(CompressionEncoding::Zstd),
        Compression::None => client,
    }
}

async fn send_grpc(
    client: &mut ProfilesServiceClient<Channel>,
    headers: &HeaderMap,
    request: ExportProfilesServiceRequest,
) -> Result<Accepted, Failure> {
    let headers = MetadataMap::from_headers(headers.clone());
    let answer = client.export(Request::from_parts(headers, Extensions::default(), request)).await;
    match answer {
        Ok(answer) => Ok(Accepted::of(answer.into_inner())),
        // It took the request, and then said more than anyone wants to hear.
        Err(status) if Failure::is_of_answer(&status) => Ok(Accepted::unread(status.message())),
        Err(status) => Err(Failure::of(&status)),
    }
}

async fn send_http(
    client: &Client,
    link: &Link,
    request: ExportProfilesServiceRequest,
    compression: Compression,
) -> Result<Accepted, Failure> {
    let body = tokio::task::spawn_blocking(move || compress(request.encode_to_vec(), compression)).await;
    let body = match body {
        Ok(Ok(body)) => Bytes::from(body),
        Ok(Err(error)) => return Err(Failure::own(format!("failed to compress the request: {error}"))),
        Err(error) => return Err(Failure::own(format!("failed to encode the request: {error}"))),
    };
    let answer = client.post(link.uri(), link.headers(), body, compression).await;
    let Answer { head, body } = answer.map_err(|error| Failure::unreachable(&error))?;
    if !head.status.is_success() {
        return Err(http_failure::of(&head, body.as_deref().unwrap_or_default(), compression));
    }
    // Some receivers answer an empty JSON object, whatever they were asked for.
    let is_protobuf = head.headers.get(http::header::CONTENT_TYPE).is_some_and(|kind| kind == PROTOBUF);
    Ok(match body {
        Ok(body) if is_protobuf => Accepted::of(ExportProfilesServiceResponse::decode(body).unwrap_or_default()),
        Ok(_) => Accepted::default(),
        Err(bad) => Accepted::unread(&bad.to_string()),
    })
}

impl Accepted {
    fn of(answer: ExportProfilesServiceResponse) -> Self {
        let partial = answer.partial_success.unwrap_or_default();
        // 0 with a message is a warning of the receiver's.
        let rejected_profiles = u64::try_from(partial.rejected_profiles).unwrap_or(0);
        let message = match rejected_profiles {
            0 => String::new(),
            rejected => format!("{rejected} profiles rejected: {}", partial.error_message),
        };
        Self { rejected_profiles, message }
    }

    fn unread(why: &str) -> Self {
        Self { rejected_profiles: 0, message: format!("accepted, but what was rejected of it cannot be told: {why}") }
    }
}
