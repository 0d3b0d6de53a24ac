//! The sockets of an instance, open and kept while it is down.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, UdpSocket};

/// Connections waiting to be accepted.
pub(super) const BACKLOG: u32 = 64;

/// A UDP and a listening TCP socket on one port.
pub(super) async fn sockets(addr: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let tcp = tcp_socket(addr)?.listen(BACKLOG)?;
    let udp = UdpSocket::bind(tcp.local_addr()?).await?;
    Ok((udp, tcp))
}

/// Bound, and also where connections of the past linger.
pub(super) fn tcp_socket(addr: SocketAddr) -> io::Result<TcpSocket> {
    let tcp = if addr.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
    tcp.set_reuseaddr(true)?;
    tcp.bind(addr)?;
    Ok(tcp)
}

/// Keeps the ports of an instance that is down, and refuses whoever comes there.
pub(super) async fn reserve(
    addr: SocketAddr,
    secure: Option<SocketAddr>,
) -> io::Result<(UdpSocket, TcpSocket, Option<TcpSocket>)> {
    let udp = UdpSocket::bind(addr).await?;
    udp.connect(addr).await?;
    Ok((udp, tcp_socket(addr)?, secure.map(tcp_socket).transpose()?))
}
