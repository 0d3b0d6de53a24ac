//! Opens the sockets of all listeners, before any thread starts, so that a failure is an error
//! message and not a half-running node.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Domain, Protocol, Socket, Type};

use crate::config::Listen;
use crate::flow::{ListenerId, Transport};

use super::sys;
use super::tls::FileError;
use super::upgrade::Heritage;

/// Socket buffers, octets. A message of 1 kB takes some 2 kB of it, and the system doubles the number: this holds
/// some 4,000 messages, a twentieth of a second of what one core can handle. Larger ones would only
/// make the queue longer before a sender notices; that it stays short is the overload governor's task.
const BUFFER: usize = 4 * 1024 * 1024;
/// Connections waiting to be accepted.
const BACKLOG: i32 = 1024;

/// What an operator can do about an address that cannot be bound; begins with a colon.
pub fn bind_hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => ": another program has it, `ss -lnptu` tells which",
        io::ErrorKind::AddrNotAvailable => {
            ": this machine has no such address, `ip address` lists those it has"
        }
        io::ErrorKind::PermissionDenied => ": a port below 1024 takes the capability CAP_NET_BIND_SERVICE",
        _ => "",
    }
}

/// Why the sockets could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A listener's socket.
    #[error("listener {} ({transport} {bind}): {cause}{}", listener.0, bind_hint(cause))]
    Listen {
        /// Which listener.
        listener: ListenerId,
        /// Its transport.
        transport: Transport,
        /// Its address.
        bind: SocketAddr,
        /// What the system says.
        cause: io::Error,
    },
    /// A certificate, key, list of authorities or revocation list.
    #[error(transparent)]
    Tls(#[from] FileError),
    /// A TLS listener without certificates.
    #[error("listener {} (tls {bind}): there is no [tls]", listener.0)]
    NoTls {
        /// Which listener.
        listener: ListenerId,
        /// Its address.
        bind: SocketAddr,
    },
    /// As many shards as workers are needed, and at least one.
    #[error("{shards} shards for {workers} workers")]
    Shards {
        /// Shards given.
        shards: usize,
        /// Worker threads configured.
        workers: usize,
    },
    /// A worker thread or its event loop.
    #[error("worker {worker}: {cause}")]
    Worker {
        /// Which one.
        worker: usize,
        /// What the system says.
        cause: io::Error,
    },
}

/// One worker's sockets, by listener.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    pub(super) udp: Vec<(ListenerId, UdpSocket)>,
    pub(super) tcp: Vec<(ListenerId, TcpListener)>,
}

/// Opens every listener once for each worker. Port 0 becomes a real port, the same for all
/// workers; the addresses as bound are written back to `listen`. Datagrams go to the first
/// `udp_workers` to begin with, connections to all.
pub(super) fn open(
    listen: &mut [Listen],
    workers: usize,
    udp_workers: usize,
    heritage: &mut Heritage,
) -> Result<Vec<Sockets>, StartError> {
    let mut all: Vec<Sockets> = (0..workers).map(|_| Sockets::default()).collect();
    for (i, l) in listen.iter_mut().enumerate() {
        let listener = ListenerId(u16::try_from(i).unwrap_or(u16::MAX));
        let (transport, bind) = (l.transport, l.bind);
        let group = match heritage.sockets(listener, l, workers) {
            Ok(Some(left)) => adopt(left, l),
            Ok(None) => open_group(l, workers, udp_workers),
            Err(e) => Err(e),
        };
        let group = group.map_err(|cause| StartError::Listen { listener, transport, bind, cause })?;
        for (sockets, socket) in all.iter_mut().zip(group) {
            match transport {
                Transport::Udp => sockets.udp.push((listener, socket.into())),
                Transport::Tcp | Transport::Tls => sockets.tcp.push((listener, socket.into())),
            }
        }
    }
    heritage.tell_of_rest();
    Ok(all)
}

/// Makes sockets that were left by another process as our own would be.
fn adopt(left: Vec<OwnedFd>, listen: &Listen) -> io::Result<Vec<Socket>> {
    let mut group = Vec::with_capacity(left.len());
    for fd in left {
        let socket = Socket::from(fd);
        socket.set_nonblocking(true)?;
        if listen.transport == Transport::Udp {
            prepare(&socket, listen)?;
        } else {
            // To those that listen already this sets the backlog only.
            socket.listen(BACKLOG)?;
        }
        group.push(socket);
    }
    Ok(group)
}

/// One socket per worker on one address.
fn open_group(listen: &mut Listen, workers: usize, udp_workers: usize) -> io::Result<Vec<Socket>> {
    let shared = workers > 1;
    if shared && listen.bind.port() != 0 {
        // With SO_REUSEPORT a second node on the same address would quietly take half of the
        // traffic; a bind without it fails as it should.
        drop(open_one(listen, false)?);
    }
    let mut group = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = open_one(listen, shared)?;
        if let Some(bound) = socket.local_addr()?.as_socket() {
            listen.bind.set_port(bound.port());
        }
        group.push(socket);
    }
    for socket in &group {
        if listen.transport != Transport::Udp {
            socket.listen(BACKLOG)?;
        }
    }
    if let (true, Some(first)) = (shared, group.first()) {
        // Without the program the kernel spreads by addresses: worse, but it works.
        let members = if listen.transport == Transport::Udp { udp_workers } else { workers };
        if let Err(e) = sys::spread_evenly(first.as_fd(), members) {
            tracing::warn!(bind = %listen.bind, error = %e, "cannot spread evenly over workers");
        }
    }
    Ok(group)
}

fn open_one(listen: &Listen, shared: bool) -> io::Result<Socket> {
    let udp = listen.transport == Transport::Udp;
    let v6 = listen.bind.is_ipv6();
    let (kind, protocol) = if udp { (Type::DGRAM, Protocol::UDP) } else { (Type::STREAM, Protocol::TCP) };
    let socket = Socket::new(Domain::for_address(listen.bind), kind, Some(protocol))?;
    socket.set_nonblocking(true)?;
    if v6 {
        socket.set_only_v6(true)?;
    }
    if !udp {
        // A restart must not wait for the old connections' TIME-WAIT.
        socket.set_reuse_address(true)?;
    }
    if shared {
        socket.set_reuse_port(true)?;
    }
    if udp {
        prepare(&socket, listen)?;
    }
    socket.bind(&listen.bind.into())?;
    Ok(socket)
}

/// What a socket for datagrams is to tell.
fn prepare(socket: &Socket, listen: &Listen) -> io::Result<()> {
    let v6 = listen.bind.is_ipv6();
    sys::enlarge_buffers(socket.as_fd(), BUFFER);
    sys::receive_errors(socket.as_fd(), v6)?;
    sys::receive_times(socket.as_fd());
    if listen.bind.ip().is_unspecified() {
        sys::receive_local_address(socket.as_fd(), v6)?;
    }
    Ok(())
}
