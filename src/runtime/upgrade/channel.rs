//! The channel between the two processes: words as JSON, with descriptors beside them, and datagrams.
//!
//! A pair of connected sockets that keeps messages apart and in order, and tells at once when the other end is
//! gone. The socket's own buffer is the bound; whoever passes datagrams waits a moment for room in it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};
use socket2::SockRef;

use crate::flow::Transport;
use crate::shard::Passed;

use super::super::sys::DATAGRAM;

/// What both must agree on; another number is another way to hand over.
pub(super) const VERSION: u32 = 1;
/// Room asked for; the system may give less.
const BUFFER: usize = 4 * 1024 * 1024;
/// How long passing a datagram on waits for room. Meanwhile others wait in the socket that they came by.
const PATIENCE: Duration = Duration::from_millis(50);

/// First octets of what is no word.
const DATA: u8 = 1;
const ERROR: u8 = 2;
/// Octets of an address.
const ADDRESS: usize = 23;
/// Octets before those of a datagram.
const HEAD: usize = 3 + 2 * ADDRESS;

/// What only the two processes know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::runtime) struct Secrets {
    /// Of dialog tokens.
    pub(in crate::runtime) dialog: [u8; 16],
    /// Which shard owns a call.
    pub(in crate::runtime) owner: u64,
    /// Of the tables of server transactions.
    pub(in crate::runtime) keys: [u64; 8],
    /// Of stickiness.
    pub(in crate::runtime) call: [u64; 4],
    /// Of loop detection.
    pub(in crate::runtime) loops: [u64; 2],
}

/// A listener as it is handed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::runtime) struct Left {
    pub(super) transport: String,
    pub(super) bind: SocketAddr,
}

impl Left {
    pub(super) fn transport(&self) -> Option<Transport> {
        Transport::ALL.into_iter().find(|t| t.param() == self.transport)
    }
}

/// What the two say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "snake_case")]
pub(super) enum Word {
    /// The old one: who it is.
    Hello { version: u32, pid: u32, generation: u32, workers: usize, listeners: Vec<Left>, secrets: Secrets },
    /// The old one: one socket of a listener, the next worker's; with a descriptor.
    Socket { listener: usize },
    /// The old one: the admin interface's socket; with a descriptor.
    Admin,
    /// The old one: that was all.
    Begin,
    /// The new one: it could serve now.
    Ready { pid: u32 },
    /// The new one: it cannot.
    Failed { why: Vec<String> },
    /// The old one: serve.
    Go,
    /// The old one: it has ended, the datagrams are the new one's.
    Done,
    /// The new one: it was told to end, and both are to.
    Ending,
}

/// Something received.
#[derive(Debug)]
pub(super) enum Received<'a> {
    Word(Word, Option<OwnedFd>),
    Datagram {
        listener: usize,
        remote: SocketAddr,
        local: SocketAddr,
        bytes: &'a [u8],
    },
    Undeliverable {
        to: SocketAddr,
        payload: &'a [u8],
    },
    /// The other end is gone.
    End,
}

/// One end.
#[derive(Debug)]
pub(in crate::runtime) struct Channel {
    fd: OwnedFd,
    /// There was no room lately: nobody waits for it again until there has been some.
    full: AtomicBool,
}

impl Channel {
    /// Our end, and the one for the other process.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let _ = SockRef::from(&ours).set_send_buffer_size(BUFFER);
        Ok((Self::of(ours), theirs))
    }

    /// The end that another process has left us.
    pub(super) fn of(fd: OwnedFd) -> Self {
        Self { fd, full: AtomicBool::new(false) }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// How long [`Self::receive`] waits; `None`: for ever.
    pub(super) fn wait_at_most(&self, limit: Option<Duration>) -> io::Result<()> {
        SockRef::from(&self.fd).set_read_timeout(limit)
    }

    /// How long sending waits for room.
    pub(super) fn be_patient(&self, limit: Option<Duration>) -> io::Result<()> {
        SockRef::from(&self.fd).set_write_timeout(limit.or(Some(PATIENCE)))
    }

    /// Says something.
    pub(super) fn say(&self, word: &Word, with: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let text = serde_json::to_vec(word)?;
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut room);
        let fds = with.map(|fd| [fd]);
        if let Some(fds) = &fds
            && !beside.push(SendAncillaryMessage::ScmRights(fds))
        {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        sendmsg(&self.fd, &[IoSlice::new(&text)], &mut beside, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Passes a datagram on. False: there was no room for too long, or nobody is there.
    pub(in crate::runtime) fn pass(&self, passed: &Passed) -> bool {
        let mut head = [0; HEAD];
        head[0] = DATA;
        head[1..3].copy_from_slice(&passed.listener.0.to_be_bytes());
        head[3..3 + ADDRESS].copy_from_slice(&written(passed.remote));
        head[3 + ADDRESS..].copy_from_slice(&written(passed.local));
        self.push(&head, &passed.bytes)
    }

    /// Passes an ICMP error on.
    pub(in crate::runtime) fn pass_error(&self, to: SocketAddr, payload: &[u8]) -> bool {
        let mut head = [0; 1 + ADDRESS];
        head[0] = ERROR;
        head[1..].copy_from_slice(&written(to));
        self.push(&head, payload)
    }

    fn push(&self, head: &[u8], octets: &[u8]) -> bool {
        let mut flags = SendFlags::NOSIGNAL;
        if self.full.load(Ordering::Relaxed) {
            flags |= SendFlags::DONTWAIT;
        }
        let parts = [IoSlice::new(head), IoSlice::new(octets)];
        let sent = sendmsg(&self.fd, &parts, &mut SendAncillaryBuffer::default(), flags).is_ok();
        self.full.store(!sent, Ordering::Relaxed);
        sent
    }

    /// The next message, into `room` of [`room`]'s size. `WouldBlock`: nothing came in time.
    pub(super) fn receive<'a>(&self, room: &'a mut [u8]) -> io::Result<Received<'a>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let n = recvmsg(&self.fd, &mut [IoSliceMut::new(room)], &mut beside, RecvFlags::CMSG_CLOEXEC)?.bytes;
        let fd = beside.drain().find_map(|m| match m {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let octets = room.get(..n).unwrap_or_default();
        let odd =
            || io::Error::new(io::ErrorKind::InvalidData, "the other process says what nobody understands");
        match octets.first() {
            None => Ok(Received::End),
            Some(&DATA) => {
                let (head, bytes) = octets.split_at_checked(HEAD).ok_or_else(odd)?;
                let listener = u16::from_be_bytes([head[1], head[2]]);
                Ok(Received::Datagram {
                    listener: usize::from(listener),
                    remote: read(&head[3..3 + ADDRESS]).ok_or_else(odd)?,
                    local: read(&head[3 + ADDRESS..]).ok_or_else(odd)?,
                    bytes,
                })
            }
            Some(&ERROR) => {
                let (head, payload) = octets.split_at_checked(1 + ADDRESS).ok_or_else(odd)?;
                Ok(Received::Undeliverable { to: read(&head[1..]).ok_or_else(odd)?, payload })
            }
            Some(_) => Ok(Received::Word(serde_json::from_slice(octets)?, fd)),
        }
    }
}

/// Room for the largest message.
pub(super) fn room() -> Vec<u8> {
    vec![0; HEAD + DATAGRAM]
}

/// Family, address, port, scope.
fn written(address: SocketAddr) -> [u8; ADDRESS] {
    let mut out = [0; ADDRESS];
    match address {
        SocketAddr::V4(a) => {
            out[0] = 4;
            out[1..5].copy_from_slice(&a.ip().octets());
        }
        SocketAddr::V6(a) => {
            out[0] = 6;
            out[1..17].copy_from_slice(&a.ip().octets());
            out[19..].copy_from_slice(&a.scope_id().to_be_bytes());
        }
    }
    out[17..19].copy_from_slice(&address.port().to_be_bytes());
    out
}

fn read(octets: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(octets.get(17..19)?.try_into().ok()?);
    match octets.first()? {
        4 => {
            let ip: [u8; 4] = octets.get(1..5)?.try_into().ok()?;
            Some(SocketAddr::new(IpAddr::from(Ipv4Addr::from(ip)), port))
        }
        6 => {
            let ip: [u8; 16] = octets.get(1..17)?.try_into().ok()?;
            let scope = u32::from_be_bytes(octets.get(19..23)?.try_into().ok()?);
            Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use bytes::Bytes;

    use crate::flow::ListenerId;

    fn ends() -> (Channel, Channel) {
        let (ours, theirs) = Channel::pair().unwrap();
        ours.be_patient(None).unwrap();
        (ours, Channel::of(theirs))
    }

    #[test]
    fn a_datagram_arrives_as_it_was_received_whatever_its_size() {
        let (ours, theirs) = ends();
        let mut room = room();
        for (remote, local, len) in [
            ("192.0.2.7:5060", "192.0.2.1:5061", 0),
            ("[2001:db8::7]:65535", "[2001:db8::1]:1", 700),
            ("[fe80::1%3]:5060", "[fe80::2%3]:5060", 65_507),
        ] {
            let (remote, local): (SocketAddr, SocketAddr) = (remote.parse().unwrap(), local.parse().unwrap());
            let bytes = Bytes::from(vec![b'x'; len]);
            assert!(ours.pass(&Passed { listener: ListenerId(513), remote, local, bytes: bytes.clone() }));
            match theirs.receive(&mut room).unwrap() {
                Received::Datagram { listener, remote: r, local: l, bytes: b } => {
                    assert_eq!((listener, r, l, b), (513, remote, local, &bytes[..]));
                }
                other => panic!("{other:?}"),
            }
            assert!(ours.pass_error(remote, b"INVITE"));
            match theirs.receive(&mut room).unwrap() {
                Received::Undeliverable { to, payload } => {
                    assert_eq!((to, payload), (remote, &b"INVITE"[..]))
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_descriptor_goes_with_its_word_and_the_end_is_told() {
        let (ours, theirs) = ends();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        ours.say(&Word::Socket { listener: 2 }, Some(socket.as_fd())).unwrap();
        ours.say(&Word::Begin, None).unwrap();
        let mut room = room();
        match theirs.receive(&mut room).unwrap() {
            Received::Word(Word::Socket { listener: 2 }, Some(fd)) => {
                let same = std::net::UdpSocket::from(fd);
                assert_eq!(same.local_addr().unwrap(), socket.local_addr().unwrap());
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(theirs.receive(&mut room), Ok(Received::Word(Word::Begin, None))));
        drop(ours);
        assert!(matches!(theirs.receive(&mut room), Ok(Received::End)));
        assert!(!theirs.pass_error("192.0.2.1:5060".parse().unwrap(), b""), "and it kills nobody");
    }

    #[test]
    fn a_reader_that_does_not_read_costs_one_short_wait_and_then_only_datagrams() {
        let (ours, theirs) = ends();
        let at = "192.0.2.1:5060".parse().unwrap();
        let passed =
            Passed { listener: ListenerId(0), remote: at, local: at, bytes: Bytes::from(vec![0; 60_000]) };
        let begun = std::time::Instant::now();
        let sent = (0..1000).filter(|_| ours.pass(&passed)).count();
        assert!((2..1000).contains(&sent), "{sent}");
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "it waits once, not for each: {:?}",
            begun.elapsed()
        );
        let mut room = room();
        assert!(matches!(theirs.receive(&mut room), Ok(Received::Datagram { .. })));
        assert!(ours.pass(&passed), "there is room again");
    }
}
