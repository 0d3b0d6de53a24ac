//! Sending datagrams: many with one system call, and those that are alike as one.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::{mem, ptr};

use super::{BATCH, CONTROL, Control, no_address, no_header, write_address};

/// Octets of a run at most: the kernel takes it as one datagram.
pub(in crate::runtime) const RUN: usize = 60_000;

/// Sends one datagram without waiting. Errors as with [`SendBatch::send`].
pub(in crate::runtime) fn send_one(fd: BorrowedFd<'_>, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
    let mut address = no_address();
    let len = write_address(to, &mut address);
    let (octets, name) = (bytes.as_ptr().cast(), ptr::from_ref(&address).cast());
    // SAFETY: `bytes` and `address` are as long as stated, and live through the call.
    let sent = unsafe { libc::sendto(fd.as_raw_fd(), octets, bytes.len(), libc::MSG_DONTWAIT, name, len) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reused room for sending [`BATCH`] datagrams.
///
/// A run is several datagrams that go to one place, all of one length but for a shorter one at the end. The kernel
/// takes a run as one large datagram with the length of its parts (UDP_SEGMENT, generic segmentation offload), takes it
/// through its layers once, and divides it at the very end, or has the network card divide it: for a run of three
/// that is half the cost. What is on the wire is the same.
pub(in crate::runtime) struct SendBatch {
    addresses: Box<[libc::sockaddr_storage; BATCH]>,
    vectors: Box<[libc::iovec; BATCH]>,
    headers: Box<[libc::mmsghdr; BATCH]>,
    controls: Box<[Control; BATCH]>,
    /// Datagrams of each header.
    runs: [u8; BATCH],
    /// Headers that were sent last.
    sent: usize,
}

/// The run that is being put together.
struct Run {
    to: SocketAddr,
    /// Octets of its parts, of all together.
    part: usize,
    whole: usize,
}

impl SendBatch {
    /// Reserves the room.
    pub(in crate::runtime) fn new() -> Self {
        Self {
            addresses: Box::new([no_address(); BATCH]),
            vectors: Box::new([libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; BATCH]),
            headers: Box::new([no_header(); BATCH]),
            controls: Box::new([Control([0; CONTROL]); BATCH]),
            runs: [0; BATCH],
            sent: 0,
        }
    }

    /// Sends the first datagrams of `datagrams` without waiting; returns how many went. Runs are made of those
    /// that are no longer than `part` octets.
    ///
    /// An error is that of the first one, or of the run that begins with it: `WouldBlock`, its own, or an ICMP
    /// error of the past.
    pub(in crate::runtime) fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        part: usize,
        datagrams: impl Iterator<Item = (SocketAddr, &'a [u8])>,
    ) -> io::Result<usize> {
        let headers = self.prepare(part, datagrams);
        self.sent = 0;
        if headers == 0 {
            return Ok(0);
        }
        // SAFETY: so many headers, each pointing at live buffers; `datagrams` borrows them for 'a.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                headers as libc::c_uint,
                libc::MSG_DONTWAIT as _,
            )
        };
        self.sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        Ok(self.sent_runs().sum())
    }

    /// How many datagrams each of the runs has that were sent last, in their order; 1 for one alone.
    pub(in crate::runtime) fn sent_runs(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.runs.iter().take(self.sent).map(|n| usize::from(*n))
    }

    /// How many datagrams the first run has that was prepared last.
    pub(in crate::runtime) fn first_run(&self) -> usize {
        usize::from(self.runs[0])
    }

    /// Fills headers, and tells how many.
    fn prepare<'a>(&mut self, part: usize, datagrams: impl Iterator<Item = (SocketAddr, &'a [u8])>) -> usize {
        let mut headers = 0;
        let mut run: Option<Run> = None;
        for (n, (to, bytes)) in datagrams.take(BATCH).enumerate() {
            let len = bytes.len();
            // The kernel only reads from what an iovec of a send points at.
            self.vectors[n] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: len };
            match &mut run {
                Some(r) if len <= r.part && r.to == to && r.whole + len <= RUN => {
                    self.join(headers - 1, r.part);
                    r.whole += len;
                    if len < r.part {
                        run = None;
                    }
                }
                _ => {
                    self.begin(headers, n, to);
                    run = (0 < len && len <= part).then_some(Run { to, part: len, whole: len });
                    headers += 1;
                }
            }
        }
        headers
    }

    /// Makes a header of the datagram whose vector is the `n`th.
    fn begin(&mut self, header: usize, n: usize, to: SocketAddr) {
        let name = write_address(to, &mut self.addresses[header]);
        self.runs[header] = 1;
        let head = &mut self.headers[header].msg_hdr;
        head.msg_name = ptr::from_mut(&mut self.addresses[header]).cast();
        head.msg_namelen = name;
        head.msg_iov = ptr::from_mut(&mut self.vectors[n]);
        head.msg_iovlen = 1;
        head.msg_control = ptr::null_mut();
        head.msg_controllen = 0;
    }

    /// Adds the next vector to a header.
    fn join(&mut self, header: usize, part: usize) {
        self.runs[header] += 1;
        let head = &mut self.headers[header].msg_hdr;
        head.msg_iovlen += 1;
        if !head.msg_control.is_null() {
            return;
        }
        // No part is longer than a run.
        let part = u16::try_from(part).unwrap_or(u16::MAX);
        let octets = mem::size_of_val(&part) as libc::c_uint;
        head.msg_control = ptr::from_mut(&mut self.controls[header]).cast();
        // SAFETY: the control buffer is aligned for, and larger than, one control message with two octets;
        // CMSG_FIRSTHDR points at its start, since `msg_controllen` has room for one.
        unsafe {
            head.msg_controllen = libc::CMSG_SPACE(octets) as _;
            let first = libc::CMSG_FIRSTHDR(head);
            (*first).cmsg_level = libc::SOL_UDP;
            (*first).cmsg_type = libc::UDP_SEGMENT;
            (*first).cmsg_len = libc::CMSG_LEN(octets) as _;
            libc::CMSG_DATA(first).cast::<u16>().write_unaligned(part);
        }
    }
}
