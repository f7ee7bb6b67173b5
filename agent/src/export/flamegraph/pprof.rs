//! Writes pprof: `perftools.profiles.Profile`, in the form that `go tool pprof` and similar tools read. Pure.
//!
//! The messages are the fields of `proto/profile.proto` in github.com/google/pprof that are used here, with their
//! numbers from that file.

use std::{collections::HashMap, io::Write as _, sync::Arc, time::SystemTime};

use flate2::{Compression, write::GzEncoder};
use prost::Message;

use super::{coverage, tree};
use crate::{
    model::wait::Unwind,
    recording::{Cause, Merged, MergedSample, Side, SubjectName},
    stacks::{
        FrameOwner, SourceLine, SourceLines,
        profile::{Activity, Frame, Mapping},
    },
};

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<MappedFile>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct MappedFile {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
    #[prost(bool, tag = "8")]
    has_filenames: bool,
    #[prost(bool, tag = "9")]
    has_line_numbers: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// The number of samples that are written together.
const SAMPLES_AT_ONCE: usize = 256;

/// Returns the recording as a gzipped message, the usual form of pprof files. Parts of a message that are written one
/// after the other are one message, so samples can be written in parts and need not all be in memory.
pub(super) fn gzipped(merged: &Merged) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let lines = Some(&merged.lines).filter(|lines| lines.found() > 0);
    let mut build = Builder { lines, ..Builder::default() };
    build.begin(merged);
    let mut buffer = Vec::new();
    // Writing to memory does not fail.
    let mut write = |part: &Profile| {
        buffer.clear();
        part.encode(&mut buffer).ok();
        encoder.write_all(&buffer).ok();
    };
    for (name, sample) in merged.samples() {
        build.sample(name, sample, merged.side);
        if build.profile.sample.len() >= SAMPLES_AT_ONCE {
            let sample = std::mem::take(&mut build.profile.sample);
            write(&Profile { sample, ..Profile::default() });
        }
    }
    let Builder { profile, .. } = build;
    write(&profile);
    drop(profile);
    encoder.finish().unwrap_or_default()
}

/// Returns whether the mapping may be a program rather than a library.
fn is_program(mapping: &Mapping) -> bool {
    mapping.path.starts_with('/') && !mapping.path.contains(".so")
}

/// Returns the sentence about source lines; `None` if none were looked up.
fn sentence(lines: &SourceLines) -> Option<String> {
    let (found, wanted) = (lines.found(), lines.wanted());
    let others = "for the others no debug information was found, or not in time";
    (wanted > 0).then(|| format!("Source lines: {found} of {wanted} addresses in files; {others}."))
}

/// Builds the tables, each entry once, compared by content. Ids are positions in the tables, counted from 1. The
/// content of a known address is not compared again.
#[derive(Default)]
struct Builder<'a> {
    /// `None` if there is no line.
    lines: Option<&'a SourceLines>,
    /// The owner of the current sample, if there are lines.
    owner: FrameOwner,
    profile: Profile,
    texts: HashMap<String, i64>,
    mappings: HashMap<Arc<Mapping>, u64>,
    mappings_at: HashMap<usize, u64>,
    functions: HashMap<(i64, i64), u64>,
    /// A frame has a location for each line that it has: the same code of two owners may have different lines.
    locations: HashMap<(Arc<Frame>, Option<SourceLine>), u64>,
    /// The locations of this owner's frames.
    locations_at: HashMap<usize, u64>,
}

impl Builder<'_> {
    /// Writes all fields but the samples and the entries to which they refer.
    fn begin(&mut self, merged: &Merged) {
        // The first entry of the table is the empty string.
        self.text("");
        let types = match merged.side {
            Side::OffCpu => [("off_cpu", "nanoseconds"), ("waits", "count")],
            Side::Locks => [("lock_wait", "nanoseconds"), ("waits", "count")],
            Side::OnCpu => [("samples", "count"), ("cpu", "nanoseconds")],
        };
        self.profile.sample_type = types.map(|(kind, unit)| self.value_type(kind, unit)).to_vec();
        self.profile.default_sample_type = match merged.side {
            Side::OffCpu => self.text("off_cpu"),
            Side::Locks => self.text("lock_wait"),
            Side::OnCpu => self.text("cpu"),
        };
        if let Some(period) = merged.sample_period.filter(|_| merged.side == Side::OnCpu) {
            self.profile.period_type = Some(self.value_type("cpu", "nanoseconds"));
            self.profile.period = i64::try_from(period.as_nanos()).unwrap_or(i64::MAX);
        }
        // Readers assume that the first mapping is the program.
        let frames = merged.samples().flat_map(|(_, sample)| &sample.stack.frames);
        let user = frames.filter(|frame| !frame.kind.is_kernel());
        for mapping in user.filter_map(|frame| frame.mapping.as_ref()) {
            if !self.mappings_at.contains_key(&Arc::as_ptr(mapping).addr()) && is_program(mapping) {
                self.mapping(mapping);
            }
        }
        for says in [coverage::sentence(merged), sentence(&merged.lines)].into_iter().flatten() {
            let comment = self.text(&says);
            self.profile.comment.push(comment);
        }
        for (reason, count) in &merged.losses {
            let comment = self.text(&format!("lost on the whole node: {reason} {count}"));
            self.profile.comment.push(comment);
        }
        let since = merged.start.and_then(|start| start.duration_since(SystemTime::UNIX_EPOCH).ok());
        self.profile.time_nanos = i64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX);
        self.profile.duration_nanos = i64::try_from(merged.duration.as_nanos()).unwrap_or(i64::MAX);
    }

    fn text(&mut self, text: &str) -> i64 {
        if let Some(place) = self.texts.get(text) {
            return *place;
        }
        let place = i64::try_from(self.profile.string_table.len()).unwrap_or(0);
        self.profile.string_table.push(text.to_owned());
        self.texts.insert(text.to_owned(), place);
        place
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType { kind: self.text(kind), unit: self.text(unit) }
    }

    fn sample(&mut self, name: &SubjectName, sample: &MergedSample, side: Side) {
        let owner = self.lines.map(|_| FrameOwner::from(name)).unwrap_or_default();
        if owner != self.owner {
            self.owner = owner;
            self.locations_at.clear();
        }
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let (time, count) = (signed(sample.nanoseconds), signed(sample.count));
        let mut labels = tree::labels(name);
        if let Activity::OffCpu { state, reason, waker, lock } = &sample.activity {
            labels.push(("reason", reason.name()));
            labels.extend(lock.map(|lock| ("lock", lock.name())));
            labels.push(("state", state.name()));
            if let Some(judgement) = &sample.judgement {
                labels.push(("judgement", judgement.name()));
                if let Some(Cause::Peer(peer)) = judgement.cause() {
                    labels.push(("waits_for", peer.as_str()));
                }
            }
            if let Some(waker) = waker {
                labels.extend([("waker_thread", &*waker.thread), ("waker", &waker.subject)]);
            }
        }
        if sample.stack.unwind != Unwind::Whole {
            labels.push(("unwind", sample.stack.unwind.name()));
        }
        let sample = Sample {
            location_id: sample.stack.frames.iter().map(|frame| self.location(frame)).collect(),
            value: if side.is_waits() { vec![time, count] } else { vec![count, time] },
            label: labels.iter().map(|(key, text)| Label { key: self.text(key), text: self.text(text) }).collect(),
        };
        self.profile.sample.push(sample);
    }

    fn location(&mut self, frame: &Arc<Frame>) -> u64 {
        let address = Arc::as_ptr(frame).addr();
        if let Some(id) = self.locations_at.get(&address) {
            return *id;
        }
        let source = self.lines.and_then(|lines| lines.line(&self.owner, frame)).cloned();
        let key = (Arc::clone(frame), source);
        if let Some(id) = self.locations.get(&key).copied() {
            self.locations_at.insert(address, id);
            return id;
        }
        let mapping_id = frame.mapping.as_ref().map_or(0, |mapping| self.mapping(mapping));
        let line = frame.functions.iter().map(|function| {
            let known = key.1.as_ref().map(|source| (&source.file, source.line));
            let (file, line) = known.unwrap_or((&function.file, function.line));
            Line { function_id: self.function(&function.name, file), line: line.into() }
        });
        let line = line.collect();
        let id = self.profile.location.len() as u64 + 1;
        self.profile.location.push(Location { id, mapping_id, address: frame.address, line });
        self.locations.insert(key, id);
        self.locations_at.insert(address, id);
        id
    }

    fn mapping(&mut self, mapping: &Arc<Mapping>) -> u64 {
        let address = Arc::as_ptr(mapping).addr();
        if let Some(id) = self.mappings_at.get(&address) {
            return *id;
        }
        if let Some(id) = self.mappings.get(mapping).copied() {
            self.mappings_at.insert(address, id);
            return id;
        }
        let id = self.profile.mapping.len() as u64 + 1;
        let (filename, build_id) = (self.text(&mapping.path), self.text(mapping.build_id.as_deref().unwrap_or("")));
        // The names were looked up already, so the reader need not look them up.
        let has_lines = self.lines.is_some_and(|lines| lines.has(mapping));
        let (has_filenames, has_line_numbers) = (has_lines, has_lines);
        let file = MappedFile { id, filename, build_id, has_functions: true, has_filenames, has_line_numbers };
        self.profile.mapping.push(file);
        self.mappings.insert(Arc::clone(mapping), id);
        self.mappings_at.insert(address, id);
        id
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let (name, filename) = (self.text(name), self.text(file));
        if let Some(id) = self.functions.get(&(name, filename)) {
            return *id;
        }
        let id = self.profile.function.len() as u64 + 1;
        self.profile.function.push(Function { id, name, system_name: name, filename });
        self.functions.insert((name, filename), id);
        id
    }
}

#[cfg(test)]
#[path = "pprof_tests.rs"]
mod tests;
