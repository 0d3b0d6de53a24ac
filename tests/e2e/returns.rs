//! The way back on real sockets: what cannot be sent where the request came from goes to the sent-by domain.

use std::net::SocketAddr;

use bytes::Bytes;
use sbe::config::Realm;
use sbe::flow::Transport;
use sbe::wire::Method;

use super::agent::{Agent, invite, request};
use super::{Edge, zone};

fn sides(core: SocketAddr) -> String {
    format!(
        "[[listen]]\ntransport = \"udp\"\nbind = \"127.0.0.10:0\"\n\n[[listen]]\ntransport = \"tcp\"\n\
         bind = \"127.0.0.10:0\"\n\n[core]\nsources = [\"127.0.0.11/32\"]\nnext_hops = [\"sip:{core}\"]\n\n\
         [[peer]]\nname = \"peer\"\ndomains = [\"dest.example.test\"]\nsources = [\"127.0.0.16/28\"]\n"
    )
}

/// With the peer's domain as sent-by, and no rport.
fn from_domain(bytes: &Bytes, sender: SocketAddr) -> Bytes {
    let text = std::str::from_utf8(bytes).unwrap();
    let (head, rest) = text.split_once(&sender.to_string()).unwrap();
    assert!(head.contains("Via:"), "{head}");
    Bytes::from(format!("{head}dest.example.test{}", rest.replacen(";rport", "", 1)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_connection_is_cut_every_response_comes_by_the_srv_of_the_sent_by_domain() {
    let (a, core) = (Agent::start("127.0.0.21").await, Agent::start("127.0.0.11").await);
    // The first server is gone, the second takes it.
    let (gone, home) = (Agent::start("127.0.0.22").await, Agent::start("127.0.0.23").await);
    let dead = gone.addr();
    drop(gone);
    let zone = zone();
    let zone = zone.address("n1", dead.ip()).unwrap().address("n2", home.addr().ip()).unwrap();
    let zone = zone.srv("_sip._tcp.dest", 10, 0, dead.port(), "n1").unwrap();
    let zone = zone.srv("_sip._tcp.dest", 20, 0, home.addr().port(), "n2").unwrap();
    let edge = Edge::start(zone, &sides(core.addr())).await;
    let me = a.sender(Transport::Tcp);
    for (method, status) in [("INVITE", 200), ("INVITE", 486), ("MESSAGE", 202)] {
        let conn = a.connect(edge.at(Transport::Tcp, Realm::Both), false).await;
        let call = format!("{method}-{status}");
        let bytes = match method {
            "INVITE" => invite(&me, "sip:bob@own.example.test", &call),
            _ => request(&me, method, "sip:bob@own.example.test", &call),
        };
        conn.send(from_domain(&bytes, me.addr));
        let got = core.expect("the request", |r| r.sip.call_id() == call).await;
        conn.close().await;
        if status == 200 {
            // Nor does it wait for the final response to be found out.
            core.reply(&got, 180).await;
            let ringing = home.expect("the ringing", |r| r.sip.call_id() == call).await;
            assert_eq!(ringing.sip.msg().status(), 180);
        }
        core.reply(&got, status).await;
        // The ringing may have come twice: it is sent again where nobody is known to have taken it.
        let back =
            home.expect("the response", |r| r.sip.call_id() == call && r.sip.msg().status() >= 200).await;
        assert_eq!((back.sip.msg().status(), back.transport), (status, Transport::Tcp), "{call}");
        if status == 486 {
            core.expect("its ACK", |r| r.is(Method::Ack)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_udp_an_unreachable_port_sends_a_response_to_the_sent_by_domain() {
    let (core, home) = (Agent::start("127.0.0.11").await, Agent::start("127.0.0.23").await);
    let zone = zone().address("n2", home.addr().ip()).unwrap();
    let zone = zone.srv("_sip._udp.dest", 20, 0, home.addr().port(), "n2").unwrap();
    let edge = Edge::start(zone, &sides(core.addr())).await;
    // Nobody listens on the port of its domain at the address that this comes from.
    let a = Agent::start("127.0.0.21").await;
    let me = a.sender(Transport::Udp);
    let bytes = from_domain(&invite(&me, "sip:bob@own.example.test", "udp"), me.addr);
    a.send(bytes, edge.at(Transport::Udp, Realm::Both)).await;
    let got = core.expect("the INVITE", |r| r.is(Method::Invite)).await;
    core.reply(&got, 486).await;
    home.expect("the response", |r| r.answers(Method::Invite, 486)).await;
}
