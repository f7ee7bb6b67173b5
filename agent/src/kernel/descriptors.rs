//! File descriptors: the limit of the process, and a table for one thread.

use std::io;

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The limit of open files that the agent asks for. Each event takes one file per CPU, and a flood of connections takes
/// some hundreds.
const ENOUGH: rlim_t = 1 << 16;
/// The first descriptor after the standard streams.
const FIRST: libc::c_long = 3;

/// Raises the soft limit of open files to the hard limit, or to 65,536 if the hard limit is higher. Many systems start
/// programs with a soft limit of 1,024 because of select(2), which the agent does not use.
///
/// # Errors
///
/// Fails when the kernel, or a filter of system calls, refuses. The limit then stays.
pub(crate) fn raise_open_files() -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = soft_limit(soft, hard);
    if wanted != soft {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
    }
    Ok(())
}

fn soft_limit(soft: rlim_t, hard: rlim_t) -> rlim_t {
    soft.max(hard.min(ENOUGH))
}

/// Gives the calling thread its own table of descriptors, in which only the standard streams are open. A thread that
/// cannot end then keeps no file, lock or socket of the process open. The thread must use no descriptor of another
/// thread afterwards. It must find its own descriptors at `/proc/thread-self/fd`: `/proc/self/fd` is the table of the
/// first thread.
///
/// # Errors
///
/// Fails when the kernel is older than 5.9, or when a filter of system calls refuses the call. The thread then
/// continues to share the table.
pub(crate) fn own_descriptors() -> io::Result<()> {
    let flags = libc::c_long::from(libc::CLOSE_RANGE_UNSHARE);
    // SAFETY: the call takes numbers only. It closes descriptors in a table that belongs to this thread alone by
    // then: the descriptors of other threads stay open in their table.
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_long::from(u32::MAX), flags) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read as _, thread};

    use super::*;

    #[test]
    fn the_limit_of_open_files_is_raised_and_never_lowered() {
        for (soft, hard, raised) in [
            (1024, 4096, 4096),
            (1024, 524_288, ENOUGH),
            (1 << 20, 1 << 20, 1 << 20),
            (1024, rlim_t::MAX, ENOUGH),
            (256, 256, 256),
        ] {
            assert_eq!(soft_limit(soft, hard), raised, "{soft} of {hard}");
        }
        raise_open_files().unwrap();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert!(soft >= hard.min(ENOUGH), "{soft} of {hard}");
    }

    #[test]
    fn a_thread_keeps_no_file_of_another_thread_open() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (begun, begins) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            own_descriptors().unwrap();
            let opened = File::open("/proc/self/stat").is_ok();
            begun.send(opened).unwrap();
            ended.recv().unwrap_err();
        });
        assert!(begins.recv().unwrap());
        drop(writer);
        // The read would block as long as the thread had the other end open.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        drop(end);
        thread.join().unwrap();
    }
}
