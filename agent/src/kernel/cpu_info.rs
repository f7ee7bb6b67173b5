//! The kind of the CPUs, from `/proc/cpuinfo`. Reading is I/O; parsing is pure.

use std::collections::BTreeSet;

use super::proc::read_text;

/// The identity of a node's CPUs, to compare nodes. Several kinds in one machine are joined by `+`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuInfo {
    /// `GenuineIntel`; on Arm the number of the implementer.
    pub vendor: String,
    /// The key of perf's event tables, one per micro-architecture: `GenuineIntel-6-8F`; on Arm the identification
    /// register without variant and revision.
    pub cpuid: String,
    /// The CPUs' own name for their model; empty on Arm.
    pub model_name: String,
}

impl CpuInfo {
    /// Returns the CPUs of this machine; fields that the kernel does not show are empty.
    #[must_use]
    pub fn read() -> Self {
        // A hypervisor chooses the name of the model.
        Self::parse(&read_text("/proc/cpuinfo").unwrap_or_default())
    }

    fn parse(cpuinfo: &str) -> Self {
        let (mut vendors, mut ids, mut names) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for cpu in cpuinfo.split("\n\n") {
            let field = |wanted: &str| {
                let found = |line: &&str| line.split(':').next().is_some_and(|name| name.trim() == wanted);
                cpu.lines().find(found).and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
            };
            let number = |wanted: &str| field(wanted).and_then(|text| text.parse::<u32>().ok());
            let hex = |wanted: &str| u64::from_str_radix(field(wanted)?.strip_prefix("0x")?, 16).ok();
            if let (Some(vendor), Some(family), Some(model)) =
                (field("vendor_id"), number("cpu family"), number("model"))
            {
                ids.insert(format!("{vendor}-{family}-{model:X}"));
                vendors.insert(vendor);
            } else if let (Some(implementer), Some(part)) = (hex("CPU implementer"), hex("CPU part")) {
                // MIDR_EL1: implementer, architecture (always 15 today), part.
                ids.insert(format!("0x{:016x}", implementer << 24 | 0xf << 16 | part << 4));
                vendors.insert(format!("0x{implementer:02x}"));
            }
            names.extend(field("model name"));
        }
        let join = |texts: BTreeSet<String>| texts.into_iter().collect::<Vec<_>>().join("+");
        Self { vendor: join(vendors), cpuid: join(ids), model_name: join(names) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_has_the_key_of_perfs_tables() {
        let intel = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\
                     model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz\nstepping\t: 8\n";
        let expected = CpuInfo {
            vendor: "GenuineIntel".into(),
            cpuid: "GenuineIntel-6-8F".into(),
            model_name: "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz".into(),
        };
        assert_eq!(CpuInfo::parse(&format!("{intel}\n{}\n", intel.replace(": 0\n", ": 1\n"))), expected);
    }

    #[test]
    fn kinds_of_one_machine_are_all_listed() {
        let arm = |part: &str| {
            format!(
                "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\n\
                 CPU part\t: {part}\nCPU revision\t: 1\n"
            )
        };
        let both = CpuInfo::parse(&format!("{}\n{}\n{}", arm("0xd0c"), arm("0xd0c"), arm("0xd05")));
        assert_eq!(both.cpuid, "0x00000000410fd050+0x00000000410fd0c0");
        assert_eq!((both.vendor.as_str(), both.model_name.as_str()), ("0x41", ""));
    }

    #[test]
    fn who_tells_nothing_is_nothing() {
        assert_eq!(CpuInfo::parse("processor\t: 0\nisa\t: rv64imafdc\n"), CpuInfo::default());
    }
}
