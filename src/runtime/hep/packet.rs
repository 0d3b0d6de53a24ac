//! One HEP version 3 packet (the EEP specification): `HEP3`, the length of all, then chunks of vendor, type, length and
//! value; everything in network byte order, every length with its own header.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

/// The generic chunks.
const VENDOR: u16 = 0;
const FAMILY: u16 = 0x0001;
const PROTOCOL: u16 = 0x0002;
const SOURCE_V4: u16 = 0x0003;
const TARGET_V4: u16 = 0x0004;
const SOURCE_V6: u16 = 0x0005;
const TARGET_V6: u16 = 0x0006;
const SOURCE_PORT: u16 = 0x0007;
const TARGET_PORT: u16 = 0x0008;
const SECONDS: u16 = 0x0009;
const MICROSECONDS: u16 = 0x000a;
const KIND: u16 = 0x000b;
const AGENT: u16 = 0x000c;
const PASSWORD: u16 = 0x000e;
const PAYLOAD: u16 = 0x000f;

/// `AF_INET` and `AF_INET6` as they are on Linux, which is what the specification means.
const INET: u8 = 2;
const INET6: u8 = 10;
/// IP protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The value of [`KIND`] for SIP.
const SIP: u8 = 1;

/// Octets before a chunk's value.
const CHUNK_HEADER: usize = 6;
/// Largest datagram by IPv4, which is below the largest length that the header can tell.
const MAX_PACKET: usize = 65_507;

/// A message and how it travelled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub source: SocketAddr,
    pub target: SocketAddr,
    /// By TCP (TLS too: what is shown is its content).
    pub stream: bool,
    pub at: SystemTime,
    pub agent: u32,
    pub password: Option<&'a str>,
    pub payload: &'a [u8],
}

impl Packet<'_> {
    /// Writes it into `room`, whose content goes. False: it is larger than a datagram can be.
    pub(super) fn write(&self, room: &mut Vec<u8>) -> bool {
        room.clear();
        room.extend_from_slice(b"HEP3\0\0");
        let (source, target) = (self.source.ip().to_canonical(), self.target.ip().to_canonical());
        let fits = match (source, target) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                chunk(room, FAMILY, &[INET])
                    && chunk(room, SOURCE_V4, &source.octets())
                    && chunk(room, TARGET_V4, &target.octets())
            }
            _ => {
                let v6 = |ip: IpAddr| match ip {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                    IpAddr::V6(v6) => v6.octets(),
                };
                chunk(room, FAMILY, &[INET6])
                    && chunk(room, SOURCE_V6, &v6(source))
                    && chunk(room, TARGET_V6, &v6(target))
            }
        };
        let since = self.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        // The field ends in 2106.
        let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
        let fits = fits
            && chunk(room, PROTOCOL, &[if self.stream { TCP } else { UDP }])
            && chunk(room, SOURCE_PORT, &self.source.port().to_be_bytes())
            && chunk(room, TARGET_PORT, &self.target.port().to_be_bytes())
            && chunk(room, SECONDS, &seconds.to_be_bytes())
            && chunk(room, MICROSECONDS, &since.subsec_micros().to_be_bytes())
            && chunk(room, KIND, &[SIP])
            && chunk(room, AGENT, &self.agent.to_be_bytes())
            && self.password.is_none_or(|p| chunk(room, PASSWORD, p.as_bytes()))
            && chunk(room, PAYLOAD, self.payload)
            && room.len() <= MAX_PACKET;
        match (fits, u16::try_from(room.len()), room.get_mut(4..6)) {
            (true, Ok(length), Some(place)) => {
                place.copy_from_slice(&length.to_be_bytes());
                true
            }
            _ => false,
        }
    }
}

fn chunk(room: &mut Vec<u8>, kind: u16, value: &[u8]) -> bool {
    let Ok(length) = u16::try_from(CHUNK_HEADER + value.len()) else { return false };
    for word in [VENDOR, kind, length] {
        room.extend_from_slice(&word.to_be_bytes());
    }
    room.extend_from_slice(value);
    true
}
