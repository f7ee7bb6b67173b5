//! The OpenTelemetry eBPF profiler (`bench/programs/build-profiler.sh`) on the same loads at the same time. It samples
//! stacks on the CPU, and sends them over OTLP to a receiver in this process.

use std::{
    collections::BTreeSet,
    fs::File,
    net::{Ipv4Addr, SocketAddr},
    ops::Range,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use nix::{sys::signal::Signal, unistd::Pid};
use opentelemetry_proto::tonic::{
    collector::profiles::v1development::{
        ExportProfilesServiceRequest, ExportProfilesServiceResponse,
        profiles_service_server::{ProfilesService, ProfilesServiceServer},
    },
    common::v1::any_value::Value,
};
use podperf_tests::{pprof::Sample, process::nanos, suite::within};
use tempfile::TempDir;
use tonic::{
    Request, Response, Status,
    codec::CompressionEncoding,
    transport::{Server, server::TcpIncoming},
};

use super::Ends;
use crate::{monitor::Process, setup::with_tracefs};

/// Samples a second on each CPU: podperf's default.
const HERTZ: &str = "49";
/// The longest time until its first samples: at first it reads the files of all processes.
const STARTS: Duration = Duration::from_secs(180);
/// The time in which it sends a sample; it reports each second.
const REPORTS: Duration = Duration::from_secs(3);
/// The largest request that it sends.
const MOST_BYTES: usize = 32 << 20;
const PROCESS_ID: &str = "process.pid";

/// The outermost frame of a stack: the file's name without directories, and the address as the file counts it. A frame
/// that stands for an error has no file.
type Place = (String, u64);

/// Samples with one stack.
#[derive(Debug)]
pub(super) struct Stack {
    pid: i64,
    samples: u64,
    end: Place,
}

/// The running profiler, which ends on drop.
pub(super) struct Profiler {
    process: Process,
    receiver: Receiver,
    _scratch: TempDir,
}

/// All requests that have arrived.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Vec<ExportProfilesServiceRequest>>>);

impl Receiver {
    fn requests(&self) -> MutexGuard<'_, Vec<ExportProfilesServiceRequest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens until this process ends.
    fn listen(&self) -> Result<SocketAddr> {
        let service = ProfilesServiceServer::new(self.clone())
            .accept_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(MOST_BYTES);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let incoming = runtime.block_on(async { TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()) })?;
        let address = incoming.local_addr()?;
        thread::spawn(move || runtime.block_on(Server::builder().add_service(service).serve_with_incoming(incoming)));
        Ok(address)
    }
}

#[tonic::async_trait]
impl ProfilesService for Receiver {
    async fn export(
        &self,
        request: Request<ExportProfilesServiceRequest>,
    ) -> Result<Response<ExportProfilesServiceResponse>, Status> {
        self.requests().push(request.into_inner());
        Ok(Response::new(ExportProfilesServiceResponse::default()))
    }
}

impl Profiler {
    /// Starts it, and waits for its first samples.
    pub(super) fn start(program: &Path) -> Result<Self> {
        ensure!(program.is_file(), "no `{}` (bench/programs/build-profiler.sh)", program.display());
        let (receiver, scratch) = (Receiver::default(), tempfile::tempdir()?);
        let log = scratch.path().join("log");
        let mut command = with_tracefs(&program.canonicalize()?)?;
        command.args(["-disable-tls", "-send-error-frames", "-samples-per-second", HERTZ, "-reporter-interval", "1s"]);
        command.arg("-collection-agent").arg(receiver.listen()?.to_string());
        command.stdout(Stdio::null()).stderr(File::create(&log)?);
        let mut process = Process::spawn("ebpf-profiler", &mut command, Signal::SIGTERM, log)?;
        within(STARTS, "the profiler sends samples", || {
            process.check()?;
            Ok((!receiver.requests().is_empty()).then_some(()))
        })?;
        Ok(Self { process, receiver, _scratch: scratch })
    }

    /// Ends it, and returns what it sampled in this many seconds from `begin` on, which is the time since 1970.
    pub(super) fn end(mut self, begin: Duration, seconds: u64) -> Result<Vec<Stack>> {
        thread::sleep(REPORTS);
        self.process.check()?;
        let window = nanos(begin)..nanos(begin + Duration::from_secs(seconds));
        Ok(self.receiver.requests().iter().flat_map(|request| stacks(request, &window)).collect())
    }
}

/// Returns how the stacks of these processes end. A stack is whole if its outermost frame is that of a whole stack of
/// podperf.
pub(super) fn ends<'a>(stacks: &[Stack], processes: &[Pid], of_podperf: impl Iterator<Item = &'a Sample>) -> Ends {
    let whole = of_podperf.filter(|sample| matches!(sample.label("unwind"), "" | "guessed"));
    let outermost = whole.filter_map(|sample| sample.frames.last()).filter(|frame| frame.file != "[kernel]");
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let roots: BTreeSet<Place> = outermost.map(|frame| (name(&frame.file), frame.address)).collect();
    let mut ends = Ends::default();
    let is_of = |stack: &&Stack| processes.iter().any(|pid| i64::from(pid.as_raw()) == stack.pid);
    for stack in stacks.iter().filter(is_of) {
        let end = match stack.end.0.as_str() {
            _ if roots.contains(&stack.end) => "whole",
            "" => "error",
            file => file,
        };
        *ends.0.entry(end.to_owned()).or_default() += stack.samples;
    }
    ends
}

fn stacks(request: &ExportProfilesServiceRequest, window: &Range<u64>) -> Vec<Stack> {
    let Some(dictionary) = &request.dictionary else { return Vec::new() };
    let text = |index: i32| at(&dictionary.string_table, index).map_or("", String::as_str);
    let end_of = |stack: i32| -> Option<Place> {
        let outermost = at(&dictionary.stack_table, stack)?.location_indices.last()?;
        let location = at(&dictionary.location_table, *outermost)?;
        let file = at(&dictionary.mapping_table, location.mapping_index)?.filename_strindex;
        Some((text(file).to_owned(), location.address))
    };
    let mut stacks = Vec::new();
    for resource in &request.resource_profiles {
        let mut attributes = resource.resource.iter().flat_map(|it| &it.attributes);
        // The key is in either place.
        let pid = attributes.find(|it| it.key == PROCESS_ID || text(it.key_strindex) == PROCESS_ID);
        let pid = pid.and_then(|it| it.value.as_ref()?.value.as_ref());
        let Some(Value::IntValue(pid)) = pid else { continue };
        let profiles = resource.scope_profiles.iter().flat_map(|scope| &scope.profiles);
        for sample in profiles.flat_map(|profile| &profile.samples) {
            let samples = sample.timestamps_unix_nano.iter().filter(|at| window.contains(*at)).count() as u64;
            stacks.push(Stack { pid: *pid, samples, end: end_of(sample.stack_index).unwrap_or_default() });
        }
    }
    stacks
}

fn at<T>(table: &[T], index: i32) -> Option<&T> {
    table.get(usize::try_from(index).ok()?)
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::{
        common::v1::{AnyValue, KeyValue},
        profiles::v1development::{self as otlp, Location, Mapping, Profile, ResourceProfiles, ScopeProfiles},
        resource::v1::Resource,
    };

    use super::*;

    #[test]
    fn samples_of_the_window_are_read_with_their_process_and_outermost_frame() {
        let location = |mapping_index, address| Location { mapping_index, address, ..Location::default() };
        let dictionary = otlp::ProfilesDictionary {
            string_table: ["", PROCESS_ID, "libc.so.6"].map(str::to_owned).to_vec(),
            mapping_table: vec![Mapping::default(), Mapping { filename_strindex: 2, ..Mapping::default() }],
            location_table: vec![location(1, 0x10), location(1, 0x20), location(0, 4)],
            stack_table: [[0, 1], [0, 2]].map(|it| otlp::Stack { location_indices: it.to_vec() }).to_vec(),
            ..Default::default()
        };
        let samples = [(0, vec![4, 5, 8, 9]), (1, vec![5])];
        let samples = samples.map(|(stack_index, timestamps_unix_nano)| otlp::Sample {
            stack_index,
            timestamps_unix_nano,
            ..Default::default()
        });
        let profile = Profile { samples: samples.to_vec(), ..Default::default() };
        let value = Some(AnyValue { value: Some(Value::IntValue(7)) });
        let pid = KeyValue { key_strindex: 1, value, ..Default::default() };
        let resource = ResourceProfiles {
            resource: Some(Resource { attributes: vec![pid], ..Default::default() }),
            scope_profiles: vec![ScopeProfiles { profiles: vec![profile], ..Default::default() }],
            ..Default::default()
        };
        let request = ExportProfilesServiceRequest { resource_profiles: vec![resource], dictionary: Some(dictionary) };
        let read: Vec<_> = stacks(&request, &(5..9)).into_iter().map(|it| (it.pid, it.samples, it.end)).collect();
        assert_eq!(read, [(7, 2, ("libc.so.6".to_owned(), 0x20)), (7, 1, (String::new(), 4))]);
    }
}
