//! Record-Route where the two sides use different sockets (RFC 3261 §16.6 step 4, §16.4; RFC 5658).

use std::net::SocketAddr;

use sbe::config::Realm;
use sbe::demo::message::Sip;
use sbe::flow::Transport;
use sbe::wire::{Method, Name};

use super::agent::{Agent, Side, invite};
use super::{Edge, zone};

const SIDES: &str = "
[[listen]]
transport = \"udp\"
bind = \"127.0.0.10:0\"
realm = \"core\"

[[listen]]
transport = \"tcp\"
bind = \"127.0.0.10:0\"
realm = \"core\"

[[listen]]
transport = \"udp\"
bind = \"127.0.0.12:0\"
realm = \"peering\"

[core]
sources = [\"127.0.0.11/32\"]
next_hops = [\"sip:127.0.0.11\"]

[[peer]]
name = \"peer\"
domains = [\"dest.example.test\"]
sources = [\"127.0.0.21/32\"]
";

/// Routes that lead back to the element.
fn own_routes(sip: &Sip) -> Vec<String> {
    let own =
        |uri: &String| ["127.0.0.10", "127.0.0.12", "edge.example.test"].iter().any(|h| uri.contains(h));
    sip.route_uris(Name::Route).into_iter().filter(own).collect()
}

/// A call, a re-INVITE from the called side, a BYE from there: everything by the right sockets.
async fn dialog(by: Transport) {
    let (a, b) = (Agent::start("127.0.0.11").await, Agent::start("127.0.0.21").await);
    let zone = zone().address("dest", b.addr().ip()).unwrap();
    let edge = Edge::start(zone, SIDES).await;
    let core = edge.at(by, Realm::Core);
    let peering = edge.at(Transport::Udp, Realm::Peering);
    let conn = match by {
        Transport::Tcp => Some(a.connect(core, false).await),
        _ => None,
    };
    let send = async |bytes| match &conn {
        Some(conn) => conn.send(bytes),
        None => a.send(bytes, core).await,
    };
    let uri = format!("sip:bob@dest.example.test:{}", b.addr().port());
    send(invite(&a.sender(by), &uri, "two-sides")).await;
    let got = b.expect("the INVITE", |r| r.is(Method::Invite)).await;
    assert_eq!(got.from, peering, "the socket that the INVITE came from");
    b.reply(&got, 200).await;
    let ok = a.expect("its 200", |r| r.answers(Method::Invite, 200)).await;
    let mut caller = Side::caller(a.sender(by), &ok.sip);
    let mut callee = Side::callee(b.sender(Transport::Udp), &got.sip);
    assert_eq!(callee.first_hop(), (peering, Transport::Udp), "{:?}", callee.routes);
    assert_eq!(caller.first_hop(), (core, by), "{:?}", caller.routes);
    assert_eq!(caller.routes.len(), 2, "one for each side: {:?}", caller.routes);

    send(caller.request("ACK")).await;
    let ack = b.expect("the ACK", |r| r.is(Method::Ack)).await;
    assert_eq!((ack.from, own_routes(&ack.sip)), (peering, vec![]));

    let hop: SocketAddr = callee.first_hop().0;
    b.send(callee.request("INVITE"), hop).await;
    let again = a.expect("the re-INVITE", |r| r.is(Method::Invite)).await;
    assert_eq!((again.transport, own_routes(&again.sip)), (by, vec![]));
    if by == Transport::Udp {
        assert_eq!(again.from, core, "the socket that the re-INVITE came from");
    }
    a.reply(&again, 200).await;
    b.expect("its 200", |r| r.answers(Method::Invite, 200)).await;
    b.send(callee.request("ACK"), hop).await;
    let ack = a.expect("the ACK of the re-INVITE", |r| r.is(Method::Ack)).await;
    assert_eq!(ack.transport, by);

    b.send(callee.request("BYE"), hop).await;
    let bye = a.expect("the BYE", |r| r.is(Method::Bye)).await;
    assert_eq!((bye.transport, own_routes(&bye.sip)), (by, vec![]));
    a.reply(&bye, 200).await;
    b.expect("its 200", |r| r.answers(Method::Bye, 200)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_route_sets_lead_to_the_sockets_of_their_sides() {
    dialog(Transport::Udp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dialog_may_have_tcp_on_one_side_and_udp_on_the_other() {
    dialog(Transport::Tcp).await;
}
