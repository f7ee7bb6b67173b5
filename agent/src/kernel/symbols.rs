//! The kernel's functions, from `/proc/kallsyms`. Without `CAP_SYSLOG` their addresses are hidden.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader},
    ops::Range,
};

/// A function of the kernel or of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFunction<'a> {
    /// Where it begins.
    pub address: u64,
    /// As the compiler named it.
    pub name: &'a str,
}

/// Calls `each` with every function, in no order.
///
/// # Errors
///
/// When the file cannot be read.
pub fn each_kernel_function(each: impl FnMut(KernelFunction<'_>)) -> io::Result<()> {
    parse(BufReader::new(File::open("/proc/kallsyms")?), each)
}

/// What tells whether modules were loaded or unloaded since: the list of them, hashed by the caller.
#[must_use]
pub fn modules() -> String {
    fs::read_to_string("/proc/modules").unwrap_or_default()
}

/// Where the kernel enters interrupts; empty where that is not told.
pub(super) fn interrupt_text() -> Range<u64> {
    let (mut begin, mut end) = (0, 0);
    let found = each_kernel_function(|function| match function.name {
        "__irqentry_text_start" => begin = function.address,
        "__irqentry_text_end" => end = function.address,
        _ => {}
    });
    if found.is_ok() { begin..end } else { 0..0 }
}

/// Lines are `ffffffff81000000 T _stext` or `ffffffffc0000000 t xfs_log_force\t[xfs]`.
fn parse(mut lines: impl BufRead, mut each: impl FnMut(KernelFunction<'_>)) -> io::Result<()> {
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        let mut words = line.split_ascii_whitespace();
        if let (Some(address), Some("t" | "T" | "w" | "W"), Some(name)) = (words.next(), words.next(), words.next())
            && let Ok(address) = u64::from_str_radix(address, 16)
            && address != 0
        {
            each(KernelFunction { address, name });
        }
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_taken_and_data_and_hidden_addresses_are_not() {
        let text = "ffffffff81000000 T _stext\n\
                    ffffffff82000000 D jiffies\n\
                    0000000000000000 T schedule\n\
                    nonsense\n\
                    ffffffffc0000010 t xfs_log_force\t[xfs]\n";
        let mut found = Vec::new();
        parse(text.as_bytes(), |function| found.push((function.address, function.name.to_owned()))).unwrap();
        let expected = [(0xffff_ffff_8100_0000, "_stext"), (0xffff_ffff_c000_0010, "xfs_log_force")];
        assert_eq!(found, expected.map(|(address, name)| (address, name.to_owned())));
    }
}
