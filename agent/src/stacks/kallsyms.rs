//! Names of kernel addresses, out of the lines of `/proc/kallsyms`.

use std::io::{self, BufRead};

use super::nearest::Nearest;

/// No function is longer: what is further from a start belongs to code without a name.
const LONGEST: u64 = 1 << 18;

/// The function at each address; `wanted` must be ascending. Modules and BPF programs are in the table too.
pub(super) fn names(mut table: impl BufRead, wanted: &[u64]) -> io::Result<Vec<Option<String>>> {
    let mut nearest = Nearest::new(wanted);
    let mut line = Vec::new();
    while table.read_until(b'\n', &mut line)? > 0 {
        if let Some((start, name)) = symbol(&line) {
            nearest.offer(start, 0, || name.to_owned());
        }
        line.clear();
    }
    let found = nearest.take().into_iter().zip(wanted);
    Ok(found.map(|(found, wanted)| found.filter(|(start, _)| wanted - start < LONGEST).map(|(_, name)| name)).collect())
}

/// A line is `ADDRESS TYPE NAME`, and a tab and the module in brackets.
fn symbol(line: &[u8]) -> Option<(u64, &str)> {
    let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let (start, kind, name) = (fields.next()?, fields.next()?, fields.next()?);
    let start = u64::from_str_radix(start, 16).ok()?;
    // Without CAP_SYSLOG all addresses are zero.
    (start != 0 && matches!(kind, "t" | "T" | "w" | "W")).then_some((start, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
ffffffff81000000 T _text
ffffffff81000100 t do_work
ffffffff81000180 d some_data
ffffffff81000200 T schedule
ffffffffc0000000 t nf_hook\t[nf_tables]
ffffffffc0001000 t bpf_prog_1234_walk\t[bpf]
nonsense
";

    #[test]
    fn functions_of_the_kernel_and_its_modules_are_named() {
        let wanted = [
            0xffff_ffff_8000_0000,
            0xffff_ffff_8100_01ff,
            0xffff_ffff_8100_0200,
            0xffff_ffff_9000_0000,
            0xffff_ffff_c000_0fff,
            0xffff_ffff_c000_1001,
        ];
        let names = names(TABLE, &wanted).unwrap();
        let expected = [None, Some("do_work"), Some("schedule"), None, Some("nf_hook"), Some("bpf_prog_1234_walk")];
        assert_eq!(names, expected.map(|name| name.map(str::to_owned)));
    }

    #[test]
    fn a_kernel_that_hides_its_addresses_names_nothing() {
        let names = names(&b"0000000000000000 T schedule\n"[..], &[0xffff_ffff_8100_0200]).unwrap();
        assert_eq!(names, [None]);
    }
}
