//! Facts of this machine: kernel, BTF, cgroup2, lockdown, capabilities. Reading them is I/O; judging them is pure.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use caps::{CapSet, Capability};
use thiserror::Error;

use super::{
    cpu_info::CpuInfo,
    isolation::Isolation,
    mounts::{self, cgroup2_mounts, is_cgroup2},
    sched_ext,
    symbols::KernelNames,
};
use crate::{events, model::mode::Mode};

/// The oldest kernel that ring 2 of the tests runs on. The agent still tries older kernels: see `features.rs`.
pub const OLDEST_TESTED: (u32, u32) = (6, 1);

/// The file in which the kernel describes its types.
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// The file with the kernel's lockdown mode, which limits even root. It does not exist without
/// `CONFIG_SECURITY_LOCKDOWN_LSM` or securityfs.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
/// The lockdown mode in which BPF programs cannot read kernel memory: the kernel then has no helper
/// `bpf_probe_read_kernel_str`.
const CONFIDENTIALITY: &str = "confidentiality";

/// Facts of the machine that the agent depends on.
#[derive(Clone, Debug)]
pub struct Host {
    /// `uname -r`.
    pub kernel: String,
    /// Set if the kernel describes its types (`CONFIG_DEBUG_INFO_BTF`).
    pub btf: bool,
    /// Root of the cgroup2 tree: the configured directory, else a visible cgroup2 mount.
    pub cgroup_root: Option<PathBuf>,
    /// Set if `cgroup_root` really is a cgroup2 mount.
    pub is_cgroup2: bool,
    /// Set if `cgroup_root` is the root of the machine's whole tree.
    pub sees_all_cgroups: bool,
    /// The directories of all cgroup2 mounts. Other mounts may hide them.
    pub cgroup2_mounts: Vec<PathBuf>,
    /// Set if the processes of the whole node are visible here.
    pub sees_all_processes: bool,
    /// Effective capabilities of the agent.
    pub capabilities: Vec<Capability>,
    /// The names of its functions that the kernel shows.
    pub kernel_names: KernelNames,
    /// Set if the capabilities belong to a user namespace other than the machine's initial one.
    pub user_namespace: bool,
    /// `kernel.perf_event_paranoid`.
    pub perf_event_paranoid: Option<i32>,
    /// The lockdown mode in force: `none`, `integrity` or `confidentiality`; `None` where the kernel does not show
    /// it.
    pub lockdown: Option<String>,
    /// Set if the NMI watchdog runs (`kernel.nmi_watchdog`), which holds one counter of each CPU.
    pub nmi_watchdog: bool,
    /// Name of the CPUs' own PMU in sysfs.
    pub cpu_pmu: Option<String>,
    /// Number of online CPUs.
    pub cpus: u32,
    /// Kind of the CPUs.
    pub cpu: CpuInfo,
    /// The CPUs that are kept free for some threads.
    pub isolation: Isolation,
    /// Name of the BPF scheduler; `None` if the kernel's own one runs.
    pub scheduler: Option<String>,
}

/// The reason why podperf cannot run on this machine. The agent then exits with code 3.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unsupported {
    /// The kernel lacks BPF features that the programs need. This is known only after the kernel has refused them.
    #[error(
        "kernel `{release}` lacks {} (use Linux 5.15 or newer, or a kernel whose vendor has added them)",
        .missing.join(" and ")
    )]
    Features {
        /// `uname -r`.
        release: String,
        /// The missing features, each with the first release of Linux that has it.
        missing: Vec<&'static str>,
    },
    /// The kernel has no BTF: the programs cannot be relocated for it.
    #[error(
        "no BTF at `{BTF}` (needs a kernel built with CONFIG_DEBUG_INFO_BTF=y; in a container, mount the host's /sys)"
    )]
    Btf,
    /// The machine has no cgroup2 mount.
    #[error(
        "no cgroup2 mount in /proc/self/mountinfo (mount one: `mount -t cgroup2 none /sys/fs/cgroup`, or name the host's with `--cgroup-root DIR`)"
    )]
    NoCgroup2,
    /// Other mounts hide all cgroup2 mounts.
    #[error(
        "other mounts hide each cgroup2 mount: {} (unmount what lies above, or mount cgroup2 once more and name the \
         directory with `--cgroup-root DIR`)",
        list(.0)
    )]
    HiddenCgroup2(Vec<PathBuf>),
    /// The configured directory is not a cgroup2 mount.
    #[error("`{0}` is not a cgroup2 mount (see `grep cgroup2 /proc/self/mountinfo`, and set `--cgroup-root DIR`)")]
    NotCgroup2(PathBuf),
    /// The kernel's lockdown denies reading of kernel memory, even to root.
    #[error(
        "kernel lockdown is `{CONFIDENTIALITY}`: no BPF program may read kernel memory (boot with `lockdown=integrity`)"
    )]
    Lockdown,
    /// The agent runs in a user namespace, whose capabilities do not count for bpf(2).
    #[error(
        "in a user namespace, whose capabilities do not count for BPF (run it outside: in no rootless container, and \
         in a pod without `hostUsers: false`)"
    )]
    UserNamespace,
    /// Missing capabilities, each with its purpose.
    #[error(
        "missing {} (run as root, give the binary `setcap cap_bpf,cap_perfmon+ep`, or give the container \
         `capabilities: {{add: [BPF, PERFMON]}}`)",
        .0.join(" and ")
    )]
    Capabilities(Vec<String>),
}

impl Unsupported {
    /// Returns the error for features that the running kernel lacks.
    pub(super) fn features(missing: Vec<&'static str>) -> Self {
        Self::Features { release: release(), missing }
    }
}

/// A thing that names in stacks need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamesNeed {
    /// A capability of the agent.
    Capability(Capability),
    /// A `kernel.kptr_restrict` below 2.
    Addresses,
    /// A kernel that has a table of its functions.
    Table,
    /// The PID namespace of the node.
    Processes,
}

impl fmt::Display for NamesNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capability(capability) => write!(f, "{capability}"),
            Self::Addresses => f.write_str("`sysctl kernel.kptr_restrict=1`"),
            Self::Table => f.write_str("/proc/kallsyms of a kernel with CONFIG_KALLSYMS=y"),
            Self::Processes => f.write_str("`hostPID: true`, or in Docker `--pid=host`"),
        }
    }
}

impl Host {
    /// Reads the facts; `cgroup_root` replaces the search for the mount.
    #[must_use]
    pub fn read(cgroup_root: Option<&Path>) -> Self {
        let cgroup2_mounts = cgroup2_mounts();
        let cgroup_root = cgroup_root.or_else(|| mounts::choose(&cgroup2_mounts, is_cgroup2, mounts::is_whole));
        Self {
            kernel: release(),
            btf: Path::new(BTF).exists(),
            is_cgroup2: cgroup_root.is_some_and(is_cgroup2),
            sees_all_cgroups: cgroup_root.is_some_and(mounts::is_whole),
            cgroup_root: cgroup_root.map(Path::to_owned),
            cgroup2_mounts: cgroup2_mounts.into_iter().map(|mount| mount.point).collect(),
            sees_all_processes: in_initial_pid_namespace(),
            capabilities: caps::read(None, CapSet::Effective).map(|set| set.into_iter().collect()).unwrap_or_default(),
            kernel_names: KernelNames::look(),
            user_namespace: fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !is_whole(&map)),
            perf_event_paranoid: read_number("/proc/sys/kernel/perf_event_paranoid"),
            lockdown: fs::read_to_string(LOCKDOWN).ok().as_deref().and_then(lockdown_mode),
            nmi_watchdog: read_number("/proc/sys/kernel/nmi_watchdog") == Some(1),
            cpu_pmu: names_in(events::SYSFS).into_iter().find(|name| is_cpu_pmu(name)),
            cpus: aya::util::online_cpus().ok().and_then(|cpus| u32::try_from(cpus.len()).ok()).unwrap_or(1),
            cpu: CpuInfo::read(),
            isolation: Isolation::read(),
            scheduler: sched_ext::scheduler(),
        }
    }

    /// Returns whether the kernel's version is older than all tested ones. The kernel may have the features all the
    /// same.
    #[must_use]
    pub fn is_untested(&self) -> bool {
        kernel_version(&self.kernel).is_some_and(|version| version < OLDEST_TESTED)
    }

    /// Returns whether a probe of a function's return ends processes with a filter of system calls, as containers have.
    /// On x86-64 the return makes a system call since Linux 6.11, which their filters deny.
    #[must_use]
    pub fn filters_returns(&self) -> bool {
        cfg!(target_arch = "x86_64") && filters_returns(&self.kernel)
    }

    /// Returns all problems that keep podperf from running here, the most basic first. Pure.
    #[must_use]
    pub fn problems(&self) -> Vec<Unsupported> {
        let mut problems = Vec::new();
        if !self.btf {
            problems.push(Unsupported::Btf);
        }
        match &self.cgroup_root {
            None if self.cgroup2_mounts.is_empty() => problems.push(Unsupported::NoCgroup2),
            None => problems.push(Unsupported::HiddenCgroup2(self.cgroup2_mounts.clone())),
            Some(root) if !self.is_cgroup2 => problems.push(Unsupported::NotCgroup2(root.clone())),
            Some(_) => {}
        }
        if self.lockdown.as_deref() == Some(CONFIDENTIALITY) {
            problems.push(Unsupported::Lockdown);
        }
        if self.user_namespace {
            problems.push(Unsupported::UserNamespace);
        }
        let needed = [
            (Capability::CAP_BPF, "to load the BPF programs"),
            (Capability::CAP_PERFMON, "to attach them and to open perf events"),
        ];
        let missing: Vec<String> = needed
            .into_iter()
            .filter(|(capability, _)| !self.has(*capability))
            .map(|(capability, purpose)| format!("{capability} ({purpose})"))
            .collect();
        if !missing.is_empty() {
            problems.push(Unsupported::Capabilities(missing));
        }
        problems
    }

    /// Returns the names that the stacks of a mode lack here, each with what it needs. Pure.
    #[must_use]
    pub fn without_names(&self, mode: Mode) -> Vec<(&'static str, NamesNeed)> {
        let of_kernel = match self.kernel_names {
            KernelNames::Shown => None,
            // The capability counts only in the initial user namespace.
            KernelNames::Hidden if self.user_namespace || !self.has(Capability::CAP_SYSLOG) => {
                Some(NamesNeed::Capability(Capability::CAP_SYSLOG))
            }
            KernelNames::Hidden => Some(NamesNeed::Addresses),
            KernelNames::Missing => Some(NamesNeed::Table),
        };
        let has_user_frames = mode == Mode::Profiles;
        let of_processes = (has_user_frames && !self.sees_all_processes).then_some(NamesNeed::Processes);
        // Other users' files also need CAP_DAC_READ_SEARCH.
        let ptrace = Capability::CAP_SYS_PTRACE;
        let of_others = (has_user_frames && !self.has(ptrace)).then_some(NamesNeed::Capability(ptrace));
        let needs = [
            ("kernel names", of_kernel),
            ("names in the node's processes", of_processes),
            ("names in other users' processes", of_others),
        ];
        needs.into_iter().filter_map(|(names, need)| Some((names, need?))).collect()
    }

    /// Returns whether a capability is effective. `CAP_SYS_ADMIN` includes `CAP_BPF` and `CAP_PERFMON`, which were
    /// split off it.
    #[must_use]
    pub fn has(&self, capability: Capability) -> bool {
        let split_off = matches!(capability, Capability::CAP_BPF | Capability::CAP_PERFMON);
        self.capabilities.contains(&capability) || split_off && self.capabilities.contains(&Capability::CAP_SYS_ADMIN)
    }
}

/// Returns `uname -r`.
fn release() -> String {
    nix::sys::utsname::uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default()
}

/// Parses the version of a release: `5.15` of `5.15.0-91-generic`.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Returns whether a kernel of this release for x86-64 filters the system call of a probe of a return. The first
/// releases with the correction (commit cf6cb56ef244) are of February 2025; these limits are a little later.
fn filters_returns(release: &str) -> bool {
    let patch = release.split(|c: char| !c.is_ascii_digit()).nth(2).and_then(|patch| patch.parse().ok()).unwrap_or(0);
    match kernel_version(release) {
        Some((6, 11)) => true,
        Some((6, 12)) => patch < 20,
        Some((6, 13)) => patch < 8,
        _ => false,
    }
}

/// Lists paths for a message.
fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| format!("`{}`", path.display())).collect::<Vec<_>>().join(", ")
}

/// Returns whether a `uid_map` is that of the initial user namespace, in which each user id maps to itself.
fn is_whole(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Parses the mode in force: `integrity` of `none [integrity] confidentiality`.
fn lockdown_mode(modes: &str) -> Option<String> {
    let (_, rest) = modes.split_once('[')?;
    rest.split_once(']').map(|(mode, _)| mode.to_owned())
}

/// Returns whether a PMU's name in sysfs is that of the CPUs' own PMU: on x86 (the first kind of a hybrid machine),
/// or on Arm.
fn is_cpu_pmu(name: &str) -> bool {
    matches!(name, "cpu" | "cpu_core") || name.starts_with("armv8_")
}

fn names_in(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// Returns whether the iterator `collect` sees all tasks. The kernel shows a reader only the tasks of its own PID
/// namespace.
#[must_use]
pub fn in_initial_pid_namespace() -> bool {
    // `PROC_PID_INIT_INO` of the kernel's `proc_ns.h`.
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]")
}

fn read_number(path: &str) -> Option<i32> {
    read_trimmed(path).ok()?.parse().ok()
}

fn read_trimmed(path: &str) -> io::Result<String> {
    fs::read_to_string(path).map(|text| text.trim().to_owned())
}

#[cfg(test)]
impl Host {
    /// Returns a machine that lacks only a PMU.
    pub(crate) fn example() -> Self {
        Self {
            kernel: "6.1.0-18-amd64".into(),
            btf: true,
            cgroup_root: Some("/sys/fs/cgroup".into()),
            is_cgroup2: true,
            sees_all_cgroups: true,
            cgroup2_mounts: vec!["/sys/fs/cgroup".into()],
            sees_all_processes: true,
            kernel_names: KernelNames::Shown,
            capabilities: vec![Capability::CAP_BPF, Capability::CAP_PERFMON],
            user_namespace: false,
            perf_event_paranoid: Some(2),
            lockdown: None,
            nmi_watchdog: false,
            cpu_pmu: None,
            cpus: 2,
            cpu: CpuInfo::default(),
            isolation: Isolation::default(),
            scheduler: None,
        }
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
