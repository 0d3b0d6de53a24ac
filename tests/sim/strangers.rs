//! Floods of strangers and scanners: they leave nothing behind, and take nothing from those who are known.

use crate::msg::Request;
use crate::rig::{CORE, PEER, Rig, lines};

/// Nothing is held for anybody.
fn assert_holds_nothing(rig: &Rig) {
    assert_eq!(rig.shard.transactions(), (0, 0));
    assert_eq!((rig.shard.contexts(), rig.shard.calls(), rig.shard.timers()), (0, 0, 0));
}

/// A stranger's address, another one for each number.
fn stranger(n: u32) -> String {
    format!("203.{}.{}.{}:{}", 1 + (n >> 16) % 112, (n >> 8) & 255, n & 255, 1024 + n % 60_000)
}

fn peer_is_served(rig: &mut Rig, call: &str) {
    let request = Request::new("INVITE", "sip:bob@example.com", PEER, call, call);
    let outs = rig.udp(PEER, &request.bytes());
    assert_eq!(lines(&outs), ["100 198.51.100.200:5060", "INVITE 10.0.0.5:5060"]);
}

#[test]
fn a_flood_of_strangers_leaves_nothing_behind() {
    let mut rig = Rig::new();
    let methods = ["INVITE", "REGISTER", "OPTIONS", "ACK", "BYE", "SUBSCRIBE"];
    for n in 0..5000u32 {
        let (from, id) = (stranger(n), format!("scan-{n}"));
        let method = methods[n as usize % methods.len()];
        let request = Request::new(method, &format!("sip:{n}@example.com"), &from, &id, &id);
        let mut bytes = request.bytes();
        if n % 5 == 0 {
            // Cut off, as scanners are careless.
            bytes.truncate(bytes.len() / 2);
        }
        assert!(rig.udp(&from, &bytes).is_empty(), "{method} from {from}");
    }
    assert_holds_nothing(&rig);
    let dropped: u64 = rig.shard.stats().dropped.values().sum();
    assert_eq!(dropped, 5000, "{:?}", rig.shard.stats().dropped);
    peer_is_served(&mut rig, "known");
}

#[test]
fn strangers_on_streams_get_their_403_without_a_transaction() {
    let mut rig = Rig::new();
    for n in 0..500u32 {
        let (from, id) = (stranger(n), format!("scan-{n}"));
        let request = Request::new("INVITE", "sip:1000@example.com", &from, &id, &id);
        let outs = rig.tcp(&from, u64::from(n), &request.bytes());
        assert_eq!((outs.len(), outs[0].msg.status()), (1, 403));
    }
    assert_holds_nothing(&rig);
    peer_is_served(&mut rig, "known");
}

#[test]
fn nobody_who_is_configured_is_ever_shut_out_for_what_comes_in_their_name() {
    let mut rig = Rig::new();
    for n in 0..1000u32 {
        let id = format!("scan-{n}");
        // Dialling through, garbage, and calls that do not exist, all with the peer's address.
        let transit = Request::new("INVITE", &format!("sip:00{n}@elsewhere.test"), PEER, &id, &id);
        assert_eq!(rig.udp(PEER, &transit.bytes())[0].msg.status(), 403);
        rig.udp(PEER, b"INVITE sip:x SIP/2.0\r\nnonsense\r\n\r\n");
        let bye = Request::new("BYE", "sip:nobody@10.0.0.5", PEER, &format!("b{id}"), &format!("b{id}"));
        rig.udp(PEER, &bye.bytes());
    }
    peer_is_served(&mut rig, "known");
    let outs = rig.udp(CORE, &Request::new("INVITE", "sip:carol@p1.example", CORE, "k2", "k2").bytes());
    assert_eq!(lines(&outs)[0], "100 10.0.1.1:5060");
}
