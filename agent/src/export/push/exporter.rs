//! OpenTelemetry's exporter for metrics, over the way that profiles go: it makes the request, ours carries it.
//!
//! In both protocols, since its own gRPC client keeps the receiver's words, refused points and a refused compression to
//! itself, and takes headers from the environment that the file has overruled.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use http::{Request, Response, Uri};
use opentelemetry_http::{Bytes, HttpClient, HttpError};
use opentelemetry_otlp::{MetricExporter, Protocol, RetryPolicy, WithExportConfig, WithHttpConfig};
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    metrics::v1::{Metric, metric::Data},
};
use opentelemetry_sdk::metrics::{data::ResourceMetrics, exporter::PushMetricExporter};
use prost::Message;
use tokio::sync::Mutex;

use super::split::split;
use crate::export::otlp::{EndpointError, Sender, Settings, Signal};

/// As for profiles: 4 MiB, the default of gRPC servers, less room for what a proxy on the way adds.
const MAX_REQUEST_BYTES: usize = 3_584 * 1024;

/// The way to a receiver of metrics.
#[derive(Debug)]
pub(super) struct Exporter {
    exporter: MetricExporter,
    carrier: Carrier,
    uri: Uri,
}

impl Exporter {
    /// `started` is since when the counters count.
    pub(super) fn new(receiver: &Settings, started: SystemTime) -> Result<Self, EndpointError> {
        let sender = Sender::new(receiver)?;
        let uri = sender.uri().clone();
        let carrier = Carrier(Arc::new(Mutex::new(Carried { sender, started, said: None })));
        // What is set here, no variable of OpenTelemetry's changes: they are in `receiver` already.
        let exporter = MetricExporter::builder()
            .with_http()
            .with_http_client(carrier.clone())
            .with_endpoint(uri.to_string())
            .with_protocol(Protocol::HttpBinary)
            .with_retry_policy(RetryPolicy::disabled())
            // What is too large is split on the way.
            .with_max_request_body_size(usize::MAX)
            .build()
            .ok()
            .ok_or_else(|| EndpointError::Syntax { endpoint: uri.to_string() })?;
        Ok(Self { exporter, carrier, uri })
    }

    pub(super) const fn uri(&self) -> &Uri {
        &self.uri
    }

    /// One attempt. What was delivered may still have something said of it: points that were refused, or certificates
    /// that cannot be used as they are now.
    pub(super) async fn export(&self, metrics: &ResourceMetrics) -> Result<Option<String>, String> {
        let exported = self.exporter.export(metrics).await;
        let said = self.carrier.0.lock().await.said.take();
        match exported {
            Ok(()) => Ok(said),
            // Its own words are no more than that there was an error, if it was on the way.
            Err(error) => Err(said.unwrap_or_else(|| error.to_string())),
        }
    }
}

/// The client that the exporter sends with.
#[derive(Clone, Debug)]
struct Carrier(Arc<Mutex<Carried>>);

#[derive(Debug)]
struct Carried {
    sender: Sender,
    started: SystemTime,
    /// Of the last export. The exporter would keep it to itself.
    said: Option<String>,
}

impl Carried {
    async fn carry(&mut self, body: Bytes) -> Result<Option<String>, String> {
        let mut request = ExportMetricsServiceRequest::decode(body).map_err(|error| error.to_string())?;
        set_start(&mut request, self.started);
        let mut said = None;
        for part in split(request, MAX_REQUEST_BYTES) {
            let accepted = self.sender.send(&Signal::Metrics(part)).await.map_err(|failure| failure.text)?;
            said = Some(accepted.message).filter(|said| !said.is_empty()).or(said);
        }
        Ok(self.sender.problem().map(str::to_owned).or(said))
    }
}

#[tonic::async_trait]
impl HttpClient for Carrier {
    /// Address, headers and protocol are the sender's own.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let mut carried = self.0.lock().await;
        let delivered = carried.carry(request.into_body()).await;
        carried.said = delivered.clone().unwrap_or_else(Some);
        delivered.map(|_| Response::default()).map_err(HttpError::from)
    }
}

/// The SDK has counters begin with the process, and these may be older.
fn set_start(request: &mut ExportMetricsServiceRequest, started: SystemTime) {
    let started = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    let started = u64::try_from(started.as_nanos()).unwrap_or(0);
    let scopes = request.resource_metrics.iter_mut().flat_map(|resource| &mut resource.scope_metrics);
    for Metric { data, .. } in scopes.flat_map(|scope| &mut scope.metrics) {
        if let Some(Data::Sum(sum)) = data {
            sum.data_points.iter_mut().for_each(|point| point.start_time_unix_nano = started);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, sync::PoisonError, time::Duration};

    use opentelemetry::KeyValue;
    use opentelemetry_proto::tonic::collector::metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
        metrics_service_server::{MetricsService, MetricsServiceServer},
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

    /// What arrived, header `x-tenant` included, and the answers to give, the last one first.
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
        Exporter::new(&settings, started()).unwrap()
    }

    fn started() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(5)
    }

    fn metrics() -> ResourceMetrics {
        let values = Values::Counts(vec![(vec![KeyValue::new("podperf.cgroup.path", "/a")], 3)]);
        let points = Points { unit: "{switch}", values };
        let observed = Observed::from([("podperf.cgroup.context_switches".to_owned(), points)]);
        Instruments::new("node-1", &[]).collect(observed).unwrap()
    }

    #[tokio::test]
    async fn what_a_receiver_over_grpc_says_is_told_and_it_gets_the_compression_that_it_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let exporter = exporter(listener.local_addr().unwrap(), Speaks::Grpc);
        let partial = ExportMetricsPartialSuccess { rejected_data_points: 2, error_message: "too old".to_owned() };
        let partial = ExportMetricsServiceResponse { partial_success: Some(partial) };
        let receiver = Receiver::default();
        *receiver.answers.lock().unwrap() = vec![Err(Status::permission_denied("no such tenant")), Ok(partial)];
        let service = MetricsServiceServer::new(receiver.clone()).accept_compressed(CompressionEncoding::Gzip);
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)));
        let metrics = metrics();
        assert_eq!(exporter.export(&metrics).await, Ok(Some("2 rejected: too old".to_owned())));
        assert_eq!(exporter.export(&metrics).await, Err("PermissionDenied: no such tenant".to_owned()));
        assert_eq!(exporter.export(&metrics).await, Ok(None));
        let mut sent = ("7".to_owned(), ExportMetricsServiceRequest::from(&metrics));
        set_start(&mut sent.1, started());
        assert!(format!("{:?}", sent.1).contains("start_time_unix_nano: 5000000000"));
        assert_eq!(*receiver.seen.lock().unwrap(), [sent.clone(), sent.clone(), sent]);
    }

    #[tokio::test]
    async fn what_a_receiver_over_http_says_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let exporter = exporter(listener.local_addr().unwrap(), Speaks::Http);
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_buf(&mut Vec::new()).await.unwrap();
            let answer = "HTTP/1.1 503 X\r\ncontent-type: text/plain\r\ncontent-length: 7\r\n\r\nupgrade";
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.ok();
        });
        assert_eq!(exporter.export(&metrics()).await, Err("HTTP 503: upgrade".to_owned()));
    }

    #[tokio::test]
    async fn nothing_observed_is_nothing_sent() {
        let nowhere = exporter("127.0.0.1:1".parse().unwrap(), Speaks::Grpc);
        assert!(nowhere.export(&metrics()).await.unwrap_err().contains("refused"));
        assert_eq!(nowhere.export(&ResourceMetrics::default()).await, Ok(None));
    }
}
