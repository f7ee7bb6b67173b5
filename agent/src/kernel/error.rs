//! The errors with which the sensors fail to start.

use std::{io, path::PathBuf};

use aya::programs::ProgramError;
use thiserror::Error;

use super::host::Unsupported;

/// The reason why the sensors did not start.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The object could not be loaded, because of the kernel's BTF, the object itself, a map or a relocation.
    // The messages of aya include their sources, or hide them: `{err:#}` prints each once.
    #[error("failed to load the BPF object (too little memory for its maps, or a seccomp profile that refuses bpf(2))")]
    Object(#[source] Box<aya::EbpfError>),
    /// The kernel's BTF could not be read.
    #[error("failed to read the kernel's BTF")]
    Btf(#[from] aya_obj::btf::BtfError),
    /// The verifier, or the tracepoint, refused a program.
    #[error("failed to start BPF program `{program}`")]
    Program {
        /// Name of the program in the object.
        program: &'static str,
        /// The reason from aya, which includes the verifier's log.
        #[source]
        source: Box<ProgramError>,
    },
    /// The verifier refused helpers that only lockdown removes, on a kernel that does not show its lockdown mode, as
    /// in a container.
    #[error("failed to start BPF program `{program}`: {}", Unsupported::Lockdown)]
    Lockdown {
        /// Name of the program in the object.
        program: &'static str,
    },
    /// The kernel lacks features that the maps or the programs need.
    #[error(transparent)]
    Features(Unsupported),
    /// A map or program is not in the object: the agent and the object are from different builds.
    #[error("no `{0}` in the BPF object (rebuild podperf)")]
    Missing(&'static str),
    /// A directory of pins could not be filled, or its content is not as expected.
    #[error("failed to pin in `{path}` (remove it: `podperf unpin`, or set `restart.pin: false`)")]
    Pins {
        /// The directory.
        path: PathBuf,
        /// The error from the file system or from bpf(2).
        #[source]
        source: io::Error,
    },
    /// The number of possible CPUs could not be read. It determines the number of bytes that the kernel writes for an
    /// entry of a per-CPU map.
    #[error("failed to read `/sys/devices/system/cpu/possible` (is sysfs mounted?)")]
    Cpus(#[source] io::Error),
    /// A perf counter could not be put into the map that the programs read.
    #[error("failed to hand over a perf counter")]
    Counter(#[source] io::Error),
}

impl LoadError {
    /// Returns whether this machine can never run the programs as it is, whatever podperf is allowed to do.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Lockdown { .. } | Self::Features(_))
    }

    /// Returns whether the kernel refused to load a program. It may load another form of the program. A refused event
    /// or attachment has another cause.
    pub(super) fn is_refusal_of_program(&self) -> bool {
        matches!(self, Self::Program { source, .. } if matches!(**source, ProgramError::LoadError { .. }))
    }

    /// Returns the error for a program that was refused.
    pub(super) fn refused(program: &'static str, source: ProgramError) -> Self {
        match &source {
            ProgramError::LoadError { verifier_log, .. } if lacks_kernel_memory(&verifier_log.to_string()) => {
                Self::Lockdown { program }
            }
            _ => Self::Program { program, source: Box::new(source) },
        }
    }
}

/// Returns whether the verifier's log shows that the helpers that read kernel memory are missing
/// (`bpf_tracing_func_proto` of the kernel). All kernels that podperf runs on have these helpers, except under
/// lockdown.
fn lacks_kernel_memory(log: &str) -> bool {
    log.lines().any(|line| {
        line.contains("bpf_probe_read") && (line.contains("cannot use helper") || line.contains("unknown func"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(log: &str) -> LoadError {
        let io_error = io::Error::from_raw_os_error(libc::EINVAL);
        let source = ProgramError::LoadError { io_error, verifier_log: aya_obj::VerifierLog::new(log.into()) };
        LoadError::refused("cgroup_mkdir", source)
    }

    #[test]
    fn only_a_program_that_is_not_loaded_is_refused_itself() {
        assert!(refused("R1 invalid mem access 'scalar'\n").is_refusal_of_program());
        let denied = io::Error::from_raw_os_error(libc::EPERM);
        assert!(!LoadError::refused("sample", ProgramError::IOError(denied)).is_refusal_of_program());
        assert!(!LoadError::Missing("sample").is_refusal_of_program());
    }

    #[test]
    fn a_kernel_in_lockdown_is_named_even_where_it_does_not_say_so() {
        for says in [
            // Linux 6.12 and 5.15.
            "32: (85) call bpf_probe_read_str#45\nprogram of this type cannot use helper bpf_probe_read_str#45\n",
            "32: (85) call bpf_probe_read_kernel_str#115\nunknown func bpf_probe_read_kernel_str#115\n",
        ] {
            let error = refused(says).to_string();
            assert!(error.contains("`cgroup_mkdir`: kernel lockdown is `confidentiality`"), "{error}");
            assert!(error.ends_with("(boot with `lockdown=integrity`)"), "{error}");
        }
        for says in
            ["", "32: (85) call bpf_probe_read_str#45\nR1 invalid mem access 'scalar'\n", "unknown func bpf_loop#181"]
        {
            assert!(matches!(refused(says), LoadError::Program { .. }), "{says}");
        }
    }
}
