//! Hard interrupts of the node by name: sums of a bounded number of names, and one for all further ones. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// The largest number of names with sums of their own.
pub const MOST_NAMES: usize = 64;
/// The name of all interrupts without sums of their own.
pub const OTHER: &str = "(other)";
/// The labels of a name's sums in the checkpoint, without the name.
const COUNT: &str = "interrupt count ";
const NS: &str = "interrupt ns ";
/// The ends of names that the number of a queue follows.
const BEFORE_QUEUE: [&str; 5] = ["-", ".", "q", "comp", "msix"];

/// The hard interrupts of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handled {
    /// Number of interrupts.
    pub count: u64,
    /// Time in them, in nanoseconds.
    pub ns: u64,
}

/// Hard interrupts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HardInterrupts(BTreeMap<String, Handled>);

impl HardInterrupts {
    /// Adds interrupts under a name as the kernel has it, up to the first 0. Drivers choose its bytes.
    pub fn add(&mut self, name: &[u8], handled: Handled) {
        self.add_to(&shown(name), handled);
    }

    /// Adds the sums of all names.
    pub fn add_all(&mut self, others: &Self) {
        others.iter().for_each(|(name, handled)| self.add_to(name, handled));
    }

    /// Returns the sums of at most [`MOST_NAMES`] names, and those of all further ones under [`OTHER`]. The names in
    /// `known` have sums of their own. The names that this call gives sums of their own are added to it: if the next
    /// call gets the same set, no sum falls.
    #[must_use]
    pub fn bounded(&self, known: &mut BTreeSet<String>) -> Self {
        let mut bounded = Self::default();
        for (name, handled) in self.iter() {
            if name != OTHER && known.len() < MOST_NAMES {
                known.insert(name.to_owned());
            }
            bounded.add_to(if known.contains(name) { name } else { OTHER }, handled);
        }
        bounded
    }

    /// Returns the names and their sums, in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Handled)> {
        self.0.iter().map(|(name, handled)| (name.as_str(), *handled))
    }

    /// Returns the names with sums of their own.
    #[must_use]
    pub fn names(&self) -> BTreeSet<String> {
        self.0.keys().filter(|name| name.as_str() != OTHER).cloned().collect()
    }

    /// Returns all sums, each with a label.
    pub fn numbers(&self) -> impl Iterator<Item = (String, u64)> {
        self.iter()
            .flat_map(|(name, Handled { count, ns })| [(format!("{COUNT}{name}"), count), (format!("{NS}{name}"), ns)])
    }

    /// Returns the sums among numbers with labels. Other labels are ignored.
    #[must_use]
    pub fn of_numbers(numbers: &BTreeMap<String, u64>) -> Self {
        let mut this = Self::default();
        for (label, number) in numbers {
            if let Some(name) = label.strip_prefix(COUNT) {
                this.add_to(name, Handled { count: *number, ns: 0 });
            } else if let Some(name) = label.strip_prefix(NS) {
                this.add_to(name, Handled { count: 0, ns: *number });
            }
        }
        this
    }

    fn add_to(&mut self, name: &str, more: Handled) {
        if more == Handled::default() {
            return;
        }
        let sums = self.0.entry(name.to_owned()).or_default();
        sums.count = sums.count.wrapping_add(more.count);
        sums.ns = sums.ns.wrapping_add(more.ns);
    }
}

/// Returns the name to show for a name of the kernel.
fn shown(name: &[u8]) -> String {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let letter = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '_' };
    let name: String = name.iter().map(letter).collect();
    let name = name.trim();
    if name.is_empty() { OTHER.to_owned() } else { without_queue(name) }
}

/// Returns the name with `*` for the number of a queue. Disks and network cards have an interrupt for each queue, and a
/// queue for each CPU: a node with many CPUs would have more names than there are series.
fn without_queue(name: &str) -> String {
    // The address of the device follows.
    let (queue, device) = name.split_at(name.find('@').unwrap_or(name.len()));
    let before = queue.trim_end_matches(|letter: char| letter.is_ascii_digit());
    // The last number of a PCI address, as in `00:1f.2`, is none of a queue.
    let is_address = before.ends_with('.') && before.rfind(':').is_some_and(|colon| before.len() - colon == 4);
    let is_queue = before.len() < queue.len() && !is_address && BEFORE_QUEUE.iter().any(|end| before.ends_with(*end));
    if is_queue { format!("{before}*{device}") } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handled(count: u64) -> Handled {
        Handled { count, ns: 10 * count }
    }

    #[test]
    fn queues_of_a_device_are_one_name_and_strange_bytes_are_replaced() {
        let cases: &[(&[u8], &str)] = &[
            (b"nvme0q12\0\0\0", "nvme0q*"),
            (b"eth0-TxRx-3", "eth0-TxRx-*"),
            (b"virtio2-input.0", "virtio2-input.*"),
            (b"mlx5_comp12@pci:0000:3b:00.0", "mlx5_comp*@pci:0000:3b:00.0"),
            (b"mpt3sas0-msix7", "mpt3sas0-msix*"),
            (b"ahci[0000:00:1f.2]", "ahci[0000:00:1f.2]"),
            (b"hns3-0000:7d:00.0", "hns3-0000:7d:00.0"),
            (b"enp0s31f6", "enp0s31f6"),
            (b"rtc0", "rtc0"),
            (b"PCIe PME", "PCIe PME"),
            (b"a\"b\\c\n\xff7", "a\"b\\c__7"),
            (b"12", "12"),
            (b" ", OTHER),
            (b"", OTHER),
            (b"\0timer", OTHER),
        ];
        for (name, expected) in cases {
            assert_eq!(shown(name), *expected, "{name:?}");
        }
    }

    #[test]
    fn names_keep_their_sums_and_the_rest_shares_one() {
        let mut known = BTreeSet::new();
        let mut sums = HardInterrupts::default();
        for number in 0..MOST_NAMES {
            sums.add(format!("m{number:02}").as_bytes(), handled(1));
        }
        assert_eq!(sums.bounded(&mut known), sums);
        // A name that comes first in the alphabet takes the place of no other one.
        sums.add(b"a", handled(5));
        sums.add(b"m00", handled(1));
        sums.add(b"", handled(2));
        let bounded = sums.bounded(&mut known);
        assert_eq!((known.len(), bounded.iter().count()), (MOST_NAMES, MOST_NAMES + 1));
        let of = |name: &str| bounded.iter().find(|(of, _)| *of == name).map(|(_, handled)| handled);
        assert_eq!((of("m00"), of("a"), of(OTHER)), (Some(handled(2)), None, Some(handled(7))));
        assert_eq!(bounded.names(), known);
    }

    #[test]
    fn sums_come_back_from_the_numbers_of_a_checkpoint() {
        let mut sums = HardInterrupts::default();
        sums.add(b"PCIe PME", handled(3));
        sums.add(b"timer", Handled { count: 1, ns: 0 });
        sums.add(b"never", Handled::default());
        let mut numbers: BTreeMap<String, u64> = sums.numbers().collect();
        numbers.insert("drop cgroup_ring".into(), 7);
        assert_eq!(HardInterrupts::of_numbers(&numbers), sums);
        let mut twice = sums.clone();
        twice.add_all(&sums);
        assert_eq!(
            twice.iter().collect::<Vec<_>>(),
            [("PCIe PME", handled(6)), ("timer", Handled { count: 2, ns: 0 })]
        );
    }
}
