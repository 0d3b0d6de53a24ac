//! Plain calls, and ways back.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sbe::config::Realm;
use sbe::demo::caller::Caller;
use sbe::demo::instance::Instance;
use sbe::demo::message::Sender;
use sbe::flow::Transport;
use sbe::wire::Method;

use super::agent::{Agent, invite};
use super::{Edge, PATIENCE, ip, until, zone};

const RING: Duration = Duration::from_millis(10);
const T1: Duration = Duration::from_millis(500);

/// Listeners for both transports towards both sides, on one address.
fn listeners(host: &str) -> String {
    let one = |transport: &str, realm: &str| {
        format!("[[listen]]\ntransport = \"{transport}\"\nbind = \"{host}:0\"\nrealm = \"{realm}\"\n\n")
    };
    [("udp", "core"), ("tcp", "core"), ("udp", "peering"), ("tcp", "peering")]
        .map(|(t, r)| one(t, r))
        .concat()
}

fn sides(core: &str) -> String {
    format!(
        "[core]\nsources = [\"{core}\"]\nnext_hops = [\"sip:192.0.2.1\"]\n\n\
         [[peer]]\nname = \"peer\"\ndomains = [\"dest.example.test\"]\n"
    )
}

/// One call by each transport from INVITE to BYE, counted at both ends, and nothing left over.
async fn calls_go_through(host: &str, literal: &str) {
    let server = Instance::start("only", SocketAddr::new(ip(host), 0), RING).await.unwrap();
    let port = server.addr().port();
    let zone = zone()
        .srv("_sip._udp.dest", 0, 0, port, "host")
        .and_then(|z| z.srv("_sip._tcp.dest", 0, 0, port, "host"))
        .and_then(|z| z.address("host", ip(host)))
        .unwrap();
    let edge = Edge::start(zone, &(listeners(literal) + &sides(host))).await;
    let caller = Caller::start(
        ip(host),
        Some(edge.at(Transport::Udp, Realm::Core)),
        Some(edge.at(Transport::Tcp, Realm::Core)),
    )
    .await
    .unwrap();
    for (n, transport) in (1..).zip([Transport::Udp, Transport::Tcp]) {
        let uri = format!("sip:bob@dest.example.test;transport={transport}");
        let (outcome, dialog) = caller.call(transport, &uri, &format!("plain-{n}")).await.unwrap();
        assert_eq!((outcome.status, outcome.rang), (200, true), "{transport}");
        let bye = caller.hang_up(dialog.unwrap(), Duration::ZERO).await.unwrap();
        assert_eq!(bye, 200, "{transport}");
        let counts = server.counts();
        assert_eq!((counts.invites, counts.answered, counts.ended), (n, n, n), "{transport}");
        assert_eq!((counts.retransmissions_in, counts.retransmissions_out), (0, 0), "{transport}");
        let records = edge.node.records(format!("plain-{n}").as_bytes());
        assert_eq!(records[0].attempts[0].instance.transport, transport);
    }
    until("no call is counted any more", || edge.node.live().calls == 0).await;
    assert_eq!(edge.node.open(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_goes_through_over_udp_and_tcp() {
    calls_go_through("127.0.0.1", "127.0.0.1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_goes_through_over_ipv6() {
    calls_go_through("::1", "[::1]").await;
}

/// RFC 3261 §18.2.2: the connection of the request first, else a new one to where the Via says.
async fn the_answer_comes_by_a_new_connection(reset: bool, status: u16) {
    let (a, b) = (Agent::start("127.0.0.11").await, Agent::start("127.0.0.21").await);
    let zone = zone().address("dest", b.addr().ip()).unwrap();
    let edge = Edge::start(zone, &(listeners("127.0.0.10") + &sides("127.0.0.11/32"))).await;
    let conn = a.connect(edge.at(Transport::Tcp, Realm::Core), reset).await;
    let uri = format!("sip:bob@dest.example.test:{}", b.addr().port());
    conn.send(invite(&a.sender(Transport::Tcp), &uri, "gone"));
    let got = b.expect("the INVITE", |r| r.is(Method::Invite)).await;
    let made_by_a = conn.local;
    conn.close().await;
    if !reset {
        // Whoever has closed in order may still be listening; only what is sent to it tells.
        b.reply(&got, 180).await;
        let sent = &edge.node.counters().stream_messages_out;
        until("100 and 180 are written", || sent.load(Ordering::Relaxed) >= 2).await;
    }
    let back = async {
        // §13.3.1.4: the called one repeats a 2xx until its ACK; any other final response is up to the element.
        loop {
            b.reply(&got, status).await;
            tokio::time::sleep(if status == 200 { T1 } else { PATIENCE }).await;
        }
    };
    let answer = tokio::select! {
        answer = a.expect("the answer", |r| r.answers(Method::Invite, status)) => answer,
        () = back => unreachable!(),
    };
    assert_eq!(answer.transport, Transport::Tcp);
    assert_ne!(answer.from, made_by_a);
    assert_eq!(answer.from.ip(), ip("127.0.0.10"), "from the listener's address");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_whose_connection_was_reset_comes_by_a_new_one() {
    the_answer_comes_by_a_new_connection(true, 486).await;
    the_answer_comes_by_a_new_connection(true, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_whose_connection_was_closed_comes_by_a_new_one() {
    the_answer_comes_by_a_new_connection(false, 486).await;
    the_answer_comes_by_a_new_connection(false, 200).await;
}

/// RFC 3581: to the address and port it came from, whatever the Via says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_over_udp_goes_where_the_request_came_from() {
    let (a, b) = (Agent::start("127.0.0.11").await, Agent::start("127.0.0.21").await);
    let zone = zone().address("dest", b.addr().ip()).unwrap();
    let edge = Edge::start(zone, &(listeners("127.0.0.10") + &sides("127.0.0.11/32"))).await;
    b.auto(|_| Some(486));
    let elsewhere = Sender { transport: Transport::Udp, addr: "192.0.2.77:5999".parse().unwrap() };
    let uri = format!("sip:bob@dest.example.test:{}", b.addr().port());
    a.send(invite(&elsewhere, &uri, "moved"), edge.at(Transport::Udp, Realm::Core)).await;
    let busy = a.expect("the 486", |r| r.answers(Method::Invite, 486)).await;
    let via = busy.sip.rows("via").remove(0);
    let addr = a.addr();
    assert!(via.contains(&format!("received={}", addr.ip())), "{via}");
    assert!(via.contains(&format!("rport={}", addr.port())), "{via}");
}
