use std::net::SocketAddr;

use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesPartialSuccess, ExportProfilesServiceResponse,
    profiles_service_server::{ProfilesService, ProfilesServiceServer},
};
use prost::Message;
use tokio::net::TcpListener;
use tonic::{
    Code, Request, Response, Status,
    codec::CompressionEncoding,
    transport::{Server, server::TcpIncoming},
};

use super::*;
use crate::{
    attribution::Subject,
    export::{
        ProfileSink as _,
        otlp::{Compression, Exporter, Preset, Protocol, Stats, TlsSettings, failure::rpc},
    },
    model::wait::{Unwind, WaitReason, WaitState},
    stacks::profile::{Activity, Frame, FrameKind, Function, Sample, Stack, SubjectProfile},
    telemetry::test_log::Log,
};

type Answer = Result<ExportProfilesServiceResponse, Status>;

/// A receiver that answers each request with the test's answer for its number.
struct Receiver<F> {
    answer: F,
    seen: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl<F: Fn(u64) -> Answer + Send + Sync + 'static> ProfilesService for Receiver<F> {
    async fn export(
        &self,
        request: Request<ExportProfilesServiceRequest>,
    ) -> Result<Response<ExportProfilesServiceResponse>, Status> {
        assert!(!request.get_ref().resource_profiles.is_empty());
        assert_eq!(request.metadata().get("otlp-profiles-development-version").unwrap(), "1");
        (self.answer)(self.seen.fetch_add(1, Ordering::Relaxed)).map(Response::new)
    }
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn serve(listener: TcpListener, gzip: bool, answer: impl Fn(u64) -> Answer + Send + Sync + 'static) -> Arc<AtomicU64> {
    serve_reading(listener, gzip.then_some(CompressionEncoding::Gzip), answer)
}

fn serve_reading(
    listener: TcpListener,
    encoding: Option<CompressionEncoding>,
    answer: impl Fn(u64) -> Answer + Send + Sync + 'static,
) -> Arc<AtomicU64> {
    let seen = Arc::new(AtomicU64::new(0));
    let mut service = ProfilesServiceServer::new(Receiver { answer, seen: Arc::clone(&seen) });
    if let Some(encoding) = encoding {
        service = service.accept_compressed(encoding);
    }
    let server = Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    seen
}

fn settings(address: SocketAddr) -> Settings {
    Settings {
        endpoint: address.to_string(),
        protocol: Protocol::Grpc,
        path: "/v1development/profiles".to_owned(),
        compression: Compression::Gzip,
        tls: TlsSettings::default(),
        shape: Shape { preset: Preset::Generic, sample_attributes: Vec::new(), resource: Vec::new() },
        timeout: Duration::from_millis(500),
        queue: 2,
        headers: vec![("x-tenant".to_owned(), "7".to_owned())],
    }
}

fn exporter(address: SocketAddr, max_age: Duration) -> Exporter {
    let retry = Retry { first: Duration::from_millis(10), most: Duration::from_millis(40), max_age };
    Exporter::with_retry(settings(address), NODE.to_owned(), retry).unwrap()
}

const NODE: &str = "node-1";
const PATIENT: Duration = Duration::from_secs(60);
const HASTY: Duration = Duration::from_millis(100);

fn window() -> Arc<Profile> {
    let function = Function { name: "nanosleep".into(), file: "".into(), line: 0 };
    let frame = Frame { address: 0x10, kind: FrameKind::Kernel, mapping: None, functions: vec![function] };
    let sample = Sample {
        stack: Arc::new(Stack { frames: vec![Arc::new(frame)], unwind: Unwind::Whole }),
        activity: Activity::OffCpu {
            state: WaitState::Interruptible,
            reason: WaitReason::Sleep,
            waker: None,
            lock: None,
        },
        nanoseconds: 5,
        count: 1,
        last: SystemTime::now(),
        so_far_ns: 0,
        passed: 1,
    };
    let cgroup = SubjectProfile { subject: Subject::Cgroup("/a".into()), samples: vec![sample] };
    Arc::new(Profile { subjects: vec![cgroup], duration: Duration::from_secs(1), ..Profile::default() })
}

async fn until(exporter: &Exporter, reached: impl Fn(&Stats) -> bool) -> Stats {
    for _ in 0..1_000 {
        let stats = exporter.stats();
        if reached(&stats) {
            return stats;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not reached: {:?}", exporter.stats());
}

fn failures(stats: &Stats, cause: Cause) -> u64 {
    stats.failures.iter().find(|(name, _)| *name == cause).unwrap().1
}

fn error(stats: &Stats) -> &str {
    match &stats.health {
        Health::Degraded { error, .. } => error,
        Health::Healthy => panic!("healthy: {stats:?}"),
    }
}

fn accept(_: u64) -> Answer {
    Ok(ExportProfilesServiceResponse::default())
}

#[tokio::test]
async fn windows_arrive() {
    let (listener, address) = listener().await;
    let seen = serve(listener, true, accept);
    let exporter = exporter(address, PATIENT);
    exporter.take(&window());
    let stats = until(&exporter, |stats| stats.exports == 1).await;
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    assert_eq!((stats.lost, stats.dropped, stats.queue_capacity), (0, 0, 2));
    assert_eq!(stats.health, Health::Healthy);
    exporter.take(&window());
    exporter.take(&window());
    exporter.shutdown(PATIENT).await;
    assert_eq!(seen.load(Ordering::Relaxed), 3, "shutdown sends what waits");
}

#[tokio::test]
async fn a_window_without_samples_is_not_sent() {
    let (listener, address) = listener().await;
    let seen = serve(listener, true, accept);
    let exporter = exporter(address, PATIENT);
    exporter.take(&Arc::default());
    exporter.shutdown(PATIENT).await;
    assert_eq!(seen.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_receiver_that_is_down_degrades_and_then_gets_the_window_when_it_is_back() {
    let (port, address) = listener().await;
    drop(port);
    let exporter = exporter(address, PATIENT);
    exporter.take(&window());
    let stats = until(&exporter, |stats| failures(stats, Cause::Unavailable) >= 2).await;
    assert!(error(&stats).contains("refused"), "{stats:?}");
    let seen = serve(TcpListener::bind(address).await.unwrap(), true, accept);
    until(&exporter, |stats| stats.health == Health::Healthy).await;
    assert_eq!((seen.load(Ordering::Relaxed), exporter.stats().lost), (1, 0));
}

#[tokio::test]
async fn a_receiver_that_stays_down_loses_what_is_too_old() {
    let (port, address) = listener().await;
    drop(port);
    let exporter = exporter(address, HASTY);
    exporter.take(&window());
    let stats = until(&exporter, |stats| stats.lost == 1).await;
    assert!(failures(&stats, Cause::Unavailable) > 1);
    assert_eq!((stats.exports, stats.queue_length), (0, 0));
}

#[tokio::test]
async fn a_receiver_that_never_answers_fills_the_queue_and_the_rest_is_dropped_and_counted() {
    let (silent, address) = listener().await;
    let exporter = exporter(address, PATIENT);
    exporter.take(&window());
    until(&exporter, |stats| stats.queue_length == 0).await;
    for _ in 0..10 {
        exporter.take(&window());
    }
    let stats = exporter.stats();
    assert_eq!((stats.dropped, stats.queue_length), (8, 2));
    let stats = until(&exporter, |stats| failures(stats, Cause::Timeout) == 1).await;
    assert_eq!(error(&stats), "no answer within 500ms");
    let started = Instant::now();
    exporter.shutdown(Duration::from_millis(50)).await;
    assert!(started.elapsed() < Duration::from_secs(5), "shutdown keeps its deadline");
    drop(silent);
}

#[tokio::test]
async fn a_refused_window_is_not_tried_again() {
    let (listener, address) = listener().await;
    let seen = serve(listener, true, |_| Err(Status::invalid_argument("no\nthanks")));
    let exporter = exporter(address, PATIENT);
    exporter.take(&window());
    let stats = until(&exporter, |stats| stats.lost == 1).await;
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    assert_eq!(failures(&stats, Cause::Rejected), 1);
    assert_eq!(error(&stats), "InvalidArgument: no thanks");
}

#[tokio::test]
async fn a_token_that_a_receiver_repeats_is_hidden() {
    const TOKEN: &str = "sk-case-0123456789abcdef";
    let (listener, address) = listener().await;
    serve(listener, true, |_| Err(Status::unauthenticated(format!("does not match: Bearer {TOKEN}"))));
    let headers = vec![("authorization".to_owned(), format!("Bearer {TOKEN}"))];
    let settings = Settings { headers, ..settings(address) };
    let exporter = Exporter::with_retry(settings, NODE.to_owned(), Retry::default()).unwrap();
    exporter.take(&window());
    let stats = until(&exporter, |stats| stats.lost == 1).await;
    assert_eq!(error(&stats), "Unauthenticated: does not match: ***");
}

#[tokio::test]
async fn a_receiver_of_another_development_version_is_told_as_such() {
    let (listener, address) = listener().await;
    let words = "invalid or unsupported otlp-profiles-development-version: supported version is 2";
    let seen = serve(listener, true, move |_| Err(Status::invalid_argument(words)));
    let exporter = exporter(address, PATIENT);
    exporter.take(&window());
    let stats = until(&exporter, |stats| stats.lost == 1).await;
    assert_eq!((seen.load(Ordering::Relaxed), failures(&stats, Cause::Rejected)), (1, 1));
    let told = error(&stats).strip_prefix(&format!("InvalidArgument: {words} (")).unwrap();
    assert!(told.starts_with("the receiver takes another development version of OTLP profiles than 1: "), "{told}");
    assert!(told.ends_with("Collector 0.163 takes 1)"), "{told}");
}

#[tokio::test]
async fn a_window_over_the_size_limit_is_not_tried_again() {
    let (listener, address) = listener().await;
    let refuse = |_| Err(Status::resource_exhausted("grpc: received message larger than max (5 vs. 4)"));
    let seen = serve(listener, true, refuse);
    let exporter = exporter(address, PATIENT);
    exporter.take(&window());
    let stats = until(&exporter, |stats| stats.lost == 1).await;
    assert_eq!((seen.load(Ordering::Relaxed), failures(&stats, Cause::TooLarge)), (1, 1));
}

#[tokio::test]
async fn a_busy_receiver_gets_the_wait_that_it_asks_for() {
    let (listener, address) = listener().await;
    let delay = rpc::Delay { seconds: 0, nanos: 300_000_000 };
    let info = rpc::RetryInfo { retry_delay: Some(delay) };
    let any = rpc::Any { type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(), value: info.encode_to_vec() };
    let details = rpc::Status { message: String::new(), details: vec![any] }.encode_to_vec();
    let seen = serve(listener, true, move |request| match request {
        0 => Err(Status::with_details(Code::ResourceExhausted, "busy", details.clone().into())),
        _ => accept(request),
    });
    let started = Instant::now();
    let exporter = exporter(address, PATIENT);
    exporter.take(&window());
    let stats = until(&exporter, |stats| stats.exports == 1).await;
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!((seen.load(Ordering::Relaxed), failures(&stats, Cause::Unavailable)), (2, 1));
}

#[tokio::test]
async fn profiles_refused_by_partial_success_are_counted_and_degrade() {
    let (listener, address) = listener().await;
    serve(listener, true, |request| {
        let partial = ExportProfilesPartialSuccess {
            rejected_profiles: i64::from(request == 0),
            error_message: "no period".to_owned(),
        };
        Ok(ExportProfilesServiceResponse { partial_success: Some(partial) })
    });
    let exporter = exporter(address, PATIENT);
    exporter.take(&window());
    let stats = until(&exporter, |stats| stats.exports == 1 && stats.health != Health::Healthy).await;
    assert_eq!((stats.rejected_profiles, error(&stats)), (1, "1 rejected: no period"));
    exporter.take(&window());
    until(&exporter, |stats| stats.exports == 2 && stats.health == Health::Healthy).await;
}

#[tokio::test]
async fn a_receiver_without_gzip_gets_plain_requests() {
    let (listener, address) = listener().await;
    let seen = serve(listener, false, accept);
    let exporter = exporter(address, PATIENT);
    exporter.take(&window());
    exporter.take(&window());
    let stats = until(&exporter, |stats| stats.exports == 2).await;
    assert_eq!(stats.failures.map(|(_, count)| count), [0; 4]);
    assert_eq!(seen.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn compression_is_given_up_step_by_step() {
    for (encoding, left) in [
        (Some(CompressionEncoding::Zstd), Compression::Zstd),
        (Some(CompressionEncoding::Gzip), Compression::Gzip),
        (None, Compression::None),
    ] {
        let (listener, address) = listener().await;
        let seen = serve_reading(listener, encoding, accept);
        let (health, _) = watch::channel(Health::Healthy);
        let (_stop, stopped) = watch::channel(false);
        let settings = Settings { compression: Compression::Zstd, ..settings(address) };
        let counters = Arc::new(Counters::default());
        let mut worker = Worker::new(settings, NODE.to_owned(), Retry::default(), counters, health, stopped).unwrap();
        let requests = request::requests(&window(), &worker.shape, NODE);
        worker.deliver(requests, Instant::now() + PATIENT).await;
        assert_eq!((worker.sender.compression(), seen.load(Ordering::Relaxed)), (left, 1));
        assert_eq!(worker.counters.failures.each_ref().map(|count| count.load(Ordering::Relaxed)), [0; 4]);
    }
}

#[tokio::test]
async fn a_refusal_that_is_not_for_the_compression_leaves_it_as_it_was() {
    let (listener, address) = listener().await;
    serve_reading(listener, Some(CompressionEncoding::Zstd), |_| Err(Status::unimplemented("no compression helps")));
    let (health, _) = watch::channel(Health::Healthy);
    let (_stop, stopped) = watch::channel(false);
    let settings = Settings { compression: Compression::Zstd, ..settings(address) };
    let counters = Arc::new(Counters::default());
    let mut worker = Worker::new(settings, NODE.to_owned(), Retry::default(), counters, health, stopped).unwrap();
    let requests = request::requests(&window(), &worker.shape, NODE);
    worker.deliver(requests, Instant::now() + PATIENT).await;
    assert_eq!((worker.sender.compression(), worker.counters.lost.load(Ordering::Relaxed)), (Compression::Zstd, 1));
    assert_eq!(worker.counters.failures(Cause::Rejected), 1, "the attempts with less compression are one failure");
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_not_read_and_the_window_not_sent_again() {
    let (listener, address) = listener().await;
    let seen = serve(listener, true, |_| {
        let partial = ExportProfilesPartialSuccess { rejected_profiles: 0, error_message: "a".repeat(70_000) };
        Ok(ExportProfilesServiceResponse { partial_success: Some(partial) })
    });
    let exporter = exporter(address, PATIENT);
    exporter.take(&window());
    let stats = until(&exporter, |stats| stats.health != Health::Healthy).await;
    assert!(error(&stats).starts_with("accepted, but"), "{stats:?}");
    assert_eq!((stats.exports, stats.lost, seen.load(Ordering::Relaxed)), (1, 0, 1));
}

#[tokio::test]
async fn only_the_change_of_state_is_logged() {
    let log = Log::default();
    // With a single subscriber in the process, a parallel test that logs first disables the event for all tests.
    let _other = tracing::Dispatch::new(tracing_subscriber::registry());
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let (listener, address) = listener().await;
    serve(listener, true, |request| match request {
        0..5 => Err(Status::unavailable("restarting")),
        _ => accept(request),
    });
    let exporter = exporter(address, PATIENT);
    exporter.take(&window());
    exporter.take(&window());
    until(&exporter, |stats| stats.exports == 2).await;
    exporter.shutdown(PATIENT).await;
    let log = log.text();
    assert_eq!(log.matches("failed to export profiles").count(), 1, "{log}");
    assert_eq!(log.matches("exporting profiles again").count(), 1, "{log}");
}
