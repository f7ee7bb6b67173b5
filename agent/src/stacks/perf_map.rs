//! Names of code that was made at run time, from a `/tmp/perf-PID.map`. All reads are bounded: any user may write such
//! a file.
//!
//! Such a map only grows. A JIT compiler uses memory again after it has freed a function, so a later line is true for
//! all addresses that it covers, and an earlier line only for the rest of its addresses.

use std::{ops::Range, sync::Arc};

use super::{demangle::MAX_NAME, read_at::ReadAt};

/// The most bytes that are read: about a million functions.
pub(super) const MAX_BYTES: u64 = 64 << 20;
/// The size of one read, and the longest line, in bytes.
const CHUNK: usize = 64 << 10;

/// Returns the function at each address; `wanted` must be ascending. The last function that covers an address wins.
pub(super) fn names(file: &(impl ReadAt + ?Sized), wanted: &[u64]) -> Vec<Option<Arc<str>>> {
    let mut latest = Latest::new(wanted.len());
    let mut buffer = vec![0; CHUNK];
    let (mut kept, mut offset) = (0, 0);
    while offset < MAX_BYTES {
        let Ok(read @ 1..) = file.read_at(&mut buffer[kept..], offset) else { break };
        offset += read as u64;
        let filled = kept + read;
        let end = buffer[..filled].iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        for line in buffer[..end].split(|byte| *byte == b'\n') {
            cover(&mut latest, wanted, line);
        }
        // A chunk without a line end is no line, and is skipped.
        kept = if end == 0 && filled == CHUNK { 0 } else { filled - end };
        buffer.copy_within(filled - kept..filled, 0);
    }
    cover(&mut latest, wanted, &buffer[..kept]);
    (0..wanted.len()).map(|at| latest.at(at)).collect()
}

/// Covers addresses by the function of a line `START SIZE NAME`, with numbers in hex; the name may contain spaces.
fn cover(latest: &mut Latest, wanted: &[u64], line: &[u8]) {
    let Some((start, size, name)) = function(line) else { return };
    let first = wanted.partition_point(|wanted| *wanted < start);
    let covered = wanted[first..].partition_point(|wanted| wanted - start < size.max(1));
    if covered > 0 {
        latest.cover(first..first + covered, &String::from_utf8_lossy(name));
    }
}

fn function(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut fields = line.splitn(3, |byte| *byte == b' ');
    let mut number = || {
        let digits = std::str::from_utf8(fields.next()?).ok()?;
        u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
    };
    let (start, size) = (number()?, number()?);
    let name = fields.next()?.trim_ascii();
    let name = &name[..name.len().min(MAX_NAME)];
    (!name.is_empty()).then_some((start, size, name))
}

/// The latest name that covers each place of a list: a segment tree. A name is stored at no more than two nodes of each
/// level, so a million names that overlap in any way take little time, and at most two names per place are kept.
#[derive(Debug)]
struct Latest {
    /// The second half are the places. The parent of a node is at half its index.
    nodes: Vec<Option<(u64, Arc<str>)>>,
    /// The number of names so far.
    number: u64,
}

impl Latest {
    fn new(places: usize) -> Self {
        Self { nodes: vec![None; 2 * places], number: 0 }
    }

    /// Names these places, which must exist.
    fn cover(&mut self, places: Range<usize>, name: &str) {
        self.number += 1;
        let named = Some((self.number, Arc::<str>::from(name)));
        let half = self.nodes.len() / 2;
        let (mut low, mut high) = (places.start + half, places.end + half);
        while low < high {
            if low % 2 == 1 {
                self.nodes[low].clone_from(&named);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.nodes[high].clone_from(&named);
            }
            (low, high) = (low / 2, high / 2);
        }
    }

    /// Returns the latest name of a place.
    fn at(&self, place: usize) -> Option<Arc<str>> {
        let mut node = place + self.nodes.len() / 2;
        let mut latest: Option<&(u64, Arc<str>)> = None;
        while node > 0 {
            latest = latest.max(self.nodes[node].as_ref());
            node /= 2;
        }
        latest.map(|(_, name)| Arc::clone(name))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some(names: &[&str]) -> Vec<Option<Arc<str>>> {
        names.iter().map(|name| (!name.is_empty()).then(|| Arc::from(*name))).collect()
    }

    #[test]
    fn functions_are_found_unsorted_and_the_last_of_those_with_one_start_is_meant() {
        let map = b"2000 10 LazyCompile:~b file.js:1\n1000 10 old\n1000 20 new\n0x3000 0x8 prefixed\n4000 0 empty";
        let names = names(&map[..], &[0xfff, 0x1018, 0x1020, 0x2001, 0x3007, 0x3008, 0x4000]);
        assert_eq!(names, some(&["", "new", "", "LazyCompile:~b file.js:1", "prefixed", "", "empty"]));
    }

    #[test]
    fn memory_that_was_used_again_has_the_later_function() {
        let wanted = [0xf20, 0xfff, 0x1014, 0x10ff, 0x1100, 0x2fff];
        let hole = b"f00 40 freed\n1000 2000 alive\n";
        assert_eq!(names(&hole[..], &wanted), some(&["freed", "", "alive", "alive", "alive", "alive"]));
        let cover = b"f00 200 freed\n1000 2000 alive\n";
        assert_eq!(names(&cover[..], &wanted), some(&["freed", "freed", "alive", "alive", "alive", "alive"]));
        let inside = b"f00 2100 outer\n1000 100 inner\n";
        assert_eq!(names(&inside[..], &wanted), some(&["outer", "outer", "inner", "inner", "outer", "outer"]));
    }

    proptest! {
        #[test]
        fn each_address_has_the_last_function_that_covers_it(
            mut wanted in prop::collection::vec(0_u64..100, 0..20),
            functions in prop::collection::vec((0_u64..100, 0_u64..100), 0..50),
        ) {
            wanted.sort_unstable();
            let lines = functions.iter().enumerate().map(|(at, (start, size))| format!("{start:x} {size:x} {at}\n"));
            let covers = |(start, size): &(u64, u64), wanted: u64| (*start..start + (*size).max(1)).contains(&wanted);
            let expected: Vec<_> = wanted.iter().map(|wanted| {
                let last = functions.iter().rposition(|function| covers(function, *wanted));
                last.map(|at| Arc::<str>::from(at.to_string()))
            }).collect();
            prop_assert_eq!(names(lines.collect::<String>().as_bytes(), &wanted), expected);
        }
    }

    #[test]
    fn names_are_cut() {
        let map = [&b"1000 10 "[..], &[0xff; 3 * MAX_NAME]].concat();
        assert_eq!(names(&map[..], &[0x1000])[0].as_ref().unwrap().chars().count(), MAX_NAME);
    }

    #[test]
    fn nonsense_between_lines_does_not_hide_them() {
        let mut map = b"\xff\xfe\0\n \n1 2\nzz zz zz\n-1 10 minus\nffffffffffffffff ffffffffffffffff far\n".to_vec();
        map.extend(vec![0; 3 * CHUNK]);
        map.extend(b"\n1000 10 here\n");
        assert_eq!(names(&map[..], &[0x1001, u64::MAX]), some(&["here", "far"]));
    }

    #[test]
    fn an_endless_map_is_read_to_the_limit() {
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"1000 10 here\n", 0).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"\n2000 10 far\n", MAX_BYTES + 2 * CHUNK as u64).unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!(names(&file, &[0x1000, 0x2000]), some(&["here", ""]));
    }

    #[test]
    fn lines_across_chunks_are_whole() {
        let map: String = (0..20_000).map(|at| format!("{:x} 10 function_{at}\n", at * 16)).collect();
        let wanted: Vec<u64> = (0..20_000).map(|at| at * 16 + 3).collect();
        let expected: Vec<_> = (0..20_000).map(|at| Some(Arc::<str>::from(format!("function_{at}")))).collect();
        assert_eq!(names(map.as_bytes(), &wanted), expected);
    }
}
