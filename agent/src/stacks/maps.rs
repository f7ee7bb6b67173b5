//! Parses the executable mappings of a process from the text of `/proc/PID/maps`, piece by piece: a process may have
//! millions of mappings. Pure.

use std::io;

/// The largest numbers of executable mappings that are kept: of files, and of memory without a file. A program makes
/// memory as it likes, and the kernel lists libraries last. Frames in other mappings have no names.
const MAX_FILES: usize = 2048;
const MAX_ANONYMOUS: usize = 2048;

/// The size of one read, and the longest line, in bytes.
const CHUNK: usize = 64 << 10;

/// The longest path, in bytes. Longer paths are cut; the file is still found by its mapping.
const MAX_PATH: usize = 1024;

/// A range of executable addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vma {
    pub(super) start: u64,
    /// The address after the last one.
    pub(super) end: u64,
    /// The offset of `start` in the file.
    pub(super) offset: u64,
    pub(super) backing: Backing,
}

impl Vma {
    /// Returns the offset in the file of an address in this range.
    pub(super) const fn offset_of(&self, address: u64) -> u64 {
        address - self.start + self.offset
    }
}

/// The source of a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Backing {
    /// A file, with its path as the process sees it.
    File(FileMapping),
    /// Memory without a file, which a JIT compiler may have written.
    Anonymous,
    /// A mapping of the kernel, such as `[vdso]`.
    Special(String),
}

/// A file as `/proc/PID/maps` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileMapping {
    /// The path without ` (deleted)`.
    pub(super) path: String,
    /// The kernel's device number, as `major:minor`. Some file systems return another number to `stat`.
    pub(super) device: String,
    pub(super) inode: u64,
}

/// Returns the executable mappings of a whole text, sorted by address.
pub(super) fn parse(mut text: &[u8]) -> Vec<Vma> {
    read(|buffer| io::Read::read(&mut text, buffer)).unwrap_or_default()
}

/// Returns the executable mappings, sorted by address. `more` fills a part of its buffer, and returns 0 at the end of
/// the text. A line that is longer than the buffer is skipped.
pub(super) fn read(mut more: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<Vec<Vma>> {
    let mut mappings = Mappings::default();
    let mut buffer = vec![0; CHUNK];
    // The buffer begins with this many bytes of a line whose end is not read yet.
    let mut kept = 0;
    let mut skips = false;
    loop {
        let filled = match more(&mut buffer[kept..])? {
            0 => break,
            read => kept + read,
        };
        let Some(end) = buffer[..filled].iter().rposition(|byte| *byte == b'\n') else {
            let is_full = filled == CHUNK;
            skips |= is_full;
            kept = if is_full { 0 } else { filled };
            continue;
        };
        let rest_of_skipped = usize::from(std::mem::take(&mut skips));
        let lines = buffer[..end].split(|byte| *byte == b'\n').skip(rest_of_skipped);
        lines.for_each(|line| mappings.add(line));
        buffer.copy_within(end + 1..filled, 0);
        kept = filled - (end + 1);
    }
    if !skips {
        mappings.add(&buffer[..kept]);
    }
    Ok(mappings.sorted())
}

/// The executable mappings that were found so far.
#[derive(Debug, Default)]
struct Mappings {
    /// Mappings of files and of the kernel.
    files: Vec<Vma>,
    anonymous: Vec<Vma>,
}

impl Mappings {
    fn add(&mut self, line: &[u8]) {
        if !is_executable(line) {
            return;
        }
        let Some(vma) = vma(&String::from_utf8_lossy(line)) else { return };
        if vma.backing != Backing::Anonymous {
            if self.files.len() < MAX_FILES {
                self.files.push(vma);
            }
            return;
        }
        // Adjacent pieces of anonymous memory are merged: the borders in a JIT compiler's memory have no meaning.
        if let Some(last) = self.anonymous.last_mut().filter(|last| last.end == vma.start) {
            last.end = vma.end;
        } else if self.anonymous.len() < MAX_ANONYMOUS {
            self.anonymous.push(vma);
        }
    }

    fn sorted(self) -> Vec<Vma> {
        let mut vmas = self.files;
        vmas.extend(self.anonymous);
        vmas.sort_unstable_by_key(|vma| vma.start);
        vmas
    }
}

/// Returns whether the flags, which follow the range of addresses, contain `x`.
fn is_executable(line: &[u8]) -> bool {
    let space = line.iter().position(|byte| *byte == b' ');
    space.and_then(|space| line.get(space + 3)) == Some(&b'x')
}

fn vma(line: &str) -> Option<Vma> {
    // A line has six fields; only the last one may contain spaces.
    let mut rest = line;
    let mut field = || {
        let (field, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        field
    };
    let (range, _flags, offset, device, inode) = (field(), field(), field(), field(), field());
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let (start, end) = range.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let inode = inode.parse().ok()?;
    let path = rest.trim_start();
    let backing = if inode == 0 {
        match path {
            // An executable heap or stack is treated like other anonymous memory.
            "" | "[heap]" | "[stack]" => Backing::Anonymous,
            _ if path.starts_with("[anon") || path.starts_with("//anon") => Backing::Anonymous,
            _ => Backing::Special(path.to_owned()),
        }
    } else {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        // JIT compilers map shared memory twice: once to write code, and once to execute it.
        if path.starts_with("/dev/zero") || path.starts_with("/memfd:doublemapper") {
            Backing::Anonymous
        } else {
            // The kernel writes a newline in a path as an octal escape.
            let mut path = path.replace("\\012", "\n");
            path.truncate(path.floor_char_boundary(MAX_PATH));
            Backing::File(FileMapping { path, device: device.to_owned(), inode })
        }
    };
    (start < end).then_some(Vma { start, end, offset: hex(offset)?, backing })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d0c0a00000-55d0c0a01000 r--p 00000000 fd:00 1234                       /usr/bin/my program
55d0c0a01000-55d0c0a02000 r-xp 00001000 fd:00 1234                       /usr/bin/my program
7f0000000000-7f0000001000 rwxp 00000000 00:00 0 
7f0000001000-7f0000002000 rwxp 00000000 00:01 7                          /memfd:doublemapper (deleted)
7f0000002000-7f0000003000 r-xp 00002000 00:31 99                         /lib/gone.so (deleted)
7f0000003000-7f0000004000 r-xp 00000000 00:00 0                          [anon:jit]
7ffff7fc9000-7ffff7fcb000 r-xp 00000000 00:00 0                          [vdso]
garbage
1-0 r-xp 0 0 0
";

    #[test]
    fn executable_mappings_are_distinguished_by_what_is_behind_them() {
        let vmas = parse(TEXT.as_bytes());
        let file = |path: &str, device: &str, inode| {
            Backing::File(FileMapping { path: path.to_owned(), device: device.to_owned(), inode })
        };
        let backings: Vec<_> = vmas.iter().map(|vma| vma.backing.clone()).collect();
        let expected = [
            file("/usr/bin/my program", "fd:00", 1234),
            Backing::Anonymous,
            file("/lib/gone.so", "00:31", 99),
            Backing::Anonymous,
            Backing::Special("[vdso]".to_owned()),
        ];
        assert_eq!(backings, expected);
        assert_eq!((vmas[0].start, vmas[0].end, vmas[0].offset), (0x55d0_c0a0_1000, 0x55d0_c0a0_2000, 0x1000));
        assert_eq!((vmas[1].start, vmas[1].end), (0x7f00_0000_0000, 0x7f00_0000_2000));
    }

    const LIBRARY: &str = "7ffff7fc0000-7ffff7fc1000 r-xp 0 fd:00 7 /lib/last.so\n";

    /// Returns many mappings with gaps between them, and then a library.
    fn mappings(count: u64, rest: &str) -> String {
        let line = |number: u64| format!("{:x}-{:x} {rest}\n", number * 32, number * 32 + 8);
        (0..count).map(line).chain([LIBRARY.to_owned()]).collect()
    }

    #[test]
    fn a_library_is_found_behind_countless_other_mappings() {
        for (count, rest, kept) in
            [(120_000, "r--s 0 fd:00 9 /data", 0), (3_000, "rwxp 0 0:0 0", MAX_ANONYMOUS), (900, "rwxp 0 0:0 0", 900)]
        {
            let vmas = parse(mappings(count, rest).as_bytes());
            assert_eq!(vmas.len(), kept + 1, "{count} of {rest}");
            assert_eq!(vmas.last(), parse(LIBRARY.as_bytes()).first());
        }
        assert_eq!(parse(mappings(65_530, "r-xp 0 0:1 9 f").as_bytes()).len(), MAX_FILES);
    }

    #[test]
    fn pieces_of_memory_count_once() {
        let piece = |number: u64| format!("{:x}-{:x} rwxp 0 0:0 0\n", number * 16, number * 16 + 16);
        let text: String = (0..3_000).map(piece).chain([LIBRARY.to_owned()]).collect();
        let vmas = parse(text.as_bytes());
        assert_eq!((vmas.len(), vmas[0].start, vmas[0].end), (2, 0, 48_000));
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_with_all_that_it_seems_to_hold() {
        let path = "a".repeat(CHUNK) + " 2000-3000 r-xp 0 fd:00 8 /forged";
        let text = format!("{LIBRARY}1000-2000 r-xp 0 fd:00 9 /{path}\n9000-a000 r-xp 0 fd:00 9 /x\n");
        for most in [1_000, CHUNK] {
            let mut text = text.as_bytes();
            let more = |buffer: &mut [u8]| {
                let length = buffer.len().min(most);
                io::Read::read(&mut text, &mut buffer[..length])
            };
            let starts: Vec<_> = read(more).unwrap().iter().map(|vma| vma.start).collect();
            assert_eq!(starts, [0x9000, 0x7fff_f7fc_0000], "{most}");
        }
    }
}
