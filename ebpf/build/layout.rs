//! Describes the layout of the data that stays in the kernel: the place of each field of the structs that another agent
//! may read, as the compiler has laid them out. The source is the object's BTF.

use std::{collections::HashMap, error::Error};

use object::{Object as _, ObjectSection as _};

/// The structs that stay in the kernel: values of pinned maps, and data that all generations share.
const KEPT: [&str; 5] = ["podperf_cgroup", "podperf_cgroup_record", "podperf_cpu", "podperf_handover", "task"];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Kinds of types, as in the kernel's `btf.h`.
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const ENUM64: u32 = 19;
}

/// Returns a line `STRUCT BYTES` for each struct, and below it `STRUCT.FIELD OFFSET SIZE COUNT APART` for each of its
/// numbers. For an array, SIZE is the size of one element, COUNT their number, and APART the distance between two of
/// them.
///
/// The rows of the sensors follow: `struct podperf_SENSOR`.
pub(crate) fn describe(object: &[u8], sensors: &[String]) -> Result<String> {
    let file = object::File::parse(object)?;
    let btf = file.section_by_name(".BTF").ok_or("the object has no BTF")?.data()?;
    let types = Types::parse(btf)?;
    let mut text = String::new();
    let rows = sensors.iter().map(|sensor| format!("podperf_{sensor}"));
    for name in KEPT.map(str::to_owned).into_iter().chain(rows) {
        let id = types.structs.get(&name).ok_or_else(|| format!("the object's BTF has no `struct {name}`"))?;
        text.push_str(&format!("{name} {}\n", types.get(*id)?.size));
        types.fields(*id, &name, 0, (1, 0), &mut text)?;
    }
    Ok(text)
}

/// One type of the object's BTF.
struct Type {
    kind: u32,
    /// The size in bytes, or the id of the type that this type names or qualifies.
    size: u32,
    /// For a struct: name, type and offset in bytes of each field. For an array: its element and their number, without
    /// a name.
    members: Vec<(String, u32, u32)>,
}

struct Types {
    all: Vec<Type>,
    structs: HashMap<String, u32>,
}

impl Types {
    fn parse(btf: &[u8]) -> Result<Self> {
        let word = |at: usize| -> Result<u32> {
            let bytes = btf.get(at..at + 4).ok_or("the object's BTF is cut short")?;
            Ok(u32::from_le_bytes(bytes.try_into()?))
        };
        let (header, begin) = (word(4)? as usize, word(8)? as usize);
        let (length, strings) = (word(12)? as usize, header + word(16)? as usize);
        let name = |offset: u32| -> Result<String> {
            let from = btf.get(strings + offset as usize..).ok_or("a name is not there")?;
            Ok(String::from_utf8(from.iter().copied().take_while(|byte| *byte != 0).collect())?)
        };
        // Type id 0 is no type.
        let mut all = vec![Type { kind: 0, size: 0, members: Vec::new() }];
        let mut structs = HashMap::new();
        let mut at = header + begin;
        while at < header + begin + length {
            let (info, size) = (word(at + 4)?, word(at + 8)?);
            let (kind, count) = (info >> 24 & 0x1f, info as usize & 0xffff);
            let body = at + 12;
            let mut members = Vec::new();
            match kind {
                kind::STRUCT => {
                    for member in (0..count).map(|index| body + index * 12) {
                        members.push((name(word(member)?)?, word(member + 4)?, (word(member + 8)? & 0xff_ffff) / 8));
                    }
                    structs.insert(name(word(at)?)?, u32::try_from(all.len())?);
                }
                kind::ARRAY => members.push((String::new(), word(body)?, word(body + 8)?)),
                _ => {}
            }
            all.push(Type { kind, size, members });
            at = body
                + match kind {
                    kind::INT | kind::VAR | kind::DECL_TAG => 4,
                    kind::ARRAY => 12,
                    kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => count * 12,
                    kind::ENUM | kind::FUNC_PROTO => count * 8,
                    _ => 0,
                };
        }
        Ok(Self { all, structs })
    }

    fn get(&self, id: u32) -> Result<&Type> {
        self.all.get(id as usize).ok_or_else(|| "a type is not there".into())
    }

    /// Returns the type behind names and qualifiers.
    fn resolve(&self, mut id: u32) -> Result<&Type> {
        loop {
            let found = self.get(id)?;
            match found.kind {
                8..=11 => id = found.size,
                _ => return Ok(found),
            }
        }
    }

    fn size(&self, of: &Type) -> Result<u32> {
        match (of.kind, of.members.first()) {
            (kind::ARRAY, Some((_, element, count))) => Ok(self.size(self.resolve(*element)?)? * count),
            _ => Ok(of.size),
        }
    }

    /// Writes the lines of a field. `array` is the number of elements and the distance between two of them.
    fn fields(&self, id: u32, name: &str, offset: u32, array: (u32, u32), text: &mut String) -> Result<()> {
        let found = self.resolve(id)?;
        match (found.kind, found.members.first()) {
            (kind::STRUCT, _) => {
                let member = |(of, id, at): &(String, u32, u32)| -> Result<()> {
                    self.fields(*id, &format!("{name}.{of}"), offset + at, array, text)
                };
                found.members.iter().try_for_each(member)
            }
            (kind::ARRAY, Some((_, element, count))) if array.0 == 1 => {
                self.fields(*element, name, offset, (*count, self.size(self.resolve(*element)?)?), text)
            }
            (kind::INT | kind::ENUM, _) => {
                let apart = if array.0 == 1 { found.size } else { array.1 };
                text.push_str(&format!("{name} {offset} {} {} {apart}\n", found.size, array.0));
                Ok(())
            }
            _ => Err(format!("`{name}` is none of what can be described: numbers, structs, arrays").into()),
        }
    }
}
