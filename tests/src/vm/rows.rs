//! The kernels on which ring 2 runs: one row each.

/// Rows in the order of the table.
pub const ROWS: &[Row] = &[
    Row {
        name: "5.10",
        machine: Machine::X86_64,
        suite: "bullseye",
        command_line: "",
        cpus: 2,
        work: Work::Refusal {
            test: "the_agent_names_the_features_that_a_kernel_lacks",
            says: "lacks BPF task storage (Linux 5.11) and `bpf_get_current_task_btf` (Linux 5.11) and `bpf_task_pt_regs` (Linux 5.15)",
        },
    },
    Row { name: "6.1", machine: Machine::X86_64, suite: "bookworm", command_line: "", cpus: 2, work: Work::Tests },
    Row { name: "6.12", machine: Machine::X86_64, suite: "trixie", command_line: "", cpus: 2, work: Work::Tests },
    Row { name: "newest", machine: Machine::X86_64, suite: "sid", command_line: "", cpus: 2, work: Work::Tests },
    Row { name: "6.12-arm64", machine: Machine::Arm64, suite: "trixie", command_line: "", cpus: 1, work: Work::Tests },
    // Kernels in lockdown, which Secure Boot enables in some distributions.
    Row {
        name: "6.12-integrity",
        machine: Machine::X86_64,
        suite: "trixie",
        command_line: "lockdown=integrity",
        cpus: 2,
        work: Work::Some("a_burner_is_charged_what_it_burnt"),
    },
    Row {
        name: "6.12-confidentiality",
        machine: Machine::X86_64,
        suite: "trixie",
        command_line: "lockdown=confidentiality",
        cpus: 2,
        work: Work::Refusal {
            test: "the_agent_refuses_lockdown_that_keeps_kernel_memory",
            says: "kernel lockdown is `confidentiality`: no BPF program may read kernel memory (boot with `lockdown=integrity`)",
        },
    },
    // Debian's cloud kernels have `CONFIG_NO_HZ_FULL`. A CPU keeps its tick while the kernel distrusts the TSC, as it
    // does on two emulated CPUs. Samples by cycles need hardware counters, which only the arm64 machine has.
    Row {
        name: "6.12-nohz-full",
        machine: Machine::X86_64,
        suite: "trixie",
        command_line: "nohz_full=1 isolcpus=1 tsc=reliable",
        cpus: 2,
        work: Work::Some("a_nohz_full_cpu_"),
    },
    Row {
        name: "6.12-arm64-nohz-full",
        machine: Machine::Arm64,
        suite: "trixie",
        command_line: "nohz_full=1 isolcpus=1",
        cpus: 2,
        work: Work::Some("a_nohz_full_cpu_"),
    },
];

/// The Debian release of all guests' programs except podperf's own.
pub const TOOLS_SUITE: &str = "trixie";

/// One kernel.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name by which people choose the row.
    pub name: &'static str,
    /// The machine that it boots on.
    pub machine: Machine,
    /// The Debian release of its cloud kernel.
    pub suite: &'static str,
    /// Further options on the kernel's command line, beside the common ones.
    pub command_line: &'static str,
    /// The number of its CPUs. QEMU's PMU counts the instructions of all CPUs together, so it counts exactly only on a
    /// machine with one CPU.
    pub cpus: u8,
    /// The work of the guest.
    pub work: Work,
}

/// The work of a guest after its boot.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Run ring 2.
    Tests,
    /// Run the tests of ring 2 whose names contain this.
    Some(&'static str),
    /// Start the agent, once without the kernel's text about its security and once with it. The agent must exit with 3.
    Refusal {
        /// The name of this check in the table.
        test: &'static str,
        /// The text that the agent must print.
        says: &'static str,
    },
}

/// The machine that QEMU emulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// A machine without a hardware PMU.
    X86_64,
    /// A machine with a hardware PMU, which counts exactly if it has a single CPU.
    Arm64,
}

/// The guest's Debian packages beside podperf's own programs, each with the pattern of the dependencies to include. A
/// debug build needs the libraries of C and of gcc.
pub const TOOLS: [(&str, &str); 3] = [
    ("busybox-static", "busybox-static"),
    ("bpftool,libgcc-s1", "(bpftool|lib(c6|elf1t64|zstd1|cap2|gcc-s1)|zlib1g)"),
    (PERF, "(linux-perf|lib.*|zlib1g)"),
];
/// The package of perf.
pub const PERF: &str = "linux-perf";

impl Machine {
    /// Returns the architecture's name in Rust and the kernel.
    pub fn arch(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Returns the architecture's name in Debian.
    pub fn debian_arch(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Returns the Debian package of the emulator, and the program in it.
    pub fn qemu(self) -> (&'static str, &'static str) {
        match self {
            Self::X86_64 => ("qemu-system-x86", "qemu-system-x86_64"),
            Self::Arm64 => ("qemu-system-arm", "qemu-system-aarch64"),
        }
    }

    /// Returns the console's device in the guest.
    pub fn console(self) -> &'static str {
        match self {
            Self::X86_64 => "ttyS0",
            Self::Arm64 => "ttyAMA0",
        }
    }

    /// Returns QEMU's flags, except for the number of CPUs. With `-icount` the guest's clock counts its instructions:
    /// other load of the host has no effect on it, and an idle guest does not wait. Task storage of 7.x kernels needs
    /// cmpxchg16b, which `-cpu max` has. Two CPUs take turns. While one CPU stands still, perhaps in the middle of a
    /// context switch, the other advances the time by up to half of the time to the next timer. Two clocks that are read
    /// in one switch may differ by that amount.
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Self::X86_64 => &["-M", "pc", "-cpu", "max", "-icount", "shift=1,sleep=off"],
            Self::Arm64 => &["-M", "virt", "-cpu", "max,pmu=on", "-icount", "shift=1,sleep=off"],
        }
    }
}
