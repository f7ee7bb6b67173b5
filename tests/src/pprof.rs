//! Reads the agent's pprof files: the frames, values and labels of samples.
//!
//! The messages are the fields of `proto/profile.proto` in github.com/google/pprof that are used here.

use std::{
    collections::{BTreeMap, HashMap},
    io::Read as _,
};

use anyhow::{Context as _, Result};
use flate2::read::GzDecoder;
use prost::{Message, encoding::decode_varint};

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Taken>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Taken {
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
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
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
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
}

/// A sample of the profile.
#[derive(Debug)]
pub struct Sample {
    /// The frames, leaf first.
    pub frames: Vec<Frame>,
    /// The first two values, in the profile's order.
    pub values: [u64; 2],
    labels: BTreeMap<String, String>,
}

/// A frame of a stack.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The address, as the file counts it.
    pub address: u64,
    /// The path of the file; empty if it is unknown.
    pub file: String,
    /// The name of the function at this address; of inlined functions, the outermost one. Empty if it is unknown.
    pub function: String,
}

impl Sample {
    /// Returns the value of a label; empty if the sample does not have it.
    #[must_use]
    pub fn label(&self, key: &str) -> &str {
        self.labels.get(key).map_or("", String::as_str)
    }

    /// Returns the frames, outermost first, with semicolons in between.
    #[must_use]
    pub fn text(&self) -> String {
        let frames = self.frames.iter().rev().map(|frame| match frame.function.as_str() {
            "" => format!("{}+{:#x}", frame.file.rsplit('/').next().unwrap_or_default(), frame.address),
            name => name.to_owned(),
        });
        frames.collect::<Vec<_>>().join(";")
    }
}

/// Reads the samples of a gzipped profile.
///
/// # Errors
///
/// When the bytes are not a gzipped pprof profile with two values in each sample.
pub fn samples(gzipped: &[u8]) -> Result<Vec<Sample>> {
    let profile = Profile::decode(&*unzipped(gzipped)?)?;
    let text = |at: i64| -> Result<String> {
        let text = profile.string_table.get(usize::try_from(at)?);
        Ok(text.with_context(|| format!("no text {at}"))?.clone())
    };
    let files = profile.mapping.iter().map(|mapping| Ok((mapping.id, text(mapping.filename)?)));
    let files = files.collect::<Result<HashMap<_, _>>>()?;
    let names = profile.function.iter().map(|function| Ok((function.id, text(function.name)?)));
    let names = names.collect::<Result<HashMap<_, _>>>()?;
    let frame = |location: &Location| {
        let function = location.line.last().and_then(|line| names.get(&line.function_id));
        let (file, function) = (files.get(&location.mapping_id), function.cloned().unwrap_or_default());
        Frame { address: location.address, file: file.cloned().unwrap_or_default(), function }
    };
    let frames: HashMap<_, _> = profile.location.iter().map(|location| (location.id, frame(location))).collect();
    let sample = |taken: &Taken| {
        let stack =
            taken.location_id.iter().map(|id| frames.get(id).cloned().with_context(|| format!("no frame {id}")));
        let labels = taken.label.iter().map(|label| Ok((text(label.key)?, text(label.text)?)));
        let value = |at: usize| -> Result<u64> { Ok((*taken.value.get(at).context("no value")?).try_into()?) };
        Ok(Sample {
            frames: stack.collect::<Result<_>>()?,
            values: [value(0)?, value(1)?],
            labels: labels.collect::<Result<_>>()?,
        })
    };
    profile.sample.iter().map(sample).collect()
}

/// Returns all integers of a gzipped profile, those of unknown fields included.
///
/// # Errors
///
/// When the bytes are not gzipped.
pub fn integers(gzipped: &[u8]) -> Result<Vec<u64>> {
    let mut integers = Vec::new();
    collect(&unzipped(gzipped)?, &mut integers);
    Ok(integers)
}

fn unzipped(gzipped: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    GzDecoder::new(gzipped).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Collects the integers of a message up to the first field of another kind. A text or a list of integers is read as a
/// message, too, which finds no larger integers than are there.
fn collect(mut bytes: &[u8], integers: &mut Vec<u64>) {
    while let Ok(key) = decode_varint(&mut bytes) {
        let Ok(value) = decode_varint(&mut bytes) else { return };
        match key & 7 {
            0 => integers.push(value),
            2 => {
                let Some((inner, rest)) = bytes.split_at_checked(usize::try_from(value).unwrap_or(usize::MAX)) else {
                    return;
                };
                collect(inner, integers);
                bytes = rest;
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    #[test]
    fn integers_of_unknown_fields_are_found() -> Result<()> {
        let location = Location { id: 1, mapping_id: 2, address: u64::MAX - 7, line: vec![Line { function_id: 9 }] };
        let profile = Profile { location: vec![location], string_table: vec!["text".into()], ..Profile::default() };
        // Field 77 of no profile is a message with one integer.
        let unknown = [0xea, 0x04, 0x03, 0x08, 0xff, 0x01];
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&[profile.encode_to_vec(), unknown.to_vec()].concat())?;
        let found = integers(&gzip.finish()?)?;
        assert!([1, 2, 9, 255, u64::MAX - 7].iter().all(|integer| found.contains(integer)), "{found:?}");
        Ok(())
    }
}
