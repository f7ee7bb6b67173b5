//! The seccomp filters of the agent, which forbid system calls.
//!
//! The process gives up the calls that it never makes and that would help an attacker. The thread that reads the files
//! of other processes may only read, compute and log. It has no sockets, programs, memory of other processes or
//! executable memory, and `openat` opens no file for writing. (The flags of `openat2` are where no filter can read
//! them.) A forbidden call fails with `EPERM`: a call that is missing in the list costs a name, not the agent.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// Calls that the process never makes.
const NEVER: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    // Makes a file in memory, which could be run as a program.
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_migrate_pages,
    libc::SYS_mknodat,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    // Opens a way out of a container with CAP_DAC_READ_SEARCH.
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    // Reading /proc/PID needs the capability, not this call.
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Calls that run programs. A kubeconfig may name a program that makes tokens.
const PROGRAMS: &[i64] = &[libc::SYS_execve, libc::SYS_execveat];

/// This bit in a call's number selects the x32 ABI: the same calls under other numbers, which a list of numbers misses.
/// The filter sees the architecture x86-64 for such a call.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

/// Calls for reading files, computing, logging and passing on the results.
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
    // Opens files inside a container's root only. Its flags are behind a pointer, which no filter follows.
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
    // A panic that ends the process needs this call.
    libc::SYS_tgkill,
    // Log lines and wake-ups of waiting threads need this call.
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

/// The reasons why there is no filter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilterError {
    /// The filter could not be made.
    #[error("failed to make a filter of system calls")]
    Make(#[from] BackendError),
    /// The kernel does not accept the filter.
    #[error("failed to install a filter of system calls (does the kernel have CONFIG_SECCOMP_FILTER?)")]
    Install(#[from] seccompiler::Error),
}

/// Limits the calling thread and all threads that it makes, permanently. Programs get no more privileges; if `programs`
/// is false, no program can be run.
pub(super) fn confine_process(programs: bool) -> Result<(), FilterError> {
    let never = NEVER.iter().chain(PROGRAMS.iter().filter(|_| !programs));
    let rules = never.map(|call| (*call, Vec::new())).collect();
    install(rules, SeccompAction::Allow, denied())
}

/// Limits the calling thread further, to the calls of a reader.
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
    let mut program = without_x32();
    program.extend(BpfProgram::try_from(SeccompFilter::new(rules, others, these, arch)?)?);
    Ok(apply_filter(&program)?)
}

/// Returns instructions that deny any call of the x32 ABI and pass all other calls to the next instruction.
#[cfg(target_arch = "x86_64")]
fn without_x32() -> BpfProgram {
    let instruction =
        |code: u32, jt, jf, k| seccompiler::sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k };
    // The number is the first field of `struct seccomp_data`.
    vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, X32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, denied().into()),
    ]
}

#[cfg(not(target_arch = "x86_64"))]
fn without_x32() -> BpfProgram {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::{fs, net::UdpSocket, process::Command, thread};

    use super::*;
    use crate::kernel::error_of_call;

    /// Runs `body` in a thread of its own, because a filter is permanent.
    fn confined_by<T: Send + 'static>(
        filter: impl FnOnce() -> Result<(), FilterError> + Send + 'static,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let confined = thread::spawn(|| {
            filter().unwrap();
            body()
        });
        confined.join().unwrap()
    }

    fn confined<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
        confined_by(confine_reader, body)
    }

    #[test]
    fn a_call_that_the_process_never_makes_is_refused() {
        // With these arguments the kernel itself refuses each call with another error.
        for call in [
            libc::SYS_mount_setattr,
            libc::SYS_memfd_create,
            libc::SYS_pidfd_send_signal,
            libc::SYS_process_mrelease,
            libc::SYS_quotactl_fd,
            libc::SYS_execve,
            libc::SYS_execveat,
        ] {
            assert_ne!(
                confined_by(|| Ok(()), move || error_of_call(call)),
                Some(libc::EPERM),
                "{call} without a filter"
            );
            assert_eq!(
                confined_by(|| confine_process(false), move || error_of_call(call)),
                Some(libc::EPERM),
                "{call}"
            );
        }
        assert!(confined_by(|| confine_process(true), || Command::new("true").status()).unwrap().success());
        assert!(confined_by(|| confine_process(false), || Command::new("true").status()).is_err());
    }

    /// Most kernels have none of these calls, and return `ENOSYS` without a filter.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_call_by_its_number_in_the_x32_abi_is_refused() {
        for call in [libc::SYS_getppid, libc::SYS_mount, libc::SYS_pread64] {
            let x32 = call | i64::from(X32);
            assert_ne!(
                confined_by(|| Ok(()), move || error_of_call(x32)),
                Some(libc::EPERM),
                "{call} without a filter"
            );
            assert_eq!(confined_by(|| confine_process(true), move || error_of_call(x32)), Some(libc::EPERM), "{call}");
            assert_eq!(confined_by(confine_reader, move || error_of_call(x32)), Some(libc::EPERM), "{call}");
        }
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
