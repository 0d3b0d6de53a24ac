//! Packets, read back chunk by chunk as the specification has them.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, SystemTime};

use super::packet::Packet;

/// The chunks of a packet: vendor, type, value.
fn chunks(packet: &[u8]) -> Vec<(u16, u16, Vec<u8>)> {
    let word = |at: usize| u16::from_be_bytes(packet[at..at + 2].try_into().unwrap());
    assert_eq!(&packet[..4], b"HEP3");
    assert_eq!(usize::from(word(4)), packet.len(), "the length of all, header included");
    let (mut all, mut at) = (Vec::new(), 6);
    while at < packet.len() {
        let length = usize::from(word(at + 4));
        assert!(length >= 6);
        all.push((word(at), word(at + 2), packet[at + 6..at + length].to_vec()));
        at += length;
    }
    assert_eq!(at, packet.len());
    all
}

fn packet(payload: &[u8]) -> Packet<'_> {
    Packet {
        source: "192.0.2.1:5060".parse().unwrap(),
        target: "198.51.100.7:5080".parse().unwrap(),
        stream: false,
        at: SystemTime::UNIX_EPOCH + Duration::from_micros(1_433_719_443_000_979),
        agent: 2001,
        password: None,
        payload,
    }
}

#[test]
fn a_packet_has_every_chunk_that_the_specification_asks_for() {
    let mut room = Vec::new();
    assert!(packet(b"OPTIONS sip:a SIP/2.0\r\n\r\n").write(&mut room));
    let mut found = chunks(&room);
    found.sort();
    let expected: Vec<(u16, u16, Vec<u8>)> = vec![
        (0, 1, vec![2]),
        (0, 2, vec![17]),
        (0, 3, vec![192, 0, 2, 1]),
        (0, 4, vec![198, 51, 100, 7]),
        (0, 7, vec![0x13, 0xc4]),
        (0, 8, vec![0x13, 0xd8]),
        (0, 9, vec![0x55, 0x74, 0xd2, 0x93]),
        (0, 10, vec![0, 0, 0x03, 0xd3]),
        (0, 11, vec![1]),
        (0, 12, vec![0, 0, 0x07, 0xd1]),
        (0, 15, b"OPTIONS sip:a SIP/2.0\r\n\r\n".to_vec()),
    ];
    assert_eq!(found, expected);
}

#[test]
fn streams_ipv6_and_the_password_have_their_own_chunks() {
    let mut room = Vec::new();
    let (source, target) = ("[2001:db8::1]:5061".parse().unwrap(), "[2001:db8::2]:5061".parse().unwrap());
    let packet = Packet { source, target, stream: true, password: Some("secret"), ..packet(b"x") };
    assert!(packet.write(&mut room));
    let found = chunks(&room);
    let of = |kind| found.iter().find(|c| c.1 == kind).map(|c| c.2.clone());
    assert_eq!((of(1), of(2)), (Some(vec![10]), Some(vec![6])));
    assert_eq!((of(3), of(4)), (None, None));
    assert_eq!(of(5).unwrap(), "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    assert_eq!(of(6).unwrap(), "2001:db8::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
    assert_eq!(of(14).unwrap(), b"secret");
}

#[test]
fn what_fits_into_no_datagram_makes_no_packet() {
    let mut room = Vec::new();
    assert!(!packet(&vec![b'x'; 65_507]).write(&mut room));
    assert!(!packet(&vec![b'x'; 70_000]).write(&mut room));
    assert!(packet(&vec![b'x'; 65_000]).write(&mut room));
    assert!(room.len() <= 65_507);
}
