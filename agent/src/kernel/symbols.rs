//! The kernel's functions, from `/proc/kallsyms`. Their addresses are hidden without `CAP_SYSLOG`, and always if
//! `kernel.kptr_restrict` is 2.

use std::{
    collections::{BTreeSet, HashMap},
    fs::{self, File},
    io::{self, BufRead, BufReader},
    ops::{ControlFlow, Range},
};

/// The largest size of a function, in bytes. An address further from a start belongs to code without a name.
const LONGEST: u64 = 1 << 18;

/// The names of its functions that the kernel shows to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelNames {
    /// The names with their addresses.
    Shown,
    /// The names without their addresses.
    Hidden,
    /// None: the kernel has no `CONFIG_KALLSYMS`, or the file is not there.
    Missing,
}

impl KernelNames {
    /// Looks at the functions up to the first one with an address.
    #[must_use]
    pub fn look() -> Self {
        open().and_then(Self::of).unwrap_or(Self::Missing)
    }

    /// Returns the state after the kernel has hidden its addresses.
    #[must_use]
    pub const fn hidden(self) -> Self {
        match self {
            Self::Shown | Self::Hidden => Self::Hidden,
            Self::Missing => Self::Missing,
        }
    }

    fn of(lines: impl BufRead) -> io::Result<Self> {
        let mut names = Self::Missing;
        each_function(lines, |address, _, _| match address {
            0 => {
                names = Self::Hidden;
                ControlFlow::Continue(())
            }
            _ => {
                names = Self::Shown;
                ControlFlow::Break(())
            }
        })?;
        Ok(names)
    }
}

/// The functions of the kernel, its modules and BPF programs, as they were when they were read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct KernelFunctions {
    /// The addresses where the functions begin, ascending. A function with several names appears several times.
    starts: Box<[u64]>,
    /// The offset in `names` of each function's name.
    names_at: Box<[u32]>,
    /// The names, each followed by a line break.
    names: Box<str>,
    /// The addresses of functions that come and go without a module, such as BPF programs.
    passing: Box<[u64]>,
    /// The first address of the kernel, of each module and of each passing function, ascending.
    origins: Box<[u64]>,
}

impl KernelFunctions {
    /// Reads the current functions; returns none if the kernel hides them.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn read() -> io::Result<Self> {
        Self::parse(open()?)
    }

    /// Reads the functions from lines like those of `/proc/kallsyms`.
    pub(crate) fn parse(lines: impl BufRead) -> io::Result<Self> {
        let (mut functions, mut names, mut passing) = (Vec::new(), String::new(), Vec::new());
        let mut firsts: HashMap<String, u64> = HashMap::new();
        each_function(lines, |address, name, module| {
            if address != 0
                // The padding that the compiler puts before each function has no code, and would double the names.
                && !name.starts_with("__pfx_")
                && let Ok(at) = u32::try_from(names.len())
            {
                functions.push((address, at));
                names.push_str(name);
                names.push('\n');
                if matches!(module, "[bpf]" | "[__builtin__ftrace]" | "[__builtin__kprobes]") {
                    passing.push(address);
                } else if let Some(first) = firsts.get_mut(module) {
                    *first = address.min(*first);
                } else {
                    firsts.insert(module.to_owned(), address);
                }
            }
            ControlFlow::Continue(())
        })?;
        functions.sort_by_key(|(address, _)| *address);
        passing.sort_unstable();
        let mut origins: Vec<u64> = firsts.into_values().chain(passing.iter().copied()).collect();
        origins.sort_unstable();
        Ok(Self {
            starts: functions.iter().map(|(address, _)| *address).collect(),
            names_at: functions.iter().map(|(_, at)| *at).collect(),
            names: names.into(),
            passing: passing.into(),
            origins: origins.into(),
        })
    }

    /// Returns true if no function is known, because the kernel hides them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns each name of each function with the address where the function begins, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &str)> {
        self.starts.iter().copied().zip(self.names_at.iter().map(|at| self.name(*at)))
    }

    /// Returns the name of the function that contains this address.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&str> {
        let start = self.nearest(address)?;
        // A function with several names has the first one of the file.
        let first = self.starts.partition_point(|other| *other < start);
        Some(self.name(*self.names_at.get(first)?))
    }

    /// Returns true if another read would return the same function for this address, as long as no module is loaded or
    /// unloaded.
    #[must_use]
    pub fn is_sure_of(&self, address: u64) -> bool {
        self.nearest(address).is_some_and(|start| self.passing.binary_search(&start).is_err())
    }

    /// Returns the first address of what contains this address: the kernel, a module, or a function without a module;
    /// `None` if no known function does.
    #[must_use]
    pub fn origin(&self, address: u64) -> Option<u64> {
        self.nearest(address)?;
        let after = self.origins.partition_point(|origin| *origin <= address);
        self.origins.get(after.checked_sub(1)?).copied()
    }

    fn nearest(&self, address: u64) -> Option<u64> {
        let after = self.starts.partition_point(|start| *start <= address);
        self.starts.get(after.checked_sub(1)?).copied().filter(|start| address - start < LONGEST)
    }

    fn name(&self, at: u32) -> &str {
        let rest = self.names.get(at as usize..).unwrap_or_default();
        rest.split_once('\n').map_or(rest, |(name, _)| name)
    }

    /// Returns the addresses of the code that enters interrupts; empty if they are not known.
    fn interrupt_text(&self) -> Range<u64> {
        self.between("__irqentry_text_start", "__irqentry_text_end")
    }

    /// Returns the addresses of the function that switches tasks; empty if they are not known.
    fn scheduler(&self) -> Range<u64> {
        let is_it = |name: &str| name.split('.').next() == Some("__schedule");
        let begin = self.iter().find(|(_, name)| is_it(name)).map_or(0, |(address, _)| address);
        let after = self.starts.partition_point(|start| *start <= begin);
        begin..self.starts.get(after).copied().filter(|_| begin > 0).unwrap_or(begin)
    }

    fn between(&self, begin: &str, end: &str) -> Range<u64> {
        let find = |wanted| self.iter().find(|(_, name)| *name == wanted).map_or(0, |(address, _)| address);
        find(begin)..find(end)
    }
}

fn open() -> io::Result<impl BufRead> {
    Ok(BufReader::with_capacity(64 << 10, File::open("/proc/kallsyms")?))
}

/// Calls `each` with the address, the name and the module of each function, until it breaks. Names of modules and of
/// their functions may have any bytes.
fn each_function(mut lines: impl BufRead, mut each: impl FnMut(u64, &str, &str) -> ControlFlow<()>) -> io::Result<()> {
    let mut bytes = Vec::new();
    while lines.read_until(b'\n', &mut bytes)? > 0 {
        let line = String::from_utf8_lossy(&bytes);
        if let Some((address, name, module)) = function(&line)
            && each(address, name, module).is_break()
        {
            break;
        }
        bytes.clear();
    }
    Ok(())
}

/// Parses lines such as `ffffffff81000000 T _stext` or `ffffffffc0000000 t xfs_log_force\t[xfs]`.
fn function(line: &str) -> Option<(u64, &str, &str)> {
    let (address, rest) = line.trim_end().split_once(' ')?;
    let ("t" | "T" | "w" | "W", rest) = rest.split_once(' ')? else { return None };
    let (name, module) = rest.split_once('\t').unwrap_or((rest, ""));
    Some((u64::from_str_radix(address, 16).ok()?, name, module))
}

/// Returns the names of BPF programs with these tags, without those that have no name. The kernel shows these names
/// also where it hides addresses.
///
/// # Errors
///
/// When the file cannot be read.
pub fn names_of_programs(tags: &BTreeSet<String>) -> io::Result<HashMap<String, String>> {
    names_in(open()?, tags)
}

fn names_in(lines: impl BufRead, tags: &BTreeSet<String>) -> io::Result<HashMap<String, String>> {
    let mut names = HashMap::new();
    each_function(lines, |_, function, module| {
        if module == "[bpf]"
            && let Some((tag, name)) = function.strip_prefix("bpf_prog_").and_then(|tagged| tagged.split_once('_'))
            && tags.contains(tag)
        {
            names.entry(tag.to_owned()).or_insert_with(|| name.to_owned());
        }
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

/// Returns the addresses of the code that enters interrupts, and of the function that switches tasks. Both are empty if
/// the kernel hides them, or if they are not `wanted`.
pub(super) fn text(wanted: bool) -> (Range<u64>, Range<u64>) {
    let functions = if wanted { KernelFunctions::read().unwrap_or_default() } else { KernelFunctions::default() };
    (functions.interrupt_text(), functions.scheduler())
}

/// Finds the names of the functions that begin at these addresses. A function with several names has the first one of
/// the file, and a function that the kernel hides has none.
///
/// # Errors
///
/// When the file cannot be read.
pub(super) fn name_starts(names: &mut HashMap<u64, Option<String>>) -> io::Result<()> {
    name_starts_from(open()?, names)
}

fn name_starts_from(lines: impl BufRead, names: &mut HashMap<u64, Option<String>>) -> io::Result<()> {
    each_function(lines, |address, name, _| {
        if address != 0
            && let Some(found) = names.get_mut(&address)
            && found.is_none()
        {
            *found = Some(name.to_owned());
        }
        ControlFlow::Continue(())
    })
}

/// Returns the list of modules. A comparison with an earlier list shows if modules were loaded or unloaded.
#[must_use]
pub fn modules() -> Vec<u8> {
    fs::read("/proc/modules").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff810000f0 t __pfx_do_work
ffffffff81000100 t do_work
ffffffff81000180 d some_data
ffffffff81000200 T schedule
0000000000000000 T hidden
ffffffffc0001000 t bpf_prog_1234_walk\t[bpf]
ffffffffc0000000 t nf_hook\t[nf_tables]
nonsense
";

    fn table() -> KernelFunctions {
        KernelFunctions::parse(TABLE.as_bytes()).unwrap()
    }

    #[test]
    fn functions_of_the_kernel_and_its_modules_are_named() {
        let table = table();
        for (address, expected) in [
            (0xffff_ffff_8000_0000, None),
            (0xffff_ffff_8100_0001, Some("_stext")),
            (0xffff_ffff_8100_00f8, Some("_stext")),
            (0xffff_ffff_8100_01ff, Some("do_work")),
            (0xffff_ffff_8100_0200, Some("schedule")),
            (0xffff_ffff_9000_0000, None),
            (0xffff_ffff_c000_0fff, Some("nf_hook")),
            (0xffff_ffff_c000_1001, Some("bpf_prog_1234_walk")),
        ] {
            assert_eq!(table.at(address), expected, "{address:x}");
        }
    }

    /// Kernels with kCFI have a second name before each function.
    #[test]
    fn a_table_in_another_order_and_with_second_names_names_the_same() {
        let mut lines: Vec<_> = TABLE.lines().chain(["ffffffff810000f0 t __cfi_do_work"]).collect();
        lines.reverse();
        let other = KernelFunctions::parse(lines.join("\n").as_bytes()).unwrap();
        for address in [0xffff_ffff_8100_0101, 0xffff_ffff_8100_0201, 0xffff_ffff_c000_0fff, 0xffff_ffff_c000_1001] {
            assert_eq!(other.at(address), table().at(address), "{address:x}");
        }
    }

    #[test]
    fn an_address_counts_from_the_start_of_the_kernel_or_of_its_module() {
        let table = table();
        for (address, expected) in [
            (0xffff_ffff_8100_0201, Some(0xffff_ffff_8100_0000)),
            (0xffff_ffff_c000_0fff, Some(0xffff_ffff_c000_0000)),
            (0xffff_ffff_c000_1001, Some(0xffff_ffff_c000_1000)),
            (0xffff_ffff_9000_0000, None),
        ] {
            assert_eq!(table.origin(address), expected, "{address:x}");
        }
    }

    #[test]
    fn each_is_visited_in_order_with_all_its_names() {
        let table = table();
        let names: Vec<&str> = table.iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["_stext", "_text", "do_work", "schedule", "nf_hook", "bpf_prog_1234_walk"]);
    }

    #[test]
    fn what_may_have_come_since_is_not_sure() {
        let table = table();
        let sure = [0xffff_ffff_8100_0201, 0xffff_ffff_c000_0001, 0xffff_ffff_c000_1001, 0xffff_ffff_c010_0000];
        assert_eq!(sure.map(|address| table.is_sure_of(address)), [true, true, false, false]);
    }

    #[test]
    fn a_part_of_the_kernel_lies_between_its_marks() {
        let marked = "a0 T __irqentry_text_start\na8 t __schedule.isra.0\nb0 T schedule\nb0 T __irqentry_text_end\n";
        let marked = KernelFunctions::parse(marked.as_bytes()).unwrap();
        assert_eq!((marked.scheduler(), marked.interrupt_text()), (0xa8..0xb0, 0xa0..0xb0));
        assert_eq!((table().scheduler(), table().interrupt_text()), (0..0, 0..0));
    }

    #[test]
    fn programs_have_names_by_their_tags_and_also_without_addresses() {
        let table = format!(
            "{TABLE}0000000000000000 t bpf_prog_5678_on_enter\t[bpf]\n0000000000000000 t bpf_prog_9abc\t[bpf]\n"
        );
        let tags = ["1234", "5678", "9abc", "none"].map(str::to_owned).into();
        let names = names_in(table.as_bytes(), &tags).unwrap();
        let expected = [("1234", "walk"), ("5678", "on_enter")].map(|(tag, name)| (tag.to_owned(), name.to_owned()));
        assert_eq!(names, HashMap::from(expected));
    }

    #[test]
    fn a_kernel_that_hides_its_addresses_has_none() {
        let hidden = KernelFunctions::parse(&b"0000000000000000 T schedule\n"[..]).unwrap();
        assert!(hidden.is_empty() && hidden.at(0xffff_ffff_8100_0200).is_none());
    }

    #[test]
    fn hidden_addresses_are_distinguished_from_a_table_that_is_not_there() {
        for (table, expected) in [
            (TABLE, KernelNames::Shown),
            ("0000000000000000 A fixed_percpu_data\n0000000000000000 T a\nffffffff81000000 T b\n", KernelNames::Shown),
            ("0000000000000000 A fixed_percpu_data\n0000000000000000 T schedule\n", KernelNames::Hidden),
            ("", KernelNames::Missing),
        ] {
            assert_eq!(KernelNames::of(table.as_bytes()).unwrap(), expected, "{table}");
        }
    }

    #[test]
    fn only_the_start_of_a_function_has_its_name() {
        let [start, within, hidden] = [0xffff_ffff_8100_0000, 0xffff_ffff_8100_0101, 0];
        let mut names = HashMap::from([start, within, hidden].map(|address| (address, None)));
        name_starts_from(TABLE.as_bytes(), &mut names).unwrap();
        assert_eq!(names, HashMap::from([(start, Some("_stext".to_owned())), (within, None), (hidden, None)]));
    }

    #[test]
    fn names_of_any_bytes_hide_no_others() {
        let table = &b"ffffffffc0000000 t caf\xe9\t[m\xe9]\nffffffff81000200 T schedule\n"[..];
        let table = KernelFunctions::parse(table).unwrap();
        let names = [0xffff_ffff_8100_0201, 0xffff_ffff_c000_0001].map(|address| table.at(address));
        assert_eq!(names, [Some("schedule"), Some("caf\u{fffd}")]);
    }
}
