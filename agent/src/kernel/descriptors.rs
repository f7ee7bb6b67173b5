//! A table of file descriptors for one thread.

use std::io;

/// The first descriptor after the standard streams.
const FIRST: libc::c_long = 3;

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
