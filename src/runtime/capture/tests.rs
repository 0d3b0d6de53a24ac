//! Files read back block by block, and which messages are taken.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use super::super::tap::Tap;
use super::filter::Filter;
use super::pcapng::{self, Packet};
use super::{Capture, Captures, End, Wanted};
use crate::flow::{Hop, ListenerId, Origin, Transport};
use crate::shard::io::Send;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Types and bodies of the blocks of a file.
fn blocks(mut file: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut all = Vec::new();
    while !file.is_empty() {
        let length = word(file, 4) as usize;
        assert_eq!(length % 4, 0);
        assert_eq!(word(file, length - 4) as usize, length, "the length stands at both ends");
        all.push((word(file, 0), file[8..length - 4].to_vec()));
        file = &file[length..];
    }
    all
}

/// The IP packets of a file.
fn packets(file: &[u8]) -> Vec<Vec<u8>> {
    let packets = blocks(file).into_iter().filter(|(kind, _)| *kind == 6);
    packets.map(|(_, b)| b[20..20 + word(&b, 12) as usize].to_vec()).collect()
}

fn sum(parts: &[&[u8]]) -> u32 {
    let octets = parts.concat();
    let words = octets.chunks(2).map(|c| u32::from(c[0]) << 8 | c.get(1).map_or(0, |b| u32::from(*b)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

fn packet<'a>(source: &str, target: &str, stream: Option<(u32, u32)>, payload: &'a [u8]) -> Packet<'a> {
    Packet {
        at: SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789),
        received: true,
        source: source.parse().unwrap(),
        target: target.parse().unwrap(),
        stream,
        comment: None,
        payload,
    }
}

#[test]
fn a_file_begins_with_a_section_and_an_interface_of_raw_packets_in_nanoseconds() {
    let header = pcapng::header();
    let all = blocks(&header);
    assert_eq!(all.iter().map(|b| b.0).collect::<Vec<_>>(), [0x0a0d_0d0a, 1]);
    assert_eq!(word(&all[0].1, 0), 0x1a2b_3c4d);
    assert_eq!(all[1].1[..2], [101, 0], "LINKTYPE_RAW");
    let resolution = [9, 0, 1, 0, 9];
    assert!(all[1].1.windows(5).any(|w| w == resolution), "if_tsresol = 10^-9");
}

#[test]
fn datagrams_have_right_lengths_checksums_and_times() {
    for payload in [&b"OPTIONS sip:a SIP/2.0\r\n\r\n"[..], b"odd"] {
        let file = packet("192.0.2.1:5060", "198.51.100.7:5080", None, payload).blocks();
        let (_, body) = &blocks(&file)[0];
        let nanos = u64::from(word(body, 4)) << 32 | u64::from(word(body, 8));
        assert_eq!(nanos, 1_700_000_000_123_456_789);
        let ip = &packets(&file)[0];
        assert_eq!(ip.len(), 28 + payload.len());
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
        assert_eq!(sum(&[&ip[..20]]), 0xffff, "of the IP header");
        let length = ((ip.len() - 20) as u16).to_be_bytes();
        assert_eq!(ip[24..26], length);
        assert_eq!(sum(&[&ip[12..20], &[0, 17], &length, &ip[20..]]), 0xffff, "of the datagram");
        assert_eq!(&ip[28..], payload);
    }
    let file = packet("[2001:db8::1]:5060", "[2001:db8::2]:5060", None, b"x").blocks();
    let ip = &packets(&file)[0];
    assert_eq!((ip[0], ip[6], ip.len()), (0x60, 17, 49));
    assert_eq!(sum(&[&ip[8..40], &[0, 9, 0, 17], &ip[40..]]), 0xffff);
}

#[test]
fn a_long_message_on_a_stream_is_several_segments_in_sequence() {
    let payload = vec![b'x'; 70_001];
    let file = packet("192.0.2.1:5060", "198.51.100.7:5080", Some((7, 9)), &payload).blocks();
    let mut next = 7;
    let mut octets = 0;
    for ip in packets(&file) {
        let length = ((ip.len() - 20) as u16).to_be_bytes();
        assert_eq!(sum(&[&ip[12..20], &[0, 6], &length, &ip[20..]]), 0xffff);
        assert_eq!(u32::from_be_bytes(ip[24..28].try_into().unwrap()), next);
        assert_eq!(u32::from_be_bytes(ip[28..32].try_into().unwrap()), 9);
        next += (ip.len() - 40) as u32;
        octets += ip.len() - 40;
    }
    assert_eq!(octets, payload.len());
    assert!(packet("192.0.2.1:1", "192.0.2.2:1", None, &payload).blocks().is_empty(), "no datagram holds it");
}

fn wanted(filter: Filter) -> Wanted {
    Wanted {
        filter,
        words: Vec::new(),
        time: Duration::from_secs(60),
        octets: 1 << 20,
        packets: None,
        attached: false,
    }
}

fn user(text: &str) -> Filter {
    Filter { user: Some(text.as_bytes().into()), ..Filter::default() }
}

fn message(start: &str, call_id: &str, to: &str) -> Vec<u8> {
    format!(
        "{start}\r\nVia: SIP/2.0/UDP 192.0.2.9;branch=z9hG4bK1\r\nFrom: <sip:+441@a.test>;tag=1\r\nTo: <{to}>\r\n\
         Call-ID: {call_id}\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

fn origin(transport: Transport) -> Origin {
    Origin {
        transport,
        listener: ListenerId(0),
        remote: "192.0.2.9:5060".parse().unwrap(),
        local: "192.0.2.1:5060".parse().unwrap(),
        conn: None,
        identity: None,
    }
}

/// Captures without a node behind them.
struct Bench {
    tap: Arc<Tap>,
    captures: Captures,
}

impl Bench {
    fn new() -> Self {
        let tap: Arc<Tap> = Arc::default();
        Self { captures: Captures::new(Arc::clone(&tap)), tap }
    }

    fn start(&self, wanted: Wanted) -> Arc<Capture> {
        self.captures.begin(Weak::new(), wanted).unwrap()
    }

    fn receive(&self, bytes: &[u8]) {
        self.tap.received(Instant::now(), &origin(Transport::Udp), bytes);
    }

    fn kept(&self, n: u64) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.captures.counts().kept.load(Ordering::Relaxed) < n {
            assert!(Instant::now() < until, "{:?}", self.captures.counts());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn file(capture: &Arc<Capture>) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut reader = capture.read(false);
        let mut all = Vec::new();
        while let Some(part) = reader.next().await {
            all.extend_from_slice(&part);
        }
        all
    })
}

#[test]
fn nothing_is_copied_before_the_first_capture_and_after_the_last() {
    let bench = Bench::new();
    assert!(!bench.tap.is_on());
    let one = bench.start(wanted(Filter::default()));
    assert!(bench.tap.is_on());
    bench.receive(b"\r\n\r\n");
    bench.receive(&message("INVITE sip:b@b.test SIP/2.0", "1", "sip:b@b.test"));
    bench.kept(1);
    assert_eq!(packets(&file(&one)).len(), 1, "keep-alives are no messages");
    assert!(bench.captures.remove(one.id));
    assert_eq!(one.state().ended.map(|(why, _)| why), Some(End::Stopped));
    let until = Instant::now() + Duration::from_secs(10);
    while bench.tap.is_on() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    let two = bench.start(wanted(Filter::default()));
    assert!(bench.tap.is_on() && two.id != one.id);
}

#[test]
fn once_a_message_shows_the_number_all_of_its_call_is_taken_what_came_before_included() {
    let bench = Bench::new();
    let one = bench.start(wanted(user("4420")));
    bench.receive(&message("INVITE sip:+4930@b.test SIP/2.0", "one", "sip:+4930@b.test"));
    bench.receive(&message("SIP/2.0 100 Trying", "one", "sip:+4930@b.test"));
    bench.receive(&message("INVITE sip:+4930@b.test SIP/2.0", "two", "sip:+4930@b.test"));
    bench.receive(&message("INVITE sip:+4420@b.test SIP/2.0", "one", "sip:+4930@b.test"));
    bench.receive(&message("SIP/2.0 200 OK", "two", "sip:+4930@b.test"));
    bench.receive(&message("SIP/2.0 200 OK", "one", "sip:+4930@b.test"));
    bench.kept(4);
    let all = packets(&file(&one));
    let first: Vec<String> = all
        .iter()
        .map(|p| String::from_utf8_lossy(&p[28..]).split("\r\n").next().unwrap().to_owned())
        .collect();
    assert_eq!(
        first,
        [
            "INVITE sip:+4930@b.test SIP/2.0",
            "SIP/2.0 100 Trying",
            "INVITE sip:+4420@b.test SIP/2.0",
            "SIP/2.0 200 OK"
        ]
    );
    assert!(all.iter().all(|p| String::from_utf8_lossy(p).contains("Call-ID: one")));
    assert_eq!(one.state().calls, 1);
}

#[test]
fn conditions_may_be_met_by_different_messages_of_a_call() {
    let bench = Bench::new();
    let filter = Filter { call_id: Some(b"b"[..].into()), ..user("4420") };
    let one = bench.start(wanted(filter));
    bench.receive(&message("INVITE sip:+4420@b.test SIP/2.0", "a", "sip:+4420@b.test"));
    bench.receive(&message("INVITE sip:+4930@b.test SIP/2.0", "b", "sip:+4930@b.test"));
    bench.receive(&message("INVITE sip:+4420@b.test SIP/2.0", "b", "sip:+4930@b.test"));
    bench.kept(2);
    assert_eq!(packets(&file(&one)).len(), 2);
}

#[test]
fn a_ring_keeps_the_newest_within_its_octets() {
    let bench = Bench::new();
    let one = bench.start(Wanted { octets: 64 << 10, ..wanted(Filter::default()) });
    for n in 0..500 {
        bench.receive(&message("INVITE sip:b@b.test SIP/2.0", &format!("call-{n:03}"), "sip:b@b.test"));
    }
    bench.kept(500);
    let state = one.state();
    assert!(state.kept_octets <= 64 << 10 && state.packets == 500, "{state:?}");
    let all = packets(&file(&one));
    assert_eq!(all.len() as u64, 500 - state.overwritten);
    assert!(all.len() < 500 && String::from_utf8_lossy(all.last().unwrap()).contains("call-499"));
    assert_eq!(bench.captures.counts().overwritten.load(Ordering::Relaxed), state.overwritten);
}

#[test]
fn it_ends_after_its_messages_and_no_more_than_eight_run() {
    let bench = Bench::new();
    let one = bench.start(Wanted { packets: Some(2), ..wanted(Filter::default()) });
    for _ in 0..3 {
        bench.receive(&message("INVITE sip:b@b.test SIP/2.0", "1", "sip:b@b.test"));
    }
    bench.kept(2);
    assert_eq!(one.state().ended.map(|(why, _)| why), Some(End::Packets));
    assert_eq!(packets(&file(&one)).len(), 2);
    for _ in 0..8 {
        bench.start(wanted(user("x")));
    }
    assert!(bench.captures.get(one.id).is_none(), "the one that is over has made room");
    assert!(bench.captures.begin(Weak::new(), wanted(user("x"))).is_err());
}

#[test]
fn who_follows_gets_what_comes_and_a_capture_ends_with_its_only_follower() {
    let bench = Bench::new();
    let one = bench.start(Wanted { attached: true, ..wanted(Filter::default()) });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let mut reader = one.read(true);
        assert_eq!(reader.next().await.unwrap(), pcapng::header());
        bench.receive(&message("INVITE sip:b@b.test SIP/2.0", "1", "sip:b@b.test"));
        assert_eq!(packets(&reader.next().await.unwrap()).len(), 1);
        bench.receive(&message("BYE sip:b@b.test SIP/2.0", "1", "sip:b@b.test"));
        assert_eq!(packets(&reader.next().await.unwrap()).len(), 1);
    });
    assert_eq!(one.state().ended.map(|(why, _)| why), Some(End::Unattended));
    assert!(bench.captures.list().is_empty(), "nobody else can want it");
}

#[test]
fn time_ends_a_capture() {
    let bench = Bench::new();
    let one = bench.start(Wanted { time: Duration::from_millis(30), ..wanted(Filter::default()) });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let parts = runtime.block_on(async {
        let mut reader = one.read(true);
        let mut parts = Vec::new();
        while let Some(part) = reader.next().await {
            parts.push(part);
        }
        parts
    });
    assert_eq!(blocks(&parts[1])[0].0, 5, "statistics at the end");
    assert_eq!(one.state().ended.map(|(why, _)| why), Some(End::Time));
}

#[test]
fn what_tls_carried_is_shown_as_a_stream_and_says_so() {
    let bench = Bench::new();
    let one = bench.start(wanted(Filter::default()));
    let to: SocketAddr = "192.0.2.9:5061".parse().unwrap();
    bench.tap.received(
        Instant::now(),
        &origin(Transport::Tls),
        &message("INVITE sip:b@b.test SIP/2.0", "1", "sip:b@b.test"),
    );
    let hop = Hop {
        transport: Transport::Tls,
        listener: ListenerId(0),
        remote: to,
        conn: None,
        fresh: false,
        tls: None,
    };
    let bytes = message("SIP/2.0 200 OK", "1", "sip:b@b.test").into();
    bench.tap.sending(Instant::now(), &Send { hop, bytes, token: None, request: false }, &[]);
    bench.kept(2);
    let all = file(&one);
    assert_eq!(packets(&all).iter().map(|p| p[9]).collect::<Vec<_>>(), [6, 6]);
    let text = String::from_utf8_lossy(&all);
    assert_eq!(text.matches("by TLS, shown as TCP in the clear").count(), 2);
}
