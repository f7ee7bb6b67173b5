//! CPUs that go offline or come online, from the kernel's announcements, so that even a short offline time is
//! noticed.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use tracing::debug;

/// The only multicast group of `NETLINK_KOBJECT_UEVENT` that the kernel writes to.
const KERNEL: u32 = 1;
/// A buffer size larger than any announcement (`UEVENT_BUFFER_SIZE` is 2 KiB).
const LONGEST: usize = 4096;

/// The socket that receives the announcements; `None` if it could not be opened.
#[derive(Debug)]
pub(super) struct Hotplug(Option<OwnedFd>);

impl Hotplug {
    /// Opens the socket. Without permission for it, the agent notices only CPUs that are still offline at a reading.
    pub(super) fn listen() -> Self {
        let socket = listen();
        if let Err(error) = &socket {
            debug!(%error, "no announcements of CPUs");
        }
        Self(socket.ok())
    }

    /// Returns the CPUs that went offline (false) or came online (true) since the last call, in order.
    pub(super) fn news(&self) -> Vec<(u32, bool)> {
        let Some(socket) = &self.0 else { return Vec::new() };
        let mut news = Vec::new();
        let mut buffer = [0_u8; LONGEST];
        // SAFETY: the buffer has room for the given length.
        while let Ok(length @ 1..) = usize::try_from(unsafe {
            libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
        }) {
            news.extend(announced(&buffer[..length]));
        }
        news
    }
}

fn listen() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_KOBJECT_UEVENT) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened by this function, which alone owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the address consists of numbers only, so all-zero is a valid value.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).unwrap_or(0);
    address.nl_groups = KERNEL;
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_nl>()).unwrap_or(0);
    // SAFETY: the address is initialised and has the given length.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// Parses an announcement such as `offline@/devices/system/cpu/cpu1\0ACTION=offline\0...`. Returns the CPU, and
/// whether it is online now.
fn announced(announcement: &[u8]) -> Option<(u32, bool)> {
    let header = announcement.split(|byte| *byte == 0).next()?;
    let (action, device) = str::from_utf8(header).ok()?.split_once('@')?;
    let online = match action {
        "online" => true,
        "offline" => false,
        _ => return None,
    };
    Some((device.strip_prefix("/devices/system/cpu/cpu")?.parse().ok()?, online))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cpus_that_come_or_go_are_reported() {
        assert_eq!(announced(b"offline@/devices/system/cpu/cpu12\0ACTION=offline\0SUBSYSTEM=cpu\0"), Some((12, false)));
        assert_eq!(announced(b"online@/devices/system/cpu/cpu1\0ACTION=online\0"), Some((1, true)));
        for other in [
            &b"offline@/devices/system/memory/memory1\0"[..],
            b"offline@/devices/system/cpu/cpu1/cache\0",
            b"change@/devices/system/cpu/cpu1\0",
            b"libudev\0\xfe\xed",
            b"",
        ] {
            assert_eq!(announced(other), None);
        }
    }
}
