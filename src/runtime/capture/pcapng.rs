//! The pcapng format (draft-ietf-opsawg-pcapng): a section header, one interface of raw IP packets, a packet block for each
//! message, interface statistics. In little-endian byte order, which the section header tells.
//!
//! What stood around a message on the wire is not known here, so headers of IP and UDP or TCP are made up around it, with
//! right checksums. Over TCP each message is a segment of its own, and sequence numbers follow on from one another.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use bytes::Bytes;

/// Block types.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
/// A packet begins with its IP header, of either version.
const LINKTYPE_RAW: u16 = 101;
/// Options.
const END: u16 = 0;
const COMMENT: u16 = 1;
const IF_NAME: u16 = 2;
const EPB_FLAGS: u16 = 2;
const USER_APPLICATION: u16 = 4;
const IF_RECEIVED: u16 = 4;
const IF_DROPPED: u16 = 5;
const IF_RESOLUTION: u16 = 9;

/// Protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Octets of payload in one TCP segment: IP packets end at 65,535.
const SEGMENT: usize = 32 * 1024;

/// What comes first in every file.
pub(super) fn header() -> Bytes {
    let mut out = Vec::with_capacity(128);
    block(&mut out, SECTION, |body| {
        body.extend_from_slice(&0x1a2b_3c4d_u32.to_le_bytes());
        body.extend_from_slice(&1_u16.to_le_bytes());
        body.extend_from_slice(&0_u16.to_le_bytes());
        // The length of the section is not known beforehand.
        body.extend_from_slice(&u64::MAX.to_le_bytes());
        option(body, USER_APPLICATION, concat!("sbe ", env!("CARGO_PKG_VERSION")).as_bytes());
        option(body, END, &[]);
    });
    block(&mut out, INTERFACE, |body| {
        body.extend_from_slice(&LINKTYPE_RAW.to_le_bytes());
        body.extend_from_slice(&[0; 6]);
        option(body, IF_NAME, b"sbe");
        // Nanoseconds.
        option(body, IF_RESOLUTION, &[9]);
        option(body, END, &[]);
    });
    out.into()
}

/// Packets seen and lost so far, at a time.
pub(super) fn statistics(at: SystemTime, received: u64, dropped: u64) -> Bytes {
    let mut out = Vec::with_capacity(64);
    block(&mut out, STATISTICS, |body| {
        body.extend_from_slice(&0_u32.to_le_bytes());
        timestamp(body, at);
        option(body, IF_RECEIVED, &received.to_le_bytes());
        option(body, IF_DROPPED, &dropped.to_le_bytes());
        option(body, END, &[]);
    });
    out.into()
}

/// A message and how it travelled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) at: SystemTime,
    pub(super) received: bool,
    pub(super) source: SocketAddr,
    pub(super) target: SocketAddr,
    /// By TCP, and the sequence numbers of both directions; else by UDP.
    pub(super) stream: Option<(u32, u32)>,
    pub(super) comment: Option<&'a str>,
    pub(super) payload: &'a [u8],
}

impl Packet<'_> {
    /// Its blocks: one, or several for what is longer than a segment. Empty: no IP packet holds it.
    pub(super) fn blocks(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.payload.len() + 160);
        match self.stream {
            None if self.payload.len() > 65_507 => {}
            None => self.block(&mut out, None, self.payload),
            Some((sequence, acknowledged)) => {
                let mut at = sequence;
                for part in self.payload.chunks(SEGMENT) {
                    self.block(&mut out, Some((at, acknowledged)), part);
                    at = at.wrapping_add(u32::try_from(part.len()).unwrap_or(0));
                }
            }
        }
        out.into()
    }

    fn block(&self, out: &mut Vec<u8>, stream: Option<(u32, u32)>, payload: &[u8]) {
        block(out, PACKET, |body| {
            body.extend_from_slice(&0_u32.to_le_bytes());
            timestamp(body, self.at);
            let lengths = body.len();
            body.extend_from_slice(&[0; 8]);
            let start = body.len();
            self.datagram(body, stream, payload);
            let length = u32::try_from(body.len() - start).unwrap_or(u32::MAX).to_le_bytes();
            if let Some(place) = body.get_mut(lengths..start) {
                place.copy_from_slice(&[length, length].concat());
            }
            pad(body);
            // Inbound or outbound.
            let direction: u32 = if self.received { 1 } else { 2 };
            option(body, EPB_FLAGS, &direction.to_le_bytes());
            if let Some(comment) = self.comment {
                option(body, COMMENT, comment.as_bytes());
            }
            option(body, END, &[]);
        });
    }

    /// The headers of IP and UDP or TCP, and the payload.
    fn datagram(&self, out: &mut Vec<u8>, stream: Option<(u32, u32)>, payload: &[u8]) {
        let transport = self.transport(stream, payload.len());
        let length = transport.len() + payload.len();
        let protocol = if stream.is_some() { TCP } else { UDP };
        let (source, target) = (self.source.ip().to_canonical(), self.target.ip().to_canonical());
        let word = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
        let mut sum = Sum::default();
        match (source, target) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let mut header = [0; 20];
                header[0] = 0x45;
                header[2..4].copy_from_slice(&word(20 + length));
                // Not to be fragmented.
                header[6] = 0x40;
                header[8] = 64;
                header[9] = protocol;
                header[12..16].copy_from_slice(&source.octets());
                header[16..].copy_from_slice(&target.octets());
                let mut own = Sum::default();
                own.add(&header);
                header[10..12].copy_from_slice(&own.finish().to_be_bytes());
                out.extend_from_slice(&header);
                sum.add(&header[12..]);
            }
            _ => {
                let v6 = |ip: IpAddr| match ip {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                let mut header = [0; 40];
                header[0] = 0x60;
                header[4..6].copy_from_slice(&word(length));
                header[6] = protocol;
                header[7] = 64;
                header[8..24].copy_from_slice(&v6(source));
                header[24..].copy_from_slice(&v6(target));
                out.extend_from_slice(&header);
                sum.add(&header[8..]);
            }
        }
        sum.add(&word(length));
        sum.add(&[0, protocol]);
        sum.add(&transport);
        sum.add(payload);
        let sum = match sum.finish() {
            // In UDP zero means that there is none.
            0 if protocol == UDP => 0xffff,
            sum => sum,
        };
        let place = out.len() + if stream.is_some() { 16 } else { 6 };
        out.extend_from_slice(&transport);
        if let Some(place) = out.get_mut(place..place + 2) {
            place.copy_from_slice(&sum.to_be_bytes());
        }
        out.extend_from_slice(payload);
    }

    /// The header of TCP or UDP without its checksum; of an even length.
    fn transport(&self, stream: Option<(u32, u32)>, payload: usize) -> Vec<u8> {
        let mut header = Vec::with_capacity(20);
        header.extend_from_slice(&self.source.port().to_be_bytes());
        header.extend_from_slice(&self.target.port().to_be_bytes());
        match stream {
            Some((sequence, acknowledged)) => {
                header.extend_from_slice(&sequence.to_be_bytes());
                header.extend_from_slice(&acknowledged.to_be_bytes());
                // Five words long, PSH and ACK; the largest window; checksum, urgent pointer.
                header.extend_from_slice(&[0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
            }
            None => {
                header.extend_from_slice(&u16::try_from(8 + payload).unwrap_or(u16::MAX).to_be_bytes());
                header.extend_from_slice(&[0, 0]);
            }
        }
        header
    }
}

/// The checksum of the internet (RFC 1071). What is added has an even length, but for the last.
#[derive(Clone, Copy, Debug, Default)]
struct Sum(u64);

impl Sum {
    fn add(&mut self, octets: &[u8]) {
        for pair in octets.chunks(2) {
            let word = [pair.first().copied().unwrap_or(0), pair.get(1).copied().unwrap_or(0)];
            self.0 = self.0.wrapping_add(u64::from(u16::from_be_bytes(word)));
        }
    }

    fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap_or(0)
    }
}

/// Type and length before a body, length after it.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    // Blocks before it are multiples of four, so padding may look at the whole.
    body(out);
    let length = u32::try_from(out.len() - start + 4).unwrap_or(u32::MAX).to_le_bytes();
    if let Some(place) = out.get_mut(start + 4..start + 8) {
        place.copy_from_slice(&length);
    }
    out.extend_from_slice(&length);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let Ok(length) = u16::try_from(value.len()) else { return };
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(value);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Nanoseconds since 1970 in two halves, the upper one first.
fn timestamp(out: &mut Vec<u8>, at: SystemTime) {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    let [a, b, c, d, e, f, g, h] = nanos.to_be_bytes();
    out.extend_from_slice(&u32::from_be_bytes([a, b, c, d]).to_le_bytes());
    out.extend_from_slice(&u32::from_be_bytes([e, f, g, h]).to_le_bytes());
}
