//! Names of code that was made at run time, from a `/tmp/perf-PID.map`. All reads are bounded: any user may write such
//! a file.

use super::{nearest::Nearest, read_at::ReadAt};

/// The most bytes that are read: about a million functions.
pub(super) const MAX_BYTES: u64 = 64 << 20;
/// The size of one read, and the longest line, in bytes.
const CHUNK: usize = 64 << 10;

/// Returns the function at each address; `wanted` must be ascending. If several functions have the same start, the last
/// one wins: the memory was used again.
pub(super) fn names(file: &(impl ReadAt + ?Sized), wanted: &[u64]) -> Vec<Option<String>> {
    let mut nearest = Nearest::new(wanted);
    let mut number = 0;
    let mut buffer = vec![0; CHUNK];
    let (mut kept, mut offset) = (0, 0);
    while offset < MAX_BYTES {
        let Ok(read @ 1..) = file.read_at(&mut buffer[kept..], offset) else { break };
        offset += read as u64;
        let filled = kept + read;
        let end = buffer[..filled].iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        for line in buffer[..end].split(|byte| *byte == b'\n') {
            number += 1;
            offer(&mut nearest, line, number);
        }
        // A chunk without a line end is no line, and is skipped.
        kept = if end == 0 && filled == CHUNK { 0 } else { filled - end };
        buffer.copy_within(filled - kept..filled, 0);
    }
    offer(&mut nearest, &buffer[..kept], number + 1);
    let found = nearest.take().into_iter().zip(wanted);
    let covered = found.map(|(found, wanted)| {
        found.filter(|(start, (size, _))| wanted - start < (*size).max(1)).map(|(_, (_, name))| name)
    });
    covered.collect()
}

/// Offers the function of a line `START SIZE NAME`, with numbers in hex; the name may contain spaces.
fn offer(nearest: &mut Nearest<'_, (u64, String)>, line: &[u8], number: u64) {
    let Some((start, size, name)) = function(line) else { return };
    nearest.offer(start, number, || (size, String::from_utf8_lossy(name).into_owned()));
}

fn function(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut fields = line.splitn(3, |byte| *byte == b' ');
    let mut number = || {
        let digits = std::str::from_utf8(fields.next()?).ok()?;
        u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
    };
    let (start, size) = (number()?, number()?);
    let name = fields.next()?.trim_ascii();
    (!name.is_empty()).then_some((start, size, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(map: &[u8], wanted: &[u64]) -> Vec<Option<String>> {
        names(map, wanted)
    }

    fn some(names: &[&str]) -> Vec<Option<String>> {
        names.iter().map(|name| (!name.is_empty()).then(|| (*name).to_owned())).collect()
    }

    #[test]
    fn functions_are_found_unsorted_and_the_last_of_those_with_one_start_is_meant() {
        let map = b"2000 10 LazyCompile:~b file.js:1\n1000 10 old\n1000 20 new\n0x3000 0x8 prefixed\n4000 0 empty";
        let names = names_in(map, &[0xfff, 0x1018, 0x1020, 0x2001, 0x3007, 0x3008, 0x4000]);
        assert_eq!(names, some(&["", "new", "", "LazyCompile:~b file.js:1", "prefixed", "", "empty"]));
    }

    #[test]
    fn nonsense_between_lines_does_not_hide_them() {
        let mut map = b"\xff\xfe\0\n \n1 2\nzz zz zz\n-1 10 minus\nffffffffffffffff ffffffffffffffff far\n".to_vec();
        map.extend(vec![0; 3 * CHUNK]);
        map.extend(b"\n1000 10 here\n");
        assert_eq!(names_in(&map, &[0x1001, u64::MAX]), some(&["here", "far"]));
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
        let expected: Vec<_> = (0..20_000).map(|at| Some(format!("function_{at}"))).collect();
        assert_eq!(names_in(map.as_bytes(), &wanted), expected);
    }
}
