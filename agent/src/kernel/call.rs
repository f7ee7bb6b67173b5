//! A system call by its number, for tests of filters.

/// Makes a call whose arguments are all -1, and returns its error.
pub(crate) fn error_of_call(number: i64) -> Option<i32> {
    // SAFETY: -1 is no address, descriptor or process, so the kernel refuses the call, or ignores its arguments.
    let result = unsafe { libc::syscall(number, -1_i64, -1_i64, -1_i64, -1_i64, -1_i64, -1_i64) };
    (result == -1).then(|| std::io::Error::last_os_error().raw_os_error()).flatten()
}
