//! The tables that the profiles of one request share: each string, function, mapping, location, stack and attribute
//! once.
//!
//! The rules are those of `ProfilesDictionary` (opentelemetry-proto 1.11): index 0 of every table is the zero value and
//! means "not set", no entry occurs twice, and each entry is referred to. The last rule holds because an entry is
//! interned only when it is about to be referred to.

use std::{borrow::Cow, collections::HashMap, hash::Hash, sync::Arc};

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, any_value::Value},
    profiles::v1development as proto,
};

use super::settings::Preset;
use crate::stacks::profile::{Frame, FrameKind, Mapping, Stack};

const KERNEL: &str = "[kernel]";

/// The tables while they are built; [`Dictionary::finish`] turns them into the message.
#[derive(Debug)]
pub(super) struct Dictionary<'a> {
    preset: Preset,
    strings: Table<Cow<'a, str>>,
    attributes: Table<(i32, Cow<'a, str>)>,
    functions: Table<proto::Function>,
    mappings: Table<proto::Mapping>,
    locations: Table<LocationKey>,
    stacks: Table<proto::Stack>,
    // Keyed by address: hashing a stack costs far more than hashing a pointer, and samples share stacks as stacks share
    // mappings. An address belongs to one value for 'a.
    known_mappings: HashMap<*const Mapping, i32>,
    known_stacks: HashMap<*const Stack, i32>,
}

/// The key of a location, since `proto::Location` is not `Hash`.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct LocationKey {
    mapping: i32,
    address: u64,
    lines: Vec<proto::Line>,
    attributes: Vec<i32>,
}

impl<'a> Dictionary<'a> {
    pub(super) fn new(preset: Preset) -> Self {
        Self {
            preset,
            strings: Table::new(),
            attributes: Table::new(),
            functions: Table::new(),
            mappings: Table::new(),
            locations: Table::new(),
            stacks: Table::new(),
            known_mappings: HashMap::new(),
            known_stacks: HashMap::new(),
        }
    }

    pub(super) fn string(&mut self, text: impl Into<Cow<'a, str>>) -> i32 {
        self.strings.intern(text.into())
    }

    /// Returns the index of an attribute. Values are strings only: receivers drop or reject attributes of other types.
    pub(super) fn attribute(&mut self, key: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> i32 {
        let key = self.string(key);
        self.attributes.intern((key, value.into()))
    }

    pub(super) fn value_type(&mut self, name: &'static str, unit: &'static str) -> proto::ValueType {
        proto::ValueType { type_strindex: self.string(name), unit_strindex: self.string(unit) }
    }

    /// Returns the index of a stack; 0, "not set", for a stack without frames.
    pub(super) fn stack(&mut self, stack: &'a Arc<Stack>) -> i32 {
        if let Some(&known) = self.known_stacks.get(&Arc::as_ptr(stack)) {
            return known;
        }
        let location_indices = stack.frames.iter().map(|frame| self.location(frame)).collect();
        let index = self.stacks.intern(proto::Stack { location_indices });
        self.known_stacks.insert(Arc::as_ptr(stack), index);
        index
    }

    fn location(&mut self, frame: &'a Frame) -> i32 {
        let named = self.preset != Preset::Parca || frame.kind.is_kernel();
        let functions = if named { &frame.functions[..] } else { &[] };
        let lines = functions.iter().map(|function| proto::Line {
            function_index: self.function(&function.name, &function.file),
            line: i64::from(function.line),
            column: 0,
        });
        let lines = lines.collect();
        let mapping = match &frame.mapping {
            Some(mapping) => self.mapping(mapping),
            None if frame.kind.is_kernel() => self.kernel_mapping(),
            None => 0,
        };
        let kind = match frame.kind {
            // devfiler rejects types that are not on its list.
            FrameKind::Go | FrameKind::Rust if self.preset == Preset::Devfiler => FrameKind::Native,
            kind => kind,
        };
        let attributes = vec![self.attribute("profile.frame.type", kind.name())];
        self.locations.intern(LocationKey { mapping, address: frame.address, lines, attributes })
    }

    fn function(&mut self, name: &'a str, file: &'a str) -> i32 {
        let function = proto::Function {
            name_strindex: self.string(name),
            filename_strindex: self.string(file),
            ..proto::Function::default()
        };
        self.functions.intern(function)
    }

    fn mapping(&mut self, mapping: &'a Arc<Mapping>) -> i32 {
        if let Some(&known) = self.known_mappings.get(&Arc::as_ptr(mapping)) {
            return known;
        }
        let ids = [
            ("process.executable.build_id.gnu", &mapping.build_id),
            ("process.executable.build_id.htlhash", &mapping.htlhash),
        ];
        // devfiler makes an id of its own for a mapping without attributes. It rejects the request if a mapping has
        // attributes without the one that it needs.
        let useless = self.preset == Preset::Devfiler && mapping.htlhash.is_none();
        let ids = ids.into_iter().filter(|_| !useless).filter_map(|(key, id)| Some((key, id.as_deref()?)));
        let attribute_indices = ids.map(|(key, id)| self.attribute(key, id)).collect();
        let filename_strindex = self.string(mapping.path.as_str());
        // Locations have the file's addresses, so the file begins at 0 of them.
        let index =
            self.mappings.intern(proto::Mapping { filename_strindex, attribute_indices, ..proto::Mapping::default() });
        self.known_mappings.insert(Arc::as_ptr(mapping), index);
        index
    }

    fn kernel_mapping(&mut self) -> i32 {
        let filename_strindex = self.string(KERNEL);
        self.mappings.intern(proto::Mapping { filename_strindex, ..proto::Mapping::default() })
    }

    pub(super) fn finish(self) -> proto::ProfilesDictionary {
        proto::ProfilesDictionary {
            mapping_table: self.mappings.into_rows().collect(),
            location_table: self.locations.into_rows().map(location).collect(),
            function_table: self.functions.into_rows().collect(),
            // The entry exists but is empty; receivers reject ids that are all zero.
            link_table: vec![proto::Link::default()],
            string_table: self.strings.into_rows().map(Cow::into_owned).collect(),
            attribute_table: self.attributes.into_rows().map(attribute).collect(),
            stack_table: self.stacks.into_rows().collect(),
        }
    }
}

fn location(key: LocationKey) -> proto::Location {
    proto::Location {
        mapping_index: key.mapping,
        address: key.address,
        lines: key.lines,
        attribute_indices: key.attributes,
    }
}

fn attribute((key_strindex, value): (i32, Cow<'_, str>)) -> proto::KeyValueAndUnit {
    // Only the zero value at index 0 has no key.
    let value = (key_strindex != 0).then(|| AnyValue { value: Some(Value::StringValue(value.into_owned())) });
    proto::KeyValueAndUnit { key_strindex, value, unit_strindex: 0 }
}

/// A table whose rows are in the order of their first use. Row 0 is the zero value from the start.
#[derive(Debug)]
struct Table<K> {
    index: HashMap<K, i32>,
}

impl<K: Default + Eq + Hash> Table<K> {
    fn new() -> Self {
        Self { index: HashMap::from([(K::default(), 0)]) }
    }

    fn intern(&mut self, row: K) -> i32 {
        // A request of 3.5 MiB cannot hold 2^31 rows. Neither can a window before it is split: its rows take over 100
        // bytes each in memory.
        let next = i32::try_from(self.index.len()).unwrap_or(i32::MAX);
        *self.index.entry(row).or_insert(next)
    }

    fn into_rows(self) -> impl Iterator<Item = K> {
        let mut rows: Vec<_> = self.index.into_iter().collect();
        rows.sort_unstable_by_key(|&(_, index)| index);
        rows.into_iter().map(|(row, _)| row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_type_of_their_language_but_for_devfiler() {
        let kinds = [FrameKind::Kernel, FrameKind::Native, FrameKind::Go, FrameKind::Rust];
        let types = |preset| {
            let frame = |kind| Arc::new(Frame { address: 1, kind, mapping: None, functions: Vec::new() });
            let stack = Arc::new(Stack { frames: kinds.map(frame).to_vec(), ..Stack::default() });
            let mut dictionary = Dictionary::new(preset);
            dictionary.stack(&stack);
            let tables = dictionary.finish();
            let value = |index: &i32| match &tables.attribute_table[usize::try_from(*index).unwrap()].value {
                Some(AnyValue { value: Some(Value::StringValue(text)) }) => text.clone(),
                other => panic!("{other:?}"),
            };
            let stack = &tables.stack_table[1].location_indices;
            let locations = stack.iter().map(|index| &tables.location_table[usize::try_from(*index).unwrap()]);
            locations.map(|location| value(&location.attribute_indices[0])).collect::<Vec<_>>()
        };
        for preset in [Preset::Generic, Preset::Pyroscope, Preset::Parca] {
            assert_eq!(types(preset), ["kernel", "native", "go", "rust"], "{preset:?}");
        }
        assert_eq!(types(Preset::Devfiler), ["kernel", "native", "native", "native"]);
    }
}
