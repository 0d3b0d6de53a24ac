//! TLS as routing sees it: who sent something by its certificate, whom a server must prove to be, sips.

use crate::msg::{Request, bracketed, reply};
use crate::rig::{CORE, Out, PEER, Rig, lines};

/// A TLS listener for each side (4: peers, 5: the core), and a core that is reached by TLS alone.
const TLS: &str = r#"
[[listen]]
transport = "tcp"
bind = "10.0.0.1:5060"
realm = "core"
[[listen]]
transport = "tls"
bind = "192.0.2.10:5061"
realm = "peering"
advertise = "sbe1.example.com"
[[listen]]
transport = "tls"
bind = "10.0.0.1:5061"
realm = "core"
advertise = "inside.example.com:5061"
[tls]
certificate = "c"
key = "k"
client_certificates = "request"
[[peer]]
name = "transit"
domains = ["far.example"]
next_hop = "sip:transit.example;transport=tls"
tls_names = ["sbc.transit.example"]
"#;

const SERVER: &str = "198.51.100.77:5061";
const SERVER_CONN: &str = "198.51.100.77:41000";

fn rig() -> Rig {
    let mut rig = Rig::with(TLS);
    rig.zone.srv("_sips._tcp.p1.example", 1, 1, 5061, "n1.carrier.example");
    rig.zone.addr("n1.carrier.example", "198.51.100.77");
    rig.zone.srv("_sips._tcp.transit.example", 1, 1, 5061, "n9.carrier.example");
    rig.zone.addr("n9.carrier.example", "198.18.0.9");
    rig
}

/// As [`rig`], with a core that is reached by TLS.
fn tls_core(next_hop: &str) -> Rig {
    let mut rig = Rig::replacing("sip:10.0.0.5:5060;transport=udp", next_hop, TLS);
    rig.zone.srv("_sips._tcp.core.example", 1, 1, 5061, "c1.core.example");
    rig.zone.addr("c1.core.example", "10.0.0.5");
    rig
}

/// Name asked for and names accepted.
fn expected(out: &Out) -> (String, Vec<String>) {
    let tls = out.tls.as_ref().expect("TLS");
    (tls.server_name.to_string(), tls.accepted.to_vec())
}

fn only(name: &str) -> (String, Vec<String>) {
    (name.to_owned(), vec![name.to_owned()])
}

fn request_of(outs: Vec<Out>) -> Out {
    outs.into_iter().find(|o| o.msg.is_request()).expect("a request goes out")
}

/// A call of the core to the peer over TLS, up to its 200 with this Contact; gives INVITE and 200.
fn core_calls(rig: &mut Rig, contact: &str) -> (Out, Out) {
    let sent = request_of(
        rig.udp(CORE, &Request::new("INVITE", "sips:bob@p1.example", CORE, "u1", "call-1").bytes()),
    );
    let ok = reply(&sent.msg, 200, "t1", &[format!("Contact: <{contact}>")], b"");
    let outs = rig.tls(4, SERVER, 9, &["p1.example"], &ok);
    (sent, outs.into_iter().next().expect("the 200"))
}

fn in_dialog(method: &str, uri: &str, at: &str, route: Vec<String>) -> Request {
    let mut r = Request::new(method, uri, at, "u2", "call-1");
    r.routes = route;
    r.to = "<sip:x@y>;tag=t1".into();
    r.cseq = 2;
    r
}

#[test]
fn the_name_asked_for_is_the_domain_and_never_what_srv_led_to() {
    let mut rig = rig();
    let (sent, _) = core_calls(&mut rig, "sip:bob@p1.example");
    assert_eq!(sent.line(), format!("INVITE {SERVER}"));
    assert_eq!(expected(&sent), only("p1.example"));
    let outs = rig.udp(CORE, &Request::new("OPTIONS", "sip:bob@far.example", CORE, "u7", "call-7").bytes());
    let (asked, accepted) = expected(&request_of(outs));
    assert_eq!(asked, "transit.example");
    assert_eq!(accepted, ["sbc.transit.example", "transit.example"]);
}

#[test]
fn in_a_dialog_an_address_is_checked_against_the_name_that_it_was_set_up_with() {
    for (contact, want) in [
        ("sips:bob@198.51.100.77", only("p1.example")),
        ("sip:bob@198.51.100.77:5061;transport=tls", only("p1.example")),
        // A name is asked for by itself; the dialog's is as good.
        (
            "sip:bob@n5.p1.example;transport=tls",
            ("n5.p1.example".to_owned(), vec!["n5.p1.example".to_owned(), "p1.example".to_owned()]),
        ),
    ] {
        let mut rig = rig();
        rig.zone.addr("n5.p1.example", "198.51.100.77");
        let (_, ok) = core_calls(&mut rig, contact);
        let route: Vec<String> = ok.msg.values("record-route").into_iter().rev().collect();
        let bye = in_dialog("BYE", contact, CORE, route);
        let sent = request_of(rig.udp(CORE, &bye.bytes()));
        assert_eq!(sent.line(), format!("BYE {SERVER}"));
        assert_eq!(expected(&sent), want, "{contact}");
    }
}

#[test]
fn a_peer_that_has_called_is_called_back_by_the_name_in_its_certificate() {
    let mut rig = rig();
    let mut invite = Request::new("INVITE", "sip:bob@example.com", PEER, "u1", "call-1");
    invite.vias = vec!["SIP/2.0/TLS p1.example;branch=z9hG4bKu1".into()];
    let outs = rig.tls(4, SERVER_CONN, 9, &["other.example", "p1.example"], &invite.bytes());
    let sent = request_of(outs);
    assert_eq!(sent.line(), "INVITE 10.0.0.5:5060");
    // The core hangs up; the peer's Contact is an address.
    let routes: Vec<String> = sent.msg.values("record-route");
    assert!(
        bracketed(&routes[1]).unwrap().starts_with("sip:sbe1.example.com;transport=tls;lr"),
        "{routes:?}"
    );
    let bye = in_dialog("BYE", "sip:alice@198.51.100.77:5061;transport=tls", "10.0.0.5:5060", routes);
    let sent = request_of(rig.udp("10.0.0.5:5060", &bye.bytes()));
    assert_eq!((sent.line(), sent.listener), (format!("BYE {SERVER}"), 4));
    assert_eq!(expected(&sent), only("p1.example"));
}

#[test]
fn both_sides_of_a_dialog_over_tls_keep_their_names_through_a_refresh() {
    let mut rig = tls_core("sip:core.example;transport=tls");
    let mut invite = Request::new("INVITE", "sips:bob@example.com", PEER, "u1", "call-1");
    invite.vias = vec!["SIP/2.0/TLS p1.example;branch=z9hG4bKu1".into()];
    let sent = request_of(rig.tls(4, SERVER_CONN, 9, &["p1.example"], &invite.bytes()));
    assert_eq!((sent.line(), sent.listener), ("INVITE 10.0.0.5:5061".to_owned(), 5));
    assert_eq!(expected(&sent), only("core.example"));
    let mut routes: Vec<String> = sent.msg.values("record-route");
    assert!(routes.iter().all(|r| r.contains("<sips:")), "{routes:?}");
    // Either side asks for something, by an address; what is recorded then says the same as before.
    for round in 0..2 {
        let mut again = in_dialog("INVITE", "sips:alice@198.51.100.77", "10.0.0.5:5061", routes.clone());
        again.vias = vec![format!("SIP/2.0/TLS core.example;branch=z9hG4bKc{round}")];
        again.cseq = 10 + round;
        let sent = request_of(rig.tls(5, "10.0.0.5:45000", 3, &[], &again.bytes()));
        assert_eq!(expected(&sent), only("p1.example"), "round {round}");
        let back: Vec<String> = sent.msg.values("record-route");
        let mut again = in_dialog("INVITE", "sips:bob@10.0.0.5", PEER, back.clone());
        again.vias = vec![format!("SIP/2.0/TLS p1.example;branch=z9hG4bKp{round}")];
        again.cseq = 20 + round;
        let sent = request_of(rig.tls(4, SERVER_CONN, 9, &["p1.example"], &again.bytes()));
        assert_eq!(expected(&sent), only("core.example"), "round {round}");
        routes = sent.msg.values("record-route");
    }
}

#[test]
fn an_address_without_any_name_to_go_by_may_prove_any_of_its_partys_names() {
    let mut rig = rig();
    // Set up over UDP, so that the token knows no name; then the peer wants TLS.
    let invite = Request::new("INVITE", "sip:bob@example.com", PEER, "u1", "call-1");
    let sent = request_of(rig.udp(PEER, &invite.bytes()));
    let routes = sent.msg.values("record-route");
    let bye = in_dialog("BYE", "sip:alice@198.51.100.77:5061;transport=tls", "10.0.0.5:5060", routes);
    assert_eq!(expected(&request_of(rig.udp("10.0.0.5:5060", &bye.bytes()))), only("p1.example"));
}

#[test]
fn the_certificate_alone_decides_who_sent_it() {
    let mut rig = rig();
    let options = |branch: &str| {
        let mut r = Request::new("MESSAGE", "sip:bob@example.com", PEER, branch, branch);
        r.vias = vec![format!("SIP/2.0/TLS p1.example;branch=z9hG4bK{branch}")];
        r.bytes()
    };
    // The name of a peer, from an address of another one.
    assert_eq!(
        lines(&rig.tls(4, "203.0.113.9:4000", 1, &["p1.example"], &options("a"))),
        ["MESSAGE 10.0.0.5:5060"]
    );
    // A name of nobody, from an address of a peer.
    let refused = rig.tls(4, "198.51.100.9:4000", 2, &["nobody.example"], &options("b"));
    assert_eq!(lines(&refused), ["403 198.51.100.9:4000"]);
    // A certificate without a name that counts is no certificate of a peer.
    let identity = sbe::flow::TlsIdentity { names: Vec::new() };
    assert_eq!(rig.policy.name_of(sbe::peering::Party::Core, &identity), None);
    // None at all: the address.
    assert_eq!(lines(&rig.tls(4, "198.51.100.9:4000", 3, &[], &options("c"))), ["MESSAGE 10.0.0.5:5060"]);
    assert_eq!(lines(&rig.tls(4, "198.18.9.9:4000", 4, &[], &options("d"))), ["403 198.18.9.9:4000"]);
}

#[test]
fn sips_is_kept_under_tls_or_refused() {
    // (a core's next hop, where a sips request of the peer goes)
    for (next_hop, want) in [
        ("sip:10.0.0.5:5060;transport=udp", None),
        ("sip:10.0.0.5:5060", None),
        ("sip:10.0.0.5;transport=tcp", None),
        ("sip:core.example;transport=udp", None),
        ("sip:core.example;transport=tls", Some("10.0.0.5:5061")),
        ("sips:core.example", Some("10.0.0.5:5061")),
        ("sip:core.example", Some("10.0.0.5:5061")),
        ("sip:10.0.0.5:5071;transport=tls", Some("10.0.0.5:5071")),
    ] {
        let mut rig = tls_core(next_hop);
        let mut r = Request::new("MESSAGE", "sips:bob@example.com", PEER, "u1", "call-1");
        r.vias = vec!["SIP/2.0/TLS p1.example;branch=z9hG4bKu1".into()];
        let outs = rig.tls(4, SERVER_CONN, 9, &["p1.example"], &r.bytes());
        match want {
            Some(to) => assert_eq!(lines(&outs), [format!("MESSAGE {to}")], "{next_hop}"),
            None => {
                assert_eq!(lines(&outs), [format!("480 {SERVER_CONN}")], "{next_hop}");
                assert!(outs[0].msg.get("warning").is_some_and(|w| w.contains("sips")), "{next_hop}");
            }
        }
    }
    let mut rig = rig();
    // (Request-URI, Route, outcome) of requests of the core
    for (n, (uri, route, want)) in [
        ("sips:bob@p1.example", None, format!("MESSAGE {SERVER}")),
        ("sips:bob@p1.example;transport=tcp", None, format!("MESSAGE {SERVER}")),
        ("sips:bob@p1.example;transport=udp", None, format!("480 {CORE}")),
        ("sips:bob@far.example", None, format!("480 {CORE}")),
        ("sip:bob@far.example", None, "MESSAGE 198.18.0.9:5061".to_owned()),
        // The Request-URI binds the next hop, whatever a Route says of it.
        ("sips:bob@p1.example", Some("<sip:p1.example;lr>"), format!("MESSAGE {SERVER}")),
        ("sips:bob@p1.example", Some("<sip:p1.example;transport=udp;lr>"), format!("480 {CORE}")),
        ("sip:bob@p1.example", Some("<sips:p1.example;lr>"), format!("MESSAGE {SERVER}")),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("s{n}");
        let mut r = Request::new("MESSAGE", uri, CORE, &id, &id);
        r.routes.extend(route.map(str::to_owned));
        assert_eq!(lines(&rig.udp(CORE, &r.bytes())), [want], "{uri} {route:?}");
    }
}

#[test]
fn sips_stays_under_tls_at_failover() {
    let mut rig = rig();
    rig.zone.srv("_sips._tcp.p1.example", 2, 1, 5061, "n2.carrier.example");
    rig.zone.addr("n2.carrier.example", "198.51.100.78");
    let outs = rig.udp(CORE, &Request::new("INVITE", "sips:bob@p1.example", CORE, "u1", "call-1").bytes());
    let first = request_of(outs);
    let outs = rig.fail(first.token, sbe::flow::SendFailure::Tls);
    assert_eq!(lines(&outs), ["INVITE 198.51.100.78:5061"]);
    assert_eq!(expected(&outs[0]), only("p1.example"));
    let outs = rig.fail(outs[0].token, sbe::flow::SendFailure::Tls);
    assert_eq!(lines(&outs), [format!("500 {CORE}")], "UDP and TCP servers there are, but not for sips");
}

#[test]
fn a_response_on_a_new_tls_connection_goes_only_to_who_sent_the_request() {
    for (names, sent_by, first, domain) in [
        // Its certificate says who it is; SRV of the sent-by domain leads on.
        (&["p1.example"][..], "p1.example", Some(("p1.example", vec!["p1.example"])), true),
        // A sent-by in its certificate, though no name that is configured.
        (
            &["p1.example", "b.example"],
            "b.example",
            Some(("b.example", vec!["p1.example", "b.example"])),
            true,
        ),
        (&["p1.example"], "victim.example", Some(("victim.example", vec!["p1.example"])), false),
        (&["p1.example"], "198.51.100.9", Some(("p1.example", vec!["p1.example"])), false),
        // Without a certificate the name in its sent-by is all there is.
        (&[], "p1.example", Some(("p1.example", vec!["p1.example"])), true),
        (&[], "198.51.100.9", None, false),
    ] {
        let mut rig = rig();
        rig.zone.addr("b.example", "198.18.3.3");
        rig.zone.addr("victim.example", "198.18.4.4");
        let mut r = Request::new("MESSAGE", "sip:bob@example.com", PEER, "u1", "call-1");
        r.vias = vec![format!("SIP/2.0/TLS {sent_by};branch=z9hG4bKu1")];
        let sent = request_of(rig.tls(4, SERVER_CONN, 9, names, &r.bytes()));
        let ok = rig.udp("10.0.0.5:5060", &reply(&sent.msg, 200, "t1", &[], b""));
        let outs = rig.fail(ok[0].token, sbe::flow::SendFailure::Closed { reused: true });
        assert_eq!(lines(&outs), [format!("200 {SERVER}")], "{sent_by}");
        let want = first.map(|(asked, accepted)| {
            (asked.to_owned(), accepted.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())
        });
        let found = outs[0].tls.as_ref().map(|_| expected(&outs[0]));
        assert_eq!(found, want, "{names:?} {sent_by}");
        // The peer's own server is where it came from already; b.example leads elsewhere.
        let outs = rig.fail(outs[0].token, sbe::flow::SendFailure::Tls);
        let elsewhere = domain && sent_by == "b.example";
        assert_eq!(!outs.is_empty(), elsewhere, "{names:?} {sent_by}");
        if elsewhere {
            assert_eq!(lines(&outs), ["200 198.18.3.3:5061"]);
            assert_eq!(expected(&outs[0]).1, ["p1.example", "b.example"]);
        }
        rig.expect_empty();
    }
}

#[test]
fn a_via_offers_its_connection_only_where_requests_that_come_back_on_it_are_served() {
    let mut rig = rig();
    let via = |out: &Out| out.msg.values("via")[0].clone();
    let (sent, _) = core_calls(&mut rig, "sip:bob@p1.example");
    assert!(via(&sent).ends_with(";alias"), "{}", via(&sent));
    // Its ACK, CANCEL and what follows say the same; the branch alone tells transactions apart.
    let cancelled = request_of(
        rig.udp(CORE, &Request::new("INVITE", "sips:bob@p1.example", CORE, "u3", "call-3").bytes()),
    );
    let ringing = reply(&cancelled.msg, 180, "t3", &[], b"");
    rig.tls(4, SERVER, 9, &["p1.example"], &ringing);
    let cancel = request_of(
        rig.udp(CORE, &Request::new("CANCEL", "sips:bob@p1.example", CORE, "u3", "call-3").bytes()),
    );
    assert_eq!((cancel.line(), via(&cancel)), (format!("CANCEL {SERVER}"), via(&cancelled)));
    // The transit's server may prove a name that makes nobody a peer: a request on that connection would get 403.
    let outs = rig.udp(CORE, &Request::new("OPTIONS", "sip:bob@far.example", CORE, "u7", "call-7").bytes());
    let sent = request_of(outs);
    assert_eq!(sent.transport, sbe::flow::Transport::Tls);
    assert!(!via(&sent).contains("alias"), "{}", via(&sent));
    // Without TLS nothing is proved at all.
    let mut invite = Request::new("INVITE", "sip:bob@example.com", PEER, "u1", "call-1");
    invite.vias = vec!["SIP/2.0/TLS p1.example;branch=z9hG4bKu1".into()];
    let sent = request_of(rig.tls(4, SERVER_CONN, 9, &["p1.example"], &invite.bytes()));
    assert_eq!(sent.line(), "INVITE 10.0.0.5:5060");
    assert!(!via(&sent).contains("alias"), "{}", via(&sent));
}
