//! OPTIONS probes (rule 9): which addresses, which answers count, flapping, all down.

use std::time::{Duration, Instant};

use sbe::config::Realm;
use sbe::flow::Transport;
use sbe::location::{Instance, Standing};
use sbe::wire::Method;

use super::agent::{Agent, Received, invite};
use super::{Edge, until, zone};

const SIDES: &str = "
[[listen]]
transport = \"udp\"
bind = \"127.0.0.10:0\"

[[listen]]
transport = \"tcp\"
bind = \"127.0.0.10:0\"

[sip]
try_timeout = \"300ms\"

[core]
sources = [\"127.0.0.11/32\"]
next_hops = [\"sip:127.0.0.11\"]

[[peer]]
name = \"peer\"
domains = [\"dest.example.test\"]
sources = [\"127.0.0.21/32\", \"127.0.0.22/32\"]
probe = { method = \"OPTIONS\", interval = \"200ms\", timeout = \"150ms\", down_after = 3, up_after = 2 }
";

/// A caller, and a peer with two addresses, the second one for when the first fails.
struct World {
    edge: Edge,
    a: Agent,
    b1: Agent,
    b2: Agent,
    calls: usize,
}

/// Answers everything.
fn ok(_: &Received) -> Option<u16> {
    Some(200)
}

/// Answers probes with a status, or not at all, and everything else with 200.
fn probed(status: Option<u16>) -> impl FnMut(&Received) -> Option<u16> + Send {
    move |r| if r.is_probe() { status } else { Some(200) }
}

impl World {
    async fn start(transport: Transport) -> Self {
        let (b1, b2) = (Agent::start("127.0.0.21").await, Agent::start("127.0.0.22").await);
        b1.auto(ok);
        b2.auto(ok);
        let service = format!("_sip._{transport}.dest");
        let zone = zone()
            .srv(&service, 10, 0, b1.addr().port(), "b1")
            .and_then(|z| z.srv(&service, 20, 0, b2.addr().port(), "b2"))
            .and_then(|z| z.address("b1", b1.addr().ip()))
            .and_then(|z| z.address("b2", b2.addr().ip()))
            .unwrap();
        let a = Agent::start("127.0.0.11").await;
        Self { edge: Edge::start(zone, SIDES).await, a, b1, b2, calls: 0 }
    }

    fn standing(&self, of: &Agent, transport: Transport) -> Standing {
        let instance = Instance { transport, addr: of.addr() };
        self.edge.node.health(Instant::now()).get(&instance).copied().unwrap_or(Standing::Up)
    }

    async fn until(&self, of: &Agent, down: bool) {
        let seen = || (self.standing(of, Transport::Udp) == Standing::ProbedDown) == down;
        until(if down { "it is taken out" } else { "it is brought back" }, seen).await;
    }

    /// Waits for more probes at an instance, that many.
    async fn more_probes(&self, at: &Agent, more: usize) {
        let before = at.count(Received::is_probe);
        until("probes", || at.count(Received::is_probe) >= before + more).await;
    }

    /// Makes a call; whether it came to B1 and to B2.
    async fn call(&mut self) -> (bool, bool) {
        self.calls += 1;
        let id = format!("call-{}", self.calls);
        let bytes = invite(&self.a.sender(Transport::Udp), "sip:bob@dest.example.test", &id);
        self.a.send(bytes, self.edge.at(Transport::Udp, Realm::Both)).await;
        let status = |r: &Received| r.sip.msg().status();
        let end = self.a.expect("its end", |r| status(r) >= 200 && r.sip.call_id() == id).await;
        assert_eq!(status(&end), 200);
        let at = |b: &Agent| b.count(|r| r.is(Method::Invite) && r.sip.call_id() == id) > 0;
        (at(&self.b1), at(&self.b2))
    }
}

const AT_B1: (bool, bool) = (true, false);
const AT_B2: (bool, bool) = (false, true);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_address_is_probed_and_a_silent_one_gets_no_calls() {
    let mut w = World::start(Transport::Udp).await;
    w.more_probes(&w.b1, 2).await;
    w.more_probes(&w.b2, 2).await;
    w.b1.auto(|_| None);
    w.until(&w.b1, true).await;
    for _ in 0..5 {
        assert_eq!(w.call().await, AT_B2, "no call pays for what probes have found out");
    }
    w.more_probes(&w.b1, 3).await;
    assert_eq!(w.standing(&w.b2, Transport::Udp), Standing::Up);
    w.b1.auto(ok);
    w.until(&w.b1, false).await;
    assert_eq!(w.call().await, AT_B1, "back in service");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_answer_but_503_is_a_sign_of_life() {
    let mut w = World::start(Transport::Udp).await;
    for status in [404, 405, 481, 501] {
        w.b1.auto(probed(Some(status)));
        w.more_probes(&w.b1, 5).await;
        assert_eq!(w.standing(&w.b1, Transport::Udp), Standing::Up, "{status}");
        assert_eq!(w.call().await, AT_B1, "{status}");
    }
    w.b1.auto(probed(Some(503)));
    w.until(&w.b1, true).await;
    assert_eq!(w.call().await, AT_B2, "503: reachable, but not in service");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_probe_now_and_then_takes_nothing_out() {
    let mut w = World::start(Transport::Udp).await;
    let mut probes = 0;
    w.b1.auto(move |r| {
        probes += usize::from(r.is_probe());
        (!r.is_probe() || probes % 5 != 0).then_some(200)
    });
    for _ in 0..4 {
        let before = w.b1.count(Received::is_probe);
        until("five more probes, and B1 up all the time", || {
            assert_ne!(w.standing(&w.b1, Transport::Udp), Standing::ProbedDown);
            w.b1.count(Received::is_probe) >= before + 5
        })
        .await;
        assert_eq!(w.call().await, AT_B1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_answers_every_other_probe_does_not_flap() {
    let mut w = World::start(Transport::Udp).await;
    let mut down = false;
    w.b1.auto(move |r| {
        down ^= r.is_probe();
        (!r.is_probe() || !down).then_some(200)
    });
    let (mut changes, mut last) = (0, None);
    for _ in 0..4 {
        let before = w.b1.count(Received::is_probe);
        until("five more probes", || {
            let up = w.standing(&w.b1, Transport::Udp) != Standing::ProbedDown;
            changes += usize::from(last.is_some_and(|l| l != up));
            last = Some(up);
            w.b1.count(Received::is_probe) >= before + 5
        })
        .await;
        w.call().await;
    }
    assert!(changes <= 3, "{changes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_down_calls_are_tried_and_the_first_to_come_back_gets_them() {
    let mut w = World::start(Transport::Udp).await;
    w.b1.auto(|_| None);
    w.b2.auto(|_| None);
    w.until(&w.b1, true).await;
    w.until(&w.b2, true).await;
    let bytes = invite(&w.a.sender(Transport::Udp), "sip:bob@dest.example.test", "hopeless");
    w.a.send(bytes, w.edge.at(Transport::Udp, Realm::Both)).await;
    let tried = |r: &Received| r.is(Method::Invite) && r.sip.call_id() == "hopeless";
    until("a try all the same", || w.b1.count(tried) + w.b2.count(tried) > 0).await;
    w.b2.auto(ok);
    w.until(&w.b2, false).await;
    assert_eq!(w.call().await, AT_B2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_closes_its_connection_after_every_answer_stays_up() {
    let w = World::start(Transport::Tcp).await;
    w.b1.close_after_answer();
    let before = w.b1.count(Received::is_probe);
    until("probes over TCP, and B1 up all the time", || {
        assert_eq!(w.standing(&w.b1, Transport::Tcp), Standing::Up);
        w.b1.count(Received::is_probe) >= before + 8
    })
    .await;
    assert_eq!(w.b1.count(|r| r.transport == Transport::Udp), 0, "the SRV record says TCP");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_without_a_socket_is_found_by_its_refusals() {
    let w = World::start(Transport::Tcp).await;
    w.more_probes(&w.b1, 1).await;
    let instance = Instance { transport: Transport::Tcp, addr: w.b1.addr() };
    drop(w.b1);
    let began = Instant::now();
    until("B1 is taken out", || {
        let health = w.edge.node.health(Instant::now());
        health.get(&instance) == Some(&Standing::ProbedDown)
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(5));
}
