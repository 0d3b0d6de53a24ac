//! System calls that neither std nor socket2 offers: datagram batches, error queues, spreading programs.
//!
//! The only module with `unsafe`: `recvmmsg`, `sendmmsg` and control messages are raw structures
//! of pointers. Every pointer handed to the kernel points into a buffer that is owned by the same
//! value and outlives the call; nothing is kept by the kernel after a call returns.
#![allow(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

mod allocator;
mod process;
mod send;
pub use allocator::Allocator;
pub use process::no_huge_pages;
pub(super) use process::{activated, raise_descriptor_limit, sleep_precisely, thread_time};
pub(super) use send::{RUN, SendBatch, send_one};

/// Datagrams received or sent by one system call.
pub(super) const BATCH: usize = 32;
/// Datagrams asked for at least.
const LEAST_ASKED: usize = 4;
/// Largest datagram that is received whole (RFC 3261 §18.1.1 wants 65,535 with IP and UDP headers).
pub(super) const DATAGRAM: usize = 65_536;
/// Distance between receive buffers: no multiple of 4 KiB, as all would compete for the same cache sets.
const STRIDE: usize = DATAGRAM + 1_088;
/// Room for one IP_PKTINFO or IPV6_PKTINFO and a time stamp.
const CONTROL: usize = 128;

/// No datagram waits longer than this: the clock has been set.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Control message room, aligned as `cmsghdr` wants it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

/// Watches a descriptor in the current event loop.
pub(super) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open until dropped and always names the same descriptor, and the
    // AsyncFd owns it for as long as it is registered.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}

/// One of the system's clocks, in nanoseconds.
fn clock(id: libc::clockid_t) -> Option<i64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec there.
    let rc = unsafe { libc::clock_gettime(id, &raw mut time) };
    if rc == 0 { nanoseconds(time.tv_sec, time.tv_nsec) } else { None }
}

/// Sets an integer socket option.
fn set_int(fd: RawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which lives through the call.
    let rc = unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            ptr::from_ref(&value).cast(),
            mem::size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Enlarges both buffers of a socket as far as the system lets us; best effort.
pub(super) fn enlarge_buffers(fd: BorrowedFd<'_>, octets: usize) {
    let fd = fd.as_raw_fd();
    let value = libc::c_int::try_from(octets).unwrap_or(libc::c_int::MAX);
    for (force, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        // Without CAP_NET_ADMIN the system's maximum stands, which the plain option clamps to.
        if set_int(fd, libc::SOL_SOCKET, force, value).is_err() {
            let _ = set_int(fd, libc::SOL_SOCKET, plain, value);
        }
    }
}

/// Asks for ICMP errors on the error queue, without which an unconnected socket hears of none.
pub(super) fn receive_errors(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    if v6 {
        set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)
    } else {
        // Fragment on the way rather than lose datagrams to a path MTU learned too late.
        let _ = set_int(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT);
        set_int(fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1)
    }
}

/// Asks for the time at which each datagram arrived. Best effort: without, nobody knows how long they wait.
pub(super) fn receive_times(fd: BorrowedFd<'_>) {
    let _ = set_int(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
}

/// Octets that a stream socket has received and nobody has read; 0 if that cannot be told.
pub(super) fn queued(fd: BorrowedFd<'_>) -> usize {
    let mut octets: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int, and `octets` is one that lives through the call.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, ptr::from_mut(&mut octets)) };
    if rc == 0 { usize::try_from(octets).unwrap_or(0) } else { 0 }
}

/// Octets written to a stream socket that the other end has not acknowledged; after a reset, those that it never
/// has. 0 if that cannot be told.
pub(super) fn unacknowledged(fd: BorrowedFd<'_>) -> usize {
    let mut octets: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (SIOCOUTQ) writes one int, and `octets` is one that lives through the call.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, ptr::from_mut(&mut octets)) };
    if rc == 0 { usize::try_from(octets).unwrap_or(0) } else { 0 }
}

/// Asks for the local address with each datagram (wildcard binds).
pub(super) fn receive_local_address(fd: BorrowedFd<'_>, v6: bool) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    if v6 {
        set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)
    } else {
        set_int(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)
    }
}

/// Lets the kernel choose the port of a bound client socket at connect time, per destination, so
/// that 64 Ki connections per destination are possible instead of in all. Best effort.
pub(super) fn bind_address_no_port(fd: BorrowedFd<'_>) {
    let _ = set_int(fd.as_raw_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
}

/// Spreads what arrives for a SO_REUSEPORT group evenly over its first `members` sockets.
///
/// The kernel's own choice is a hash of the addresses, and peers send from one address and port
/// each; a random number spreads them. Applies to the whole group.
pub(super) fn spread_evenly(fd: BorrowedFd<'_>, members: usize) -> io::Result<()> {
    let n = u32::try_from(members).map_err(|_| io::ErrorKind::InvalidInput)?;
    let random = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
    let code = |op: u32| u16::try_from(op).unwrap_or(0);
    let mut program = [
        libc::sock_filter { code: code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), jt: 0, jf: 0, k: random },
        libc::sock_filter { code: code(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K), jt: 0, jf: 0, k: n },
        libc::sock_filter { code: code(libc::BPF_RET | libc::BPF_A), jt: 0, jf: 0, k: 0 },
    ];
    let filter = libc::sock_fprog { len: 3, filter: program.as_mut_ptr() };
    // SAFETY: `filter` points at `program`; the kernel copies both during the call.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            ptr::from_ref(&filter).cast(),
            mem::size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes an address where the kernel reads it; returns its length.
fn write_address(address: SocketAddr, storage: &mut libc::sockaddr_storage) -> libc::socklen_t {
    match address {
        SocketAddr::V4(a) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage is large and aligned enough for every sockaddr_*.
            unsafe { ptr::from_mut(storage).cast::<libc::sockaddr_in>().write(sin) };
            mem::size_of::<libc::sockaddr_in>() as libc::socklen_t
        }
        SocketAddr::V6(a) => {
            let sin6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            // SAFETY: as above.
            unsafe { ptr::from_mut(storage).cast::<libc::sockaddr_in6>().write(sin6) };
            mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t
        }
    }
}

/// Reads an address that the kernel wrote.
fn read_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that a sockaddr_in was written here.
            let sin = unsafe { ptr::from_ref(storage).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(sin.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, a sockaddr_in6.
            let sin6 = unsafe { ptr::from_ref(storage).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(sin6.sin6_port), 0, sin6.sin6_scope_id)))
        }
        _ => None,
    }
}

/// An all-zero address.
fn no_address() -> libc::sockaddr_storage {
    // SAFETY: sockaddr_storage is plain data; zero is a valid value (AF_UNSPEC).
    unsafe { mem::zeroed() }
}

/// A message header that points nowhere yet.
fn no_header() -> libc::mmsghdr {
    // SAFETY: mmsghdr is plain data; null pointers with zero lengths are valid.
    unsafe { mem::zeroed() }
}

/// One datagram of a [`RecvBatch`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Received<'a> {
    /// Who sent it.
    pub(super) remote: SocketAddr,
    /// The address it was sent to, where the socket was asked to tell.
    pub(super) local: Option<IpAddr>,
    /// Its octets.
    pub(super) bytes: &'a [u8],
    /// It was larger than the buffer; the rest is lost.
    pub(super) truncated: bool,
}

/// Reused room for [`BATCH`] datagrams.
pub(super) struct RecvBatch {
    buffers: Box<[MaybeUninit<u8>]>,
    addresses: Box<[libc::sockaddr_storage; BATCH]>,
    controls: Box<[Control; BATCH]>,
    vectors: Box<[libc::iovec; BATCH]>,
    headers: Box<[libc::mmsghdr; BATCH]>,
    filled: usize,
    /// How many datagrams were asked for last.
    asked: usize,
    /// So many headers are ready to receive, but for those that were filled last.
    ready: usize,
    /// They ask for local addresses.
    with_local: bool,
}

impl RecvBatch {
    /// Reserves the room; pages are touched only as datagrams fill them.
    pub(super) fn new() -> Self {
        Self {
            buffers: Box::new_uninit_slice(STRIDE * BATCH),
            addresses: Box::new([no_address(); BATCH]),
            controls: Box::new([Control([0; CONTROL]); BATCH]),
            vectors: Box::new([libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH]),
            headers: Box::new([no_header(); BATCH]),
            filled: 0,
            asked: 0,
            ready: 0,
            with_local: false,
        }
    }

    /// True if the last [`RecvBatch::receive`] took all that was there.
    pub(super) fn drained(&self) -> bool {
        self.filled < self.asked
    }

    /// Receives what is there, up to [`BATCH`] datagrams, without waiting; returns how many.
    /// Errors as recvmmsg(2): `WouldBlock` when nothing is there, an ICMP error of the past.
    pub(super) fn receive(&mut self, fd: BorrowedFd<'_>, with_local: bool) -> io::Result<usize> {
        // Room for twice what came last: to offer all of it for a single datagram costs more than to
        // call a second time when load rises.
        self.asked = (2 * self.filled).clamp(LEAST_ASKED, BATCH);
        // The kernel writes to the headers of what it has received, and to no others.
        let used = mem::take(&mut self.filled);
        if mem::replace(&mut self.with_local, with_local) != with_local {
            self.ready = 0;
        }
        for i in (0..used).chain(self.ready.max(used)..self.asked) {
            self.make_ready(i);
        }
        self.ready = self.ready.max(self.asked);
        // SAFETY: `asked` headers, each pointing at live buffers of the stated sizes, which are boxed and stay
        // where they are.
        let n = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.asked as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        self.filled = n.min(self.asked);
        Ok(self.filled)
    }

    /// Points a header at its buffers, all of them empty.
    #[inline]
    fn make_ready(&mut self, i: usize) {
        let vector = &mut self.vectors[i];
        // SAFETY: there are as many buffers as vectors; the offset is inside, with DATAGRAM octets after it.
        let start = unsafe { self.buffers.as_mut_ptr().add(i * STRIDE) };
        *vector = libc::iovec { iov_base: start.cast(), iov_len: DATAGRAM };
        let header = &mut self.headers[i].msg_hdr;
        header.msg_name = ptr::from_mut(&mut self.addresses[i]).cast();
        header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = ptr::from_mut(&mut self.vectors[i]);
        header.msg_iovlen = 1;
        header.msg_flags = 0;
        // The first one's time of arrival tells how long the whole batch has waited.
        if self.with_local || i == 0 {
            header.msg_control = ptr::from_mut(&mut self.controls[i]).cast();
            header.msg_controllen = CONTROL as _;
        } else {
            header.msg_control = ptr::null_mut();
            header.msg_controllen = 0;
        }
    }

    /// How long the oldest datagram of the last [`RecvBatch::receive`] has been waiting, by the system's
    /// clock; `None`: not known, or the clock was set meanwhile.
    pub(super) fn waited(&self) -> Option<Duration> {
        let header = self.headers.first().filter(|_| self.filled > 0)?;
        let mut arrived = None;
        each_control(&header.msg_hdr, |level, kind, data| {
            let found = (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS);
            if found {
                arrived = time_stamp(data);
            }
            found
        });
        let waited = u64::try_from(clock(libc::CLOCK_REALTIME)?.saturating_sub(arrived?)).unwrap_or(0);
        Some(Duration::from_nanos(waited)).filter(|waited| *waited < LONGEST_WAIT)
    }

    /// The datagram at `index` of the last [`RecvBatch::receive`].
    pub(super) fn get(&self, index: usize) -> Option<Received<'_>> {
        if index >= self.filled {
            return None;
        }
        let header = &self.headers[index];
        let len = (header.msg_len as usize).min(DATAGRAM);
        // SAFETY: the kernel wrote `len` octets at this buffer's start.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.buffers.as_ptr().add(index * STRIDE).cast(), len) };
        Some(Received {
            remote: read_address(&self.addresses[index])?,
            local: if self.with_local { local_address(&header.msg_hdr) } else { None },
            bytes,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        })
    }
}

/// Calls `f` with each control message, level, type, and its data, until it returns true.
fn each_control(header: &libc::msghdr, mut f: impl FnMut(libc::c_int, libc::c_int, &[u8]) -> bool) {
    if header.msg_control.is_null() {
        return;
    }
    // SAFETY: the kernel filled `msg_controllen` octets at `msg_control` with well-formed control
    // messages; the CMSG functions walk them within that length.
    unsafe {
        let mut cmsg = libc::CMSG_FIRSTHDR(header);
        while let Some(c) = cmsg.as_ref() {
            let head = libc::CMSG_LEN(0) as usize;
            // Its type differs between C libraries.
            #[allow(clippy::unnecessary_cast)]
            let len = (c.cmsg_len as usize).saturating_sub(head);
            let data = std::slice::from_raw_parts(libc::CMSG_DATA(cmsg), len);
            if f(c.cmsg_level, c.cmsg_type, data) {
                return;
            }
            cmsg = libc::CMSG_NXTHDR(header, cmsg);
        }
    }
}

/// Of a struct timespec.
fn nanoseconds(seconds: impl Into<i64>, rest: impl Into<i64>) -> Option<i64> {
    seconds.into().checked_mul(1_000_000_000)?.checked_add(rest.into())
}

/// A struct timespec: seconds and nanoseconds, of the width of a C long.
fn time_stamp(data: &[u8]) -> Option<i64> {
    const WORD: usize = mem::size_of::<libc::c_long>();
    let word = |octets: &[u8]| libc::c_long::from_ne_bytes(octets.try_into().unwrap_or_default());
    let (seconds, rest) = data.split_at_checked(WORD)?;
    let nanos = rest.get(..WORD)?;
    nanoseconds(word(seconds), word(nanos))
}

/// The destination address of a datagram, from IP_PKTINFO or IPV6_PKTINFO.
fn local_address(header: &libc::msghdr) -> Option<IpAddr> {
    let mut found = None;
    each_control(header, |level, kind, data| {
        match (level, kind) {
            // struct in_pktinfo: interface index, spec_dst, addr (the header's destination).
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let Some(Ok(octets)) = data.get(8..12).map(<[u8; 4]>::try_from) {
                    found = Some(IpAddr::from(octets));
                }
            }
            // struct in6_pktinfo: addr, interface index.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(Ok(octets)) = data.get(..16).map(<[u8; 16]>::try_from) {
                    found = Some(IpAddr::from(octets));
                }
            }
            _ => {}
        }
        found.is_some()
    });
    found
}

/// An entry of a socket's error queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedError<'a> {
    /// Where the datagram was going.
    pub(super) to: SocketAddr,
    /// It says that the destination cannot be reached (RFC 3261 §18.4).
    pub(super) unreachable: bool,
    /// What is quoted of the datagram's payload.
    pub(super) payload: &'a [u8],
}

/// Reused room for one entry of an error queue.
pub(super) struct ErrorReader {
    payload: Box<[u8; 2048]>,
    control: Box<[Control; 8]>,
}

impl ErrorReader {
    /// Reserves the room.
    pub(super) fn new() -> Self {
        Self { payload: Box::new([0; 2048]), control: Box::new([Control([0; CONTROL]); 8]) }
    }

    /// Takes the next entry; `None` for one that names no destination. `WouldBlock` when the
    /// queue is empty. Taking the last entry also clears the socket's pending error.
    pub(super) fn next(&mut self, fd: BorrowedFd<'_>) -> io::Result<Option<QueuedError<'_>>> {
        let mut to = no_address();
        let mut vector =
            libc::iovec { iov_base: self.payload.as_mut_ptr().cast(), iov_len: self.payload.len() };
        let mut header = no_header().msg_hdr;
        header.msg_name = ptr::from_mut(&mut to).cast();
        header.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = ptr::from_mut(&mut vector);
        header.msg_iovlen = 1;
        header.msg_control = self.control.as_mut_ptr().cast();
        header.msg_controllen = mem::size_of_val(&*self.control) as _;
        // SAFETY: every pointer in `header` is to a live buffer of the stated size.
        let n = unsafe {
            libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
        };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        let mut unreachable = false;
        each_control(&header, |level, kind, data| {
            let v4 = (level, kind) == (libc::IPPROTO_IP, libc::IP_RECVERR);
            let v6 = (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
            // struct sock_extended_err: errno (4 octets), origin, type, code.
            if let (true, Some(&[origin, icmp_type, icmp_code])) = (v4 || v6, data.get(4..7)) {
                unreachable = means_unreachable(origin, icmp_type, icmp_code);
            }
            false
        });
        let Some(to) = read_address(&to) else {
            return Ok(None);
        };
        Ok(Some(QueuedError { to, unreachable, payload: &self.payload[..n.min(self.payload.len())] }))
    }
}

/// RFC 3261 §18.4: host, network, port or protocol unreachable, or a parameter problem. Not time
/// exceeded or source quench, and not "fragmentation needed", which the next datagram heeds.
fn means_unreachable(origin: u8, icmp_type: u8, icmp_code: u8) -> bool {
    const FRAGMENTATION_NEEDED: u8 = 4;
    match origin {
        libc::SO_EE_ORIGIN_ICMP => {
            matches!(icmp_type, 3 | 12) && (icmp_type, icmp_code) != (3, FRAGMENTATION_NEEDED)
        }
        libc::SO_EE_ORIGIN_ICMP6 => matches!(icmp_type, 1 | 4),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::refuse_runs;
