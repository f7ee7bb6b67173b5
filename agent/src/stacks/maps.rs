//! Parses the executable mappings of a process from the text of `/proc/PID/maps`. Pure.

/// The largest number of mappings that are parsed. A process may have 65,530; beyond this limit, its frames have no
/// names.
const MAX_VMAS: usize = 2048;

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

/// Returns the executable mappings, sorted by address.
pub(super) fn parse(text: &[u8]) -> Vec<Vma> {
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| vma(&String::from_utf8_lossy(line)));
    let mut vmas: Vec<Vma> = lines.take(MAX_VMAS).collect();
    vmas.sort_unstable_by_key(|vma| vma.start);
    // Adjacent pieces of anonymous memory are merged: the borders in a JIT compiler's memory have no meaning.
    vmas.dedup_by(|next, last| {
        let continues = last.backing == Backing::Anonymous && next.backing == last.backing && next.start == last.end;
        if continues {
            last.end = next.end;
        }
        continues
    });
    vmas
}

fn vma(line: &str) -> Option<Vma> {
    // A line has six fields; only the last one may contain spaces.
    let mut rest = line;
    let mut field = || {
        let (field, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        field
    };
    let (range, flags, offset, device, inode) = (field(), field(), field(), field(), field());
    if flags.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
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

    #[test]
    fn a_process_with_countless_mappings_has_some() {
        let line = |number: u64| format!("{:x}-{:x} r-xp 0 0:1 9 f\n", number * 16, number * 16 + 8);
        let text: String = (0..65_530).map(line).collect();
        assert_eq!(parse(text.as_bytes()).len(), MAX_VMAS);
    }
}
