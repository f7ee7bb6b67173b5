//! System calls that are given up, by seccomp.
//!
//! The process gives up what it never does and what would serve whoever has taken it over. The thread that reads files of
//! strangers may do no more than read, think and tell: no sockets, no programs, no other processes' memory, no memory
//! made executable, and no file opened to be written by `openat` (`openat2` has its flags where no filter looks). What is
//! not allowed fails with `EPERM`: a call that was forgotten here costs a name, not the agent.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// What the process never does.
const NEVER: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_move_mount,
    // With CAP_DAC_READ_SEARCH, the way out of a container.
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    // Looking at /proc/PID takes the capability, not the call.
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// What it takes to read files, to think, to log and to hand on what was found.
const READING: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_futex,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    // Into a container's root and not out of it. Its flags are behind a pointer, which no filter follows.
    libc::SYS_openat2,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
    // A panic that ends the process.
    libc::SYS_tgkill,
    // Log lines, and the wake-up of who waits.
    libc::SYS_write,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
];

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    /// It could not be made.
    #[error("failed to make a filter of system calls")]
    Make(#[from] BackendError),
    /// The kernel does not take it.
    #[error("failed to install a filter of system calls (does the kernel have CONFIG_SECCOMP_FILTER?)")]
    Install(#[from] seccompiler::Error),
}

/// Of the process, for good: the thread that calls, and those that it makes. No program that is run has more privileges.
pub(super) fn confine_process() -> Result<(), FilterError> {
    let rules = NEVER.iter().map(|call| (*call, Vec::new())).collect();
    install(rules, SeccompAction::Allow, denied())
}

/// Of the thread that calls, besides.
pub(crate) fn confine_reader() -> Result<(), FilterError> {
    let without = |argument, bits: i32| -> Result<Vec<SeccompRule>, BackendError> {
        let bits = u64::from(bits.unsigned_abs());
        let none = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bits), 0)?;
        Ok(vec![SeccompRule::new(vec![none])?])
    };
    let mut rules: BTreeMap<_, _> = READING.iter().map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_openat, without(2, libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC)?);
    rules.insert(libc::SYS_mmap, without(2, libc::PROT_EXEC)?);
    rules.insert(libc::SYS_mprotect, without(2, libc::PROT_EXEC)?);
    install(rules, denied(), SeccompAction::Allow)
}

fn denied() -> SeccompAction {
    SeccompAction::Errno(libc::EPERM.unsigned_abs())
}

fn install(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<(), FilterError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    let program: BpfProgram = SeccompFilter::new(rules, others, these, arch)?.try_into()?;
    Ok(apply_filter(&program)?)
}

#[cfg(test)]
mod tests {
    use std::{fs, net::UdpSocket, process::Command, thread};

    use super::*;

    /// In a thread of its own, since a filter stays.
    fn confined<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
        let confined = thread::spawn(|| {
            confine_reader().unwrap();
            body()
        });
        confined.join().unwrap()
    }

    #[test]
    fn the_reader_reads() {
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert!(confined(move || fs::read_to_string(here)).unwrap().contains("podperf"));
        assert!(confined(|| fs::read_dir("/proc/self/task").unwrap().count()) > 0);
        assert!(confined(|| fs::read_link("/proc/self/exe")).is_ok());
        assert_eq!(confined(|| vec![1_u8; 50_000_000].len()), 50_000_000);
    }

    #[test]
    fn the_reader_does_nothing_else() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let denied = |error: std::io::Error| error.raw_os_error() == Some(libc::EPERM);
        assert!(denied(confined(|| UdpSocket::bind("127.0.0.1:0")).unwrap_err()));
        assert!(denied(confined(|| std::net::TcpStream::connect("127.0.0.1:1")).unwrap_err()));
        assert!(denied(confined(move || fs::write(path, "x")).unwrap_err()));
        assert!(denied(confined(|| fs::File::create_new("/tmp/podperf-never")).unwrap_err()));
        assert!(confined(|| Command::new("true").status()).is_err());
        assert!(UdpSocket::bind("127.0.0.1:0").is_ok(), "other threads are as they were");
    }
}
