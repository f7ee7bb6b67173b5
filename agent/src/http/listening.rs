//! The listener of the server: its addresses, and what the kernel keeps for its connections.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::net::{TcpListener, TcpSocket};

use super::patient::PATIENCE;

/// The number of connections that the kernel completes before the server accepts them. The kernel drops others, so that
/// their clients try again only after a second.
const BACKLOG: u32 = 4096;
/// The bytes of answers that the kernel takes from one connection before they are read. It doubles the value. Without
/// it, it takes up to 4 MiB, which no limit of ours sees, and keeps them after the connection is closed.
const SEND_BUFFER: usize = 128 << 10;

/// Listens on an address. `[::]` stands for all addresses of both families, and on a node without IPv6 for all IPv4
/// addresses.
pub(super) fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    match listen_at(address) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && lacks_ipv6(&error) => {
            listen_at(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
        }
        result => result,
    }
}

fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

/// Accepted connections inherit the options.
fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        // Else `net.ipv6.bindv6only` decides.
        socket2::SockRef::from(&socket).set_only_v6(false)?;
    }
    // A server that ended a moment ago may still have connections.
    socket.set_reuseaddr(true)?;
    socket2::SockRef::from(&socket).set_send_buffer_size(SEND_BUFFER)?;
    // Also a closed connection ends when its client takes nothing for this time.
    socket2::SockRef::from(&socket).set_tcp_user_timeout(Some(PATIENCE))?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    /// On a machine without IPv6 this is the IPv4 listener.
    #[tokio::test]
    async fn all_addresses_are_those_of_both_families() {
        let listener = listen_on(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (client, accepted) = tokio::join!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)), listener.accept());
        let (_, from) = accepted.unwrap();
        assert_eq!(from.ip().to_canonical(), Ipv4Addr::LOCALHOST);
        assert_eq!(from.port(), client.unwrap().local_addr().unwrap().port());
    }

    #[tokio::test]
    async fn the_kernel_keeps_little_of_an_answer_that_nobody_reads_and_not_for_long() {
        let listener = listen_on(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let accepted = accepted.unwrap().0;
        let socket = socket2::SockRef::from(&accepted);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(PATIENCE));
        assert_eq!(socket.send_buffer_size().unwrap(), 2 * SEND_BUFFER);
        drop(client);
    }

    #[test]
    fn only_a_missing_family_is_replaced() {
        let lacks = |errno| lacks_ipv6(&io::Error::from_raw_os_error(errno));
        assert!(lacks(libc::EAFNOSUPPORT) && lacks(libc::EADDRNOTAVAIL));
        assert!(!lacks(libc::EADDRINUSE) && !lacks(libc::EACCES));
    }
}
