//! A shard in memory, and both ends of the calls through it.
//!
//! The world is that of a border element between a core and one peer whose domain is in the
//! location cache: the core calls, the peer's server rings, answers, and is hung up on.
#![allow(dead_code, clippy::unwrap_used, clippy::indexing_slicing)]

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sbe::flow::{Host, ListenerId, Origin, Transport};
use sbe::location::{LocateKey, Located, Outcome, Server, Tier};
use sbe::peering::Ledger;
use sbe::proxy::Policy;
use sbe::shard::{Input, Output, Seeds, Shard};

const CONFIG: &str = r#"
[node]
name = "sbe.test"
domains = ["sbe.test"]

[[listen]]
transport = "udp"
bind = "127.0.0.1:5060"
advertise = "127.0.0.1:5060"

[core]
next_hops = ["sip:127.0.0.10:5070"]
sources = ["127.0.0.9/32", "127.0.0.10/32"]

[[peer]]
name = "peer"
domains = ["peer.test", "*.peer.test"]
sources = ["127.0.0.16/28"]
"#;

const CALLER: &str = "127.0.0.10:5070";
const CALLEE: &str = "127.0.0.21:5080";

/// The policy of the world.
pub fn policy(now: Instant) -> Arc<Policy> {
    policy_with(now, "")
}

/// The same with more configuration behind it.
pub fn policy_with(now: Instant, more: &str) -> Arc<Policy> {
    let (config, _) = sbe::config::parse(&format!("{CONFIG}{more}"), "bench").unwrap();
    Arc::new(Policy::new(Arc::new(config), Arc::new(Ledger::new(now)), [7; 16], None))
}

/// What the location cache answers for the peer's domain: one server by UDP.
pub fn located(key: LocateKey, now: Instant) -> Located {
    let addr: SocketAddr = CALLEE.parse().unwrap();
    let addrs = std::iter::once(addr.ip()).collect();
    let server = Server::new(Transport::Udp, "uas1.peer.test".into(), addr.port(), 50, addrs);
    let tier = Tier::new(Some((10, 10)), 10, vec![server]);
    Located::from_tiers(key, vec![tier], Outcome::Found, now + Duration::from_secs(3600))
}

/// The key of the peer's domain.
pub fn key() -> LocateKey {
    LocateKey {
        host: Host::Name("peer.test".into()),
        port: None,
        transport: None,
        sips: false,
        realm: sbe::config::Realm::Peering,
    }
}

fn origin(remote: &str) -> Origin {
    Origin {
        transport: Transport::Udp,
        listener: ListenerId(0),
        remote: remote.parse().unwrap(),
        local: "127.0.0.1:5060".parse().unwrap(),
        conn: None,
        identity: None,
    }
}

/// An INVITE with SDP, about 1 kB, as the core sends it.
pub fn invite(call: u64) -> Vec<u8> {
    let sdp = "v=0\r\no=alice 53655765 2353687637 IN IP4 127.0.0.10\r\ns=-\r\nc=IN IP4 127.0.0.10\r\nt=0 0\r\n\
        m=audio 40000 RTP/AVP 8 0 101\r\na=rtpmap:8 PCMA/8000\r\na=rtpmap:0 PCMU/8000\r\n\
        a=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-15\r\na=ptime:20\r\na=sendrecv\r\n";
    format!(
        "INVITE sip:+15551230001@peer.test SIP/2.0\r\n\
        Via: SIP/2.0/UDP {CALLER};branch=z9hG4bK-4242-{call}-0\r\n\
        From: \"Alice Example\" <sip:+15557650001@caller.test>;tag=4242u{call}\r\n\
        To: <sip:+15551230001@peer.test>\r\n\
        Call-ID: {call}-4242@127.0.0.10\r\n\
        CSeq: 1 INVITE\r\n\
        Contact: <sip:alice@{CALLER};transport=UDP>\r\n\
        Max-Forwards: 70\r\n\
        Allow: INVITE, ACK, CANCEL, BYE, PRACK, UPDATE, OPTIONS, INFO, REFER, NOTIFY\r\n\
        Supported: 100rel, timer, replaces\r\n\
        Session-Expires: 1800\r\n\
        Min-SE: 90\r\n\
        P-Asserted-Identity: <sip:+15557650001@caller.test>\r\n\
        User-Agent: bench-uac/1\r\n\
        Content-Type: application/sdp\r\n\
        Content-Length: {}\r\n\r\n{sdp}",
        sdp.len()
    )
    .into_bytes()
}

/// A request inside the dialog, from the caller.
fn in_dialog(method: &str, cseq: u32, call: u64, branch: u32, answer: &str) -> Vec<u8> {
    let route = rows(answer, "Record-Route").next().map(|r| &r["Record-Route: ".len()..]).unwrap();
    format!(
        "{method} sip:{CALLEE};transport=UDP SIP/2.0\r\n\
        Via: SIP/2.0/UDP {CALLER};branch=z9hG4bK-4242-{call}-{branch}\r\n\
        Route: {route}\r\n\
        From: \"Alice Example\" <sip:+15557650001@caller.test>;tag=4242u{call}\r\n\
        To: <sip:+15551230001@peer.test>;tag=4243s{call}\r\n\
        Call-ID: {call}-4242@127.0.0.10\r\n\
        CSeq: {cseq} {method}\r\n\
        Max-Forwards: 70\r\n\
        User-Agent: bench-uac/1\r\n\
        Content-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

fn rows<'a>(message: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    message
        .split("\r\n")
        .take_while(|l| !l.is_empty())
        .filter(move |l| l.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')))
}

/// The callee's answer to a request.
fn answer(request: &[u8], call: u64, line: &str, more: &str, body: &str) -> Vec<u8> {
    let request = std::str::from_utf8(request).unwrap();
    let mut out = format!("SIP/2.0 {line}\r\n");
    // Many user agents write all Vias into one row, as here, others keep the rows.
    let vias: Vec<&str> = rows(request, "Via").map(|row| &row["Via: ".len()..]).collect();
    out.push_str(&format!("Via: {}\r\n", vias.join(", ")));
    for name in ["Record-Route", "From", "To", "Call-ID", "CSeq"] {
        for row in rows(request, name) {
            out.push_str(row);
            if name == "To" && !row.contains(";tag=") {
                out.push_str(&format!(";tag=4243s{call}"));
            }
            out.push_str("\r\n");
        }
    }
    out.push_str(more);
    out.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    out.into_bytes()
}

/// One function for each message, so that a profile tells them apart.
const TURNS: [fn(&mut Rig, &[u8]) -> usize; 6] =
    [turn_invite, turn_ringing, turn_ok, turn_ack, turn_bye, turn_bye_ok];

#[inline(never)]
fn turn_invite(rig: &mut Rig, bytes: &[u8]) -> usize {
    black_box(rig.turn(false, bytes))
}

#[inline(never)]
fn turn_ringing(rig: &mut Rig, bytes: &[u8]) -> usize {
    black_box(rig.turn(true, bytes) + 1) - 1
}

#[inline(never)]
fn turn_ok(rig: &mut Rig, bytes: &[u8]) -> usize {
    black_box(rig.turn(true, bytes) + 2) - 2
}

#[inline(never)]
fn turn_ack(rig: &mut Rig, bytes: &[u8]) -> usize {
    black_box(rig.turn(false, bytes) + 3) - 3
}

#[inline(never)]
fn turn_bye(rig: &mut Rig, bytes: &[u8]) -> usize {
    black_box(rig.turn(false, bytes) + 4) - 4
}

#[inline(never)]
fn turn_bye_ok(rig: &mut Rig, bytes: &[u8]) -> usize {
    black_box(rig.turn(true, bytes) + 5) - 5
}

/// A shard with a location cache that holds the peer's domain, and a clock.
pub struct Rig {
    /// The shard.
    pub shard: Shard,
    /// The time it is told.
    pub now: Instant,
    located: Arc<Located>,
    core: Origin,
    peer: Origin,
    /// What the last turn sent: where to, and the octets.
    pub sent: Vec<(SocketAddr, Vec<u8>)>,
}

/// The names of a call's messages, in the order in which they reach the shard.
pub const STEPS: [&str; 6] = ["INVITE", "180", "200", "ACK", "BYE", "200 (BYE)"];

impl Rig {
    /// A new one; the same each time.
    pub fn new() -> Self {
        let now = Instant::now();
        Self::with(policy(now), located(key(), now), now)
    }

    /// One in a world of its own.
    pub fn with(policy: Arc<Policy>, located: Located, now: Instant) -> Self {
        let seeds = Seeds {
            seed: [1; 32],
            keys: [1, 2, 3, 4, 5, 6, 7, 8],
            call: [1, 2, 3, 4],
            loops: [5, 6],
            owner: 7,
        };
        Self {
            shard: Shard::new(0, 1, policy, &seeds),
            now,
            located: Arc::new(located),
            core: origin(CALLER),
            peer: origin(CALLEE),
            sent: (0..8).map(|_| (CALLER.parse().unwrap(), Vec::with_capacity(4096))).collect(),
        }
    }

    /// A call up to the ACK: it is live then.
    pub fn open_call(&mut self, call: u64) {
        assert_eq!(self.turn(false, &invite(call)), 2, "100 and INVITE");
        let forwarded = self.sent[1].1.clone();
        let contact = format!("Contact: <sip:{CALLEE};transport=UDP>\r\n");
        let ok = answer(&forwarded, call, "200 OK", &contact, "v=0\r\n");
        assert_eq!(self.turn(true, &ok), 1, "200");
        let ok = String::from_utf8(self.sent[0].1.clone()).unwrap();
        assert_eq!(self.turn(false, &in_dialog("ACK", 1, call, 5, &ok)), 1, "ACK");
    }

    /// Lets time pass: what is due happens.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.shard.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.shard.handle_timeout(self.now);
            while self.shard.poll_output().is_some() {}
        }
        self.now = end;
    }

    /// One whole call. `step` is told before and after the shard gets a message, by its number.
    pub fn call(&mut self, call: u64, mut step: impl FnMut(usize, bool)) {
        let mut turn = |rig: &mut Self, at: usize, bytes: &[u8]| {
            step(at, false);
            let sent = TURNS[at](rig, bytes);
            step(at, true);
            sent
        };
        assert_eq!(turn(self, 0, &invite(call)), 2, "100 and INVITE");
        let forwarded = self.sent[1].1.clone();
        let contact = format!("Contact: <sip:{CALLEE};transport=UDP>\r\n");
        self.now += Duration::from_millis(1);
        assert_eq!(turn(self, 1, &answer(&forwarded, call, "180 Ringing", &contact, "")), 1, "180");
        let sdp = "v=0\r\no=bob 53655765 2353687637 IN IP4 127.0.0.21\r\ns=-\r\nc=IN IP4 127.0.0.21\r\n\
            t=0 0\r\nm=audio 40002 RTP/AVP 8 101\r\na=rtpmap:8 PCMA/8000\r\n\
            a=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-15\r\na=ptime:20\r\na=sendrecv\r\n";
        let more = format!(
            "{contact}Allow: INVITE, ACK, CANCEL, BYE, OPTIONS\r\nServer: bench-uas/1\r\n\
            Content-Type: application/sdp\r\n"
        );
        let ok = answer(&forwarded, call, "200 OK", &more, sdp);
        self.now += Duration::from_millis(20);
        assert_eq!(turn(self, 2, &ok), 1, "200");
        let ok = String::from_utf8(self.sent[0].1.clone()).unwrap();
        assert_eq!(turn(self, 3, &in_dialog("ACK", 1, call, 5, &ok)), 1, "ACK");
        self.now += Duration::from_millis(100);
        assert_eq!(turn(self, 4, &in_dialog("BYE", 2, call, 7, &ok)), 1, "BYE");
        let bye = self.sent[0].1.clone();
        let server = "Server: bench-uas/1\r\n";
        assert_eq!(turn(self, 5, &answer(&bye, call, "200 OK", server, "")), 1, "200 to the BYE");
    }

    /// Gives one message to the shard and carries out what it wants; returns how many were sent.
    #[inline(never)]
    pub fn turn(&mut self, from_peer: bool, bytes: &[u8]) -> usize {
        let origin = if from_peer { &self.peer } else { &self.core };
        self.shard.handle_input(self.now, Input::Message { origin, bytes });
        if self.shard.poll_timeout().is_some_and(|at| at <= self.now) {
            self.shard.handle_timeout(self.now);
        }
        let mut sent = 0;
        while let Some(output) = self.shard.poll_output() {
            match output {
                Output::Send(send) => {
                    let (to, octets) = &mut self.sent[sent];
                    *to = send.hop.remote;
                    octets.clear();
                    octets.extend_from_slice(&send.bytes);
                    sent += 1;
                }
                Output::Locate { ticket, .. } => {
                    let result = Arc::clone(&self.located);
                    self.shard.handle_input(self.now, Input::Located { ticket, result });
                }
                Output::Event(_) | Output::Pass(_) => {}
            }
        }
        sent
    }
}
