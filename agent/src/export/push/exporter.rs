//! Exports metrics with OpenTelemetry's exporter, which builds the request, and podperf's own sender, which sends it.
//!
//! The sender is used for both protocols. The exporter's own gRPC client does not return the receiver's message,
//! rejected points or a refused compression, and takes headers from the environment that the configuration file has
//! overruled.

use std::sync::Arc;

use http::{Request, Response, Uri};
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::{MetricExporter, Protocol, RetryPolicy, WithExportConfig, WithHttpConfig};
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{AnyValue, any_value::Value},
    metrics::v1::{Metric, NumberDataPoint, metric::Data},
};
use opentelemetry_sdk::metrics::{data::ResourceMetrics, exporter::PushMetricExporter};
use prost::Message;
use tokio::sync::Mutex;

use super::{
    names::START,
    split::{metrics, split},
};
use crate::export::otlp::{EndpointError, Sender, Settings, Signal};

/// The same limit as for profiles: 4 MiB, the default of gRPC servers, less room for the data that a proxy on the way
/// adds.
const MAX_REQUEST_BYTES: usize = 3_584 * 1024;

/// The way to a receiver of metrics.
#[derive(Debug)]
pub(super) struct Exporter {
    exporter: MetricExporter,
    carrier: Carrier,
    uri: Uri,
}

impl Exporter {
    pub(super) fn new(receiver: &Settings) -> Result<Self, EndpointError> {
        let sender = Sender::new(receiver)?;
        let uri = sender.uri().clone();
        let carrier = Carrier(Arc::new(Mutex::new(Carried { sender, message: None, more: Vec::new() })));
        // The values that are set here override the variables of OpenTelemetry, which `receiver` already includes.
        let exporter = MetricExporter::builder()
            .with_http()
            .with_http_client(carrier.clone())
            .with_endpoint(uri.to_string())
            .with_protocol(Protocol::HttpBinary)
            .with_retry_policy(RetryPolicy::disabled())
            // The carrier splits requests that are too large.
            .with_max_request_body_size(usize::MAX)
            .build()
            .ok()
            .ok_or_else(|| EndpointError::Syntax { endpoint: uri.to_string() })?;
        Ok(Self { exporter, carrier, uri })
    }

    pub(super) const fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Makes one attempt. A delivered request may still return a message: points that were rejected, or certificate
    /// files that cannot be used now.
    /// `more` are metrics that the SDK cannot make; they are added to its request.
    pub(super) async fn export(&self, metrics: &ResourceMetrics, more: Vec<Metric>) -> Result<Option<String>, String> {
        self.carrier.0.lock().await.more = more;
        let exported = self.exporter.export(metrics).await;
        let message = self.carrier.0.lock().await.message.take();
        match exported {
            Ok(()) => Ok(message),
            // If sending failed, the exporter's own error says only that there was an error.
            Err(error) => Err(message.unwrap_or_else(|| error.to_string())),
        }
    }
}

/// The HTTP client that the exporter uses.
#[derive(Clone, Debug)]
struct Carrier(Arc<Mutex<Carried>>);

#[derive(Debug)]
struct Carried {
    sender: Sender,
    /// The receiver's message on the last export, which the exporter does not return.
    message: Option<String>,
    /// The metrics that the next request has besides those of the SDK.
    more: Vec<Metric>,
}

impl Carried {
    async fn carry(&mut self, body: Bytes) -> Result<Option<String>, String> {
        let mut request = ExportMetricsServiceRequest::decode(body).map_err(|error| error.to_string())?;
        set_starts(&mut request);
        if let Some(metrics) = metrics(&mut request) {
            metrics.append(&mut self.more);
        }
        let mut message = None;
        for part in split(request, MAX_REQUEST_BYTES) {
            let accepted = self.sender.send(&Signal::Metrics(part)).await.map_err(|failure| failure.text)?;
            message = Some(accepted.message).filter(|message| !message.is_empty()).or(message);
        }
        Ok(self.sender.problem().map(str::to_owned).or(message))
    }
}

#[tonic::async_trait]
impl HttpClient for Carrier {
    /// Sends the body. Address, headers and protocol are those of the sender.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut carried = self.0.lock().await;
        let delivered = carried.carry(request.into_body()).await;
        carried.message = delivered.clone().unwrap_or_else(Some);
        delivered.map(|_| Response::default()).map_err(HttpError::from)
    }
}

/// Sets the start of each point from its attribute [`START`]. The SDK gives all counters the start of the process, but
/// rows may be older, and a row that ended and came back is younger.
fn set_starts(request: &mut ExportMetricsServiceRequest) {
    let scopes = request.resource_metrics.iter_mut().flat_map(|resource| &mut resource.scope_metrics);
    for Metric { data, .. } in scopes.flat_map(|scope| &mut scope.metrics) {
        if let Some(Data::Sum(sum)) = data {
            sum.data_points.iter_mut().for_each(set_start);
        }
    }
}

fn set_start(point: &mut NumberDataPoint) {
    let Some(at) = point.attributes.iter().position(|attribute| attribute.key == START) else { return };
    if let Some(AnyValue { value: Some(Value::IntValue(start)) }) = point.attributes.remove(at).value {
        point.start_time_unix_nano = start.try_into().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, sync::PoisonError, time::Duration};

    use opentelemetry::KeyValue;
    use opentelemetry_proto::tonic::{
        collector::metrics::v1::{
            ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        metrics::v1::number_data_point,
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use tonic::{
        Status,
        codec::CompressionEncoding,
        transport::{Server, server::TcpIncoming},
    };

    use super::{
        super::{
            instruments::Instruments,
            points::{Observed, Points, Values},
        },
        *,
    };
    use crate::export::otlp::{Compression, Preset, Protocol as Speaks, Shape, TlsSettings};

    type Answer = Result<ExportMetricsServiceResponse, Status>;

    /// The received requests with their header `x-tenant`, and the answers to send, the last one first.
    #[derive(Clone, Default)]
    struct Receiver {
        seen: Arc<std::sync::Mutex<Vec<(String, ExportMetricsServiceRequest)>>>,
        answers: Arc<std::sync::Mutex<Vec<Answer>>>,
    }

    #[tonic::async_trait]
    impl MetricsService for Receiver {
        async fn export(
            &self,
            request: tonic::Request<ExportMetricsServiceRequest>,
        ) -> Result<tonic::Response<ExportMetricsServiceResponse>, Status> {
            let tenant = request.metadata().get("x-tenant").unwrap().to_str().unwrap().to_owned();
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).push((tenant, request.into_inner()));
            let answer = self.answers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            answer.unwrap_or_else(|| Ok(ExportMetricsServiceResponse::default())).map(tonic::Response::new)
        }
    }

    fn exporter(address: SocketAddr, protocol: Speaks) -> Exporter {
        let settings = Settings {
            endpoint: address.to_string(),
            protocol,
            path: "/v1/metrics".to_owned(),
            compression: Compression::Zstd,
            tls: TlsSettings::default(),
            shape: Shape { preset: Preset::Generic, sample_attributes: Vec::new(), resource: Vec::new() },
            timeout: Duration::from_millis(500),
            queue: 1,
            headers: vec![("x-tenant".to_owned(), "7".to_owned())],
        };
        Exporter::new(&settings).unwrap()
    }

    fn metrics() -> ResourceMetrics {
        let attributes = vec![KeyValue::new("podperf.cgroup.path", "/a"), KeyValue::new(START, 5_000_000_000_i64)];
        let values = Values::Counts(vec![(attributes, 3)]);
        let points = Points { unit: "{switch}", values };
        let observed = Observed::from([("podperf.cgroup.context_switches".to_owned(), points)]);
        Instruments::new("node-1", &[]).collect(observed).unwrap()
    }

    #[tokio::test]
    async fn the_message_of_a_receiver_over_grpc_is_reported_and_it_gets_the_compression_that_it_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let exporter = exporter(listener.local_addr().unwrap(), Speaks::Grpc);
        let partial = ExportMetricsPartialSuccess { rejected_data_points: 2, error_message: "too old".to_owned() };
        let partial = ExportMetricsServiceResponse { partial_success: Some(partial) };
        let receiver = Receiver::default();
        *receiver.answers.lock().unwrap() = vec![Err(Status::permission_denied("no such tenant")), Ok(partial)];
        let service = MetricsServiceServer::new(receiver.clone()).accept_compressed(CompressionEncoding::Gzip);
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)));
        let metrics = metrics();
        assert_eq!(exporter.export(&metrics, Vec::new()).await, Ok(Some("2 rejected: too old".to_owned())));
        assert_eq!(exporter.export(&metrics, Vec::new()).await, Err("PermissionDenied: no such tenant".to_owned()));
        assert_eq!(exporter.export(&metrics, Vec::new()).await, Ok(None));
        let mut sent = ("7".to_owned(), ExportMetricsServiceRequest::from(&metrics));
        set_starts(&mut sent.1);
        let message = format!("{:?}", sent.1);
        assert!(message.contains("start_time_unix_nano: 5000000000") && !message.contains(START), "{message}");
        assert_eq!(*receiver.seen.lock().unwrap(), [sent.clone(), sent.clone(), sent]);
    }

    #[tokio::test]
    async fn a_row_that_ended_and_comes_back_never_falls_under_the_same_start() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let exporter = exporter(listener.local_addr().unwrap(), Speaks::Grpc);
        let receiver = Receiver::default();
        let service = MetricsServiceServer::new(receiver.clone()).accept_compressed(CompressionEncoding::Zstd);
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)));
        let mut instruments = Instruments::new("node-1", &[]);
        // The start and the count of `/a` in each push, and the count of `/b`, which never ends.
        for (a, b) in [(Some((5, 10)), 1), (Some((5, 12)), 2), (None, 3), (Some((9, 3)), 4)] {
            let point = |path, (start, count): (i64, u64)| {
                (vec![KeyValue::new("podperf.cgroup.path", path), KeyValue::new(START, start * 1_000_000_000)], count)
            };
            let counts = a.map(|a| point("/a", a)).into_iter().chain([point("/b", (5, b))]).collect();
            let points = Points { unit: "{switch}", values: Values::Counts(counts) };
            let observed = Observed::from([("podperf.cgroup.context_switches".to_owned(), points)]);
            assert_eq!(exporter.export(&instruments.collect(observed).unwrap(), Vec::new()).await, Ok(None));
        }
        let mut seen = Vec::new();
        for (_, request) in receiver.seen.lock().unwrap().iter() {
            let Some(Data::Sum(sum)) = &request.resource_metrics[0].scope_metrics[0].metrics[0].data else { panic!() };
            for point in &sum.data_points {
                assert_eq!(point.attributes.len(), 1, "{point:?}");
                assert!(point.start_time_unix_nano < point.time_unix_nano);
                let is_a = format!("{:?}", point.attributes).contains("\"/a\"");
                let Some(number_data_point::Value::AsInt(count)) = point.value else { panic!("{point:?}") };
                seen.extend(is_a.then_some((point.start_time_unix_nano / 1_000_000_000, count)));
            }
        }
        assert_eq!(seen, [(5, 10), (5, 12), (9, 3)]);
    }

    #[tokio::test]
    async fn the_message_of_a_receiver_over_http_is_reported() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let exporter = exporter(listener.local_addr().unwrap(), Speaks::Http);
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_buf(&mut Vec::new()).await.unwrap();
            let answer = "HTTP/1.1 503 X\r\ncontent-type: text/plain\r\ncontent-length: 7\r\n\r\nupgrade";
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.ok();
        });
        assert_eq!(exporter.export(&metrics(), Vec::new()).await, Err("HTTP 503: upgrade".to_owned()));
    }

    #[tokio::test]
    async fn nothing_observed_is_nothing_sent() {
        let nowhere = exporter("127.0.0.1:1".parse().unwrap(), Speaks::Grpc);
        assert!(nowhere.export(&metrics(), Vec::new()).await.unwrap_err().contains("refused"));
        assert_eq!(nowhere.export(&ResourceMetrics::default(), Vec::new()).await, Ok(None));
    }
}
